"""Attention over blocks and exchanges, forward and backward, with the exchanges overlapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention.pieces import Partials, Pieces
from spgnn.attention.scores import EdgeBlock, Gradients, Scores, Whole
from spgnn.comm import Communicator
from spgnn.exchange import Step
from spgnn.exchange.executor import Arriving, Exchange
from spgnn.exchange.plan import Carried
from spgnn.exchange.transport import Route, Transport
from spgnn.kernels.attention import (
    AttentionDropout,
    AttentionState,
    Gat,
    Rules,
    attend_,
    attend_whole,
    finish,
    head_products,
)
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import CSR, SUM_DTYPE

ROWS, DST, LATE = range(3)
"""Codecs of a way: of weighted sums, of whole destinations, and of what is late with rows."""

# Stands for the logarithm of an empty sum: finite, so that differences of two are numbers.
NOTHING = -1e30

Wait = Callable[[], list[Tensor]]
"""Waits for tensors [received rows, …] that are under way, and returns them."""

Drops = tuple[int, float, Tensor, Tensor | None]
"""Dropout of weights: key, probability, vertex_ids and row_columns (as of `Attention.ids`)."""


class Inputs(NamedTuple):
    """All that is weighed: rows of Z [columns, heads * channels], by scores of pairs."""

    Z: Tensor
    dst: Tensor  # [rows, …]: contributions of destinations to scores
    scores: Scores
    edges: Tensor | None = None  # [edges, …]: of edges, as the nonzeros of [local, remote] lie
    drops: Drops | None = None
    part: tuple[int, int] = (1, 0)  # in how many parts heads are shared out, and which this is


class Share(NamedTuple):
    """Edges of one block: their contributions, and dropout; ``None`` for none."""

    edges: Tensor | None = None
    dropout: AttentionDropout | None = None


class Fetch(NamedTuple):
    """Sources of others that arrive at a time, and the edges from them."""

    exchange: Exchange
    remote: Pattern  # [rows, its rows]
    among: Tensor | None = None  # bool [all fetched rows]: which they are; ``None`` for all


class Shares(NamedTuple):
    """Contributions of the edges of each block."""

    local: Share
    fetched: Sequence[Share]
    summed: Share  # partials for others


class Payload(NamedTuple):
    """Parts of each row that travel."""

    rows: Tensor | None  # [n, heads * channels]: those that a codec may approximate
    # tensors [n, heads]: of scores: always as they are, and of this step
    now: tuple[Tensor, ...] = ()
    # tensors [n, heads]: as they are, and of the step that the rows are of
    late: tuple[Tensor, ...] = ()

    def at(self, places: Tensor) -> Payload:
        """Listed rows."""
        rows = None if self.rows is None else self.rows.index_select(0, places)
        now, late = (tuple(t.index_select(0, places) for t in some) for some in self[1:])
        return Payload(rows, now, late)

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        return [*(() if self.rows is None else (self.rows,)), *self.now, *self.late]


class PartialsExchange:
    """The way of partial softmaxes, in both directions."""

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

    def to_owners(self, payload: Payload, step: Step) -> Wait:
        """Start sending what belongs to the partials this rank made to where their rows are."""
        return self._send(payload, step, back=False)

    def to_makers(self, payload: Payload, step: Step) -> Wait:
        """Start sending rows of this rank [rows, …] to all who make partials of them."""
        return self._send(payload.at(self.partials.places), step, back=True)

    def add_(self, rows: Tensor, arrived: Tensor) -> Tensor:
        """Add what arrived from *there* to the rows it belongs to, in place."""
        if arrived.numel():
            kernels.spmm(self._adding, arrived, out=rows, accumulate=True)
        return rows

    def merge(self, means: Tensor, lse: Tensor, state: AttentionState) -> AttentionState:
        """Merge partial softmaxes that arrived into those of the rows, in place."""
        received = self.partials.received
        nobody = lse.new_zeros(received.shape[0], lse.shape[1])
        alone = AttentionState(state.m.clone(), state.n, state.O)
        return attend_(received, Gat(nobody, lse, means), Rules(slope=1.0), alone)

    def carried(
        self, width: int, heads: int, dtype: torch.dtype, step: Step, *, joint: bool
    ) -> Iterator[Carried]:
        """Bytes of both exchanges of a step; arguments as of :meth:`Attention.carried`."""
        for back in (True, False):
            route, line = self._routes[back], self._line(step, back=back)
            rows = width if line == ROWS or joint else 0
            now = 0 if line == DST and joint else heads
            late = heads if line == ROWS and step.adjoint else 0
            counts, wide = route.counts, SUM_DTYPE[dtype]
            sent, received = (n * (now * wide.itemsize) for n in (counts.send, counts.recv))
            for columns, kind, which in ((rows, dtype, line), (late, wide, LATE)):
                if columns:
                    codec = Transport() if self._codecs is None else self._codecs[which]
                    moved = codec.bytes(route, columns, kind, step.at(self._first + which))
                    sent, received = sent + moved[0], received + moved[1]
            yield Carried(self.partials.axis, sent, received)

    @staticmethod
    def _line(step: Step, *, back: bool) -> int:
        """The codec's number: rows that leave in a step return in its adjoint."""
        return ROWS if back == step.adjoint else DST

    def _send(self, payload: Payload, step: Step, *, back: bool) -> Wait:
        route, line = self._routes[back], self._line(step, back=back)
        if self._codecs is None:
            return self._together(payload.tensors, route)
        parts = []
        if payload.rows is not None:
            parts.append(self._by_codec(payload.rows, route, line, step))
        if payload.now:
            parts.append(self._together(payload.now, route))
        parts += [self._by_codec(each, route, LATE, step) for each in payload.late]
        return lambda: [tensor for wait in parts for tensor in wait()]

    def _together(self, tensors: Sequence[Tensor], route: Route) -> Wait:
        """As they are, side by side: the bits of tensors of other dtypes next to the first one."""
        first, *others = tensors
        leaving = first.contiguous()
        if others:
            bits = (each.contiguous().view(first.dtype) for each in others)
            leaving = torch.cat((first, *bits), 1)
        arriving = new_rows(route.counts.received, leaving)
        under_way = self._comm.alltoallv(leaving, arriving, route.counts), leaving

        def wait() -> list[Tensor]:
            under_way[0].wait()
            size = arriving.dtype.itemsize
            widths = [each.shape[1] * each.dtype.itemsize // size for each in tensors]
            parts = zip(arriving.split(widths, 1), tensors, strict=True)
            return [
                # One row alone is contiguous wherever it begins: only a copy begins where it can.
                part.contiguous()
                if each.dtype == part.dtype
                else part.clone(memory_format=torch.contiguous_format).view(each.dtype)
                for part, each in parts
            ]

        return wait

    def _by_codec(self, rows: Tensor, route: Route, which: int, step: Step) -> Wait:
        assert self._codecs is not None
        rows = rows.contiguous()
        arriving, at = new_rows(route.counts.received, rows), step.at(self._first + which)
        handle = self._codecs[which].begin(rows, arriving, route, self._comm, at)
        under_way = handle, rows

        def wait() -> list[Tensor]:
            under_way[0].wait()
            return [arriving]

        return wait


class Forward(NamedTuple):
    """The rows that were made, and what the gradient needs: tensors only, empty if not needed."""

    out: Tensor  # [rows, heads * channels]
    # [rows, heads]: logarithm of the sum of exp(score) over all edges of a row, on whatever rank
    lse: Tensor
    # [partial rows, …]: as :meth:`Scores.dst_gradient` needs them, of the rows before the fold
    base: Tensor
    P: Tensor
    pi: Tensor
    dst: Tensor  # [partial rows, …]: destinations before the fold; empty where there is none
    fetched: Tensor  # [fetched rows, heads * channels]
    requested: Tensor  # [partials for others, …]: their destinations
    requested_base: Tensor  # [partials for others, …]
    requested_P: Tensor
    requested_pi: Tensor


def nothing(
    parts: Pieces, rows: int, Z: Tensor, dst: Tensor, a: Tensor, joint: bool, gradients: bool
) -> Forward:
    """Empty results of attention to rows of Z, for so many rows."""
    width, heads = Z.shape[1], len(a)

    def saved(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        some = rows if gradients and not joint else 0
        return a.new_empty(some, heads), a.new_empty(some, width), a.new_empty(some, heads)

    fetched, requested = (parts.saved, parts.requested) if gradients else (0, 0)
    gathered = parts.partial_rows if gradients and parts.fold is not None else 0
    return Forward(
        Z.new_empty(rows, width),
        a.new_empty(rows, heads),
        *saved(parts.partial_rows),
        dst.new_empty(gathered, dst.shape[1]),
        Z.new_empty(fetched, width),
        dst.new_empty(requested, dst.shape[1]),
        *saved(parts.requested),
    )


class Fetching:
    """Rows of one fetch after the other, while the next ones are under way."""

    def __init__(
        self, fetches: Sequence[Fetch], at_once: int, Z: Tensor, step: Step, out: Tensor | None
    ) -> None:
        self._rest, self._operand, self._handles = iter(fetches), (Z, step, out), list[Arriving]()
        self._start(at_once)

    def _start(self, count: int) -> None:
        for fetch in islice(self._rest, count):
            self._handles.append(fetch.exchange.begin(*self._operand))

    def __iter__(self) -> Iterator[Tensor]:
        for handle in self._handles:  # which become more
            yield handle.wait()
            self._start(1)

    def wait(self) -> None:
        """Wait for all that is under way: peers write into these buffers."""
        for handle in self._handles:
            handle.wait()


class Pass(NamedTuple):
    """One layer of attention, through exchanges that are given."""

    pieces: Pieces
    fetches: Sequence[Fetch]
    sums: PartialsExchange | None
    fold: PartialsExchange | None
    log_share: float = 0.0
    at_once: int = 1

    def forward(self, inputs: Inputs, shares: Shares, step: Step, *, gradients: bool) -> Forward:
        """Weighted sums of rows of Z; as of :meth:`Attention.forward`. Collective."""
        Z, dst, scores, *_ = inputs
        parts, share, wait_partials = self.pieces, self.log_share, None
        if not (self.fetches or self.sums or self.fold):
            block = EdgeBlock(parts.local, dst, Z, *shares.local)
            out, lse, *sums = attend_whole(parts.local, *scores.of(block), gradients=gradients)
            lse.clamp_(min=NOTHING)
            result = nothing(parts, len(out), Z, dst, scores.a, scores.joint, gradients=False)
            saved = result[2:5] if scores.joint else (lse[: len(sums[1])].clone(), *sums)
            return Forward._make((out, lse, *saved, *result[5:]))
        # What gradients need is kept beyond the next exchange, unless it is fetched again.
        saves = gradients and parts.rounds is None
        fetched = Z.new_empty(parts.fetched if saves else 0, Z.shape[1])
        # Tensors of their own: an operator's results may not be the same.
        requested, gathered, requested_state = dst.new_empty(0, dst.shape[1]), dst[:0].clone(), None
        arriving = Fetching(self.fetches, self.at_once, Z, step, fetched if saves else None)
        try:
            if self.fold is not None:
                dst = gathered = self.unfold(_payload(dst, scores), step)[0]
            if self.sums is not None and parts.summed is not None:
                (requested,) = self.sums.to_makers(_payload(dst, scores), step)()
                block = EdgeBlock(parts.summed, requested, Z, *shares.summed)
                requested_state = scores.attend(block, None, gradients=gradients)
                means, lse = finish(requested_state, Z.dtype)
                payload = Payload(means, (lse.clamp_(min=NOTHING),))
                wait_partials = self.sums.to_owners(payload, step)
            block = EdgeBlock(parts.local, dst, Z, *shares.local)
            # To lower what is there raises what comes.
            state = scores.attend(block, None, gradients=gradients)
            state.m += share
            for fetch, rows, of_fetch in zip(self.fetches, arriving, shares.fetched, strict=True):
                block = EdgeBlock(fetch.remote, dst, rows, *of_fetch)
                state = scores.attend(block, state, gradients=gradients)
            state.m -= share
        finally:
            arriving.wait()
        saved = _saved(state if gradients else None, Z, scores)
        if wait_partials is not None and self.sums is not None:
            means, lse = wait_partials()
            state = self.sums.merge(means, lse - share if share else lse, state)
        if self.fold is not None:
            # Of rows that several ranks have a part of, those that this rank makes.
            assert parts.mine is not None
            assert parts.others is not None
            means, lse = finish(state)
            lse.clamp_(min=NOTHING)
            payload = Payload(means[parts.others].to(Z.dtype), (lse[parts.others],))
            wait = self.fold.to_owners(payload, step)
            lse = lse[parts.mine]
            state = AttentionState(lse, torch.ones_like(lse), means[parts.mine])
            means, lse = wait()
            state = self.fold.merge(means, lse - share if share else lse, state)
        out, lse = finish(state, Z.dtype)
        lse.clamp_(min=NOTHING)
        requested_saved = _saved(requested_state if gradients else None, Z, scores)
        if not gradients:
            requested, gathered = dst.new_empty(0, dst.shape[1]), dst[:0].clone()
        return Forward(out, lse, *saved, gathered, fetched, requested, *requested_saved)

    def backward(
        self,
        G: Tensor,
        inputs: Inputs,
        shares: Shares,
        saved: Forward,
        step: Step,
        D: Tensor | None = None,
    ) -> tuple[Gradients, list[Tensor | None]]:
        """Gradients in all operands, and in what edges of each fetch contribute. Collective."""
        Z, dst, scores, *_ = inputs
        parts, share = self.pieces, self.log_share
        D = head_products(G, saved.out, scores.heads) if D is None else D
        whole = Whole(G, saved.lse, D)
        if self.fold is not None:
            # Rows that are not in a sample have a weight of nothing, whatever its score.
            empty = (0.0, -NOTHING, 0.0)
            dst, whole = saved.dst, Whole(*self.unfold(_payload_of_row(whole), step, empty))
            if share:
                whole.lse[parts.others] += share

        def weighted(whole: Whole) -> Whole:
            # Sources, or partials that stand for several sources each.
            return whole._replace(lse=whole.lse + share) if share else whole

        requested = None if self.sums is None else self.sums.to_makers(_payload_of_row(whole), step)
        d_dst = scores.dst_gradient((saved.base, saved.P, saved.pi), whole)
        da, of_edges, dZ, returning = torch.zeros_like(scores.a), list[Tensor | None](), None, None
        again = parts.rounds is not None
        arriving = Fetching(self.fetches if again else (), self.at_once, Z, step.reversed(), None)
        sources = arriving if again else [saved.fetched] * len(self.fetches)
        try:
            for fetch, rows, of_fetch in zip(self.fetches, sources, shares.fetched, strict=True):
                block = EdgeBlock(fetch.remote, dst, rows, *of_fetch)
                part = scores.gradient(block, weighted(whole))
                returning = fetch.exchange.begin_adjoint(part.Z, step)
                da, d_dst = da + part.a, _sum(d_dst, part.dst)
                of_edges.append(part.edges)
                if again:  # its buffers are those of the next group but one
                    returning.wait()
                    dZ = torch.zeros_like(Z) if dZ is None else dZ
                    returning.add_to(dZ)
            returned = None
            if requested is not None and self.sums is not None and parts.summed is not None:
                theirs = weighted(Whole(*requested()))
                block = EdgeBlock(parts.summed, saved.requested, Z, *shares.summed)
                part = scores.gradient(block, theirs)
                requested_saved = saved.requested_base, saved.requested_P, saved.requested_pi
                of_dst = _sum(scores.dst_gradient(requested_saved, theirs), part.dst)
                assert of_dst is not None
                dZ, da = _sum(dZ, part.Z), da + part.a
                returned = self.sums.to_owners(_payload(of_dst, scores), step)
            block = EdgeBlock(parts.local, dst, Z, *shares.local)
            part = scores.gradient(block, whole)
        finally:
            if returning is not None:
                returning.wait()
            arriving.wait()
        dZ, d_dst = _sum(dZ, part.Z), _sum(d_dst, part.dst)
        assert d_dst is not None
        assert dZ is not None
        if returning is not None and not again:
            returning.add_to(dZ)
        if returned is not None and self.sums is not None:
            d_dst = self.sums.add_(d_dst, *returned())
        if self.fold is not None:
            assert parts.mine is not None
            assert parts.others is not None
            wait = self.fold.to_owners(_payload(d_dst[parts.others], scores), step)
            d_dst = self.fold.add_(d_dst[parts.mine], *wait())
        return Gradients(dZ, d_dst, da + part.a, part.edges), of_edges

    def unfold(
        self, payload: Payload, step: Step, nothing: tuple[float, ...] = (0.0, 0.0, 0.0)
    ) -> list[Tensor]:
        """Rows that this rank makes to all rows that it has a part of; adjoint of a fold."""
        if self.fold is None:
            return payload.tensors
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        wait, everything, rows = self.fold.to_makers(payload, step), [], parts.partial_rows
        for tensor, empty in zip(payload.tensors, nothing, strict=False):
            whole = tensor.new_full((rows, *tensor.shape[1:]), empty)
            whole[parts.mine] = tensor
            everything.append(whole)
        for whole, arrived in zip(everything, wait(), strict=True):
            whole[parts.others] = arrived
        return everything


def _payload(dst: Tensor, scores: Scores) -> Payload:
    """Destinations: whole rows, or a number a head."""
    return Payload(dst) if scores.joint else Payload(None, (dst,))


def _payload_of_row(whole: Whole) -> Payload:
    # D is a product with G: of another step it would be one of another row.
    return Payload(whole.G, (whole.lse,), (whole.D,))


def _saved(
    state: AttentionState | None, Z: Tensor, scores: Scores
) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors of a state that gradients need; empty if they need nothing."""
    if state is None or state.P is None or state.pi is None:
        wide = Z.new_empty(0, Z.shape[1], dtype=SUM_DTYPE[Z.dtype])
        narrow = wide.new_empty(0, scores.heads)
        return narrow, wide, torch.empty_like(narrow)
    return state.m, state.P, state.pi


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one.add_(other)
