"""Attention's view of a plan: blocks without numbers, and the rows that travel.

A plan is a recipe for sums. Attention adds nothing up before its weights are known, so of each
block only the pattern counts, and a row that a rank receives is either a source's (its weights are
made here) or stands for several sources of one destination (made at their owner, as a softmax that
is not finished). Numbers only, as plans are: the bytes of attention are known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import RowCounts
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Plan, Stage
from spgnn.exchange.plan import Hop
from spgnn.exchange.route import Names, Route
from spgnn.layout import Int64Array
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR, take_rows

NEEDED = "--algo 1d, 1.5d, 2d or vertex-cut, --hierarchy none and --schedule overlap"
WHAT_WORKS = f"attention needs {NEEDED}"

Marks = tuple[Tensor, Tensor]
"""Masks of the rows that an exchange samples: of those it sends, and of those it receives, bool."""


@dataclass(frozen=True, eq=False)
class Partials:
    """Unfinished softmaxes on their way to the rank whose rows they are.

    Attributes
    ----------
    axis : str
    counts : RowCounts
        Of them to and from each peer.
    received : Pattern [rows, received partials]
        Which of them belong to each row.
    places : Tensor int64 [received partials]
        The row of each: of it its maker has to know the destination's side of the score.
    names : Names, optional
        Of them, for codecs that draw.
    part : Route, optional
        Their route, if they are some of others.
    """

    axis: str
    counts: RowCounts
    received: Pattern
    places: Tensor
    names: Names | None = None
    part: Route | None = None

    @cached_property
    def route(self) -> Route:
        """Of them to the rank whose rows they are."""
        return Route(self.counts, self.names) if self.part is None else self.part

    def sample(self, sent: Tensor, received: Tensor) -> Partials:
        """Those that are marked, bool [partials to send] and [received partials]."""
        some = self.route.marked(sent, received)
        return replace(
            self,
            counts=some.route.counts,
            received=columns_where(self.received, received),
            places=self.places[some.received],
            part=some.route,
        )


@dataclass(frozen=True, eq=False)
class Pieces:
    """A plan as attention runs it.

    Attributes
    ----------
    local : Pattern [rows, columns]
        Sources at hand.
    remote : Pattern [rows, fetched rows], optional
        Sources that are fetched.
    fetch : Stage, optional
        How they are: its hop sends rows as they are.
    summed : Pattern [partials to send, columns], optional
        Sources of other ranks' destinations, whose partial softmax this rank sends.
    sums : Partials, optional
        Their way.
    mine, others : Tensor int64, optional
        Where partial rows are folded: those that stay here, and those that are sent.
    fold : Partials, optional
        The way of the others.
    sampled_rows : Tensor int64, optional
        Of a sample: the partial rows that remain; ``None`` for all.
    sampled_fetches, sampled_sums : Tensor bool, optional
        Of a sample: which of all fetched rows, and of all `summed`, it has; ``None`` for all.
    """

    local: Pattern
    remote: Pattern | None = None
    fetch: Stage | None = None
    summed: Pattern | None = None
    sums: Partials | None = None
    mine: Tensor | None = None
    others: Tensor | None = None
    fold: Partials | None = None
    sampled_rows: Tensor | None = None
    sampled_fetches: Tensor | None = None
    sampled_sums: Tensor | None = None

    @property
    def partial_rows(self) -> int:
        """Rows before the fold."""
        return self.local.shape[0]

    @property
    def fetched(self) -> int:
        """Rows of sources that are received."""
        return 0 if self.remote is None else self.remote.shape[1]

    @property
    def asked(self) -> int:
        """Softmaxes that other ranks ask of this one."""
        return 0 if self.summed is None else self.summed.shape[0]

    def sample(self, marks: Mapping[str, Marks]) -> Pieces:
        """The marked rows of `fetch`, `sums` and `fold`, where there are any, and their edges."""
        some = self
        if self.fetch is not None and self.remote is not None:
            (hop,), fetched = self.fetch.hops, marks["fetch"][1]
            subset = hop.route().marked(*marks["fetch"])
            rows = CSR(Selection(hop.send.indices[subset.sent], hop.send.shape[1]))
            part = subset.route
            hop = Hop(hop.axis, rows, part.counts, names=part.names, part=part)
            some = replace(
                some,
                remote=columns_where(self.remote, fetched),
                fetch=Stage(self.fetch.local, None, (hop,)),
                sampled_fetches=fetched,
            )
        if self.sums is not None and self.summed is not None:
            asked, received = marks["sums"]
            some = replace(
                some,
                summed=rows_where(self.summed, asked),
                sums=self.sums.sample(asked, received),
                sampled_sums=asked,
            )
        if self.fold is not None and self.others is not None:
            sent, received = marks["fold"]
            fold = self.fold.sample(sent, received)
            some = replace(some, others=self.others[sent], fold=fold)
        return some

    def without_exchanges(self) -> Pieces:
        """Nothing of what others have: rows of this rank's own, as its own sources make them."""
        if self.mine is None:
            return Pieces(self.local)
        local = take_rows(CSR(self.local), self.mine).pattern
        return Pieces(local, sampled_rows=self.mine)


def check_attention(algorithm: Algorithm, who: str = "attention") -> None:
    """Refuse an algorithm under which rows are added up, or cut into columns, on their way.

    Raises
    ------
    InputError
    """
    shares_columns = algorithm.algo in ("feature", "3d")
    if shares_columns or algorithm.node_size > 1 or algorithm.schedule != "overlap":
        raise InputError(f"{who} needs {NEEDED}")


