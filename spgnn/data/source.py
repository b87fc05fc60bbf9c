"""Graphs whose vertices' data need not be in memory as a whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.data.graph import Graph, VertexData
from spgnn.data.meta import GraphMeta, describe
from spgnn.data.structure import slice_rows
from spgnn.layout import RowLayout
from spgnn.sparse import CSR

PIECE_BYTES = 1 << 26  # of features that are read at once


class GraphSource(ABC):
    """A graph that hands out its structure, and rows of everything else.

    Opening one checks it: what is wrong with its arrays is said before any of them is handed out.

    Attributes
    ----------
    meta : GraphMeta
    decided : mapping of str
        What in a file decides its direction, vertices and weights; empty for what is no file.
    """

    meta: GraphMeta
    decided: Mapping[str, str] = MappingProxyType({})

    @property
    def vertex_ids(self) -> Tensor | None:
        """Where each vertex stood in the graph's own source, int64 [n], if it has been moved."""
        return None

    @property
    def random_access(self) -> bool:
        """Whether a few rows cost about as much as they are of all."""
        return True

    @abstractmethod
    def structure(self) -> CSR:
        """The adjacency [n, n], with its weights."""

    @abstractmethod
    def rows(self, ids: Tensor | slice) -> VertexData:
        """Features, labels and masks of some vertices.

        Parameters
        ----------
        ids : Tensor int64 [rows] in any order, or a slice
        """

    def adjacency(self, ids: Tensor | slice) -> CSR:
        """Some rows of the adjacency, in the order asked for; columns stay global."""
        A = self.structure()
        return slice_rows(A, ids) if isinstance(ids, slice) else take_rows(A, ids)

    def pieces(self, rows: int | None = None) -> Iterator[tuple[int, VertexData]]:
        """All vertices once, a few at a time: (number of the first, data of the next `rows`).

        A graph without vertices has one piece, an empty one.

        Parameters
        ----------
        rows : int, optional
            By default as many as make pieces of `PIECE_BYTES` or less.
        """
        rows = rows or self.piece_rows
        for first in range(0, max(self.meta.vertices, 1), rows):
            yield first, self.rows(slice(first, min(first + rows, self.meta.vertices)))

    @property
    def piece_rows(self) -> int:
        """Rows of a piece, as the width of dense float32 features suggests."""
        return max(1, PIECE_BYTES // (4 * self.meta.features + 16))

    def graph(self) -> Graph:
        """All of it, in memory (or mapped, where the source is)."""
        data = self.rows(slice(0, self.meta.vertices))
        return Graph(
            self.meta.name,
            self.structure(),
            self.meta.directed,
            self.vertex_ids,
            **data.take(slice(None)),
        )


class MemorySource(GraphSource):
    """A graph that is in memory."""

    def __init__(self, graph: Graph, decided: Mapping[str, str] | None = None) -> None:
        self._graph, self.decided = graph, decided or {}
        self.meta = describe(graph, RowLayout.even(graph.vertices, 1))

    @property
    def vertex_ids(self) -> Tensor | None:
        """As the graph has them."""
        return self._graph.vertex_ids

    def structure(self) -> CSR:
        """The graph's own adjacency."""
        return self._graph.adjacency

    def rows(self, ids: Tensor | slice) -> VertexData:
        """Views, if ``ids`` is a slice."""
        return VertexData(**self._graph.take(ids))

    def graph(self) -> Graph:
        """The graph itself."""
        return self._graph


def ids_of(ids: Tensor | slice, vertices: int) -> Tensor:
    """The vertices that a slice or a tensor names, int64."""
    return torch.arange(*ids.indices(vertices)) if isinstance(ids, slice) else ids.long()
