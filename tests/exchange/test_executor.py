"""The executor: steps that codecs see, turns, buffers, and what a failure leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import spgnn
from spgnn import Axes, DistMatrix, Mesh, RowLayout, kernels
from spgnn.comm import connect
from spgnn.exchange import Algorithm, Codec, Executor, Plan, Step
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.plan import Turn, Turned
from spgnn.exchange.transport import Transport
from spgnn.testing import run_ranks
from tests.exchange.coded import distributed
from tests.matrices import block_row, random_matrix
from tests.products import moved

N = 24


class Recording(Transport):
    """Notes the steps it is used in, and the widths."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.seen: list[tuple[int, bool]] = []

    def begin(self, rows, out, route, comm, step):
        self.steps.append(step)
        self.seen.append((rows.shape[1], step.adjoint))
        return super().begin(rows, out, route, comm, step)


def matrix_with(codecs: list, c: int) -> DistMatrix:
    comm = connect()
    layout = RowLayout.even(N, comm.size)
    block = block_row(random_matrix(N, 0.2, 0, weighted=True), *layout.range(comm.rank))
    matrix = DistMatrix.build(block, layout, Mesh.grid(comm, c))
    matrix.set_codec(CodecSetting(Codec()), torch.arange(matrix.columns))
    matrix.executor.codecs = codecs[: len(matrix.plan.hops)]
    return matrix


def check_steps(rank: int) -> None:
    """Codecs know epoch, product and direction, also of gradients of gradients."""
    codecs = [Recording(), Recording()]
    matrix = matrix_with(codecs, c=2)
    for epoch in (3, 4):
        matrix.codecs.setting.policy.begin_epoch(epoch)
        H = torch.ones(matrix.own_rows, 2, dtype=torch.float64, requires_grad=True)
        Z = matrix @ (matrix @ H).relu()
        (dH,) = torch.autograd.grad(Z.square().sum(), H, create_graph=True)
        dH.sum().backward()
    for number, codec in enumerate(codecs):
        assert all(step.hop == number for step in codec.steps)
        for epoch in (3, 4):
            seen = [(s.product, s.adjoint) for s in codec.steps if s.epoch == epoch]
            assert seen[:4] == [(0, False), (1, False), (1, True), (0, True)]
            # The backward of the backward multiplies by A again, then by its transpose.
            assert {product for product, _ in seen[4:]} == {0, 1}
            assert {(0, False), (0, True)} <= set(seen[4:])


def check_failure(rank: int) -> None:
    """An exchange that was begun is waited for when memory runs out."""
    matrix, multiply = matrix_with([Transport()], c=1), kernels.spmm
    H = torch.ones(matrix.own_rows, 2, dtype=torch.float64)
    expected = matrix.forward(H)

    def out_of_memory(*operands, **options):
        raise MemoryError

    def without_out(*operands, **options):
        # The adjoint packs into given memory first; there is none for its own result.
        if options.get("out") is None:
            raise MemoryError
        return multiply(*operands, **options)

    for product, fails in ((matrix.forward, out_of_memory), (matrix.adjoint, without_out)):
        kernels.spmm = fails
        with pytest.raises(MemoryError):
            product(H)
        kernels.spmm = multiply
    # All ranks failed alike; nothing of the exchanges that were begun is still under way.
    torch.testing.assert_close(matrix.forward(H), expected)


def check_buffers(rank: int) -> None:
    """A plan knows the buffers, and results share no memory with the rows between stages."""
    sparse, comm = random_matrix(N, 0.2, 0, weighted=True), connect()
    layout = RowLayout.even(N, comm.size)
    for how in (*(Algorithm("1.5d", c) for c in (1, 2, 4)), Algorithm("3d", 2)):
        matrix, _ = distributed(sparse, layout, comm, how)
        H = torch.arange(5.0 * matrix.own_rows, dtype=torch.float64).view(-1, 5)
        for multiply in (matrix.forward, matrix.adjoint):
            first = multiply(H)
            kept = first.clone()
            multiply(-H)
            assert torch.equal(first, kept)
            assert torch.equal(multiply(H), kept)
        # Whatever lies in H itself or in the result takes none.
        assert matrix.executor.workspace.held() == matrix.plan.memory(5, H.dtype)["buffers"]


@pytest.mark.parametrize("check", [check_steps, check_failure, check_buffers])
def test_products_and_what_they_leave(check):
    run_ranks(check, 4)


def check_turned(rank: int) -> None:
    """A plan of which the stages do nothing: what they get, and that it comes back."""
    comm = connect()
    sizes = np.array([3, 0, 5, 1])
    mesh = Mesh.build(comm, Axes(("feature",), (4,)))
    ends = np.concatenate(([0], np.cumsum(sizes)))
    for width in (1, 3, 4, 11):
        H = torch.arange(9 * width, dtype=torch.float32).view(9, width)
        own = H[ends[rank] : ends[rank + 1]]
        columns = np.array_split(np.arange(width), 4)[rank]
        turn = Turn("feature", rank, sizes)
        plan = Plan((Turned(turn, (), turn),))
        executor = Executor(plan, mesh)
        before = comm.ledger.copy()
        # Given as a view that is not contiguous.
        assert torch.equal(executor.forward(own.T.contiguous().T, Step()), own)
        (kept,) = (b for r, b in executor.workspace._buffers.items() if r[0] == "share")
        assert torch.equal(kept.view(9, -1) if len(columns) else H[:, []], H[:, columns])
        assert torch.equal(executor.adjoint(own, Step(adjoint=True)), own)
        for_two = comm.ledger.since(before)
        traffic = [plan.traffic(width, adjoint=adjoint)["feature"] for adjoint in (False, True)]
        assert moved(for_two) == (
            sum(t.sent_bytes for t in traffic),
            sum(t.received_bytes for t in traffic),
        )
        held = sum(buffer.nbytes for buffer in executor.workspace._buffers.values())
        assert held == plan.memory(width)["buffers"]


def test_a_turn_and_the_turn_back():
    run_ranks(check_turned, 4)


def files_of_a_product(rank: int) -> list[str]:
    """Our files that one product runs through, after those in which operands are compared."""
    comm, ours, files = connect(), Path(spgnn.__file__).parent, set()
    sparse, layout = random_matrix(N, 0.2, 0, weighted=True), RowLayout.even(N, comm.size)
    matrix, _ = distributed(sparse, layout, comm, Algorithm())
    operand = torch.ones(matrix.own_rows, 4, dtype=torch.float64)
    for _ in range(70):
        matrix @ operand

    def watch(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ours):
            files.add(str(path.relative_to(ours)))

    sys.setprofile(watch)
    try:
        matrix @ operand
    finally:
        sys.setprofile(None)
    return sorted(files)


@pytest.mark.parametrize(("ranks", "most"), [(1, 9), (2, 14)])
def test_a_product_runs_through_few_files(ranks, most):
    for files in run_ranks(files_of_a_product, ranks):
        assert len(files) <= most, files
