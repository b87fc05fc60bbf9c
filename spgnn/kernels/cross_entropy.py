"""Softmax cross-entropy of some rows; its gradient is made in the same pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_array
from spgnn.kernels.library import Operator, kernels_for
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import described
from spgnn.torch_internals import traced, watched

_DTYPES = (torch.float32, torch.float64)


def cross_entropy_sum(
    X: Tensor, target: Tensor, mask: Tensor | None = None, divisor: float = 1.0
) -> Tensor:
    """``Σ log Σ_c exp(X[i, c]) − X[i, target[i]]`` over the rows that count, a scalar.

    What ``torch.nn.functional.cross_entropy`` sums, of rows that have a target and are in the mask;
    others are zeros in the gradient. Differentiable at every order. X is float32 or float64 [n,
    classes], the target int64 [n], negative where there is none, the mask bool [n].
    """
    if not isinstance(X, Tensor) or X.dim() != 2 or X.dtype not in _DTYPES or not X.shape[1]:
        raise InputError(f"X must be float32 or float64 [n, classes], got {described(X)}")
    check_array("target", target, X.shape[:1], X, torch.int64)
    if mask is not None:
        check_array("mask", mask, X.shape[:1], X, torch.bool)
    if traced():  # compilers and transforms know torch's own
        classes = torch.where(_counts(target, mask), target, -100)
        return F.cross_entropy(X, classes, reduction="sum", ignore_index=-100) / divisor
    loss: Tensor
    # On a GPU it would take waiting to know whether what reaches the loss is 1.
    at_once = X.is_cpu and type(X) is Tensor and watched(X)
    loss, _ = _loss(X, target, mask, float(divisor), at_once)
    return loss


def _counts(target: Tensor, mask: Tensor | None) -> Tensor:
    return target >= 0 if mask is None else mask & (target >= 0)


def _new_results(X: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return X.new_empty(()), new_rows(X.shape[0] if others[-1] else 0, X)


def _compute(
    X: Tensor, target: Tensor, mask: Tensor | None, divisor: float, gradient: bool
) -> tuple[Tensor, Tensor]:
    loss, dX = _new_results(X, gradient)
    kernels_for(X).cross_entropy(X, target, mask, divisor, loss, dX if gradient else None)
    if X.is_cpu and loss.isnan():  # as it is, too, if a target is no column
        missing = (_counts(target, mask) & (target >= X.shape[1])).nonzero()
        if len(missing):
            row = int(missing[0])
            raise InputError(
                f"target of row {row} is class {int(target[row])}; X has {X.shape[1]} classes"
            )
    return loss, dX


def _save_made(ctx: Any, inputs: Any, output: Any) -> None:
    *saved, ctx.divisor, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*saved, output[1])


def _backward(ctx: Any, G: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    X, target, mask, dX = ctx.saved_tensors
    if G is None:
        return (None,) * 5
    if torch.is_grad_enabled() or len(dX) < len(X) or type(dX) is not Tensor:
        dX = _gradient(G, X, target, mask, ctx.divisor)
    elif float(G) != 1:
        dX = dX * G
    return dX, None, None, None, None


def _compute_gradient(
    G: Tensor, X: Tensor, target: Tensor, mask: Tensor | None, divisor: float
) -> Tensor:
    return _compute(X, target, mask, divisor, True)[1].mul_(G)


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    *tensors, ctx.divisor = inputs
    ctx.save_for_backward(*tensors)


def _gradient_backward(ctx: Any, C: Tensor) -> tuple[Tensor | None, ...]:
    G, X, target, mask = ctx.saved_tensors
    P = torch.softmax(X, 1)
    C = C * (_counts(target, mask).to(X.dtype)[:, None] / ctx.divisor)
    of_G = of_X = None
    if ctx.needs_input_grad[0]:
        of_G = (C * P).sum() - C.gather(1, target.clamp(min=0)[:, None]).sum()
    if ctx.needs_input_grad[1]:
        of_X = G * P * (C - (C * P).sum(1, keepdim=True))
    return of_G, of_X, None, None, None


_loss = Operator(
    "cross_entropy(Tensor X, Tensor target, Tensor? mask, float divisor, bool gradient) "
    "-> (Tensor, Tensor)",
    new=_new_results,
    compute=_compute,
    save=_save_made,
    backward=_backward,
)
_gradient = Operator(
    "cross_entropy_gradient(Tensor G, Tensor X, Tensor target, Tensor? mask, float divisor) "
    "-> Tensor",
    new=lambda G, X, *others: new_rows(X.shape[0], X),
    compute=_compute_gradient,
    save=_save,
    backward=_gradient_backward,
)
