"""Dense products of many rows with a matrix of few, where BLAS takes longer.

`times_transposed` and `transposed_times` are each other's gradients, so they give derivatives of
every order. Two products that share an operand or a result are one pass over the rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn import _native
from spgnn.kernels import bfloat16
from spgnn.kernels.library import Operator, define, kernels_for, unrecorded
from spgnn.kernels.recycling import new_rows
from spgnn.kernels.update import relu_of
from spgnn.torch_internals import casting, traced, watched

# Fewest rows of X that are worth it.
FEWEST_ROWS = 512


def most_columns(instruction_set: str, *, intel: bool, mkl: bool) -> tuple[int, int]:
    """Most rows of W for which the kernels are faster than BLAS."""
    if mkl and not intel:
        return 1024, {"avx512": 1024, "avx2": 64}.get(instruction_set, 16)
    return 32, 16


_MOST_COLUMNS, _MOST_OF_GRADIENT = most_columns(
    _native.instruction_sets()[0], intel=_native.is_intel(), mkl=torch.backends.mkl.is_available()
)


def times_transposed(X: Tensor, W: Tensor) -> Tensor:
    """``X Wᵀ`` [n, f_out] of X [n, f_in], W [f_out, f_in]; differentiable at every order.

    Float32 on a CPU has a kernel of its own where that is faster (`most_columns`); everything else
    is torch's product. Under torch.autocast to bfloat16, W and its gradient keep their precision,
    and bits do not depend on the number of threads.
    """
    if casting() and torch.is_autocast_enabled("cpu") and bfloat16.narrows(X, W):
        return bfloat16.product(X, W)
    return _product(X, W, None, None) if has_gemm(X, W) else X @ W.T


def add_times_transposed_(Z: Tensor, X: Tensor, W: Tensor) -> Tensor:
    """``Z + X Wᵀ``, written over Z [n, f_out], which nobody may need."""
    if bfloat16.narrows(X, W) or has_gemm(X, W):
        return Z.add_(times_transposed(X, W))
    return Z.addmm_(X, W.T)


def sum_of_products(X1: Tensor, W1: Tensor, X2: Tensor, W2: Tensor) -> Tensor:
    """``X1 W1ᵀ + X2 W2ᵀ`` [n, f_out] in one pass; differentiable at every order."""
    if has_gemm(X1, W1, X2, W2):
        return _product(X1, W1, X2, W2)
    return add_times_transposed_(times_transposed(X1, W1), X2, W2)


def two_products(X: Tensor, W1: Tensor, W2: Tensor) -> tuple[Tensor, Tensor]:
    """``X W1ᵀ`` and ``X W2ᵀ``; differentiable at every order."""
    if watched(X, W1, W2) or not has_gemm(X, W1, X, W2):
        return times_transposed(X, W1), times_transposed(X, W2)
    return _two_products(X, W1, W2)  # type: ignore[no-any-return]


def two_gradients(G1: Tensor, X1: Tensor, G2: Tensor, X2: Tensor) -> tuple[Tensor, Tensor]:
    """``G1ᵀ X1`` and ``G2ᵀ X2``, one pass where both G or both X are the same tensor."""
    shared = G1 is G2 or X1 is X2
    narrow = max(G1.shape[1], G2.shape[1]) <= _MOST_OF_GRADIENT
    kernel = shared and narrow and _has_kernel(G1, X1, G2, X2)
    if not kernel or watched(G1, X1, G2, X2):
        return transposed_times(G1, X1), transposed_times(G2, X2)
    others = None if G1 is G2 else G2, None if X1 is X2 else X2
    return _two_gradients(G1, X1, *others)  # type: ignore[no-any-return]


def gradient_of(
    X: Tensor | None, relu: Any, G1: Tensor, W1: Tensor, G2: Tensor | None, W2: Tensor | None
) -> Tensor:
    """``G1 W1ᵀ``, or ``G1 W1ᵀ + G2 W2ᵀ``, as the gradient of X."""
    operands = [G1, W1] if G2 is None or W2 is None else [G1, W1, G2, W2]
    fits = X is not None and relu is not None and has_gemm(*operands)
    if fits and not watched(*operands):
        relu.passed = _product_through_relu(G1, W1, G2, W2, X)
        return relu.passed[0]  # type: ignore[no-any-return]
    return times_transposed(G1, W1) if len(operands) == 2 else sum_of_products(*operands)


def transposed_times(G: Tensor, X: Tensor) -> Tensor:
    """``Gᵀ X`` [f_out, f_in] of G [n, f_out] and X [n, f_in]; as `times_transposed`."""
    if not _has_kernel(G, X) or G.shape[1] > _MOST_OF_GRADIENT:
        return G.T @ X
    return _gradient(G, X)


def has_gemm(*operands: Tensor) -> bool:
    """True if `times_transposed` has a kernel of its own for X and W, or for several such pairs."""
    for W in operands[1::2]:
        if W.shape[0] > _MOST_COLUMNS:
            return False
    return _has_kernel(*operands)


def _has_kernel(*operands: Tensor) -> bool:
    """True for pairs that a kernel takes, if neither autocast nor a tracer is at work."""
    if traced() or (casting() and torch.is_autocast_enabled("cpu")):
        return False
    for first, second in zip(operands[::2], operands[1::2], strict=True):
        if not (
            first.dtype == second.dtype == torch.float32
            and first.is_cpu
            and second.is_cpu
            and first.dim() == second.dim() == 2
        ):
            return False
        rows, columns = first.shape
        if rows < FEWEST_ROWS or not columns or not second.numel():
            return False
    return True


def _save_product(ctx: Any, inputs: Any, output: Tensor) -> None:
    """Save each operand for the other's gradient."""
    X1, W1, X2, W2 = inputs
    dX1, dW1, dX2, dW2, *_ = ctx.needs_input_grad
    ctx.relu = relu_of(X1) if X2 is None else None
    ctx.save_for_backward(
        X1 if dW1 else None, W1 if dX1 else None, X2 if dW2 else None, W2 if dX2 else None
    )


