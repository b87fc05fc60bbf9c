"""Plans of one matrix on all ranks, in numbers: what remains of them once they are built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from spgnn.attention import Partials, Pieces, pieces
from spgnn.errors import InputError
from spgnn.exchange import LEAST_WITH_FEEDBACK, Codec, Hop, Plan, Stage, Turn, Turned
from spgnn.kernels import packed_bytes
from spgnn.layout import Axes, Int64Array
from spgnn.registry import CODECS
from spgnn.sparse import SUM_DTYPE

LEVELS = ("inside", "between")
# Rows for which a layer of attention keeps data, besides its input and output rows: rows of sources
# that are received; softmaxes that others request; rows before a fold, and the same where there is
# one; partial softmaxes that are merged; own rows where others request softmaxes. And edges, where
# these have features.
EXTRA_ROWS = ("received", "requested", "partial", "gathered", "merged", "shared", "edges")

Moved = npt.NDArray[Any]
"""Bytes sent, bytes received and messages, inside nodes and between them: [3, levels, P]."""
# Columns of an operand, or of each rank's share of it.
Width = int | Int64Array
Float64Array = npt.NDArray[np.float64]


class Product(NamedTuple):
    """A product with the matrix of a layer, or its adjoint; or attention over its nonzeros."""

    layer: int
    width: int  # columns of the rows that travel: under attention heads × channels
    dtype: torch.dtype = torch.float32
    adjoint: bool = False
    heads: int = 0  # of attention; 0 for a product
    joint: bool = False  # scores need the destination's whole row (GATv2), not a number a head
    drops: bool = False  # attention weights are dropped
    largest: bool = False  # of the neighbours, for which the same rows travel

    @property
    def words(self) -> float:
        """Width of an operand of float32 that has as many bytes."""
        return self.width * self.dtype.itemsize / torch.float32.itemsize


def codec_at(step: Product, codec: Codec | None, layers: int) -> Codec | None:
    """The codec of a step's messages; what follows the last layer is exact."""
    if codec is None or step.layer >= layers:
        return None
    stays = step.adjoint and any(CODECS[name].keeps_gradients for name, _ in codec.extra)
    return replace(codec, delay=None, extra=()) if stays else codec


class MeanRowBytes(NamedTuple):
    """Effect of a codec on a row in a mean epoch of the run."""

    row: Any  # bytes of a row: a number, or one for each rank
    mean: Any = 0  # bytes of a message's mean, if it travels apart
    messages: Any = 1  # to a peer that gets any

    @classmethod
    def of(cls, codec: Codec | None, width: Width, dtype: torch.dtype) -> MeanRowBytes:
        """The effect on rows of a width, or of one on each rank; without a codec they are exact."""
        itemsize = dtype.itemsize
        if codec is None:
            return cls(width * itemsize)
        widths, place = np.unique(width, return_inverse=True)
        each = np.array([_row_bytes(codec, int(one), itemsize) for one in widths])
        epochs = range(codec.epochs)
        exact = sum(map(codec.is_exact, epochs)) / codec.epochs
        apart = 1 - sum(map(codec.passes, epochs)) / codec.epochs if codec.sends_means else 0.0
        carrying = exact if codec.delay is None else 1.0
        row = each[place].reshape(np.shape(width))
        return cls(row, apart * np.asarray(width) * itemsize, apart + carrying)


@cache
def _row_bytes(codec: Codec, width: int, itemsize: int) -> float:
    total = 0.0
    for epoch in range(codec.epochs if width else 0):
        if codec.delay is None and not codec.is_exact(epoch):
            continue
        bits = max(codec.bits_at(epoch), LEAST_WITH_FEEDBACK if codec.feedback else 1)
        packed = bits < min(32, 8 * itemsize)
        nbytes = packed_bytes(width, bits) if packed else width * itemsize
        # The first epoch of a delay is exact; its bins take turns from then on.
        late = bool(epoch and codec.delay and codec.delay_at(epoch))
        total += nbytes * codec.sampling_at(epoch) / (codec.bins if late else 1)
    return total / codec.epochs


