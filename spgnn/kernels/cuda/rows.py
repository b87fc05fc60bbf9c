"""Host side of the kernels over listed rows: gather, dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.kept import kept
from spgnn.kernels.cuda.shapes import instance, thread_shape, vector_width
from spgnn.kernels.library import dense, unit_stride

ROWS_IN_FLIGHT = 4  # kRowsInFlight of rows.cuh


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Y[i] = scale[i] X[rows[i]], into ``out``."""
    if not out.numel():
        return
    check_range(rows, X.shape[0])
    X = unit_stride(X)
    vector, lanes = _row_shape(X, out)
    device.launch(
        instance("gather_rows", X.dtype, rows.dtype, vector, lanes),
        (-(-len(rows) // (device.THREADS // lanes * ROWS_IN_FLIGHT)), 1),
        (
            X,
            X.stride(0),
            rows.contiguous(),
            dense(scale),
            out,
            out.stride(0),
            len(rows),
            X.shape[1],
        ),
    )


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None:
    """X / (1 - p) where kept, 0 elsewhere, into ``out``."""
    if not out.numel():
        return
    X = unit_stride(X)
    vector, lanes = _row_shape(X, out)
    device.launch(
        instance("dropout_rows", X.dtype, vector, lanes),
        (-(-len(vertex_ids) // (device.THREADS // lanes)), 1),
        (
            X,
            X.stride(0),
            vertex_ids.contiguous(),
            out,
            out.stride(0),
            len(vertex_ids),
            X.shape[1],
            key,
            round(p * 2**32),
            1.0 / (1.0 - p),
        ),
    )


def listed(rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A list as one of 32 bits, or as one of 64 bits."""
    if rows is None:
        return None, None
    rows = rows.contiguous()
    return (rows, None) if rows.dtype == torch.int32 else (None, rows)


def check_range(rows: Tensor, limit: int) -> None:
    """Look at each list once: reading its extremes waits for the device."""
    if not len(rows):
        return
    low, high = kept.get(rows, "extremes", lambda: [int(v) for v in torch.aminmax(rows)])
    if low < 0 or high >= limit:
        raise InputError(f"row {low if low < 0 else high} outside [0, {limit})")


def _row_shape(X: Tensor, out: Tensor) -> tuple[int, int]:
    shape = thread_shape(X.shape[1], vector_width(X, out))
    return shape.vector, shape.lanes
