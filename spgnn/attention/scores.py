"""Scores of edges over one block at a time, and the records that passes hand on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spgnn.autograd import in_own_dtype
from spgnn.kernels.attention import (
    AttentionDropout,
    AttentionState,
    attend_,
    attend_backward,
    attend_v2_,
    attend_v2_backward,
    head_products,
)
from spgnn.pattern import Pattern

# Stands for the logarithm of an empty sum: finite, so that differences of two are numbers.
NOTHING = -1e30


class Whole(NamedTuple):
    """Quantities of a whole row, over all blocks, that the gradient of its weights needs.

    Attributes
    ----------
    G : Tensor [rows, heads * channels]
        Gradient in the row.
    lse : Tensor [rows, heads]
        Logarithm of the sum of exp(score).
    D : Tensor [rows, heads]
        <G, row>, head by head.
    """

    G: Tensor
    lse: Tensor
    D: Tensor


class Kept(NamedTuple):
    """Tensors of a forward pass that the gradient in the destinations' scores needs.

    Attributes
    ----------
    base : Tensor [rows, heads]
        What P and pi are relative to.
    P, pi : Tensor [rows, heads * channels] and [rows, heads]
        See :class:`~spgnn.kernels.attention.AttentionState`.
    """

    base: Tensor
    P: Tensor
    pi: Tensor


class Block(NamedTuple):
    """Edges that share one softmax per row.

    Attributes
    ----------
    pattern : Pattern [rows, cols]
    ends : Tensor [rows, …]
        What destinations say of the scores.
    Z : Tensor [cols, heads * channels]
    edges : Tensor [nnz, …], optional
        What edges say of them.
    dropout : AttentionDropout, optional
    """

    pattern: Pattern
    ends: Tensor
    Z: Tensor
    edges: Tensor | None = None
    dropout: AttentionDropout | None = None


class BlockGradient(NamedTuple):
    """Gradients by the edges of one block.

    Attributes
    ----------
    Z : Tensor [cols, heads * channels]
    ends : Tensor [rows, …], or ``None`` where what was kept gives it
    a : Tensor [heads, channels]
    edges : Tensor [nnz, …], or ``None`` without edge scores
    """

    Z: Tensor
    ends: Tensor | None
    a: Tensor
    edges: Tensor | None


@dataclass(frozen=True, eq=False)
class Scores(ABC):
    """Scores of edges, from a row of Z at the source and the destination's scores.

    Attributes
    ----------
    a : Tensor [heads, channels], dtype of sums
    slope : float
        Of LeakyReLU below 0.
    """

    a: Tensor
    slope: float
    whole_rows: ClassVar[bool]
    """Whether the destination's end is its whole row, not a number a head."""

    @property
    def heads(self) -> int:
        """Heads."""
        return len(self.a)

    @abstractmethod
    def attend(
        self, block: Block, state: AttentionState | None, *, gradients: bool
    ) -> AttentionState:
        """Merge the edges of a block into running softmaxes."""

    @abstractmethod
    def gradient(self, block: Block, whole: Whole) -> BlockGradient:
        """Gradients by the edges of a block."""

    @abstractmethod
    def ends_gradient(self, kept: Kept, whole: Whole) -> Tensor | None:
        """Gradient in the destinations' ends, where it does not come block by block."""


class Added(Scores):
    """GAT: LeakyReLU(d_i + <a, z_j>)."""

    whole_rows = False

    def attend(
        self, block: Block, state: AttentionState | None, *, gradients: bool
    ) -> AttentionState:
        """Merge the edges of a block into running softmaxes."""
        return attend_(
            block.pattern,
            block.ends,
            head_scores(block.Z, self.a),
            block.Z,
            state,
            slope=self.slope,
            edge_scores=block.edges,
            dropout=block.dropout,
            gradients=gradients,
        )

    def gradient(self, block: Block, whole: Whole) -> BlockGradient:
        """Gradients by the edges of a block."""
        Z = block.Z
        dZ, ds, dt = attend_backward(
            block.pattern,
            block.ends,
            head_scores(Z, self.a),
            Z,
            *whole,
            slope=self.slope,
            edge_scores=block.edges,
            dropout=block.dropout,
        )
        W = head_matrix(self.a)
        if dZ.dtype == ds.dtype:
            dZ.addmm_(ds, W.T)
        else:
            dZ = torch.addmm(dZ.to(ds.dtype), ds, W.T).to(dZ.dtype)
        # Zᵀ·ds has the gradient of every head's vector in its own rows and column.
        by_head = torch.mm(Z.to(ds.dtype).T, ds).view(*self.a.shape, -1)
        da = by_head.diagonal(dim1=0, dim2=2).T.contiguous()
        return BlockGradient(dZ, None, da, dt)

    def ends_gradient(self, kept: Kept, whole: Whole) -> Tensor:
        """``(1 − slope) Σ_j α_ij (<g_i, z_j> − D_i)`` over edges with positive scores.

        Over all edges of a row the same sum is zero, so that what LeakyReLU does below 0 cancels:
        the parts that several ranks make of a row need not know of it.
        """
        positive = head_products(whole.G, kept.P, self.heads)
        positive -= whole.D * kept.pi
        return positive.mul_((kept.base - whole.lse).exp_()).mul_(1 - self.slope)


