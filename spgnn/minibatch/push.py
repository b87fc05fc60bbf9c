"""Rows that are sent to whoever may need them, some iterations before they are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, Pending, RowCounts
from spgnn.errors import InputError, check_integer
from spgnn.layout import Int64Array
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.facts import as_dtype

Made = tuple[Tensor, Tensor]
"""Own rows of A, counted from the first, and what a layer made of them [rows, f]."""
_ID_BYTES = 4


@dataclass(eq=False)
class _Flight:
    """What was made in one iteration, on its way."""

    made: int
    parcels: list[Tensor]
    send: Tensor
    recv: Tensor
    told: Pending
    landing: list[Tensor] = field(default_factory=list)
    arriving: list[Pending] = field(default_factory=list)


class Push:
    """Rows of iteration k are with the peers from iteration k + delay on; nobody waits for them.

    The asynchronous embedding push of DistGNN-MB (Vasimuddin et al. 2022). Of the rows that an
    iteration made, each peer gets those that are in its halo, at most so many a layer, those of
    highest degree first. Unlike there, a peer does not get a row again for some iterations, which
    leaves room for others. Each iteration is one :meth:`arrived` and one :meth:`begin`, on all
    ranks.

    Parameters
    ----------
    boundary : Boundary
    widths : sequence of int
        Columns of each layer whose rows are pushed.
    dtype : torch.dtype
    delay : int
        At least 1.
    most : int
        Rows a peer, layer and iteration.
    degrees : Tensor [own rows]
    pause : int
        A row is sent to a peer again after so many iterations at the earliest.
    comm : Communicator
        All ranks.

    Attributes
    ----------
    sent_bytes, received_bytes : int
    """

    def __init__(
        self,
        boundary: Boundary,
        widths: Sequence[int],
        dtype: torch.dtype,
        *,
        delay: int,
        most: int,
        degrees: Tensor,
        comm: Communicator,
        pause: int = 1,
    ) -> None:
        self.delay = check_integer("delay", delay, 1)
        most, self._pause = check_integer("push", most, 0), check_integer("pause", pause, 1)
        self._boundary, self._comm = boundary, comm
        self._widths, self._dtype = list(widths), dtype
        self._row_bytes = [_ID_BYTES + width * dtype.itemsize for width in widths]
        # All ranks know it, so nobody has to ask how many rounds an exchange takes.
        self._most = min(most, boundary.counts.largest)
        self._flights: deque[_Flight] = deque()
        self.sent_bytes = self.received_bytes = 0
        begins = boundary.sent_begins
        peers = np.repeat(np.arange(comm.size), boundary.counts.send)
        order = np.lexsort((-degrees.numpy()[boundary.sent.numpy()], peers))
        # Those that are to be sent, in the order in which they are: by peer, then by degree.
        self._wanted = boundary.sent[torch.from_numpy(order)]
        self._numbers = torch.from_numpy((order - begins[peers]).astype(np.int32))
        self._begins = torch.from_numpy(begins)
        self._peers = torch.from_numpy(peers)
        self._sent = torch.full((len(self._widths), len(peers)), -self._pause)

    def begin(self, made: int, rows: Sequence[Made]) -> None:
        """Send what an iteration made, one layer after the other. Collective.

        Parameters
        ----------
        made : int
            The iteration; rises from call to call.
        rows : sequence of (Tensor int64 [m], Tensor [m, f])
            Own rows that each layer made, and their contents; empty if this rank has no batch.

        Raises
        ------
        InputError
            If there are not as many layers, or rows of another width.
        """
        if [tuple(r.shape[1:]) for _, r in rows] != [(width,) for width in self._widths]:
            raise InputError(
                f"push: rows of widths {[tuple(r.shape[1:]) for _, r in rows]}, not {self._widths}"
            )
        send = torch.zeros(self._comm.size, len(rows), dtype=torch.int64)
        parcels = []
        for layer, layer_rows in enumerate(rows):
            parcel, counts = self._packed(made, self._sent[layer], *layer_rows)
            parcels.append(parcel)
            send[:, layer] = counts
        recv = torch.empty_like(send)
        ones = RowCounts([1] * self._comm.size, [1] * self._comm.size, 1)
        told = self._comm.alltoallv(send, recv, ones)
        self._count(send[:, :0].new_ones(self._comm.size), None, 8 * len(rows))
        self._flights.append(_Flight(made, parcels, send, recv, told))

    def arrived(self, now: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """What may be used from iteration `now` on, oldest first. Collective.

        Yields
        ------
        layer, made : int
        halo : Tensor int64 [k]
            Rows of this rank's halo.
        rows : Tensor [k, f]
        """
        for flight in self._flights:
            if flight.made < now and not flight.landing:
                self._depart(flight)
        while self._flights and self._flights[0].made + self.delay <= now:
            flight = self._flights.popleft()
            for layer, pending in enumerate(flight.arriving):
                pending.wait()
                yield layer, flight.made, *self._unpacked(flight, layer)

    def drain(self) -> None:
        """Wait for what is still on its way, and forget it. Collective."""
        for _ in self.arrived(2**62):
            pass

    def _packed(
        self, now: int, sent: Tensor, vertices: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bytes of the rows for all peers, each after its number in the halo; rows a peer."""
        place = torch.full((self._boundary.own,), -1)
        place[vertices] = torch.arange(len(vertices))
        there = place[self._wanted]
        due = (there >= 0) & (now - sent >= self._pause)
        before = torch.zeros(len(there) + 1, dtype=torch.int64)
        torch.cumsum(due, 0, out=before[1:])
        turn = before[:-1] - before[self._begins][self._peers]
        chosen = (due & (turn < self._most)).nonzero()[:, 0]
        sent[chosen] = now
        counts = torch.bincount(self._peers[chosen], minlength=self._comm.size)
        contents = rows.detach().to(self._dtype)[there[chosen]]
        numbers = self._numbers[chosen][:, None]
        return torch.cat((_bytes_of(numbers), _bytes_of(contents)), 1), counts

    def _depart(self, flight: _Flight) -> None:
        """Peers know by now how many rows they will get."""
        flight.told.wait()
        for layer, parcel in enumerate(flight.parcels):
            counts = RowCounts(
                flight.send[:, layer].numpy(), flight.recv[:, layer].numpy(), self._most
            )
            landing = parcel.new_empty(counts.received, parcel.shape[1])
            flight.arriving.append(self._comm.alltoallv(parcel, landing, counts))
            flight.landing.append(landing)
            self._count(flight.send[:, layer], flight.recv[:, layer], self._row_bytes[layer])

    def _unpacked(self, flight: _Flight, layer: int) -> tuple[Tensor, Tensor]:
        landing = flight.landing[layer]
        begins: Int64Array = self._boundary.halo_begins
        first = torch.from_numpy(begins).repeat_interleave(flight.recv[:, layer])
        numbers = as_dtype(landing[:, :_ID_BYTES], torch.int32)[:, 0]
        rows = as_dtype(landing[:, _ID_BYTES:], self._dtype)
        return first + numbers, rows.view(len(numbers), self._widths[layer])

    def _count(self, send: Tensor, recv: Tensor | None, row_bytes: int) -> None:
        me = self._comm.rank
        recv = send if recv is None else recv
        self.sent_bytes += int(send.sum() - send[me]) * row_bytes
        self.received_bytes += int(recv.sum() - recv[me]) * row_bytes


def _bytes_of(rows: Tensor) -> Tensor:
    """[n, f] of any dtype as bytes [n, f · itemsize]."""
    return rows.contiguous().view(torch.uint8)
