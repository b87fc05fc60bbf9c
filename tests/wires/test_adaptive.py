"""Bits for each row: the best there are for their bytes, known at both ends."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import DistMatrix, Mesh, kernels
from spgnn.comm import connect
from spgnn.exchange import COVERS, Algorithm, Step
from spgnn.exchange.wire import AsTheyAre
from spgnn.testing import run_ranks
from spgnn.wires import Adaptive, Approximation, Dials, Errors, Setting
from spgnn.wires.sharing import OF_BFLOAT16, PLAIN, WIDTHS, Limits, chosen
from spgnn.wires.weights import weights_of
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.wires.single import N, sending_to_itself

F, EPOCHS = 6, 9


def equally(rows: int, width: int, bits: int) -> Limits:
    """The bytes of equal bits, of all rows together."""
    return Limits(np.array([rows]), np.array([rows * kernels.packed_bytes(width, bits)]))


def sizes_of(width: int) -> np.ndarray:
    found = np.zeros(PLAIN + 1, np.int64)
    for b in (*WIDTHS, PLAIN):
        found[b] = kernels.packed_bytes(width, b)
    return found


def left_of(variances: np.ndarray, plain: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The variance of some rows with these bits [..., rows]."""
    return np.where(bits == PLAIN, plain, variances / (2.0 ** np.minimum(bits, 8) - 1) ** 2)


ROWS = 5
SOME = st.floats(-6, 6).map(lambda x: float(np.exp(x))) | st.just(0.0)
EACH = st.lists(SOME, min_size=ROWS, max_size=ROWS).map(np.array)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    variances=EACH,
    ratios=st.lists(st.floats(-14, 1), min_size=ROWS, max_size=ROWS).map(np.array),
    width=st.sampled_from([1, 3, 5, 9, 64]),
    groups=st.lists(st.integers(0, ROWS - 1), min_size=2, max_size=2).map(sorted),
    largest=st.floats(0, 1),
    least=st.sampled_from([1, 2]),
)
def test_no_choice_of_the_same_bytes_is_better(variances, ratios, width, groups, largest, least):
    """All assignments of five rows to three messages, none of which may be longer than a limit.

    What is found is the best where no message is longer than the one that was found, and what is
    left below the limit is less than one row's next step.
    """
    widths = [b for b in WIDTHS if b >= least]
    plain, size = variances * np.exp(ratios), sizes_of(width)
    group = np.searchsorted(groups, np.arange(ROWS), side="right")
    rows = np.bincount(group, minlength=3)
    low, high = size[least] * rows.max(), size[[*widths, PLAIN]].max() * rows.max()
    limit = int(low + largest * (high - low))
    limits = Limits(rows, np.full(3, limit))
    found = chosen(torch.from_numpy(variances), width, limits, widths)
    both = chosen(torch.from_numpy(variances), width, limits, widths, plain=torch.from_numpy(plain))
    # With so few columns, bfloat16 is shorter than 8 bits and their header: not looked at.
    more = (*widths, PLAIN) if width >= 5 else widths
    for bits, known in ((found.numpy().astype(int), widths), (both.numpy().astype(int), more)):
        assert set(bits.tolist()) <= set(known)
        every = np.array(list(product(known, repeat=ROWS)))
        made = left_of(variances, plain, bits).sum()
        lengths = np.stack([np.where(group == g, size[every], 0).sum(1) for g in range(3)], 1)
        spent = np.array([size[bits[group == g]].sum() for g in range(3)])
        assert spent.max() <= limit
        best = left_of(variances, plain, every).sum(1)
        assert made == pytest.approx(best[(lengths <= spent).all(1)].min(), rel=1e-9, abs=1e-12)
        # Of each message, at most one step would have been the next and did not fit.
        next_step = np.zeros(3)
        for g, v, p, b in zip(group, variances, plain, bits, strict=True):
            further = [left_of(v, p, b) - left_of(v, p, np.array(c)) for c in known if c > b]
            next_step[g] = max(next_step[g], *further, 0) if further else next_step[g]
        allowed = best[(lengths <= limit).all(1)].min()
        assert made - allowed <= next_step.sum() * (1 + 1e-9) + 1e-12


