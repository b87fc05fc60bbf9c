"""What follows a dense product in a layer, in one pass over its rows: bias, ReLU and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_dense
from spgnn.kernels.dropout import check_dropout, dropout_rows
from spgnn.kernels.library import (
    Operator,
    address,
    by_type,
    define,
    define_computed,
    native,
    on_cuda,
    only_batched,
    threads,
    transformed,
    unit_stride,
)
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import described
from spgnn.sparse import SUM_DTYPE

_UPDATE, _GRADIENTS = by_type("update_rows"), by_type("update_gradients")


def update_rows_(
    Z: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    vertex_ids: Tensor | None = None,
    key: int = 0,
    p: float = 0.0,
) -> Tensor:
    """``dropout(relu(Z + b))`` in one pass over the rows, written over Z.

    The numbers are those of the three operations one after another, each rounded to the dtype of Z;
    masks are those of :func:`dropout_rows`. Differentiable at every order. The gradient is one pass
    as well, and nothing is kept for it but the result, whose sign says what passed; the bias'
    gradient is summed in the same pass, in an order that depends on the shape alone.

    Parameters
    ----------
    Z : Tensor [n, f], float32, float64 or bfloat16
        Nobody may need it afterwards, not even the gradient of what made it.
    bias : Tensor [f], dtype of the sum, optional
        Rounded to the dtype of Z; its gradient is not.
    relu : bool
    vertex_ids : Tensor, int64 [n], optional
        Without, nothing is dropped.
    key, p
        As of :func:`dropout_rows`.

    Returns
    -------
    Tensor [n, f]
        Z itself, or, where a compiler or a transform looks on, another one.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit, or p is outside [0, 1).
    """
    check_dense("Z", Z)
    if bias is not None:
        _check_bias(bias, Z)
    if vertex_ids is None:
        key, p = 0, 0.0
    else:
        key = check_dropout(Z, vertex_ids, key, p)
    if Z.stride(-1) != 1 and Z.shape[1] > 1:
        return _update(Z, bias, vertex_ids, key, float(p), relu)
    return _update.overwriting(Z, bias, vertex_ids, key, float(p), relu)


def _check_bias(bias: Tensor, Z: Tensor) -> None:
    wanted = (Z.shape[1:], SUM_DTYPE[Z.dtype], Z.device)
    if not isinstance(bias, Tensor) or (bias.shape, bias.dtype, bias.device) != wanted:
        raise InputError(
            f"bias must be {wanted[1]} {list(wanted[0])} on {Z.device}, got {described(bias)}"
        )


def _empty(Z: Tensor, *arguments: Any) -> Tensor:
    return new_rows(Z.shape[0], Z)


def _rule(vertex_ids: Tensor | None, key: int, p: float) -> tuple[int, int, int, float]:
    return address(vertex_ids), native.mix64(key % 2**64), round(p * 2**32), 1.0 / (1.0 - p)


def _on_cpu(  # noqa: PLR0917 - as the operator has them
    Z: Tensor,
    bias: Tensor | None,
    vertex_ids: Tensor | None,
    key: int,
    p: float,
    relu: bool,
    out: Tensor,
) -> None:
    if not Z.numel():
        return
    Z, bias = unit_stride(Z), None if bias is None else bias.contiguous()
    ids = None if vertex_ids is None else vertex_ids.contiguous()
    _UPDATE[Z.dtype](
        (Z.data_ptr(), Z.stride(0)),
        (out.data_ptr(), out.stride(0)),
        tuple(Z.shape),
        address(bias),
        relu,
        _rule(ids, key, p),
        threads(Z.numel()),
    )


def _over_itself(kernel: Any) -> Any:
    def overwrite(Z: Tensor, *arguments: Any) -> None:
        kernel(Z, *arguments, Z)

    return overwrite


def _gradients(  # noqa: PLR0917
    G: Tensor, Y: Tensor | None, vertex_ids: Tensor | None, key: int, p: float, bias: bool
) -> tuple[Tensor, Tensor]:
    dZ, sums = _empty_gradients(G, Y, vertex_ids, key, p, bias)
    if not G.numel():
        return dZ, sums.zero_()
    if G.is_cuda:
        _gradients_on_cuda(G, Y, vertex_ids, key, p, dZ, sums)
        return dZ, sums
    G, ids = unit_stride(G), None if vertex_ids is None else vertex_ids.contiguous()
    Y = None if Y is None else unit_stride(Y)
    _GRADIENTS[G.dtype](
        (G.data_ptr(), G.stride(0)),
        (0, 0) if Y is None else (Y.data_ptr(), Y.stride(0)),
        (dZ.data_ptr(), dZ.stride(0)),
        tuple(G.shape),
        _rule(ids, key, p),
        sums.data_ptr() if bias else 0,
        threads(G.numel()),
    )
    return dZ, sums


_gradients_on_cuda = on_cuda("update_rows_backward")


def _empty_gradients(  # noqa: PLR0917
    G: Tensor, Y: Tensor | None, vertex_ids: Tensor | None, key: int, p: float, bias: bool
) -> tuple[Tensor, Tensor]:
    width = G.shape[1] if bias else 0
    return new_rows(G.shape[0], G), G.new_empty(width, dtype=SUM_DTYPE[G.dtype])


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, bias, vertex_ids, ctx.key, ctx.p, relu = inputs
    # The sign of the result says what was dropped as well.
    kept = (output, None) if relu else (None, vertex_ids)
    ctx.save_for_backward(*kept)
    ctx.has_bias = bias is not None


def _backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    Y, vertex_ids = ctx.saved_tensors
    summed = ctx.has_bias and ctx.needs_input_grad[1]
    if transformed() or (torch.is_grad_enabled() and not torch.compiler.is_compiling()):
        dZ = _passed(G, Y, vertex_ids, ctx.key, ctx.p)
        sums = dZ.sum(0, dtype=SUM_DTYPE[G.dtype]) if summed else None
    else:
        dZ, sums = _update_gradients(G, Y, vertex_ids, ctx.key, ctx.p, summed)
    return dZ, sums if summed else None, None, None, None, None


def _passed(G: Tensor, Y: Tensor | None, vertex_ids: Tensor | None, key: int, p: float) -> Tensor:
    """What passes of a gradient, or of a tangent, by operators that have derivatives."""
    if Y is not None:
        passed = torch.where(Y.detach() <= 0, 0.0, G)
        return passed * (1.0 / (1.0 - p)) if p else passed
    return G if vertex_ids is None else dropout_rows(G, vertex_ids, key, p)


def _tangent(arguments: Any, tangents: Any) -> Tensor:
    Z, _, vertex_ids, key, p, relu = arguments
    dZ, db = tangents[:2]
    dZ = torch.zeros_like(Z) if dZ is None else dZ
    if db is not None:
        dZ = dZ + db.to(dZ.dtype)
    return _passed(dZ, _update(*arguments) if relu else None, vertex_ids, key, p)


def _batched(info: Any, in_dims: Any, Z: Tensor, bias: Any, ids: Any, *rule: Any) -> Any:
    """Batches are more rows of the same vertices: they drop the same elements."""
    only_batched("update_rows", in_dims, 0)
    Z = Z.movedim(in_dims[0], 0)
    repeated = None if ids is None else ids.repeat(info.batch_size)
    return _update(Z.flatten(0, 1), bias, repeated, *rule).view(Z.shape), 0


_RULE = "Tensor? bias, Tensor? vertex_ids, int key, float p, bool relu"
_update = Operator(
    define(
        f"update_rows(Tensor Z, {_RULE}) -> Tensor",
        cpu=_on_cpu,
        cuda=on_cuda("update_rows"),
        empty=_empty,
    ),
    in_place=define(
        f"update_rows.in_place(Tensor(a!) Z, {_RULE}) -> ()",
        cpu=_over_itself(_on_cpu),
        cuda=_over_itself(on_cuda("update_rows")),
    ),
    save=_save,
    backward=_backward,
    batched=_batched,
    tangent=_tangent,
)
_update_gradients = define_computed(
    "update_rows_backward(Tensor G, Tensor? Y, Tensor? vertex_ids, int key, float p, bool bias) "
    "-> (Tensor, Tensor)",
    compute=_gradients,
    fake=_empty_gradients,
)
