"""Schemes: who computes what. Each makes the plan of one rank, and yields what it has to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.exchange.needs import (
    Gather,
    Scheme,
    Swap,
    gather_number,
    needs_of,
    rows_from,
    whole_rows,
)
from spgnn.exchange.plan import Factor, Hop, Plan, Stage, Turn, Turned
from spgnn.layout import EVERYONE, Axes, Int64Array, RowLayout, grouped_order
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.registry import Strategy
from spgnn.sparse import CSR

if TYPE_CHECKING:
    from spgnn.exchange.algorithm import Algorithm

STRATEGIES: tuple[str, ...] = get_args(Strategy)


def grid(
    algorithm: Algorithm,
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    column_scale: Tensor | None = None,
    edge_labels: Tensor | None = None,
) -> Scheme[Plan]:
    """1D, 1.5D, 2D, feature-parallel and 3D: one family, meshes of three axes (docs/schemes.md).

    Rank (i, j, k) holds slice (j, k) of block row i of H. Rows of H travel along "row", partial
    sums are added along "replica", and all ranks along "feature" multiply the same part of A by a
    share of the columns of H each (:class:`Turned`). See :meth:`Algorithm.scheme`.
    """
    if "feature" not in axes.names:
        stages = yield from _expand_and_fold(algorithm, block, layout, axes, rank, column_scale)
        return Plan(stages)
    rows = yield from gather_number("feature", block.shape[0])
    owned = layout.sizes[axes.group("feature", rank)]
    # From here on the ranks of a group are as one, which has the rows of all of them.
    arrays = (block.row_lengths, block.indices, block.values, block.row_scale, column_scale)
    lengths, columns, values, row_scale, column_scale = yield Gather("feature", arrays)
    block = rows_from(lengths, columns, values, row_scale, block.shape[1])
    layout = layout.grouped(len(owned))
    stages = yield from _expand_and_fold(algorithm, block, layout, axes, rank, column_scale)
    return turned(stages, owned, rows, axes.coordinate("feature", rank))


def turned(stages: tuple[Factor, ...], owned: Int64Array, rows: Int64Array, me: int) -> Plan:
    """A plan of stages in which each rank of a group multiplies a share of the columns."""
    return Plan((Turned(Turn("feature", me, owned), stages, Turn("feature", me, rows)),))


def _expand_and_fold(
    algorithm: Algorithm,
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    column_scale: Tensor | None,
) -> Scheme[tuple[Stage, ...]]:
    """Block columns along "row", then partial sums added along "replica"."""
    peers = axes.group("row", rank)
    members = np.arange(peers.start, peers.stop, peers.step) * layout.parts // axes.ranks
    me = axes.coordinate("row", rank)
    rows, block = yield from of_block_row(block, layout, axes.size("replica"))
    first = yield from expand(algorithm, block, layout, members, me, column_scale)
    return (first, *fold(rows, axes.coordinate("replica", rank)))


def expand(
    algorithm: Algorithm,
    block: CSR,
    layout: RowLayout,
    members: Int64Array,
    me: int,
    column_scale: Tensor | None = None,
) -> Scheme[Stage]:
    """Multiply a block, of which the parts that are `members` along "row" have the columns."""
    own, sums = int(layout.sizes[members[me]]), None
    oblivious = algorithm.exchange == "oblivious"
    if oblivious:
        L, R, send, counts = whole_rows(block, layout, members, me)
    else:
        L, R, needs = needs_of(block, layout, members, me, algorithm.cover)
        send, counts = yield from needs.exchange("row", own)
        sums = needs.sums
    L, send = L.with_scales(L.row_scale, column_scale), send.with_scales(None, column_scale)
    if len(members) == 1:
        return Stage(L)
    hop = Hop("row", send, counts, broadcast=oblivious, sums=sums)
    return Stage(L, R, (hop,))


def of_block_row(
    block: CSR, layout: RowLayout, c: int, run: int = 1
) -> Scheme[tuple[Int64Array, CSR]]:
    """From own rows of all columns to all rows of the block row, in the columns of this replica.

    Replicas take turns: the columns of `run` neighbouring parts are one's, those of the next `run`
    are the next one's. Parts along "replica" are neighbours, so in turns of 1 their own are theirs.
    """
    if c == 1:
        return np.array([block.shape[0]]), block
    rows = block.shape[0]
    of_each = yield from gather_number("replica", rows)
    replica = layout.owner(block.indices.numpy()) // run % c
    order = torch.from_numpy(grouped_order(replica, c))
    row = np.repeat(np.arange(rows), block.row_lengths.numpy())
    lengths = np.bincount(replica * rows + row, minlength=c * rows).astype(np.int32)
    values = None if block.values is None else block.values[order]
    scale = None if block.row_scale is None else block.row_scale.repeat(c)
    counts = (np.full(c, rows), np.bincount(replica, minlength=c))
    arrays = ((torch.from_numpy(lengths), scale), (block.indices[order], values))
    (lengths, scale), (columns, values) = (yield Swap("replica", counts, arrays)).arrays
    return of_each, rows_from(lengths, columns, values, scale, block.shape[1])


def fold(rows: Int64Array, me: int) -> tuple[Stage, ...]:
    """Add the partial sums that the ranks along "replica" hold of their common rows.

    Each rank keeps its own rows, sends the others theirs, and adds what it gets. No stage at all
    where there is one replica.
    """
    copies = len(rows) - 1
    if not copies:
        return ()
    ends, own = np.cumsum(rows), int(rows[me])
    first, last, total = int(ends[me]) - own, int(ends[me]), int(ends[-1])
    mine = torch.arange(first, last)
    others = torch.cat((torch.arange(first), torch.arange(last, total)))
    # Row r of ours is row r of what each of the others sends.
    received = (torch.arange(own)[:, None] + own * torch.arange(copies)).ravel()
    pattern = (
        Selection(received, own)
        if copies == 1
        else Pattern(torch.arange(own + 1) * copies, received, (own, own * copies))
    )
    apart = np.arange(len(rows)) != me
    counts = RowCounts(rows * apart, own * apart, int(rows.max()))
    hop = Hop("replica", CSR(Selection(others, total)), counts)
    return (Stage(CSR(Selection(mine, total)), CSR(pattern), (hop,), tuple(rows.tolist())),)


def deal(
    block: CSR, layout: RowLayout, rank: int, labels: Tensor | None = None
) -> Scheme[tuple[CSR, Int64Array, RowCounts]]:
    """Move every nonzero to the rank that its label names; by default an endpoint's owner.

    Returns
    -------
    block : CSR
        What this rank multiplies: own rows, then parts of rows of the others.
    rows : int64 array
        The own rows whose nonzeros others were given, grouped by peer.
    counts : RowCounts
        Of these rows, to and from each peer.

    Raises
    ------
    InputError
        If there is no label for each nonzero, or one is no rank.
    """
    ranks, rows = layout.parts, block.shape[0]
    if labels is None:
        goes = yield from _lower_degree(block, layout, rank)
    else:
        goes = check_labels(labels, block, layout)
    row = np.repeat(np.arange(rows), block.row_lengths.numpy())
    stays, moves = np.flatnonzero(goes == rank), np.flatnonzero(goes != rank)
    moves = moves[grouped_order(goes[moves], ranks)]
    # Nonzeros of one row for one peer are neighbours now.
    to, of = goes[moves], row[moves]
    first = np.flatnonzero(np.append(True, (to[1:] != to[:-1]) | (of[1:] != of[:-1]))[: len(to)])
    its_row = of[first]

    def taken(array: Tensor | None, places: Int64Array) -> Tensor | None:
        return None if array is None else array[torch.from_numpy(places)]

    lengths = torch.from_numpy(np.diff(np.append(first, len(to))).astype(np.int32))
    response = yield Swap(
        "row",
        (np.bincount(to[first], minlength=ranks), np.bincount(to, minlength=ranks)),
        (
            (lengths, taken(block.row_scale, its_row)),
            (block.indices[torch.from_numpy(moves)], taken(block.values, moves)),
        ),
    )
    (lengths, scale), (columns, values) = response.arrays
    # Own rows come first, those of the others after them.
    own_lengths = torch.from_numpy(np.bincount(row[stays], minlength=rows))
    own_values = taken(block.values, stays)
    if own_values is not None:
        # With a second dimension: of empty vectors, torch.cat has no second derivative.
        values = torch.cat((own_values[:, None], values[:, None]))[:, 0]
    multiplied = rows_from(
        torch.cat((own_lengths, lengths.long())),
        torch.cat((block.indices[torch.from_numpy(stays)], columns)),
        values,
        None if block.row_scale is None else torch.cat((block.row_scale, scale)),
        block.shape[1],
    )
    return multiplied, its_row, response.counts[0]


def vertex_cut(
    algorithm: Algorithm,
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    column_scale: Tensor | None = None,
    edge_labels: Tensor | None = None,
) -> Scheme[Plan]:
    """Nonzeros anywhere: expand rows of H, multiply, fold partial sums.

    Raises
    ------
    InputError
        If there is no label for each nonzero, or one is no rank.
    """
    rows = block.shape[0]
    multiplied, its_row, dealt = yield from deal(block, layout, rank, edge_labels)
    everyone = np.arange(layout.parts)
    first = yield from expand(algorithm, multiplied, layout, everyone, rank, column_scale)
    if layout.parts == 1:
        return Plan((first,))
    # What comes back from the others is added to the rows whose nonzeros they were given.
    added = rows_from(
        torch.from_numpy(np.bincount(its_row, minlength=rows)),
        torch.from_numpy(np.argsort(its_row, kind="stable")).to(index_dtype(len(its_row))),
        None,
        None,
        len(its_row),
    )
    total = multiplied.shape[0]
    hop = Hop("row", CSR(Selection(torch.arange(rows, total), total)), dealt.reversed())
    return Plan((first, Stage(CSR(Selection(torch.arange(rows), total)), added, (hop,))))


def _lower_degree(block: CSR, layout: RowLayout, rank: int) -> Scheme[Int64Array]:
    """The rank that multiplies each nonzero where nobody says: an endpoint's owner, int64 [nnz]."""
    begin, end = layout.range(rank)
    indices = block.indices.numpy()
    goes = np.full(block.nnz, rank, np.int64)
    remote = np.flatnonzero((indices < begin) | (indices >= end))
    columns, place, counts = np.unique(indices[remote], return_inverse=True, return_counts=True)
    here = np.bincount(np.delete(indices, remote) - begin, minlength=end - begin)
    # Own columns are counted in as well; they come where this rank stands among the owners.
    before = int(np.searchsorted(columns, begin))
    columns = np.concatenate((columns[:before], np.arange(begin, end), columns[before:]))
    counts = np.concatenate((counts[:before], here, counts[before:]))
    owners = layout.owner(columns)
    per_owner = np.bincount(owners, minlength=layout.parts)
    numbers = torch.from_numpy(columns - layout.offsets[owners])
    request = Swap(EVERYONE, (per_owner,), ((numbers, torch.from_numpy(counts)),))
    response = yield request
    ((theirs, their_counts),) = response.arrays
    total = torch.zeros(end - begin, dtype=torch.int64).index_add_(0, theirs, their_counts)
    back = yield Swap(EVERYONE, (response.counts[0].recv,), ((total[theirs],),))
    ((totals,),) = back.arrays
    column = np.where(place < before, place, place + (end - begin))
    degree = np.repeat(block.row_lengths.numpy(), block.row_lengths.numpy())[remote]
    goes[remote] = np.where(totals.numpy()[column] < degree, owners[column], rank)
    return goes


