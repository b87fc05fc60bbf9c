"""Calls of the C++ kernels on CPU tensors whose shapes and dtypes have been checked."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import CSR

_kernels: Any = importlib.import_module("spgnn.kernels._kernels")

MASK64 = 2**64 - 1
# Below this many multiplications a second thread costs more than it saves.
SERIAL_LIMIT = 32768
# X of at most this many columns is scaled as a whole, if its rows are used so often on average.
SCALED_COLUMNS = 16
LEAST_USES = 12

_TYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_INDEX_TYPES = {torch.int32: "int32", torch.int64: "int64"}
_SPMM = {
    (dtype, index): getattr(_kernels, f"spmm_{name}_{index_name}")
    for dtype, name in _TYPES.items()
    for index, index_name in _INDEX_TYPES.items()
}
_SDDMM = {
    (dtype, index): getattr(_kernels, f"sddmm_{name}_{index_name}")
    for dtype, name in _TYPES.items()
    for index, index_name in _INDEX_TYPES.items()
}
_GATHER = {dtype: getattr(_kernels, f"gather_rows_{name}") for dtype, name in _TYPES.items()}
_SCATTER = {dtype: getattr(_kernels, f"scatter_add_rows_{name}") for dtype, name in _TYPES.items()}
_DROPOUT = {dtype: getattr(_kernels, f"dropout_rows_{name}") for dtype, name in _TYPES.items()}


def spmm(
    stored: Sequence[Any],
    scales: Sequence[Tensor | None],
    X: Tensor,
    out: Tensor,
    accumulate: bool,
) -> None:
    """Y = A X or Y += A X; `stored` is indptr, indices, values and order of A."""
    indptr, indices, values, order = stored
    rows, columns = out.shape
    row_scale, col_scale = scales
    if col_scale is not None and _worth_scaling(X, indices, col_scale):
        X = torch.mul(X, col_scale[:, None], out=new_rows(X.shape[0], X))
        col_scale = None
    _SPMM[X.dtype, indices.dtype](
        indptr.data_ptr(),
        indices.data_ptr(),
        rows,
        _address(values),
        _address(row_scale),
        _address(col_scale),
        _address(order),
        X.data_ptr(),
        X.stride(0),
        out.data_ptr(),
        out.stride(0),
        columns,
        accumulate,
        _threads((indices.shape[0] + rows) * columns),
    )


def sddmm(
    pattern: Sequence[Tensor],
    scales: Sequence[Tensor | None],
    G: Tensor,
    X: Tensor,
    out: Tensor,
) -> None:
    """out[e] = row_scale[i] col_scale[j] <G[i], X[j]>; `pattern` is indptr and indices."""
    indptr, indices = pattern
    _SDDMM[X.dtype, indices.dtype](
        indptr.data_ptr(),
        indices.data_ptr(),
        G.shape[0],
        *map(_address, scales),
        G.data_ptr(),
        G.stride(0),
        X.data_ptr(),
        X.stride(0),
        X.shape[1],
        out.data_ptr(),
        _threads(indices.shape[0] * X.shape[1]),
    )


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Y[i] = scale[i] X[rows[i]]."""
    _check_range(rows, X.shape[0])
    _GATHER[X.dtype](
        X.data_ptr(),
        X.stride(0),
        out.data_ptr(),
        out.stride(0),
        X.shape[1],
        rows.data_ptr(),
        rows.shape[0],
        _address(scale),
        _threads(out.numel()),
    )


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    """Y[rows[i]] += scale[i] X[i]."""
    _check_range(rows, Y.shape[0])
    _SCATTER[X.dtype](
        X.data_ptr(),
        X.stride(0),
        Y.data_ptr(),
        Y.stride(0),
        X.shape[1],
        rows.data_ptr(),
        rows.shape[0],
        _address(scale),
        _threads(X.numel()),
    )


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    """X / (1 - p) where kept, 0 elsewhere."""
    out = new_rows(X.shape[0], X)
    _DROPOUT[X.dtype](
        X.data_ptr(),
        X.stride(0),
        out.data_ptr(),
        out.stride(0),
        X.shape[1],
        vertex_ids.data_ptr(),
        vertex_ids.shape[0],
        _kernels.mix64(key & MASK64),
        round(p * 2**32),
        1.0 / (1.0 - p),
        _threads(X.numel()),
    )
    return out


def far_share(A: CSR, order: Tensor | None, window: int) -> float:
    """Share of nonzeros whose column none of the last `window` nonzeros used."""
    count = _kernels.count_far_int32 if A.indices.dtype == torch.int32 else _kernels.count_far_int64
    arrays = A.indptr.data_ptr(), A.indices.data_ptr()
    far: int = count(*arrays, *A.shape, _address(order), window)
    return far / max(A.nnz, 1)


def cluster_order(A: CSR, largest: int, sweeps: int) -> Tensor:
    """Rows of a square block sorted by cluster, int32 [rows]."""
    narrow = A.indices.dtype == torch.int32
    cluster = _kernels.cluster_order_int32 if narrow else _kernels.cluster_order_int64
    order = torch.empty(A.shape[0], dtype=torch.int32)
    arrays = A.indptr.data_ptr(), A.indices.data_ptr()
    cluster(*arrays, A.shape[0], largest, sweeps, order.data_ptr())
    return order


def _worth_scaling(X: Tensor, indices: Tensor, scale: Tensor) -> bool:
    """Whether scaling all rows of X costs less than looking up a factor for every nonzero."""
    narrow = X.shape[1] <= SCALED_COLUMNS and X.dtype == scale.dtype
    return narrow and indices.shape[0] >= LEAST_USES * X.shape[0]


def _threads(work: int) -> int:
    return 1 if work < SERIAL_LIMIT else torch.get_num_threads()


def _address(array: Tensor | None) -> int:
    return 0 if array is None else array.data_ptr()


def _check_range(rows: Tensor, limit: int) -> None:
    if not _kernels.in_range(rows.data_ptr(), rows.shape[0], limit):
        outside = rows[(rows < 0) | (rows >= limit)]
        raise InputError(f"row {int(outside[0])} outside [0, {limit})")
