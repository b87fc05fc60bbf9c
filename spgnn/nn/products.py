"""What layers multiply with: the matrices of a graph, and what is made of them by scalings."""

from __future__ import annotations

from typing import Literal, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from spgnn.autograd import Linear, named
from spgnn.comm import on_every_rank
from spgnn.exchange import Step
from spgnn.nn.block import Block
from spgnn.nn.propagation import (
    HasMatrices,
    LayerGraph,
    Normalised,
    Propagation,
    check_graph,
    matrix_of,
)
from spgnn.sparse import check_degrees
from spgnn.spmm import DistMatrix

# Beside what a graph has: D^-1/2 A D^-1/2 without self-loops; D^-1/2 (A + 2 I) D^-1/2.
Scaling = Literal["plain", "improved"]
Kind = Normalised | Scaling

_MADE_OF: dict[str, Normalised] = {"plain": "none", "improved": "loops"}
_made: WeakKeyDictionary[HasMatrices, dict[str, Scaled]] = WeakKeyDictionary()


class Scaled:
    """diag(s) A diag(s) + diag(d) of a distributed matrix A; linear, as autograd asks for.

    Parameters
    ----------
    A : DistMatrix
    bare : DistMatrix, optional
        If A has self-loops and is to have two: A without any.
    ids : Tensor int64 [rows], or int
        Original ids of the vertices, for messages.
    """

    def __init__(self, A: DistMatrix, bare: DistMatrix | None, ids: Tensor | int = 0) -> None:
        self.A, self._bare, self._ids = A, bare, ids
        self.rows, self.columns = A.rows, A.columns
        self.handle = named(self)
        self._scales: dict[torch.dtype, tuple[Tensor, Tensor | None]] = {}

    def next_step(self, H_local: Tensor) -> Step:
        """Check and count a product that is about to begin. Collective."""
        if not H_local.is_meta and H_local.dtype not in self._scales:
            self._scales[H_local.dtype] = self._found(H_local)
        return self.A.next_step(H_local)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """``(s A s + d)·H``. Collective."""
        if H_local.is_meta:
            return self.A.forward(H_local, step)
        scale, diagonal = self._scales[H_local.dtype]
        Z_local = self.A.forward(H_local * scale, step).mul_(scale)
        return Z_local if diagonal is None else Z_local.addcmul_(H_local, diagonal)

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """``(s Aᵀ s + d)·G``. Collective."""
        if G_local.is_meta:
            return self.A.adjoint(G_local, step)
        scale, diagonal = self._scales[G_local.dtype]
        dH = self.A.adjoint(G_local * scale, step).mul_(scale)
        return dH if diagonal is None else dH.addcmul_(G_local, diagonal)

    def _found(self, H_local: Tensor) -> tuple[Tensor, Tensor | None]:
        """S and d; degrees are products with ones. Collective."""
        ones = H_local.new_ones(self.columns, 1)
        degree = self.A.forward(ones)
        added = None
        if self._bare is not None:
            # Vertices without a loop of their own got one of weight 1, and get another.
            added = (degree - self._bare.forward(ones)).round()
            degree = degree + added
        known = degree[:, 0].double().cpu().numpy()
        on_every_rank(self.A.mesh.everyone, lambda: check_degrees(known, self._ids))
        scale = torch.where(degree > 0, degree, torch.inf).rsqrt()
        return scale, None if added is None else scale.square() * added


def operator_of(graph: LayerGraph, kind: Kind) -> Linear:
    """What a layer multiplies with, for `product`. Collective when first asked.

    A matrix or a Propagation stands for whatever is asked for. Where a graph has no such matrix, it
    is made of one that it has.
    """
    if isinstance(graph, Block):
        return graph.matrix(kind)
    if isinstance(graph, DistMatrix | Propagation) or kind not in _MADE_OF:
        return matrix_of(graph, cast(Normalised, kind))
    check_graph(graph)
    known = _made.setdefault(graph, {})
    A = graph.matrix(_MADE_OF[kind])
    if kind not in known or known[kind].A is not A:  # the graph may have been moved
        bare = graph.matrix("none") if kind == "improved" else None
        known[kind] = Scaled(A, bare, getattr(graph, "vertex_ids", 0))
    return known[kind]
