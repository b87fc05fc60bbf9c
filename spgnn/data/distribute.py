"""Every rank's share of a graph: sent by rank 0, or opened from a directory of parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.comm.traffic import RowCounts
from spgnn.data.graph import MASKS, Graph, GraphBlock, VertexData, moved_edges
from spgnn.data.shards import ShardDirectory, partition_order
from spgnn.data.source import GraphMeta, GraphSource, MemorySource
from spgnn.data.structure import rename_columns, slice_rows, stack_rows, with_columns
from spgnn.errors import InputError
from spgnn.exchange import needs_of, swap_rows
from spgnn.exchange.needs import exchange_needs
from spgnn.layout import Int64Array, RowLayout, grouped_order, inverse_permutation
from spgnn.pattern import index_dtype
from spgnn.sparse import CSR, take_rows
from spgnn.torch_internals import on_cpu


@dataclass(frozen=True)
class Slices:
    """The cut of parts into slices, one for each rank.

    Each part has `each` of them; of these, `shares` neighbouring ones are multiplied together, by
    shares of feature columns.
    """

    parts: int
    each: int
    shares: int = 1

    @property
    def weighted(self) -> bool:
        """True if cutting them takes weights."""
        return self.each > self.shares

    def cut(self, parts: RowLayout, entries: npt.ArrayLike | None) -> RowLayout:
        """Slices of about equally many column entries, and in these shares of as many rows."""
        return parts.split(self.each // self.shares, entries).split(self.shares)


@dataclass(frozen=True, eq=False)
class RankShare:
    """The share of one rank of a P/c × c mesh in a graph.

    Attributes
    ----------
    meta : GraphMeta
        Its parts are the P/c block rows.
    layout : RowLayout
        Rows over all P ranks: each block row in c slices of about equally many column entries,
        and these, where ranks share feature columns, in as many of equally many rows.
    adjacency : CSR [own rows, n], or ``None`` once it has served
    vertex_ids : Tensor int64 [own rows]
        Original ids of this rank's vertices.
    data : VertexData
        Their features, labels and masks.
    edge_labels : Tensor int32 [nnz], optional
        The part of each nonzero of the adjacency, if there are any.
    edge_attr : Tensor float32 [nnz, k], optional
        Features of its nonzeros.
    edge_attributes : dict of Tensor [nnz, …]
        All that mini-batches hand on of its nonzeros, by name.
    """

    meta: GraphMeta
    layout: RowLayout
    adjacency: CSR | None
    vertex_ids: Tensor
    data: VertexData
    edge_labels: Tensor | None = None
    edge_attr: Tensor | None = None
    edge_attributes: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Vertices in the order of their parts, each part cut into slices of neighbouring ranks.

    New row i is row ``order[i]`` of the source; `position` is the inverse, ``None`` if the order is
    the source's. `parts` and `ranks` have the new rows of each part, and of each rank.
    """

    order: Tensor
    position: Tensor | None
    parts: RowLayout
    ranks: RowLayout

    @classmethod
    def of(cls, structure: CSR, labels: npt.ArrayLike | None, slices: Slices) -> Arrangement:
        n = structure.shape[0]
        layout, order = partition_order(labels, n, slices.parts)
        entries = None
        if slices.each > 1:
            order = order[np.argsort(layout.dealt(np.arange(n), slices.each))]
        if slices.weighted:
            entries = torch.bincount(structure.indices, minlength=n)[order].numpy()
        moves = not torch.equal(order, torch.arange(n))
        position = torch.from_numpy(inverse_permutation(order.numpy())) if moves else None
        return cls(order, position, layout, slices.cut(layout, entries))

    def rows(self, structure: CSR, first: int, last: int) -> CSR:
        """New rows [first, last) of the adjacency, with new columns."""
        A = take_rows(structure, self.order[first:last])
        return A if self.position is None else rename_columns(A, self.position)


