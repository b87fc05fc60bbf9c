"""Bits for each row: the best there are for their bytes, known at both ends."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import DistMatrix, Mesh, kernels
from spgnn.comm import connect
from spgnn.exchange import COVERS, Algorithm, Step
from spgnn.testing import run_ranks
from spgnn.wires import Adaptive, Approximation, Dials, Errors, Setting
from spgnn.wires.adaptive import WIDTHS, chosen
from spgnn.wires.weights import weights_of
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.wires.single import N, sending_to_itself

F, EPOCHS = 6, 9


def variance(variances: np.ndarray, bits: np.ndarray) -> float:
    return float((variances / (2.0**bits - 1) ** 2).sum(axis=-1).min(initial=np.inf))


@pytest.mark.parametrize("width", [1, 3, 9, 64])
@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_the_same_bytes_is_better(width, bits, seed):
    """All assignments of five rows: greedy is the best for what it spends, and nearly for all."""
    rng = np.random.default_rng(seed)
    variances = np.exp(2 * rng.standard_normal(5)) * (rng.random(5) < 0.9)
    found = chosen(torch.from_numpy(variances), width, bits).numpy().astype(np.int64)
    every = np.array(list(product(WIDTHS, repeat=5)))
    size = np.zeros(9, np.int64)
    size[list(WIDTHS)] = [kernels.packed_bytes(width, b) for b in WIDTHS]
    nbytes, budget, spent = size[every].sum(axis=1), 5 * size[bits], size[found].sum()
    assert spent <= budget
    made = variance(variances, found)
    assert made == pytest.approx(variance(variances, every[nbytes <= spent]), rel=1e-12)
    # What is left of the budget is less than the next row would cost.
    allowed = variance(variances, every[nbytes <= budget])
    steps = [variances * ((2.0**a - 1) ** -2 - (2.0**b - 1) ** -2) for a, b in pairwise(WIDTHS)]
    assert made - allowed <= max(
        step[found == b].max(initial=0) for step, b in zip(steps, WIDTHS, strict=False)
    )


def test_rows_without_range_or_without_end_have_one_bit():
    variances = torch.tensor([0.0, torch.nan, torch.inf, 1.0, 1.0], dtype=torch.float64)
    assert chosen(variances, 64, 4).tolist() == [1, 1, 1, 8, 8]
    assert chosen(variances[:0], 64, 4).tolist() == []


SCHEMES = {
    "1d": Algorithm("1d"),
    "hierarchy": Algorithm("1d", node_size=2),
    "feature": Algorithm("feature", 2),
    "vertex-cut": Algorithm("vertex-cut"),
}


def matrix_on(rank: int, algorithm: Algorithm, asked: Approximation) -> tuple:
    comm = connect()
    layout = uneven_layout(N, comm.size, seed=3)
    own = slice(*layout.range(rank))
    block = block_row(random_matrix(N, 0.2, 1, weighted=True), own.start, own.stop)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    exact = DistMatrix.build(block, layout, mesh, algorithm=algorithm)
    setting = Setting(Dials(asked), Errors(), seed=5)
    return exact, exact.approximated(setting, torch.arange(own.start, own.stop)), own


def weighed(rank: int, cover: str) -> None:
    """What one unit in one sent row does to the result is what its sender knows of it."""
    algorithm = Algorithm("1d", node_size=2, cover=cover)
    exact, _, own = matrix_on(rank, algorithm, Approximation())
    plan, comm = exact.plan, exact.mesh.everyone
    (stage,) = plan.stages
    weights = weights_of(plan, exact.mesh)
    H = torch.zeros(own.stop - own.start, 1, dtype=torch.float64)
    for number, hop in enumerate(plan.hops):
        sizes = [comm.agree(hop.send.shape[0] if comm.rank == r else 0) for r in range(comm.size)]
        for sender, rows in enumerate(sizes):
            for row in range(0, rows, 3):
                wires = [Poking(number, row if sender == rank else None) for _ in plan.hops]
                A = DistMatrix(plan, exact.layout, exact.mesh, wires)
                done = A.forward(H, Step()).square().sum()
                comm.all_reduce(done).wait()
                if sender == rank:
                    torch.testing.assert_close(weights[number].forward[row], done)
    assert len(stage.hops) == len(weights)


class Poking:
    """Adds one to a row that a hop sends."""

    remembers = False

    def __init__(self, hop, row):
        self.hop, self.row = hop, row

    def begin(self, rows, out, route, comm, step):
        rows = rows.clone()  # they may be rows of H
        if step.hop == self.hop and self.row is not None:
            rows[self.row] += 1
        return comm.alltoallv(rows, out, route.counts)


@pytest.mark.parametrize("cover", COVERS)
def test_weights_are_what_an_error_does(cover):
    run_ranks(weighed, 4, cover)


def applied(A: DistMatrix, X: torch.Tensor, step: Step) -> torch.Tensor:
    return A.adjoint(X, step) if step.adjoint else A.forward(X, step)


def bytes_and_resuming(rank: int, scheme: str) -> None:
    """Counted are the bytes that are said; a wire that is given a state goes on alike."""
    asked = Approximation(((0, 4), (7, 2)), feedback=True, adaptive=3, delay=scheme == "1d")
    exact, first, own = matrix_on(rank, SCHEMES[scheme], asked)
    _, second, _ = matrix_on(rank, SCHEMES[scheme], asked)
    ledger, rng = exact.mesh.everyone.ledger, np.random.default_rng(rank)
    width = 16
    for epoch in range(EPOCHS):
        if epoch == 5:
            for old, new in zip(first.wires, second.wires, strict=True):
                new.load({name: tensor.clone() for name, tensor in old.state().items()})
        operands = torch.from_numpy(rng.standard_normal((2, own.stop - own.start, width)))
        operands *= torch.from_numpy(np.exp(rng.standard_normal((2, own.stop - own.start, 1))))
        for step, X in zip((Step(epoch), Step(epoch, adjoint=True)), operands, strict=True):
            before = ledger.copy()
            found = applied(first, X, step)
            moved = ledger.since(before).of("alltoall")
            carried = list(first.executor.carried(width, torch.float64, step))
            assert sum(int(c.sent.sum()) for c in carried) == moved.sent_bytes
            assert sum(int(c.received.sum()) for c in carried) == moved.received_bytes
            if epoch >= 5:
                assert torch.equal(applied(second, X, step), found)
    for wire in (*first.wires, *second.wires):
        wire.land()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bytes_are_exact_and_a_resumed_run_is_the_same(scheme):
    run_ranks(bytes_and_resuming, 4, scheme)


def test_bits_go_to_rows_that_matter():
    """The error of the product is less than with equal bits, of no more bytes."""
    rng = np.random.default_rng(0)
    A = sp.random_array((N, N), density=0.2, rng=rng, format="csr")
    H = torch.from_numpy(rng.standard_normal((N, 64)) * np.exp(rng.standard_normal((N, 1))))
    errors, rows = {}, N - N // 2
    for adaptive in (0, 1):
        setting = Setting(Dials(Approximation(((0, 2),), adaptive=adaptive)), Errors())
        matrix = sending_to_itself(A).approximated(setting, torch.arange(N))
        error = 0.0
        for epoch in range(20):
            Z = matrix.forward(H, Step(epoch))
            if epoch:
                error += float(np.square(Z.numpy() - A @ H.numpy()).sum())
            (wire,) = matrix.wires
            (hop,) = matrix.plan.hops
            sent, _ = wire.bytes(hop.route(), 64, torch.float64, Step(21))
            assert sent.sum() <= rows * (kernels.packed_bytes(64, 2) + bool(adaptive))
        errors[adaptive] = error
        assert isinstance(wire, Adaptive) == bool(adaptive)
    assert errors[1] < 0.6 * errors[0]
