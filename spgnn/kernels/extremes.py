"""The largest (or smallest) of listed rows of X, column by column: aggregation by max and min."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_block, check_out
from spgnn.kernels.library import (
    by_type,
    by_types,
    define_computed,
    on_cuda,
    threads,
    transformed,
    unit_stride,
)
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern, described, index_dtype

_KERNELS, _ADJOINTS = by_types("extreme_rows"), by_type("extreme_adjoint")
_WIDE = {torch.int32: False, torch.int64: True}
_on_cuda = on_cuda("extreme")


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
    What is no number comes before all numbers, wherever it lies.

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
    if state is None:
        state = _empty(pattern.indptr, pattern.indices, X, largest)
        _run(pattern.indptr, pattern.indices, X, largest, *state, begun=False, first=first_column)
        return state
    _check_state(pattern, X, state)
    _run(pattern.indptr, pattern.indices, X, largest, *state, begun=True, first=first_column)
    return state


def add_to_extremes_(dX: Tensor, G: Tensor, arg: Tensor) -> None:
    """``dX[arg[i, c], c] += G[i, c]`` in the order of i, where `arg` is not negative; in place.

    Parameters
    ----------
    dX : Tensor [cols, f], float32, float64 or bfloat16
        Without gaps, on a CPU.
    G : Tensor [rows, f], dtype of dX
    arg : Tensor [rows, f]
        As `extreme_` returns it.

    Raises
    ------
    InputError
        If shapes or dtypes do not fit.
    """
    fits = dX.is_contiguous() and dX.shape[1:] == G.shape[1:] and arg.shape == G.shape
    if not fits or dX.dtype != G.dtype or arg.dtype not in _WIDE or dX.is_cuda:
        raise InputError(
            f"dX must be {G.dtype} [cols, {G.shape[1]}] without gaps on a CPU, columns int32 or "
            f"int64 {list(G.shape)}; got {described(dX)} and {described(arg)}"
        )
    if G.numel():
        _add(dX, G, arg)


def extreme(A: Any, X: Tensor, largest: bool) -> Tensor:
    """The product of `spmm` with reduction "max" or "min"."""
    if A.values is not None or A.row_scale is not None or A.col_scale is not None:
        raise InputError('reduce="max" and "min" take a matrix without values and scalings')
    flat = X.flatten(1)
    out: Tensor = _extreme(A.indptr, A.indices, flat, largest)[0]
    return out.unflatten(1, X.shape[1:]) if X.dim() == 3 else out


def _check_state(pattern: Pattern, X: Tensor, state: tuple[Tensor, Tensor]) -> None:
    out, arg = state
    check_out("state", out, pattern.shape[0], X)
    if arg.shape != out.shape or arg.dtype not in _WIDE or not arg.is_contiguous():
        raise InputError(
            f"the state's columns must be int32 or int64 {list(out.shape)}, got {described(arg)}"
        )


def _compute(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    out, arg = _empty(indptr, indices, X, largest)
    _run(indptr, indices, X, largest, out, arg, begun=False, first=0)
    return out, arg


def _run(
    indptr: Tensor,
    indices: Tensor,
    X: Tensor,
    largest: bool,
    out: Tensor,
    arg: Tensor,
    *,
    begun: bool,
    first: int,
) -> None:
    """Write the result, or what this block makes of that of those before it."""
    if not out.numel():
        return
    X = unit_stride(X)
    if X.is_cuda:
        _on_cuda(indptr, indices, X, largest, begun, first, out, arg)
        return
    _KERNELS[X.dtype, indices.dtype](
        indptr.data_ptr(),
        indices.data_ptr(),
        (X.data_ptr(), X.stride(0)),
        tuple(out.shape),
        largest,
        begun,
        first,
        (out.data_ptr(), out.stride(0)),
        (arg.data_ptr(), _WIDE[arg.dtype]),
        threads(indices.shape[0] * X.shape[1]),
    )


def _empty(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    out = X.new_empty((indptr.shape[0] - 1, X.shape[1]))
    return out, torch.empty_like(out, dtype=index_dtype(X.shape[0]))


def _save(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.length = inputs[2].shape[0]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, G: Tensor, of_arg: None) -> tuple[Tensor | None, ...]:
    """Gather's adjoint; differentiated again, in torch's own operators."""
    (arg,) = ctx.saved_tensors
    again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    adjoint = _scattered if again or transformed() else _extreme_adjoint
    return None, None, adjoint(G, arg, ctx.length), None


def _scattered(G: Tensor, arg: Tensor, length: int) -> Tensor:
    G = torch.where(arg < 0, 0.0, G)
    if not length:
        return G[:0]  # made of G: or else a rank without rows would leave out what is collective
    dX = G.new_zeros((length, *G.shape[1:]))
    return dX.scatter_add(0, arg.clamp_min(0).long(), G)


def _adjoint(G: Tensor, arg: Tensor, length: int) -> Tensor:
    """``dX[arg[i, c], c] += G[i, c]`` in the order of i, each sum rounded to the dtype."""
    if G.is_cuda:
        return _scattered(G, arg, length)
    dX = new_rows(length, G).zero_()
    _add(dX, G, arg)
    return dX


def _add(dX: Tensor, G: Tensor, arg: Tensor) -> None:
    G, arg = unit_stride(G), arg.contiguous()
    _ADJOINTS[G.dtype](
        (G.data_ptr(), G.stride(0)),
        (arg.data_ptr(), _WIDE[arg.dtype]),
        tuple(G.shape),
        dX.data_ptr(),
        threads(G.numel()),
    )


def _empty_adjoint(G: Tensor, arg: Tensor, length: int) -> Tensor:
    return new_rows(length, G)


_extreme = define_computed(
    "extreme(Tensor indptr, Tensor indices, Tensor X, bool largest) -> (Tensor, Tensor)",
    compute=_compute,
    fake=_empty,
)
torch.library.register_autograd(_extreme, _backward, setup_context=_save)
_extreme_adjoint = define_computed(
    "extreme_adjoint(Tensor G, Tensor arg, SymInt length) -> Tensor",
    compute=_adjoint,
    fake=_empty_adjoint,
)
