"""Programs of jobs that end badly, or with something under way; tests start them everywhere.

``python -m tests.comm.misbehaving fail|end|quarrel …``
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from spgnn import InputError
from spgnn.comm import Communicator, connect, guarded
from spgnn.comm.communicator import Pending
from spgnn.comm.traffic import RowCounts
from tests.comm.jobs import announce

MESSAGE = "the seventh bridge is missing"
LONG = "a call with a name that MPI does not send before somebody receives it " * 3000


def exchange(comm: Communicator) -> Pending:
    """Begin an all-to-all of more than transports send before it is asked for."""
    counts = RowCounts([50_000] * comm.size, [50_000] * comm.size, 50_000)
    return comm.alltoallv(torch.ones(counts.sent), torch.empty(counts.received), counts)


def fail(directory: Path, how: str, where: str, victim: int, backend: str = "auto") -> int:
    """Rank `victim` fails in the way `how` while all others are busy in `where`.

    `how` is input, error, unguarded (an error that only `connect` sees to) or kill; `where` is
    collective, computing or sleeping, or exchanging: then long exchanges are under way, of which
    the victim has begun the first, and the others compute before they wait.

    Every rank leaves its process id in ``directory/RANK``; the victim leaves the time on the
    machine's monotonic clock in ``directory/failed`` as its last deed.
    """
    torch.set_num_threads(1)
    comm = connect(backend)
    with nullcontext() if how == "unguarded" else guarded(comm):
        announce(directory / str(comm.rank), str(os.getpid()))
        comm.barrier()
        under_way = [exchange(comm)] if where == "exchanging" else []
        if comm.rank == victim:
            (directory / "failed").write_text(str(time.monotonic()))
            if how == "input":
                raise InputError(MESSAGE)
            if how in ("error", "unguarded"):
                raise LookupError(MESSAGE)
            os.kill(os.getpid(), signal.SIGKILL)
        if under_way:
            under_way.append(exchange(comm))
            torch.ones(200, 200) @ torch.ones(200, 200)
            under_way.pop().wait()
        while True:
            if where == "collective":
                comm.barrier()
            elif where == "sleeping":
                time.sleep(1000)
            else:
                torch.ones(200, 200) @ torch.ones(200, 200)
    return 0


def call(comm: Communicator) -> None:
    """Calls are compared with those of the next rank only in the end; rank 1 is late with them."""
    if comm.rank == 1:
        time.sleep(0.3)
    for _ in range(20):
        comm._next_call(LONG)


def begin(comm: Communicator, *, alone: bool = False) -> None:
    """Long exchanges, of all and of a pair, that nobody waits for, or that rank 0 begins alone."""
    pair = comm.subgroup([[0, 1], range(2, comm.size)][: 1 + (comm.size > 2)], name="pair")
    for part in (comm, pair, comm):
        if comm.rank == 0 or not alone:
            exchange(part)


def end(how: str, way: str, backend: str = "auto") -> int:
    """Call, begin, both, or begin alone; then end by close, or by exit."""
    torch.set_num_threads(1)
    comm = connect(backend)
    with guarded(comm) if way == "close" else nullcontext():
        if "begun" in how:
            begin(comm, alone="alone" in how)
        if "called" in how:
            call(comm)
    return 0


def all_reduce(comm: Communicator, numbers: int = 4) -> None:
    comm.all_reduce(torch.ones(numbers)).wait()


def alltoallv(
    comm: Communicator, width: int = 4, dtype: torch.dtype = torch.float32, rows: int = 2
) -> None:
    counts = RowCounts([rows] * comm.size, [2] * comm.size, 2)
    send = torch.ones(counts.sent, width, dtype=dtype)
    comm.alltoallv(send, torch.empty(counts.received, width, dtype=dtype), counts).wait()


def broadcast(comm: Communicator, root: int = 0) -> None:
    comm.broadcast(torch.ones(4), root).wait()


Deed = Callable[[Communicator], None]
# What the others do, what rank 1 does, and words of the line that a debug communicator ends with.
QUARRELS: dict[str, tuple[Deed, Deed, list[str]]] = {
    "sizes": (
        all_reduce,
        lambda comm: all_reduce(comm, 8),
        ["all_reduce(torch.float32 [4], sum) on rank", "[8], sum) on rank 1"],
    ),
    "widths": (
        alltoallv,
        lambda comm: alltoallv(comm, 8),
        ["16 bytes a row) on rank", "32 bytes a row) on rank 1"],
    ),
    "dtypes": (
        alltoallv,
        lambda comm: alltoallv(comm, 2, torch.float64),
        ["torch.float32", "torch.float64, 16 bytes a row) on rank 1"],
    ),
    "roots": (broadcast, lambda comm: broadcast(comm, 1), ["from 0) on", "from 1) on rank 1"]),
    "operations": (all_reduce, alltoallv, ["all_reduce(", "alltoallv("]),
}


def quarrel(how: str, backend: str = "auto") -> int:
    """A job of which rank 1 deviates after a while."""
    torch.set_num_threads(1)
    comm = connect(backend)
    with guarded(comm):
        all_reduce(comm)
        if how == "exit":
            if comm.rank == 1:
                sys.exit(0)
            all_reduce(comm)
        elif how == "fewer":
            for _ in range(2 if comm.rank == 1 else 3):
                all_reduce(comm)
        elif how == "fewer in a group":
            pair = comm.subgroup([[0, 1], [2]], name="pair")
            if comm.rank == 0:
                all_reduce(pair)
        elif how == "silence":
            comm.settled()
            if comm.rank != 1:
                all_reduce(comm)
            else:
                os.read(os.pipe()[0], 1)
        elif how == "another group":
            pair = comm.subgroup([[0, 1], [2]], name="pair")
            comm.settled()
            if comm.rank == 1:
                comm.job.timeout = 60.0
                all_reduce(pair)
            all_reduce(comm)
        else:
            usual, different, _ = QUARRELS[how]
            (different if comm.rank == 1 else usual)(comm)
    return 0


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "fail":
        sys.exit(fail(Path(rest[0]), rest[1], rest[2], int(rest[3])))
    sys.exit({"end": end, "quarrel": quarrel}[what](*rest))
