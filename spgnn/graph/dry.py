"""The exchanges of a training step, found by running it without any data: bytes are exact.

A model runs on the meta device, on graphs whose matrices take notes: tensors have shapes and no
data, nothing is computed and nothing moves.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spgnn.attention import Attention
from spgnn.attention.operators import NO_CODEC, Weighed, step_of
from spgnn.autograd import Linear, named, product
from spgnn.exchange import Carried, Step
from spgnn.graph.features import Features, Propagated
from spgnn.graph.moments import Moments, moments
from spgnn.graph.protocol import (
    Aggregation,
    LayerGraph,
    Matrices,
    Normalisation,
    matrices_of,
)
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


class RecordedProduct(NamedTuple):
    """A product with A, or with Aᵀ if `adjoint`, of an operand of that width.

    The step says which product of an epoch it is, if it is not exact.
    """

    A: DistMatrix
    width: int
    dtype: torch.dtype
    step: Step

    @property
    def adjoint(self) -> bool:
        """True for a product with Aᵀ."""
        return self.step.adjoint

    def carried(self, epoch: int = 0) -> Iterator[Carried]:
        """The exchanges of this product in an epoch."""
        step = replace(self.step, epoch=epoch)
        return self.A.executor.carried(self.width, self.dtype, step)


class RecordedAttention(NamedTuple):
    """Attention over the nonzeros of A, or its gradient if `adjoint`, on rows of that width.

    The `product`-th of an epoch.
    """

    A: DistMatrix
    width: int
    dtype: torch.dtype
    adjoint: bool
    heads: int
    joint: bool
    product: int

    def carried(self, epoch: int = 0) -> Iterator[Carried]:
        """The exchanges of this attention in an epoch."""
        return self.A.attention.carried(
            self.width,
            self.heads,
            self.dtype,
            replace(step_of(epoch, self.product), adjoint=self.adjoint),
            joint=self.joint,
        )


Recorded = RecordedProduct | RecordedAttention


class DryMatrix:
    """The shape of a matrix, which notes its products; linear, as autograd asks for.

    Parameters
    ----------
    rows, columns : int

    Attributes
    ----------
    record : list of Weighed
        Attention over its nonzeros, and gradients of that.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.handle = named(self)
        self.record: Any = []

    def next_step(self, H_local: Tensor) -> Step:
        """The step of a product that is about to begin."""
        return Step()

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """A product without data."""
        self.note(H_local, step)
        return H_local.new_empty(self.rows, H_local.shape[1])

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """An adjoint product without data."""
        self.note(G_local, step)
        return G_local.new_empty(self.columns, G_local.shape[1])

    def note(self, operand: Tensor, step: Step) -> None:
        """Note a product, or an adjoint one if the step says so."""


def dry_attention(matrix: DryMatrix, request: Aggregation, number: int) -> Tensor:
    """Attention without data; noted by the matrix, and so is its gradient."""
    Z, scores = request.dense, request.scores
    assert scores is not None
    a, ends, edges = scores.vector, scores.destinations, scores.edges
    gradients = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (Z, ends, a, edges)
    )
    matrix.record.append(Weighed(Z.shape[1], Z.dtype, False, len(a), scores.joint, number))
    result: list[Tensor] = torch.ops.spgnn.attend(
        Z,
        ends,
        a,
        edges,
        None,
        None,
        matrix.handle,
        scores.joint,
        scores.slope,
        0.0,
        0,
        gradients,
        0,
        number,
    )
    return result[0]


class _Counted(DryMatrix):
    """A matrix of one rank, whose products are numbered as in training."""

    def __init__(self, A: DistMatrix) -> None:
        super().__init__(A.rows, A.columns)
        self.A, self.products = A, list[Recorded]()
        self.operands, self.record = A.operands.dry(), self

    @property
    def attention(self) -> Attention:
        """Attention over the matrix, whose sizes the operator asks for."""
        return self.A.attention

    def next_step(self, H_local: Tensor) -> Step:
        """The step of a product that is about to begin."""
        return self.operands.next(H_local, self.columns)

    def note(self, operand: Tensor, step: Step) -> None:
        """Note a product."""
        self.products.append(RecordedProduct(self.A, operand.shape[1], operand.dtype, step))

    def append(self, weighed: Weighed) -> None:
        """Note attention."""
        self.products.append(RecordedAttention(self.A, *weighed))


class DryGraph(LayerGraph):
    """The rows of one layer, without data.

    Parameters
    ----------
    layer : LayerGraph
    matrix : _Counted, optional
        Takes the notes.
    """

    def __init__(self, layer: LayerGraph, matrix: _Counted | None) -> None:
        targets = None if layer.targets is None else layer.targets.to("meta")
        super().__init__(layer.A, None, targets, layer.own_rows)
        self.comm, self._noted = None, matrix

    def linear(self, normalisation: Normalisation) -> Linear:
        """The matrix that takes notes."""
        if self._noted is None:
            self.matrix(normalisation)  # says that there is none
        assert self._noted is not None
        return self._noted

    def moments(self, x: Tensor) -> Moments:
        """Moments without data."""
        return moments(x, self.own_rows, None)

    def _reduced(self, request: Aggregation, operand: Tensor) -> Tensor:
        if request.reduce != "attention" or self._noted is None or self.A is None:
            return product(self.linear(request.normalisation), operand)  # moves the same rows
        scores = request.scores
        self.A.attention.check_edges(None if scores is None else scores.edges)
        step = self._noted.next_step(operand.detach())
        return dry_attention(self._noted, request, NO_CODEC if step.exact else step.product)


def recorded_products(
    model: nn.Module, X_local: Features, graph: Matrices, dtype: torch.dtype | None = None
) -> list[Recorded]:
    """The products of one forward and one backward, matrix by matrix, in order.

    Neither the model nor the matrices notice.

    Parameters
    ----------
    model : Module
        Called as ``model(X, graph)``.
    X_local : Tensor or CSR [columns of the first layer, features], or Propagated
    graph : DistMatrix, or a sequence of one LayerGraph a layer
    dtype : torch.dtype, optional
        What torch.autocast will multiply, and dense features have; by default that of the weights.
    """
    noted = {id(A): _Counted(A) for A in matrices_of(graph)}

    def dry(layer: LayerGraph) -> DryGraph:
        return DryGraph(layer, None if layer.A is None else noted[id(layer.A)])

    layers: Any = (
        [dry(layer) for layer in graph] if isinstance(graph, Sequence) else dry(LayerGraph(graph))
    )
    # A copy of that dtype: this device knows no autocast. Which elements are dropped makes no
    # difference to what moves.
    shadow = copy.deepcopy(model).to("meta", dtype).eval()
    logits: Tensor = shadow(_on_meta(X_local), layers)
    logits.sum().backward()
    return [one for matrix in noted.values() for one in matrix.products]


def _on_meta(X_local: Features) -> Features:
    match X_local:
        case Propagated():
            return X_local.to("meta")
        case CSR():
            # The gradient of the weights needs the transpose, which cannot be built without data;
            # nor can values be put into its order.
            _ = X_local.pattern.T
            return X_local.with_values(None).to("meta")
        case Tensor():
            return X_local.to("meta")