def _product_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    X1, W1, X2, W2 = ctx.saved_tensors
    dW1: Tensor | None
    dW2: Tensor | None
    if X1 is not None and X2 is not None:
        dW1, dW2 = two_gradients(G, X1, G, X2)
    else:
        dW1, dW2 = (None if X is None else transposed_times(G, X) for X in (X1, X2))
    dX1 = None if W1 is None else gradient_of(X1, ctx.relu, G, W1.T, None, None)
    return dX1, dW1, None if W2 is None else times_transposed(G, W2.T), dW2


def _tangent_of_product(arguments: Any, tangents: Any) -> Tensor:
    (X1, W1, X2, W2), (dX1, dW1, dX2, dW2) = arguments, tangents
    pairs = (dX1, W1), (X1, dW1), (dX2, W2), (X2, dW2)
    terms = [times_transposed(X, W) for X, W in pairs if X is not None and W is not None]
    return sum(terms[1:], terms[0])


def _gradient_backward(ctx: Any, C: Tensor) -> tuple[Tensor | None, Tensor | None]:
    G, X = ctx.saved_tensors
    dG = None if X is None else times_transposed(X, C)
    return dG, None if G is None else times_transposed(G, C.T)


def _rows_of(X: Tensor, W: Tensor, *others: Tensor | None) -> Tensor:
    return new_rows(X.shape[0], X, W.shape[0])


def _multiply(X1: Tensor, W1: Tensor, X2: Tensor | None, W2: Tensor | None) -> Tensor:
    Z = _rows_of(X1, W1)
    kernels_for(X1).gemm_product(X1, W1, Z, X2, W2, None, None, None)
    return Z


def _multiply_twice(X: Tensor, W1: Tensor, W2: Tensor) -> tuple[Tensor, Tensor]:
    Z1, Z2 = _rows_of(X, W1), _rows_of(X, W2)
    kernels_for(X).gemm_product(X, W1, Z1, None, W2, Z2, None, None)
    return Z1, Z2


def _new_passed(
    G1: Tensor, W1: Tensor, G2: Tensor | None, W2: Tensor | None, Y: Tensor
) -> tuple[Tensor, Tensor]:
    return _rows_of(G1, W1), G1.new_empty(W1.shape[0])


def _multiply_through(
    G1: Tensor, W1: Tensor, G2: Tensor | None, W2: Tensor | None, Y: Tensor
) -> tuple[Tensor, Tensor]:
    Z, sums = _new_passed(G1, W1, G2, W2, Y)
    kernels_for(G1).gemm_product(G1, W1, Z, G2, W2, None, Y, sums)
    return Z, sums


def _new_gradient(G: Tensor, X: Tensor) -> Tensor:
    return G.new_empty(G.shape[1], X.shape[1])


def _sum_up(G: Tensor, X: Tensor) -> Tensor:
    dW = _new_gradient(G, X)
    kernels_for(G).gemm_gradient(G, X, dW, None, None, None)
    return dW


def _new_gradients(
    G1: Tensor, X1: Tensor, G2: Tensor | None, X2: Tensor | None
) -> tuple[Tensor, Tensor]:
    second = _new_gradient(G1 if G2 is None else G2, X1 if X2 is None else X2)
    return _new_gradient(G1, X1), second


def _sum_up_twice(
    G1: Tensor, X1: Tensor, G2: Tensor | None, X2: Tensor | None
) -> tuple[Tensor, Tensor]:
    dW1, dW2 = _new_gradients(G1, X1, G2, X2)
    kernels_for(G1).gemm_gradient(G1, X1, dW1, G2, X2, dW2)
    return dW1, dW2


_product = Operator(
    "gemm_product(Tensor X1, Tensor W1, Tensor? X2, Tensor? W2) -> Tensor",
    new=_rows_of,
    compute=_multiply,
    save=_save_product,
    backward=_product_backward,
    tangent=_tangent_of_product,
)
_gradient = Operator(
    "gemm_gradient(Tensor G, Tensor X) -> Tensor",
    new=_new_gradient,
    compute=_sum_up,
    save=bfloat16.save_pair,
    backward=_gradient_backward,
)
_two_products = unrecorded(
    define(
        "gemm_products(Tensor X, Tensor W1, Tensor W2) -> (Tensor, Tensor)",
        new=lambda X, W1, W2: (_rows_of(X, W1), _rows_of(X, W2)),
        compute=_multiply_twice,
    )
)
_product_through_relu = unrecorded(
    define(
        "gemm_passed(Tensor G1, Tensor W1, Tensor? G2, Tensor? W2, Tensor Y) -> (Tensor, Tensor)",
        new=_new_passed,
        compute=_multiply_through,
    )
)
_two_gradients = unrecorded(
    define(
        "gemm_gradients(Tensor G1, Tensor X1, Tensor? G2, Tensor? X2) -> (Tensor, Tensor)",
        new=_new_gradients,
        compute=_sum_up_twice,
    )
)
