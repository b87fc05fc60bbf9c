"""Attention in plain torch, edge by edge: what the kernels are tested against.

In the dtype of the operands, differentiable by autograd; also the way on CUDA without CuPy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from spgnn.kernels.reference import dropout_keeps
from spgnn.pattern import Pattern


def ends(pattern: Pattern) -> tuple[Tensor, Tensor]:
    """Row and column of each nonzero, int64 [nnz]."""
    numbers = torch.arange(pattern.shape[0], device=pattern.device)
    rows = numbers.repeat_interleave(pattern.row_lengths, output_size=pattern.nnz)
    return rows, pattern.indices.long()


def kept(
    pattern: Pattern, row_ids: Tensor, col_ids: Tensor, heads: int, key: int, p: float
) -> Tensor:
    """Which weights dropout keeps, bool [nnz, heads]: element (row, col · heads + head)."""
    rows, cols = ends(pattern)
    column = col_ids[cols][:, None] * heads + torch.arange(heads, device=pattern.device)
    return dropout_keeps(row_ids[rows][:, None], column, key, p)


def arguments(pattern: Pattern, d: Tensor, s: Tensor, edge_scores: Tensor | None) -> Tensor:
    """What LeakyReLU is taken of, [nnz, heads]."""
    rows, cols = ends(pattern)
    sums = d[rows] + s[cols]
    return sums if edge_scores is None else sums + edge_scores


def arguments_v2(pattern: Pattern, x: Tensor, y: Tensor, edge_features: Tensor | None) -> Tensor:
    """The same for GATv2, [nnz, heads * width]."""
    return arguments(pattern, x, y, edge_features)


def scores_v2(arguments: Tensor, a: Tensor, slope: float) -> Tensor:
    """GATv2's scores from these and a [heads, width]: [nnz, heads]."""
    return (leaky_relu(arguments, slope).view(len(arguments), *a.shape) * a).sum(-1)


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
    powers = torch.exp(scores - m[rows])
    n = torch.zeros_like(m).index_add(0, rows, powers)
    weights = powers if factors is None else powers * factors
    messages = weights[:, :, None] * Z[cols].to(scores.dtype).unflatten(1, (heads, -1))
    O = scores.new_zeros((len(m), Z.shape[1])).index_add(0, rows, messages.flatten(1))
    return m, n, O


def attention(pattern: Pattern, scores: Tensor, Z: Tensor, factors: Tensor | None) -> Tensor:
    """Weighted sums of rows of Z, [rows, heads * width]; zeros for rows without nonzeros."""
    m, n, O = triple(pattern, scores, Z, factors)
    n = torch.where(n == 0, 1.0, n)
    return (O.unflatten(1, (m.shape[1], -1)) / n[:, :, None]).flatten(1)
