"""Neither how many threads sample nor what is sampled at the same time changes a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from spgnn.loader import Draw, LadiesSampler, NeighborSampler
from tests.loader.graphs import arrays, assert_equal, check_shape, random_graph

N = 4000
# Fewer than the tasks of a hop and more, and so many that all of them number the columns.
THREADS = (2, 3, 12)


@pytest.fixture(scope="module")
def graph():
    return random_graph(N, 0.004, 6, weighted=True)


def sampler_of(graph, kind: str, fanouts: list[int], threads: int) -> NeighborSampler:
    options = {
        "plain": {},
        "weighted": {"weights": graph.values},
        "replace": {"replace": True},
        "disjoint": {"disjoint": True},
        "once": {"resample": False},
        "undirected": {"directed": False},
    }[kind]
    return NeighborSampler(graph, fanouts, edge_ids=True, threads=threads, **options)


@pytest.mark.parametrize("kind", ["plain", "weighted", "replace", "disjoint", "once", "undirected"])
@pytest.mark.parametrize("fanouts", [[6, 4], [-1, -1], [0, 5], [3, 0, 2], [70], []], ids=str)
def test_batches_of_any_number_of_threads(graph, kind, fanouts):
    # 512 targets are one task.
    shapes = [torch.arange(0, N, N // count)[:count] for count in (1, 512, 513, 1600)]
    shapes += [torch.tensor([], dtype=torch.int64), torch.tensor([N - 1, N - 2])]
    one = sampler_of(graph, kind, fanouts, 1)
    others = [sampler_of(graph, kind, fanouts, threads) for threads in THREADS]
    for seeds in shapes:
        expected = one.sample(seeds, Draw(3))
        if kind != "undirected":
            check_shape(graph.pattern, expected, seeds)
        for other in others:
            assert_equal(other.sample(seeds, Draw(3)), expected)


def test_hops_that_are_numbered_afterwards(graph):
    one, *others = (LadiesSampler(graph, [900, 900], threads=t) for t in (1, *THREADS))
    for other in others:
        seeds = torch.arange(0, N, 3)
        assert_equal(other.sample(seeds, Draw(3)), one.sample(seeds, Draw(3)))


def test_arrays_stay_while_others_come_and_go(graph):
    # Batches of very different sizes, some of which are kept and some of which leave memory behind.
    weighted = {threads: sampler_of(graph, "weighted", [9, 9], threads) for threads in (1, 2, 12)}
    counts = [3, 2000, 700, 40, 1500, 1, 1999, 800]
    kept = []

    def work(job: int) -> None:
        seeds = torch.randperm(N, generator=torch.Generator().manual_seed(job))
        sampler = weighted[(1, 2, 12)[job % 3]]
        sample = sampler.sample(seeds[: counts[job % len(counts)]], Draw(job))
        found = arrays(sample)
        if job % 5:
            kept.append((sample, [array.clone() for array in found]))
        if job % 7 == 0 and kept:
            kept.pop(0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(120)))
    assert len(kept) > 50
    for sample, copies in kept:
        for array, copy in zip(arrays(sample), copies, strict=True):
            assert torch.equal(array, copy)
