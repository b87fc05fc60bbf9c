"""Give every rank its share of a graph: scattered from rank 0, or opened from shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.graph import MASKS, Graph, GraphMeta, VertexData
from spgnn.data.shards import ShardDirectory, describe, partition_order
from spgnn.errors import InputError
from spgnn.layout import Int64Array, RowLayout
from spgnn.sparse import CSR, INT32_LIMIT
from spgnn.spmm import GridComm


@dataclass(frozen=True, eq=False)
class RankShare:
    """What rank (i, j) of a P/c × c grid holds of a graph.

    Attributes
    ----------
    meta : GraphMeta
        Its parts are the P/c block rows.
    layout : RowLayout
        Rows of dense operands over all P ranks: each block row in c even slices.
    adjacency : CSR [rows of block row i, n], or ``None`` once it has served
    first_row : int
        Global number of the block row's first row.
    vertex_ids : Tensor int64 [own rows]
        Original ids of the vertices of slice j.
    data : VertexData
        Features, labels and masks of slice j.
    """

    meta: GraphMeta
    layout: RowLayout
    adjacency: CSR | None
    first_row: int
    vertex_ids: Tensor
    data: VertexData


def from_shards(shards: ShardDirectory, grid: GridComm) -> RankShare:
    """Open this rank's part of a sharded graph, and nothing else.

    Raises
    ------
    InputError
        If the number of parts is not the number of block rows.
    """
    blocks = grid.grid.block_rows
    if shards.meta.parts != blocks:
        raise InputError(
            f"{shards.directory}: holds {shards.meta.parts} parts, but {grid.grid.size} ranks with "
            f"c = {grid.grid.c} need {blocks}; write it with --parts {blocks}"
        )
    i, _ = grid.coordinates
    block = shards.block(i)
    layout = shards.layout.split(grid.grid.c)
    first, last = layout.range(grid.everyone.rank)
    own = slice(first - block.first_row, last - block.first_row)
    return RankShare(
        shards.meta,
        layout,
        block.adjacency,
        block.first_row,
        block.vertex_ids[own],
        VertexData(**block.take(own)),
    )


def scatter(graph: Graph | None, labels: npt.ArrayLike | None, grid: GridComm) -> RankShare:
    """Relabel a graph that rank 0 holds by a partition, and send every rank its share. Collective.

    Parameters
    ----------
    graph : Graph on rank 0, ``None`` elsewhere
    labels : int [n] in [0, P/c) on rank 0, optional
        ``None`` for even blocks.
    grid : GridComm
    """
    comm, c = grid.everyone, grid.grid.c
    moved: Graph | None = None
    text = b""
    if graph is not None:
        parts, order = partition_order(labels, graph.vertices, grid.grid.block_rows)
        text = describe(graph, parts).to_json().encode()
        moved = graph if labels is None else graph.relabel(order)
    meta = GraphMeta.from_json(_broadcast_bytes(comm, text).decode())
    block_rows = RowLayout(np.array(meta.offsets))
    layout = block_rows.split(c)
    i, _ = grid.coordinates
    # Block row i goes to rank (i, 0), and from there to its row group.
    to_first = np.zeros(comm.size, dtype=np.int64)
    to_first[::c] = block_rows.sizes
    A = None if moved is None else moved.adjacency
    adjacency = _scatter_csr(comm, A, to_first, meta.vertices, weighted=meta.weighted)
    if c > 1:
        adjacency = _share_csr(grid.row_group, adjacency)
    return RankShare(
        meta,
        layout,
        adjacency,
        block_rows.range(i)[0],
        _scatter_rows(comm, _ids(moved), layout.sizes, torch.empty(0, dtype=torch.int64)),
        _scatter_vertices(comm, moved, meta, layout.sizes),
    )


def _ids(graph: Graph | None) -> Tensor | None:
    if graph is None or graph.vertex_ids is not None:
        return None if graph is None else graph.vertex_ids
    return torch.arange(graph.vertices)


def _scatter_vertices(
    comm: Communicator, graph: Graph | None, meta: GraphMeta, rows: Int64Array
) -> VertexData:
    like: dict[str, Tensor] = {}
    if meta.features and not meta.sparse_features:
        like["x"] = torch.empty(0, meta.features)
    if meta.labelled:
        like["y"] = torch.empty(0, dtype=torch.int64)
    # A set may have some masks and not others; rank 0 knows which.
    present = torch.tensor(
        [graph is not None and getattr(graph, name) is not None for name in MASKS]
    )
    comm.broadcast(present, root=0).wait()
    shape = (0,) if meta.splits <= 1 else (0, meta.splits)
    for name, is_present in zip(MASKS, present.tolist(), strict=True):
        if is_present:
            like[name] = torch.empty(shape, dtype=torch.bool)
    data: dict[str, Any] = {
        name: _scatter_rows(comm, None if graph is None else getattr(graph, name), rows, empty)
        for name, empty in like.items()
    }
    if meta.sparse_features:
        X = None if graph is None or not isinstance(graph.x, CSR) else graph.x
        data["x"] = _scatter_csr(comm, X, rows, meta.features, weighted=True)
    return VertexData(**data)


def _scatter_csr(
    comm: Communicator,
    A: CSR | None,
    rows: Int64Array,
    columns: int,
    *,
    weighted: bool,
) -> CSR:
    """Each rank's rows of a matrix that rank 0 holds."""
    index = torch.int32 if columns < INT32_LIMIT else torch.int64
    entries = torch.zeros(comm.size, dtype=torch.int64)
    if A is not None:
        entries = A.indptr[torch.from_numpy(np.append(0, np.cumsum(rows)))].diff()
    comm.broadcast(entries, root=0).wait()
    nnz = entries.numpy()
    lengths = _scatter_rows(
        comm, None if A is None else A.row_lengths, rows, torch.empty(0, dtype=torch.int64)
    )
    indices = _scatter_rows(
        comm, None if A is None else A.indices, nnz, torch.empty(0, dtype=index)
    )
    values = None
    if weighted:
        values = _scatter_rows(comm, None if A is None else A.values, nnz, torch.empty(0))
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    return CSR(indptr, indices, (len(lengths), columns), values)


def _scatter_rows(
    comm: Communicator, array: Tensor | None, rows: Int64Array, empty: Tensor
) -> Tensor:
    """Stretches of rank 0's array; `empty` says dtype and width."""
    mine = empty.new_empty((int(rows[comm.rank]), *empty.shape[1:]))
    comm.scatter(empty if array is None else array.contiguous(), mine, rows.tolist())
    return mine


def _share_csr(group: Communicator, block: CSR) -> CSR:
    """Copy the block of the group's first rank to all of it."""
    rows, nnz = group.agree(block.shape[0]), group.agree(block.nnz)
    arrays = {"indptr": rows + 1, "indices": nnz}
    if block.values is not None:
        arrays["values"] = nnz
    copies = {}
    for name, length in arrays.items():
        array = getattr(block, name)
        copies[name] = array if group.rank == 0 else array.new_empty(length)
        group.broadcast(copies[name], root=0).wait()
    return CSR(shape=(rows, block.shape[1]), **copies)


def _broadcast_bytes(comm: Communicator, text: bytes) -> bytes:
    buffer = torch.zeros(comm.agree(len(text)), dtype=torch.uint8)
    if comm.rank == 0:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    comm.broadcast(buffer, root=0).wait()
    return buffer.numpy().tobytes()
