"""The executor: steps that codecs see, hops that build on each other, and what a failure leaves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import CSR, Axes, DistMatrix, Mesh, RowLayout, kernels
from spgnn.comm import RowCounts, connect
from spgnn.exchange import Codec, CodecSetting, Plan, Stage, Step
from spgnn.exchange.approximation import Errors
from spgnn.exchange.plan import Hop
from spgnn.exchange.transport import Exact
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix

N = 24


class Recording(Exact):
    """Notes the steps it is used in."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def begin(self, rows, out, route, comm, step):
        self.steps.append(step)
        return super().begin(rows, out, route, comm, step)


def matrix_with(codecs: list, c: int) -> DistMatrix:
    comm = connect()
    layout = RowLayout.even(N, comm.size)
    block = block_row(random_matrix(N, 0.2, 0, weighted=True), *layout.range(comm.rank))
    matrix = DistMatrix.build(block, layout, Mesh.grid(comm, c))
    matrix.set_codec(CodecSetting(Codec(), Errors()), torch.arange(matrix.columns))
    matrix.executor.codecs = codecs[: len(matrix.plan.hops)]
    return matrix


def steps_of(rank: int) -> list[tuple]:
    codecs = [Recording(), Recording()]
    matrix = matrix_with(codecs, c=2)
    for epoch in (3, 4):
        matrix.codecs.setting.policy.begin_epoch(epoch)
        H = torch.ones(matrix.own_rows, 2, dtype=torch.float64, requires_grad=True)
        Z = matrix @ (matrix @ H).relu()
        (dH,) = torch.autograd.grad(Z.square().sum(), H, create_graph=True)
        dH.sum().backward()
    assert all(step.hop == number for number, codec in enumerate(codecs) for step in codec.steps)
    return [[(s.epoch, s.product, s.adjoint) for s in codec.steps] for codec in codecs]


def test_wires_know_epoch_product_and_direction():
    for rank_steps in run_ranks(steps_of, 4):
        for steps in rank_steps:
            for epoch in (3, 4):
                seen = [(product, adjoint) for e, product, adjoint in steps if e == epoch]
                forward, backward, again = seen[:2], seen[2:4], seen[4:]
                assert forward == [(0, False), (1, False)]
                assert backward == [(1, True), (0, True)]
                # The backward of the backward multiplies by A again, then by its transpose.
                assert {product for product, _ in again} == {0, 1}
                assert (0, False) in again
                assert (0, True) in again


def two_level_plan(A: np.ndarray, rank: int) -> tuple[Plan, RowLayout]:
    """One stage of two hops on 2 nodes of 2 ranks, made by hand from the whole matrix.

    Rows that a rank of the other node needs go there once, to the rank with the same number in its
    node; inside a node everyone passes on what the other needs.
    """
    layout, axes = RowLayout.even(N, 4), Axes(("node", "local"), (2, 2))
    rows = [np.arange(*layout.range(r)) for r in range(4)]
    needed = [np.flatnonzero(A[rows[r]].any(axis=0)) for r in range(4)]
    node, local = axes.coordinate("node", rank), axes.coordinate("local", rank)

    def crossing(source: int, to: int) -> np.ndarray:
        """Rows of rank `source` that the other node, where `to` is the agent, needs."""
        wanted = np.union1d(*(needed[r] for r in axes.group("local", to)))
        return np.intersect1d(rows[source], wanted)

    def passed(source: int, to: int) -> tuple[np.ndarray, np.ndarray]:
        """Own rows of `source`, and rows it got from the other node, that its neighbour needs."""
        abroad = axes.group("node", source)[1 - node]
        return (
            np.intersect1d(rows[source], needed[to]),
            np.intersect1d(crossing(abroad, source), needed[to]),
        )

    def selection(chosen: np.ndarray, among: np.ndarray, before: int, after: int) -> CSR:
        entries = (np.ones(len(chosen)), np.searchsorted(among, chosen))
        indptr = np.concatenate(
            (np.zeros(before), np.arange(len(chosen) + 1), np.full(after, len(chosen)))
        )
        shape = (before + len(chosen) + after, len(among))
        return CSR.from_scipy(sp.csr_array((*entries, indptr.astype(np.int64)), shape=shape))

    abroad = axes.group("node", rank)[1 - node]
    neighbour = axes.group("local", rank)[1 - local]
    out, into = crossing(rank, abroad), crossing(abroad, rank)
    own_out, relayed_out = passed(rank, neighbour)
    own_in, relayed_in = passed(neighbour, rank)
    largest = N

    def counts(send: int, receive: int, me: int) -> RowCounts:
        sent, received = [0, 0], [0, 0]
        sent[1 - me], received[1 - me] = send, receive
        return RowCounts(tuple(sent), tuple(received), largest)

    across = Hop("node", selection(out, rows[rank], 0, 0), counts(len(out), len(into), node))
    inside = Hop(
        "local",
        selection(own_out, rows[rank], 0, len(relayed_out)),
        counts(len(own_out) + len(relayed_out), len(own_in) + len(relayed_in), local),
        relay=selection(relayed_out, into, len(own_out), 0),
    )
    arriving = np.concatenate((into, own_in, relayed_in))
    # Rows that only pass through, or arrive twice, are multiplied once at most.
    remote = np.zeros((len(rows[rank]), len(arriving)))
    for column in np.setdiff1d(needed[rank], rows[rank]):
        remote[:, np.flatnonzero(arriving == column)[0]] = A[rows[rank], column]
    own = A[np.ix_(rows[rank], rows[rank])]
    stage = Stage(*(CSR.from_scipy(sp.csr_array(m)) for m in (own, remote)), (across, inside))
    return Plan((stage,)), layout


