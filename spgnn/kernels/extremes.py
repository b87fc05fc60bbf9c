"""The largest (or smallest) of listed rows of X, column by column: aggregation by max and min."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_block
from spgnn.kernels.library import define_computed
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import SUM_DTYPE

GATHERED_BYTES = 2**26  # of rows that are gathered at a time


def extreme_(
    pattern: Pattern,
    X: Tensor,
    state: tuple[Tensor, Tensor] | None = None,
    *,
    largest: bool = True,
    first_column: int = 0,
) -> tuple[Tensor, Tensor]:
    """Largest or smallest element of each column among the rows of X that a row of A lists.

    Blocks of one matrix come one after the other: of equal elements, the first nonzero's stays.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    X : Tensor [cols, f], float32, float64 or bfloat16
    state : (Tensor [rows, f], Tensor [rows, f]), optional
        What blocks before this one gave; changed in place.
    largest : bool
    first_column : int
        Added to the columns of this block.

    Returns
    -------
    out : Tensor [rows, f], dtype of X
        0 in rows without nonzeros.
    arg : Tensor [rows, f], int32 (int64 from 2³¹ columns on)
        Column of the nonzero that it is of; −1 in rows without nonzeros.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_block(pattern, X)
    out, arg = _extreme(pattern.indptr, pattern.indices, X, largest)
    if first_column:
        arg = torch.where(arg < 0, arg, arg + first_column)
    if state is None:
        return out, arg
    before, listed = state
    better = out > before if largest else out < before
    better = (arg >= 0) & (better | (listed < 0))
    before.copy_(torch.where(better, out, before))
    listed.copy_(torch.where(better, arg, listed))
    return state


def extreme(A: Any, X: Tensor, largest: bool) -> Tensor:
    """The product of `spmm` with reduction "max" or "min"."""
    if A.values is not None or A.row_scale is not None or A.col_scale is not None:
        raise InputError('reduce="max" and "min" take a matrix without values and scalings')
    flat = X.flatten(1)
    out: Tensor = _extreme(A.indptr, A.indices, flat, largest)[0]
    return out.unflatten(1, X.shape[1:]) if X.dim() == 3 else out


def _compute(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    out, arg = _empty(indptr, indices, X, largest)
    if not X.shape[1]:
        return out, arg
    wide = X.to(SUM_DTYPE[X.dtype])
    each = max(1, GATHERED_BYTES // (X.shape[1] * wide.element_size()))
    row, rows = 0, out.shape[0]
    while row < rows:
        begin = int(indptr[row])
        end = int(torch.searchsorted(indptr, begin + each, right=True)) - 1
        end = min(max(end, row + 1), rows)
        _of_rows(indptr[row : end + 1], indices, wide, largest, out[row:end], arg[row:end])
        row = end
    return out, arg


def _of_rows(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool, *results: Tensor) -> None:
    out, arg = results
    begin, end = int(indptr[0]), int(indptr[-1])
    cols = indices[begin:end]
    if not cols.shape[0]:
        out.zero_()
        arg.fill_(-1)
        return
    gathered = X.index_select(0, cols)
    best = torch.segment_reduce(gathered, "max" if largest else "min", offsets=indptr - begin)
    numbers = torch.arange(out.shape[0], device=X.device)
    rows = numbers.repeat_interleave(indptr.diff(), output_size=end - begin)
    places = torch.arange(end - begin, device=X.device)[:, None]
    # What is no number equals nothing, so its own place counts as equal.
    equal = (gathered == best[rows]) | gathered.isnan()
    places = torch.where(equal, places, end - begin)
    first = torch.full(out.shape, end - begin, device=X.device)
    first = first.scatter_reduce(0, rows[:, None].expand_as(places), places, "amin")
    found = first < end - begin
    arg.copy_(torch.where(found, cols[first.clamp_max(end - begin - 1)], -1))
    out.copy_(torch.where(found, best, 0.0))


def _empty(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    out = X.new_empty((indptr.shape[0] - 1, X.shape[1]))
    return out, torch.empty_like(out, dtype=index_dtype(X.shape[0]))


def _save(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.length = inputs[2].shape[0]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, G: Tensor, of_arg: None) -> tuple[Tensor | None, ...]:
    """Gather's adjoint, in torch's own operators, which can be differentiated again."""
    (arg,) = ctx.saved_tensors
    G = torch.where(arg < 0, 0.0, G)
    dX = G.new_zeros((ctx.length, *G.shape[1:]))
    if ctx.length:
        dX = dX.scatter_add(0, arg.clamp_min(0).long(), G)
    return None, None, dX, None


_extreme = define_computed(
    "extreme(Tensor indptr, Tensor indices, Tensor X, bool largest) -> (Tensor, Tensor)",
    compute=_compute,
    fake=_empty,
)
torch.library.register_autograd(_extreme, _backward, setup_context=_save)
