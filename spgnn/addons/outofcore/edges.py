"""Layers that look at edges one by one: chunk after chunk, each with all of its rows' edges.

Sources are in memory with all of their columns. A chunk is a block of its rows and of their
sources: the layer runs on it as on a mini-batch, and once more in backward, where parameters get
their gradients, and sources theirs, added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spgnn.addons.outofcore.tables import Table, memory_rows
from spgnn.errors import InputError
from spgnn.graph import Aggregation, Block, LocalMatrix, Moments, Normalisation
from spgnn.nn import Stack
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

if TYPE_CHECKING:
    from spgnn.addons.outofcore.matrix import ChunkMatrix

RowsOf = Callable[[Tensor, CSR, Tensor], Tensor]
"""A chunk's rows of a layer: of its sources [columns, f], own ones first, its edges, and ids."""


class EdgeRows(Block):
    """Rows of a chunk with all of their edges; values of the block are features of these."""

    def __init__(self, block: CSR, ids: Tensor, dtype: torch.dtype, model: Stack) -> None:
        attr = None if block.values is None else block.values.to(dtype)
        super().__init__(block.pattern, ids, attributes={} if attr is None else {"edge_attr": attr})
        self._loops: Normalisation = "loops" if model.loops else "none"

    def halo_matrix(self, normalisation: Normalisation = "none") -> LocalMatrix:
        """Its edges, with self-loops where the model has them."""
        return super().matrix(self._loops)

    def _of_single_loops(self) -> CSR:
        """All edges: repeated self-loops are there as in memory."""
        return CSR(self.pattern)

    def matrix(self, normalisation: Normalisation = "none") -> LocalMatrix:
        """There is none whose products are those of the whole graph."""
        raise InputError("a layer that multiplies with the matrix itself is no row of edges")

    def aggregate(self, request: Aggregation) -> Tensor:
        """As any graph, but for sums over the matrix."""
        if request.reduce == "sum" and request.edge is None:
            self.matrix()
        return super().aggregate(request)

    def moments(self, x: Tensor) -> Moments:
        """There are none of these rows alone."""
        raise InputError("a norm over all vertices inside a layer needs all rows at once")

    def total(self, own: Tensor) -> Tensor:
        """There is none of these rows alone."""
        raise InputError("a sum over all vertices inside a layer needs all rows at once")


class EdgeByEdge:
    """A layer over a matrix whose rows come chunk after chunk."""

    def __init__(self, matrix: ChunkMatrix, rows_of: RowsOf) -> None:
        self._matrix, self._rows_of = matrix, rows_of

    def products(self, H: Table, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """The rows of all chunks. Collective."""
        X = self._matrix.extended(H, first, last)
        for chunk, block in self._matrix.blocks.stream():
            columns, edges, ids = self._of_chunk(chunk, block)
            with torch.no_grad():
                Z = self._rows_of(X[columns], edges, ids)
            yield chunk, Z

    def adjoints(self, H: Table, G: Table, first: int, last: int) -> Iterator[tuple[int, Tensor]]:
        """The gradient of H; those of parameters are added to them. Collective."""
        matrix = self._matrix
        X = matrix.extended(H, first, last)
        dX = memory_rows(X.shape[0], X.shape[1], X.dtype).zero_()
        for chunk, block in matrix.blocks.stream():
            columns, edges, ids = self._of_chunk(chunk, block)
            with torch.enable_grad():
                x = X[columns].requires_grad_()
                Z = self._rows_of(x, edges, ids)
            torch.autograd.backward(Z, G.read(chunk))
            if x.grad is not None:
                dX.index_add_(0, columns, x.grad)
        yield from matrix.returned(dX)

    def _of_chunk(self, chunk: int, block: CSR) -> tuple[Tensor, CSR, Tensor]:
        """The sources of a chunk, own rows first, its edges between these, and their ids."""
        matrix, sources = self._matrix, block.indices.long()
        begin, end = matrix.blocks.bounds[chunk : chunk + 2]
        inside = (sources >= begin) & (sources < end)
        others = torch.unique(sources[~inside])
        number = torch.searchsorted(others, sources) + (end - begin)
        number = torch.where(inside, sources - begin, number)
        columns = torch.cat((torch.arange(begin, end), others))
        shape = end - begin, len(columns)
        pattern = Pattern.trusted(block.indptr, number.to(block.indices.dtype), shape)
        ids = columns if matrix.ids is None else matrix.ids[columns]
        return columns, CSR(pattern, block.values), ids
