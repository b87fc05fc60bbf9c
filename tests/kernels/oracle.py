"""Slow and obvious: what the kernels are compared with. Plain torch, sums in float64."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from spgnn.kernels.torch_kernels import dropout_keeps, dropout_mask, dropped
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

__all__ = ["dropout_keeps", "dropout_mask"]
dropout_rows = dropped


def dense(A: CSR) -> Tensor:
    """Every entry of a block, float64 [rows, cols], or [rows, cols, heads]."""
    rows, cols = _row_of_each(A), A.indices.cpu().long()
    entries = torch.ones(A.nnz, dtype=torch.float64)
    entries = entries if A.values is None else A.values.cpu().double()
    for scale, index in ((A.row_scale, rows), (A.col_scale, cols)):
        if scale is not None:
            entries = entries * _beside(scale.cpu().double()[index], entries)
    matrix = torch.zeros(*A.shape, *entries.shape[1:], dtype=torch.float64)
    return matrix.index_put_((rows, cols), entries, accumulate=True)


def absolute(A: CSR) -> CSR:
    """The block of absolute numbers: its products are the sizes of sums."""
    numbers = (A.values, A.row_scale, A.col_scale)
    return CSR(A.pattern, *(None if array is None else array.abs() for array in numbers))


def spmm(A: CSR, X: Tensor) -> Tensor:
    """A X, float64 [rows, f] or [rows, heads, f]."""
    matrix, X = dense(A), X.cpu().double()
    if X.dim() == 2:
        return matrix @ X
    each = matrix if matrix.dim() == 3 else matrix[:, :, None].expand(-1, -1, X.shape[1])
    return torch.einsum("rch,chf->rhf", each, X)


def _row_of_each(pattern: Pattern | CSR) -> Tensor:
    return torch.repeat_interleave(torch.arange(pattern.shape[0]), pattern.row_lengths.cpu())


def _beside(numbers: Tensor, rows: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (rows.dim() - 1))


def sddmm(A: CSR, G: Tensor, X: Tensor) -> Tensor:
    """row_scale[i] · col_scale[j] · <G[i], X[j]>, float64 [nnz] or [nnz, heads]."""
    rows, cols = _row_of_each(A), A.indices.cpu().long()
    products = (G.cpu().double()[rows] * X.cpu().double()[cols]).sum(-1)
    for scale, index in ((A.row_scale, rows), (A.col_scale, cols)):
        if scale is not None:
            products *= _beside(scale.cpu().double()[index], products)
    return products


def edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Softmax of the scores in each row, zeros where all are −∞; float64 of their shape."""
    weights = scores.cpu().double().clone()
    for begin, end in pairwise(pattern.indptr.tolist()):
        if begin < end:
            row = weights[begin:end]
            powers = torch.exp(row - row.amax(0))
            masked = (row == -torch.inf).all(0)
            weights[begin:end] = torch.where(masked, 0.0, powers / powers.sum(0))
    return weights


def row_sums(pattern: Pattern, numbers: Tensor) -> Tensor:
    """For each nonzero the sum of the numbers in its row; float64."""
    rows, numbers = _row_of_each(pattern), numbers.cpu().double()
    sums = numbers.new_zeros(pattern.shape[0], *numbers.shape[1:])
    return sums.index_add_(0, rows, numbers)[rows]


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None = None) -> Tensor:
    """scale[i] · X[rows[i]], float64 [m, f]."""
    Y = X.double()[rows]
    return Y if scale is None else scale.double()[:, None] * Y


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None = None) -> Tensor:
    """Y with scale[i] · X[i] added to row rows[i], float64 [n, f]; Y is not modified."""
    added = X.double() if scale is None else scale.double()[:, None] * X.double()
    return Y.double().index_add(0, rows, added)


def attention(pattern: Pattern, scores: Tensor, Z: Tensor, factors: Tensor | None) -> Tensor:
    """Weighted sums of rows of Z, [rows, heads * width]; zeros for rows without nonzeros."""
    rows, cols, heads = _row_of_each(pattern), pattern.indices.long(), scores.shape[1]
    largest = scores.new_full((pattern.shape[0], heads), -torch.inf)
    largest = largest.scatter_reduce(0, rows[:, None].expand_as(scores), scores.detach(), "amax")
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    powers = torch.exp(scores - largest[rows])
    n = torch.zeros_like(largest).index_add(0, rows, powers)
    weights = powers / torch.where(n == 0, 1.0, n)[rows]
    weights = weights if factors is None else weights * factors
    messages = weights[:, :, None] * Z[cols].reshape(len(cols), heads, Z.shape[1] // heads)
    return Z.new_zeros(pattern.shape[0], Z.shape[1]).index_add(0, rows, messages.flatten(1))
