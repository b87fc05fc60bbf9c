"""Scores over all ranks against the formulas of one process, as scikit-learn and OGB write them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import RowLayout
from spgnn.comm import connect
from spgnn.nn import metrics
from spgnn.nn.loss import count_labelled
from spgnn.nn.metrics import Score
from spgnn.testing import run_ranks

KINDS = ("classes", "two", "several", "numbers")


def drawn(kind: str, n: int, columns: int, seed: int, coarse: bool):
    """Outputs, labels (some unknown) and three masks, which overlap; the last one is empty."""
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(n, columns, generator=generator)
    if coarse:  # ties, also of negative and positive zeros
        Z = (Z * 2).round() / 2
    if kind in ("classes", "two"):
        y = torch.randint(-1, columns, (n,), generator=generator)
    elif kind == "several":
        y = torch.randint(-1, 2, (n, columns), generator=generator).to(torch.int8)
    else:
        y = 1e4 + torch.randn(n, columns, generator=generator)
        y[torch.rand(n, columns, generator=generator) < 0.2] = torch.nan
        y[:, 0] = torch.where(y[:, 0].isnan(), torch.nan, 3.0) if seed % 3 == 0 else y[:, 0]
    chance = torch.rand(n, generator=generator)
    return Z, y, [chance < 0.6, chance > 0.4, torch.zeros(n, dtype=torch.bool)]


def scored(kind, Z, y, masks, comm) -> list[Score]:
    if kind == "numbers":
        found = metrics.regression_scores(Z, y, masks, comm)
        return [*found["mae"], *found["rmse"], *found["r2"]]
    micro, macro = metrics.f1_scores(Z, y, masks, comm)
    right = []
    if y.dim() == 1:
        right = metrics.accuracies(Z, y, masks, count_labelled(masks, y, comm), comm)
    return [*right, *micro, *macro, *metrics.roc_aucs(Z, y, masks, comm)]


def area(score: np.ndarray, positive: np.ndarray) -> float:
    """All pairs."""
    up, down = score[positive], score[~positive]
    return float(((up[:, None] > down) + 0.5 * (up[:, None] == down)).mean())


def expected_accuracy(Z, y) -> Score:
    known = y >= 0
    return float((Z[known].argmax(axis=1) == y[known]).mean()) if known.any() else None


def expected_f1(Z, y) -> tuple[Score, Score]:
    if y.ndim == 1:
        Z, y = Z[y >= 0], y[y >= 0]
        columns = np.union1d(y, Z.argmax(axis=1))
        pairs = [(y == c, Z.argmax(axis=1) == c) for c in columns]
    else:
        pairs = [(y[:, c] == 1, (Z[:, c] > 0) & (y[:, c] >= 0)) for c in range(y.shape[1])]
    counts = np.array([((t & g).sum(), (t | g).sum() + (t & g).sum()) for t, g in pairs])
    if not counts.sum():
        return None, None
    of_columns = [2 * right / size if size else 0 for right, size in counts]
    return 2 * counts[:, 0].sum() / counts[:, 1].sum(), float(np.mean(of_columns))


def expected_area(Z, y) -> Score:
    found = []
    if y.ndim == 1:
        Z, y = Z[y >= 0].astype(np.float32), y[y >= 0]
        if Z.shape[1] == 2:
            Z, y = (Z[:, 1] - Z[:, 0])[:, None], (y == 1)[:, None].astype(int)
        else:
            Z = torch.log_softmax(torch.from_numpy(Z), 1).numpy()
            y = (y[:, None] == np.arange(Z.shape[1])).astype(int)
    for c in range(y.shape[1]):
        known = y[:, c] >= 0
        if (y[known, c] == 1).any() and (y[known, c] == 0).any():
            found.append(area(Z[known, c], y[known, c] == 1))
    return float(np.mean(found)) if found else None


def expected_regression(Z, y) -> list[Score]:
    known = ~np.isnan(y)
    error = (Z.astype(np.float64) - y)[known]
    if not len(error):
        return [None] * 3
    r2 = []
    for c in range(y.shape[1]):
        t, z = y[known[:, c], c].astype(np.float64), Z[known[:, c], c].astype(np.float64)
        if len(t) > 1:
            spread = ((t - t.mean()) ** 2).sum()
            left = ((t - z) ** 2).sum()
            r2.append(1 - left / spread if spread else float(left == 0))
    return [np.abs(error).mean(), np.sqrt((error**2).mean()), float(np.mean(r2)) if r2 else None]


def expected(kind, Z, y, masks) -> list[Score]:
    chosen = [(Z[m].numpy(), y[m].numpy()) for m in masks]
    if kind == "numbers":
        of_masks = [expected_regression(*c) for c in chosen]
        return [score for of in zip(*of_masks, strict=True) for score in of]
    f1 = [expected_f1(*c) for c in chosen]
    right = [expected_accuracy(*c) for c in chosen] if y.dim() == 1 else []
    return [*right, *(micro for micro, _ in f1), *(macro for _, macro in f1)] + [
        expected_area(*c) for c in chosen
    ]


def assert_same(found: list[Score], wanted: list[Score]) -> None:
    assert [score is None for score in found] == [score is None for score in wanted]
    numbers = [[np.nan if s is None else s for s in scores] for scores in (found, wanted)]
    np.testing.assert_allclose(*numbers, rtol=1e-9)


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 40),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_scores_of_one_process(kind, n, columns, seed, coarse):
    Z, y, masks = drawn(kind, n, 2 if kind == "two" else columns, seed, coarse)
    assert_same(scored(kind, Z, y, masks, connect()), expected(kind, Z, y, masks))


CASES = [
    (kind, n, columns, seed, coarse)
    for seed, (kind, n, columns) in enumerate(
        (kind, n, 2 if kind == "two" else columns)
        for kind in KINDS
        for n, columns in ((3, 1), (53, 3), (700, 5))
    )
    for coarse in (False, True)
]


def shares(rank: int) -> list[list[Score]]:
    comm = connect()
    found = []
    for kind, *case in CASES:
        Z, y, masks = drawn(kind, *case)
        own = slice(*RowLayout.even(len(y), comm.size).range(rank))
        found.append(scored(kind, Z[own], y[own], [m[own] for m in masks], comm))
    return found


@pytest.mark.parametrize("ranks", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_scores_of_many_ranks(ranks):
    of_ranks = run_ranks(shares, ranks)
    for number, (kind, *case) in enumerate(CASES):
        wanted = expected(kind, *drawn(kind, *case))
        for found in of_ranks:
            assert_same(found[number], wanted)
        assert of_ranks[0][number] == of_ranks[-1][number]


def links(seed: int, n: int, k: int, coarse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(n, generator=generator) + 1
    negative = torch.randn(n, k, generator=generator)
    return (positive.round(), negative.round()) if coarse else (positive, negative)


def ranked_scores(positive, negative, total, comm) -> list[Score]:
    found = metrics.hits(positive, negative, (1, 10, 1000), total, comm)
    return [metrics.mean_reciprocal_rank(positive, negative, total, comm), *found]


def expected_ranks(positive: np.ndarray, negative: np.ndarray) -> list[Score]:
    """As OGB's evaluator of links has them."""
    if not len(positive):
        return [None] * 4
    best = (negative > positive[:, None]).sum(axis=1)
    worst = (negative >= positive[:, None]).sum(axis=1)
    reciprocal = (1 / (0.5 * (best + worst) + 1)).mean()
    ordered, found = np.sort(negative.ravel())[::-1], []
    for k in (1, 10, 1000):
        found.append((positive > ordered[k - 1]).mean() if len(ordered) >= k else 1.0)
    return [reciprocal, *found]


