"""Attention scores, and their gradients, over one block of edges at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn.autograd import in_own_dtype
from spgnn.kernels.attention import (
    AttentionDropout,
    AttentionState,
    Gat,
    GatV2,
    Rules,
    attend_,
    attend_backward,
    head_products,
)
from spgnn.kernels.gemm import times_transposed, transposed_times
from spgnn.pattern import Pattern


class EdgeBlock(NamedTuple):
    """Edges that share one softmax per row."""

    pattern: Pattern  # [rows, cols]
    # [rows, heads], or [rows, heads * channels] if joint: contribution of destinations to the
    # scores
    dst: Tensor
    Z: Tensor  # [cols, heads * channels]
    edges: Tensor | None = None  # [nnz, heads or heads * channels]: contribution of edges
    dropout: AttentionDropout | None = None


class Whole(NamedTuple):
    """Quantities of a whole row, over all blocks, that the gradient of its weights needs."""

    G: Tensor  # [rows, heads * channels]: gradient in the row
    lse: Tensor  # [rows, heads]: logarithm of the sum of exp(score)
    D: Tensor  # [rows, heads]: <G, row>, head by head


class Gradients(NamedTuple):
    """In the operands of attention; ``None`` where there were no edge scores."""

    Z: Tensor
    dst: Tensor | None
    a: Tensor
    edges: Tensor | None


class Scores(NamedTuple):
    """Scores of edges, from a row of Z at the source and what the destination contributes.

    Attributes
    ----------
    a : Tensor [heads, channels], dtype of sums
    slope : float
        Of LeakyReLU below 0.
    joint : bool
        GATv2, ``<a, LeakyReLU(x_i + y_j)>``; else GAT, ``LeakyReLU(d_i + <a, z_j>)``.
    """

    a: Tensor
    slope: float
    joint: bool

    @property
    def heads(self) -> int:
        """Heads."""
        return len(self.a)

    def attend(
        self, block: EdgeBlock, state: AttentionState | None, *, gradients: bool
    ) -> AttentionState:
        """Merge the edges of a block into running softmaxes."""
        return attend_(block.pattern, *self.of(block), state, gradients=gradients)

    def of(self, block: EdgeBlock) -> tuple[Gat | GatV2, Rules]:
        """Operands of kernels."""
        _, dst, Z, edges, dropout = block
        operands = GatV2(dst, Z, self.a) if self.joint else Gat(dst, head_scores(Z, self.a), Z)
        return operands, Rules(self.slope, edges, dropout)

    def gradient(self, block: EdgeBlock, whole: Whole) -> Gradients:
        """Gradients by the edges of a block."""
        gradients: Any = attend_backward(block.pattern, *self.of(block), *whole)
        if self.joint:
            dx, dy, da, dt = gradients
            return Gradients(dy, dx, da, dt)
        Z, (dZ, ds, dt) = block.Z, gradients
        W = head_matrix(self.a)
        if dZ.dtype == ds.dtype:
            dZ.addmm_(ds, W.T)
        else:
            dZ = torch.addmm(dZ.to(ds.dtype), ds, W.T).to(dZ.dtype)
        # dsᵀ·Z has the gradient of every head's vector in its own row and columns.
        by_head = transposed_times(ds, Z.to(ds.dtype)).view(-1, *self.a.shape)
        return Gradients(dZ, None, by_head.diagonal().T.contiguous(), dt)

    def dst_gradient(self, saved: tuple[Tensor, Tensor, Tensor], whole: Whole) -> Tensor | None:
        """``(1 − slope) Σ_j α_ij (<g_i, z_j> − D_i)`` over edges with positive scores.

        Over all edges of a row the same sum is zero, so that what LeakyReLU does below 0 cancels:
        the parts that several ranks make of a row need not know of it. Joint scores have this
        gradient block by block instead.

        Parameters
        ----------
        saved : Tensors [rows, heads], [rows, heads * channels], [rows, heads]
            P and pi of the forward pass (:class:`~spgnn.kernels.attention.AttentionState`), after
            the score that they are relative to.
        """
        if self.joint:
            return None
        base, P, pi = saved
        positive = head_products(whole.G, P, self.heads)
        positive -= whole.D * pi
        return positive.mul_((base - whole.lse).exp_()).mul_(1 - self.slope)


def head_scores(Z: Tensor, a: Tensor) -> Tensor:
    """<z, a>, head by head: [rows, heads], in the dtype of a; differentiable."""
    # Scores are sums of many terms under an exponential.
    with in_own_dtype(Z.device.type):
        return times_transposed(Z.to(a.dtype), head_matrix(a).T)


def head_matrix(a: Tensor) -> Tensor:
    """A matrix [heads * channels, heads] with the vector of each head in its rows and column."""
    heads, channels = a.shape
    return torch.diag_embed(a.T).permute(1, 0, 2).reshape(heads * channels, heads)
