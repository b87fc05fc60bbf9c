"""What every communicator must do, checked on all ranks of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from spgnn.comm import Communicator
from spgnn.comm.communicator import Pending
from spgnn.comm.traffic import RowCounts

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.bool)


def check_all(comm: Communicator) -> None:
    """Every operation, with whole and with split messages. Collective."""
    whole = comm.message_limit
    for limit in (whole, 24, 1):
        comm.message_limit = limit
        for dtype in DTYPES:
            check_alltoallv(comm, dtype)
        check_silent_alltoallv(comm)
        check_reductions(comm)
        check_scatter_and_gather(comm)
    comm.message_limit = whole
    check_two_under_way(comm)
    check_outstanding(comm)
    check_subgroups(comm)
    check_groups_of_groups(comm)
    comm.barrier()
    assert comm.agree(int(comm.is_main), "sum") == 1
    assert comm.is_main is (comm.rank == 0)


def check_alltoallv(comm: Communicator, dtype: torch.dtype) -> None:
    """Uneven counts, many of them zero; the bytes that are counted."""
    rank, size = comm.rank, comm.size
    table = np.random.default_rng(size).integers(0, 4, (size, size)) % 3
    send = torch.cat([_rows(int(table[rank, p]), rank, p) for p in range(size)]).to(dtype)
    expected = torch.cat([_rows(int(table[p, rank]), p, rank) for p in range(size)]).to(dtype)
    counts = comm.exchange_counts(table[rank].tolist())
    assert counts == RowCounts(table[rank], table[:, rank], table.max())
    before = comm.ledger.copy()
    received = torch.zeros_like(expected)
    comm.alltoallv(send, received, counts).wait()
    assert torch.equal(received, expected)
    account = comm.ledger.since(before).of("alltoall")
    row_bytes = 3 * send.element_size()
    assert account.sent_bytes == (table[rank].sum() - table[rank, rank]) * row_bytes
    assert account.received_bytes == (table[:, rank].sum() - table[rank, rank]) * row_bytes


def check_silent_alltoallv(comm: Communicator) -> None:
    """Nobody sends anything."""
    none = (0,) * comm.size
    empty = torch.empty(0, 7)
    comm.alltoallv(empty, empty.clone(), RowCounts(none, none, 0)).wait()
    ones = RowCounts((1,) * comm.size, (1,) * comm.size, 1)
    comm.alltoallv(torch.empty(comm.size, 0), torch.empty(comm.size, 0), ones).wait()


def check_reductions(comm: Communicator) -> None:
    """broadcast, reduce, all_reduce, agree, of every dtype."""
    rank, size = comm.rank, comm.size
    for dtype in (*DTYPES[:-1], torch.float16, torch.uint8):
        for root in range(size):
            before = comm.ledger.copy()
            buffer = torch.arange(10, dtype=dtype) * (rank + 1)
            comm.broadcast(buffer, root).wait()
            assert torch.equal(buffer, torch.arange(10, dtype=dtype) * (root + 1))
            account = comm.ledger.since(before).of("broadcast")
            nbytes = 10 * buffer.element_size()
            assert account.sent_bytes == (nbytes * (size - 1) if rank == root else 0)
            assert account.received_bytes == (0 if rank == root else nbytes)
            buffer = torch.arange(2, dtype=dtype) * (rank + 1)
            comm.reduce(buffer, root).wait()
            if rank == root:
                assert torch.equal(buffer, torch.arange(2, dtype=dtype) * (size * (size + 1) // 2))
        buffer = torch.full((5,), rank, dtype=dtype)
        comm.all_reduce(buffer).wait()
        assert (buffer == size * (size - 1) // 2).all()
        buffer = torch.tensor([rank, size - rank, 3]).to(dtype)
        comm.all_reduce(buffer, "max").wait()
        assert buffer.tolist() == [size - 1, size, 3]
    for op in ("sum", "max"):
        flags = torch.tensor([rank == 0, rank == size - 1, False, True])
        comm.all_reduce(flags, op).wait()
        assert flags.tolist() == [True, True, False, True]
    for dtype in (torch.float32, torch.bfloat16):
        buffer = torch.randn(100, generator=torch.Generator().manual_seed(rank)).to(dtype)
        comm.all_reduce(buffer).wait()
        everyones = buffer.new_empty(size, 100)
        comm.all_gather(buffer[None], everyones, [1] * size)
        assert torch.equal(everyones, buffer.expand(size, -1)), "the same bits on every rank"
    assert comm.agree(rank) == size - 1
    assert comm.agree(rank, "sum") == size * (size - 1) // 2


def check_scatter_and_gather(comm: Communicator) -> None:
    """Both with uneven and empty blocks."""
    rank, size = comm.rank, comm.size
    sizes = [p % 3 for p in range(size)]
    whole = torch.arange(sum(sizes) * 2, dtype=torch.float64).view(-1, 2)
    mine = torch.empty(sizes[rank], 2, dtype=torch.float64)
    first = sum(sizes[:rank])
    for root in range(size):
        before = comm.ledger.copy()
        mine.zero_()
        comm.scatter(whole if rank == root else whole[:0], mine, sizes, root)
        assert torch.equal(mine, whole[first : first + sizes[rank]])
        account = comm.ledger.since(before).of("alltoall")
        assert account.sent_bytes == ((sum(sizes) - sizes[root]) * 16 if rank == root else 0)
        assert account.received_bytes == (0 if rank == root else sizes[rank] * 16)
    check_all_gather(comm, whole, sizes)
    check_all_gather(comm, torch.randn(3 * size, 2, 2, generator=torch.manual_seed(1)), [3] * size)
    check_all_gather(comm, torch.arange(size) % 2 == 0, [1] * size)


def check_all_gather(comm: Communicator, whole: torch.Tensor, sizes: list[int]) -> None:
    """Of blocks of a whole; each is counted once for every other rank."""
    first, own = sum(sizes[: comm.rank]), sizes[comm.rank]
    gathered, before = torch.zeros_like(whole), comm.ledger.copy()
    comm.all_gather(whole[first : first + own].clone(), gathered, sizes)
    assert torch.equal(gathered, whole)
    account, row = comm.ledger.since(before).of("alltoall"), whole[:1].nbytes
    assert account.sent_bytes == own * (comm.size - 1) * row
    assert account.received_bytes == (len(whole) - own) * row


def check_two_under_way(comm: Communicator) -> None:
    """Operations begun one after the other and waited for in the other order."""
    ones = RowCounts((1,) * comm.size, (1,) * comm.size, 1)
    a = torch.full((comm.size, 2), float(comm.rank))
    b = -a
    got_a, got_b = torch.empty_like(a), torch.empty_like(b)
    first, second = comm.alltoallv(a, got_a, ones), comm.alltoallv(b, got_b, ones)
    second.wait()
    first.wait()
    first.wait()
    expected = torch.arange(comm.size, dtype=torch.float32)[:, None].expand(-1, 2)
    assert torch.equal(got_a, expected)
    assert torch.equal(got_b, -expected)


def check_outstanding(comm: Communicator) -> None:
    """Exchanges that stay under way while much else happens, as those of delayed rows do."""
    halves = [range(0, comm.size, 2), range(1, comm.size, 2)][: min(comm.size, 2)]
    half = comm.subgroup(halves, name="half")
    orders: list[Callable[[int], int]] = [lambda n: n, lambda n: -n, lambda n: n * 7 % 10]
    for order in orders:
        under_way = []
        for number in range(10):
            part = (comm, half, comm.apart())[number % 3]
            under_way.append(_Outstanding(part, number))
            if number % 4 == 0:
                check_two_under_way(half)
        check_reductions(comm)
        check_reductions(half)
        check_scatter_and_gather(comm)
        check_scatter_and_gather(half)
        check_alltoallv(comm, torch.float64)
        check_subgroups(comm)
        comm.check_agreement("what goes on", ranks=comm.size)
        for number in sorted(range(10), key=order):
            under_way[number].check()
            comm.barrier()


class _Outstanding:
    """An exchange of uneven rows, some of them long and some none; what has to arrive."""

    def __init__(self, comm: Communicator, number: int) -> None:
        rank, size = comm.rank, comm.size
        rng = np.random.default_rng(100 * size + number)
        # Beyond what transports send before it is asked for; all ranks draw the same.
        rows = rng.integers(0, 3, (size, size)) * (20_000 if number % 2 else 3)
        width = 1 + number % 3
        whole = [
            [torch.from_numpy(rng.standard_normal((n, width))) for n in to] for to in rows.tolist()
        ]
        self.send = torch.cat(whole[rank])
        self.expected = torch.cat([theirs[rank] for theirs in whole])
        self.received = torch.zeros_like(self.expected)
        counts = RowCounts(rows[rank], rows[:, rank], rows.max())
        self.pending: Pending = comm.alltoallv(self.send, self.received, counts)

    def check(self) -> None:
        self.pending.wait()
        assert torch.equal(self.received, self.expected)


def check_subgroups(comm: Communicator) -> None:
    """Groups by remainder; their bytes appear in the parent's ledger."""
    for stride in (1, 2, comm.size):
        groups = [list(range(r, comm.size, stride)) for r in range(min(stride, comm.size))]
        part = comm.subgroup(groups)
        members = groups[comm.rank % stride]
        assert part.size == len(members)
        assert members[part.rank] == comm.rank
        before = comm.ledger.copy()
        buffer = torch.tensor([float(comm.rank)])
        part.all_reduce(buffer).wait()
        assert float(buffer) == sum(members)
        assert comm.ledger.since(before).of("all_reduce").calls == 1


def check_groups_of_groups(comm: Communicator) -> None:
    """Some ranks make more groups than others, and then one together; and the same ranks again."""
    first = comm.subgroup([range(1), range(1, comm.size)][: comm.size])
    second = first.subgroup([[rank] for rank in range(first.size)])
    assert second.size == 1
    halves = comm.subgroup([range(0, comm.size, 2), range(1, comm.size, 2)][: min(2, comm.size)])
    for group in (comm.apart(), halves.apart(), comm.subgroup([range(comm.size)]).apart()):
        assert group.agree(1, "sum") == group.size
    assert comm.apart() is comm.apart()


def _rows(count: int, source: int, target: int) -> torch.Tensor:
    return torch.full((count, 3), float(source * 10 + target + 1))
