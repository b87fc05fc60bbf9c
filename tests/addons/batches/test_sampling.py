"""Samplers: threads, permutations and other seeds change nothing; options, and bad input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from spgnn import CSR, _native
from spgnn.addons.batches import (
    ClusterSampler,
    Draw,
    LaborSampler,
    NeighborSampler,
    parts_of_sums,
    relabel,
    sums_of_parts,
)
from spgnn.addons.batches.link_loader import NegativeSampler
from spgnn.errors import InputError
from spgnn.pattern import Pattern
from tests.addons.batches.graphs import arrays, assert_equal, random_graph

N = 500
SEEDS = torch.arange(0, N, 3)
NONE = torch.empty(0, dtype=torch.int64)


def samplers(graph, **more):
    """One of each kind, by name; what depends on entries comes with them."""
    weights = graph.values
    times = torch.arange(N) % 50
    times = times if "vertex_ids" not in more else times[more["vertex_ids"]]
    return {
        "uniform": NeighborSampler(graph, [9, -1], edge_ids=True, **more),
        "replace": NeighborSampler(graph, [9, 70], replace=True, edge_ids=True, **more),
        "weighted": NeighborSampler(graph, [9, 40], weights=weights, edge_ids=True, **more),
        "both": NeighborSampler(graph, [5, 5], weights=weights, replace=True, **more),
        "disjoint": NeighborSampler(graph, [9, 9], disjoint=True, edge_ids=True, **more),
        "undirected": NeighborSampler(graph, [2, 2], directed=False, edge_ids=True, **more),
        "temporal": NeighborSampler(graph, [5, 9], node_times=times, edge_ids=True, **more),
        "past": NeighborSampler(graph, [5, 9], node_times=times, weights=weights, **more),
        "last": NeighborSampler(
            graph, [5, 9], node_times=times, temporal_strategy="last", edge_ids=True, **more
        ),
        "labor": LaborSampler(graph, [9, 9], edge_ids=True, **more),
        "labor-2": LaborSampler(graph, [9, 9], iterations=2, **more),
    }


@pytest.fixture(scope="module")
def graph():
    return random_graph(N, 0.1, 1, weighted=True)


def check_threads(graph, samplers, subgraphs=()):
    """Threads change no sample, and neither do others that are made at the same time."""
    batches = list(SEEDS.split(40))
    draws = [Draw(5, 0, b) for b in range(len(batches))]
    wanted = {
        name: [sampler.sample(b, d) for b, d in zip(batches, draws, strict=True)]
        for name, sampler in samplers(graph, threads=1).items()
    }
    for threads in (2, 4):
        for name, sampler in samplers(graph, threads=threads).items():
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(sampler.sample, batches, draws))
            if name not in subgraphs:
                found += sampler.sample_many(batches, draws)
            for one, other in zip(found, wanted[name] * 2, strict=False):
                assert_equal(one, other)
            nothing = sampler.sample(NONE, Draw(0))
            assert name in subgraphs or len(nothing.nodes) == nothing.hops[0].targets == 0


def test_threads_and_company_change_nothing(graph):
    check_threads(graph, samplers)


def check_permuted(graph, samplers):
    """Draws are functions of original ids; returns those, and the graph in another order."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(N))  # new vertex -> original
    permuted = CSR.from_scipy(graph.to_scipy()[order.numpy()][:, order.numpy()])
    place, plain = torch.argsort(order), samplers(graph)
    for name, sampler in samplers(permuted, vertex_ids=order).items():
        found = sampler.sample(place[SEEDS], Draw(5, 1, 2))
        expected = plain[name].sample(SEEDS, Draw(5, 1, 2))
        assert torch.equal(order[found.nodes], expected.nodes), name
        for a, b in zip(found.hops, expected.hops, strict=True):
            # Rows of subgraphs list their columns by original id as well.
            assert torch.equal(a.indptr, b.indptr), name
            assert torch.equal(a.indices, b.indices), name
            if b.weights is not None:
                torch.testing.assert_close(a.weights, b.weights, rtol=1e-6, atol=0)
    return order, permuted


def test_vertices_may_be_permuted(graph):
    order, permuted = check_permuted(graph, samplers)
    place, vertices = torch.argsort(order), torch.tensor([4, 4, 7, 249])
    for method in ("uniform", "degree"):
        first, threaded = (
            NegativeSampler(graph, method=method, threads=t).negatives(vertices, 6, Draw(1))
            for t in (1, 4)
        )
        assert torch.equal(first, threaded)
        assert first.shape == (4, 6)
        assert not torch.equal(first[0], first[1])
        moved = NegativeSampler(permuted, method=method, vertex_ids=order)
        assert torch.equal(order[moved.negatives(place[vertices], 6, Draw(1))], first)
        assert moved.negatives(NONE, 3, Draw(0)).shape == (0, 3)


