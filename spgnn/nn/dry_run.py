"""Which distributed products a training step makes, found by running it without any data."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from spgnn.nn.features import Propagated
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

Features = Tensor | CSR | Propagated


def recorded_products(
    model: nn.Module, A: DistMatrix, X_local: Features
) -> list[tuple[int, torch.dtype, bool]]:
    """The products with A of one forward and one backward, in order: (width, dtype, adjoint).

    The model runs on copies on the meta device, which have shapes and no data; nothing is computed
    and nothing moves. Neither the model nor the matrix notices.

    Parameters
    ----------
    model : Module
        Called as ``model(A, X)``.
    A : DistMatrix
    X_local : Tensor or CSR [own rows, features], or Propagated
    """
    A = copy.deepcopy(A)
    logits: Tensor = copy.deepcopy(model).to("meta")(A, _on_meta(X_local))
    logits.sum().backward()
    return A.record


def _on_meta(X_local: Features) -> Features:
    match X_local:
        case Propagated():
            return Propagated(X_local.AX_local.to("meta"))
        case CSR():
            # The gradient of the weights needs the other side, which cannot be made of no data; nor
            # can values be put into its order.
            _ = X_local.pattern.T
            return X_local.with_values(None).to("meta")
        case Tensor():
            return X_local.to("meta")
