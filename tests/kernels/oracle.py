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
    """Every entry of a block, float64 [rows, cols]."""
    rows = _row_of_each(A)
    cols = A.indices.cpu().long()
    entries = torch.ones(A.nnz, dtype=torch.float64)
    for array, index in ((A.values, slice(None)), (A.row_scale, rows), (A.col_scale, cols)):
        if array is not None:
            entries *= array.cpu().double()[index]
    matrix = torch.zeros(A.shape, dtype=torch.float64)
    return matrix.index_put_((rows, cols), entries, accumulate=True)


def spmm(A: CSR, X: Tensor) -> Tensor:
    """A X, float64 [rows, f]."""
    return dense(A) @ X.cpu().double()


def _row_of_each(pattern: Pattern | CSR) -> Tensor:
    return torch.repeat_interleave(torch.arange(pattern.shape[0]), pattern.row_lengths.cpu())


def sddmm(A: CSR, G: Tensor, X: Tensor) -> Tensor:
    """row_scale[i] · col_scale[j] · <G[i], X[j]> per nonzero of A, float64 [nnz]."""
    rows = _row_of_each(A)
    cols = A.indices.cpu().long()
    products = (G.cpu().double()[rows] * X.cpu().double()[cols]).sum(1)
    for scale, index in ((A.row_scale, rows), (A.col_scale, cols)):
        if scale is not None:
            products *= scale.cpu().double()[index]
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
