"""Groups of peers: rounds, budgets, products that keep within them, and what is refused."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from itertools import cycle, pairwise

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, InputError, Mesh, RowLayout, kernels
from spgnn.comm import Communicator, connect
from spgnn.comm.traffic import RowCounts
from spgnn.exchange import peers as rounds_
from spgnn.exchange.peers import (
    LEAST_OF_PAIR,
    Peers,
    Rounds,
    buffered,
    most_rows,
    partner,
    rounds_of,
)
from spgnn.exchange.transport import Transport
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix
from tests.products import cases, check

N = 61


@pytest.mark.parametrize("ranks", [*range(1, 18), 64, 65])
def test_everyone_meets_everyone_once_and_one_at_a_time(ranks):
    met = set()
    for number in range(rounds_of(ranks)):
        partners = [partner(rank, number, ranks) for rank in range(ranks)]
        for rank, other in enumerate(partners):
            if other is not None:
                assert other != rank
                assert partners[other] == rank
                met.add((rank, other))
        assert sum(other is None for other in partners) == ranks % 2
    assert len(met) == ranks * (ranks - 1)
    assert rounds_of(ranks) == (0 if ranks == 1 else ranks - 1 + ranks % 2)


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_groups_hold_every_row_once_and_keep_within_the_budget(seed, buffers, monkeypatch):
    monkeypatch.setattr(rounds_, "SMALL_BUDGET", 0 if buffers == 2 else 1 << 20)
    rng = np.random.default_rng(seed)
    ranks, row_bytes = int(rng.integers(2, 12)), int(rng.integers(1, 300))
    table = rng.integers(0, 60, (ranks, ranks)) * (rng.random((ranks, ranks)) < rng.random())
    np.fill_diagonal(table, 0)
    counts = [RowCounts(table[r], table[:, r], int(table.max())) for r in range(ranks)]
    most = np.max([most_rows(counts[r], r) for r in range(ranks)], axis=0)
    rounds = [Rounds(r, tuple(most.tolist())) for r in range(ranks)]
    least = rounds[0].least_budget(row_bytes)
    assert least == 2 * row_bytes * -(-int(table.max()) // LEAST_OF_PAIR)
    whole = int(most.sum()) * row_bytes
    for budget in (least, 2 * least, least + row_bytes, whole - 1, whole):
        if budget < least or not whole:
            continue
        groups = rounds[0].groups(budget, row_bytes)
        assert len(groups) == 1 if budget >= whole else len(groups) > 1
        for r in range(ranks):
            for sizes in (counts[r].send, counts[r].recv):
                taken = [rounds[r].stretches(group, sizes) for group in groups]
                listed = [
                    (peer, row)
                    for first, last in taken
                    for peer in range(ranks)
                    for row in range(first[peer], last[peer])
                ]
                assert sorted(listed) == [(p, row) for p in range(ranks) for row in range(sizes[p])]
                rows = [int((last - first).sum()) for first, last in taken]
                together = rows if buffers == 1 or len(rows) == 1 else map(sum, pairwise(rows))
                assert max(together, default=0) * row_bytes <= budget
                assert sum(buffered(rows, buffers)) * row_bytes <= budget
        # What one sends in a group, the other receives in the same.
        for group in groups:
            sent, received = (
                [np.diff(rounds[r].stretches(group, getattr(counts[r], way)), axis=0)[0]
                 for r in range(ranks)] for way in ("send", "recv")
            )  # fmt: skip
            assert np.array_equal(np.array(sent).T, received)


def products_in_groups(rank: int, every: int) -> int:
    comm, checked = connect(), 0
    for number, c in enumerate(c for c in range(1, comm.size + 1) if comm.size % c == 0):
        rooms = cycle((16, 4, 60, 7))
        sparse = [case for case in cases(comm.size) if case.exchange != "oblivious"]
        for sweep, room in list(zip(sparse, rooms, strict=False))[number::every]:
            case = replace(sweep, room=room, relays=False)  # they wait for all their peers
            # Budgets are small, so that all groups would travel alone: here, only every other time.
            rounds_.SMALL_BUDGET = 0 if checked % 2 else 1 << 20
            check(case, comm, "1.5d", c)
            checked += 1
            if c > 1 and comm.size % c**2 == 0:
                check(case, comm, "1.5d-replicated", c)
    return checked


SLOW = [pytest.param(ranks, 1, marks=pytest.mark.slow) for ranks in (2, 3, 4, 6, 8, 12)]


@pytest.mark.parametrize(("ranks", "every"), [(1, 9), (2, 7), (3, 7), (4, 11), *SLOW])
def test_products_adjoints_bytes_and_memory(ranks, every):
    """Several budgets: pairs that are cut, several pairs a group, all in one."""
    assert min(run_ranks(products_in_groups, ranks, every)) >= (24 if every == 1 else 4)


class Counting(Transport):
    """Counts exchanges, and sees all memory they arrive in."""

    def __init__(self) -> None:
        self.messages = self.most = 0

    def begin(self, rows, out, route, comm, step):
        self.messages += 1
        self.most = max(self.most, out.untyped_storage().nbytes())
        return super().begin(rows, out, route, comm, step)


def check_all(rank: int) -> int:
    comm = connect()
    layout, mesh = RowLayout.even(N, comm.size), Mesh.grid(comm)
    block = block_row(random_matrix(N, 0.3, 0, weighted=True), *layout.range(rank))
    matrix = DistMatrix.build(block, layout, mesh, schedule="peers", buffer=300)
    H = torch.arange(3.0 * matrix.own_rows, dtype=torch.float64).view(-1, 3)
    check_memory_error(matrix, H)
    # A halo is whole under any schedule.
    assert torch.equal(matrix.halo(H), DistMatrix.build(block, layout, mesh).halo(H))
    torch.testing.assert_close(kernels.spmm(matrix.local_matrix(), matrix.halo(H)), matrix @ H)
    check_refused(comm, block, layout, mesh)
    return check_copies(matrix, H)


def check_copies(matrix: DistMatrix, H: torch.Tensor) -> int:
    """Copies keep the schedule and the budget."""
    expected = matrix.forward(H)
    for other in (
        copy.deepcopy(matrix),
        pickle.loads(pickle.dumps(matrix)),
        matrix.to(torch.float32),
        DistMatrix(matrix.plan, matrix.layout, matrix.mesh, schedule="peers", buffer=300),
    ):
        codec = Counting()
        other.executor.transports[:] = [codec]
        assert isinstance(other.executor, Peers)
        assert (other.schedule, other.buffer) == ("peers", 300)
        found = other.forward(H.to(other.plan.stages[0].local.values.dtype)).double()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert 0 < codec.most <= 300
    return codec.messages


def check_memory_error(matrix: DistMatrix, H: torch.Tensor) -> None:
    """Groups that were begun are waited for when memory runs out."""
    multiply, expected = kernels.spmm, (matrix.forward(H), matrix.adjoint(H))

    def out_of_memory(*operands, **options):
        # The product of own nonzeros: some groups are under way already.
        if operands[0].shape[0] == operands[0].shape[1] == matrix.own_rows:
            raise MemoryError
        return multiply(*operands, **options)

    for attempt in (matrix.forward, matrix.adjoint):
        kernels.spmm = out_of_memory
        with pytest.raises(MemoryError):
            attempt(H)
        kernels.spmm = multiply
    assert torch.equal(matrix.forward(H), expected[0])
    assert torch.equal(matrix.adjoint(H), expected[1])


def check_refused(comm: Communicator, block, layout: RowLayout, mesh: Mesh) -> None:
    """In one line on all ranks, before anything moves."""
    how = {"schedule": "peers", "buffer": 40}
    matrix, plain = (
        DistMatrix.build(block, layout, mesh, **how),
        DistMatrix.build(block, layout, mesh),
    )
    # The largest pair has 20 or 21 rows: pieces of two, twice, of 8 bytes a column.
    matrix.forward(torch.ones(matrix.own_rows, 1, dtype=torch.float64))
    wide = torch.ones(matrix.own_rows, 2, dtype=torch.float64)
    small = "--buffer 40: rows of 2 columns, float64, need 64 bytes at least"
    before = comm.ledger.copy()
    for attempt, said in (
        (lambda: matrix.forward(wide), small),
        (lambda: matrix.adjoint(wide), small),
        (lambda: DistMatrix(plain.plan, layout, mesh, **how), "needs a plan of one exchange in"),
    ):
        with pytest.raises(InputError, match=said):
            attempt()
    assert not any(t.sent_bytes for t in comm.ledger.since(before).operations.values())
    with pytest.raises(InputError, match="buffer"):
        DistMatrix.build(block, layout, mesh, schedule="peers", buffer=7 + comm.rank)


def test_copies_halos_failures_and_refusals():
    counts = run_ranks(check_all, 3)
    assert counts[0] == counts[1] == counts[2] > 3
