"""Attention as a function of a distributed matrix; what it is given is checked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn.attention.library import COMPILED, NO_CODEC, Matrix, agreed
from spgnn.errors import InputError
from spgnn.sparse import SUM_DTYPE


@dataclass(frozen=True, eq=False)
class EdgeDropout:
    """Dropout of attention weights that depends on the edge alone, at any number of ranks.

    Attributes
    ----------
    p : float
        Probability of being dropped, in [0, 1).
    key : int
        64 bits made from seed, epoch and layer.
    sources : Tensor int64 [columns]
        Original ids of the vertices of the matrix's columns. Those of received ones are fetched
        once, for a tensor that is the same object in every step.
    targets : Tensor int64 [rows], optional
        Which column each row is; without it, row i is column i.
    """

    p: float
    key: int
    sources: Tensor
    targets: Tensor | None = None


def attend(
    A: Matrix,
    Z_local: Tensor,
    a: Tensor,
    d: Tensor,
    *,
    slope: float = 0.2,
    edge_scores: Tensor | None = None,
    dropout: EdgeDropout | None = None,
) -> Tensor:
    """Rows of Z weighed over the nonzeros of A as in GAT; differentiable once. Collective.

    ``out_i = Σ_j α_ij z_j`` with ``α_i = softmax_j LeakyReLU(d_i + <a, z_j> [+ t_ij])`` for every
    head. Values and scalings of A play no part, and a row without nonzeros is zero.

    Parameters
    ----------
    A : DistMatrix
    Z_local : Tensor [columns, heads * channels]
    a : Tensor [heads, channels]
        The same on all ranks. Its gradient on each rank is a share: they add up.
    d : Tensor [rows, heads]
        What destinations add to the scores.
    slope : float
        Of LeakyReLU below 0.
    edge_scores : Tensor [local nonzeros, heads], optional
        t_ij, in the order of ``A.local_pattern``.
    dropout : EdgeDropout, optional

    Returns
    -------
    Tensor [rows, heads * channels]

    Raises
    ------
    InputError
        If operands do not fit, or A is distributed in a way that adds up what is not weighed yet.
    """
    wide = SUM_DTYPE.get(Z_local.dtype, Z_local.dtype)
    edges = None if edge_scores is None else edge_scores.to(wide)
    operands = _Operands(Z_local, d.to(wide), a.to(wide), edges)
    return _called(A, operands, dropout, slope, joint=False)


def attend_v2(
    A: Matrix,
    Y_local: Tensor,
    a: Tensor,
    X: Tensor,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: EdgeDropout | None = None,
) -> Tensor:
    """The same with the scores of GATv2, ``<a, LeakyReLU(x_i + y_j [+ t_ij])>``. Collective.

    Parameters
    ----------
    A : DistMatrix
    Y_local : Tensor [columns, heads * channels]
        Of sources; also what is weighed.
    a : Tensor [heads, channels]
        As in :func:`attend`.
    X : Tensor [rows, heads * channels], dtype of Y
        Of destinations.
    slope : float
    edge_features : Tensor [local nonzeros, heads * channels], optional
        t_ij, in the order of ``A.local_pattern``.
    dropout : EdgeDropout, optional

    Returns
    -------
    Tensor [rows, heads * channels]

    Raises
    ------
    InputError
        As :func:`attend`.
    """
    wide = SUM_DTYPE.get(Y_local.dtype, Y_local.dtype)
    edges = None if edge_features is None else edge_features.to(Y_local.dtype)
    operands = _Operands(Y_local, X.to(Y_local.dtype), a.to(wide), edges)
    return _called(A, operands, dropout, slope, joint=True)


class _Operands(NamedTuple):
    """Of both kinds of attention."""

    Z: Tensor
    ends: Tensor
    a: Tensor
    edges: Tensor | None


def _called(
    A: Matrix, operands: _Operands, dropout: EdgeDropout | None, slope: float, *, joint: bool
) -> Tensor:
    Z, ends, a, edges = operands
    sources, targets, p, key = None, None, 0.0, 0
    if dropout is not None and dropout.p:
        sources, targets, p = dropout.sources, dropout.targets, float(dropout.p)
        key = (dropout.key + 2**63) % 2**64 - 2**63
    gradients = torch.is_grad_enabled() and any(
        array is not None and array.requires_grad for array in operands
    )
    epoch, number = 0, COMPILED
    if not torch.compiler.is_compiling():
        _check(A, operands, joint=joint)
        _check_dropout(A, dropout)
        step = agreed(A, Z, a, edges, sources, targets, joint, slope, p, key, gradients)
        epoch, number = step.epoch, NO_CODEC if step.exact else step.product
    # Rows are handed over as they lie: kernels and exchanges want them without gaps.
    Z, ends = Z.contiguous(), ends.contiguous()
    made = torch.ops.spgnn.attend(
        Z,
        ends,
        a,
        edges,
        sources,
        targets,
        A.handle,
        joint,
        slope,
        p,
        key,
        gradients,
        epoch,
        number,
    )
    out: Tensor = made[0]
    return out


def _check(A: Matrix, operands: _Operands, *, joint: bool) -> None:
    Z, ends, a, edges = operands
    attention = A.attention
    if Z.dtype not in SUM_DTYPE:
        raise InputError(f"attention takes float32, float64 or bfloat16, got {Z.dtype}")
    if a.dim() != 2 or Z.dim() != 2 or a.numel() != Z.shape[1]:
        raise InputError(
            "attention needs rows [n, heads · channels] and a vector [heads, channels], got "
            f"{list(Z.shape)} and {list(a.shape)}"
        )
    wanted = (A.rows, Z.shape[1] if joint else len(a))
    if ends.shape != wanted:
        raise InputError(f"destinations must be {list(wanted)}, got {list(ends.shape)}")
    if edges is not None and (edges.dim() != 2 or edges.shape[1] != wanted[1]):
        raise InputError(f"edge scores must be [edges, {wanted[1]}], got {list(edges.shape)}")
    attention.check_edges(edges)


def _check_dropout(A: Matrix, dropout: EdgeDropout | None) -> None:
    if dropout is None:
        return
    sources, targets = dropout.sources, dropout.targets
    if not 0 <= dropout.p < 1:
        raise InputError(f"dropout of attention must be in [0, 1), got {dropout.p}")
    if sources.shape != (A.columns,):
        raise InputError(f"original ids must be [{A.columns}], got {list(sources.shape)}")
    if len(sources if targets is None else targets) < A.rows:
        raise InputError(f"{A.rows} rows need as many original ids or targets")
