"""The largest (or smallest) of listed rows of X, column by column: aggregation by max and min."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_array, check_block, check_out
from spgnn.kernels.library import define, kernels_for, transformed
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern, described, index_dtype
from spgnn.sparse import CSR

_COLUMNS = (torch.int32, torch.int64)


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
    begun = state is not None
    if state is None:
        state = _empty(pattern.indptr, pattern.indices, X, largest)
    else:
        _check_state(pattern, X, state)
    if state[0].numel():
        block = pattern.indptr, pattern.indices, X
        kernels_for(X).extreme(*block, largest, begun, first_column, *state)
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
    if not fits or dX.dtype != G.dtype or arg.dtype not in _COLUMNS or dX.is_cuda:
        raise InputError(
            f"dX must be {G.dtype} [cols, {G.shape[1]}] without gaps on a CPU, columns int32 or "
            f"int64 {list(G.shape)}; got {described(dX)} and {described(arg)}"
        )
    if G.numel():
        kernels_for(G).extreme_adjoint(G, arg, dX)


def extreme(A: CSR, X: Tensor, largest: bool) -> Tensor:
    """The product of `spmm` with reduction "max" or "min"."""
    if A.values is not None or A.row_scale is not None or A.col_scale is not None:
        raise InputError('reduce="max" and "min" take a matrix without values and scalings')
    out: Tensor = _extreme(A.indptr, A.indices, X.flatten(1), largest)[0]
    return out.unflatten(1, X.shape[1:]) if X.dim() == 3 else out


def _check_state(pattern: Pattern, X: Tensor, state: tuple[Tensor, Tensor]) -> None:
    out, arg = state
    check_out("state", out, pattern.shape[0], X)
    check_array("the state's columns", arg, out.shape, X, *_COLUMNS)
    if not arg.is_contiguous():
        raise InputError("the state's columns must be contiguous")


def _compute(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    out, arg = _empty(indptr, indices, X, largest)
    if out.numel():
        kernels_for(X).extreme(indptr, indices, X, largest, False, 0, out, arg)
    return out, arg


def _empty(indptr: Tensor, indices: Tensor, X: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    out = X.new_empty((indptr.shape[0] - 1, X.shape[1]))
    return out, torch.empty_like(out, dtype=index_dtype(X.shape[0]))


def _save(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.length = inputs[2].shape[0]
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, G: Tensor, of_arg: None) -> tuple[Tensor | None, ...]:
    (arg,) = ctx.saved_tensors
    return None, None, put_back(G, arg, ctx.length), None


def pick(X: Tensor, arg: Tensor) -> Tensor:
    """``X[arg[i, c], c]``, 0 where `arg` is negative; in torch's own operators."""
    return torch.where(arg < 0, 0.0, X.gather(0, arg.clamp_min(0).long()))


def put_back(G: Tensor, arg: Tensor, length: int) -> Tensor:
    """The adjoint of `pick`; differentiated again, in torch's own operators."""
    again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    adjoint = _scattered if again or transformed() else _extreme_adjoint
    rows: Tensor = adjoint(G, arg, length)
    return rows


def _scattered(G: Tensor, arg: Tensor, length: int) -> Tensor:
    G = torch.where(arg < 0, 0.0, G)
    if not length:
        return G[:0]  # depends on G: or else a rank without rows would leave out what is collective
    dX = G.new_zeros((length, *G.shape[1:]))
    return dX.scatter_add(0, arg.clamp_min(0).long(), G)


def _adjoint(G: Tensor, arg: Tensor, length: int) -> Tensor:
    """``dX[arg[i, c], c] += G[i, c]`` in the order of i, each sum rounded to the dtype."""
    if G.is_cuda:
        return _scattered(G, arg, length)
    dX = new_rows(length, G).zero_()
    kernels_for(G).extreme_adjoint(G, arg, dX)
    return dX


_extreme = define(
    "extreme(Tensor indptr, Tensor indices, Tensor X, bool largest) -> (Tensor, Tensor)",
    new=_empty,
    compute=_compute,
)
torch.library.register_autograd(_extreme, _backward, setup_context=_save)
_extreme_adjoint = define(
    "extreme_adjoint(Tensor G, Tensor arg, SymInt length) -> Tensor",
    new=lambda G, arg, length: new_rows(length, G),
    compute=_adjoint,
)
