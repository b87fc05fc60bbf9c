"""Attention as in GATv2: scores from all of both ends, a_h · LeakyReLU(x_i + y_j)."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.kernels import attention_reference as reference
from spgnn.kernels.attention import (
    AttentionDropout,
    AttentionState,
    _factors,
    _triple,
    merge_,
)
from spgnn.pattern import Pattern


def attend_v2_(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    state: AttentionState | None = None,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> AttentionState:
    """Merge a block's nonzeros into running triples (m, n, O), which have no P and pi.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    x : Tensor [rows, heads * width], float32, float64 or bfloat16
    y : Tensor [cols, heads * width], dtype of x
        Also what is summed.
    a : Tensor [heads, width], dtype of sums
    state : AttentionState, optional
        Changed in place; without it a new one is made.
    slope : float
        Of LeakyReLU below 0.
    edge_features : Tensor [nnz, heads * width], dtype of x, optional
        Added to x_i + y_j.
    dropout : AttentionDropout, optional

    Returns
    -------
    AttentionState
        ``state`` if given.
    """
    arguments = reference.arguments_v2(
        pattern, x.to(a.dtype), y.to(a.dtype), None if edge_features is None else edge_features
    )
    made = _triple(pattern, reference.scores_v2(arguments, a, slope), y, dropout)
    return made if state is None else merge_(state, None, made)


def attend_v2_backward(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients by the nonzeros of one block. Those in x and a add up over blocks.

    Parameters
    ----------
    pattern, x, y, a, slope, edge_features, dropout
        As for `attend_v2_`; the transpose ``pattern.T`` is used.
    G : Tensor [rows, heads * width], dtype of x
    lse, D : Tensor [rows, heads], dtype of sums
        Of whole rows: `finish` gives lse; D is ``head_products(G, out, heads)``.

    Returns
    -------
    dx : Tensor [rows, heads * width], dtype of x
    dy : Tensor [cols, heads * width], dtype of x
    da : Tensor [heads, width], dtype of sums
    dt : Tensor [nnz, heads * width], dtype of x, or None
        Where edge features are given.
    """
    rows, cols = reference.ends(pattern)
    heads, wide = len(a), a.dtype
    arguments = reference.arguments_v2(pattern, x.to(wide), y.to(wide), edge_features)
    scores = reference.scores_v2(arguments, a, slope)
    weights = torch.exp(scores - lse[rows])
    factors = _factors(pattern, dropout, scores)
    g = G[rows].to(wide).unflatten(1, (heads, -1))
    products = (g * y[cols].to(wide).view(g.shape)).sum(-1)
    dropped = weights if factors is None else weights * factors
    products = products if factors is None else products * factors
    de = (weights * (products - D[rows]))[:, :, None]
    arguments = arguments.view(g.shape)
    da = (de * torch.nn.functional.leaky_relu(arguments, slope)).sum(0)
    dt = (de * a * torch.ones_like(arguments).masked_fill_(arguments <= 0, slope)).flatten(1)
    dx = a.new_zeros(x.shape).index_add_(0, rows, dt)
    dy = a.new_zeros(y.shape).index_add_(0, cols, dt + (dropped[:, :, None] * g).flatten(1))
    edges = None if edge_features is None else dt.to(x.dtype)
    return dx.to(x.dtype), dy.to(x.dtype), da, edges