class Joint(Scores):
    """GATv2: <a, LeakyReLU(x_i + y_j)>."""

    whole_rows = True

    def attend(
        self, block: Block, state: AttentionState | None, *, gradients: bool
    ) -> AttentionState:
        """Merge the edges of a block into running softmaxes."""
        return attend_v2_(
            block.pattern,
            block.ends,
            block.Z,
            self.a,
            state,
            slope=self.slope,
            edge_features=block.edges,
            dropout=block.dropout,
        )

    def gradient(self, block: Block, whole: Whole) -> BlockGradient:
        """Gradients by the edges of a block."""
        dx, dy, da, dt = attend_v2_backward(
            block.pattern,
            block.ends,
            block.Z,
            self.a,
            *whole,
            slope=self.slope,
            edge_features=block.edges,
            dropout=block.dropout,
        )
        return BlockGradient(dy, dx, da, dt)

    def ends_gradient(self, kept: Kept, whole: Whole) -> None:
        """Comes block by block."""


def merge_partials_(
    pattern: Pattern, means: Tensor, lse: Tensor, state: AttentionState
) -> AttentionState:
    """Merge partial softmaxes that other ranks computed over parts of rows.

    Each is like one source: its score is the logarithm of its sum, and what it weighs is its row.

    Parameters
    ----------
    pattern : Pattern [rows, partials]
        Which belong to which row.
    means : Tensor [partials, heads * channels]
    lse : Tensor [partials, heads]
    state : AttentionState [rows]
        Changed in place, but for its P and pi: they stay relative to what they were.
    """
    nobody = lse.new_zeros(pattern.shape[0], lse.shape[1])
    alone = AttentionState(state.m.clone(), state.n, state.O)
    return attend_(pattern, nobody, lse, means, alone, slope=1.0, gradients=False)


def head_scores(Z: Tensor, a: Tensor) -> Tensor:
    """<z, a>, head by head: [rows, heads], in the dtype of a; differentiable.

    Parameters
    ----------
    Z : Tensor [rows, heads * channels]
    a : Tensor [heads, channels]
    """
    # Scores are sums of many terms under an exponential.
    with in_own_dtype(Z.device.type):
        return torch.mm(Z.to(a.dtype), head_matrix(a))


def head_matrix(a: Tensor) -> Tensor:
    """A matrix [heads * channels, heads] with the vector of each head in its rows and column."""
    heads, channels = a.shape
    return torch.diag_embed(a.T).permute(1, 0, 2).reshape(heads * channels, heads)


class Forward(NamedTuple):
    """The rows that were made, and what the gradient needs: tensors only, empty if not needed.

    Attributes
    ----------
    out : Tensor [rows, heads * channels]
    lse : Tensor [rows, heads]
        Logarithm of the sum of exp(score) over all edges of a row, on whatever rank.
    kept : Kept
        Of the rows before the fold.
    ends : Tensor [rows before the fold, …]
        Empty where there is none.
    fetched : Tensor [fetched rows, heads * channels]
    asked : Tensor [partials for others, …]
        Their destinations' ends.
    asked_kept : Kept
    """

    out: Tensor
    lse: Tensor
    kept: Kept
    ends: Tensor
    fetched: Tensor
    asked: Tensor
    asked_kept: Kept


class Gradients(NamedTuple):
    """Of a layer's operands; that of edges is ``None`` where there were no edge scores."""

    Z: Tensor
    ends: Tensor
    a: Tensor
    edges: Tensor | None


class Ids(NamedTuple):
    """Original numbers of vertices, int64: what dropout of an edge is a function of."""

    rows: Tensor
    columns: Tensor
    fetched: Tensor
    asked: Tensor


class Rate(NamedTuple):
    """Dropout of weights: its probability and key, and the vertices' original numbers."""

    p: float
    key: int
    ids: Ids

    def of(self, rows: Tensor, columns: Tensor) -> AttentionDropout:
        """The same for one block."""
        return AttentionDropout(self.key, self.p, rows, columns)


class Blocks(NamedTuple):
    """Something for each block: that at hand, that of fetched sources, that of partials."""

    local: AttentionDropout | None = None
    remote: AttentionDropout | None = None
    asked: AttentionDropout | None = None

    @classmethod
    def of(cls, rate: Rate | None) -> Blocks:
        """Dropout of every block."""
        if rate is None:
            return cls()
        rows, columns, fetched, asked = rate.ids
        return cls(rate.of(rows, columns), rate.of(rows, fetched), rate.of(asked, columns))
