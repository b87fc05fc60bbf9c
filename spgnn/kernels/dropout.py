"""Dropout that is a function of the vertex, not of the rank that owns it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.kernels.checks import check_dense, check_list
from spgnn.kernels.library import (
    Operator,
    by_type,
    define,
    native,
    on_cuda,
    only_batched,
    threads,
    unit_stride,
)
from spgnn.kernels.recycling import new_rows

_KERNELS = by_type("dropout_rows")


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    """Zero elements at random and scale the rest: ``X / (1 - p)`` where kept, 0 elsewhere.

    Whether element (i, c) is kept is a pure function of ``(key, vertex_ids[i], c)``, the same on
    every device, rank and number of threads; docs/kernels.md defines it. Differentiable at every
    order in ``X``: the gradient passes the same mask, made again.

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

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit, or p is outside [0, 1).
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
    return (check_integer("key", key, -(2**63), 2**64 - 1) + 2**63) % 2**64 - 2**63


def _empty(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    return new_rows(X.shape[0], X)


def _on_cpu(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None:
    X, vertex_ids = unit_stride(X), vertex_ids.contiguous()
    _KERNELS[X.dtype](
        X.data_ptr(),
        X.stride(0),
        out.data_ptr(),
        out.stride(0),
        X.shape[1],
        vertex_ids.data_ptr(),
        vertex_ids.shape[0],
        native.mix64(key % 2**64),
        round(p * 2**32),
        1.0 / (1.0 - p),
        threads(X.numel()),
    )


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, vertex_ids, ctx.key, ctx.p = inputs
    ctx.save_for_backward(vertex_ids)


def _backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    return _dropout(G, *ctx.saved_tensors, ctx.key, ctx.p), None, None, None


def _batched(info: Any, in_dims: Any, X: Tensor, ids: Tensor, *rule: Any) -> tuple[Tensor, int]:
    """Batches are more rows of the same vertices: they drop the same elements."""
    only_batched("dropout_rows", in_dims, 0)
    X = X.movedim(in_dims[0], 0)
    return _dropout(X.flatten(0, 1), ids.repeat(info.batch_size), *rule).view(X.shape), 0


_dropout = Operator(
    define(
        "dropout_rows(Tensor X, Tensor vertex_ids, int key, float p) -> Tensor",
        cpu=_on_cpu,
        cuda=on_cuda("dropout_rows"),
        empty=_empty,
    ),
    save=_save,
    backward=_backward,
    batched=_batched,
)
