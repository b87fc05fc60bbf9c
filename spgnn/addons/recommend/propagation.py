"""The propagation Σ w_k A^k E of embeddings, and its adjoint, which is the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from spgnn.comm import Mesh
from spgnn.exchange import Algorithm, build
from spgnn.graph import DistGraph
from spgnn.sparse import take_rows
from spgnn.spmm import DistMatrix

# Rows with at most this share of all nonzeros get a matrix of their own in the last product.
_FEW = 0.25


class Propagation:
    """``Σ w_k A^k E`` with A = D^-1/2 B D^-1/2 of an undirected graph. Collective."""

    def __init__(self, graph: DistGraph, weights: Sequence[float]) -> None:
        self.A, self.weights = graph.matrix("plain"), tuple(weights)
        self._rows = graph.normalised_rows("plain")
        self._mesh = Mesh.build(graph.comm, Algorithm("1d").axes(graph.comm.size))
        self.layout, self._comm = graph.layout, graph.comm

    def rows_of(self, rows: Tensor) -> DistMatrix | None:
        """The matrix of some own rows [r, n], or ``None`` if they are too many. Collective."""
        block = take_rows(self._rows.block, rows)
        both = torch.tensor([block.nnz, self._rows.block.nnz])
        self._comm.all_reduce(both).wait()
        if len(self.weights) < 2 or int(both[0]) > _FEW * int(both[1]):
            return None
        scheme = Algorithm("1d").scheme(
            block, self.layout, self._comm.rank, self._rows.column_scale
        )
        return DistMatrix(build(scheme, self._mesh).ready(), self.layout, self._mesh)

    def forward(
        self, E: Tensor, rows: Tensor | None = None, few: DistMatrix | None = None
    ) -> Tensor:
        """Rows of the propagation: all own, or some [r, d], whose matrix is `few`. Collective."""
        if few is None:
            Z = self._horner(E, self.weights)
            return Z if rows is None else Z[rows]
        assert rows is not None
        Z = few.forward(self._horner(E, self.weights[1:]))
        return Z.add_(E[rows], alpha=self.weights[0])

    def rounded(self, E: Tensor) -> Tensor:
        """All own rows, summed in float64 and rounded to float32. Collective."""
        halves = E.chunk(2, 1)  # as much memory as float32
        return torch.cat(
            [self._horner(half.double(), self.weights, self._exact).float() for half in halves], 1
        )

    @cached_property
    def _exact(self) -> DistMatrix:
        return self.A.to(torch.float64)

    def adjoint(self, G: Tensor, rows: Tensor, few: DistMatrix | None = None) -> Tensor:
        """The gradient of E [own rows, d] by that of some rows [r, d]. Collective."""
        if few is None:
            spread = G.new_zeros(self.A.own_rows, G.shape[1])
            return self._horner(spread.index_copy_(0, rows, G), self.weights)
        first, *others = reversed(self.weights)
        Z = few.adjoint(G)
        for weight in others[:-1]:
            Z.mul_(first).index_add_(0, rows, G, alpha=weight)
            first = 1.0
            Z = self.A.forward(Z)
        return Z.mul_(first).index_add_(0, rows, G, alpha=self.weights[0])

    def _horner(self, E: Tensor, weights: Sequence[float], A: DistMatrix | None = None) -> Tensor:
        last, *others = reversed(weights)
        if not others:
            return E * last
        A, Z = A or self.A, E
        for weight in others:
            Z = A.forward(Z).mul_(last).add_(E, alpha=weight)
            last = 1.0
        return Z
