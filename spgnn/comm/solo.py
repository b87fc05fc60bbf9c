"""One rank alone: every exchange is a copy to itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from torch import Tensor

from spgnn.comm.base import Communicator, Ledger, Reduction, RowCounts


class SoloCommunicator(Communicator):
    """The communicator of a single rank, of a whole job or of a subgroup; needs no backend."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        super().__init__(rank=0, size=1, ledger=ledger)

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Callable[[], None]:
        recv.copy_(send)
        return _done

    def _broadcast(self, buffer: Tensor, root: int) -> Callable[[], None]:
        return _done

    def _reduce(self, buffer: Tensor, root: int) -> Callable[[], None]:
        return _done

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Callable[[], None]:
        return _done

    def _send(self, buffer: Tensor, peer: int) -> Callable[[], None]:
        raise AssertionError("a single rank has no peer")

    _receive = _send

    def barrier(self) -> None:
        """Nobody to wait for."""

    def subgroup(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """The only subgroup of one rank is itself."""
        return self

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """Print the message and exit."""
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(status)


def _done() -> None:
    return None
