"""Dense products of many rows with a matrix of few, where BLAS takes longer.

Both operators are each other's gradients, so they give derivatives of every order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn import _native
from spgnn.kernels.library import Operator, traced
from spgnn.kernels.recycling import new_rows

# Fewest rows of X that are worth it.
FEWEST_ROWS = 512


def most_columns(instruction_set: str, *, intel: bool, mkl: bool) -> tuple[int, int]:
    """Most rows of W for which the kernels are faster than BLAS: of the product, of its gradient.

    MKL leaves AVX-512 alone where a processor is not Intel's; elsewhere it is as fast as the
    machine once its packing is shared among many columns.
    """
    if mkl and not intel and instruction_set == "avx512":
        return 1024, 1024
    return 32, 16


_MOST_COLUMNS, _MOST_OF_GRADIENT = most_columns(
    _native.instruction_sets()[0],
    intel=_native.is_intel(),
    mkl=torch.backends.mkl.is_available(),
)


def times_transposed(X: Tensor, W: Tensor) -> Tensor:
    """``X Wᵀ`` [n, f_out]; differentiable at every order.

    Float32 on a CPU has a kernel of its own where that is faster (`most_columns`); everything else
    is torch's product.

    Parameters
    ----------
    X : Tensor [n, f_in]
    W : Tensor [f_out, f_in]
    """
    if not has_gemm(X, W):
        return X @ W.T
    return _product(X, W)


def add_times_transposed_(Z: Tensor, X: Tensor, W: Tensor) -> Tensor:
    """``Z + X Wᵀ``, written over Z [n, f_out], which nobody may need."""
    if not has_gemm(X, W):
        return Z.addmm_(X, W.T)
    return Z.add_(times_transposed(X, W))


def transposed_times(G: Tensor, X: Tensor) -> Tensor:
    """``Gᵀ X`` [f_out, f_in] of G [n, f_out] and X [n, f_in]; as `times_transposed`."""
    if not _has_kernel(G, X) or G.shape[1] > _MOST_OF_GRADIENT:
        return G.T @ X
    return _gradient(G, X)


def has_gemm(X: Tensor, W: Tensor) -> bool:
    """True if `times_transposed` has a kernel of its own for these."""
    return _has_kernel(X, W) and W.shape[0] <= _MOST_COLUMNS


def _has_kernel(first: Tensor, second: Tensor) -> bool:
    """True for operands that a kernel takes, if neither autocast nor a tracer is at work."""
    return (
        first.dtype == second.dtype == torch.float32
        and first.device.type == second.device.type == "cpu"
        and first.dim() == second.dim() == 2
        and first.shape[0] >= FEWEST_ROWS
        and first.shape[1] > 0
        and second.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not traced()
    )


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    first, second = inputs
    ctx.save_for_backward(
        first if ctx.needs_input_grad[1] else None, second if ctx.needs_input_grad[0] else None
    )


def _product_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None]:
    X, W = ctx.saved_tensors
    return (
        None if W is None else times_transposed(G, W.T),
        None if X is None else transposed_times(G, X),
    )


def _gradient_backward(ctx: Any, C: Tensor) -> tuple[Tensor | None, Tensor | None]:
    G, X = ctx.saved_tensors
    return (
        None if X is None else times_transposed(X, C),
        None if G is None else times_transposed(G, C.T),
    )


_product = Operator(
    "gemm_product(Tensor X, Tensor W) -> Tensor",
    new=lambda X, W: new_rows(X.shape[0], X.new_empty(0, W.shape[0])),
    save=_save,
    backward=_product_backward,
)
_gradient = Operator(
    "gemm_gradient(Tensor G, Tensor X) -> Tensor",
    new=lambda G, X: G.new_empty(G.shape[1], X.shape[1]),
    save=_save,
    backward=_gradient_backward,
)
