"""Relays bring the busiest rank down to the mean where they can, and touch nothing else."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import CSR, RowLayout
from spgnn.exchange import Algorithm, Plan
from tests.exchange.test_plans import same


def plans(A: sp.csr_array, ranks: int, **how) -> tuple[list[Plan], list[Plan]]:
    """The plans of all ranks, without relays and with them."""
    layout = RowLayout.even(A.shape[0], ranks)
    blocks = [CSR.from_scipy(A[slice(*layout.range(rank))]) for rank in range(ranks)]
    algorithm = Algorithm(**how)
    return tuple(replace(algorithm, relays=on).plans(blocks, layout) for on in (False, True))


def rows(plans: list[Plan], hop: int | None = None) -> np.ndarray:
    """Rows that each rank sends and receives, [ranks, 2]; in one hop, or in all."""
    chosen = slice(None) if hop is None else slice(hop, hop + 1)
    volumes = [[each.volume for each in plan.hops[chosen]] for plan in plans]
    return np.array([[sum(v.send for v in e), sum(v.receive for v in e)] for e in volumes])


def busy(ranks: int, size: int, *, sends: bool) -> sp.csr_array:
    """Some rows of rank 0 are needed by all, or need all; others have a few neighbours."""
    n, rng = ranks * size, np.random.default_rng(ranks)
    A = rng.random((n, n)) < 4 / n
    hubs = A[:, : size // 4]
    hubs |= rng.random(hubs.shape) < 0.2
    np.fill_diagonal(A, True)
    return sp.csr_array(A if sends else A.T)


@pytest.mark.parametrize(("sends", "cover"), [(True, "column"), (False, "row"), (False, "minimum")])
def test_the_busiest_rank_comes_down(sends, cover):
    """Owners of hubs send less, ranks that make hubs receive less; the total stays."""
    plain, ours = plans(busy(16, 40, sends=sends), 16, cover=cover)
    before, after, first, second = rows(plain), rows(ours), rows(ours, 0), rows(ours, 1)
    mean = before[:, 0].mean()
    assert after.sum(0).tolist() == before.sum(0).tolist()
    assert before.max() > 1.75 * mean
    side = int(not sends)
    assert first[:, side].max() <= max(ceil(1.05 * mean), before[:, 1 - side].max())
    # Few rows more than what is above, spread over all.
    above = np.maximum(before[:, side] - 1.05 * mean, 0).sum()
    assert second[:, side].sum() <= 1.2 * above + len(plain)
    assert first.max() + second.max() <= 1.1 * max(1.05 * mean, before[:, 1 - side].max())


def test_nobody_hands_rows_on_where_that_helps_nobody():
    """The plan is the same: no second hop, no message more."""
    ring = sp.csr_array(sp.diags_array([1.0, 1.0], offsets=[1, -1], shape=(60, 60)))
    for cover in ("column", "minimum"):
        plain, ours = plans(ring, 6, cover=cover)
        assert all(map(same, plain, ours))
    # What a rank receives under column covers no relay takes from it, so sent rows stay as well.
    plain, ours = plans(busy(8, 20, sends=False), 8)
    assert all(map(same, plain, ours))


def test_relays_need_the_rows_that_they_hand_on():
    """Under column covers each rank receives the rows that it received without relays, once."""
    plain, ours = plans(busy(8, 40, sends=True), 8)
    for mine, theirs in zip(ours, plain, strict=True):
        assert len(mine.hops) == 2
        assert mine.hops[1].passed_rows is not None
        assert mine.volume.receive == theirs.volume.receive
        assert mine.stages[0].remote.nnz == theirs.stages[0].remote.nnz
