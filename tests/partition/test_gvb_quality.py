"""gvb lowers what it says it lowers: totals, maxima, covers, received rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import _native
from spgnn.partition.gvb import part_bounds
from tests.partition.oracle import (
    column_volumes,
    community_graph,
    partition,
    random_pattern,
    score,
    uneven_communities,
)


def partition_with(A, k, **changed):
    """As `partition`, with other constants than those of a preset."""
    weights = np.diff(A.indptr).astype(np.int64) + 1
    options = _native.GvbOptions()
    options.parts, options.max_weight = k, part_bounds(weights, k, 0.03).tolist()
    for name, value in changed.items():
        setattr(options, name, value)
    return _native.gvb_partition(
        A.indptr.astype(np.int64), A.indices, weights, options, False, None, None
    )


@pytest.mark.parametrize("objective", ["column", "cover"])
def test_planted_parts_are_found(objective):
    k, size = 8, 60
    rng = np.random.default_rng(1)
    inside = np.kron(np.eye(k), np.ones((size, size))) * (rng.random((k * size, k * size)) < 0.3)
    across = rng.random((k * size, k * size)) < 0.0005
    order = rng.permutation(k * size)
    A = sp.csr_array((inside + across) > 0)[order][:, order].tocsr()
    planted = (order // size).astype(np.int32)
    labels = partition(A, k, objective=objective)
    assert column_volumes(A, labels, k)[0].sum() <= column_volumes(A, planted, k)[0].sum()


def test_grid_is_cut_about_as_well_as_squares_would():
    side, k = 64, 16
    path = sp.diags_array([np.ones(side - 1)] * 2, offsets=[-1, 1])
    A = sp.csr_array(sp.kronsum(path, path)).astype(bool)
    send, _ = column_volumes(A, partition(A, k), k)
    squares = np.arange(side * side)
    squares = (squares // side // 16) * 4 + squares % side // 16
    expected, _ = column_volumes(A, squares, k)
    assert send.sum() <= 1.15 * expected.sum()
    assert send.max() <= 1.15 * expected.max()


def test_pricing_lowers_the_maximum_on_a_skewed_graph():
    A = random_pattern(3000, 8, seed=5, skew=2.0)
    A = sp.csr_array(A + A.T).astype(bool)
    free = dict(alpha_coarse=0, alpha_fine=0, alpha_last=0, peak_rounds=0)
    without, _ = column_volumes(A, partition_with(A, 16, **free), 16)
    send, _ = column_volumes(A, partition_with(A, 16), 16)
    assert send.max() < 0.95 * without.max()
    assert send.max() < 1.1 * send.mean()


def test_the_last_stage_lowers_the_maximum_of_uneven_communities():
    A = uneven_communities(3000, seed=1)
    before, _ = column_volumes(A, partition_with(A, 16, peak_rounds=0), 16)
    after, _ = column_volumes(A, partition_with(A, 16), 16)
    assert before.max() > 1.12 * before.mean()
    assert after.max() < 0.99 * before.max()
    assert after.sum() < 1.03 * before.sum()


def test_cover_objective_lowers_the_cover_volume_of_a_skewed_graph():
    """Hubs are paid for by partial sums; the medium-grain start finds the parts for that."""
    A = random_pattern(2000, 6, seed=3, skew=4.0)
    A = sp.csr_array(A + A.T).astype(bool)
    begin = A.indptr.astype(np.int64)
    column, cover = (
        _native.cover_send(begin, A.indices, partition(A, 8, objective=o), 8).sum()
        for o in ("column", "cover")
    )
    assert cover < 0.9 * column


def test_receive_option_lowers_the_maximum_received():
    A = community_graph(3000, 30, seed=0)
    plain, balanced = (column_volumes(A, partition(A, 16, receive=r), 16)[1] for r in (0, 1))
    assert balanced.max() < 0.7 * plain.max()


def test_refinement_repairs_what_was_spoilt():
    A = community_graph(2000, 8, seed=3)
    k = 8
    found = partition(A, k)
    spoilt = found.copy()
    moved = np.random.default_rng(0).choice(2000, 200, replace=False)
    spoilt[moved] = (spoilt[moved] + 1) % k
    repaired = partition(A, k, initial=spoilt, imbalance=0.1)
    assert score(A, repaired, k) < 0.8 * score(A, spoilt, k)
    assert score(A, repaired, k) < 1.1 * score(A, found, k)
