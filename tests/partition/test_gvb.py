"""gvb against slow oracles: volumes by definition, covers by matching, bounds, determinism."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn import _native
from spgnn.partition.gvb import PRESETS, gvb, part_bounds
from tests.comm.jobs import names_of_threads
from tests.partition.oracle import partition, random_pattern, score


def split_volumes(A, split, labels, k):
    """The same where nonzeros marked in `split` move as partial sums of their row."""
    rows, columns = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.indices
    moved = labels[rows] != labels[columns]
    items = {
        (bool(by_row), int(i if by_row else j), int(labels[j]), int(labels[i]))
        for i, j, by_row in zip(rows[moved], columns[moved], split[moved], strict=True)
    }
    send, receive = np.zeros(k, np.int64), np.zeros(k, np.int64)
    for _, _, sender, receiver in items:
        send[sender] += 1
        receive[receiver] += 1
    return send, receive


graphs = st.builds(
    random_pattern,
    st.integers(1, 60),
    st.sampled_from([0, 0.5, 2, 6]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 3.0]),
)


@given(graphs, st.data())
@settings(max_examples=60)
def test_incremental_volumes_equal_recomputation(A, data):
    n = A.shape[0]
    k = data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    split = rng.integers(0, 2, A.nnz, dtype=np.uint8)
    labels = rng.integers(0, k, n, dtype=np.int32)
    vertices = rng.integers(0, n, 40, dtype=np.int32)
    targets = rng.integers(0, k, 40, dtype=np.int32)
    total, send, receive, error = _native.gvb_replay(
        A.indptr.astype(np.int64), A.indices, split, labels, k, vertices, targets
    )
    for v, target in zip(vertices, targets, strict=True):
        labels[v] = target
    expected_send, expected_receive = split_volumes(A, split, labels, k)
    np.testing.assert_array_equal(send, expected_send)
    np.testing.assert_array_equal(receive, expected_receive)
    assert total == expected_send.sum()
    assert error < 1e-9


@given(graphs, st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_cover_volume_is_a_maximum_matching_per_block(A, k, seed):
    n = A.shape[0]
    labels = np.random.default_rng(seed).integers(0, k, n, dtype=np.int32)
    expected = np.zeros(k, np.int64)
    for p in range(k):
        for q in range(k):
            block = sp.csr_array(A[labels == p][:, labels == q])
            if p != q and block.nnz:
                expected[q] += (maximum_bipartite_matching(block) >= 0).sum()
    send = _native.cover_send(A.indptr.astype(np.int64), A.indices, labels, k)
    np.testing.assert_array_equal(send, expected)


@given(graphs, st.data())
@settings(max_examples=60)
def test_labels_are_valid_and_parts_within_bounds(A, data):
    n = A.shape[0]
    k = data.draw(st.integers(1, min(n, 12)))
    preset = data.draw(st.sampled_from(sorted(PRESETS)))
    objective = data.draw(st.sampled_from(["column", "cover"]))
    imbalance = data.draw(st.sampled_from([0.0, 0.03, 0.5]))
    ones = np.ones(n, np.int64)
    options = dict(preset=preset, objective=objective, weights=ones, imbalance=imbalance)
    labels = partition(A, k, seed=data.draw(st.integers(0, 99)), **options)
    assert labels.dtype == np.int32
    assert labels.shape == (n,)
    assert labels.min() >= 0
    assert labels.max() < k
    bound = part_bounds(ones, k, imbalance)[0]
    assert np.bincount(labels, minlength=k).max() <= bound


@given(graphs, st.data())
@settings(max_examples=30)
def test_refinement_is_never_worse_than_its_start(A, data):
    n = A.shape[0]
    k = data.draw(st.integers(1, min(n, 8)))
    initial = np.random.default_rng(0).permutation(np.arange(n) % k).astype(np.int32)
    refined = partition(A, k, weights=np.ones(n, int), imbalance=0.1, initial=initial)
    assert score(A, refined, k) <= score(A, initial, k)


def test_several_constraints_hold_together():
    A = random_pattern(2000, 5, seed=2)
    rng = np.random.default_rng(0)
    weights = np.stack([np.ones(2000, int), rng.integers(0, 2, 2000)], axis=1)
    labels = partition(A, 10, weights=weights, imbalance=[0.05, 0.10])
    loads = np.stack([np.bincount(labels, weights=w, minlength=10) for w in weights.T], axis=1)
    assert (loads <= part_bounds(weights, 10, [0.05, 0.10])).all()


@pytest.mark.parametrize(
    "A",
    [
        sp.csr_array((40, 40), dtype=bool),
        sp.csr_array(np.eye(40, dtype=bool)),
        sp.csr_array(np.ones((40, 40), bool)),
        sp.csr_array(np.outer(np.arange(40) == 0, np.ones(40, bool))),
        sp.csr_array(np.outer(np.ones(40, bool), np.arange(40) == 0)),
    ],
    ids=["no edges", "loops only", "complete", "row to all", "column to all"],
)
@pytest.mark.parametrize("k", [1, 3, 40])
def test_odd_graphs(A, k):
    labels = partition(A, k, weights=np.ones(40, int), imbalance=0.0)
    assert np.bincount(labels, minlength=k).max() == -(-40 // k)


def test_a_row_heavier_than_a_part_spoils_only_its_own_part():
    A = random_pattern(400, 3, seed=6)
    weights = np.ones(400, int)
    weights[7] = 1000
    labels = partition(A, 8, weights=weights, imbalance=0.0)
    loads = np.bincount(labels, weights=weights, minlength=8)
    assert np.delete(loads, labels[7]).max() <= part_bounds(weights, 8, 0.0)[0]


def test_heavy_vertices_no_part_has_room_for_change_places_with_light_ones():
    # Two weights of 60 in a part of at most 103, all others full with weights of 2.
    A = random_pattern(142, 6, seed=5)
    weights = np.full(142, 2)
    weights[:2] = 60
    initial = np.concatenate([[0, 0], 1 + np.arange(140) % 3])
    labels = partition(A, 4, weights=weights, initial=initial)
    assert np.bincount(labels, weights, minlength=4).max() <= 103


def test_order_and_duplicates_of_columns_do_not_matter():
    A = random_pattern(300, 4, seed=7)
    twice = np.repeat(A.indices, 2)[::-1].reshape(-1)
    begin = np.concatenate(([0], np.cumsum(np.diff(A.indptr)[::-1] * 2)))
    B = sp.csr_array(A[::-1])
    expected = gvb(B.indptr, B.indices, 4, weights=np.ones(300), imbalance=0.1)
    labels = gvb(begin, twice, 4, weights=np.ones(300), imbalance=0.1)
    np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize("objective", ["column", "cover"])
def test_same_labels_from_the_same_seed_on_any_number_of_threads(objective):
    A = random_pattern(3000, 8, seed=8, skew=1.0)
    results = [partition(A, 16, seed=5, objective=objective, threads=t) for t in (1, 2, 4, 1)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_interrupted_starts_end_on_all_threads():
    def stop(stage, share):
        raise KeyboardInterrupt

    before = len(names_of_threads())
    with pytest.raises(KeyboardInterrupt):
        partition(random_pattern(3000, 8, seed=8), 16, threads=4, progress=stop)
    assert len(names_of_threads()) <= before  # one of those may just have ended


def test_progress_is_told_and_may_interrupt():
    A = random_pattern(500, 4, seed=9)
    told = []
    partition(A, 4, progress=lambda stage, share: told.append((stage, share)))
    assert {stage for stage, _ in told} == {"coarsening", "initial partition", "refinement"}
    assert told[-1] == ("refinement", 1.0)

    def stop(stage, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(A, 4, progress=stop)
