"""Vertex cuts: the rules, what the report counts, and that plans move exactly that."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import Axes, RowLayout
from spgnn.exchange import Algorithm, build_all
from spgnn.partition import cut_vertices, permutation
from spgnn.partition import vertex_cut as cuts
from spgnn.partition.problem import part_bounds
from tests.matrices import block_row
from tests.partition.oracle import matrices, random_pattern, uneven_communities


def nonzeros(A: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each nonzero, in storage order."""
    return np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)), A.indices


def touching(A: sp.csr_array, labels: np.ndarray) -> tuple[list[set], list[set]]:
    """The parts with nonzeros off the diagonal in each row, and in each column."""
    n = A.shape[0]
    in_row, in_column = [set() for _ in range(n)], [set() for _ in range(n)]
    for i, j, p in zip(*nonzeros(A), labels.tolist(), strict=True):
        if i != j:
            in_row[i].add(p)
            in_column[j].add(p)
    return in_row, in_column


def expected_report(A: sp.csr_array, labels: np.ndarray, owners: np.ndarray, parts: int) -> dict:
    """All counts from their definition."""
    rows, columns = nonzeros(A)
    in_row, in_column = touching(A, labels)
    counts = {
        name: np.zeros(parts, int)
        for name in ("touched", "expand_s", "expand_r", "fold_s", "fold_r")
    }
    for v, owner in enumerate(owners.tolist()):
        for p in in_row[v] | in_column[v] | {owner}:
            counts["touched"][p] += 1
        for p in in_column[v] - {owner}:
            counts["expand_s"][owner] += 1
            counts["expand_r"][p] += 1
        for p in in_row[v] - {owner}:
            counts["fold_s"][p] += 1
            counts["fold_r"][owner] += 1
    settled = np.where(rows == columns, owners[rows], labels)
    return counts | {"nonzeros": np.bincount(settled, minlength=parts), "settled": settled}


