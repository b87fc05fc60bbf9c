"""Do LABOR, LADIES, FastGCN and GraphSAINT draw with the chances that they should?"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from spgnn.loader import (
    Draw,
    FastGCNSampler,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    SaintSampler,
)
from spgnn.pattern import Pattern
from tests.loader.graphs import LEAST, agree, random_graph, small_graph, successive, unbiased

DRAWS = [pytest.param(60_000, id="few"), pytest.param(1_000_000, id="1M", marks=pytest.mark.slow)]


def many(sampler, seeds, count):
    return sampler.sample_many([seeds] * count, [Draw(2, 1, b) for b in range(count)])


def labor_chances(pattern: Pattern, seeds, k: int, iterations: int):
    """c_s·π_t of each entry of the seeds' rows, by bisection."""
    indptr, indices = pattern.indptr.numpy(), pattern.indices.numpy()
    rows = [indices[indptr[s] : indptr[s + 1]] for s in seeds]
    importance = np.ones(pattern.shape[0])

    def scale(row):
        pi, d = importance[row], len(row)
        if d <= k:
            return (1 / pi).max()
        low, high = 0.0, (1 / pi).max()
        for _ in range(200):
            middle = (low + high) / 2
            if (1 / np.minimum(1, middle * pi)).sum() > d * d / k:
                low = middle
            else:
                high = middle
        return high

    for _ in range(iterations):
        largest = np.zeros_like(importance)
        for row in rows:
            np.maximum.at(largest, row, scale(row))
        importance = np.where(largest > 0, importance * largest, importance)
    return [np.minimum(1, scale(row) * importance[row]) for row in rows]


@pytest.mark.parametrize("count", [4000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_labor_takes_edges_with_the_chances_of_the_paper(count, iterations):
    pattern, seeds = small_graph(), [0, 4, 7, 9]
    sampler = LaborSampler(pattern, [3], iterations=iterations, edge_ids=True)
    samples = many(sampler, torch.tensor(seeds), count)
    chances = labor_chances(pattern, seeds, 3, iterations)
    found = np.zeros(pattern.nnz)
    values = np.random.default_rng(4).random(pattern.nnz)
    sums = np.zeros((count, len(seeds)))
    for b, sample in enumerate(samples):
        (hop,) = sample.hops
        edges = hop.edge_ids.numpy()
        found[edges] += 1
        per_row = np.repeat(np.arange(4), hop.indptr.diff().numpy())
        np.add.at(sums[b], per_row, hop.weights.numpy() * values[edges])
    for i, (seed, chance) in enumerate(zip(seeds, chances, strict=True)):
        first, last = pattern.indptr[seed : seed + 2].tolist()
        sure = chance > 1 - 1e-9
        assert (found[first:last][sure] == count).all()
        # Vertices are taken independently of one another.
        p, f = chance[~sure], found[first:last][~sure]
        statistic = ((f - count * p) ** 2 / (count * p * (1 - p))).sum()
        assert not len(p) or stats.chi2.sf(statistic, len(p)) > LEAST
        unbiased(sums[:, i], values[first:last].sum())


def test_labor_takes_fewer_vertices():
    pattern, seeds = random_graph(400, 0.05, 1).pattern, torch.arange(80)

    def vertices(sampler) -> int:
        return sum(len(sample.nodes) for sample in many(sampler, seeds, 40))

    plain = vertices(NeighborSampler(pattern, [5]))
    labor = [vertices(LaborSampler(pattern, [5], iterations=i)) for i in (0, 1, 3)]
    assert plain > labor[0] > labor[1] > labor[2]
    free = vertices(LaborSampler(pattern, [5, 5]))
    assert vertices(LaborSampler(pattern, [5, 5], layer_dependency=True)) < free


@pytest.mark.parametrize("count", [4000, pytest.param(300_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [LadiesSampler, FastGCNSampler])
@pytest.mark.parametrize("with_values", [False, True])
def test_layerwise_sets_are_those_of_successive_draws(count, kind, with_values):
    pattern, k = small_graph(7), 3
    A = np.zeros(pattern.shape)
    values = torch.rand(pattern.nnz, generator=torch.Generator().manual_seed(1)) + 0.1
    rows = np.repeat(np.arange(7), pattern.row_lengths.numpy())
    lengths = pattern.row_lengths.numpy()[rows]
    A[rows, pattern.indices.numpy()] = values.numpy() if with_values else 1 / lengths
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
    A = np.zeros((6, 6))
    rows = np.repeat(np.arange(6), pattern.row_lengths.numpy())
    A[rows, pattern.indices.numpy()] = 1 / pattern.row_lengths.numpy()[rows]
    masses = (A**2).sum(axis=0)
    walks: dict[tuple[int, ...], float] = {}
    for a in range(6):
        for b in range(6):
            for c in range(6):
                key = tuple(sorted({a, b, c}))
                walks[key] = walks.get(key, 0) + A[a, b] * A[b, c] / 6
    expected = {
        "node": {(v,): masses[v] / masses.sum() for v in range(6)},
        "edge": {},
        "walk": walks,
    }
    for a in range(6):
        for b in range(6):
            key = tuple(sorted((a, b)))
            expected["edge"][key] = expected["edge"].get(key, 0) + A[a, b] / 6
    for method, all_chances in expected.items():
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
