"""LADIES, FastGCN and GraphSAINT: the checks of all samplers, and exact probabilities."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from systems.agl import StoredNeighbourhoods
from systems.ladies import FastGCNSampler, LadiesSampler
from systems.saint import SaintSampler

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.addons.batches import Draw, NeighborSampler
from spgnn.addons.batches.sampled_graph import sampled_graph_of
from spgnn.testing import run_ranks
from tests.addons.batches import test_block, test_ranks, test_reference
from tests.addons.batches.graphs import CLASSES, F_IN, agree, small_graph, successive, unbiased
from tests.addons.batches.test_chances import many
from tests.addons.batches.test_sampling import (
    check_many_threads,
    check_parts,
    check_permuted,
    check_seeds,
    check_threads,
    graph,
    large_graph,
)
from tests.addons.diskbatches.test_structure import check_same, directory, loader, on_disk

__all__ = ["directory", "graph", "large_graph"]  # fixtures


def samplers(graph, **more):
    """One of each kind, by name."""
    return {
        "ladies": LadiesSampler(graph, [90, 200], edge_ids=True, **more),
        "values": LadiesSampler(graph, [90, 200], values=graph.values, **more),
        "fastgcn": FastGCNSampler(graph, [90, 200], edge_ids=True, **more),
        "node": SaintSampler(graph, "node", 60, edge_ids=True, **more),
        "edge": SaintSampler(graph, "edge", 60, estimates=3, **more),
        "walk": SaintSampler(graph, "walk", 60, length=4, edge_ids=True, **more),
    }


def test_samples_are_functions_of_ids_and_seeds(graph, large_graph):
    check_threads(graph, samplers, ("node", "edge", "walk"))
    check_permuted(graph, samplers)
    check_many_threads(lambda threads: LadiesSampler(large_graph, [900, 900], threads=threads))
    check_parts(FastGCNSampler(graph, [90, 100], edge_ids=True))
    for kind in (LadiesSampler, FastGCNSampler):
        check_seeds(graph, kind)
    with pytest.raises(InputError, match=r"method nodes: .*did you mean 'node'"):
        SaintSampler(graph, "nodes", 3)


def test_stored_neighbourhoods_are_drawn_once(graph):
    """Whichever batch a seed is in, in the order of a sampler with that one draw."""
    for options in ({"num_neighbors": [5, 4]}, {"num_neighbors": [3, -1, 2], "replace": True}):
        stored, drawn = (kind(graph, **options) for kind in (StoredNeighbourhoods, NeighborSampler))
        for seeds in (torch.tensor([3, 14, 5]), torch.arange(40), torch.arange(0)):
            sample, expected = stored.sample(seeds, Draw(9, 2, 7)), drawn.sample(seeds, Draw(0))
            assert torch.equal(sample.nodes, expected.nodes)
            for hop, other in zip(sample.hops, expected.hops, strict=True):
                assert torch.equal(hop.indptr, other.indptr)
                assert torch.equal(hop.indices, other.indices)
    with pytest.raises(InputError, match="without what the graph says of edges"):
        StoredNeighbourhoods(graph, [2], edge_ids=True)


def sampler_of(case: test_reference.Case, data: Any, fanouts: list[int]) -> SaintSampler:
    pattern = sampled_graph_of(data).structure
    return SaintSampler(pattern, case.sampler, 4, layers=len(fanouts), edge_ids=True)


@pytest.mark.parametrize("kind", ["empty", "bare", "loop", "small", "many", "hub"])
def test_batches_against_brute_force(kind):
    cases = [test_reference.plain(name) for name in ("ladies", "fastgcn", "node", "edge", "walk")]
    for turn in (0, 1):
        test_reference.check_cases(kind, turn, cases, sampler_of)


@pytest.mark.parametrize("sampler", ["ladies", "fastgcn"])
def test_layers_on_blocks(sampler):
    for kind in ("GCN", "GraphSAGE", "GIN"):
        test_block.check_whole(kind, {"sampler": sampler})
    test_block.check_factors(sampler)


def test_layers_on_subgraphs():
    record = test_block.record()
    saint = SaintSampler(record.adjacency, "walk", 6, layers=2)
    model = ours.GraphSAGE(F_IN, 6, 2, CLASSES)
    for batch in spgnn.NeighborLoader(record, [], batch_size=20, sampler=saint):
        assert model(batch.x, batch.layers).shape == (batch.num_nodes, CLASSES)


def test_batches_of_ranks_are_those_of_one_process():
    cases = [(name, w, False) for name in ("ladies", "fastgcn") for w in (False, True)]
    run_ranks(test_ranks.check_exact, 3, 3, cases)


def test_structure_on_a_disk(directory):
    check_same(directory, "lru", [{"sampler": "ladies", "num_workers": 2}])
    with pytest.raises(InputError, match="sampler fastgcn needs the structure in memory"):
        loader(directory, structure=on_disk(directory), sampler="fastgcn")


# Exact probabilities.


def dense(pattern, values=None):
    """The matrix of values, or of rows that sum to one."""
    A, lengths = np.zeros(pattern.shape), pattern.row_lengths.numpy()
    rows = np.repeat(np.arange(len(A)), lengths)
    A[rows, pattern.indices.numpy()] = 1 / lengths[rows] if values is None else values.numpy()
    return A


@pytest.mark.parametrize("count", [4000, pytest.param(300_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [LadiesSampler, FastGCNSampler])
@pytest.mark.parametrize("with_values", [False, True])
def test_layerwise_sets_are_those_of_successive_draws(count, kind, with_values):
    pattern, k = small_graph(7), 3
    values = torch.rand(pattern.nnz, generator=torch.Generator().manual_seed(1)) + 0.1
    A = dense(pattern, values if with_values else None)
    # Vertex 0 has all others in its row, so what was drawn shows (but itself).
    seeds = [0, 5]
    options = {"values": values} if with_values else {}
    sampler = kind(pattern, [k], edge_ids=True, **options)
    masses = (A[seeds] ** 2 if kind is LadiesSampler else A**2).sum(axis=0)
    chances: dict[tuple[int, ...], float] = {}
    for chosen, chance in successive(masses[masses > 0], k).items():
        vertices = np.flatnonzero(masses > 0)[list(chosen)]
        shown = tuple(v for v in vertices.tolist() if A[seeds][:, v].any())
        chances[shown] = chances.get(shown, 0) + chance
    found: Counter[tuple[int, ...]] = Counter()
    sums = np.zeros((count, 2))
    for b, sample in enumerate(many(sampler, torch.tensor(seeds), count)):
        (hop,) = sample.hops
        columns = sample.nodes[hop.indices.long()].numpy()
        found[tuple(np.unique(columns).tolist())] += 1
        per_row = np.repeat([0, 1], hop.indptr.diff().numpy())
        np.add.at(sums[b], per_row, hop.weights.numpy() * A[np.array(seeds)[per_row], columns])
    assert set(found) <= set(chances)
    agree([found[key] for key in chances], list(chances.values()))
    for i, seed in enumerate(seeds):
        unbiased(sums[:, i], A[seed].sum())


@pytest.mark.parametrize("count", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_saint_draws(count):
    pattern = small_graph(6)
    A = dense(pattern)
    masses = (A**2).sum(axis=0)
    walks, edges = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for a, b, c in product(range(6), repeat=3):
        walks[tuple(sorted({a, b, c}))] += A[a, b] * A[b, c] / 6
    for a, b in product(range(6), repeat=2):
        edges[tuple(sorted({a, b}))] += A[a, b] / 6
    nodes = {(v,): masses[v] / masses.sum() for v in range(6)}
    for method, all_chances in {"node": nodes, "edge": edges, "walk": walks}.items():
        chances = {key: chance for key, chance in all_chances.items() if chance > 0}
        sampler = SaintSampler(pattern, method, 1)
        found = Counter(
            tuple(sorted(sampler.sample(None, Draw(1, 0, b)).nodes.tolist())) for b in range(count)
        )
        assert set(found) <= set(chances)
        agree([found[key] for key in chances], list(chances.values()))


@pytest.mark.parametrize("method", ["node", "edge", "walk"])
def test_saint_weights_make_sums_unbiased(method):
    pattern = small_graph(10)
    sampler = SaintSampler(pattern, method, 3, estimates=4000, seed=1)
    losses = torch.rand(10, generator=torch.Generator().manual_seed(0))
    values = torch.rand(10, generator=torch.Generator().manual_seed(1))
    means, sums = [], [[] for _ in range(10)]
    for b in range(3000):
        sample = sampler.sample(None, Draw(2, 0, b))
        means.append(float((sampler.node_weights[sample.nodes] * losses[sample.nodes]).sum()))
        (hop,) = sample.hops
        per_row = np.repeat(np.arange(hop.targets), hop.indptr.diff().numpy())
        found = np.zeros(hop.targets)
        np.add.at(found, per_row, (hop.weights * values[sample.nodes[hop.indices.long()]]).numpy())
        for v, estimate in zip(sample.nodes.tolist(), found, strict=True):
            sums[v].append(estimate)
    assert abs(np.mean(means) - float(losses.mean())) < 0.02
    for v in range(10):
        first, last = pattern.indptr[v : v + 2].tolist()
        exact = float(values[pattern.indices[first:last].long()].sum())
        # The weights themselves are estimates.
        error = 0.1 * exact + 4 * np.std(sums[v]) / np.sqrt(len(sums[v]))
        assert abs(np.mean(sums[v]) - exact) < error
