"""Autograd through the distributed product; the only torch.autograd.Function classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.spmm import DistMatrix


class _Product(torch.autograd.Function):
    """forward Z = A H; dgrad dH = Aᵀ G."""

    @staticmethod
    def forward(ctx: Any, H_local: Tensor, A: DistMatrix) -> Tensor:
        ctx.A = A
        return A.forward(H_local)

    @staticmethod
    def backward(ctx: Any, *G_local: Tensor) -> tuple[Tensor | None, None]:
        return ctx.A.adjoint(G_local[0]), None


class _PaperLayer(torch.autograd.Function):
    """forward Z = (A H) W; S = Aᵀ G; dgrad dH = S Wᵀ; wgrad dW = Hᵀ S (nothing of A H is kept)."""

    @staticmethod
    def forward(ctx: Any, H_local: Tensor, W: Tensor, A: DistMatrix) -> Tensor:
        ctx.A = A
        ctx.save_for_backward(H_local, W)
        return A.forward(H_local) @ W

    @staticmethod
    def backward(ctx: Any, *G_local: Tensor) -> tuple[Tensor | None, Tensor, None]:
        H_local, W = ctx.saved_tensors
        S = ctx.A.adjoint(G_local[0])
        dH = S @ W.T if ctx.needs_input_grad[0] else None
        return dH, H_local.T @ S, None


def distributed_product(A: DistMatrix, H_local: Tensor) -> Tensor:
    """``A @ H`` with gradient ``Aᵀ @ G``, both collective over A's grid.

    Parameters
    ----------
    A : DistMatrix
    H_local : Tensor [own rows, f]
        If no rank's H requires a gradient, backward costs nothing. All ranks must agree on it.
    """
    Z_local: Tensor = _Product.apply(H_local, A)  # type: ignore[no-untyped-call]
    return Z_local


def paper_layer(A: DistMatrix, H_local: Tensor, W: Tensor) -> Tensor:
    """``(A @ H) @ W`` with the backward of Tripathy et al. (SC'20), which multiplies A by G.

    The exchange moves rows of width f_in forward and f_out backward, in every layer and every
    epoch. Kept for comparisons.
    """
    Z_local: Tensor = _PaperLayer.apply(H_local, W, A)  # type: ignore[no-untyped-call]
    return Z_local