def test_each_disjoint_tree_draws_by_itself(graph):
    hop = NeighborSampler(graph, [6], disjoint=True, edge_ids=True)
    drawn = hop.sample(torch.tensor([7, 7]), Draw(0)).hops[0].edge_ids
    assert drawn[:6].tolist() != drawn[6:].tolist()


def test_one_hop_of_a_rectangular_pattern_and_the_union():
    whole = random_graph(120, 0.2, 8)
    block, ids = CSR.from_scipy(whole.to_scipy()[40:80]), torch.arange(120)
    sampler = NeighborSampler(block, [6], edge_ids=True, vertex_ids=ids, row_ids=ids[40:80])
    reference = NeighborSampler(whole, [6], edge_ids=True).sample(ids[45:70], Draw(9))
    indptr, columns, edge_ids, weights = sampler.sample_hop(ids[5:30], 0, Draw(9))
    assert weights is None
    assert torch.equal(indptr, reference.hops[0].indptr)
    assert torch.equal(columns, block.indices[edge_ids])
    nodes, indices = relabel(ids[45:70], indptr, columns)
    assert torch.equal(nodes, reference.nodes)
    assert torch.equal(indices, reference.hops[0].indices)
    with pytest.raises(InputError, match="square"):
        sampler.sample(ids[:3], Draw(0))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_vertex_has_one_order_of_its_neighbours(graph, weighted):
    """Without resampling a hop takes the first ones of it (so does test_reference's)."""
    more = {"weights": graph.values if weighted else None, "resample": False, "edge_ids": True}
    first, second = NeighborSampler(graph, [5, 5], **more).sample(SEEDS, Draw(2)).hops
    assert torch.equal(second.edge_ids[: first.edges], first.edge_ids)


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "replace", "weighted", "labor"])
def test_a_part_of_the_seeds_has_its_part_of_the_sample(graph, kind, resample):
    """Who else is in a batch changes nothing: so ranks train as one process does."""
    options = {"resample": resample, "edge_ids": True}
    sampler = {
        "uniform": lambda: NeighborSampler(graph, [9, 5, 3], **options),
        "replace": lambda: NeighborSampler(graph, [3, 5, 2], replace=True, **options),
        "weighted": lambda: NeighborSampler(graph, [5, 3], weights=graph.values, **options),
        "labor": lambda: LaborSampler(graph, [5, 3], edge_ids=True),
    }[kind]()
    check_parts(sampler)


def check_parts(sampler):
    """The sample of some seeds is their part of that of all."""
    whole = sampler.sample(SEEDS, Draw(4, 1, 2))
    for part in SEEDS.split(50):
        sample = sampler.sample(part, Draw(4, 1, 2))
        for hop, other in zip(sample.hops, whole.hops, strict=True):
            place = {v: i for i, v in enumerate(whole.nodes[: other.targets].tolist())}
            for i, vertex in enumerate(sample.nodes[: hop.targets].tolist()):
                j = place[vertex]
                mine = slice(*hop.indptr[i : i + 2].tolist())
                theirs = slice(*other.indptr[j : j + 2].tolist())
                assert torch.equal(hop.edge_ids[mine], other.edge_ids[theirs])
                if hop.weights is not None:
                    assert torch.equal(hop.weights[mine], other.weights[theirs])


def test_every_part_of_a_draw_counts_and_nothing_else_does(graph):
    sampler = NeighborSampler(graph, [5, 5], edge_ids=True)
    first = sampler.sample(SEEDS, Draw(1, 2, 3))
    for other in (Draw(0, 2, 3), Draw(1, 0, 3), Draw(1, 2, 0), Draw(1, 3, 2)):
        assert not torch.equal(
            sampler.sample(SEEDS, other).hops[0].edge_ids, first.hops[0].edge_ids
        )
    assert_equal(sampler.sample(SEEDS, Draw(1, 2, 3)), first)
    both = [hop.edge_ids[:5].tolist() for hop in first.hops]  # hops draw anew
    assert both[0] != both[1]


