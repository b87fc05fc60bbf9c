"""Jobs that end while something is on its way: what the tests of ends start under a launcher."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

from spgnn.comm import Communicator, connect, guarded
from tests.comm.failing import exchange

LONG = "a call with a name that MPI does not send before somebody receives it " * 3000


def tell(comm: Communicator) -> None:
    """What this rank tells of its calls is compared only in the end; rank 1 is late with it."""
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


def do_both(comm: Communicator) -> None:
    """Begin, and tell of more."""
    begin(comm)
    tell(comm)


WAYS: dict[str, Callable[[Communicator], None]] = {
    "told": tell,
    "begun": begin,
    "begun and told": do_both,
    "begun alone": lambda comm: begin(comm, alone=True),
}


def run(how: str, end: str, backend: str = "auto") -> int:
    """One rank: it does something and then ends; `end` is close or exit."""
    torch.set_num_threads(1)
    comm = connect(backend)
    with guarded(comm) if end == "close" else nullcontext():
        WAYS[how](comm)
    return 0


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