@dataclass(frozen=True, eq=False)
class HopCounts:
    """One exchange of all ranks; rows and peers by level and rank, [2, levels, P]."""

    rows: Any  # that are sent, and received
    peers: Any  # that get any, and from which any come
    entries: Int64Array  # nonzeros of the send matrix, [P]
    sums: bool = False  # some rank sends partial sums, and not rows as they are
    axis: str = "row"
    broadcast: bool = False  # rows leave their owner once, whoever receives them
    largest: Int64Array | None = None  # rows of each rank's largest message, [P], if counted
    few: bool = False  # what relays send, when they have what they send it of

    @classmethod
    def of(
        cls,
        send: Sequence[Int64Array],
        receive: Sequence[Int64Array],
        away: Any,
        entries: Sequence[int] | Int64Array,
        **how: Any,
    ) -> HopCounts:
        """Count one exchange of all ranks, some of whose peers are away: bool [P, peers]."""
        both = np.stack((send, receive))

        def by_level(rows: Int64Array) -> Int64Array:
            between = (rows * away).sum(axis=2)
            return np.stack((rows.sum(axis=2) - between, between), axis=1)

        largest, counts = both[0].max(axis=1).astype(np.int64), np.asarray(entries, np.int64)
        peers = by_level((both > 0).astype(np.int64))
        return cls(by_level(both), peers, counts, largest=largest, **how)

    def moved(
        self, width: Width, dtype: torch.dtype, codec: Codec | None = None, *, adjoint: bool
    ) -> Moved:
        """Traffic of rows of some width, forward or in the adjoint; with a codec in the mean."""
        row, mean, messages = MeanRowBytes.of(codec, width, dtype)
        way = -1 if adjoint else 1
        rows, peers = self.rows[::way], self.peers[::way]
        messages = messages * (np.asarray(width) > 0)
        return np.stack((*(rows * row + peers * mean), peers[0] * messages))

    @property
    def sent_rows(self) -> Int64Array:
        """Rows to both levels, int64 [P]."""
        return np.asarray(self.rows[0].sum(axis=0))

    @property
    def received_rows(self) -> Int64Array:
        """Rows from both levels, int64 [P]."""
        return np.asarray(self.rows[1].sum(axis=0))


@dataclass(frozen=True, eq=False)
class StageCounts:
    """One stage of all ranks, int64 [P] each."""

    rows: Int64Array  # of L
    columns: Int64Array
    local: Int64Array  # nonzeros of L
    remote: Int64Array  # nonzeros of R
    buffered: Int64Array  # rows in buffers from one product to the next
    hops: tuple[HopCounts, ...]


@dataclass(frozen=True, eq=False)
class AttentionCounts:
    """The pieces of a plan (:class:`~spgnn.attention.pieces.Pieces`), int64 [P] each."""

    rows: Int64Array
    columns: Int64Array
    partial: Int64Array  # rows before the fold
    fetched: Int64Array  # rows of sources that are received
    requested: Int64Array  # softmaxes that other ranks request
    local: Int64Array  # nonzeros of each piece
    remote: Int64Array
    summed: Int64Array
    buffered: Int64Array  # rows in buffers from one layer to the next
    fetch: tuple[HopCounts, ...]  # of rows of sources
    sums: HopCounts | None  # of partial softmaxes to the destinations
    fold: HopCounts | None  # of rows that are folded there

    @property
    def ways(self) -> list[HopCounts]:
        """Exchanges of partial softmaxes."""
        return [way for way in (self.sums, self.fold) if way is not None]

    @property
    def merged(self) -> Int64Array:
        """Partial softmaxes that arrive and are merged."""
        return np.asarray(sum((way.received_rows for way in self.ways), 0 * self.rows), np.int64)

    def exchanges(self, step: Product, codec: Codec | None) -> Iterator[Moved]:
        """Traffic of each exchange, in their order."""
        ways = self.ways
        for way in reversed(ways):
            yield _partials_moved(way, step, codec, back=True)
        for hop in self.fetch[:: -1 if step.adjoint else 1]:
            yield hop.moved(step.width, step.dtype, codec, adjoint=step.adjoint)
        for way in ways:
            yield _partials_moved(way, step, codec, back=False)


