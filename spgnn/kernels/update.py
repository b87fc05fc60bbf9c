"""Bias, activation and dropout after a dense product in a layer, in one pass."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice
from spgnn.kernels.checks import check_array, check_dense
from spgnn.kernels.library import Operator, define, kernels_for, new_like
from spgnn.kernels.recycling import new_rows
from spgnn.kernels.rows import check_dropout, dropout_rows
from spgnn.sparse import SUM_DTYPE
from spgnn.torch_internals import transformed

Act = Literal["relu", "leaky_relu", "elu"]
# As C++ and CUDA number them.
ACTS: dict[str | None, int] = {None: 0, "relu": 1, "leaky_relu": 2, "elu": 3}
_NONE, _RELU, _, _ELU = ACTS.values()


def update_rows_(
    Z: Tensor,
    bias: Tensor | None = None,
    *,
    act: Act | None = None,
    alpha: float = 0.0,
    vertex_ids: Tensor | None = None,
    key: int = 0,
    p: float = 0.0,
) -> Tensor:
    """``dropout(act(Z + b))`` in one pass over the rows, written over Z."""
    check_dense("Z", Z)
    if act is not None:
        check_choice("act", act, get_args(Act))
    which = ACTS[act]
    if which > _RELU and not 0 < alpha < float("inf"):
        raise InputError(f"alpha must be positive, as the gradient asks for, got {alpha!r}")
    if bias is not None:
        check_array("bias", bias, Z.shape[1:], Z, SUM_DTYPE[Z.dtype])
    if vertex_ids is None:
        key, p = 0, 0.0
    else:
        key = check_dropout(Z, vertex_ids, key, p)
    if Z.stride(-1) != 1 and Z.shape[1] > 1:
        return _update(Z, bias, vertex_ids, key, float(p), which, float(alpha))
    return _update.overwriting(Z, bias, vertex_ids, key, float(p), which, float(alpha))


def hide_gradient(result: Tensor) -> Tensor:
    """Say of a result of `update_rows_` that nobody looks at its gradient; the same tensor."""
    node: Any = None if torch.compiler.is_compiling() else result.grad_fn
    if getattr(node, "operator", None) is _update and node.act == _RELU:
        node.hidden = True
    return result


def relu_of(X: Tensor) -> Any:
    """The node of the ReLU that X is the result of, if the gradient of X is hidden; else None."""
    node = X.grad_fn
    return node if getattr(node, "hidden", False) else None


def _update_in_place(Z: Tensor, *rule: Any) -> None:
    kernels_for(Z).update_rows(Z, *rule, Z)


def _gradients(G: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    dZ, sums = _empty_gradients(G, *arguments)
    if not G.numel():
        return dZ, sums.zero_()
    kernels_for(G).update_rows_backward(G, *arguments[:-1], dZ, sums)
    return dZ, sums


def _empty_gradients(G: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    width = G.shape[1] if arguments[-1] else 0
    return new_rows(G.shape[0], G), G.new_empty(width, dtype=SUM_DTYPE[G.dtype])


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, bias, vertex_ids, ctx.key, ctx.p, ctx.act, ctx.alpha = inputs
    # A ReLU's result says by its sign what was dropped as well.
    drops = vertex_ids if ctx.act != _RELU and ctx.p else None
    ctx.save_for_backward(output if ctx.act else None, drops)
    ctx.has_bias = bias is not None


def _backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    saved = *ctx.saved_tensors, ctx.key, ctx.p, ctx.act, ctx.alpha
    summed = ctx.has_bias and ctx.needs_input_grad[1]
    passed, ctx.passed = getattr(ctx, "passed", None), None
    # `passed` refers to its gradient, so autograd cannot add another one to it in place: if G is
    # that tensor, it is the whole gradient.
    if passed is not None and passed[0] is G and not torch.is_grad_enabled():
        dZ, sums = passed
        if ctx.p:  # nobody else has these
            dZ.mul_(1.0 / (1.0 - ctx.p))
            sums.mul_(1.0 / (1.0 - ctx.p))
    elif transformed() or (torch.is_grad_enabled() and not torch.compiler.is_compiling()):
        dZ = _passed(G, *saved)
        sums = dZ.sum(0, dtype=SUM_DTYPE[G.dtype]) if summed else None
    else:
        dZ, sums = _update_gradients(G, *saved, summed)
    return dZ, sums if summed else None, None, None, None, None, None


def _passed(
    G: Tensor,
    Y: Tensor | None,
    vertex_ids: Tensor | None,
    key: int,
    p: float,
    act: int,
    alpha: float,
) -> Tensor:
    """A gradient, or tangent, passed through the update, by operators that have derivatives."""
    if act == _RELU:
        assert Y is not None
        passed = torch.where(Y.detach() <= 0, 0.0, G)
        return passed * (1.0 / (1.0 - p)) if p else passed
    G = G if vertex_ids is None else dropout_rows(G, vertex_ids, key, p)
    if Y is None:
        return G
    if act == _ELU:
        return G * torch.where(Y.detach() <= 0, Y * (1.0 - p) + alpha, 1.0)
    return torch.where(Y.detach() > 0, G, G * alpha)


def _tangent(arguments: Any, tangents: Any) -> Tensor:
    Z, _, vertex_ids, key, p, act, alpha = arguments
    dZ, db = tangents[:2]
    dZ = torch.zeros_like(Z) if dZ is None else dZ
    if db is not None:
        dZ = dZ + db.to(dZ.dtype)
    Y = _update(*arguments) if act else None
    return _passed(dZ, Y, vertex_ids, key, p, act, alpha)


def _batched(
    operator: Operator, info: Any, in_dims: Any, Z: Tensor, bias: Any, ids: Any, *rule: Any
) -> tuple[Tensor, int]:
    """Batches are more rows of the same vertices: they drop the same elements."""
    operator.refuse_batches_but(in_dims, 0)
    Z = Z.movedim(in_dims[0], 0)
    repeated = None if ids is None else ids.repeat(info.batch_size)
    return operator(Z.flatten(0, 1), bias, repeated, *rule).view(Z.shape), 0


_RULE = "Tensor? bias, Tensor? vertex_ids, int key, float p, int act, float alpha"
_update = Operator(
    f"update_rows(Tensor Z, {_RULE}) -> Tensor",
    in_place=define(f"update_rows.in_place(Tensor(a!) Z, {_RULE}) -> ()", compute=_update_in_place),
    new=new_like,
    save=_save,
    backward=_backward,
    batched=_batched,
    tangent=_tangent,
)
_update_gradients = define(
    "update_rows_backward(Tensor G, Tensor? Y, Tensor? vertex_ids, int key, float p, int act, "
    "float alpha, bool bias) -> (Tensor, Tensor)",
    new=_empty_gradients,
    compute=_gradients,
)
