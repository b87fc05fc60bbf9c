"""Under MPI every rank of a group tells the next one of its calls, which compares them."""

from __future__ import annotations

from collections import deque
from typing import Any

from mpi4py import MPI

from spgnn.comm.job import Call, CommunicationError, Farewells, Group

_CALL = 1  # tag; a communicator's data have another


class CallRing:
    """What the rank before in the group tells, and what the next one is told."""

    def __init__(self, comm: Any, group: Group) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()
        self._comm = comm
        self._group = group
        self._rank, self._before, self._after = rank, (rank - 1) % size, (rank + 1) % size
        self._ours: deque[bytes] = deque()  # not yet compared
        self._told: deque[tuple[Any, bytes]] = deque()  # on their way
        self._heard = 0

    def tell(self, call: Call) -> None:
        """A call of the group begins on this rank."""
        words = f"{call.number} {call.what}".encode()
        self._ours.append(words)
        self._told.append((self._comm.Isend([words, MPI.BYTE], self._after, _CALL), words))
        self._has_told()

    def compare(self) -> None:
        """Compare this rank's calls with what the one before has told so far.

        Raises
        ------
        CommunicationError
            If they differ.
        """
        while self._ours:
            theirs = self._hear()
            if theirs is None:
                return
            ours = self._ours.popleft()
            if theirs != ours:
                number, what = ours.decode().split(" ", 1)
                other = theirs.decode().split(" ", 1)[1]
                ranks = self._group.ranks
                raise CommunicationError(
                    f"ranks do not agree on call {number} of group {self._group.name}: {other} on "
                    f"rank {ranks[self._before]}; {what} on rank {ranks[self._rank]}"
                )

    def has_compared(self) -> bool:
        """Whether all calls of this rank are compared by now."""
        self.compare()
        return not self._ours

    def is_silent(self, farewells: Farewells) -> bool:
        """Whether nothing is on its way to or from this rank any more, now that all have ended."""
        self.compare()
        if not self._ours:
            while self._hear() is not None:
                """A call that this rank never made; the one before has not waited for it."""
        said = farewells.begun(self._group.ranks[self._before], self._group.key)
        return self._has_told() and self._heard == said

    def _hear(self) -> bytes | None:
        status = MPI.Status()
        if not self._comm.Iprobe(self._before, _CALL, status):
            return None
        words = bytearray(status.Get_count(MPI.BYTE))
        self._comm.Recv([words, MPI.BYTE], self._before, _CALL)
        self._heard += 1
        return bytes(words)

    def _has_told(self) -> bool:
        while self._told and self._told[0][0].Test():
            self._told.popleft()
        return not self._told
