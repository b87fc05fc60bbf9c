"""Which distributed products a training step makes, found by running it without any data."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import Matrices, Propagation, matrices_of
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


class RecordedProduct(NamedTuple):
    """A product with A, or with Aᵀ if `adjoint`, of an operand of that width."""

    A: DistMatrix
    width: int
    dtype: torch.dtype
    adjoint: bool


def recorded_products(
    model: nn.Module, X_local: Features, graph: Matrices, dtype: torch.dtype | None = None
) -> list[RecordedProduct]:
    """The products of one forward and one backward: those of each matrix in order.

    The model runs on copies on the meta device, which have shapes and no data; nothing is computed
    and nothing moves. Neither the model nor the matrices notice.

    Parameters
    ----------
    model : Module
        Called as ``model(X, graph)``.
    X_local : Tensor or CSR [columns of the first layer, features], or Propagated
    graph : DistMatrix, or a sequence of one Propagation a layer
    dtype : torch.dtype, optional
        What torch.autocast will multiply, and dense features have; by default that of the weights.
    """
    copies = {id(A): (A, copy.deepcopy(A)) for A in matrices_of(graph)}

    def on_meta(layer: Propagation) -> Propagation:
        A = None if layer.A is None else copies[id(layer.A)][1]
        targets = None if layer.targets is None else layer.targets.to("meta")
        return replace(layer, A=A, targets=targets)

    copied: Matrices
    if isinstance(graph, Sequence):
        copied = [on_meta(layer) for layer in graph]
    else:
        copied = copies[id(graph)][1]
    # A copy of that dtype: this device knows no autocast. Which elements are dropped makes no
    # difference to what moves.
    shadow = copy.deepcopy(model).to("meta", dtype).eval()
    logits: Tensor = shadow(_on_meta(X_local), copied)
    logits.sum().backward()
    return [RecordedProduct(A, *told) for A, noted in copies.values() for told in noted.record]


def _on_meta(X_local: Features) -> Features:
    match X_local:
        case Propagated():
            return X_local.to("meta")
        case CSR():
            # The gradient of the weights needs the other side, which cannot be made of no data; nor
            # can values be put into its order.
            _ = X_local.pattern.T
            return X_local.with_values(None).to("meta")
        case Tensor():
            return X_local.to("meta")
