"""Host side of the products: SpMM, and scatter-add as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.kept import kept
from spgnn.kernels.cuda.rows import check_range
from spgnn.kernels.cuda.shapes import ThreadShape, instance, thread_shape, vector_width
from spgnn.kernels.cuda.tiling import Tiling, make_segments, make_tiling, tile_items
from spgnn.kernels.library import dense, unit_stride
from spgnn.sparse import SUM_DTYPE

ROW_BYTES_LIMIT = 2**32  # the kernel's arithmetic on 32-bit indices


def spmm_instance(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    weighted: bool,
    mapped: bool,
    sizes: tuple[ThreadShape, int],
) -> str:
    """The C++ name of the kernel for dtypes of X, Y and indices, a thread shape and tile items."""
    shape, items = sizes
    return instance(
        "spmm", *dtypes, weighted, mapped, shape.vector, shape.lanes, shape.packs, items
    )


@dataclass(frozen=True, eq=False)
class Operand:
    """A CSR block as the kernel takes it; its row r is row ``row_map[r]`` of the result."""

    indptr: Tensor
    indices: Tensor
    values: Tensor | None = None  # any stride
    row_scale: Tensor | None = None
    col_scale: Tensor | None = None
    row_map: Tensor | None = None


def spmm(*arguments: Any) -> None:
    """Y = A X or Y += A X, into ``out``, head by head where there are heads.

    Bitwise reproducible on one device. The first product with a pattern makes a tiling, which waits
    for the device.
    """
    indptr, indices, values, row_scale, col_scale, X, out, accumulate = arguments
    if not out.numel():
        return
    X = unit_stride(X)
    scales = dense(row_scale), dense(col_scale)
    heads = range(X.shape[1]) if X.dim() == 3 else (slice(None),)
    for head in heads:
        weights = None if values is None else values[:, head] if values.dim() == 2 else values
        operand = Operand(indptr, indices, weights, *scales)
        if X.dim() == 3:
            multiply_into(operand, tiling_of(indptr), X[:, head], out[:, head], accumulate)
        else:
            multiply_into(operand, tiling_of(indptr), X, out, accumulate)


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    """Y[rows[i]] += scale[i] X[i], as a product with the 0/1 matrix that adds the listed rows.

    Equal rows are added up in the order of the list and then to Y, so the result is bitwise
    reproducible. The first use of a list sorts it, which waits for the device.
    """
    if not X.numel():
        return
    check_range(rows, Y.shape[0])
    X = unit_stride(X)
    listed = kept.get(rows, "segments", lambda: make_segments(rows))
    operand = Operand(listed.indptr, listed.order, col_scale=dense(scale), row_map=listed.rows)
    multiply_into(operand, tiling_of(listed.indptr), X, Y, accumulate=True)


def tiling_of(indptr: Tensor) -> Tiling:
    """The tiling of a pattern, made on first use and kept while its ``indptr`` lives."""

    def make() -> Tiling:
        items = len(indptr) - 1 + int(indptr[-1])
        return make_tiling(indptr, tile_items(items, device.multiprocessors(indptr.device)))

    return kept.get(indptr, "tiling", make)


def multiply_into(A: Operand, tiling: Tiling, X: Tensor, out: Tensor, accumulate: bool) -> None:
    """``out`` = A X, or ``out`` += A X."""
    columns = X.shape[1]
    if X.stride(0) * X.element_size() >= ROW_BYTES_LIMIT:
        X = X.contiguous()
    shape = thread_shape(columns, vector_width(X, out))
    carry, carried = None, tiling.carried
    if carried is not None:
        padded = -(-columns // 4) * 4  # rows of whole packs
        carry = torch.empty(
            (len(carried.indices), padded), dtype=SUM_DTYPE[X.dtype], device=X.device
        )
    weighted = A.values is not None or A.col_scale is not None
    device.launch(
        spmm_instance(
            (X.dtype, out.dtype, A.indices.dtype),
            weighted,
            A.row_map is not None,
            (shape, tiling.items),
        ),
        (len(tiling.tiles) - 1, -(-columns // shape.columns)),
        (
            A.indptr,
            A.indices,
            A.values,
            0 if A.values is None else A.values.stride(0),
            A.col_scale,
            A.row_scale,
            A.row_map,
            tiling.tiles,
            X,
            X.stride(0),
            out,
            out.stride(0),
            carry,
            0 if carry is None else carry.stride(0),
            columns,
            int(accumulate),
        ),
    )
    if carry is not None and carried is not None:
        rows = carried.rows if A.row_map is None else A.row_map[carried.rows]
        sums = Operand(carried.indptr, carried.indices, row_scale=A.row_scale, row_map=rows)
        multiply_into(sums, carried.tiling, carry[:, :columns], out, accumulate)