def _partials_moved(hop: HopCounts, step: Product, codec: Codec | None, *, back: bool) -> Moved:
    """One exchange of partial softmaxes."""
    weighted = back == step.adjoint  # rows that a codec approximates, and the scores with them
    scores = SUM_DTYPE[step.dtype]
    rows = step.width if weighted or step.joint else 0
    now = step.heads if weighted or not step.joint else 0
    late = step.heads if weighted and step.adjoint else 0
    exact = late_codec = None
    if codec is not None:
        # Scores are exact and of the same sample; some are as late as the rows they belong to.
        never = {"delay": None} if codec.delay is None else {}
        same = {"sampling": codec.sampling, "exact_last": codec.exact_last, "epochs": codec.epochs}
        exact = Codec(**same, exact_means=False, **never)  # type: ignore[arg-type]
        late_codec = replace(codec, bits=((0, 32),), feedback=False)
    parts = [
        hop.moved(rows, step.dtype, codec, adjoint=back),
        hop.moved(now, scores, exact, adjoint=back),
        hop.moved(late, scores, late_codec, adjoint=back),
    ]
    total = np.sum(parts, axis=0)
    total[2] = np.max([part[2] for part in parts], axis=0)
    return np.asarray(total)


@dataclass(frozen=True, eq=False)
class MatrixCounts:
    """The plan of one matrix on all ranks."""

    stages: tuple[StageCounts, ...]
    matrix: Int64Array  # bytes of L, R and S, [P]
    transpose: Int64Array  # bytes of their other sides
    # Of all ranks, where stages multiply a share of the columns between a turn and the turn back;
    # and peers of a turn that are on other nodes, bool [P, peers].
    turns: tuple[list[Turn], list[Turn]] | None = None
    away: npt.NDArray[np.bool_] | None = None
    attention: AttentionCounts | None = None

    @property
    def columns(self) -> Int64Array:
        """Rows of the operand that each rank holds."""
        if self.turns is not None:
            return np.array([turn.own for turn in self.turns[0]])
        return self.stages[0].columns

    @property
    def rows(self) -> Int64Array:
        """Rows that each rank makes."""
        if self.turns is not None:
            return np.array([turn.own for turn in self.turns[1]])
        return self.stages[-1].rows

    @property
    def hops(self) -> list[HopCounts]:
        """Hops of all stages."""
        return [hop for stage in self.stages for hop in stage.hops]

    @property
    def nonzeros(self) -> dict[str, Int64Array]:
        """Nonzeros of L and of R."""
        sides = "local", "remote"
        return {side: total_of([getattr(stage, side) for stage in self.stages]) for side in sides}

    def share(self, width: int) -> Width:
        """Columns that each rank multiplies."""
        if self.turns is None:
            return width
        return np.array([turn.share(width) for turn in self.turns[0]])

    def buffers(self, width: int) -> Int64Array:
        """Elements kept from one product of some width to the next, int64 [P]."""
        share = self.share(width)
        between_products = total_of([stage.buffered * share for stage in self.stages])
        if self.turns is None:
            between = [stage.rows * width for stage in self.stages[:-1]]
            return np.asarray(total_of([between_products, *between]), np.int64)
        own, group = (
            np.max([[getattr(turn, name) for turn in turns] for turns in self.turns], axis=0)
            for name in ("own", "all")
        )
        return np.asarray(between_products + width * own + share * group, np.int64)

    def exchanges(self, step: Product, codec: Codec | None = None) -> list[list[Moved]]:
        """Traffic of a step in its order, by what is under way together."""
        if step.heads:
            assert self.attention is not None
            return [[moved] for moved in self.attention.exchanges(step, codec)]
        share, dtype, adjoint = self.share(step.width), step.dtype, step.adjoint
        under_way = [
            [hop.moved(share, dtype, codec, adjoint=adjoint) for hop in stage.hops]
            for stage in self.stages
            if stage.hops
        ]
        if self.turns is not None:
            before, after = self.turns_moved(step)
            under_way = [[before], *under_way, [after]]
        return under_way[::-1] if adjoint else under_way

    def turns_moved(self, step: Product) -> list[Moved]:
        """Traffic of the turn and of the turn back, where there are any."""
        moved = list[Moved]()
        for turns, back in zip(self.turns or (), (step.adjoint, not step.adjoint), strict=False):
            carried = [turn.carried(step.width, step.dtype, back=back) for turn in turns]
            send, receive = ([getattr(one, way) for one in carried] for way in ("sent", "received"))
            nbytes = HopCounts.of(send, receive, self.away, np.zeros(len(turns), np.int64))
            moved.append(np.stack((*nbytes.rows, nbytes.peers[0])))
        return moved

    def moved(self, step: Product, codec: Codec | None = None) -> Moved:
        """Traffic of a step."""
        nothing = np.zeros((3, len(LEVELS), len(self.matrix)), np.int64)
        each = [moved for together in self.exchanges(step, codec) for moved in together]
        return np.asarray(total_of([nothing, *each]))


