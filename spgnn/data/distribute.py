"""Give every rank its share of a graph: scattered from rank 0, or opened from shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.comm import Communicator, Mesh
from spgnn.data.graph import MASKS, Graph, GraphBlock, VertexData
from spgnn.data.meta import GraphMeta, describe
from spgnn.data.shards import ShardDirectory, partition_order
from spgnn.data.structure import slice_rows, take_rows, with_columns
from spgnn.errors import InputError
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import index_dtype
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class RankShare:
    """What one rank of a P/c × c mesh holds of a graph.

    Attributes
    ----------
    meta : GraphMeta
        Its parts are the P/c block rows.
    layout : RowLayout
        Rows over all P ranks: each block row in c slices of about equally many column entries.
    adjacency : CSR [own rows, n], or ``None`` once it has served
    vertex_ids : Tensor int64 [own rows]
        Original ids of this rank's vertices.
    data : VertexData
        Their features, labels and masks.
    """

    meta: GraphMeta
    layout: RowLayout
    adjacency: CSR | None
    vertex_ids: Tensor
    data: VertexData


def from_shards(shards: ShardDirectory, mesh: Mesh) -> RankShare:
    """Open this rank's part of a sharded graph, and nothing else. Collective.

    Raises
    ------
    InputError
        If the number of parts is not the number of block rows.
    """
    blocks, c = mesh.axes.size("row"), mesh.axes.size("replica")
    if shards.meta.parts != blocks:
        raise InputError(
            f"{shards.directory}: holds {shards.meta.parts} parts, but {mesh.axes.ranks} ranks "
            f"with c = {c} need {blocks}; write it with --parts {blocks}"
        )
    block = shards.block(mesh.coordinate("row"))
    if c == 1:
        return RankShare(
            shards.meta,
            shards.layout,
            block.adjacency,
            block.vertex_ids,
            VertexData(**block.take(slice(None))),
        )
    position = shards.layout.dealt(block.first_row + np.arange(block.rows), c) - block.first_row
    order = np.argsort(position)
    layout = _balanced_slices(shards.layout, block, order, mesh)
    first, last = layout.range(mesh.rank)
    rows = torch.from_numpy(order[first - block.first_row : last - block.first_row])
    own = take_rows(block.adjacency, rows)
    columns = torch.from_numpy(shards.layout.dealt(own.indices.numpy(), c))
    return RankShare(
        shards.meta,
        layout,
        with_columns(own, columns),
        block.vertex_ids[rows],
        VertexData(**block.take(rows)),
    )


def scatter(graph: Graph | None, labels: npt.ArrayLike | None, mesh: Mesh) -> RankShare:
    """Relabel a graph that rank 0 holds by a partition, and send every rank its share. Collective.

    Parameters
    ----------
    graph : Graph on rank 0, ``None`` elsewhere
    labels : int [n] in [0, P/c) on rank 0, optional
        ``None`` for even blocks.
    mesh : Mesh
    """
    comm, c = mesh.everyone, mesh.axes.size("replica")
    moved: Graph | None = None
    text, offsets = b"", torch.empty(comm.size + 1, dtype=torch.int64)
    if graph is not None:
        parts, order = partition_order(labels, graph.vertices, mesh.axes.size("row"))
        text = describe(graph, parts).to_json().encode()
        if c > 1:
            order = order[np.argsort(parts.dealt(np.arange(graph.vertices), c))]
        moved = graph if labels is None and c == 1 else graph.relabel(order)
        entries = torch.bincount(moved.adjacency.indices, minlength=graph.vertices)
        offsets.copy_(torch.from_numpy(parts.split(c, entries.numpy() if c > 1 else None).offsets))
    meta = GraphMeta.from_json(_broadcast_bytes(comm, text).decode())
    comm.broadcast(offsets, root=0).wait()
    layout = RowLayout(offsets.numpy())
    A = None if moved is None else moved.adjacency
    return RankShare(
        meta,
        layout,
        _scatter_csr(comm, A, layout.sizes, meta.vertices, weighted=meta.weighted),
        _scatter_rows(comm, _ids(moved), layout.sizes, torch.empty(0, dtype=torch.int64)),
        _scatter_vertices(comm, moved, meta, layout.sizes),
    )


def _balanced_slices(
    parts: RowLayout, block: GraphBlock, order: Int64Array, mesh: Mesh
) -> RowLayout:
    """Slices of all block rows such that each has its share of the entries in its columns.

    What a rank multiplies are the nonzeros in the columns of its slice and those like it. Every
    rank counts the columns of some rows; the first rank of each block row adds up and cuts.
    """
    comm, c = mesh.everyone, mesh.axes.size("replica")
    j = mesh.coordinate("replica")
    some = slice_rows(block.adjacency, slice(block.rows * j // c, block.rows * (j + 1) // c))
    columns, counts = np.unique(some.indices.numpy(), return_counts=True)
    per_rank = np.zeros(comm.size, np.int64)
    per_rank[::c] = np.bincount(parts.owner(columns), minlength=parts.parts)
    pairs = torch.from_numpy(np.stack((columns.astype(np.int64), counts), axis=1))
    exchanged = comm.exchange_counts(per_rank.tolist())
    received = pairs.new_empty(int(sum(exchanged.recv)), 2)
    comm.alltoallv(pairs.contiguous(), received, exchanged).wait()
    weights = np.zeros(block.rows)
    found = received.numpy()
    np.add.at(weights, found[:, 0] - block.first_row, found[:, 1])
    here = RowLayout(np.array([0, block.rows])).split(c, weights[order])
    cuts = torch.from_numpy(here.offsets[:-1] + block.first_row)
    all_cuts = cuts.new_empty(comm.size * c)
    comm.all_gather(cuts, all_cuts, [c] * comm.size)
    first_of_each = all_cuts.view(comm.size, c)[::c].ravel()
    return RowLayout(np.append(first_of_each.numpy(), parts.rows))


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
    index = index_dtype(columns)
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
    return CSR.of(indptr, indices, (len(lengths), columns), values)


def _scatter_rows(
    comm: Communicator, array: Tensor | None, rows: Int64Array, empty: Tensor
) -> Tensor:
    """Stretches of rank 0's array; `empty` says dtype and width."""
    mine = empty.new_empty((int(rows[comm.rank]), *empty.shape[1:]))
    comm.scatter(empty if array is None else array.contiguous(), mine, rows.tolist())
    return mine


def _broadcast_bytes(comm: Communicator, text: bytes) -> bytes:
    buffer = torch.zeros(comm.agree(len(text)), dtype=torch.uint8)
    if comm.rank == 0:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    comm.broadcast(buffer, root=0).wait()
    return buffer.numpy().tobytes()
