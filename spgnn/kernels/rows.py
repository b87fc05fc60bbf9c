"""Listed rows of a dense matrix, copied or added to; and dropout of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_array, check_dense, check_list, check_out, signed_key
from spgnn.kernels.library import Operator, Writer, kernels_for, more_columns, new_like
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import SUM_DTYPE
from spgnn.torch_internals import watched


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
    """
    check_dense("X", X)
    _check_rows(rows, scale, X)
    if out is not None:
        check_out("out", out, rows.shape[0], X)
    elif watched(X):
        return _gather(X, rows, scale)
    else:
        out = new_rows(rows.shape[0], X)
    _gather_into(X, rows, scale, out)
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
    """
    check_dense("X", X)
    check_dense("Y", Y)
    _check_rows(rows, scale, X)
    if rows.shape[0] != X.shape[0]:
        raise InputError(f"rows has {rows.shape[0]} entries for {X.shape[0]} rows of X")
    check_out("Y", Y, Y.shape[0], X)
    _scatter_into(Y, rows, X, scale)
    return Y


def known_rows(rows: Tensor, limit: int) -> Tensor:
    """The list itself, known to have entries in [0, limit): no GPU is waited for to look."""
    if rows.is_cuda and len(rows) and (know := getattr(kernels_for(rows), "know_range", None)):
        know(rows, limit)
    return rows


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    """Zero elements at random and scale the rest: ``X / (1 - p)`` where kept, 0 elsewhere.

    Whether element (i, c) is kept is a pure function of ``(key, vertex_ids[i], c)``, the same on
    every device, rank and number of threads; docs/kernels.md defines it. Differentiable at every
    order in ``X``: the gradient passes the same mask, recomputed.

    Parameters
    ----------
    X : Tensor [n, f], float32, float64 or bfloat16
    vertex_ids : Tensor, int64 [n]
        Global number of the vertex in each row.
    key : int
        64 bits (signed or unsigned) made from seed, epoch and layer.
    p : float
        Probability of being dropped, in [0, 1); taken to a multiple of 2⁻³².

    Returns
    -------
    Tensor [n, f]
    """
    check_dense("X", X)
    return _dropout(X, vertex_ids, check_dropout(X, vertex_ids, key, p), float(p))


def check_dropout(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> int:
    """Refuse what does not say which elements of X are dropped; the key as a signed integer."""
    check_list("vertex_ids", vertex_ids, X, torch.int64)
    if vertex_ids.shape[0] != X.shape[0]:
        raise InputError(f"vertex_ids has {vertex_ids.shape[0]} entries for {X.shape[0]} rows of X")
    if not isinstance(p, int | float) or not 0.0 <= p < 1.0:
        raise InputError(f"p must be in [0, 1), got {p}")
    return signed_key(key)


def _check_rows(rows: Tensor, scale: Tensor | None, X: Tensor) -> None:
    check_list("rows", rows, X, torch.int32, torch.int64)
    if scale is None:
        return
    check_array("scale", scale, rows.shape, X, SUM_DTYPE[X.dtype])
    if scale.requires_grad and torch.is_grad_enabled():
        raise InputError("scale is a constant; it cannot require a gradient")


def _scattered(G: Tensor, rows: Tensor, scale: Tensor | None, length: int) -> Tensor:
    out = _new_scattered(G, rows, scale, length).zero_()
    kernels_for(G).scatter_add_rows(out, rows, G, scale)
    return out


def _new_scattered(G: Tensor, rows: Tensor, scale: Tensor | None, length: int) -> Tensor:
    return new_rows(length, G)


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    X, rows, scale = inputs[:3]
    ctx.save_for_backward(rows, scale)
    ctx.length = X.shape[0]


def _gather_backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None]:
    return _scatter(G, *ctx.saved_tensors, ctx.length), None, None


def _scatter_backward(ctx: Any, G: Tensor) -> tuple[Tensor, None, None, None]:
    return _gather(G, *ctx.saved_tensors), None, None, None


def _save_dropout(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, vertex_ids, ctx.key, ctx.p = inputs
    ctx.save_for_backward(vertex_ids)


def _dropout_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    return _dropout(G, *ctx.saved_tensors, ctx.key, ctx.p), None, None, None


def _batched_dropout(
    operator: Operator, info: Any, in_dims: Any, X: Tensor, ids: Tensor, *rule: Any
) -> tuple[Tensor, int]:
    """Batches are more rows of the same vertices: they drop the same elements."""
    operator.refuse_batches_but(in_dims, 0)
    X = X.movedim(in_dims[0], 0)
    return operator(X.flatten(0, 1), ids.repeat(info.batch_size), *rule).view(X.shape), 0


_gather_into = Writer("gather_rows.out(Tensor X, Tensor rows, Tensor? scale, Tensor(a!) out) -> ()")
_scatter_into = Writer("scatter_add_rows(Tensor(a!) Y, Tensor rows, Tensor X, Tensor? scale) -> ()")
_gather = Operator(
    "gather_rows(Tensor X, Tensor rows, Tensor? scale) -> Tensor",
    new=lambda X, rows, scale: new_rows(rows.shape[0], X),
    save=_save,
    backward=_gather_backward,
    batched=more_columns,
)
_scatter = Operator(
    "gather_rows_adjoint(Tensor G, Tensor rows, Tensor? scale, SymInt length) -> Tensor",
    new=_new_scattered,
    compute=_scattered,
    save=_save,
    backward=_scatter_backward,
    batched=more_columns,
)
_dropout = Operator(
    "dropout_rows(Tensor X, Tensor vertex_ids, int key, float p) -> Tensor",
    new=new_like,
    save=_save_dropout,
    backward=_dropout_backward,
    batched=_batched_dropout,
)
