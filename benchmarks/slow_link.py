"""A link between ranks that is as slow as one wants."""

from __future__ import annotations

import time

from torch import Tensor

from spgnn.comm import (
    Communicator,
)
from spgnn.comm.communicator import Reduction, Wait
from spgnn.comm.failure import Call, Group
from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError


def throttled(comm: Communicator, gigabits: float, latency: float = 0.0) -> Throttled:
    """The same ranks behind a slow network: their all-to-alls take as long as it would need.

    Each rank has one link, which all subgroups made of the result share. It carries an all-to-all
    after the other, both ways at once, and each ends no earlier than its bytes, without those for
    the rank itself, need from when they can begin. Meanwhile the transport moves them as ever, and
    whoever waits sleeps. Other operations are as fast as before.

    Parameters
    ----------
    comm : Communicator
        Of any backend.
    gigabits : float
        Per second, in each direction.
    latency : float
        Seconds from the last byte of an all-to-all to its end; the link is free meanwhile.

    Raises
    ------
    InputError
        If there is no such link.
    """
    if not (gigabits > 0 and latency >= 0):
        raise InputError(
            f"a link of {gigabits:g} Gb/s and {latency:g} s: the rate must be above 0, the latency "
            "0 or more"
        )
    return Throttled(comm, _Link(gigabits * 1e9 / 8, latency))


class _Link:
    """When what is handed to it has arrived."""

    def __init__(self, rate: float, latency: float) -> None:
        self._rate, self._latency = rate, latency
        self._free = self.busy = 0.0

    def arrival(self, nbytes: int) -> float:
        """The time, on the monotonic clock, before which so many bytes cannot be there."""
        self._free = max(self._free, time.monotonic()) + nbytes / self._rate
        self.busy += nbytes / self._rate
        return self._free + self._latency


class Throttled(Communicator):
    """Has another communicator do everything, and lets no all-to-all end too early."""

    def __init__(self, inner: Communicator, link: _Link) -> None:
        super().__init__(inner.rank, inner.job, inner.group)
        self.moves_cuda = inner.moves_cuda
        self._inner, self._link = inner, link

    @property
    def link_seconds(self) -> float:
        """For how long this rank's link has been busy, or will have been, since it was made."""
        return self._link.busy

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        sent = counts.sent - counts.send_list[self.rank]
        received = counts.received - counts.recv_list[self.rank]
        row_bytes = max(send.shape[1], recv.shape[1])  # without rows a buffer has no width
        arrival = self._link.arrival(max(sent, received) * row_bytes)
        wait = self._inner._alltoallv(send, recv, counts)

        def finish() -> None:
            wait()
            while (left := arrival - time.monotonic()) > 0:
                time.sleep(left)

        return finish

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        return self._inner._broadcast(buffer, root)

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        return self._inner._reduce(buffer, root)

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        return self._inner._all_reduce(buffer, op)

    def _split(self, group: Group) -> Communicator:
        part = self._inner._split(group)
        return part if part.size == 1 else Throttled(part, self._link)

    def _announce(self, call: Call) -> None:
        self._inner._announce(call)

    def _translated(self, error: Exception) -> Exception:
        return self._inner._translated(error)
