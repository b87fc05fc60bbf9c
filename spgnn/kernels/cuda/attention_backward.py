# Attention has many operands.
"""Host side of the kernels of attention, backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgnn.kernels.attention_rules import Rules
from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.device import Argument
from spgnn.kernels.cuda.heads import HeadShape, dropout_arguments
from spgnn.kernels.cuda.rows import listed
from spgnn.kernels.cuda.shapes import instance
from spgnn.kernels.cuda.spmm import Operand, multiply_into, tiling_of
from spgnn.kernels.library import dense, unit_stride
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE


def attend_backward(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients in Z, s and the scores of edges. Bitwise reproducible on one device."""
    Z, G = unit_stride(Z), unit_stride(G)
    dZ = torch.empty_like(Z, memory_format=torch.contiguous_format)
    ds = torch.empty_like(s, memory_format=torch.contiguous_format)
    edges = dense(rules.edges)
    dt = None if edges is None else torch.empty_like(edges)
    order = listed(None if edges is None else pattern.order)
    numbers = [array.contiguous() for array in (d, s, lse, D)]
    shape = HeadShape.of(d.shape[1], [Z, G, dZ], (), arrays=2)
    operands = (*numbers[:2], Z, Z.stride(0), G, G.stride(0), *numbers[2:], edges, *order)
    _over_rows("attend_backward", pattern.T, operands, shape, rules, (dZ, ds), (dt,))
    return dZ, ds, dt


def attend_v2_backward(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    G: Tensor,
    lse: Tensor,
    D: Tensor,
    rules: Rules,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients in x, y, a and the features of edges. Bitwise reproducible on one device."""
    x, y, G, a = unit_stride(x), unit_stride(y), unit_stride(G), a.contiguous()
    features = dense(rules.edges)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dy = torch.empty_like(y, memory_format=torch.contiguous_format)
    dt = None if features is None else torch.empty_like(features)
    order = listed(None if features is None else pattern.order)
    matrices = [x, y, G, dx, dy] if features is None else [x, y, G, dx, dy, features]
    shape = HeadShape.of(a.shape[0], matrices, (a,), arrays=2)
    both = x, x.stride(0), y, y.stride(0), a, features, G, G.stride(0)
    operands = *both, lse.contiguous(), D.contiguous()
    _over_rows("attend_v2_columns", pattern.T, (*operands, *order), shape, rules, (dy, None), ())
    if not len(dx):
        return dx, dy, torch.zeros_like(a), dt
    tiles = len(tiling_of(pattern.indptr).tiles) - 1
    of_tiles = a.new_empty((tiles, *a.shape))
    _over_rows("attend_v2_rows", pattern, operands, shape, rules, (dx, None), (dt, of_tiles))
    return dx, dy, of_tiles.sum(0), dt


def head_products(G: Tensor, X: Tensor, products: Tensor) -> None:
    """<G[i, h], X[i, h]> for every row and head."""
    count, heads = products.shape
    if not count:
        return
    G, X = unit_stride(G), unit_stride(X) if X.dtype == G.dtype else X.contiguous()
    shape = HeadShape.of(heads, [G, X] if X.dtype == G.dtype else [G], (X,), arrays=2)
    device.launch(
        instance("head_products", G.dtype, X.dtype, *shape.parameters),
        (-(-count // (device.THREADS // shape.group)), shape.head_tiles),
        (G, G.stride(0), X, X.stride(0), products, count, heads, shape.width),
    )


def _over_rows(
    kernel: str,
    pattern: Pattern,
    operands: Sequence[Argument],
    shape: HeadShape,
    rules: Rules,
    sums: tuple[Tensor, Tensor | None],
    others: Sequence[Tensor | None],
) -> None:
    """Start a kernel that sums rows of gradients, and numbers of their heads, over nonzeros.

    What rows that cross tiles have left is summed up as products are.
    """
    rows, numbers = sums
    if not len(rows):
        return
    tiling = tiling_of(pattern.indptr)
    carry, carried = None, tiling.carried
    if carried is not None:
        like = rows.new_empty(0, dtype=SUM_DTYPE[rows.dtype])
        carry = shape.carry(len(carried.indices), 1, 0 if numbers is None else 1, like)
    device.launch(
        instance(kernel, rows.dtype, pattern.indices.dtype, *shape.parameters, tiling.items),
        (len(tiling.tiles) - 1, shape.tiles),
        (
            pattern.indptr,
            pattern.indices,
            tiling.tiles,
            *operands,
            float(rules.slope),
            *dropout_arguments(rules.drops),
            *shape.arguments,
            *(sums if numbers is not None else (rows,)),
            *others,
            carry,
            0 if carry is None else carry.stride(0),
        ),
    )
    if carry is None or carried is None:
        return
    A = Operand(carried.indptr, carried.indices, row_map=carried.rows)
    columns = rows.shape[1]
    if columns:
        multiply_into(A, carried.tiling, carry[:, :columns], rows, accumulate=False)
    if numbers is not None:
        its = carry[:, columns : columns + shape.heads]
        multiply_into(A, carried.tiling, its, numbers, accumulate=False)
