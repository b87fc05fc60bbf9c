"""Blocks, matrices and the comparison that the CUDA tests share, emulated or on a GPU."""

from __future__ import annotations

import torch

from spgnn.sparse import CSR, SUM_DTYPE
from tests.kernels import oracle as reference
from tests.kernels.conftest import random_block

PARTS = [(), ("values",), ("row_scale", "col_scale"), ("values", "row_scale", "col_scale")]
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-14, torch.bfloat16: 4e-3}
# Hub rows that cross tiles, runs of empty rows, short rows.
SKEWED = [*[2] * 40, 700, *[0] * 300, *range(30), 0, 650, 650, 0, *[5] * 50]


def block(lengths, cols=800, *, seed=0, **options) -> CSR:
    """A random block with these lengths of rows."""
    return random_block(len(lengths), cols, lengths, seed, **options)


def matrix(rows, columns, dtype=torch.float32, *, padding=0, offset=0, seed=1) -> torch.Tensor:
    """Normal numbers, or NaN around them where memory is not part of the matrix."""
    stride = columns + padding
    storage = torch.full((offset + rows * stride + 16,), float("nan"), dtype=dtype)
    view = storage[offset:].as_strided((rows, columns), (stride, 1))
    generator = torch.Generator().manual_seed(seed)
    return view.copy_(torch.randn(rows, columns, generator=generator, dtype=torch.float64))


def assert_product(actual, A, X, added=0.0):
    expected = reference.spmm(A, X) + added
    magnitude = reference.dense(A).abs() @ X.double().abs() + abs(added) + 1e-30
    assert actual.dtype == X.dtype
    assert bool(((actual.double() - expected).abs() <= ROUNDING[X.dtype] * magnitude).all())


def multiply(module, A, X, out=None, accumulate=False) -> torch.Tensor:
    """Y = A X or Y += A X by one of the implementations."""
    if out is None:
        out = X.new_empty((A.shape[0], *X.shape[1:]))
    numbers = A.values, A.row_scale, A.col_scale
    module.spmm(A.indptr, A.indices, *numbers, X, out, accumulate)
    return out


def assert_products(actual, A, G, X):
    """Whole arrays, head by head where there are heads."""
    if X.dim() == 3:
        for head in range(X.shape[1]):
            assert_products(actual[:, head], A, G[:, head], X[:, head])
        return
    scales = (None if s is None else s.abs() for s in (A.row_scale, A.col_scale))
    magnitude = reference.sddmm(CSR(A.pattern).with_scales(*scales), G.abs(), X.abs()) + 1e-30
    error = (actual.double() - reference.sddmm(A, G, X)).abs()
    assert actual.dtype == SUM_DTYPE[X.dtype]
    assert bool((error <= ROUNDING[actual.dtype] * magnitude).all())


def some_scores(pattern, heads, dtype, seed=1) -> torch.Tensor:
    """Scores with single ones and a whole row of −∞."""
    scores = 5 * matrix(pattern.nnz, heads, dtype, seed=seed).clone()
    scores[::7, -1:] = -torch.inf
    begin, end = pattern.indptr[40:42].tolist()
    scores[begin:end] = -torch.inf
    return scores


def assert_softmax(actual, pattern, scores):
    expected = reference.edge_softmax(pattern, scores)
    assert actual.dtype == scores.dtype
    error = (actual.double() - expected).abs()
    assert bool((error <= 2 * ROUNDING[scores.dtype] * expected + 1e-30).all())


def assert_sums(actual, pattern, numbers):
    expected = reference.row_sums(pattern, numbers)
    magnitude = reference.row_sums(pattern, numbers.abs()) + 1e-30
    error = (actual.double() - expected).abs()
    assert bool((error <= ROUNDING[actual.dtype] * magnitude).all())
