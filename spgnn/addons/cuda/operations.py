"""Host side of the kernels: products, numbers of nonzeros, rows, and rows in few bits.

Arguments have been checked by `spgnn.kernels`; all work happens on torch's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn.addons.cuda import device
from spgnn.addons.cuda.device import (
    ACCUMULATORS,
    ThreadShape,
    dense,
    dropout_rule,
    instance,
    lanes_for,
    listed,
    remembered,
    strided,
    thread_shape,
    unit_stride,
    vector_width,
)
from spgnn.addons.cuda.tiling import Tiling, make_segments, make_tiling, tile_items
from spgnn.errors import InputError
from spgnn.kernels import PICK
from spgnn.sparse import SUM_DTYPE

ROW_BYTES_LIMIT = 2**32  # the arithmetic of spmm.cuh on 32-bit indices
NONZEROS_IN_FLIGHT = 4  # kNonzerosInFlight of nonzeros.cuh
MOST_HEADS = 65535  # blocks that CUDA has along y
SLICE_BYTES = 256  # of a row of X, per slice
NEARLY = 1.5  # times the second-level cache
LONG_ROW = 64  # nonzeros of a thread, above which a whole block takes the row
ROWS_IN_FLIGHT = 4  # kRowsInFlight of rows.cuh
ROWS_A_GROUP = 32  # a block sums the columns of these
CHUNK = 8  # kChunk of quantise.cuh
COPY_X = 7  # kEdgeCopyX of edges.cuh


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
    scales, tiling = (dense(row_scale), dense(col_scale)), tiling_of(indptr)
    if X.dim() == 2:
        multiply_into(Operand(indptr, indices, values, *scales), tiling, X, out, accumulate)
        return
    for head in range(X.shape[1]):
        weights = values if values is None or values.dim() == 1 else values[:, head]
        operand = Operand(indptr, indices, weights, *scales)
        multiply_into(operand, tiling, X[:, head], out[:, head], accumulate)


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    """Y[rows[i]] += scale[i] X[i], as a product with the 0/1 matrix that adds the listed rows.

    Equal rows are added up in the order of the list and then to Y, so the result is bitwise
    reproducible. The first use of a list sorts it, which waits for the device.
    """
    if not X.numel():
        return
    check_range(rows, Y.shape[0])
    X = unit_stride(X)
    unique, indptr, order = remembered(rows, "segments", lambda: make_segments(rows))
    operand = Operand(indptr, order, col_scale=dense(scale), row_map=unique)
    multiply_into(operand, tiling_of(indptr), X, Y, accumulate=True)


def tiling_of(indptr: Tensor) -> Tiling:
    """The tiling of a pattern, made on first use and kept while its ``indptr`` lives."""

    def make() -> Tiling:
        items = len(indptr) - 1 + int(indptr[-1])
        multiprocessors = device.properties(indptr.device).multi_processor_count
        return make_tiling(indptr, tile_items(items, multiprocessors))

    return remembered(indptr, "tiling", make)


def multiply_into(A: Operand, tiling: Tiling, X: Tensor, out: Tensor, accumulate: bool) -> None:
    """``out`` = A X, or ``out`` += A X."""
    columns = X.shape[1]
    X = _gathered(X)
    shape = _sliced_shape(X, columns, vector_width(X, out), _accumulators(out))
    carry = _carry(tiling, out)
    weighted = A.values is not None or A.col_scale is not None
    matrices = *strided(X), *strided(out), *strided(carry)
    kind = X.dtype, out.dtype, A.indices.dtype, weighted, A.row_map is not None
    block = A.indptr, A.indices, *strided(A.values), A.col_scale, A.row_scale, A.row_map
    device.launch(
        instance("spmm", *kind, *shape, tiling.items),
        (tiling.tiles.shape[0] - 1, -(-columns // shape.columns)),
        (*block, tiling.tiles, *matrices, columns, int(accumulate)),
    )
    _sum_carried(A, tiling, carry, out, accumulate)


def _sliced_shape(X: Tensor, columns: int, vector: int, accumulators: int) -> ThreadShape:
    slices = -(-columns // (slice_bytes(X.shape[0], X.device) // X.element_size()))
    return thread_shape(-(-columns // slices), vector, accumulators)


@cache
def slice_bytes(rows: int, where: torch.device) -> int:
    """Bytes of a row of X that all tiles read before any goes on to the next ones."""
    half, whole = rows * SLICE_BYTES // 2, rows * SLICE_BYTES
    fits = half <= NEARLY * device.properties(where).L2_cache_size < whole
    return SLICE_BYTES // 2 if fits else SLICE_BYTES


def _accumulators(out: Tensor) -> int:
    return ACCUMULATORS * 4 // SUM_DTYPE[out.dtype].itemsize


def _gathered(X: Tensor) -> Tensor:
    """X as kernels gather its rows."""
    X = unit_stride(X)
    return X if X.stride(0) * X.element_size() < ROW_BYTES_LIMIT else X.contiguous()


def _carry(tiling: Tiling, out: Tensor, dtype: torch.dtype | None = None) -> Tensor | None:
    """Room for what tiles leave of rows that cross them, in rows of whole packs."""
    if tiling.carried is None:
        return None
    shape = len(tiling.carried.indices), -(-out.shape[1] // 4) * 4
    return torch.empty(shape, dtype=dtype or SUM_DTYPE[out.dtype], device=out.device)


def _sum_carried(
    A: Operand, tiling: Tiling, carry: Tensor | None, out: Tensor, accumulate: bool = False
) -> None:
    """Sum up what the tiles of A have left."""
    carried = tiling.carried
    if carry is None or carried is None:
        return
    rows = carried.rows if A.row_map is None else A.row_map[carried.rows]
    sums = Operand(carried.indptr, carried.indices, row_scale=A.row_scale, row_map=rows)
    multiply_into(sums, carried.tiling, carry[:, : out.shape[1]], out, accumulate)


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
        block = indptr, len(indptr) - 1, indices, len(indices), dense(row_scale), dense(col_scale)
        rows = *strided(g), head_strides[0], *strided(x), head_strides[1], X.shape[-1]
        device.launch(
            instance("sddmm", X.dtype, indices.dtype, shape.vector, shape.lanes),
            (-(-len(indices) // each), min(heads - first, MOST_HEADS)),
            (*block, *rows, out.view(-1)[first:], heads),
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


def _launch_on_rows(
    kernel: str,
    dtypes: tuple[torch.dtype | int, ...],
    matrices: Sequence[Tensor],
    rows: int,
    arguments: Sequence[device.Argument],
    rows_of_group: int = 1,
) -> None:
    """As many threads for a row as its packs of columns keep busy."""
    shape = thread_shape(matrices[0].shape[1], vector_width(*matrices))
    blocks = -(-rows // (device.THREADS // shape.lanes * rows_of_group))
    device.launch(instance(kernel, *dtypes, shape.vector, shape.lanes), (blocks, 1), arguments)


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Y[i] = scale[i] X[rows[i]], into ``out``."""
    if not out.numel():
        return
    check_range(rows, X.shape[0])
    X, dtypes = unit_stride(X), (X.dtype, rows.dtype)
    of_rows = *strided(X), rows.contiguous(), dense(scale), *strided(out), len(rows), X.shape[1]
    _launch_on_rows("gather_rows", dtypes, (X, out), len(rows), of_rows, ROWS_IN_FLIGHT)


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None:
    """X / (1 - p) where kept, 0 elsewhere, into ``out``."""
    if not out.numel():
        return
    X, ids = unit_stride(X), vertex_ids.contiguous()
    of_rows = *strided(X), ids, *strided(out), *X.shape, key, *dropout_rule(p)
    _launch_on_rows("dropout_rows", (X.dtype,), (X, out), len(X), of_rows)


