"""Schemes: who computes what. Each makes the plan of one rank, and yields what it has to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.exchange.needs import (
    Cover,
    Gather,
    Scheme,
    Swap,
    gather_number,
    needs_of,
    rows_from,
    whole_rows,
)
from spgnn.exchange.plan import Factor, Hop, Plan, Stage, Turn, Turned
from spgnn.exchange.rounds import Rounds, most_rows
from spgnn.layout import EVERYONE, Axes, Int64Array, RowLayout, grouped_order
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR

Strategy = Literal["sparsity-aware", "oblivious"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)


def grid(
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    strategy: Strategy = "sparsity-aware",
    cover: Cover = "column",
    column_scale: Tensor | None = None,
) -> Scheme[Plan]:
    """1D, 1.5D, 2D, feature-parallel and 3D: one family, meshes of three axes.

    "row"
        Rank (i, j) holds slice j of block row i of H, and takes the columns that ranks (·, j) own.
        Rows of H travel along it.
    "replica"
        Partial sums are added along it. One replica is 1D (ICPP'24, Algorithm 1; CAGNET, SC'20),
        several are 1.5D (ICPP'24, Algorithm 2; ``docs/architecture.md`` says how and why we
        differ). About as many as block rows are 2D: rows of H are expanded along one axis, partial
        sums folded along the other (Tripathy et al., SC'20), and only those that are needed
        (Abubaker & Hoefler, SpComm3D, 2024).
    "feature"
        Rank (i, j, k) holds slice (j, k) of block row i. All ranks (i, j, ·) hold the same part of
        A and multiply it by a share of the columns of H each: :class:`Turned`. With one replica
        that is feature-parallel, with one block row too it is tensor parallelism (Kurt et al., RDM,
        IPDPS'23; Ai et al., NeutronTP, PVLDB 18, 2024), and with all three axes it is 3D (Tripathy
        et al., SC'20; Ranjan et al., Plexus, SC'25).

    The oblivious strategy sends all rows to every peer (CAGNET, SC'20), by columns alone; else only
    needed rows travel. For all else, see :meth:`Algorithm.scheme`.
    """
    how = axes, rank, strategy, cover
    if "feature" not in axes.names:
        return Plan((yield from _expand_and_fold(block, layout, column_scale, *how)))
    made = yield from gather_number("feature", block.shape[0])
    owned = layout.sizes[axes.group("feature", rank)]
    # From here on the ranks of a group are as one, which has the rows of all of them.
    arrays = (block.row_lengths, block.indices, block.values, block.row_scale, column_scale)
    lengths, columns, values, row_scale, column_scale = yield Gather("feature", arrays)
    block = rows_from(lengths, columns, values, row_scale, block.shape[1])
    layout = layout.grouped(len(owned))
    stages = yield from _expand_and_fold(block, layout, column_scale, *how)
    return turned(stages, owned, made, axes.coordinate("feature", rank))


def turned(stages: tuple[Factor, ...], owned: Int64Array, made: Int64Array, me: int) -> Plan:
    """A plan of stages in which each rank of a group multiplies a share of the columns."""
    return Plan((Turned(Turn("feature", me, owned), stages, Turn("feature", me, made)),))


def _expand_and_fold(
    block: CSR,
    layout: RowLayout,
    column_scale: Tensor | None,
    axes: Axes,
    rank: int,
    strategy: Strategy,
    cover: Cover,
) -> Scheme[tuple[Stage, ...]]:
    """Block columns along "row", then partial sums added along "replica"."""
    peers = axes.group("row", rank)
    members = np.arange(peers.start, peers.stop, peers.step) * layout.parts // axes.ranks
    me, c = axes.coordinate("row", rank), axes.size("replica")
    made, block = yield from of_block_row(block, layout, c)
    first = yield from expand(block, layout, members, me, strategy, cover, column_scale)
    return (first, *fold(made, axes.coordinate("replica", rank)))


def expand(
    block: CSR,
    layout: RowLayout,
    members: Int64Array,
    me: int,
    strategy: Strategy,
    cover: Cover,
    column_scale: Tensor | None = None,
) -> Scheme[Stage]:
    """Multiply a block, of which the parts that are `members` along "row" have the columns."""
    own, sums = int(layout.sizes[members[me]]), None
    if strategy == "oblivious":
        L, R, send, counts = whole_rows(block, layout, members, me)
    else:
        L, R, needs = needs_of(block, layout, members, me, cover)
        send, counts = yield from needs.exchange("row", own)
        sums = needs.sums
    L, send = L.with_scales(L.row_scale, column_scale), send.with_scales(None, column_scale)
    if len(members) == 1:
        return Stage(L)
    hop = Hop("row", send, counts, broadcast=strategy == "oblivious", sums=sums)
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
    made = yield from gather_number("replica", rows)
    replica = layout.owner(block.indices.numpy()) // run % c
    order = torch.from_numpy(grouped_order(replica, c))
    row = np.repeat(np.arange(rows), block.row_lengths.numpy())
    lengths = np.bincount(replica * rows + row, minlength=c * rows).astype(np.int32)
    values = None if block.values is None else block.values[order]
    scale = None if block.row_scale is None else block.row_scale.repeat(c)
    counts = (np.full(c, rows), np.bincount(replica, minlength=c))
    arrays = ((torch.from_numpy(lengths), scale), (block.indices[order], values))
    (lengths, scale), (columns, values) = (yield Swap("replica", counts, arrays)).arrays
    return made, rows_from(lengths, columns, values, scale, block.shape[1])


def fold(made: Int64Array, me: int) -> tuple[Stage, ...]:
    """Add the partial sums that the ranks along "replica" hold of their common rows.

    Each rank keeps its own rows, sends the others theirs, and adds what it gets. No stage at all
    where there is one replica.
    """
    copies = len(made) - 1
    if not copies:
        return ()
    begins = np.concatenate(([0], np.cumsum(made)))
    rows, own = int(begins[-1]), int(made[me])
    mine = torch.arange(int(begins[me]), int(begins[me + 1]))
    others = torch.cat((torch.arange(int(begins[me])), torch.arange(int(begins[me + 1]), rows)))
    # Row r of ours is row r of what each of the others sends.
    received = (torch.arange(own)[:, None] + own * torch.arange(copies)).ravel()
    pattern = (
        Selection(received, own)
        if copies == 1
        else Pattern(torch.arange(own + 1) * copies, received, (own, own * copies))
    )
    apart = np.arange(len(made)) != me
    counts = RowCounts(made * apart, own * apart, int(made.max()))
    hop = Hop("replica", CSR(Selection(others, rows)), counts)
    sizes = tuple(made.tolist())
    return (Stage(CSR(Selection(mine, rows)), CSR(pattern), (hop,), sizes),)


@dataclass(frozen=True, eq=False)
class Dealt:
    """Nonzeros of a vertex cut, where they are multiplied."""

    block: CSR
    rows: Int64Array
    counts: RowCounts


def deal(block: CSR, layout: RowLayout, rank: int, labels: Tensor | None = None) -> Scheme[Dealt]:
    """Move every nonzero to the rank that its label names; by default an endpoint's owner.

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
    kept = torch.from_numpy(np.bincount(row[stays], minlength=rows))
    kept_values = taken(block.values, stays)
    if kept_values is not None:
        # With a second dimension: of empty vectors, torch.cat has no second derivative.
        kept_values = torch.cat((kept_values[:, None], values[:, None]))[:, 0]
    multiplied = rows_from(
        torch.cat((kept, lengths.long())),
        torch.cat((block.indices[torch.from_numpy(stays)], columns)),
        kept_values,
        None if block.row_scale is None else torch.cat((block.row_scale, scale)),
        block.shape[1],
    )
    return Dealt(multiplied, its_row, response.counts[0])


def vertex_cut(
    block: CSR,
    layout: RowLayout,
    rank: int,
    labels: Tensor | None = None,
    cover: Cover = "column",
    column_scale: Tensor | None = None,
) -> Scheme[Plan]:
    """Nonzeros anywhere: expand rows of H, multiply, fold partial sums.

    Raises
    ------
    InputError
        If there is no label for each nonzero, or one is no rank.
    """
    ranks, own, rows = layout.parts, int(layout.sizes[rank]), block.shape[0]
    dealt = yield from deal(block, layout, rank, labels)
    multiplied, its_row = dealt.block, dealt.rows
    L, R, needs = needs_of(multiplied, layout, range(ranks), rank, cover)
    send, needed = yield from needs.exchange("row", own)
    L, send = L.with_scales(L.row_scale, column_scale), send.with_scales(None, column_scale)
    if ranks == 1:
        return Plan((Stage(L),))
    made = multiplied.shape[0]
    sums = CSR(Selection(torch.arange(rows, made), made))
    expand = Stage(L, R, (Hop("row", send, needed, sums=needs.sums),))
    # What comes back from the others is added to the rows whose nonzeros they were given.
    added = rows_from(
        torch.from_numpy(np.bincount(its_row, minlength=rows)),
        torch.from_numpy(np.argsort(its_row, kind="stable")).to(index_dtype(len(its_row))),
        None,
        None,
        len(its_row),
    )
    hop = Hop("row", sums, dealt.counts.reversed())
    return Plan((expand, Stage(CSR(Selection(torch.arange(rows), made)), added, (hop,))))


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
    """Labels of the nonzeros of a block, int64 [nnz].

    Raises
    ------
    InputError
        If there is no label for each nonzero, or one is no rank.
    """
    found, nnz, ranks = labels.numpy(), block.nnz, layout.parts
    if found.shape != (nnz,) or found.dtype.kind not in "iu":
        raise InputError(f"edge labels must be integers [{nnz}], one for each nonzero")
    if nnz and not 0 <= found.min() <= found.max() < ranks:
        worst = found.max() if found.max() >= ranks else found.min()
        raise InputError(f"edge label {worst} is outside [0, {ranks}), the ranks")
    return found.astype(np.int64)


def in_rounds(scheme: Scheme[Plan], axes: Axes, rank: int) -> Scheme[Plan]:
    """The plan of another scheme, with what it takes to exchange with a few peers at a time."""
    plan = yield from scheme
    stages: list[Factor] = []
    for stage in plan.stages:
        if isinstance(stage, Stage) and len(stage.hops) == 1 and not stage.adds_received:
            (hop,) = stage.hops
            place = axes.coordinate(hop.axis, rank)
            own = torch.from_numpy(most_rows(hop.counts, place))[None]
            (every,) = yield Gather(EVERYONE, (own,))
            rounds = Rounds(place, tuple(every.amax(0).tolist()))
            stages.append(replace(stage, hops=(replace(hop, rounds=rounds),)))
        else:
            stages.append(stage)
    return replace(plan, stages=tuple(stages))


def fetch(wanted: CSR, layout: RowLayout, rank: int) -> Scheme[Plan]:
    """The plan that makes listed rows of all ranks, wherever they are.

    `wanted` [listed, n] selects rows by global number; what is listed twice travels once.
    """
    L, R, needs = needs_of(wanted, layout, range(layout.parts), rank, "column")
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
