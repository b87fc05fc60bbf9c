# Attention has many operands, and O is the name of its sums in all of its literature.
# ruff: noqa: E741
"""Attention in plain torch, edge by edge: what the kernels are tested against.

In the dtype of the operands, differentiable by autograd; also the way on CUDA without CuPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from spgnn.kernels.reference import dropout_keeps
from spgnn.pattern import Pattern


def by_heads(X: Tensor, heads: int) -> Tensor:
    """[rows, heads * width] as [rows, heads, width]."""
    return X.unflatten(1, (heads, X.shape[1] // heads)) if X.dim() == 2 else X[:, :, None]


def ends(pattern: Pattern) -> tuple[Tensor, Tensor]:
    """Row and column of each nonzero, int64 [nnz]."""
    numbers = torch.arange(pattern.shape[0], device=pattern.device)
    rows = numbers.repeat_interleave(pattern.row_lengths, output_size=pattern.nnz)
    return rows, pattern.indices.long()


def dropout_factors(
    pattern: Pattern, row_ids: Tensor, col_ids: Tensor, key: int, p: float, like: Tensor
) -> Tensor:
    """What dropout multiplies weights with, [nnz, heads] as ``like``."""
    mask = kept(pattern, row_ids, col_ids, like.shape[1], key, p)
    return mask.to(like.dtype) / (1.0 - p)


def kept(
    pattern: Pattern, row_ids: Tensor, col_ids: Tensor, heads: int, key: int, p: float
) -> Tensor:
    """Which weights dropout keeps, bool [nnz, heads]: element (row, col · heads + head)."""
    rows, cols = ends(pattern)
    column = col_ids[cols][:, None] * heads + torch.arange(heads, device=pattern.device)
    return dropout_keeps(row_ids[rows][:, None], column, key, p)


def arguments(pattern: Pattern, d: Tensor, s: Tensor, edge_scores: Tensor | None) -> Tensor:
    """What LeakyReLU is taken of, [nnz, heads]; in GATv2 [nnz, heads * width], of features."""
    rows, cols = ends(pattern)
    sums = d[rows] + s[cols]
    return sums if edge_scores is None else sums + edge_scores


def scores_v2(arguments: Tensor, a: Tensor, slope: float) -> Tensor:
    """GATv2's scores from these and a [heads, width]: [nnz, heads]."""
    return (leaky_relu(arguments, slope).view(len(arguments), *a.shape) * a).sum(-1)


def exponentials(scores: Tensor, of: Tensor) -> Tensor:
    """exp(scores − of); none where there is nothing but scores of −∞, rather than of −∞ + ∞."""
    return torch.exp(scores - torch.where(of == -torch.inf, 0.0, of))


def slopes(numbers: Tensor, slope: float) -> Tensor:
    """The derivative of LeakyReLU, in the dtype of its arguments."""
    return torch.full_like(numbers, slope).masked_fill(numbers > 0, 1.0)