def test_sums_of_columns_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(0)
    columns, values = rng.integers(0, 50, 4000), rng.random(4000) ** 8
    most = float(values.max())
    whole = parts_of_sums(columns, values, 60, most, 4000)
    sums = sums_of_parts(whole, most, 4000)
    assert np.allclose(sums, np.bincount(columns, values, 60), rtol=1e-12, atol=0)
    order = rng.permutation(4000)
    ranks = [
        parts_of_sums(columns[o], values[o], 60, most, 4000) for o in np.split(order, [7, 900])
    ]
    assert np.array_equal(ranks[1] + ranks[2] + ranks[0], whole)
    assert not sums_of_parts(parts_of_sums(columns, 0 * values, 60, 0.0, 4000), 0.0, 4000).any()


OPTIONS = [
    ({"weights": torch.ones(3)}, r"weights must be .* float32 \[3\]"),
    ({"weights": [1.0]}, "weights must be a floating tensor"),
    ({"edge_times": SEEDS}, "edge_times must be a tensor, int64"),
    ({"node_times": torch.ones(N)}, "node_times must be a tensor"),
    ({"temporal_strategy": "latest"}, "choose one of uniform, last"),
    ({"vertex_ids": SEEDS}, r"vertex_ids must be .* int64 \[500\]"),
    ({"threads": 0}, "threads"),
    ({"num_neighbors": [3, -2]}, "num_neighbors must be an integer of at least -1"),
    ({"num_neighbors": 3}, "num_neighbors must be a list"),
]
CALLS = [
    (lambda g: NeighborSampler(g.to_scipy(), [3]), "a Pattern or a CSR"),
    (lambda g: NeighborSampler(g, [3]).sample_hop(SEEDS, 1, Draw(0)), "hop must be"),
    (lambda g: NeighborSampler(g, [3]).sample(SEEDS, Draw(0), SEEDS), "times must not be given"),
    (lambda g: LaborSampler(g, [3]).sample_many([SEEDS] * 2, [Draw(0)]), "2 batches, but 1 dra"),
    (lambda g: ClusterSampler(g, SEEDS), "labels must be a tensor, int64"),
    (lambda g: ClusterSampler(g, torch.arange(N) - 1), "labels must not be negative"),
    (lambda g: NegativeSampler(g).negatives(SEEDS + N, 2, Draw(0)), "vertices: 500 outside"),
    (lambda g: relabel(NONE, NONE, NONE), "indptr must be"),
    (lambda g: relabel(SEEDS[[1, 1]], torch.arange(3), SEEDS[:2]), "given twice"),
    (lambda g: relabel(SEEDS[:2], torch.arange(3), SEEDS[:3]), "end at 3"),
]


