"""Vertex cut: nonzeros anywhere. Expand rows of H, multiply, fold partial sums.

Every nonzero is multiplied by the rank that its label names (PowerGraph, Gonzalez et al., OSDI'12;
DistGNN, Md et al., SC'21). It moves there once, when the plan is made. A product then has two
stages: rank p receives the rows of H in whose columns it has nonzeros (*expand*: an ordinary
demand), multiplies, and sends the sums of rows that it does not own to their owners, who add them
(*fold*). The owner of a row handed its nonzeros out, so it knows what comes back without asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.errors import InputError
from spgnn.exchange.inspect import Ask, Cover, by_receiver, demand, swapped, swapped_counts
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.regroup import stack
from spgnn.exchange.schemes import Scheme
from spgnn.layout import EVERYONE, Int64Array, RowLayout, grouped_order
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Dealt:
    """What a scheme yields to hand nonzeros to the ranks that multiply them.

    Only rows that have nonzeros for a peer are told to it, so that nothing is as long as rows ×
    peers. The answer is what the others hand to this rank: a block whose rows are those of the
    peers, one peer after another, and how many rows go where.

    Attributes
    ----------
    axis : str
    rows, entries : int64 [peers]
        Rows of which each peer gets nonzeros, and how many; none for this rank itself.
    lengths : Tensor int32 [rows in all]
        Nonzeros of each row that go to its peer.
    columns, values : Tensor [nnz]
        By peer, then by row.
    row_scale : Tensor [rows in all], optional
    width : int
        Columns of the whole matrix.
    """

    axis: str
    rows: Int64Array
    entries: Int64Array
    lengths: Tensor
    columns: Tensor
    values: Tensor | None
    row_scale: Tensor | None
    width: int

    def settle(self, comm: Communicator) -> tuple[CSR, RowCounts]:
        """The exchange over a communicator."""
        rows, entries = swapped_counts(comm, self.rows, self.entries)
        arrays = (self.lengths, self.columns, self.values, self.row_scale)
        counts = (rows, entries, entries, rows)
        received = [
            None if array is None else swapped(comm, array, count)
            for array, count in zip(arrays, counts, strict=True)
        ]
        return self._block(*received), rows

    @staticmethod
    def settle_all(parts: Sequence[Dealt]) -> list[tuple[CSR, RowCounts]]:
        """The exchange of a whole group in one process."""
        rows = np.stack([part.rows for part in parts])
        entries = np.stack([part.entries for part in parts])
        arrays = zip(
            by_receiver([part.lengths for part in parts], rows),
            by_receiver([part.columns for part in parts], entries),
            by_receiver([part.values for part in parts], entries),
            by_receiver([part.row_scale for part in parts], rows),
            strict=True,
        )
        largest = int(rows.max(initial=0))
        return [
            (part._block(*received), RowCounts(rows[rank], rows[:, rank], largest))
            for rank, (part, received) in enumerate(zip(parts, arrays, strict=True))
        ]

    def _block(
        self,
        lengths: Tensor | None,
        columns: Tensor | None,
        values: Tensor | None,
        row_scale: Tensor | None,
    ) -> CSR:
        assert lengths is not None
        assert columns is not None
        pattern = Pattern.trusted(_begins(lengths), columns, (len(lengths), self.width))
        return CSR(pattern, values, row_scale)


@dataclass(frozen=True, eq=False)
class ColumnCounts:
    """What a scheme yields to learn how many nonzeros some columns have over all ranks.

    Attributes
    ----------
    axis : str
    asked : int64 [peers]
        Columns asked of each owner, this rank among them.
    columns : Tensor int64 [columns in all]
        By owner, as it numbers its own.
    counts : Tensor int64 [columns in all]
        Nonzeros this rank has in each.
    own : int
        Columns this rank owns.
    """

    axis: str
    asked: Int64Array
    columns: Tensor
    counts: Tensor
    own: int

    def settle(self, comm: Communicator) -> Tensor:
        """The numbers over all ranks, int64 [columns in all]. Collective."""
        (rows,) = swapped_counts(comm, self.asked)
        found = self._answered(swapped(comm, self.columns, rows), swapped(comm, self.counts, rows))
        return swapped(comm, found, rows.reversed())

    @staticmethod
    def settle_all(parts: Sequence[ColumnCounts]) -> list[Tensor]:
        """The same for a whole group in one process."""
        asked = np.stack([part.asked for part in parts])
        columns = by_receiver([part.columns for part in parts], asked)
        counts = by_receiver([part.counts for part in parts], asked)
        found = []
        for part, its_columns, its_counts in zip(parts, columns, counts, strict=True):
            assert its_columns is not None
            assert its_counts is not None
            found.append(part._answered(its_columns, its_counts))
        answers = by_receiver(found, asked.T)
        return [answer for answer in answers if answer is not None]

    def _answered(self, columns: Tensor, counts: Tensor) -> Tensor:
        total = torch.zeros(self.own, dtype=torch.int64).index_add_(0, columns, counts)
        return total[columns]


def vertex_cut(
    block: CSR,
    layout: RowLayout,
    rank: int,
    *,
    labels: Tensor | None = None,
    cover: Cover = "column",
    column_scale: Tensor | None = None,
) -> Scheme[Plan]:
    """Nonzeros anywhere: expand, multiply, fold.

    Parameters
    ----------
    block : CSR [rows, n]
        The rank's rows of A, or those of them that are wanted, with global columns; may carry
        values and a ``row_scale``, which travel with the nonzeros.
    layout : RowLayout
        Rows of H over all ranks.
    rank : int
    labels : Tensor, integers in [0, ranks), [nnz], optional
        The rank that multiplies each nonzero. By default as :func:`lower_degree` says.
    cover : {"column", "row", "minimum"}
        What covers the nonzeros a rank multiplies in the columns of another.
    column_scale : Tensor [own rows], optional
        Scaling of the columns this rank owns.

    Raises
    ------
    InputError
        If there is no label for each nonzero, or one is no rank.
    """
    ranks, own = layout.parts, int(layout.sizes[rank])
    if labels is None:
        goes = yield from lower_degree(block, layout, rank)
    else:
        goes = checked_labels(labels, block, layout)
    rows, (kept, given, mine) = block.shape[0], _dealt(block, goes, rank, ranks)
    received, counts = yield given
    multiplied = stack([kept, received])
    members = range(ranks)
    L, R, asked = demand(multiplied, layout, members, rank, cover)
    send, needed = yield Ask("row", asked, own)
    L, send = L.with_scales(L.row_scale, column_scale), send.with_scales(None, column_scale)
    if ranks == 1:
        return Plan((Stage(L),))
    # The sums of own rows come first, those of the others' rows after them.
    made = multiplied.shape[0]
    sums = CSR(Selection(torch.arange(rows, made), made))
    fold = Hop("row", sums, counts.reversed())
    first = Stage(L, R, (Hop("row", send, needed, sums=asked.sums),))
    return Plan(
        (first, Stage(CSR(Selection(torch.arange(rows), made)), _added(mine, rows), (fold,)))
    )


def lower_degree(block: CSR, layout: RowLayout, rank: int) -> Scheme[Int64Array]:
    """The rank that multiplies each nonzero where nobody says: an endpoint's owner.

    Nonzero (i, j) goes to the owner of j if column j has fewer nonzeros than row i, else it stays
    with the owner of i: of two endpoints, the one with more nonzeros is the one that other ranks
    get to see (degree-based hashing, Xie et al., NIPS'14, with the partition in place of the hash).
    Columns are counted in the rows that are wanted of all ranks.

    Parameters
    ----------
    block, layout, rank
        See :func:`vertex_cut`.

    Returns
    -------
    int64 [nnz]
    """
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
    totals = yield ColumnCounts(
        EVERYONE,
        np.bincount(owners, minlength=layout.parts),
        torch.from_numpy(columns - layout.offsets[owners]),
        torch.from_numpy(counts),
        end - begin,
    )
    column = np.where(place < before, place, place + (end - begin))
    degree = np.repeat(block.row_lengths.numpy(), block.row_lengths.numpy())[remote]
    goes[remote] = np.where(totals.numpy()[column] < degree, owners[column], rank)
    return goes


def checked_labels(labels: Tensor, block: CSR, layout: RowLayout) -> Int64Array:
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


def _dealt(block: CSR, goes: Int64Array, rank: int, ranks: int) -> tuple[CSR, Dealt, Int64Array]:
    """What stays of a block (all its rows), what goes, and the row of each that goes."""
    row = np.repeat(np.arange(block.shape[0]), block.row_lengths.numpy())
    stays = np.flatnonzero(goes == rank)
    moves = np.flatnonzero(goes != rank)
    moves = moves[grouped_order(goes[moves], ranks)]
    # Nonzeros of one row for one peer are neighbours now.
    to, of = goes[moves], row[moves]
    first = np.flatnonzero(np.append(True, (to[1:] != to[:-1]) | (of[1:] != of[:-1]))[: len(to)])
    lengths = np.diff(np.append(first, len(to)))
    its_row = of[first]

    def taken(array: Tensor | None, places: Int64Array) -> Tensor | None:
        return None if array is None else array[torch.from_numpy(places)]

    per_row = torch.from_numpy(np.bincount(row[stays], minlength=block.shape[0]))
    columns = block.indices[torch.from_numpy(stays)]
    pattern = Pattern.trusted(_begins(per_row), columns, block.shape)
    kept = CSR(pattern, taken(block.values, stays), block.row_scale)
    given = Dealt(
        "row",
        np.bincount(to[first], minlength=ranks),
        np.bincount(to, minlength=ranks),
        torch.from_numpy(lengths.astype(np.int32)),
        block.indices[torch.from_numpy(moves)],
        taken(block.values, moves),
        taken(block.row_scale, its_row),
        block.shape[1],
    )
    return kept, given, its_row


def _added(rows: Int64Array, own: int) -> CSR:
    """Adds received row k to row ``rows[k]`` of ours: [own, received]."""
    indptr = _begins(torch.from_numpy(np.bincount(rows, minlength=own)))
    order = torch.from_numpy(np.argsort(rows, kind="stable"))
    shape = (own, len(rows))
    return CSR(Pattern.trusted(indptr, order.to(index_dtype(len(rows))), shape))


def _begins(lengths: Tensor) -> Tensor:
    indptr = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=indptr[1:])
    return indptr