def check_two_levels(rank: int, overlap: bool) -> None:
    A = random_matrix(N, 0.1, 2, weighted=True).toarray()
    plan, layout = two_level_plan(A, rank)
    comm = connect()
    mesh = Mesh.build(comm, Axes(("node", "local"), (2, 2)))
    matrix = DistMatrix(plan, layout, mesh, overlap=overlap)
    own = slice(*layout.range(rank))
    rng = np.random.default_rng(0)
    H, G = rng.standard_normal((2, N, 3))
    H_local = torch.from_numpy(H[own].copy()).requires_grad_()
    before = comm.ledger.copy()
    Z_local = matrix @ H_local
    sent = sum(t.sent_bytes for t in comm.ledger.since(before).operations.values())
    assert sent == sum(t.sent_bytes for t in plan.traffic(3, torch.float64).values())
    np.testing.assert_allclose(Z_local.detach(), (A @ H)[own], rtol=1e-12, atol=1e-12)
    Z_local.backward(torch.from_numpy(G[own].copy()))
    np.testing.assert_allclose(H_local.grad, (A.T @ G)[own], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("overlap", [True, False])
def test_hops_that_relay(overlap):
    """A row that two ranks of a node need crosses between nodes once; both directions are exact."""
    run_ranks(check_two_levels, 4, overlap)


def check_failure(rank: int) -> None:
    matrix = matrix_with([Exact()], c=1)
    H = torch.ones(matrix.own_rows, 2, dtype=torch.float64)
    expected = matrix.forward(H)
    multiply = kernels.spmm

    def out_of_memory(*operands, **options):
        raise MemoryError

    for product in (matrix.forward, matrix.adjoint):
        kernels.spmm = out_of_memory if product == matrix.forward else failing_without_out
        with pytest.raises(MemoryError):
            product(H)
        kernels.spmm = multiply
    # All ranks failed alike; nothing of the exchanges that were begun is still under way.
    torch.testing.assert_close(matrix.forward(H), expected)


_spmm = kernels.spmm


def failing_without_out(*operands, **options):
    """The adjoint packs into given memory first; its own result is what there is no memory for."""
    if options.get("out") is None:
        raise MemoryError
    return _spmm(*operands, **options)


def test_an_exchange_that_was_begun_is_waited_for_when_memory_runs_out():
    run_ranks(check_failure, 3)


def check_results_stay(rank: int, c: int) -> None:
    matrix = matrix_with([Exact(), Exact()], c)
    H = torch.arange(2.0 * matrix.own_rows, dtype=torch.float64).view(-1, 2)
    for multiply in (matrix.forward, matrix.adjoint):
        first = multiply(H)
        kept = first.clone()
        multiply(-H)
        assert torch.equal(first, kept)
        assert torch.equal(multiply(H), kept)


@pytest.mark.parametrize("c", [2, 4])
def test_results_share_no_memory_with_the_rows_between_stages(c):
    """These lie in buffers, which the next product writes again."""
    run_ranks(check_results_stay, 4, c)


def check_buffers(rank: int, c: int) -> None:
    matrix = matrix_with([Exact(), Exact()], c)
    H = torch.ones(matrix.own_rows, 5, dtype=torch.float64)
    matrix.adjoint(matrix.forward(H))
    assert matrix.executor.workspace.held() == matrix.plan.memory(5, H.dtype)["buffers"]


@pytest.mark.parametrize("c", [1, 2, 4])
def test_a_plan_knows_the_buffers(c):
    """Whatever lies in H itself or in the result takes none."""
    run_ranks(check_buffers, 4, c)
