"""Host side of the kernels: products, numbers of nonzeros, rows, and rows in few bits.

Arguments have been checked by `spgnn.kernels`; all work happens on torch's current stream.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.device import (
    ThreadShape,
    dense,
    dropout_rule,
    instance,
    lanes_for,
    listed,
    remembered,
    thread_shape,
    unit_stride,
    vector_width,
)
from spgnn.kernels.cuda.tiling import Tiling, make_segments, make_tiling, tile_items
from spgnn.sparse import SUM_DTYPE

ROW_BYTES_LIMIT = 2**32  # the arithmetic of spmm.cuh on 32-bit indices
NONZEROS_IN_FLIGHT = 4  # kNonzerosInFlight of nonzeros.cuh
MOST_HEADS = 65535  # blocks that CUDA has along y
LONG_ROW = 64  # nonzeros of a thread, above which a whole block takes the row
ROWS_IN_FLIGHT = 4  # kRowsInFlight of rows.cuh
ROWS_A_GROUP = 32  # a block sums the columns of these
CHUNK = 8  # kChunk of quantise.cuh


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


class Operand(NamedTuple):
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
    segments = remembered(rows, "segments", lambda: make_segments(rows))
    operand = Operand(
        segments.indptr, segments.order, col_scale=dense(scale), row_map=segments.rows
    )
    multiply_into(operand, tiling_of(segments.indptr), X, Y, accumulate=True)


def tiling_of(indptr: Tensor) -> Tiling:
    """The tiling of a pattern, made on first use and kept while its ``indptr`` lives."""

    def make() -> Tiling:
        items = len(indptr) - 1 + int(indptr[-1])
        return make_tiling(indptr, tile_items(items, device.multiprocessors(indptr.device)))

    return remembered(indptr, "tiling", make)


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


def sddmm(*arguments: Any) -> None:
    """out[e] = row_scale[i] col_scale[j] <G[i], X[j]>, for each head where there are heads."""
    indptr, indices, row_scale, col_scale, G, X, out = arguments
    if not X.shape[-1]:
        out.zero_()
    if not out.numel() or not X.shape[-1]:
        return
    G, X = unit_stride(G), unit_stride(X)
    heads, *head_strides = (X.shape[1], G.stride(1), X.stride(1)) if X.dim() == 3 else (1, 0, 0)
    shape = thread_shape(X.shape[-1], vector_width(G, X))
    each = device.THREADS // shape.lanes * NONZEROS_IN_FLIGHT
    for first in range(0, heads, MOST_HEADS):
        g, x = (G[:, first:], X[:, first:]) if heads > 1 else (G, X)
        device.launch(
            instance("sddmm", X.dtype, indices.dtype, shape.vector, shape.lanes),
            (-(-len(indices) // each), min(heads - first, MOST_HEADS)),
            (
                indptr,
                len(indptr) - 1,
                indices,
                len(indices),
                dense(row_scale),
                dense(col_scale),
                g,
                G.stride(0),
                head_strides[0],
                x,
                X.stride(0),
                head_strides[1],
                X.shape[-1],
                out.view(-1)[first:],
                heads,
            ),
        )


def edge_softmax(indptr: Tensor, scores: Tensor, out: Tensor) -> None:
    """exp(scores) over their sum in each row; zeros where all of a row is −∞."""
    _over_rows("edge_softmax", indptr, (scores.contiguous(),), out)


def row_sums(indptr: Tensor, a: Tensor, b: Tensor | None, out: Tensor) -> None:
    """The sum of a · b (or of a) over the row, for every nonzero."""
    _over_rows("row_sums", indptr, (a.contiguous(), dense(b)), out)


def _over_rows(kernel: str, indptr: Tensor, arrays: tuple[Tensor | None, ...], out: Tensor) -> None:
    """Rows of about the average length are shared by a few threads each, long ones by a block."""
    if not out.numel():
        return
    rows, heads = len(indptr) - 1, out[:1].numel()
    lanes = lanes_for(max(1, len(out) // rows))
    longest = LONG_ROW * lanes
    long_rows = remembered(
        indptr, ("longer than", longest), lambda: (indptr.diff() > longest).nonzero()[:, 0]
    )
    for some, count, threads, limit in (
        (None, rows, lanes, longest),
        (long_rows, len(long_rows), device.THREADS, len(out)),
    ):
        if count:
            blocks = -(-count * heads // (device.THREADS // threads))
            device.launch(
                instance(kernel, out.dtype, threads),
                (blocks, 1),
                (indptr, some, count, limit, *arrays, out, heads),
            )


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
            *dropout_rule(p),
        ),
    )


def check_range(rows: Tensor, limit: int) -> None:
    """Look at each list once: reading its extremes waits for the device."""
    if not len(rows):
        return
    low, high = remembered(rows, "extremes", lambda: [int(v) for v in torch.aminmax(rows)])
    if low < 0 or high >= limit:
        raise InputError(f"row {low if low < 0 else high} outside [0, {limit})")


def _row_shape(X: Tensor, out: Tensor) -> tuple[int, int]:
    shape = thread_shape(X.shape[1], vector_width(X, out))
    return shape.vector, shape.lanes


def update_rows(*arguments: Any) -> None:
    """``dropout(act(Z + b))`` into ``out``, which may be Z."""
    Z, bias, vertex_ids, key, p, act, alpha, out = arguments
    if not out.numel():
        return
    Z = unit_stride(Z)
    shape = thread_shape(Z.shape[1], vector_width(Z, out))
    device.launch(
        instance("update_rows", Z.dtype, shape.vector, shape.lanes),
        (-(-len(Z) // (device.THREADS // shape.lanes)), 1),
        (
            Z,
            Z.stride(0),
            dense(bias),
            act,
            alpha,
            dense(vertex_ids),
            out,
            out.stride(0),
            *Z.shape,
            key,
            *dropout_rule(p),
        ),
    )


def update_rows_backward(*arguments: Any) -> None:
    """Write the gradient in Z into ``dZ``, and its column sums into ``sums`` if it has columns."""
    G, Y, vertex_ids, key, p, act, alpha, dZ, sums = arguments
    G, Y = unit_stride(G), None if Y is None else unit_stride(Y)
    shape = thread_shape(G.shape[1], vector_width(*(m for m in (G, Y, dZ) if m is not None)))
    rows = device.THREADS // shape.lanes * ROWS_A_GROUP
    blocks = -(-len(G) // rows)
    partial = sums.new_empty(blocks, G.shape[1]) if len(sums) else None
    device.launch(
        instance("update_rows_backward", G.dtype, shape.vector, shape.lanes),
        (blocks, 1),
        (
            G,
            G.stride(0),
            Y,
            0 if Y is None else Y.stride(0),
            act,
            alpha,
            dense(vertex_ids),
            dZ,
            dZ.stride(0),
            partial,
            *G.shape,
            rows,
            key,
            *dropout_rule(p),
        ),
    )
    if partial is not None:
        torch.sum(partial, 0, out=sums)


def extreme(*arguments: Any) -> None:
    """Largest or smallest elements into ``out``, their columns into ``arg``."""
    indptr, indices, X, largest, begun, first_column, out, arg = arguments
    shape = thread_shape(X.shape[1], vector_width(X, out))
    device.launch(
        instance("extreme", X.dtype, indices.dtype, arg.dtype, shape.vector, shape.lanes),
        (-(-len(out) // (device.THREADS // shape.lanes)), 1),
        (
            indptr,
            indices,
            X,
            X.stride(0),
            *out.shape,
            int(largest),
            int(begun),
            first_column,
            out,
            out.stride(0),
            arg,
        ),
    )


def quantise_rows(*arguments: Any) -> None:
    """Packed rows into ``out``, what was lost into ``residual`` and ``lost``."""
    X, bits, ids, key, stochastic, rows, residual, lost, out = arguments
    if not out.numel():
        return
    if rows is not None:
        check_range(rows, X.shape[0])
    X, columns = unit_stride(X), X.shape[1]
    vector = min(CHUNK, vector_width(*(m for m in (X, residual) if m is not None)))
    lanes = lanes_for(max(1, -(-columns // CHUNK)))
    blocks = -(-len(ids) // (device.THREADS // lanes))
    sums = None if lost is None else lost.new_empty(blocks, 2)
    device.launch(
        instance("quantise_rows", X.dtype, vector, lanes),
        (blocks, 1),
        (
            X,
            X.stride(0),
            *listed(rows),
            bits,
            ids.contiguous(),
            key,
            int(stochastic),
            residual,
            0 if residual is None else residual.stride(0),
            sums,
            out,
            len(ids),
            columns,
        ),
    )
    if sums is not None:
        lost += sums.sum(0)


def dequantise_rows(packed: Tensor, bits: int, rows: Tensor | None, out: Tensor) -> None:
    """Unpacked rows into ``out``."""
    if rows is not None:
        check_range(rows, out.shape[0])
    count, columns = len(out) if rows is None else len(rows), out.shape[1]
    if not count * columns:
        return
    vector = vector_width(out)
    lanes = lanes_for(-(-columns // vector))
    device.launch(
        instance("dequantise_rows", out.dtype, vector, lanes),
        (-(-count // (device.THREADS // lanes)), 1),
        (
            packed,
            bits,
            *listed(rows),
            out,
            out.stride(0),
            count,
            columns,
        ),
    )
