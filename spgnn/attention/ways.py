"""Rows of attention on their way: destinations to where their sources are, and softmaxes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention.pieces import Partials
from spgnn.comm import Communicator
from spgnn.exchange import Carried, Step
from spgnn.exchange.plan import Route
from spgnn.exchange.transport import Handle, Transport
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import CSR, SUM_DTYPE

ROWS, ENDS, LATE = range(3)
"""Codecs of a way: of weighed rows, of whole destinations, and of what is late with rows."""


class Load(NamedTuple):
    """What travels of each row.

    Attributes
    ----------
    rows : Tensor [n, heads * channels], optional
        What a codec may approximate.
    now : tensors [n, heads]
        Of scores: always as they are, and of this step.
    late : tensors [n, heads]
        As they are, and of the step that the rows are of.
    """

    rows: Tensor | None
    now: tuple[Tensor, ...] = ()
    late: tuple[Tensor, ...] = ()

    def at(self, places: Tensor) -> Load:
        """Listed rows."""
        rows = None if self.rows is None else self.rows.index_select(0, places)
        now, late = (
            tuple(each.index_select(0, places) for each in some) for some in (self.now, self.late)
        )
        return Load(rows, now, late)

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [*(() if self.rows is None else (self.rows,)), *self.now, *self.late]


class Sent:
    """Rows on their way to this rank, while its own are on theirs.

    Parameters
    ----------
    flights : sequence of Handle
    arrived : callable
        What then is there, tensor by tensor.
    leaving : sequence of Tensor
        Kept until all have arrived.
    """

    def __init__(
        self,
        flights: Sequence[Handle],
        arrived: Callable[[], list[Tensor]],
        leaving: Sequence[Tensor],
    ) -> None:
        self._flights, self._arrived, self._leaving = flights, arrived, leaving

    def wait(self) -> list[Tensor]:
        """The tensors of the load, of the rows that arrived [received, …]."""
        for flight in self._flights:
            flight.wait()
        return self._arrived()


class Way:
    """The way of partial softmaxes, in both directions.

    Parameters
    ----------
    partials : Partials
    comm : Communicator
        Of its axis.
    codecs : mapping from `ROWS`, `ENDS` and `LATE` to Transport, optional
        Without, all that belongs to a row travels together, as it is.
    first : int
        What the first of these codecs is called in a step.
    """

    def __init__(
        self,
        partials: Partials,
        comm: Communicator,
        codecs: Mapping[int, Transport] | None = None,
        first: int = 0,
    ) -> None:
        self.partials = partials
        self._comm, self._codecs, self._first = comm, codecs, first
        self._adding = CSR(partials.received)
        there = partials.route
        self._routes = there, there.reversed()

    def there(self, load: Load, step: Step) -> Sent:
        """Start sending what belongs to the partials this rank made to where their rows are."""
        return self._sent(load, self._routes[0], self._line(step, back=False), step)

    def back(self, load: Load, step: Step) -> Sent:
        """Start sending rows of this rank [rows, …] to all who make partials of them."""
        load = load.at(self.partials.places)
        return self._sent(load, self._routes[1], self._line(step, back=True), step)

    def add_(self, rows: Tensor, arrived: Tensor) -> Tensor:
        """Add what arrived from *there* to the rows it belongs to, in place."""
        if arrived.numel():
            kernels.spmm(self._adding, arrived, out=rows, accumulate=True)
        return rows

    def carried(
        self, width: int, heads: int, dtype: torch.dtype, step: Step, *, whole_rows: bool
    ) -> Iterator[Carried]:
        """What the two exchanges of a step move; arguments as of :meth:`Pieces.messages`."""
        for back in (True, False):
            route, line = self._routes[back], self._line(step, back=back)
            rows = width if line == ROWS or whole_rows else 0
            now = 0 if line == ENDS and whole_rows else heads
            late = heads if line == ROWS and step.adjoint else 0
            counts, wide = route.counts, SUM_DTYPE[dtype]
            sent, received = (n * (now * wide.itemsize) for n in (counts.send, counts.recv))
            for columns, kind, which in ((rows, dtype, line), (late, wide, LATE)):
                if self._codecs is None or not columns:
                    row_bytes = columns * kind.itemsize
                    moved = counts.send * row_bytes, counts.recv * row_bytes
                else:
                    at = step.at(self._first + which)
                    moved = self._codecs[which].bytes(route, columns, kind, at)
                sent, received = sent + moved[0], received + moved[1]
            yield Carried(self.partials.axis, sent, received)

    @staticmethod
    def _line(step: Step, *, back: bool) -> int:
        """Which codec: what goes there in a step returns in its adjoint."""
        return ROWS if back == step.adjoint else ENDS

    def _sent(self, load: Load, route: Route, line: int, step: Step) -> Sent:
        if self._codecs is None:
            return self._together(load.tensors, route)
        parts = []
        if load.rows is not None:
            parts.append(self._on_wire(load.rows, route, line, step))
        if load.now:
            parts.append(self._together(load.now, route))
        for each in load.late:
            parts.append(self._on_wire(each, route, LATE, step))
        return Sent((), lambda: [tensor for part in parts for tensor in part.wait()], ())

    def _together(self, tensors: Sequence[Tensor], route: Route) -> Sent:
        """As they are, side by side."""
        leaving = packed(*tensors)
        arriving = new_rows(route.counts.received, leaving)
        flight = self._comm.alltoallv(leaving, arriving, route.counts)
        return Sent((flight,), lambda: unpacked(arriving, tensors), (leaving,))

    def _on_wire(self, rows: Tensor, route: Route, which: int, step: Step) -> Sent:
        assert self._codecs is not None
        rows = rows.contiguous()
        arriving, at = new_rows(route.counts.received, rows), step.at(self._first + which)
        flight = self._codecs[which].begin(rows, arriving, route, self._comm, at)
        return Sent((flight,), lambda: [arriving], (rows,))


def packed(first: Tensor, *others: Tensor) -> Tensor:
    """Rows [n, f] with the bits of what has another dtype beside them, to travel as one."""
    if not others:
        return first.contiguous()
    return torch.cat((first, *(each.contiguous().view(first.dtype) for each in others)), 1)


def unpacked(together: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """What lies side by side, with the widths and dtypes of others, of which there may be more."""
    widths = [each.shape[1] * each.dtype.itemsize // together.dtype.itemsize for each in like]
    parts = zip(together.split(widths, 1), like, strict=True)
    return [part.contiguous().view(each.dtype) for part, each in parts]
