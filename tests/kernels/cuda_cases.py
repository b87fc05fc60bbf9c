"""Blocks, matrices and the comparison that the CUDA tests share, emulated or on a GPU."""

from __future__ import annotations

import numpy as np
import torch

from spgnn.kernels import reference
from spgnn.kernels.cuda.native import SUM_DTYPE
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

WIDTHS = [1, 3, 16, 17, 64, 128, 129, 300, 1024]
PARTS = [(), ("values",), ("row_scale", "col_scale"), ("values", "row_scale", "col_scale")]
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-14, torch.bfloat16: 4e-3}
# Hub rows that cross tiles, runs of empty rows, short rows.
SKEWED = [*[2] * 40, 700, *[0] * 300, *range(30), 0, 650, 650, 0, *[5] * 50]


def block(lengths, cols=800, *, parts=(), dtype=torch.float32, index=torch.int32, seed=0) -> CSR:
    rng = np.random.default_rng(seed)
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    columns = [np.sort(rng.choice(cols, n, replace=False)) for n in lengths]
    indices = torch.from_numpy(np.concatenate([*columns, []])).to(index)
    sizes = {"values": len(indices), "row_scale": len(lengths), "col_scale": cols}
    real = SUM_DTYPE[dtype]
    arrays = {p: torch.from_numpy(rng.standard_normal(sizes[p])).to(real) for p in parts}
    pattern = Pattern.trusted(torch.from_numpy(indptr), indices, (len(lengths), cols))
    return CSR(pattern, **arrays)


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
