"""The plan by itself: L + R·Π·S is A, entry by entry, and its volume is what covers promise."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spgnn import CSR, RowLayout
from spgnn.comm import SoloCommunicator, connect
from spgnn.exchange import COVERS, ExchangePlan, build_plan
from spgnn.partition import report
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

WAYS = [("oblivious", "column"), *(("sparsity-aware", cover) for cover in COVERS)]
N, RANKS = 31, 4


def plans_of(rank: int, weighted: bool) -> list[ExchangePlan]:
    """This rank's plan for each way to exchange. Collective."""
    A = random_matrix(N, 0.2, 7, weighted=weighted)
    layout = uneven_layout(N, RANKS, seed=3)
    block = block_row(A, *layout.range(rank))
    scale = torch.linspace(1, 2, N, dtype=torch.float64)[slice(*layout.range(rank))]
    comm = connect()
    return [
        build_plan(block, layout, comm, strategy=strategy, cover=cover, column_scale=scale.clone())
        for strategy, cover in WAYS
    ]


def dense(block: CSR) -> np.ndarray:
    return block.to_scipy().toarray().astype(np.float64)


def permuted(plans: list[ExchangePlan]) -> list[np.ndarray]:
    """Π as a matrix: which sent row (of any rank) each rank receives where."""
    sent = np.cumsum([0, *(plan.S.shape[0] for plan in plans)])
    found = []
    for receiver, plan in enumerate(plans):
        rows = []
        for sender, count in enumerate(plan.counts.recv):
            theirs = plans[sender].counts.send
            assert theirs[receiver] == count
            # A broadcast is one block for everyone; an all-to-allv has one for each.
            first = 0 if plan.strategy == "oblivious" else sum(theirs[:receiver])
            rows += [sent[sender] + first + k for k in range(count)]
        Pi = np.zeros((len(rows), sent[-1]))
        Pi[np.arange(len(rows)), rows] = 1
        found.append(Pi)
    return found


@pytest.mark.parametrize("weighted", [False, True])
def test_plan_multiplies_out_to_the_matrix(weighted):
    by_rank = run_ranks(plans_of, RANKS, weighted)
    A = random_matrix(N, 0.2, 7, weighted=weighted).toarray() * np.linspace(1, 2, N)
    layout = uneven_layout(N, RANKS, seed=3)
    for way in range(len(WAYS)):
        plans = [plans[way] for plans in by_rank]
        S = sp.block_diag([dense(plan.S) for plan in plans]).toarray()
        for rank, (plan, Pi) in enumerate(zip(plans, permuted(plans), strict=True)):
            first, last = layout.range(rank)
            block = dense(plan.R) @ Pi @ S
            block[:, first:last] += dense(plan.L)
            np.testing.assert_allclose(block, A[first:last], rtol=1e-6, atol=1e-6)
            # What stays is what is owned, and nothing is counted as sent to oneself.
            assert plan.L.nnz == np.count_nonzero(A[first:last, first:last])
            assert plan.counts.send[rank] == plan.counts.recv[rank] == 0
            assert plan.counts.largest >= max(plan.counts.send)


@st.composite
def partitioned(draw):
    """A directed pattern and the part of each vertex; some parts may be empty."""
    n, parts = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    entries = draw(st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=60))
    labels = np.array(draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)))
    A = np.eye(n, dtype=np.bool_)
    for i, j in entries:
        A[i, j] = True
    return A, labels, parts


@given(st.lists(partitioned(), min_size=25, max_size=25))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_volume_is_what_the_partition_report_predicts(cases):
    """Of every cover, in total; and of the column cover for the busiest rank, both ways."""
    ranks = max(parts for *_, parts in cases)
    for rank_volumes, (A, labels, parts) in zip(
        zip(*run_ranks(volumes_of, ranks, cases), strict=True), cases, strict=True
    ):
        predicted = report(sp.csr_array(A), labels, parts=ranks)
        for number, cover in enumerate(COVERS):
            volumes = [volumes[number] for volumes in rank_volumes]
            total = sum(send for send, _ in volumes)
            assert total == sum(receive for _, receive in volumes)
            assert total == predicted["cover_volume"][cover], (cover, parts)
            if cover == "column":
                assert total == predicted["total_volume"]
                assert max(send for send, _ in volumes) == predicted["max_send"]
                assert max(receive for _, receive in volumes) == predicted["max_recv"]


def volumes_of(rank: int, cases: list) -> list[list[tuple[int, int]]]:
    """Rows sent and received in one product, case by case and cover by cover. Collective."""
    comm, found = connect(), []
    for A, labels, _ in cases:
        layout = RowLayout.from_labels(labels, comm.size)
        order = np.argsort(labels, kind="stable")
        block = block_row(sp.csr_array(A[order][:, order]), *layout.range(rank))
        plans = [build_plan(block, layout, comm, cover=cover) for cover in COVERS]
        found.append([(plan.volume.send, plan.volume.receive) for plan in plans])
    return found


@pytest.mark.parametrize(("strategy", "cover"), WAYS)
def test_one_rank_sends_nothing(strategy, cover):
    A = random_matrix(9, 0.4, 1, weighted=True)
    layout = RowLayout.even(9, 1)
    plan = build_plan(
        block_row(A, 0, 9), layout, SoloCommunicator(), strategy=strategy, cover=cover
    )
    assert (plan.volume.send, plan.volume.receive) == (0, 0)
    np.testing.assert_array_equal(dense(plan.L), A.toarray())


def test_selected_rows_only_where_rows_are_selected():
    selecting, summing = (
        ExchangePlan(S, S, S, None)
        for S in (
            CSR.from_scipy(sp.csr_array(np.eye(3, dtype=np.bool_)[[2, 0]])),
            CSR.from_scipy(sp.csr_array(np.array([[True, True, False]]))),
        )
    )
    assert selecting.selected_rows.tolist() == [2, 0]
    assert summing.selected_rows is None
