"""Ranks that share memory: room, order, threads, disagreement, and who may share."""

from __future__ import annotations

import os
import resource
import threading
import weakref

import pytest
import torch

from spgnn._native import Endpoint
from spgnn.comm import (
    CommunicationError,
    Communicator,
    Pending,
    RowCounts,
    connect,
    launch,
    shared,
)
from spgnn.testing import run_ranks
from tests.comm.jobs import Forked


def exchange(comm: Communicator, rows: int, value: float) -> tuple[torch.Tensor, Pending]:
    """So many rows from everyone to everyone: what arrives, and what is under way."""
    counts = RowCounts([rows] * comm.size, [rows] * comm.size, rows)
    send = torch.full((rows * comm.size, 3), value + comm.rank)
    received = torch.full_like(send, -1.0)
    return received, comm.alltoallv(send, received, counts)


def expected(comm: Communicator, rows: int, value: float) -> torch.Tensor:
    ranks = torch.arange(comm.size).repeat_interleave(rows)[:, None]
    return (value + ranks).float().expand(-1, 3)


@pytest.mark.parametrize(("budget", "operations"), [(1 << 10, 20), (1 << 28, 200)])
def test_any_number_of_operations_before_the_first_wait(monkeypatch, budget, operations):
    """More than there is room for, in bytes or in slots: ranks read while they wait for room."""
    monkeypatch.setattr(shared, "BUDGET", budget)

    def run(rank: int) -> None:
        comm = connect("shm")
        begun = [exchange(comm, 7, 10.0 * number) for number in range(operations)]
        # In another order on each rank.
        order = range(operations) if rank % 2 else reversed(range(operations))
        for number in order:
            received, pending = begun[number]
            pending.wait()
            torch.testing.assert_close(received, expected(comm, 7, 10.0 * number))

    run_ranks(run, 3)


def test_long_messages_go_in_rounds(monkeypatch):
    monkeypatch.setattr(shared, "MESSAGE_LIMIT", 40)

    def run(rank: int) -> None:
        comm = connect("shm")
        received, pending = exchange(comm, 50, 3.0)
        pending.wait()
        torch.testing.assert_close(received, expected(comm, 50, 3.0))

    run_ranks(run, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("length", [1, 1000, 70_001])
def test_sums_are_the_same_bits_everywhere(dtype, length):
    """Read by all, or by parts of unlike length; and several at once, waited for in any order."""

    def run(rank: int) -> list[torch.Tensor]:
        comm = connect("shm")
        torch.manual_seed(rank)
        buffers = [(8 * torch.randn(length)).to(dtype) for _ in range(3)]
        begun = [comm.all_reduce(buffer) for buffer in buffers]
        for pending in begun if rank % 2 else reversed(begun):
            pending.wait()
        return buffers

    found = run_ranks(run, 5)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(others, found[0], strict=True))
    given = []
    for rank in range(5):
        torch.manual_seed(rank)
        given.append([(8 * torch.randn(length)).to(dtype) for _ in range(3)])
    for number, total in enumerate(found[0]):
        whole = torch.stack([rows[number].double() for rows in given]).sum(0)
        torch.testing.assert_close(total.double(), whole, rtol=2e-2, atol=2e-1)


def test_buffers_that_nobody_waits_for_are_let_go(monkeypatch):
    monkeypatch.setattr(shared, "_MANY", 4)

    def run(rank: int) -> int:
        comm = connect("shm")
        buffers = []
        for number in range(40):
            received, _ = exchange(comm, 2, float(number))
            buffers.append(weakref.ref(received.untyped_storage()))
            comm.barrier()
        del received
        return sum(buffer() is not None for buffer in buffers)

    assert max(run_ranks(run, 2)) <= 8


def test_what_is_dropped_is_never_written_to():
    """The memory of a buffer that nobody has any more stays until it has been read into."""

    def run(rank: int) -> None:
        comm = connect("shm")
        received, pending = exchange(comm, 1000, 1.0)
        del received, pending
        others = [torch.zeros(3000, 3) for _ in range(8)]
        comm.barrier()
        later, pending = exchange(comm, 5, 2.0)
        pending.wait()
        torch.testing.assert_close(later, expected(comm, 5, 2.0))
        assert not any(other.any() for other in others)

    run_ranks(run, 2)


def test_threads_of_a_rank():
    """Each with a communicator of its own: what one reads may be what the other waits for."""

    def run(rank: int) -> None:
        comm = connect("shm")
        pair = [comm, comm.apart()]
        wrong: list[int] = []

        def work(which: int) -> None:
            for number in range(200):
                received, pending = exchange(pair[which], 4, number + 0.5 * which)
                pending.wait()
                if not torch.equal(received, expected(comm, 4, number + 0.5 * which)):
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    run_ranks(run, 2)


def test_other_sizes_than_expected():
    def run(rank: int) -> str:
        comm = connect("shm")
        counts = RowCounts([0, 3], [0, 3], 3) if rank == 0 else RowCounts([2, 0], [3, 0], 3)
        send, received = torch.zeros(counts.sent, 2), torch.zeros(3, 2)
        try:
            comm.alltoallv(send, received, counts).wait()
        except CommunicationError as error:
            return str(error)
        return ""

    first, second = run_ranks(run, 2)
    assert "ranks do not agree on alltoallv" in first
    assert "data of another size arrived" in first
    assert not second


def kind(rank: int) -> str:
    comm = connect()
    comm.barrier()
    return type(comm).__name__


def test_auto_shares_where_it_can():
    assert run_ranks(kind, 2) == ["SharedCommunicator"] * 2
    assert run_ranks(kind, 2, backend="gloo") == ["TorchCommunicator"] * 2


def test_ranks_of_several_machines(monkeypatch, capfd):
    """Auto takes sockets; shm is refused."""
    monkeypatch.setattr(shared, "_machine", os.getpid)
    assert run_ranks(kind, 3) == ["TorchCommunicator"] * 3
    with pytest.raises(RuntimeError, match="a rank failed"):
        run_ranks(kind, 3, backend="shm")
    assert "--backend shm: the ranks are not all on one machine" in capfd.readouterr().err


def test_limit_of_addresses(tmp_path):
    """Auto says why it takes gloo, and shm is refused by the limit's name."""

    def limited(backend: str) -> str:
        limit = 100 << 30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return type(connect(backend)).__name__

    said = (
        "every rank needs 128 GiB of addresses, of which only what is used takes memory, and ulim"
    )
    body = lambda: print(limited("auto"))  # noqa: E731
    ended = Forked(lambda: launch(body, 2), tmp_path).wait()
    assert (ended.status, ended.out) == (0, "TorchCommunicator\n" * 2)
    assert ended.err.startswith(f"note: --backend auto takes gloo: {said}")
    assert ended.err.count("\n") == 1
    ended = Forked(lambda: launch(lambda: limited("shm") and None, 2), tmp_path).wait()
    assert ended.status == 1
    assert f"--backend shm: {said}it -v of some rank allows less; use --backend gloo" in ended.err


def test_memory_that_cannot_be_had(monkeypatch, capfd):
    """As where a rank may not look into another's files: nobody shares."""

    class Shy(Endpoint):
        def meet(self, rank: int, process: int, file: int, token: int) -> bool:
            return super().meet(rank, process, file, token + (rank == 2))

    monkeypatch.setattr(shared, "Endpoint", Shy)
    assert run_ranks(kind, 3) == ["TorchCommunicator"] * 3
    said = (
        "note: --backend auto takes gloo: the ranks cannot find each other's memory through /proc"
    )
    assert said in capfd.readouterr().err