def check_labels(labels: Tensor, block: CSR, layout: RowLayout) -> Int64Array:
    """Labels of the nonzeros of a block, int64 [nnz], which are ranks."""
    ranks_of, nnz, ranks = labels.numpy(), block.nnz, layout.parts
    if ranks_of.shape != (nnz,) or ranks_of.dtype.kind not in "iu":
        raise InputError(f"edge labels must be integers [{nnz}], one for each nonzero")
    if nnz and not 0 <= ranks_of.min() <= ranks_of.max() < ranks:
        worst = ranks_of.max() if ranks_of.max() >= ranks else ranks_of.min()
        raise InputError(f"edge label {worst} is outside [0, {ranks}), the ranks")
    return ranks_of.astype(np.int64)


def fetch(requests: CSR, layout: RowLayout, rank: int) -> Scheme[Plan]:
    """The plan that makes listed rows of all ranks, wherever they are.

    `requests` [listed, n] selects rows by global number; what is listed twice travels once.
    """
    L, R, needs = needs_of(requests, layout, range(layout.parts), rank, "column")
    send, counts = yield from needs.exchange(EVERYONE, int(layout.sizes[rank]))
    if layout.parts == 1:
        return Plan((Stage(L),))
    return Plan((Stage(L, R, (Hop(EVERYONE, send, counts),)),))


def stack(blocks: Sequence[CSR]) -> CSR:
    """Blocks of rows [rows, n], one below the other."""
    values = [block.values for block in blocks if block.values is not None]
    scales = [block.row_scale for block in blocks if block.row_scale is not None]
    return rows_from(
        torch.cat([block.row_lengths for block in blocks]),
        torch.cat([block.indices for block in blocks]),
        torch.cat(values) if len(values) == len(blocks) else None,
        torch.cat(scales) if len(scales) == len(blocks) else None,
        blocks[0].shape[1],
    )
