"""Softmax cross-entropy of some rows, of which nothing is kept but the rows themselves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.library import (
    Operator,
    define,
    native,
    only_batched,
    threads,
    traced,
    unit_stride,
)
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import described

_TYPES = {torch.float32: "float32", torch.float64: "float64"}
_LOSS = {dtype: getattr(native, f"cross_entropy_{name}") for dtype, name in _TYPES.items()}
_GRADIENT = {
    dtype: getattr(native, f"cross_entropy_gradient_{name}") for dtype, name in _TYPES.items()
}
# What an exponential takes, in multiplications.
_EXPONENTIAL = 16
# What torch is told of rows without a target.
_LEFT_OUT = -100


def cross_entropy_sum(X: Tensor, target: Tensor) -> Tensor:
    """``Σ log Σ_c exp(X[i, c]) − X[i, target[i]]`` over the rows that have a target, a scalar.

    What ``torch.nn.functional.cross_entropy`` sums, rows without a target apart: they take no time
    forward and are zeros in the gradient. Differentiable at every order.

    Parameters
    ----------
    X : Tensor [n, classes], float32 or float64
    target : Tensor int64 [n]
        Negative where there is none.

    Raises
    ------
    InputError
        If types or shapes do not fit, or there is no such class.
    """
    if not isinstance(X, Tensor) or X.dim() != 2 or X.dtype not in _TYPES or not X.shape[1]:
        raise InputError(f"X must be float32 or float64 [n, classes], got {described(X)}")
    fits = isinstance(target, Tensor) and target.dtype == torch.int64
    if not fits or target.shape != X.shape[:1] or target.device != X.device:
        raise InputError(
            f"target must be int64 [{X.shape[0]}] on {X.device}, got {described(target)}"
        )
    if traced():  # compilers and transforms know torch's own
        known = torch.where(target < 0, _LEFT_OUT, target)
        return F.cross_entropy(X, known, reduction="sum", ignore_index=_LEFT_OUT)
    return _loss(X, target)


def _loss_on_cpu(X: Tensor, target: Tensor, out: Tensor) -> None:
    X, target = unit_stride(X), target.contiguous()
    if X.shape[0] and int(target.max()) >= X.shape[1]:
        row = int((target >= X.shape[1]).nonzero()[0])
        raise InputError(
            f"target of row {row} is class {int(target[row])}; X has {X.shape[1]} classes"
        )
    work = _EXPONENTIAL * X.numel()
    place = X.data_ptr(), X.stride(0)
    out.fill_(_LOSS[X.dtype](place, tuple(X.shape), target.data_ptr(), threads(work)))


def _gradient_on_cpu(G: Tensor, X: Tensor, target: Tensor, out: Tensor) -> None:
    X, target = unit_stride(X), target.contiguous()
    _GRADIENT[X.dtype](
        (X.data_ptr(), X.stride(0)),
        tuple(X.shape),
        target.data_ptr(),
        G.item(),
        (out.data_ptr(), out.stride(0)),
        threads(_EXPONENTIAL * X.numel()),
    )


def _loss_on_cuda(X: Tensor, target: Tensor, out: Tensor) -> None:
    known = torch.where(target < 0, _LEFT_OUT, target)
    out.copy_(F.cross_entropy(X, known, reduction="sum", ignore_index=_LEFT_OUT))


def _gradient_on_cuda(G: Tensor, X: Tensor, target: Tensor, out: Tensor) -> None:
    torch.softmax(X, 1, out=out)
    known = (target >= 0).to(X.dtype)[:, None]
    out.scatter_add_(1, target.clamp(min=0)[:, None], -known).mul_(known * G)


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
    X, target = ctx.saved_tensors
    return _gradient(G, X, target), None


def _gradient_backward(ctx: Any, C: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    G, X, target = ctx.saved_tensors
    known = (target >= 0).to(X.dtype)[:, None]
    P = torch.softmax(X, 1)
    C = C * known
    of_G = of_X = None
    if ctx.needs_input_grad[0]:
        of_G = (C * P).sum() - C.gather(1, target.clamp(min=0)[:, None]).sum()
    if ctx.needs_input_grad[1]:
        of_X = G * P * (C - (C * P).sum(1, keepdim=True))
    return of_G, of_X, None


def _batched(info: Any, in_dims: Any, *arguments: Any) -> Any:
    only_batched("cross_entropy", in_dims)


_loss = Operator(
    define(
        "cross_entropy(Tensor X, Tensor target) -> Tensor",
        cpu=_loss_on_cpu,
        cuda=_loss_on_cuda,
        empty=lambda X, target: X.new_empty(()),
    ),
    save=_save,
    backward=_backward,
    batched=_batched,
)
_gradient = Operator(
    define(
        "cross_entropy_gradient(Tensor G, Tensor X, Tensor target) -> Tensor",
        cpu=_gradient_on_cpu,
        cuda=_gradient_on_cuda,
        empty=lambda G, X, target: new_rows(X.shape[0], X),
    ),
    save=_save,
    backward=_gradient_backward,
    batched=_batched,
)
