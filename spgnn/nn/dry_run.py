"""Which distributed products a training step makes, found by running it without any data."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spgnn.attention import Weighed
from spgnn.attention.library import step_of
from spgnn.exchange import Carried, Step
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import Matrices, Propagation, matrices_of
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix, Noted


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
        """Whether it is one with Aᵀ."""
        return self.step.adjoint

    def carried(self, epoch: int = 0) -> Iterator[Carried]:
        """What it moves in an epoch, exchange by exchange."""
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
    whole_rows: bool
    product: int

    def carried(self, epoch: int = 0) -> Iterator[Carried]:
        """What it moves in an epoch, exchange by exchange."""
        return self.A.attention.carried(
            self.width,
            self.heads,
            self.dtype,
            replace(step_of(epoch, self.product), adjoint=self.adjoint),
            whole_rows=self.whole_rows,
        )


Recorded = RecordedProduct | RecordedAttention


def recorded_products(
    model: nn.Module, X_local: Features, graph: Matrices, dtype: torch.dtype | None = None
) -> list[Recorded]:
    """What one forward and one backward do with each matrix, in order.

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
    return [_recorded(A, told) for A, noted in copies.values() for told in noted.record]


def _recorded(A: DistMatrix, told: Noted) -> Recorded:
    return RecordedAttention(A, *told) if isinstance(told, Weighed) else RecordedProduct(A, *told)


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