def test_what_is_wrong_is_said(graph):
    negative = graph.values.clone()
    negative[7] = -1
    for options, words in [*OPTIONS, ({"weights": negative}, "not negative; entry 7 is -1")]:
        with pytest.raises(InputError, match=words):
            NeighborSampler(graph, **{"num_neighbors": [3], **options})
    for call, words in CALLS:
        with pytest.raises(InputError, match=words):
            call(graph)
    timed = NeighborSampler(graph, [3], edge_times=torch.arange(graph.nnz))
    clusters = ClusterSampler(graph, torch.arange(N) % 7, layers=2)
    full = NegativeSampler(CSR.from_scipy(np.ones((4, 4), dtype=bool)))
    for call, words in (
        (lambda: timed.sample(SEEDS, Draw(0)), "times of the seeds must be given"),
        (lambda: timed.sample_hop(SEEDS, 0, Draw(0)), "disjoint trees are not sampled hop by hop"),
        (lambda: clusters.sample(torch.tensor([7]), Draw(0)), r"cluster 7 outside \[0, 7\)"),
        (lambda: clusters.sample(SEEDS[[1, 1]] // 3, Draw(0)), "seed 1 is given twice"),
        (lambda: full.negatives(SEEDS[:1], 1, Draw(0)), "vertex 0 has an edge with every vertex"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    for kind in (NeighborSampler, LaborSampler):
        check_seeds(graph, kind)


def check_seeds(graph, kind):
    sampler = kind(graph, [3])
    for seeds, words in (
        (torch.tensor([4, 2, 4]), "seeds: seed 4 is given twice"),
        (torch.tensor([1, 500]), r"seeds: seed 500 outside \[0, 500\)"),
        (torch.tensor([-1]), "seed -1 outside"),
        (torch.tensor([1], dtype=torch.int32), "seeds must be a tensor, int64"),
        ([1], "seeds must be a tensor, int64"),
    ):
        with pytest.raises(InputError, match=words):
            sampler.sample(seeds, Draw(0))
    # Nothing of it is left behind.
    assert_equal(sampler.sample(SEEDS, Draw(0)), kind(graph, [3]).sample(SEEDS, Draw(0)))


# Large batches: several tasks a hop, and memory that comes and goes.

MANY = 4000
# Fewer than the tasks of a hop and more, and so many that all of them number the columns.
THREADS = (2, 3, 12)


@pytest.fixture(scope="module")
def large_graph():
    return random_graph(MANY, 0.004, 6, weighted=True)


def sampler_of(large_graph, kind, fanouts, threads):
    options = {
        "plain": {},
        "weighted": {"weights": large_graph.values},
        "replace": {"replace": True},
        "disjoint": {"disjoint": True},
        "once": {"resample": False},
        "undirected": {"directed": False},
    }[kind]
    return NeighborSampler(large_graph, fanouts, edge_ids=True, threads=threads, **options)


@pytest.mark.parametrize("kind", ["plain", "weighted", "replace", "disjoint", "once", "undirected"])
@pytest.mark.parametrize(
    "fanouts",
    [[6, 4], [3, 0, 2], [70], []]
    + [pytest.param(f, marks=pytest.mark.slow) for f in ([-1, -1], [0, 5])],
    ids=str,
)
def test_batches_of_any_number_of_threads(large_graph, kind, fanouts):
    check_many_threads(lambda threads: sampler_of(large_graph, kind, fanouts, threads))


def check_many_threads(make):
    # 512 targets are one task.
    shapes = [torch.arange(0, MANY, MANY // count)[:count] for count in (1, 512, 513, 1600)]
    shapes += [NONE, torch.tensor([MANY - 1, MANY - 2])]
    one, others = make(1), [make(threads) for threads in THREADS]
    for seeds in shapes:
        expected = one.sample(seeds, Draw(3))
        for other in others:
            assert_equal(other.sample(seeds, Draw(3)), expected)


def test_arrays_stay_while_others_come_and_go(large_graph):
    # Batches of very different sizes, some of which are kept and some of which leave memory behind.
    weighted = {
        threads: sampler_of(large_graph, "weighted", [9, 9], threads) for threads in (1, 2, 12)
    }
    counts = [3, 2000, 700, 40, 1500, 1, 1999, 800]
    kept = []

    def work(job: int) -> None:
        seeds = torch.randperm(MANY, generator=torch.Generator().manual_seed(job))
        sampler = weighted[(1, 2, 12)[job % 3]]
        sample = sampler.sample(seeds[: counts[job % len(counts)]], Draw(job))
        if job % 5:
            kept.append((sample, [array.clone() for array in arrays(sample)]))
        if job % 7 == 0 and kept:
            kept.pop(0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(120)))
    assert len(kept) > 50
    for sample, copies in kept:
        for array, copy in zip(arrays(sample), copies, strict=True):
            assert torch.equal(array, copy)


# A build for one machine has one set alone.
_SETS = _native.instruction_sets()
OTHERS = [name for name in _SETS if name != "baseline" and "baseline" in _SETS]
# Rows that are taken whole, nearly whole, fetched whole, by place, and too long for one number.
DEGREES = [3, 6, 7, 9, 12, 14, 20, 40, 64, 65, 100, 300, 1000, 1100, 5000, 13000]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("skewed", [False, True], ids=["even", "skewed"])
def test_samples_are_the_same_with_any_instructions(name, skewed):
    degrees = np.tile(DEGREES, 12)
    indptr = torch.from_numpy(np.concatenate(([0], np.cumsum(degrees))))
    indices = torch.cat([torch.arange(degree, dtype=torch.int32) for degree in degrees])
    pattern = Pattern(indptr, indices, (len(degrees), int(max(degrees))))
    weights = np.random.default_rng(0).random(len(indices)) + 0.01
    weights = torch.from_numpy(weights ** (30 if skewed else 1))
    try:
        for k in (1, 2, 5, 7, 8, 10, 15, 16, 24, 25):
            sampler, drawn = NeighborSampler(pattern, [k], weights=weights), []
            for instructions in ("baseline", name):
                _native.use_instruction_set(instructions)
                drawn.append(sampler.sample_hop(torch.arange(len(degrees)), 0, Draw(k)))
            for expected, found in zip(*drawn, strict=True):
                assert (expected is None and found is None) or torch.equal(expected, found)
    finally:
        _native.use_instruction_set(_native.instruction_sets()[0])
    with pytest.raises(ValueError, match="no instruction set sse9 here"):
        _native.use_instruction_set("sse9")