def pieces(plan: Plan) -> Pieces:
    """A plan as attention runs it. Pure.

    Raises
    ------
    InputError
        If rows take a way on which they are added up, or are cut into columns.
    """
    first, *rest = plan.stages
    if not isinstance(first, Stage) or len(rest) > 1:
        raise InputError(f"{WHAT_WORKS}: this plan shares columns out, or has many stages")
    local, (mine, others, fold) = first.local.pattern, _folded(rest)
    if not first.hops or first.remote is None:
        return Pieces(local, mine=mine, others=others, fold=fold)
    hop, remote = _only_hop(first), first.remote.pattern
    columns = first.local.shape[1]
    if hop.sums is None:
        if not isinstance(hop.send.pattern, Selection):
            raise InputError(f"{WHAT_WORKS}: this plan adds rows up on their way")
        chosen = CSR(hop.send.pattern)
        counts, names, summed, sums = hop.counts, hop.names, None, None
    else:
        several = hop.send.row_lengths > 1
        of_sums = _counts_of(hop.counts, several, hop.sums)
        summed = rows_where(hop.send.pattern, several)
        received = columns_where(remote, hop.sums)
        of_each = _row_of_each(received)
        sums = Partials(hop.axis, of_sums, received, of_each, _names(hop, several, hop.sums))
        chosen = CSR(Selection(hop.send.indices[hop.send.indptr[:-1][~several]], columns))
        counts = _counts_of(hop.counts, ~several, ~hop.sums)
        remote = columns_where(remote, ~hop.sums)
        names = _names(hop, ~several, ~hop.sums)
    rows = Hop(hop.axis, chosen, counts, broadcast=hop.broadcast, names=names)
    everything = CSR(Selection(torch.arange(columns, device=local.device), columns))
    fetch = Stage(everything, None, (rows,))
    return Pieces(local, remote, fetch, summed, sums, mine, others, fold)


def _only_hop(stage: Stage) -> Hop:
    (hop, *more) = stage.hops
    if more or hop.relay is not None:
        raise InputError(f"{WHAT_WORKS}: under a hierarchy rows are added up on their way")
    if hop.rounds is not None:
        raise InputError(f"{WHAT_WORKS}: this plan exchanges with a few peers at a time")
    return hop


def _folded(stages: Sequence[object]) -> tuple[Tensor | None, Tensor | None, Partials | None]:
    """The last stage, if it adds partial rows up: rows that stay, rows that go, and their way."""
    if not stages:
        return None, None, None
    (stage,) = stages
    if not isinstance(stage, Stage) or stage.remote is None or not stage.hops:
        raise InputError(f"{WHAT_WORKS}: this plan does not end with a fold")
    hop, kept = _only_hop(stage), stage.local.pattern
    if not isinstance(kept, Selection) or not isinstance(hop.send.pattern, Selection):
        raise InputError(f"{WHAT_WORKS}: this plan does not end with a fold")
    received = stage.remote.pattern
    way = Partials(hop.axis, hop.counts, received, _row_of_each(received), hop.names)
    return kept.indices.long(), hop.send.indices.long(), way


def _names(hop: Hop, sent: Tensor, received: Tensor) -> Names | None:
    """Of the rows that are marked."""
    names = hop.names
    return names and Names(names.sent[sent], names.received[received], names.me)


def _row_of_each(pattern: Pattern) -> Tensor:
    """The row of the one nonzero in each column, int64 [cols]."""
    rows = torch.arange(pattern.shape[0], device=pattern.device)
    found = torch.empty(pattern.shape[1], dtype=torch.int64, device=pattern.device)
    found[pattern.indices.long()] = rows.repeat_interleave(pattern.row_lengths)
    return found


def rows_where(pattern: Pattern, chosen: Tensor) -> Pattern:
    """Some rows of a pattern."""
    lengths = pattern.row_lengths
    indices = pattern.indices[chosen.repeat_interleave(lengths)]
    indptr = _begins(lengths[chosen])
    return Pattern.trusted(indptr, indices, (len(indptr) - 1, pattern.shape[1]))


def columns_where(pattern: Pattern, chosen: Tensor) -> Pattern:
    """Some columns of a pattern, numbered anew."""
    columns = int(chosen.sum())
    number = (chosen.cumsum(0) - 1).to(index_dtype(columns))
    kept = chosen[pattern.indices.long()]
    indptr = _begins(kept)[pattern.indptr]
    indices = number[pattern.indices[kept].long()]
    return Pattern.trusted(indptr, indices, (pattern.shape[0], columns))


def _begins(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(torch.cumsum(lengths, 0, dtype=torch.int64), (1, 0))


def _counts_of(counts: RowCounts, sent: Tensor, received: Tensor) -> RowCounts:
    """Counts of the rows that are marked."""

    def marked(of_peers: Int64Array, marks: Tensor) -> Int64Array:
        before = np.concatenate(([0], np.cumsum(marks.cpu().numpy(), dtype=np.int64)))
        ends = np.concatenate(([0], np.cumsum(of_peers)))
        return np.asarray(before[ends[1:]] - before[ends[:-1]])

    return RowCounts(marked(counts.send, sent), marked(counts.recv, received), counts.largest)
