"""The same operations through torch (cuSPARSE): the baseline, and the way without CuPy."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.kernels import reference
from spgnn.kernels.attention_torch import (
    attend,
    attend_backward,
    attend_v2,
    attend_v2_backward,
    finish,
    head_products,
    merge,
)
from spgnn.kernels.quantise_reference import dequantise_into as dequantise_rows
from spgnn.kernels.quantise_reference import quantise_into as quantise_rows
from spgnn.pattern import INT32_LIMIT, Pattern
from spgnn.sparse import CSR, SUM_DTYPE

__all__ = [
    "attend",
    "attend_backward",
    "attend_v2",
    "attend_v2_backward",
    "dequantise_rows",
    "dropout_rows",
    "edge_softmax",
    "extreme",
    "finish",
    "gather_rows",
    "head_products",
    "merge",
    "quantise_rows",
    "row_sums",
    "scatter_add_rows",
    "sddmm",
    "spmm",
    "update_rows",
    "update_rows_backward",
]

GATHERED_BYTES = 2**26  # of rows that are gathered at a time, where there is no kernel


def as_torch(A: CSR, dtype: torch.dtype) -> Tensor:
    """A CSR block as a torch sparse tensor, scalings multiplied in.

    int32 indices where they can hold the block: the faster of torch's two.
    """
    values = A.values
    if values is None:
        values = torch.ones(A.nnz, dtype=dtype, device=A.device)
    if A.row_scale is not None:
        values = values * A.row_scale.repeat_interleave(A.row_lengths, output_size=A.nnz)
    if A.col_scale is not None:
        values = values * A.col_scale[A.indices]
    index_type = torch.int32 if max(A.nnz, A.shape[1]) < INT32_LIMIT else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            A.indptr.to(index_type),
            A.indices.to(index_type),
            values.to(dtype),
            A.shape,
            check_invariants=False,
        )


def spmm(*arguments: Any) -> None:
    """Y = A X or Y += A X, into ``out``."""
    indptr, indices, values, row_scale, col_scale, X, out, accumulate = arguments
    if X.dim() == 3:
        for head in range(X.shape[1]):
            block = indptr, indices, values[:, head], row_scale, col_scale
            spmm(*block, X[:, head], out[:, head], accumulate)
        return
    wide = X.to(SUM_DTYPE[X.dtype])
    pattern = Pattern.trusted(indptr, indices, (len(out), len(X)))
    Y = torch.sparse.mm(as_torch(CSR(pattern, values, row_scale, col_scale), wide.dtype), wide)
    if accumulate:
        Y += out
    out.copy_(Y)


def sddmm(*arguments: Any) -> None:
    """out[e] = row_scale[i] col_scale[j] <G[i], X[j]>; few rows are gathered at a time."""
    indptr, indices, row_scale, col_scale, G, X, out = arguments
    rows = _rows(indptr, len(indices))
    each = max(1, GATHERED_BYTES // max(1, 2 * X[:1].numel() * out.element_size()))
    for i, j, products in zip(rows.split(each), indices.split(each), out.split(each), strict=True):
        torch.sum(G[i].to(out.dtype) * X[j].to(out.dtype), -1, out=products)
        for scale, places in ((row_scale, i), (col_scale, j)):
            if scale is not None:
                products.mul_(scale[places].view(-1, *[1] * (out.dim() - 1)))


def edge_softmax(indptr: Tensor, scores: Tensor, out: Tensor) -> None:
    """exp(scores) over their sum in each row; zeros where all of a row is −∞."""
    wide = scores.to(SUM_DTYPE[scores.dtype])
    rows = _rows(indptr, len(scores))
    largest = torch.segment_reduce(wide, "max", offsets=indptr, axis=0)
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    powers = torch.exp(wide - largest[rows])
    sums = torch.segment_reduce(powers, "sum", offsets=indptr, axis=0)
    out.copy_(powers / torch.where(sums == 0, 1.0, sums)[rows])


def row_sums(indptr: Tensor, a: Tensor, b: Tensor | None, out: Tensor) -> None:
    """The sum of a · b (or of a) over the row, for every nonzero."""
    wide = a.to(SUM_DTYPE[a.dtype])
    products = wide if b is None else wide * b
    sums = torch.segment_reduce(products, "sum", offsets=indptr, axis=0)
    out.copy_(sums[_rows(indptr, len(a))])


def _rows(indptr: Tensor, nnz: int) -> Tensor:
    """The row of each nonzero."""
    numbers = torch.arange(len(indptr) - 1, device=indptr.device)
    return numbers.repeat_interleave(indptr.diff(), output_size=nnz)


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Y[i] = scale[i] X[rows[i]], into ``out``."""
    Y = X.index_select(0, rows)
    out.copy_(Y if scale is None else scale[:, None] * Y)


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    """Y[rows[i]] += scale[i] X[i]; on a GPU torch adds equal rows in no fixed order."""
    Y.index_add_(0, rows, X if scale is None else (scale[:, None] * X).to(Y.dtype))


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None:
    """X / (1 - p) where kept, 0 elsewhere, into ``out``."""
    out.copy_(reference.dropout_rows(X, vertex_ids, key, p))


