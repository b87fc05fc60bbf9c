"""Draws of samplers against exact probabilities. Seeds are fixed: nothing fails by chance."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from spgnn.addons.batches import Draw, LaborSampler, NeighborSampler
from spgnn.addons.batches.link_loader import NegativeSampler
from spgnn.pattern import Pattern
from tests.addons.batches.graphs import (
    LEAST,
    agree,
    random_graph,
    small_graph,
    successive,
    unbiased,
)

DRAWS = [pytest.param(60_000, id="few"), pytest.param(1_000_000, id="1M", marks=pytest.mark.slow)]


def same_rows(rows: int, degree: int) -> Pattern:
    """Rows that all have the columns 0, 1, …; each draws by itself."""
    indptr = torch.arange(0, (rows + 1) * degree, degree)
    indices = torch.arange(degree, dtype=torch.int32).repeat(rows)
    return Pattern(indptr, indices, (rows, max(rows, degree)))


def sets_agree(rows, chances: dict[tuple[int, ...], float]) -> None:
    found = Counter(map(tuple, np.sort(rows, axis=1).tolist()))
    assert set(found) <= set(chances)
    agree([found[key] for key in chances], list(chances.values()))


def drawn_rows(draws, degree, k, *, weights=None, **options):
    rows = draws // k
    if weights is not None:
        weights = torch.tensor(weights).repeat(rows)
    sampler = NeighborSampler(same_rows(rows, degree), [k], weights=weights, **options)
    _, columns, _, factors = sampler.sample_hop(torch.arange(rows), 0, Draw(7))
    factors = None if factors is None else factors.reshape(rows, -1).numpy()
    return columns.reshape(rows, -1).numpy(), factors


@pytest.mark.parametrize("draws", DRAWS)
def test_uniform_sets_are_equally_likely(draws):
    columns, _ = drawn_rows(draws, 8, 3)
    sets_agree(columns, dict.fromkeys(combinations(range(8), 3), 1 / 56))


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(("degree", "k"), [(70, 7), (100, 16), (90, 30), (80, 50), (200, 70)])
def test_uniform_draws_of_long_rows(draws, degree, k):
    columns, _ = drawn_rows(draws, degree, k)
    rows = len(columns)
    chosen = np.zeros((rows, degree))
    np.put_along_axis(chosen, columns, 1, axis=1)
    assert (chosen.sum(axis=1) == k).all()
    # Sums of random weights of the chosen have the mean and the variance of simple random sampling.
    values = np.random.default_rng(0).standard_normal(degree)
    sums = chosen @ values
    variance = k * (degree - k) / (degree - 1) * values.var()
    assert abs(sums.mean() - k * values.mean()) < 4 * np.sqrt(variance / rows)
    assert abs(sums.var() / variance - 1) < 4 * np.sqrt(2 / rows) + 0.02
    # Inclusions of one row are dependent: their chi-square is (d − 1) / (1 − k / d) times another.
    expected = rows * k / degree
    statistic = ((chosen.sum(axis=0) - expected) ** 2).sum() / expected
    scaled = statistic * (degree - 1) / (degree - k)
    assert stats.chi2.sf(scaled, degree - 1) > LEAST


# Rows of a mask, of a filter with and without room for a bit each, of a table; of whole hashes.
@pytest.mark.parametrize(
    ("degree", "k"), [(40, 7), (100, 16), (1500, 30), (200, 70), (5000, 10), (3, 1)]
)
def test_weighted_sums_of_long_rows_are_unbiased(degree, k):
    rng = np.random.default_rng(0)
    weights, values = rng.random(degree) ** 2 + 0.01, rng.random(degree)
    columns, factors = drawn_rows(2000 * k if degree > 3 else 60_000, degree, k, weights=weights)
    assert all(len(set(row)) == k for row in columns.tolist())
    unbiased((factors * values[columns]).sum(axis=1), values.sum())


@pytest.mark.parametrize(("degree", "k"), [(40, 7), (100, 16), (1500, 30), (200, 70), (5000, 10)])
def test_equal_weights_draw_long_rows_uniformly(degree, k):
    columns, _ = drawn_rows(2000 * k, degree, k, weights=np.ones(degree))
    counts = np.bincount(columns.ravel(), minlength=degree)
    expected = len(columns) * k / degree
    # Inclusions of one row are dependent: as above.
    statistic = ((counts - expected) ** 2).sum() / expected * (degree - 1) / (degree - k)
    assert stats.chi2.sf(statistic, degree - 1) > LEAST


@pytest.mark.parametrize("draws", DRAWS)
def test_uniform_draws_with_replacement(draws):
    columns, _ = drawn_rows(draws, 5, 2, replace=True)
    agree(np.bincount(columns[:, 0] * 5 + columns[:, 1], minlength=25), np.full(25, 1 / 25))


# The first two rows are short (all arrivals), the next are drawn one by one; the last ones have
# an entry that hides the others, so the rest is drawn by arrivals.
WEIGHTS = [
    ([0.5, 1.0, 2.0, 0.25, 1.5], 3),
    ([3.0, 1.0], 1),
    ([3.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1),
    ([0.5, 1.0, 2.0, 0.25, 1.5, 1.0, 0.1], 2),
    ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 4),
    ([1e6, 1.0, 2.0, 3.0, 1.0, 0.5], 2),
    ([1e5, 1e5, 1.0, 2.0, 3.0, 1.0, 0.5, 4.0], 3),
]


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize(("weights", "k"), WEIGHTS)
def test_weighted_sets_are_those_of_successive_draws(draws, weights, k):
    columns, factors = drawn_rows(draws, len(weights), k, weights=weights)
    chances = {key: chance for key, chance in successive(weights, k).items() if chance > 1e-4}
    rest = 1 - sum(chances.values())
    found = Counter(map(tuple, np.sort(columns, axis=1).tolist()))
    if rest > 1e-9:
        others = len(columns) - sum(found[key] for key in chances)
        assert others <= 5 + 10 * rest * len(columns)
    kept = np.array([found[key] for key in chances])
    agree(kept, np.array(list(chances.values())) / (1 - rest))
    # Factors make sums unbiased, whatever is summed.
    values = np.random.default_rng(1).random(len(weights))
    unbiased((factors * values[columns]).sum(axis=1), values.sum(), weights)


def test_a_factor_is_the_mean_over_times_of_arrival():
    # One entry of three is drawn; after n draws the mean of 1 / (1 - exp(-share t)), t of
    # Gamma(n), is a sum over j of (1 + j share)^-n.
    weights = np.array([0.9, 0.07, 0.03])
    columns, factors = drawn_rows(20_000, 3, 1, weights=weights)
    shares = weights[columns[:, 0]]
    for share in np.unique(shares):
        found = np.unique(factors[shares == share])[::-1]  # the fewer draws, the larger
        for n, factor in enumerate(found[:4], 2):
            terms = 1 + np.arange(2_000_000) * share
            rest = terms[-1] ** (1 - n) / (share * (n - 1))
            np.testing.assert_allclose(factor, (terms**-n).sum() + rest, rtol=2e-5)


@pytest.mark.parametrize("draws", DRAWS)
def test_weighted_draws_with_replacement(draws):
    weights = [0.5, 1.0, 2.0, 0.25, 1.5]
    columns, factors = drawn_rows(draws, 5, 2, weights=weights, replace=True)
    chances = np.array(weights) / np.sum(weights)
    pairs = np.bincount(columns[:, 0] * 5 + columns[:, 1], minlength=25)
    agree(pairs, np.outer(chances, chances).ravel())
    values = np.random.default_rng(1).random(5)
    unbiased((factors * values[columns]).sum(axis=1), values.sum())


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("replace", [False, True])
def test_weighted_draws_from_the_past(draws, replace):
    weights = [0.5, 1.0, 2.0, 0.25, 1.5, 7.0]
    rows, times = draws // 2, torch.tensor([3, 1, 4, 1, 5, 9])
    sampler = NeighborSampler(
        same_rows(rows, 6),
        [2],
        weights=torch.tensor(weights).repeat(rows),
        edge_times=times.repeat(rows),
        replace=replace,
    )
    sample = sampler.sample(torch.arange(rows), Draw(3), torch.full((rows,), 5))
    (hop,) = sample.hops
    columns = sample.nodes[hop.indices.long()].reshape(-1, 2).numpy()
    factors = hop.weights.reshape(-1, 2).numpy()
    assert columns.max() < 5
    if replace:
        chances = np.array(weights[:5]) / np.sum(weights[:5])
        pairs = np.bincount(columns[:, 0] * 5 + columns[:, 1], minlength=25)
        agree(pairs, np.outer(chances, chances).ravel())
    else:
        sets_agree(columns, successive(weights[:5], 2))
    values = np.random.default_rng(1).random(5)
    unbiased((factors * values[columns]).sum(axis=1), values.sum())


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("method", ["uniform", "degree"])
def test_negatives(draws, method):
    pattern = small_graph(12)
    degrees = np.bincount(pattern.indices.numpy(), minlength=12) if method == "degree" else 1
    for exclude in (False, True):
        sampler = NegativeSampler(pattern, method=method, exclude_edges=exclude)
        for vertex in (3, 5):
            first, last = pattern.indptr[vertex : vertex + 2].tolist()
            chances = np.ones(12) * degrees
            if exclude:
                chances[pattern.indices[first:last].numpy()] = 0
                chances[vertex] = 0
            drawn = sampler.negatives(torch.full((draws // 20,), vertex), 10, Draw(6)).numpy()
            counts = np.bincount(drawn.ravel(), minlength=12)
            assert (counts[chances == 0] == 0).all()
            keep = chances > 0
            agree(counts[keep], chances[keep] / chances.sum())


def test_negatives_of_a_vertex_that_has_nearly_all():
    n = 300
    rows = [[v for v in range(n) if v not in (0, 17, 200)], *([[0]] * (n - 1))]
    indptr = torch.tensor([0, *np.cumsum([len(r) for r in rows]).tolist()])
    pattern = Pattern(indptr, torch.tensor([v for row in rows for v in row]), (n, n))
    drawn = NegativeSampler(pattern).negatives(torch.zeros(4000, dtype=torch.int64), 1, Draw(0))
    counts = np.bincount(drawn.ravel().numpy(), minlength=n)
    agree(counts[[17, 200]], [0.5, 0.5])


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