@given(matrices(), st.integers(1, 9), st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_the_report_counts_by_definition(A, parts, seed, threads):
    rng = np.random.default_rng(seed)
    labels, owners = rng.integers(0, parts, A.nnz), rng.integers(0, parts, A.shape[0])
    cut = cut_vertices(A, parts, labels=owners, edges=labels, threads=threads)
    expected = expected_report(A, labels, owners, parts)
    np.testing.assert_array_equal(cut.edges, expected["settled"])
    np.testing.assert_array_equal(cut.owners, owners)
    for name in ("nonzeros", "touched"):
        np.testing.assert_array_equal(cut.report[name], expected[name])
    for name in ("expand", "fold"):
        np.testing.assert_array_equal(cut.report[name]["send"], expected[f"{name}_s"])
        np.testing.assert_array_equal(cut.report[name]["recv"], expected[f"{name}_r"])
    sent = expected["expand_s"] + expected["fold_s"]
    together = cut.report["together"]
    np.testing.assert_array_equal(together["send"], sent)
    np.testing.assert_array_equal(together["recv"], expected["expand_r"] + expected["fold_r"])
    assert (together["total"], together["max_send"]) == (sent.sum(), sent.max())
    assert cut.report["replication"] == expected["touched"].sum() / A.shape[0]


@given(matrices(), st.integers(1, 9), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_plans_move_what_the_report_says(A, parts, seed):
    """Nonzeros, rows sent and received of every rank; for any labels, and for the rule."""
    A.setdiag(True)
    rng = np.random.default_rng(seed)
    owners = rng.integers(0, parts, A.shape[0])
    random = rng.integers(0, parts, A.nnz)
    for given_labels in (random, None):
        cut = cut_vertices(A, parts, labels=owners, edges=given_labels)
        order, layout = permutation(owners), RowLayout.from_labels(owners, parts)
        marked = sp.csr_array((cut.edges + 1, A.indices, A.indptr), shape=A.shape)
        moved = sp.csr_array(marked[order][:, order])
        moved.sort_indices()
        parts_of = []
        for rank in range(parts):
            first, last = layout.range(rank)
            mine = moved.data[moved.indptr[first] : moved.indptr[last]] - 1
            labels = None if given_labels is None else torch.from_numpy(mine)
            block = block_row(moved.astype(bool), first, last)
            scheme = Algorithm("vertex-cut").scheme(block, layout, rank, edge_labels=labels)
            parts_of.append(scheme)
        plans = build_all(parts_of, Axes.grid(parts))
        found = cut.report["together"]
        assert [plan.volume.send for plan in plans] == found["send"]
        assert [plan.volume.receive for plan in plans] == found["recv"]
        for plan, count in zip(plans, cut.report["nonzeros"], strict=True):
            stage = plan.stages[0]
            remote = 0 if stage.remote is None else stage.remote.nnz
            assert stage.local.nnz + remote == count


@given(matrices(), st.integers(1, 70), st.integers(0, 100))
def test_libra_takes_the_lightest_part_of_those_that_matter(A, parts, seed):
    """Replayed nonzero by nonzero; one row a chunk, so that the order is that of the matrix."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "_CHUNK", 1)
        cut = cut_vertices(A, parts, imbalance=0.2, seed=seed)
    limit = part_bounds(A.nnz, parts, 0.2)
    load = np.zeros(parts, int)
    touched = [set() for _ in range(A.shape[0])]
    for i, j, label in zip(*nonzeros(A), cut.edges.tolist(), strict=True):
        if i == j:  # its label became the owner's; go on from any that the rule allows
            return
        open_parts = {p for p in range(parts) if load[p] < limit}
        candidates = touched[i] & touched[j] & open_parts
        candidates = candidates or (touched[i] | touched[j]) & open_parts or set(range(parts))
        assert label in candidates
        assert load[label] == min(load[p] for p in candidates)
        load[label] += 1
        touched[i].add(label)
        touched[j].add(label)


@pytest.mark.parametrize(("parts", "vertices"), [(2, 0.06), (16, 0.1), (100, 0.25)])
def test_libra_balances_nonzeros_and_depends_on_the_seed_alone(parts, vertices, monkeypatch):
    A = random_pattern(2000, 8, seed=1, skew=2.0)
    A.setdiag(False)
    A.eliminate_zeros()
    monkeypatch.setattr(cuts, "_CHUNK", 3000)
    first = cut_vertices(A, parts, seed=4, threads=1)
    again = cut_vertices(A, parts, seed=4, threads=3)
    np.testing.assert_array_equal(first.edges, again.edges)
    np.testing.assert_array_equal(first.owners, again.owners)
    assert first.report == again.report
    assert max(first.report["nonzeros"]) <= part_bounds(A.nnz, parts, 0.05)
    assert (cut_vertices(A, parts, seed=5).edges != first.edges).any()
    # Vertices belong where they are touched, even if all parts that do have their share.
    assert first.report["vertex_imbalance"] <= vertices


def test_libra_keeps_communities_together_better_than_chance():
    A = uneven_communities(1500, seed=2)
    chance = np.random.default_rng(0).integers(0, 8, A.nnz)
    found = cut_vertices(A, 8).report["together"]["total"]
    assert found < 0.8 * cut_vertices(A, 8, edges=chance).report["together"]["total"]


@given(matrices(), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_owners_are_where_least_moves(A, parts, seed):
    """Without a bound on vertices, each owner is one of those that save most rows."""
    labels = np.random.default_rng(seed).integers(0, parts, A.nnz)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "LARGEST_IMBALANCE", 1e6)
        cut = cut_vertices(A, parts, edges=labels, imbalance=1e6)
    for v, (in_row, in_column) in enumerate(zip(*touching(A, labels), strict=True)):
        saved = [(p in in_row) + (p in in_column) for p in range(parts)]
        assert saved[cut.owners[v]] == max(saved)


@pytest.mark.parametrize("skew", [0.0, 2.0])
def test_no_owner_sends_or_receives_far_more_than_the_average(skew):
    figures = cut_vertices(random_pattern(2000, 6, seed=1, skew=skew), 8).report["together"]
    assert figures["busiest"] == max(figures["max_send"], figures["max_receive"])
    assert figures["busiest"] <= 1.05 * figures["avg_send"]


def test_isolated_vertices_are_spread():
    pairs = sp.coo_array((np.ones(6, bool), (range(6), [1, 0, 3, 2, 5, 4])), shape=(100, 100))
    labels = np.array([0, 0, 0, 0, 2, 2])
    cut = cut_vertices(pairs.tocsr(), 7, edges=labels)
    np.testing.assert_array_equal(cut.owners[:6], labels)
    assert sorted(np.bincount(cut.owners, minlength=7)) == [14, 14, 14, 14, 14, 15, 15]


def test_what_several_parts_touch_is_shared_out():
    """A cycle whose every vertex lies between two parts, which can be had evenly."""
    n = 90
    columns = np.roll(np.arange(n), -1)
    A = sp.coo_array((np.ones(n, bool), (np.arange(n), columns)), shape=(n, n)).tocsr()
    cut = cut_vertices(A, 9, edges=np.arange(n) % 9, imbalance=0)
    np.testing.assert_array_equal(np.bincount(cut.owners), np.full(9, 10))
    assert cut.report["together"]["send"] == [10] * 9


@given(matrices(), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_endpoint_with_fewer_nonzeros_decides(A, parts, seed):
    owners = np.random.default_rng(seed).integers(0, parts, A.shape[0])
    off = A.toarray() & ~np.eye(A.shape[0], dtype=bool)
    rows, columns = nonzeros(A)
    fewer = off.sum(axis=0)[columns] < off.sum(axis=1)[rows]
    cut = cut_vertices(A, parts, labels=owners, threads=2)
    np.testing.assert_array_equal(cut.edges, owners[np.where(fewer, columns, rows)])