def check_range(rows: Tensor, limit: int) -> None:
    """Look at each list once: reading its extremes waits for the device."""
    if not len(rows):
        return
    low, high = remembered(rows, "extremes", lambda: torch.stack(torch.aminmax(rows)).tolist())
    if low < 0 or high >= limit:
        raise InputError(f"row {low if low < 0 else high} outside [0, {limit})")


def know_range(rows: Tensor, limit: int) -> None:
    """A list's entries are in [0, limit): nobody has to wait for the device to look."""
    device.remember(rows, "extremes", [0, limit - 1])


def update_rows(*arguments: Any) -> None:
    """``dropout(act(Z + b))`` into ``out``, which may be Z."""
    Z, bias, vertex_ids, key, p, act, alpha, out = arguments
    if not out.numel():
        return
    Z = unit_stride(Z)
    rule = dense(bias), act, alpha, dense(vertex_ids)
    of_rows = *strided(Z), *rule, *strided(out), *Z.shape, key, *dropout_rule(p)
    _launch_on_rows("update_rows", (Z.dtype,), (Z, out), len(Z), of_rows)


def update_rows_backward(*arguments: Any) -> None:
    """Write the gradient in Z into ``dZ``, and its column sums into ``sums`` if it has columns."""
    G, Y, vertex_ids, key, p, act, alpha, dZ, sums = arguments
    G, Y = unit_stride(G), None if Y is None else unit_stride(Y)
    matrices = [matrix for matrix in (G, Y, dZ) if matrix is not None]
    rows = device.THREADS // thread_shape(G.shape[1], vector_width(*matrices)).lanes * ROWS_A_GROUP
    partial = sums.new_empty(-(-len(G) // rows), G.shape[1]) if len(sums) else None
    rule = act, alpha, dense(vertex_ids)
    places = *strided(dZ), partial, *G.shape, rows
    of_rows = *strided(G), *strided(Y), *rule, *places, key, *dropout_rule(p)
    _launch_on_rows("update_rows_backward", (G.dtype,), matrices, len(G), of_rows, ROWS_A_GROUP)
    if partial is not None:
        torch.sum(partial, 0, out=sums)


def extreme(*arguments: Any) -> None:
    """Largest or smallest elements into ``out``, their columns or nonzeros into ``arg``."""
    indptr, indices, X, largest, begun, first_column, out, arg = arguments
    A, rule = Operand(indptr, indices), (first_column, int(largest), int(begun))
    _extremes(A, tiling_of(indptr), (X, None), COPY_X, rule, (out, arg))


def edge_extremes(*arguments: Any) -> None:
    """Largest or smallest of what nonzeros make of X and V, and which they are, into ``arg``."""
    indptr, indices, X, V, op, largest, out, arg = arguments
    if out.numel():
        A, rule = Operand(indptr, indices), (-1, int(largest), 0)
        _extremes(A, tiling_of(indptr), (X, V), op, rule, (out, arg))


def _extremes(
    A: Operand,
    tiling: Tiling,
    operands: tuple[Tensor | None, Tensor | None],
    op: int,
    rule: tuple[int, int, int],
    results: tuple[Tensor, Tensor],
    left: Tensor | None = None,
) -> None:
    """Extremes of messages; where `left` is given, it is the ``arg`` of the rows of X."""
    X, V = (None if t is None else _gathered(t) for t in operands)
    out, arg = results
    columns = out.shape[1]
    shape, width = _message_shape(out, (X, V), V, ACCUMULATORS // 2)  # each with its place
    carry, carry_arg = _carry(tiling, out), _carry(tiling, out, arg.dtype)
    dtypes = next(t.dtype for t in (X, V) if t is not None), out.dtype, A.indices.dtype, arg.dtype
    device.launch(
        instance("edge_extremes", *dtypes, op, *shape, tiling.items),
        (tiling.tiles.shape[0] - 1, -(-columns // shape.columns)),
        (
            *(A.indptr, A.indices, tiling.tiles, A.row_map),
            *(*strided(X), *strided(V), width, *strided(left), *rule),
            *(*strided(out), arg, carry, *strided(carry_arg), columns),
        ),
    )
    carried = tiling.carried
    if carry is None or carried is None:
        return
    rows = carried.rows if A.row_map is None else A.row_map[carried.rows]
    A = Operand(carried.indptr, carried.indices, row_map=rows)
    numbers = carry[:, :columns], None
    _extremes(A, carried.tiling, numbers, COPY_X, rule, results, carry_arg)


def _message_shape(
    out: Tensor, operands: Sequence[Tensor | None], V: Tensor | None, accumulators: int
) -> tuple[ThreadShape, int]:
    """Threads for a row of messages, and the columns that a number of V serves."""
    read, columns = [t for t in operands if t is not None], out.shape[1]
    width = 1 if V is None else columns // V.shape[1]
    vector = vector_width(out, *(t for t in read if width == 1 or t is not V))
    vector = vector if width == 1 else gcd(vector, width)
    return _sliced_shape(read[0], columns, vector, accumulators), width


def edge_sum(*arguments: Any) -> None:
    """Sums of what nonzeros make of rows of X (or W) and V, into ``out``."""
    indptr, indices, order, X, W, V, op, out = arguments
    if not out.numel():
        return
    X, W = (None if t is None else _gathered(t) for t in (X, W))
    V = _gathered(V)
    tiling, columns = tiling_of(indptr), out.shape[1]
    shape, width = _message_shape(out, (X, W, V), V, _accumulators(out))
    carry, dtypes = _carry(tiling, out), (out.dtype, V.dtype, indices.dtype)
    device.launch(
        instance("edge_sum", *dtypes, op, int(width > 1), *shape, tiling.items),
        (tiling.tiles.shape[0] - 1, -(-columns // shape.columns)),
        (
            *(indptr, indices, tiling.tiles, *listed(order)),
            *(*strided(X), *strided(W), *strided(V), width),
            *(*strided(out), *strided(carry), columns),
        ),
    )
    _sum_carried(Operand(indptr, indices), tiling, carry, out)


def edge_products(*arguments: Any) -> None:
    """Results of nonzeros, of rows of G, X and V, a row each, into ``out``."""
    indptr, indices, G, X, V, op, out = arguments
    if not out.numel():
        return
    rows = len(indptr) - 1
    if op == PICK:
        G, V = unit_stride(G), unit_stride(V)
        of_rows = indptr, *strided(G), *strided(V), len(V) // rows, *strided(out), rows, *out.shape
        _launch_on_rows("edge_picks", (out.dtype, V.dtype), (out, G, V), len(out), of_rows)
        return
    G, X, V = (None if t is None else unit_stride(t) for t in (G, X, V))
    matrices = [t for t in (out, G, X, V) if t is not None]
    of_rows = *strided(G), *strided(X), *strided(V), *strided(out), rows, *out.shape
    dtypes = out.dtype, indices.dtype, op
    _launch_on_rows("edge_products", dtypes, matrices, len(out), (indptr, indices, *of_rows))


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
    of_rows = *strided(X), *listed(rows), bits, ids.contiguous(), key, int(stochastic)
    places = *strided(residual), sums, out, len(ids), columns
    name = instance("quantise_rows", X.dtype, vector, lanes)
    device.launch(name, (blocks, 1), (*of_rows, *places))
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
    of_rows = packed, bits, *listed(rows), *strided(out), count, columns
    name = instance("dequantise_rows", out.dtype, vector, lanes)
    device.launch(name, (-(-count // (device.THREADS // lanes)), 1), of_rows)
