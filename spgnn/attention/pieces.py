"""Attention's view of a plan: blocks without numbers, and the rows that travel.

A plan is a recipe for sums. Attention adds nothing up before its weights are known, so of each
block only the pattern counts, and a row that a rank receives is either a source's (its weights are
made here) or stands for several sources of one destination (made at their owner, as a softmax that
is not finished). Numbers only, as plans are: the bytes of attention are known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Plan, Stage
from spgnn.exchange.peers import Rounds
from spgnn.exchange.plan import Hop
from spgnn.exchange.transport import Route, Subset
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR, take_rows

NEEDED = (
    "--algo 1d, 1.5d, 2d, feature, 3d or vertex-cut, --hierarchy none and --schedule overlap, or "
    "peers with --algo 1d and --cover column"
)
WHAT_WORKS = f"attention needs {NEEDED}"

Marks = tuple[Tensor, Tensor]
"""Masks of the rows that an exchange samples: of those it sends, and of those it receives, bool."""


@dataclass(frozen=True, eq=False)
class Partials:
    """Unfinished softmaxes on their way to the rank whose rows they are."""

    axis: str
    route: Route  # to that rank
    received: Pattern  # [rows, received partials]: which of them belong to each row
    # int64 [received partials]: the row of each, whose destination its maker has to know
    places: Tensor

    @property
    def counts(self) -> RowCounts:
        """Numbers of partials to and from each peer."""
        return self.route.counts

    def sample(self, sent: Tensor, received: Tensor) -> Partials:
        """The marked partials, bool [partials to send] and [received partials]."""
        return self.of(self.route.marked(sent, received), received)

    def of(self, some: Subset, received: Tensor) -> Partials:
        """The partials of a subset; `received` marks them."""
        fewer = columns_where(self.received, received, len(some.received))
        return Partials(self.axis, some.route, fewer, self.places[some.received])


@dataclass(frozen=True, eq=False)
class Pieces:
    """A plan as attention runs it."""

    local: Pattern  # [rows, columns]: sources at hand
    remote: Pattern | None = None  # [rows, fetched rows]: sources that are fetched
    fetch: Stage | None = None  # how they are: its hops send rows as they are, or in rounds
    # [partials to send, columns]: sources of other ranks' destinations, whose partial softmax this
    # rank sends
    summed: Pattern | None = None
    sums: Partials | None = None  # their way
    # int64: where partial rows are folded: those that stay here, and those that are sent
    mine: Tensor | None = None
    others: Tensor | None = None
    fold: Partials | None = None  # the way of the others
    # int64: of a sample: the partial rows that remain; ``None`` for all
    sampled_rows: Tensor | None = None
    # bool: of a sample: which of all fetched rows, and of all `summed`, it has; ``None`` for all
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
    def rounds(self) -> Rounds | None:
        """Rounds of the fetch, where it is from a few peers at a time: such rows come again."""
        return None if self.fetch is None else self.fetch.hops[0].rounds

    @property
    def saved(self) -> int:
        """Fetched rows that are kept for gradients."""
        return 0 if self.rounds is not None else self.fetched

    @property
    def requested(self) -> int:
        """Softmaxes that other ranks request of this one."""
        return 0 if self.summed is None else self.summed.shape[0]

    def sample(self, marks: Mapping[str, Marks]) -> Pieces:
        """The marked rows of `fetch`, `sums` and `fold`, where there are any, and their edges."""
        some = self
        if self.fetch is not None and self.remote is not None:
            (hop,), fetched = self.fetch.hops, marks["fetch"][1]
            subset = hop.route().marked(*marks["fetch"])
            rows = CSR(Selection.drawn(hop.send.indices[subset.sent], hop.send.shape[1]))
            part = subset.route
            hop = Hop(hop.axis, rows, part.counts, names=part.names, part=part)
            some = replace(
                some,
                remote=columns_where(self.remote, fetched, len(subset.received)),
                fetch=Stage(self.fetch.local, None, (hop,)),
                sampled_fetches=fetched,
            )
        if self.sums is not None and self.summed is not None:
            requested, received = marks["sums"]
            some = replace(
                some,
                summed=rows_where(self.summed, requested),
                sums=self.sums.sample(requested, received),
                sampled_sums=requested,
            )
        if self.fold is not None and self.others is not None:
            subset = self.fold.route.marked(*marks["fold"])
            fold = self.fold.of(subset, marks["fold"][1])
            some = replace(some, others=self.others[subset.sent], fold=fold)
        return some

    def without_exchanges(self) -> Pieces:
        """Nothing of what others have: rows of this rank's own, as its own sources make them."""
        if self.mine is None:
            return Pieces(self.local)
        local = take_rows(CSR(self.local), self.mine).pattern
        return Pieces(local, sampled_rows=self.mine)


