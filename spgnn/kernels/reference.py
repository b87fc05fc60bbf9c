"""Slow and obvious: what every kernel is tested against. Plain torch, sums in float64."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from spgnn.pattern import Pattern
from spgnn.sparse import CSR

GOLDEN = 0x9E3779B97F4A7C15
MASK64 = 2**64 - 1


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


def mix64(z: Tensor) -> Tensor:
    """Finalizer of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), int64 taken as 64 bits."""
    z = (z ^ _shift_right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def dropout_keeps(vertex: Tensor, column: Tensor, key: int, p: float) -> Tensor:
    """Whether element (vertex, column) is kept, bool; int64 operands of one shape, or broadcast.

    With all arithmetic modulo 2⁶⁴ and golden = 0x9E3779B97F4A7C15:
    ``stream = mix64(mix64(key) + golden · (vertex + 1))``; columns 2j and 2j + 1 take the low and
    the high 32 bits of ``mix64(stream + golden · (j + 1))``; an element is dropped where they are
    below ``round(p · 2³²)``.
    """
    golden = _signed(GOLDEN)
    seed = mix64(torch.tensor(_signed(key & MASK64), device=vertex.device))
    stream = mix64(seed + golden * (vertex + 1))
    bits = mix64(stream + golden * (column // 2 + 1))
    half = torch.where(column % 2 == 0, bits & 0xFFFFFFFF, _shift_right(bits, 32))
    return half >= round(p * 2**32)


def dropout_mask(vertex_ids: Tensor, columns: int, key: int, p: float) -> Tensor:
    """Which elements are kept, bool [n, columns]."""
    column = torch.arange(columns, device=vertex_ids.device)
    return dropout_keeps(vertex_ids[:, None], column, key, p)


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    """Exactly what the kernels return: the product is taken in the dtype of the sum."""
    wide = X.float() if X.dtype == torch.bfloat16 else X
    factor = torch.tensor(1.0 / (1.0 - p), dtype=wide.dtype, device=X.device)
    kept = dropout_mask(vertex_ids, X.shape[1], key, p)
    return torch.where(kept, wide * factor, 0.0).to(X.dtype)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    # Torch shifts the sign in; a logical shift has zeros there.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