def update_rows(*arguments: Any) -> None:
    """``dropout(act(Z + b))`` into ``out``, which may be Z."""
    Z, bias, vertex_ids, key, p, act, alpha, out = arguments
    Y = Z if bias is None else Z + bias.to(Z.dtype)
    if act:
        Y = (torch.relu, F.leaky_relu, F.elu)[act - 1](Y, *[alpha] * (act > 1))
    out.copy_(Y if vertex_ids is None else reference.dropout_rows(Y, vertex_ids, key, p))


def update_rows_backward(*arguments: Any) -> None:
    """What passes of G into ``dZ``, and its columns' sums into ``sums``, where that has columns."""
    G, Y, vertex_ids, key, p, act, alpha, dZ, sums = arguments
    if act == 1:
        dZ.copy_(torch.where(Y <= 0, 0.0, G * (1.0 / (1.0 - p))))
    else:
        dZ.copy_(G if vertex_ids is None else reference.dropout_rows(G, vertex_ids, key, p))
    if act > 1:
        factor = 1.0 if vertex_ids is None else 1.0 - p
        wide = Y.to(SUM_DTYPE[Y.dtype])
        slope = wide * factor + alpha if act == 3 else alpha
        positive = ~(wide <= 0) if act == 3 else wide > 0
        dZ.copy_(dZ.to(wide.dtype) * torch.where(positive, 1.0, slope))
    if len(sums):
        torch.sum(dZ, 0, dtype=sums.dtype, out=sums)


def extreme(*arguments: Any) -> None:
    """Largest or smallest elements into ``out``, their columns into ``arg``."""
    indptr, indices, X, largest, begun, first_column, out, arg = arguments
    best, listed = _extremes(indptr, indices, X.to(SUM_DTYPE[X.dtype]), largest)
    listed = torch.where(listed < 0, listed, listed + first_column).to(arg.dtype)
    better = torch.ones_like(listed, dtype=torch.bool)
    if begun:
        better = best > out if largest else best < out
        better = (listed >= 0) & (better | (arg < 0) | (best.isnan() & ~out.isnan()))
    out.copy_(torch.where(better, best.to(out.dtype), out))
    arg.copy_(torch.where(better, listed, arg))


def _extremes(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    """All rows at once, a piece of memory for every nonzero and column."""
    rows, nnz = len(indptr) - 1, len(indices)
    if not nnz:
        return X.new_zeros(rows, X.shape[1]), indices.new_full((rows, X.shape[1]), -1)
    gathered = X.index_select(0, indices)
    best = torch.segment_reduce(gathered, "max" if largest else "min", offsets=indptr)
    row = _rows(indptr, nnz)
    # What is no number equals nothing, so its own place counts as equal.
    equal = (gathered == best[row]) | gathered.isnan()
    places = torch.where(equal, torch.arange(nnz, device=X.device)[:, None], nnz)
    first = torch.full(best.shape, nnz, device=X.device)
    first = first.scatter_reduce(0, row[:, None].expand_as(places), places, "amin")
    found = first < nnz
    listed = torch.where(found, indices[first.clamp_max(nnz - 1)], -1)
    return torch.where(found, best, 0.0), listed
