"""A job in which one rank fails: what the tests of failures start under every launcher."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from spgnn import InputError
from spgnn.comm import Communicator, Pending, RowCounts, connect, guarded

MESSAGE = "the seventh bridge is missing"


def run(directory: Path, how: str, where: str, victim: int, backend: str = "auto") -> int:
    """One rank: rank `victim` fails in the way `how` while all others are busy in `where`.

    `how` is input, error, unguarded (an error that only `connect` sees to) or kill; `where` is
    collective, computing or sleeping, or exchanging: then long exchanges are under way, of which
    the victim has begun the first, and the others compute before they wait.

    Every rank leaves its process id in ``directory/RANK``; the victim leaves the time on the
    machine's monotonic clock in ``directory/failed`` as its last deed.
    """
    torch.set_num_threads(1)
    comm = connect(backend)
    with nullcontext() if how == "unguarded" else guarded(comm):
        aside = directory / f".{comm.rank}"
        aside.write_text(str(os.getpid()))
        aside.rename(directory / str(comm.rank))
        comm.barrier()
        under_way = [exchange(comm)] if where == "exchanging" else []
        if comm.rank == victim:
            (directory / "failed").write_text(str(time.monotonic()))
            _fail(how)
        if under_way:
            under_way.append(exchange(comm))
            torch.ones(200, 200) @ torch.ones(200, 200)
            under_way.pop().wait()
        _be_busy(comm, where)
    return 0


def exchange(comm: Communicator) -> Pending:
    """Begin an all-to-all of more than transports send before it is asked for."""
    counts = RowCounts([50_000] * comm.size, [50_000] * comm.size, 50_000)
    return comm.alltoallv(torch.ones(counts.sent), torch.empty(counts.received), counts)


def _fail(how: str) -> None:
    if how == "input":
        raise InputError(MESSAGE)
    if how in ("error", "unguarded"):
        raise LookupError(MESSAGE)
    os.kill(os.getpid(), signal.SIGKILL)


def _be_busy(comm: Communicator, where: str) -> None:
    while True:
        if where == "collective":
            comm.barrier()
        elif where == "sleeping":
            time.sleep(1000)
        else:
            torch.ones(200, 200) @ torch.ones(200, 200)


if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    sys.exit(run(Path(folder), rest[0], rest[1], int(rest[2])))