def triple(
    pattern: Pattern, scores: Tensor, Z: Tensor, factors: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The running triple (m, n, O) of a block by itself, from scores [nnz, heads].

    Factors [nnz, heads] are those of dropout.
    """
    rows, cols = ends(pattern)
    heads = scores.shape[1]
    m = scores.new_full((pattern.shape[0], heads), -torch.inf)
    places = rows[:, None].expand_as(scores)
    m = m.scatter_reduce(0, places, scores.detach(), "amax")
    powers = exponentials(scores, m[rows])
    n = torch.zeros_like(m).index_add(0, rows, powers)
    weights = powers if factors is None else powers * factors
    messages = weights[:, :, None] * by_heads(Z[cols].to(scores.dtype), heads)
    O = scores.new_zeros((len(m), Z.shape[1])).index_add(0, rows, messages.flatten(1))
    return m, n, O


def attention(pattern: Pattern, scores: Tensor, Z: Tensor, factors: Tensor | None) -> Tensor:
    """Weighted sums of rows of Z, [rows, heads * width]; zeros for rows without nonzeros."""
    m, n, O = triple(pattern, scores, Z, factors)
    n = torch.where(n == 0, 1.0, n)
    return (by_heads(O, m.shape[1]) / n[:, :, None]).flatten(1)


Factors = Callable[[Tensor], Tensor | None]
"""Makes dropout's factors like some scores, or none."""


def attend(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    slope: float,
    edge_scores: Tensor | None,
    factors: Factors,
    gradients: bool,
) -> tuple[Tensor, ...]:
    """The running triple of a block by itself, and P and pi where gradients are wanted."""
    numbers = arguments(pattern, d, s, edge_scores)
    scores = leaky_relu(numbers, slope)
    m, n, O = triple(pattern, scores, Z, factors(scores))
    if not gradients:
        return m, n, O
    rows, cols = ends(pattern)
    powers = exponentials(scores, m[rows]).masked_fill(numbers <= 0, 0.0)
    pi = torch.zeros_like(n).index_add(0, rows, powers)
    scale = factors(scores)
    weights = powers if scale is None else powers * scale
    z = by_heads(Z[cols].to(scores.dtype), scores.shape[1])
    P = torch.zeros_like(O).index_add(0, rows, (weights[:, :, None] * z).flatten(1))
    return m, n, O, P, pi


def attend_backward(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    slope: float,
    edge_scores: Tensor | None,
    factors: Factors,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in Z, in s, and in the scores of edges."""
    rows, cols = ends(pattern)
    heads = d.shape[1]
    numbers = arguments(pattern, d, s, edge_scores)
    scores = leaky_relu(numbers, slope)
    weights = exponentials(scores, lse[rows])
    scale = factors(scores)
    g = by_heads(G[rows].to(d.dtype), heads)
    z = Z[cols].to(d.dtype).view(g.shape)
    products = (g * z).sum(-1)
    dropped = weights if scale is None else weights * scale
    products = products if scale is None else products * scale
    de = weights * (products - D[rows]) * slopes(numbers, slope)
    dZ = d.new_zeros(Z.shape).index_add_(0, cols, (dropped[:, :, None] * g).flatten(1))
    return dZ.to(Z.dtype), torch.zeros_like(s).index_add_(0, cols, de), de


def attend_v2_backward(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    slope: float,
    edge_features: Tensor | None,
    factors: Factors,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients in x, y, a and the features of edges."""
    rows, cols = ends(pattern)
    heads, wide = len(a), a.dtype
    edges = None if edge_features is None else edge_features.to(wide)
    numbers = arguments(pattern, x.to(wide), y.to(wide), edges)
    scores = scores_v2(numbers, a, slope)
    weights = exponentials(scores, lse[rows])
    scale = factors(scores)
    g = by_heads(G[rows].to(wide), heads)
    products = (g * y[cols].to(wide).view(g.shape)).sum(-1)
    dropped = weights if scale is None else weights * scale
    products = products if scale is None else products * scale
    de = (weights * (products - D[rows]))[:, :, None]
    numbers = numbers.view(g.shape)
    da = (de * leaky_relu(numbers, slope)).sum(0)
    dt = (de * a * slopes(numbers, slope)).flatten(1)
    dx = a.new_zeros(x.shape).index_add_(0, rows, dt)
    dy = a.new_zeros(y.shape).index_add_(0, cols, dt + (dropped[:, :, None] * g).flatten(1))
    return dx.to(x.dtype), dy.to(x.dtype), da, dt.to(x.dtype)


def merge(
    into: Sequence[Tensor | None], rows: Tensor | None, other: Sequence[Tensor | None]
) -> None:
    """Merge triples (m, n, O, P or None, pi or None) into listed rows of others, in place."""
    m, n, *sums = into
    its_m, its_n, *its_sums = other
    assert m is not None
    assert n is not None
    assert its_m is not None
    places = slice(None) if rows is None else rows.long()
    top = torch.maximum(m[places], its_m)
    finite = torch.where(top == -torch.inf, 0.0, top)
    mine, its = torch.exp(m[places] - finite), torch.exp(its_m - finite)
    m[places] = top
    for array, added in zip((n, *sums), (its_n, *its_sums), strict=True):
        if array is None:
            continue
        before = array[places]
        after = by_heads(before, mine.shape[1]) * mine[:, :, None]
        if added is not None:
            after += added.view(after.shape) * its[:, :, None]
        array[places] = after.view(before.shape)
