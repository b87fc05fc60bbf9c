"""Softmax cross-entropy of some rows, which saves nothing but the rows themselves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_array
from spgnn.kernels.library import Operator, kernels_for, traced
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import described

_DTYPES = (torch.float32, torch.float64)


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
    if not isinstance(X, Tensor) or X.dim() != 2 or X.dtype not in _DTYPES or not X.shape[1]:
        raise InputError(f"X must be float32 or float64 [n, classes], got {described(X)}")
    check_array("target", target, X.shape[:1], X, torch.int64)
    if traced():  # compilers and transforms know torch's own
        known = torch.where(target < 0, -100, target)
        return F.cross_entropy(X, known, reduction="sum", ignore_index=-100)
    return _loss(X, target)


def _compute_loss(X: Tensor, target: Tensor) -> Tensor:
    if X.is_cpu and X.shape[0] and int(target.max()) >= X.shape[1]:
        row = int((target >= X.shape[1]).nonzero()[0])
        raise InputError(
            f"target of row {row} is class {int(target[row])}; X has {X.shape[1]} classes"
        )
    out = X.new_empty(())
    kernels_for(X).cross_entropy(X, target, out)
    return out


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


_loss = Operator(
    "cross_entropy(Tensor X, Tensor target) -> Tensor",
    new=lambda X, target: X.new_empty(()),
    compute=_compute_loss,
    save=_save,
    backward=_backward,
)
_gradient = Operator(
    "cross_entropy_gradient(Tensor G, Tensor X, Tensor target) -> Tensor",
    new=lambda G, X, target: new_rows(X.shape[0], X),
    save=_save,
    backward=_gradient_backward,
)
