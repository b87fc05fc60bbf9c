"""Attention over the nonzeros of one matrix on all ranks, counted: what its engine sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from spgnn.attention.pieces import Partials, Pieces, pieces
from spgnn.comm import RowCounts
from spgnn.exchange.plan import Plan
from spgnn.layout import Int64Array
from spgnn.plan.hops import HopCensus, Moved, Nodes, count_rows
from spgnn.sparse import SUM_DTYPE

# Rows for which a layer of attention keeps data, other than its input and output rows: rows of
# sources that are received; softmaxes that others ask for; rows before a fold, and the same where
# there is one; unfinished softmaxes that are merged; own rows where others ask for softmaxes.
BESIDE = ("received", "asked", "partial", "gathered", "merged", "shared")


# Of a rank, as `count_weighed` lists them.
_NUMBERS = ("rows", "columns", "partial", "fetched", "asked", "local", "remote", "summed", "kept")


@dataclass(frozen=True)
class Shape:
    """Shape of the messages of an attention layer.

    Attributes
    ----------
    width : int
        Columns of a source's row: heads × channels.
    heads : int
    dtype : torch.dtype
        Of the rows; scores travel in that of their sums.
    whole_rows : bool
        Whether scores need the destination's whole row (GATv2), not a number a head (GAT).
    """

    width: int
    heads: int
    dtype: torch.dtype
    whole_rows: bool


@dataclass(frozen=True, eq=False)
class WeighedCensus:
    """The pieces of a plan (:class:`~spgnn.attention.pieces.Pieces`) of all ranks, int64 [P] each.

    Attributes
    ----------
    rows, columns : of the plan
    partial : rows before the fold
    fetched : rows of sources that are received
    asked : softmaxes that other ranks ask for
    local, remote, summed : nonzeros
    kept : rows in buffers from one layer to the next
    fetch, sums, fold : HopCensus, optional
        Rows of sources, unfinished softmaxes, and rows of partials; to the destinations.
    """

    rows: Int64Array
    columns: Int64Array
    partial: Int64Array
    fetched: Int64Array
    asked: Int64Array
    local: Int64Array
    remote: Int64Array
    summed: Int64Array
    kept: Int64Array
    fetch: HopCensus | None
    sums: HopCensus | None
    fold: HopCensus | None

    @property
    def beside(self) -> Int64Array:
        """Rows of each of `BESIDE`, [6, P]."""
        nobody = np.zeros_like(self.rows)
        gathered = nobody if self.fold is None else self.partial
        shared = nobody if self.sums is None else self.columns
        return np.stack((self.fetched, self.asked, self.partial, gathered, self.merged, shared))

    @property
    def merged(self) -> Int64Array:
        """Unfinished softmaxes that arrive and are merged."""
        ways = [way.received.sum(axis=0) for way in (self.sums, self.fold) if way is not None]
        return np.asarray(sum(ways, np.zeros_like(self.rows)), np.int64)

    def exchanges(self, shape: Shape, *, adjoint: bool) -> list[Moved]:
        """Traffic of each exchange of a layer, or of its gradient, in their order."""
        found = list[Moved]()
        if self.fold is not None:
            found.append(_carried(self.fold, shape, adjoint=adjoint, back=True))
        if self.sums is not None:
            found.append(_carried(self.sums, shape, adjoint=adjoint, back=True))
        if self.fetch is not None:
            found.append(self.fetch.traffic(shape.width, shape.dtype, adjoint=adjoint))
        if self.sums is not None:
            found.append(_carried(self.sums, shape, adjoint=adjoint, back=False))
        if self.fold is not None:
            found.append(_carried(self.fold, shape, adjoint=adjoint, back=False))
        return found

    @property
    def plain(self) -> WeighedCensus:
        """The same with rows as they are."""
        fetch, sums, fold = (
            None if hop is None else hop.plain for hop in (self.fetch, self.sums, self.fold)
        )
        return replace(self, fetch=fetch, sums=sums, fold=fold)


def _carried(hop: HopCensus, shape: Shape, *, adjoint: bool, back: bool) -> Moved:
    """One exchange of a way, as :meth:`spgnn.attention.passes.Way.carried` has it."""
    weighed = back == adjoint
    scores = SUM_DTYPE[shape.dtype]
    rows = shape.width if weighed or shape.whole_rows else 0
    now = shape.heads if weighed or not shape.whole_rows else 0
    late = shape.heads if weighed and adjoint else 0
    wire = hop.wire
    parts = [
        hop.traffic(rows, shape.dtype, adjoint=back),
        replace(hop, wire=wire and wire.of_scores).traffic(now, scores, adjoint=back),
        replace(hop, wire=wire and wire.of_late_scores).traffic(late, scores, adjoint=back),
    ]
    sent, received, messages = zip(*parts, strict=True)
    return sum(sent), sum(received), np.max(np.stack(messages), axis=0)


def count_weighed(plans: Sequence[Plan], nodes: Nodes) -> WeighedCensus:
    """Count what attention makes of the plans of one matrix on all ranks.

    Raises
    ------
    InputError
        If rows take a way on which they are added up, or are cut into columns.
    """
    made = [pieces(plan) for plan in plans]
    figures = [
        (
            *plan.shape,
            each.partial_rows,
            each.fetched,
            each.asked,
            each.local.nnz,
            0 if each.remote is None else each.remote.nnz,
            0 if each.summed is None else each.summed.nnz,
            0 if each.fetch is None else each.fetch.buffers(1),
        )
        for plan, each in zip(plans, made, strict=True)
    ]
    fold = [each.fold for each in made if each.fold is not None]
    sums = [each.sums for each in made if each.sums is not None]
    numbers = np.array(figures, np.int64).T
    given: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True))
    return WeighedCensus(
        **given, fetch=_fetched(made, nodes), sums=_way(sums, nodes), fold=_way(fold, nodes)
    )


def _fetched(made: Sequence[Pieces], nodes: Nodes) -> HopCensus | None:
    hops = [each.fetch.hops[0] for each in made if each.fetch is not None]
    if not hops:
        return None
    entries = [hop.send.nnz for hop in hops]
    return count_rows(hops[0].axis, [hop.counts for hop in hops], entries, nodes, sums=False)


def _way(ways: Sequence[Partials], nodes: Nodes) -> HopCensus | None:
    if not ways:
        return None
    counts: list[RowCounts] = [way.counts for way in ways]
    return count_rows(ways[0].axis, counts, [c.sent for c in counts], nodes, sums=True)
