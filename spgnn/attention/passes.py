"""Attention over blocks and exchanges, forward and backward, with the exchanges overlapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention.pieces import Partials, Pieces
from spgnn.attention.scores import (
    NOTHING,
    Block,
    Blocks,
    Forward,
    Gradients,
    Kept,
    Rate,
    Scores,
    Whole,
    merge_partials_,
)
from spgnn.comm import Communicator
from spgnn.exchange import Carried, Step
from spgnn.exchange.executor import Arriving, Exchange
from spgnn.exchange.plan import Route
from spgnn.exchange.transport import Handle, Transport
from spgnn.kernels.attention import AttentionState, finish, head_products
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import CSR, SUM_DTYPE

ROWS, ENDS, LATE = range(3)
"""Codecs of a way: of weighed rows, of whole destinations, and of what is late with rows."""


class Load(NamedTuple):
    """Parts of each row that travel.

    Attributes
    ----------
    rows : Tensor [n, heads * channels], optional
        Those that a codec may approximate.
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
        """Messages of both exchanges of a step; arguments as of :meth:`Pieces.messages`."""
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
        """The codec's number: rows that leave in a step return in its adjoint."""
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
    """Rows [n, f] with the bits of tensors of other dtypes next to them, to travel as one."""
    if not others:
        return first.contiguous()
    return torch.cat((first, *(each.contiguous().view(first.dtype) for each in others)), 1)