def check_attention(algorithm: Algorithm, who: str = "attention") -> None:
    """Refuse an algorithm under which rows are added up, or cut into columns, on their way."""
    if "attention" not in replace(algorithm, relays=False).can:
        raise InputError(f"{who} needs {NEEDED}")
    if "attention" not in algorithm.can:
        raise InputError(
            f"{who} needs --no-relays, or --cover column and --algo 1d, 1.5d or 2d: relays add up "
            "partial sums, and it adds nothing up before its weights are known"
        )


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
    if rest and any(hop.rounds is not None for hop in first.hops):
        raise InputError(f"{WHAT_WORKS}: this plan folds what a few peers at a time sent")
    if not first.hops or first.remote is None:
        return Pieces(local, mine=mine, others=others, fold=fold)
    remote, columns = first.remote.pattern, first.local.shape[1]
    everything = CSR(Selection(torch.arange(columns, device=local.device), columns))
    if all(hop.sends_rows and hop.sums is None for hop in first.hops):
        hops = tuple(replace(hop, send=CSR(hop.send.pattern)) for hop in first.hops)
        fetch = Stage(everything, None, hops)
        return Pieces(local, remote, fetch, mine=mine, others=others, fold=fold)
    hop = _only_hop(first)
    if hop.sums is None:
        raise InputError(f"{WHAT_WORKS}: this plan adds rows up on their way")
    several, route = hop.send.row_lengths > 1, hop.route()
    summed = rows_where(hop.send.pattern, several)
    received, way = columns_where(remote, hop.sums), route.marked(several, hop.sums).route
    # These are exchanges of their own from here on.
    sums = Partials(hop.axis, Route(way.counts, way.names), received, _row_of_each(received))
    chosen = Selection(hop.send.indices[hop.send.indptr[:-1][~several]], columns)
    route = route.marked(~several, ~hop.sums).route
    remote = columns_where(remote, ~hop.sums)
    rows = Hop(hop.axis, CSR(chosen), route.counts, names=route.names)
    fetch = Stage(everything, None, (rows,))
    return Pieces(local, remote, fetch, summed, sums, mine, others, fold)


def _only_hop(stage: Stage) -> Hop:
    (hop, *more) = stage.hops
    if more or hop.relay is not None:
        raise InputError(f"{WHAT_WORKS}: this plan adds rows up on their way")
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
    hop, stays = _only_hop(stage), stage.local.pattern
    if not isinstance(stays, Selection) or not isinstance(hop.send.pattern, Selection):
        raise InputError(f"{WHAT_WORKS}: this plan does not end with a fold")
    received = stage.remote.pattern
    way = Partials(hop.axis, hop.route(), received, _row_of_each(received))
    return stays.indices.long(), hop.send.indices.long(), way


def _row_of_each(pattern: Pattern) -> Tensor:
    """The row of the one nonzero in each column, int64 [cols]."""
    rows = torch.arange(pattern.shape[0], device=pattern.device)
    of_columns = torch.empty(pattern.shape[1], dtype=torch.int64, device=pattern.device)
    of_columns[pattern.indices.long()] = rows.repeat_interleave(pattern.row_lengths)
    return of_columns


def rows_where(pattern: Pattern, chosen: Tensor) -> Pattern:
    """Some rows of a pattern."""
    lengths = pattern.row_lengths
    indices = pattern.indices[chosen.repeat_interleave(lengths)]
    indptr = _begins(lengths[chosen])
    return Pattern.trusted(indptr, indices, (len(indptr) - 1, pattern.shape[1]))


def columns_where(pattern: Pattern, chosen: Tensor, columns: int | None = None) -> Pattern:
    """Some columns of a pattern, numbered anew; so many, where that is known."""
    columns = int(chosen.sum()) if columns is None else columns
    number = (chosen.cumsum(0) - 1).to(index_dtype(columns))
    stays = chosen[pattern.indices.long()]
    indptr = _begins(stays)[pattern.indptr]
    indices = number[pattern.indices[stays].long()]
    return Pattern.trusted(indptr, indices, (pattern.shape[0], columns))


def _begins(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(torch.cumsum(lengths, 0, dtype=torch.int64), (1, 0))
