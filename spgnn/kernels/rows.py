"""Listed rows of a dense matrix: copied, or added to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_dense, check_list, check_out
from spgnn.kernels.library import (
    Operator,
    address,
    by_types,
    define,
    dense,
    native,
    on_cuda,
    only_batched,
    operators,
    threads,
    unit_stride,
    watched,
)
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import SUM_DTYPE

_GATHER, _SCATTER = by_types("gather_rows"), by_types("scatter_add_rows")
_IN_RANGE = {torch.int32: native.in_range_int32, torch.int64: native.in_range_int64}


def gather_rows(
    X: Tensor, rows: Tensor, scale: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Copy listed rows: ``Y[i] = scale[i] · X[rows[i]]``.

    Differentiable at every order in ``X`` where ``out`` is not given; the gradient adds rows up.

    Parameters
    ----------
    X : Tensor [n, f], float32, float64 or bfloat16
    rows : Tensor, int32 or int64 [m]
        Each in [0, n); may repeat.
    scale : Tensor [m], dtype of the sum, optional
        A constant.
    out : Tensor [m, f], dtype of X, optional
        Where to write; must not overlap X.

    Returns
    -------
    Tensor [m, f]

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit, or a row is out of range.
    """
    check_dense("X", X)
    _check_rows(rows, scale, X)
    if out is not None:
        check_out("out", out, rows.shape[0], X)
    elif watched(X):
        return _gather(X, rows, scale)
    else:
        out = new_rows(rows.shape[0], X)
    into = _gather_into if torch.compiler.is_compiling() else _gather_into._op
    into(X, rows, scale, out)
    return out


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None = None) -> Tensor:
    """Add rows to listed rows, in place: ``Y[rows[i]] += scale[i] · X[i]``, in the order of i.

    Rows may repeat; the bits of the result do not depend on the number of threads. Not
    differentiable: it is the gradient of `gather_rows`.

    Parameters
    ----------
    Y : Tensor [n, f], float32, float64 or bfloat16, unit column stride
        Each addition is rounded to its dtype.
    rows : Tensor, int32 or int64 [m]
        Each in [0, n).
    X : Tensor [m, f], dtype of Y
        Must not overlap Y.
    scale : Tensor [m], dtype of the sum, optional

    Returns
    -------
    Tensor [n, f]
        ``Y`` itself.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit, or a row is out of range.
    """
    check_dense("X", X)
    check_dense("Y", Y)
    _check_rows(rows, scale, X)
    if rows.shape[0] != X.shape[0]:
        raise InputError(f"rows has {rows.shape[0]} entries for {X.shape[0]} rows of X")
    check_out("Y", Y, Y.shape[0], X)
    into = _scatter_into if torch.compiler.is_compiling() else _scatter_into._op
    into(Y, rows, X, scale)
    return Y


def _check_rows(rows: Tensor, scale: Tensor | None, X: Tensor) -> None:
    check_list("rows", rows, X, torch.int32, torch.int64)
    if scale is None:
        return
    wanted = SUM_DTYPE[X.dtype]
    given = scale if isinstance(scale, Tensor) else None
    if given is None or (given.shape, given.dtype, given.device) != (rows.shape, wanted, X.device):
        what = "" if given is None else f" {list(given.shape)} of {given.dtype} on {given.device}"
        raise InputError(
            f"scale must be a {wanted} {list(rows.shape)} on {X.device}, "
            f"got {type(scale).__name__}{what}"
            + ("; A.to(X.dtype) has it, or graph.to(X.dtype)" if wanted == X.dtype else "")
        )
    if scale.requires_grad and torch.is_grad_enabled():
        raise InputError("scale is a constant; it cannot require a gradient")


def check_range(rows: Tensor | None, limit: int) -> None:
    """Refuse a list, on the CPU and without gaps, that names a row which is not there."""
    if rows is not None and not _IN_RANGE[rows.dtype](rows.data_ptr(), rows.shape[0], limit):
        outside = rows[(rows < 0) | (rows >= limit)]
        raise InputError(f"row {int(outside[0])} outside [0, {limit})")


def _on_cpu(kernels: Any, X: Tensor, rows: Tensor, scale: Tensor | None, Y: Tensor) -> None:
    """Listed rows of X to Y, or rows of X to listed rows of Y."""
    listed = X if kernels is _GATHER else Y
    X, rows, scale = unit_stride(X), rows.contiguous(), dense(scale)
    check_range(rows, listed.shape[0])
    kernels[X.dtype, rows.dtype](
        X.data_ptr(),
        X.stride(0),
        Y.data_ptr(),
        Y.stride(0),
        X.shape[1],
        rows.data_ptr(),
        rows.shape[0],
        address(scale),
        threads(rows.shape[0] * X.shape[1]),
    )


def _gather_on_cpu(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    _on_cpu(_GATHER, X, rows, scale, out)


def _scatter_on_cpu(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    _on_cpu(_SCATTER, X, rows, scale, Y)


def _empty(X: Tensor, rows: Tensor, scale: Tensor | None) -> Tensor:
    return new_rows(rows.shape[0], X)


def _empty_adjoint(G: Tensor, rows: Tensor, scale: Tensor | None, length: int) -> Tensor:
    return new_rows(length, G)


def _adjoint(scatter: Any) -> Any:
    def added_up(G: Tensor, rows: Tensor, scale: Tensor | None, length: int, out: Tensor) -> None:
        scatter(out.zero_(), rows, G, scale)

    return added_up


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    X, rows, scale = inputs[:3]
    ctx.save_for_backward(rows, scale)
    ctx.length = X.shape[0]


def _backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None]:
    return _scatter(G, *ctx.saved_tensors, ctx.length), None, None


def _adjoint_backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None, None]:
    return _gather(G, *ctx.saved_tensors), None, None, None


def _batched(name: str) -> Any:
    """Batches are more columns."""

    def batched(info: Any, in_dims: Any, X: Tensor, *others: Any) -> tuple[Tensor, int]:
        only_batched(name, in_dims, 0)
        X = X.movedim(in_dims[0], -1)
        return operators[name](X.flatten(1), *others).unflatten(1, X.shape[1:]), 2

    return batched


_gather_into = define(
    "gather_rows.out(Tensor X, Tensor rows, Tensor? scale, Tensor(a!) out) -> ()",
    cpu=_gather_on_cpu,
    cuda=on_cuda("gather_rows"),
)
_scatter_into = define(
    "scatter_add_rows(Tensor(a!) Y, Tensor rows, Tensor X, Tensor? scale) -> ()",
    cpu=_scatter_on_cpu,
    cuda=on_cuda("scatter_add_rows"),
)
_gather = Operator(
    define(
        "gather_rows(Tensor X, Tensor rows, Tensor? scale) -> Tensor",
        cpu=_gather_on_cpu,
        cuda=on_cuda("gather_rows"),
        empty=_empty,
    ),
    save=_save,
    backward=_backward,
    batched=_batched("gather_rows"),
)
_scatter = Operator(
    define(
        "gather_rows_adjoint(Tensor G, Tensor rows, Tensor? scale, SymInt length) -> Tensor",
        cpu=_adjoint(_scatter_on_cpu),
        cuda=_adjoint(on_cuda("scatter_add_rows")),
        empty=_empty_adjoint,
    ),
    save=_save,
    backward=_adjoint_backward,
    batched=_batched("gather_rows_adjoint"),
)