def unpacked(together: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split packed columns into tensors of the widths and dtypes of `like`; rows may be more."""
    widths = [each.shape[1] * each.dtype.itemsize // together.dtype.itemsize for each in like]
    parts = zip(together.split(widths, 1), like, strict=True)
    return [part.contiguous().view(each.dtype) for part, each in parts]


EdgeParts = tuple[Tensor | None, Tensor | None]
"""What edges have, for those of the local block and for those of fetched sources."""


class Pass:
    """One layer of attention, through exchanges that are given.

    Parameters
    ----------
    pieces : Pieces
    exchange : Exchange, optional
        What fetches sources.
    sums, fold : Way, optional
        Of partial softmaxes.
    log_share : float
        If sources and partials are a sample: logarithm of the share p of all that they are. The
        weight of each is 1/p times as large then.
    """

    def __init__(
        self,
        pieces: Pieces,
        exchange: Exchange | None,
        sums: Way | None,
        fold: Way | None,
        log_share: float = 0.0,
    ) -> None:
        self.pieces, self.exchange = pieces, exchange
        self.sums, self.fold = sums, fold
        self._log_share = log_share

    def forward(
        self,
        Z: Tensor,
        ends: Tensor,
        scores: Scores,
        step: Step,
        *,
        edges: EdgeParts,
        rate: Rate | None,
        gradients: bool,
    ) -> Forward:
        """Weighted sums of rows of Z; as of :meth:`Attention.forward`. Collective."""
        parts, dropped = self.pieces, Blocks.of(rate)
        arriving, partials = self._begin(Z, step, gradients), None
        asked, asked_kept = ends.new_empty(0, ends.shape[1]), _kept(None, Z, scores)
        gathered = asked.clone()
        try:
            if self.fold is not None:
                ends = gathered = self.everywhere(_of_ends(ends, scores), step)[0]
            if self.sums is not None and parts.summed is not None:
                (asked,) = self.sums.back(_of_ends(ends, scores), step).wait()
                block = Block(parts.summed, asked, Z, dropout=dropped.asked)
                made = scores.attend(block, None, gradients=gradients)
                asked_kept = _kept(made if gradients else None, Z, scores)
                means, lse = finish(made, Z.dtype)
                partials = self.sums.there(Load(means, (lse.clamp_(min=NOTHING),)), step)
            block = Block(parts.local, ends, Z, edges[0], dropped.local)
            state = scores.attend(block, None, gradients=gradients)
        finally:
            # Whatever happened here: peers write into these buffers.
            fetched = Z.new_empty(0, Z.shape[1]) if arriving is None else arriving.wait()
        if parts.remote is not None:
            block = Block(parts.remote, ends, fetched, edges[1], dropped.remote)
            # To lower what is there raises what comes.
            state = scores.attend(block, _raised_(state, self._log_share), gradients=gradients)
            state = _raised_(state, -self._log_share)
        kept = _kept(state if gradients else None, Z, scores)
        if partials is not None and self.sums is not None:
            state = self._merged(self.sums, partials, state)
        if self.fold is not None:
            state = self._folded(self.fold, state, Z, step)
        out, lse = finish(state, Z.dtype)
        if not gradients:
            fetched = Z.new_empty(0, Z.shape[1])
            gathered, asked = (ends.new_empty(0, ends.shape[1]) for _ in range(2))
        return Forward(out, lse.clamp_(min=NOTHING), kept, gathered, fetched, asked, asked_kept)

    def backward(
        self,
        G: Tensor,
        Z: Tensor,
        ends: Tensor,
        scores: Scores,
        made: Forward,
        *,
        step: Step,
        edges: EdgeParts,
        rate: Rate | None,
    ) -> tuple[Gradients, Tensor | None]:
        """Gradients in all operands, and in what edges of fetched sources have. Collective.

        Parameters
        ----------
        step : Step
            An adjoint one.
        others
            As of :meth:`Attention.backward`.
        """
        parts, dropped = self.pieces, Blocks.of(rate)
        whole = Whole(G, made.lse, head_products(G, made.out, scores.heads))
        if self.fold is not None:
            ends, whole = made.ends, self._whole_everywhere(whole, step)
        asked = None if self.sums is None else self.sums.back(_of_whole(whole), step)
        d_ends = scores.ends_gradient(made.kept, whole)
        da, returning, of_remote = torch.zeros_like(scores.a), None, None
        if parts.remote is not None and self.exchange is not None:
            block = Block(parts.remote, ends, made.fetched, edges[1], dropped.remote)
            found = scores.gradient(block, self._weighted(whole))
            returning = self.exchange.begin_adjoint(found.Z, step)
            da, of_remote, d_ends = da + found.a, found.edges, _sum(d_ends, found.ends)
        try:
            dZ, returned = None, None
            if asked is not None and self.sums is not None and parts.summed is not None:
                theirs = self._weighted(Whole(*asked.wait()))
                block = Block(parts.summed, made.asked, Z, dropout=dropped.asked)
                found = scores.gradient(block, theirs)
                of_ends = _sum(scores.ends_gradient(made.asked_kept, theirs), found.ends)
                assert of_ends is not None
                dZ, da = found.Z, da + found.a
                returned = self.sums.there(_of_ends(of_ends, scores), step)
            block = Block(parts.local, ends, Z, edges[0], dropped.local)
            found = scores.gradient(block, whole)
        finally:
            if returning is not None:
                returning.wait()
        dZ = found.Z if dZ is None else dZ.add_(found.Z)
        d_ends = _sum(d_ends, found.ends)
        assert d_ends is not None
        if returning is not None:
            returning.add_to(dZ)
        if returned is not None and self.sums is not None:
            d_ends = self.sums.add_(d_ends, *returned.wait())
        if self.fold is not None:
            d_ends = self._folded_sum(self.fold, d_ends, scores, step)
        return Gradients(dZ, d_ends, da + found.a, found.edges), of_remote

    def everywhere(
        self, load: Load, step: Step, nothing: tuple[float, ...] = (0.0, 0.0, 0.0)
    ) -> list[Tensor]:
        """Rows that this rank makes to all rows that it has a part of; adjoint of a fold.

        Collective. Of partial rows that are not in a sample there is `nothing`.
        """
        if self.fold is None:
            return load.tensors
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        arriving, everything = self.fold.back(load, step), []
        rows, known = parts.local.shape[0], len(parts.mine) + len(parts.others)
        for tensor, empty in zip(load.tensors, nothing, strict=False):
            found = tensor.new_empty(rows, *tensor.shape[1:])
            if known < rows:
                found.fill_(empty)
            found[parts.mine] = tensor
            everything.append(found)
        for found, arrived in zip(everything, arriving.wait(), strict=True):
            found[parts.others] = arrived
        return everything

    def _whole_everywhere(self, whole: Whole, step: Step) -> Whole:
        # A weight of nothing, whatever its score.
        found = Whole(*self.everywhere(_of_whole(whole), step, (0.0, -NOTHING, 0.0)))
        if self._log_share:
            found.lse[self.pieces.others] += self._log_share
        return found

    def _begin(self, Z: Tensor, step: Step, gradients: bool) -> Arriving | None:
        if self.exchange is None:
            return None
        # What gradients need is kept beyond the next exchange.
        received = Z.new_empty(self.pieces.fetched, Z.shape[1]) if gradients else None
        return self.exchange.begin(Z, step, received)

    def _weighted(self, whole: Whole) -> Whole:
        """`whole` for sources, or for partials that stand for several sources each."""
        return whole._replace(lse=whole.lse + self._log_share) if self._log_share else whole

    def _merged(self, way: Way, partials: Sent, state: AttentionState) -> AttentionState:
        means, lse = partials.wait()
        if self._log_share:
            lse = lse - self._log_share
        return merge_partials_(way.partials.received, means, lse, state)

    def _folded(self, way: Way, state: AttentionState, Z: Tensor, step: Step) -> AttentionState:
        """Of rows that several ranks have a part of, those that this rank makes."""
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        means, lse = finish(state)
        lse.clamp_(min=NOTHING)
        arriving = way.there(Load(means[parts.others].to(Z.dtype), (lse[parts.others],)), step)
        lse = lse[parts.mine]
        mine = AttentionState(lse, torch.ones_like(lse), means[parts.mine])
        return self._merged(way, arriving, mine)

    def _folded_sum(self, way: Way, rows: Tensor, scores: Scores, step: Step) -> Tensor:
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        arriving = way.there(_of_ends(rows[parts.others], scores), step)
        return way.add_(rows[parts.mine], *arriving.wait())


def _of_ends(ends: Tensor, scores: Scores) -> Load:
    """Destinations: whole rows, or a number a head."""
    return Load(ends) if scores.whole_rows else Load(None, (ends,))


def _of_whole(whole: Whole) -> Load:
    # D is a product with G: of another step it would be one of another row.
    return Load(whole.G, (whole.lse,), (whole.D,))


def _raised_(state: AttentionState, by: float) -> AttentionState:
    """The same, where all scores are compared with others that are so much larger."""
    if by:
        state.m.add_(by)
    return state


def _kept(state: AttentionState | None, Z: Tensor, scores: Scores) -> Kept:
    """Tensors of a state that gradients need; empty if they need nothing."""
    if state is None or state.P is None or state.pi is None:
        wide = Z.new_empty(0, Z.shape[1], dtype=SUM_DTYPE[Z.dtype])
        narrow = wide.new_empty(0, scores.heads)
        return Kept(narrow, wide, torch.empty_like(narrow))
    return Kept(state.m, state.P, state.pi)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one.add_(other)
