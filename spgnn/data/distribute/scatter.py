"""Rank 0 reads a graph and hands every rank its share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.comm import Communicator, from_rank_zero, on_rank_zero
from spgnn.data.distribute.arrange import Arrangement
from spgnn.data.distribute.share import RankShare, Slices
from spgnn.data.graph import MASKS, Graph, VertexData
from spgnn.data.meta import GraphMeta
from spgnn.data.source import GraphSource, MemorySource
from spgnn.data.structure import stack_rows
from spgnn.layout import Int64Array, RowLayout, grouped_order
from spgnn.pattern import index_dtype
from spgnn.sparse import CSR

# Rows sorted by who gets them, and how many of them each rank gets.
Piece = tuple[VertexData, Int64Array]
PIECE_BYTES = 1 << 23  # of dense features that are handed over at once
_DTYPES = {"x": torch.float32} | dict.fromkeys(MASKS, torch.bool)
_LABELS = {str(dtype): dtype for dtype in (torch.int64, torch.int8, torch.float32)}


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
    graph : Graph or GraphSource on rank 0, ``None`` elsewhere
    labels : int [n] in [0, parts) on rank 0, optional
        ``None`` for even blocks.
    comm : Communicator
        All ranks; their number is a multiple of that of parts.
    parts : int
        Each is cut into slices, one for each of as many neighbouring ranks.
    split : int, optional
        Keep only this column of masks with several.
    shares : int
        This many neighbouring slices are multiplied together, each rank taking a share of the
        feature columns: these have equally many rows, rather than equally many column entries.
    edge_labels : int32 [nnz] on rank 0, optional
        The part of each nonzero, in the order of the source; handed over with the rows.

    Raises
    ------
    InputError
        On all ranks, if labels or the split do not fit the graph.
    """
    slices = Slices(parts, comm.size // parts, shares)
    reader = on_rank_zero(comm, lambda: _Reader.of(graph, labels, slices, split))
    told = from_rank_zero(comm, lambda: None if reader is None else reader.told())
    meta = GraphMeta.from_record(told["meta"])
    layout = RowLayout(np.array(told["offsets"]))
    order = None if reader is None else reader.arranged.order
    own = _rows_of_all(comm, order, layout.sizes, torch.int64)
    ids = own
    if told["moved"]:
        moved = None if reader is None else reader.moved
        ids = _rows_of_all(comm, moved, layout.sizes, torch.int64)
    marks = None if reader is None or edge_labels is None else reader.marked(edge_labels)
    A = _adjacency(comm, reader, layout, weighted=meta.weighted)
    edges = None
    if from_rank_zero(comm, lambda: edge_labels is not None):
        edges = _adjacency(comm, marks, layout, weighted=True).values
    handed = _Handed(comm, meta, own, told["masks"], told["labels"])
    pieces = None if reader is None else reader.pieces(layout)
    for first in range(0, max(meta.vertices, 1), told["piece"]):
        piece = None if pieces is None else next(pieces)
        handed.take(first, min(first + told["piece"], meta.vertices), piece)
    share = RankShare(meta, layout, A, ids, handed.whole())
    return share if edges is None else replace(share, edge_labels=edges.int())


@dataclass(eq=False)
class _Reader:
    """What rank 0 reads, and who is to get it."""

    source: GraphSource
    arranged: Arrangement
    meta: GraphMeta
    split: int | None
    structure: CSR | None

    @classmethod
    def of(
        cls,
        graph: Graph | GraphSource | None,
        labels: npt.ArrayLike | None,
        slices: Slices,
        split: int | None,
    ) -> _Reader:
        assert graph is not None
        source = MemorySource(graph) if isinstance(graph, Graph) else graph
        structure = source.structure()
        arranged = Arrangement.of(structure, labels, slices)
        meta = replace(source.meta, offsets=tuple(arranged.parts.offsets.tolist()))
        if split is not None:
            meta = replace(meta, splits=min(meta.splits, 1))
        return cls(source, arranged, meta, split, structure)

    def told(self) -> dict[str, Any]:
        """What all ranks have to know."""
        nothing = self._of_one_split(self.source.rows(slice(0, 0)))
        return {
            "meta": asdict(self.meta),
            "offsets": self.arranged.ranks.offsets.tolist(),
            "moved": self.source.vertex_ids is not None,
            "masks": [name for name in MASKS if getattr(nothing, name) is not None],
            "labels": None if nothing.y is None else [str(nothing.y.dtype), nothing.y.shape[1:]],
            "piece": self.piece_rows,
        }

    @property
    def piece_rows(self) -> int:
        """Rows that are handed over at once: each rank has its share of them twice.

        What is sparse has little in a piece, which is made for dense rows.
        """
        meta = self.source.meta
        if meta.sparse_features or not meta.features:
            return self.source.piece_rows
        return max(1, min(self.source.piece_rows, PIECE_BYTES // (4 * meta.features)))

    @property
    def moved(self) -> Tensor:
        """Where the vertices stood in the source's own source, in the new order."""
        assert self.source.vertex_ids is not None
        return self.source.vertex_ids[self.arranged.order]

    def marked(self, edge_labels: npt.NDArray[np.int32]) -> _Reader:
        """The same with labels of the nonzeros as the values of the adjacency."""
        assert self.structure is not None
        values = torch.from_numpy(edge_labels).float()  # exact: there are fewer than 2²⁴ parts
        return replace(self, structure=self.structure.with_values(values))

    def block(self, first: int, last: int) -> CSR:
        """New rows of the adjacency."""
        assert self.structure is not None
        return self.arranged.rows(self.structure, first, last)

    def pieces(self, layout: RowLayout) -> Iterator[Piece]:
        """All rows of the source, a few at a time."""
        for first, data in self.source.pieces(self.piece_rows):
            last = min(first + self.piece_rows, self.meta.vertices)
            position = self.arranged.position
            new = torch.arange(first, last) if position is None else position[first:last]
            owners = layout.owner(new.numpy())
            grouped = torch.from_numpy(grouped_order(owners, layout.parts))
            rows = VertexData(**self._of_one_split(data).take(grouped))
            yield rows, np.bincount(owners, minlength=layout.parts)

    def _of_one_split(self, data: VertexData) -> VertexData:
        return data if self.split is None else data.select_split(self.split)


class _Handed:
    """One rank's vertex data, which arrive in pieces of the source in its own order."""

    def __init__(
        self,
        comm: Communicator,
        meta: GraphMeta,
        own: Tensor,
        masks: list[str],
        labels: tuple[str, list[int]] | None,
    ) -> None:
        self._comm, self._meta = comm, meta
        self._rising = own.argsort()  # own rows in the order in which they arrive
        self._own = own[self._rising]
        widths: dict[str, tuple[int, ...]] = dict.fromkeys(masks, ())
        if meta.splits > 1:
            widths = dict.fromkeys(masks, (meta.splits,))
        dtypes = dict(_DTYPES)
        if labels is not None:
            dtypes["y"], widths["y"] = _LABELS[labels[0]], tuple(labels[1])
        if meta.features and not meta.sparse_features:
            widths["x"] = (meta.features,)
        self._arrays = {
            name: torch.empty((len(own), *width), dtype=dtypes[name])
            for name, width in widths.items()
        }
        self._sparse: list[CSR] = []

    def take(self, first: int, last: int, piece: Piece | None) -> None:
        """Receive what rows [first, last) of the source hold for this rank. Collective."""
        begin, end = torch.searchsorted(self._own, torch.tensor([first, last])).tolist()
        rows = np.zeros(self._comm.size, np.int64) if piece is None else piece[1]
        rows[self._comm.rank] = end - begin
        for name, whole in self._arrays.items():
            sent = None if piece is None else getattr(piece[0], name)
            got = _rows_of_all(self._comm, sent, rows, whole.dtype, whole.shape[1:])
            whole[self._rising[begin:end]] = got
        if self._meta.sparse_features:
            X = None if piece is None else piece[0].x
            assert not isinstance(X, Tensor)
            width = self._meta.features
            self._sparse.append(_blocks_of_all(self._comm, X, rows, width, weighted=True))

    def whole(self) -> VertexData:
        """All of it, in the order of this rank's rows."""
        data: dict[str, Any] = dict(self._arrays)
        if self._sparse:
            X = stack_rows(self._sparse)
            self._sparse.clear()
            data["x"] = take_rows(X, self._rising.argsort())
        return VertexData(**data)


def _adjacency(
    comm: Communicator, reader: _Reader | None, layout: RowLayout, *, weighted: bool
) -> CSR:
    """Every rank's rows, one rank after another: no more than that is there twice."""
    mine: CSR | None = None
    for peer in range(comm.size):
        block = None if reader is None else reader.block(*layout.range(peer))
        rows = np.zeros(comm.size, np.int64)
        rows[peer] = layout.sizes[peer]
        got = _blocks_of_all(comm, block, rows, layout.rows, weighted=weighted)
        if peer == comm.rank:
            mine = got
    if reader is not None:
        reader.structure = None
    assert mine is not None
    return mine


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
