"""Ranks that do not do the same: each way, and what rank 1 does while the others do as usual."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch

from spgnn.comm import Communicator, RowCounts, connect, guarded


def all_reduce(comm: Communicator, numbers: int = 4) -> None:
    comm.all_reduce(torch.ones(numbers)).wait()


def alltoallv(
    comm: Communicator, width: int = 4, dtype: torch.dtype = torch.float32, rows: int = 2
) -> None:
    counts = RowCounts([rows] * comm.size, [2] * comm.size, 2)
    send = torch.ones(counts.sent, width, dtype=dtype)
    comm.alltoallv(send, torch.empty(counts.received, width, dtype=dtype), counts).wait()


def broadcast(comm: Communicator, root: int = 0, numbers: int = 4) -> None:
    comm.broadcast(torch.ones(numbers), root).wait()


Deed = Callable[[Communicator], None]

# What the others do, what rank 1 does, and words of the line that a debug communicator ends with.
QUARRELS: dict[str, tuple[Deed, Deed, list[str]]] = {
    "sizes": (
        all_reduce,
        lambda comm: all_reduce(comm, 8),
        [
            "all_reduce(torch.float32 [4], sum) on rank",
            "all_reduce(torch.float32 [8], sum) on rank 1",
        ],
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


def fall_out(how: str, backend: str = "auto") -> int:
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
        else:
            usual, different, _ = QUARRELS[how]
            (different if comm.rank == 1 else usual)(comm)
    return 0


if __name__ == "__main__":
    sys.exit(fall_out(*sys.argv[1:]))
