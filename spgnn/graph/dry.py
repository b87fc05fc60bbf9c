"""The exchanges of a training step, found by running it without any data: bytes are exact.

A model runs on the meta device, on graphs whose matrices take notes: tensors have shapes and no
data, nothing is computed and nothing moves.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from spgnn.attention import Attention
from spgnn.autograd import product
from spgnn.comm import Communicator
from spgnn.exchange import Step
from spgnn.exchange.plan import Carried
from spgnn.graph.features import Features
from spgnn.graph.moments import Moments, moments
from spgnn.graph.protocol import Aggregation, LayerGraph, Matrices, matrices_of
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix
from spgnn.torch_internals import named


class Recorded(NamedTuple):
    """A product with A, or with Aᵀ if its step is an adjoint one; or attention, or its gradient."""

    A: DistMatrix
    width: int
    dtype: torch.dtype
    step: Step
    heads: int = 0
    joint: bool = False

    @property
    def adjoint(self) -> bool:
        """True for a product with Aᵀ, or a gradient."""
        return self.step.adjoint

    def carried(self, epoch: int = 0) -> Iterator[Carried]:
        """Its exchanges in an epoch."""
        step, kind = replace(self.step, epoch=epoch), (self.width, self.dtype)
        if not self.heads:
            return self.A.executor.carried(*kind, step)
        return self.A.attention.carried(self.width, self.heads, self.dtype, step, joint=self.joint)


class DryMatrix(ABC):
    """The shape of a matrix, which notes its products; linear, as autograd requires."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.handle = named(self)
        self.sums = list[int]()  # numbers of each sum over all ranks
        self.operands: Any = self

    @property
    @abstractmethod
    def attention(self) -> Any:
        """The sizes of attention over its nonzeros, and what it refuses."""

    def next_step(self, H_local: Tensor) -> Step:
        """The step of a product that is about to begin."""
        return Step()

    def next(self, H_local: Tensor, columns: int, **facts: Any) -> Step:
        """The same of attention, as `Operands` have it."""
        return self.next_step(H_local)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """A product without data."""
        self.note(H_local.shape[1], H_local.dtype, step)
        return H_local.new_empty(self.rows, H_local.shape[1])

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """An adjoint product without data."""
        self.note(G_local.shape[1], G_local.dtype, step)
        return G_local.new_empty(self.columns, G_local.shape[1])

    @abstractmethod
    def note(
        self, width: int, dtype: torch.dtype, step: Step, heads: int = 0, joint: bool = False
    ) -> None:
        """Note a product, or attention if it has heads, as a `Recorded` says it."""


class DryGraph(LayerGraph):
    """The rows of one layer, without data.

    Parameters
    ----------
    matrix : DryMatrix, optional
        Takes the notes.
    vertex_ids, row_columns, own_rows, edges
        As of a `LayerGraph`.
    """

    def __init__(
        self,
        matrix: DryMatrix | None,
        vertex_ids: Tensor | None = None,
        row_columns: Tensor | None = None,
        own_rows: int | None = None,
        edges: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(None, vertex_ids, row_columns, own_rows, edges=edges)
        self.A: Any = matrix

    def moments(self, x: Tensor) -> Moments:
        """Moments without data."""
        width = x.shape[1]
        if self.A is not None:
            self.A.sums += [width + 1, 2 * width, 2 * width]  # and backward
        return moments(x, self.own_rows, None)

    def total(self, own: Tensor) -> Tensor:
        """A sum without data."""
        self.A.sums += [own.numel()] * (2 if own.requires_grad else 1)
        return own.clone()

    def _reduced(self, request: Aggregation, operand: Tensor) -> Tensor:
        matrix: Any = self.matrix(request.normalisation)
        if request.edge is not None and request.edge.op == "copy":  # moves none
            return operand.new_zeros(matrix.rows, request.edge.values[:1].numel())
        if request.reduce != "attention":
            Z = product(matrix, operand)  # moves the same rows
            if request.edge is None:
                return Z
            if request.edge.op == "outer":
                Z = Z.repeat(1, request.edge.values.shape[1])
            # They are read one by one, and so is their gradient made.
            return Z + request.edge.values.square().sum()
        # Which weights are dropped makes no difference to what moves.
        return super()._reduced(replace(request, dropped=None), operand)


class _NumberedMatrix(DryMatrix):
    """A matrix of one rank, whose products are numbered as in training."""

    def __init__(self, A: DistMatrix) -> None:
        super().__init__(A.rows, A.columns)
        self.A, self.products, self.operands = A, list[Recorded](), A.operands.dry()

    @property
    def attention(self) -> Attention:
        return self.A.attention

    def next_step(self, H_local: Tensor) -> Step:
        step: Step = self.operands.next(H_local, self.columns)
        return step

    def note(
        self, width: int, dtype: torch.dtype, step: Step, heads: int = 0, joint: bool = False
    ) -> None:
        self.products.append(Recorded(self.A, width, dtype, step, heads, joint))


def recorded_products(
    model: nn.Module, X_local: Features, graph: Matrices, dtype: torch.dtype | None = None
) -> list[Recorded]:
    """The products of one forward and one backward, matrix by matrix, in order."""
    matrices = {id(A): _NumberedMatrix(A) for A in matrices_of(graph)}

    def dry(layer: LayerGraph) -> DryGraph:
        matrix = None if layer.A is None else matrices[id(layer.A)]
        columns = None if layer.row_columns is None else layer.row_columns.to("meta")
        edges = None
        if layer.edge_rows is not None:
            edges = layer.edge_rows[0].to("meta"), layer.edge_rows[1].to("meta", dtype)
        return DryGraph(matrix, None, columns, layer.own_rows, edges)

    layers: Any = (
        [dry(layer) for layer in graph] if isinstance(graph, Sequence) else dry(LayerGraph(graph))
    )
    # A copy of that dtype: this device knows no autocast. Which elements are dropped makes no
    # difference to what moves.
    shadow = copy.deepcopy(model)
    lazy = [
        (part, name)
        for part in shadow.modules()
        for name, weight in part.named_parameters(recurse=False)
        if isinstance(weight, UninitializedParameter)
    ]
    shadow = shadow.to("meta", dtype).eval()
    for part, name in lazy:  # which have become weights without elements
        lazily: Any = UninitializedParameter  # whose stub lacks arguments
        setattr(part, name, lazily(device="meta", dtype=dtype))
    logits: Tensor = shadow(_on_meta(X_local), layers)
    logits.sum().backward()
    return [one for matrix in matrices.values() for one in matrix.products]


def agreed_products(
    comm: Communicator, model: nn.Module, X_local: Features, graph: Matrices, dtype: torch.dtype
) -> list[Recorded]:
    """The same from the last rank, which alone imports what the meta device needs. Collective."""
    matrices, last = matrices_of(graph), comm.size - 1

    def recorded() -> list[Any]:
        return [
            (matrices.index(A), width, str(kind).removeprefix("torch."), astuple(step), *heads)
            for A, width, kind, step, *heads in recorded_products(model, X_local, graph, dtype)
        ]

    records = comm.on_every_rank(lambda: recorded() if comm.rank == last else [])
    return [
        Recorded(matrices[place], width, getattr(torch, kind), Step(*step), *heads)
        for place, width, kind, step, *heads in comm.broadcast_value(records, last)
    ]


def _on_meta(X_local: Features) -> Features:
    if isinstance(X_local, CSR):
        # The gradient of the weights needs the transpose, which cannot be built without data;
        # nor can values be put into its order.
        _ = X_local.pattern.T
        X_local = X_local.with_values(None)
    return X_local.to("meta")