def of_columns(
    numbers: Tensor, block: CSR, layout: RowLayout, comm: Communicator
) -> tuple[Tensor, RowCounts]:
    """For each entry of a block, the number of the vertex in its column. Collective."""
    first, last = layout.range(comm.rank)
    _, _, needs = needs_of(CSR(block.pattern), layout, range(layout.parts), comm.rank, "column")
    send, counts = exchange_needs(needs, last - first, comm)
    received = swap_rows(comm, numbers[send.indices.long()], counts)
    owners = np.repeat(np.arange(layout.parts), needs.rows)
    remote = torch.from_numpy(layout.offsets[owners]) + needs.columns
    columns = block.indices.long()
    inside = (columns >= first) & (columns < last)
    result = numbers.new_empty(len(columns))
    result[inside] = numbers[columns[inside] - first]
    result[~inside] = received[torch.searchsorted(remote, columns[~inside])]
    return result, counts


@on_cpu
def induced(share: RankShare, keep: Tensor, comm: Communicator) -> RankShare:
    """The vertices of a mask [own rows], where they are, and the edges between them. Collective."""
    assert share.adjacency is not None
    rows = keep.nonzero()[:, 0]
    sizes = torch.zeros(comm.size, dtype=torch.int64)
    sizes[comm.rank] = len(rows)
    comm.all_reduce(sizes).wait()
    layout = RowLayout(np.append(0, np.cumsum(sizes.numpy())))
    number = torch.full((len(keep),), -1)
    number[rows] = torch.arange(*layout.range(comm.rank))
    part = take_rows(share.adjacency, rows)
    columns, _ = of_columns(number, part, share.layout, comm)
    stays = columns >= 0
    adjacency = renumbered(part, stays, columns, layout.rows)
    in_rows = keep.repeat_interleave(share.adjacency.row_lengths)
    edge_labels, edge_attr = (
        None if numbers is None else numbers[in_rows][stays]
        for numbers in (share.edge_labels, share.edge_attr)
    )
    each = comm.size // share.meta.parts
    meta = replace(
        share.meta,
        vertices=layout.rows,
        edges=comm.agree(adjacency.nnz, "sum"),
        offsets=tuple(layout.offsets[::each].tolist()),
    )
    data = VertexData(**share.data.take(rows))
    ids = share.vertex_ids[rows]
    return RankShare(meta, layout, adjacency, ids, data, edge_labels, edge_attr)


def renumbered(block: CSR, stays: Tensor, columns: Tensor, n: int) -> CSR:
    """A block without some of its entries, and with n other columns, which rise in each row too.

    `columns` [nnz] has the new one of each entry; only those of entries that stay matter.
    """
    ends = torch.cat((torch.zeros(1, dtype=torch.int64), stays.cumsum(0)))
    values = None if block.values is None else block.values[stays]
    indices = columns[stays].to(index_dtype(n))
    return CSR.of(ends[block.indptr], indices, (block.shape[0], n), values)