LINKS = [(0, 0, 5, False), (1, 4, 2, False), (2, 90, 20, False), (3, 90, 20, True)]


def link_shares(rank: int) -> list[list[Score]]:
    comm, found = connect(), []
    for case in LINKS:
        positive, negative = links(*case)
        own = slice(*RowLayout.even(len(positive), comm.size).range(rank))
        found.append(ranked_scores(positive[own], negative[own], len(positive), comm))
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_of_links(ranks):
    for found in run_ranks(link_shares, ranks):
        for scores, case in zip(found, LINKS, strict=True):
            positive, negative = links(*case)
            assert_same(scores, expected_ranks(positive.numpy(), negative.numpy()))


def test_areas_of_scores_that_float32_orders():
    """Zeros of both signs are one score; infinities and the smallest numbers have their places."""
    scores = torch.tensor([-torch.inf, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, torch.inf])[:, None]
    for bits in range(1, 255):
        truth = torch.tensor([[bool(bits >> i & 1)] for i in range(8)])
        (found,) = metrics.areas(scores, truth, torch.ones_like(truth), connect())
        assert found == area(scores[:, 0].numpy(), truth[:, 0].numpy())


def test_rounding_decides_no_rank_of_a_link():
    """Scores that another order of sums puts an ulp apart tie, as they do without it."""
    generator = torch.Generator().manual_seed(0)
    positive, negative = links(4, 60, 40, True)
    every = torch.cat((positive[:, None], negative), 1) + 0.3
    noise = torch.rand(every.shape, generator=generator) - 0.5
    truth = torch.zeros_like(every, dtype=torch.bool)
    truth[:, 0] = True
    found = []
    for scores in (every, every * (1 + 4e-7 * noise)):
        ranked = ranked_scores(scores[:, 0], scores[:, 1:], 60, connect())
        column, is_link = scores.reshape(-1, 1), truth.reshape(-1, 1)
        chosen = torch.ones_like(is_link)
        found.append(ranked + metrics.areas(column, is_link, chosen, connect(), rounded=True))
    assert found[0] == found[1]
    assert found[0][:2] == expected_ranks(every[:, 0].numpy(), every[:, 1:].numpy())[:2]