def total_of(arrays: Sequence[Any]) -> Any:
    """Sum of arrays, one at least."""
    return np.sum(np.stack(arrays), axis=0)


def count(
    plans: Sequence[Plan], axes: Axes, ranks_a_node: int, *, attends: bool = False
) -> MatrixCounts:
    """Count the plans of one matrix on all ranks, of which r is on node r // ranks_a_node."""
    nodes = np.arange(axes.ranks) // ranks_a_node

    @cache
    def away(axis: str) -> npt.NDArray[np.bool_]:
        groups = axes.groups(axis)
        leaves = np.zeros((axes.ranks, len(groups[0])), np.bool_)
        for group in groups if nodes[-1] else ():
            ranks = np.array(group)
            leaves[ranks] = nodes[ranks] != nodes[ranks][:, None]
        return leaves

    def hop(hops: Sequence[Hop | Partials], entries: Sequence[int], **how: bool) -> HopCounts:
        send, receive = [h.counts.send for h in hops], [h.counts.recv for h in hops]
        axis = hops[0].axis
        return HopCounts.of(send, receive, away(axis), entries, axis=axis, **how)

    def entries(hops: Sequence[Hop]) -> list[int]:
        return [h.send.nnz + (h.relay.nnz if h.relay is not None else 0) for h in hops]

    def stage(stages: Sequence[Stage]) -> StageCounts:
        figures = [
            (*s.local.shape, s.local.nnz, s.remote.nnz if s.remote else 0, s.buffers(1))
            for s in stages
        ]
        hops = []
        for each in zip(*(s.hops for s in stages), strict=True):
            sums, kind = not all(one.sends_rows for one in each), each[0]
            how = {"sums": sums, "broadcast": kind.broadcast, "few": kind.few}
            hops.append(hop(each, entries(each), **how))
        rows, columns, local, remote, buffered = np.array(figures, np.int64).T
        return StageCounts(rows, columns, local, remote, buffered, tuple(hops))

    def attention(every: Sequence[Pieces]) -> AttentionCounts:
        figures = []
        for plan, each in zip(plans, every, strict=True):
            parts = each.local, each.remote, each.summed
            nonzeros = (0 if part is None else part.nnz for part in parts)
            rows = each.partial_rows, each.fetched, each.requested
            saved = 0 if each.fetch is None else each.fetch.buffers(1)
            figures.append((*plan.shape, *rows, *nonzeros, saved))
        fetches = zip(*(each.fetch.hops for each in every if each.fetch is not None), strict=True)
        ways = [[way for each in every if (way := getattr(each, n))] for n in ("sums", "fold")]
        sums, fold = (
            hop(way, [partials.counts.sent for partials in way], sums=True) if way else None
            for way in ways
        )
        fetch = tuple(hop(each, entries(each), sums=False) for each in fetches)
        numbers: Any = np.array(figures, np.int64).T
        hops: Any = fetch, sums, fold
        return AttentionCounts(*numbers, *hops)

    memory = [plan.memory(1) for plan in plans]
    matrix, transpose = (
        np.array([m[name] for m in memory], np.int64) for name in ("matrix", "transpose")
    )
    factors: list[Any] = [plan.stages for plan in plans]
    turns = None
    if isinstance(factors[0][0], Turned):
        # A plan that shares columns out is one factor.
        if attends:
            raise InputError("--algo feature and 3d: heads that ranks share out are not planned")
        turned = [factor for (factor,) in factors]
        turns = [each.before for each in turned], [each.after for each in turned]
        factors = [each.stages for each in turned]
    return MatrixCounts(
        tuple(map(stage, zip(*factors, strict=True))),
        matrix,
        transpose,
        turns,
        away(turns[0][0].axis) if turns else None,
        attention([pieces(plan) for plan in plans]) if attends else None,
    )