def from_shards(
    shards: ShardDirectory, comm: Communicator, parts: int, *, shares: int = 1
) -> RankShare:
    """Open this rank's part of a sharded graph, and nothing else. Collective."""
    c = comm.size // parts
    if shards.meta.parts != parts:
        raise InputError(
            f"{shards.directory}: holds {shards.meta.parts} parts, but {comm.size} ranks "
            f"with c = {c} need {parts}; write it with --parts {parts}"
        )
    block = shards.block(comm.rank // c)
    if c == 1:
        data = VertexData(**block.take(slice(None)))
        A, ids = block.adjacency, block.vertex_ids
        return RankShare(shards.meta, shards.layout, A, ids, data, edge_attr=block.edge_attr)
    position = shards.layout.dealt(block.first_row + np.arange(block.rows), c) - block.first_row
    order = np.argsort(position)
    slices = Slices(parts, c, shares)
    layout = slices.cut(shards.layout, None)
    if slices.weighted:
        layout = _balanced_slices(slices, shards.layout, block, order, comm)
    first, last = layout.range(comm.rank)
    rows = torch.from_numpy(order[first - block.first_row : last - block.first_row])

    def dealt(matrix: CSR) -> CSR:
        own = take_rows(matrix, rows)
        return with_columns(own, torch.from_numpy(shards.layout.dealt(own.indices.numpy(), c)))

    A, data = dealt(block.adjacency), VertexData(**block.take(rows))
    attr = moved_edges(block.adjacency, block.edge_attr, dealt)
    return RankShare(shards.meta, layout, A, block.vertex_ids[rows], data, edge_attr=attr)


def _balanced_slices(
    slices: Slices, parts: RowLayout, block: GraphBlock, order: Int64Array, comm: Communicator
) -> RowLayout:
    """Slices of all block rows such that each has its share of the entries in its columns."""
    c = slices.each
    j = comm.rank % c
    some = slice_rows(block.adjacency, slice(block.rows * j // c, block.rows * (j + 1) // c))
    columns, counts = np.unique(some.indices.numpy(), return_counts=True)
    per_rank = np.zeros(comm.size, np.int64)
    per_rank[::c] = np.bincount(parts.owner(columns), minlength=parts.parts)
    pairs = torch.from_numpy(np.stack((columns.astype(np.int64), counts), axis=1))
    exchanged = comm.exchange_counts(per_rank.tolist())
    weights = np.zeros(block.rows)
    column, count = swap_rows(comm, pairs, exchanged).numpy().T
    np.add.at(weights, column - block.first_row, count)
    here = slices.cut(RowLayout(np.array([0, block.rows])), weights[order])
    cuts = torch.from_numpy(here.offsets[:-1] + block.first_row)
    all_cuts = cuts.new_empty(comm.size * c)
    comm.all_gather(cuts, all_cuts, [c] * comm.size)
    first_of_each = all_cuts.view(comm.size, c)[::c].ravel()
    return RowLayout(np.append(first_of_each.numpy(), parts.rows))


PIECE_BYTES = 1 << 23  # of dense features that are sent at once


def scatter(
    graph: Graph | GraphSource | None,
    labels: npt.ArrayLike | None,
    comm: Communicator,
    parts: int,
    split: int | None = None,
    *,
    shares: int = 1,
    edge_labels: npt.NDArray[np.int32] | None = None,
) -> RankShare:
    """Relabel a graph that rank 0 can read by a partition, and send every rank its share.

    Collective. Rank 0 holds the adjacency with one rank's rows of it, and then a piece of the
    features at a time; of course a source that is in memory as a whole stays there.

    Parameters
    ----------
    graph, labels, edge_labels
        On rank 0. Labels are int [n] in [0, parts), by default even blocks; those of edges are the
        part of each nonzero, in the order of the source, and are sent with the rows.
    parts : int
        Each is cut into slices, one for each of as many neighbouring ranks.
    split : int, optional
        Keep only this column of masks with several.
    shares : int
        This many neighbouring slices are multiplied together, each rank taking a share of the
        feature columns: these have equally many rows, rather than equally many column entries.

    Raises
    ------
    InputError
        On all ranks, if labels or the split do not fit the graph.
    """
    slices = Slices(parts, comm.size // parts, shares)
    reader = comm.on_rank_zero(lambda: _Reader(graph, labels, slices, split, edge_labels))
    header = comm.from_rank_zero(lambda: reader and reader.header())
    meta, layout = GraphMeta.from_record(header["meta"]), RowLayout(np.array(header["offsets"]))
    order = ids = structure = None
    if reader is not None:
        order, structure, reader.structure = reader.arrangement.order, reader.structure, None
        if reader.source.vertex_ids is not None:
            ids = reader.source.vertex_ids[order]
    own = _rows_of_all(comm, order, layout.sizes, torch.int64)
    vertex_ids = _rows_of_all(comm, ids, layout.sizes, torch.int64) if header["moved"] else own
    A, tables = _adjacency_of_all(
        comm, reader, structure, layout, weighted=meta.weighted, entries=header["entries"]
    )
    del structure  # it may be all that holds the graph's
    data = _vertex_data_of_all(comm, reader, header, meta, own, layout)
    return RankShare(meta, layout, A, vertex_ids, data, **tables)


class _Reader:
    """Rank 0's side: the source, and the rows of each rank."""

    def __init__(
        self,
        graph: Graph | GraphSource | None,
        labels: npt.ArrayLike | None,
        slices: Slices,
        split: int | None,
        edge_labels: npt.NDArray[np.int32] | None,
    ) -> None:
        assert graph is not None
        self.source = MemorySource(graph) if isinstance(graph, Graph) else graph
        self.structure: CSR | None = self.source.structure()
        self.arrangement = Arrangement.of(self.structure, labels, slices)
        tables = {
            "edge_labels": None if edge_labels is None else torch.from_numpy(edge_labels),
            "edge_attr": self.source.edge_attr(),
        }
        self.entries = {name: table for name, table in tables.items() if table is not None}
        self._split = split
        meta = self.source.meta
        self.piece_rows = self.source.piece_rows
        if meta.features and not meta.sparse_features:
            # Each rank has its share of them twice. Sparse rows have little in a piece.
            self.piece_rows = max(1, min(self.piece_rows, PIECE_BYTES // (4 * meta.features)))

    def header(self) -> dict[str, Any]:
        meta = self.source.meta
        empty = self._one_split(self.source.rows(slice(0, 0)))
        arrays = {n: getattr(empty, n) for n in ("x", "y", *MASKS) if meta.features or n != "x"}
        offsets = self.arrangement.parts.offsets.tolist()
        splits = meta.splits if self._split is None else min(meta.splits, 1)
        return {
            "meta": asdict(meta) | {"offsets": offsets, "splits": splits},
            "offsets": self.arrangement.ranks.offsets.tolist(),
            "moved": self.source.vertex_ids is not None,
            "entries": _kinds(self.entries),
            "kinds": _kinds({n: array for n, array in arrays.items() if isinstance(array, Tensor)}),
            "piece": self.piece_rows,
        }

    def pieces(self, layout: RowLayout) -> Iterator[tuple[VertexData, Int64Array]]:
        """Rows of the source, a few at a time, grouped by rank, and the number of each rank's."""
        for first, data in self.source.pieces(self.piece_rows):
            last = min(first + self.piece_rows, self.source.meta.vertices)
            position = self.arrangement.position
            new = torch.arange(first, last) if position is None else position[first:last]
            owners = layout.owner(new.numpy())
            grouped = torch.from_numpy(grouped_order(owners, layout.parts))
            rows = VertexData(**self._one_split(data).take(grouped))
            yield rows, np.bincount(owners, minlength=layout.parts)

    def _one_split(self, data: VertexData) -> VertexData:
        return data if self._split is None else data.select_split(self._split)


def _kinds(arrays: dict[str, Tensor]) -> dict[str, Any]:
    """The dtype of each array, and the shape of a row."""
    return {n: [str(a.dtype).removeprefix("torch."), list(a.shape[1:])] for n, a in arrays.items()}


def _adjacency_of_all(
    comm: Communicator,
    reader: _Reader | None,
    matrix: CSR | None,
    layout: RowLayout,
    *,
    weighted: bool,
    entries: dict[str, Any],
) -> tuple[CSR, dict[str, Any]]:
    """Own rows of rank 0's matrix, and of tables of its entries; those of one rank exist twice."""
    numbered = None
    if matrix is not None and entries:  # exact up to 2⁵³
        numbered = matrix.with_values(torch.arange(matrix.nnz, dtype=torch.float64))

    def receive(peer: int) -> tuple[CSR, dict[str, Tensor]]:
        block = numbers = None
        if reader is not None and matrix is not None:
            block = reader.arrangement.rows(matrix, *layout.range(peer))
            if numbered is not None:
                numbers = reader.arrangement.rows(numbered, *layout.range(peer)).values
        rows = np.where(np.arange(comm.size) == peer, layout.sizes, 0)
        A = _blocks_of_all(comm, block, rows, layout.rows, weighted=weighted)
        counts, tables = np.zeros(comm.size, np.int64), {}
        counts[peer] = A.nnz if block is None else block.nnz
        for name, (dtype, width) in entries.items():
            sent = None
            if reader is not None and numbers is not None:
                sent = reader.entries[name][numbers.long()]
            tables[name] = _rows_of_all(comm, sent, counts, getattr(torch, dtype), tuple(width))
        return A, tables

    return [receive(peer) for peer in range(comm.size)][comm.rank]


def _vertex_data_of_all(
    comm: Communicator,
    reader: _Reader | None,
    header: dict[str, Any],
    meta: GraphMeta,
    own: Tensor,
    layout: RowLayout,
) -> VertexData:
    """Features, labels and masks of own rows, which arrive in the order of the source."""
    rising = own.argsort()
    ascending = own[rising]
    kinds = {
        name: (getattr(torch, dtype), tuple(width))
        for name, (dtype, width) in header["kinds"].items()
    }
    data: dict[str, Any] = {
        name: torch.empty((len(own), *width), dtype=dtype) for name, (dtype, width) in kinds.items()
    }
    sparse: list[CSR] = []
    pieces = None if reader is None else reader.pieces(layout)
    for first in range(0, max(meta.vertices, 1), header["piece"]):
        last = min(first + header["piece"], meta.vertices)
        begin, end = torch.searchsorted(ascending, torch.tensor([first, last])).tolist()
        piece, rows = (None, np.zeros(comm.size, np.int64)) if pieces is None else next(pieces)
        rows[comm.rank] = end - begin
        for name, (dtype, width) in kinds.items():
            sent = None if piece is None else getattr(piece, name)
            data[name][rising[begin:end]] = _rows_of_all(comm, sent, rows, dtype, width)
        if meta.sparse_features:
            X = None if piece is None else piece.x
            assert not isinstance(X, Tensor)
            sparse.append(_blocks_of_all(comm, X, rows, meta.features, weighted=True))
    if sparse:
        X = stack_rows(sparse)
        sparse.clear()
        data["x"] = take_rows(X, rising.argsort())
    return VertexData(**data)


def _blocks_of_all(
    comm: Communicator, A: CSR | None, rows: Int64Array, columns: int, *, weighted: bool
) -> CSR:
    """Each rank's rows of a matrix that rank 0 holds. Collective."""
    sent = (None, None, None) if A is None else (A.row_lengths, A.indices, A.values)
    lengths = _rows_of_all(comm, sent[0], rows, torch.int64)
    entries = np.zeros(comm.size, np.int64)
    if A is not None:
        entries = A.indptr.numpy()[np.append(0, np.cumsum(rows))]
        entries = np.diff(entries)
    entries[comm.rank] = int(lengths.sum())
    indices = _rows_of_all(comm, sent[1], entries, index_dtype(columns))
    values = _rows_of_all(comm, sent[2], entries, torch.float32) if weighted else None
    indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    return CSR.of(indptr, indices, (len(lengths), columns), values)


def _rows_of_all(
    comm: Communicator,
    array: Tensor | None,
    rows: Int64Array,
    dtype: torch.dtype,
    width: tuple[int, ...] = (),
) -> Tensor:
    """Stretches of rank 0's array: this rank's ``rows[rank]``; rank 0 knows all. Collective."""
    mine = torch.empty((int(rows[comm.rank]), *width), dtype=dtype)
    comm.scatter(mine if array is None else array.contiguous(), mine, rows.tolist())
    return mine