def test_rows_without_range_or_without_end_have_one_bit():
    variances = torch.tensor([0.0, torch.nan, torch.inf, 1.0, 1.0], dtype=torch.float64)
    plain = torch.tensor([1.0, torch.nan, torch.inf, 1.0, 1.0], dtype=torch.float64)
    assert chosen(variances, 64, equally(5, 64, 4), plain=plain).tolist() == [1, 1, 1, 8, 8]
    assert chosen(variances[:0], 64, equally(0, 64, 4), plain=plain[:0]).tolist() == []
    # Nine tenths of the variance are in one row, and bfloat16 loses nearly nothing of it.
    variances = torch.tensor([1e6, 1.0, 1.0, 1.0], dtype=torch.float64)
    found = chosen(variances, 64, equally(4, 64, 8), plain=variances * 1e-9)
    assert found.tolist() == [16, 8, 4, 4]


@pytest.mark.parametrize("limit", ["own", "pair", "rank"])
def test_what_a_limit_is_of(limit):
    run_ranks(limited, 3, limit)


def limited(rank: int, limit: str) -> None:
    """Bytes are those of equal bits at the bottleneck; what is shorter may grow as long."""
    asked = Approximation(((0, 4),), adaptive=1, adaptive_limit=limit)
    exact, A, own = matrix_on(rank, Algorithm("1d"), asked)
    H = torch.randn(own.stop - own.start, 32, dtype=torch.float64)
    H *= torch.randn(len(H), 1, dtype=torch.float64).exp()
    for epoch in range(2):
        for adjoint in (False, True):
            applied(A, H, Step(epoch, adjoint=adjoint))
    (hop,), (wire,) = A.plan.hops, A.wires
    comm, row_bytes = exact.mesh.everyone, kernels.packed_bytes(32, 4)
    for adjoint in (False, True):
        route = hop.route(adjoint=adjoint)
        rows = route.counts
        # A byte a row says how many bits it will have in the next epoch.
        sent = wire.bytes(route, 32, torch.float64, Step(1, adjoint=adjoint))[0] - rows.send
        longest, most = comm.agree(int(sent.max())), comm.agree(int(sent.sum()))
        total, equal = comm.agree(int(sent.sum()), "sum"), comm.agree(rows.sent, "sum") * row_bytes
        if limit == "pair":
            assert longest <= rows.largest * row_bytes
        elif limit == "rank":
            assert most <= comm.agree(rows.sent) * row_bytes
        else:
            assert sent.sum() <= rows.sent * row_bytes
        assert (total > equal) == (limit != "own")


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


class Poking(AsTheyAre):
    """Adds one to a row that a hop sends."""

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
    limit = {"1d": "pair", "vertex-cut": "rank"}.get(scheme, "own")
    bits = 8 if scheme == "1d" else 4
    asked = Approximation(
        ((0, bits), (7, 2)), feedback=True, adaptive=3, adaptive_limit=limit, delay=scheme == "1d"
    )
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
            if scheme == "1d" and epoch == 6:
                assert any(PLAIN in kept.unique() for kept in bits_of(first)), "a row of 16 bits"
            if epoch >= 5:
                assert torch.equal(applied(second, X, step), found)
    for wire in (*first.wires, *second.wires):
        wire.land()


def bits_of(A: DistMatrix) -> list[torch.Tensor]:
    """Those of the rows that each wire sends."""
    states = [wire.state() for wire in A.wires]
    return [kept for state in states for name, kept in state.items() if name.endswith(".sent")]


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


def test_bfloat16_loses_what_is_said():
    """Of rows of any size, rounded at random, about as much as of uniform mantissas."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 50, dtype=torch.float64, generator=draw)
    lost, ids = torch.zeros(2, dtype=torch.float64), torch.arange(200)
    for key in range(20):
        kernels.quantise_rows(rows, PLAIN, ids, key, lost=lost)
    assert float(lost[0] / lost[1]) == pytest.approx(OF_BFLOAT16, rel=0.2)
