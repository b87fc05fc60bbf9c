"""Products of rows of two dense matrices where a sparse one has nonzeros (SDDMM)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_block, check_dense, check_is
from spgnn.kernels.library import (
    Operator,
    address,
    by_types,
    define,
    dense,
    on_cuda,
    only_batched,
    operators,
    threads,
    unit_stride,
    with_batch,
)
from spgnn.kernels.spmm import other_side
from spgnn.pattern import Pattern, described
from spgnn.sparse import CSR, SUM_DTYPE

_KERNELS = by_types("sddmm")


def sddmm(A: Pattern | CSR, G: Tensor, X: Tensor) -> Tensor:
    """``row_scale[i] · col_scale[j] · <G[i], X[j]>`` for every nonzero of A, in row i and column j.

    The gradient of ``spmm(A, X)`` in the values of A, whose own values play no part. Differentiable
    at every order in ``G`` and ``X``. Bits do not depend on the number of threads.

    Parameters
    ----------
    A : Pattern or CSR [rows, cols]
        A pattern has no scalings.
    G : Tensor [rows, f] or [rows, heads, f], float32, float64 or bfloat16
    X : Tensor [cols, f] or [cols, heads, f], dtype of G
        Any strides.

    Returns
    -------
    Tensor [nnz] or [nnz, heads]
        In the dtype of sums: float32, float64 and float32. Fit to be the values of A.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_is("A", A, CSR, Pattern)
    check_dense("G", G, (2, 3))
    check_block(A, X)
    if G.shape != (A.shape[0], *X.shape[1:]) or G.dtype != X.dtype or G.device != X.device:
        wanted = [A.shape[0], *X.shape[1:]]
        raise InputError(
            f"G must be {X.dtype} {wanted} on {X.device} as X is, got {described(G)} on {G.device}"
        )
    pattern = A if isinstance(A, Pattern) else A.pattern
    scales = (None, None) if isinstance(A, Pattern) else (A.row_scale, A.col_scale)
    side = other_side(pattern, X, ordered=True)
    return _multiply(pattern.indptr, pattern.indices, *side, *scales, G, X)


def _empty(indptr: Tensor, indices: Tensor, *others: Any) -> Tensor:
    X: Tensor = others[-1]
    return X.new_empty((indices.shape[0], *X.shape[1:-1]), dtype=SUM_DTYPE[X.dtype])


def _one_side(kernel: Any) -> Any:
    """A kernel that has no use for the transpose."""

    def products(indptr: Tensor, indices: Tensor, *others: Any) -> None:
        kernel(indptr, indices, *others[3:])

    return products


def _on_cpu(*arguments: Any) -> None:
    indptr, indices, row_scale, col_scale, G, X, out = arguments
    G, X, row_scale, col_scale = unit_stride(G), unit_stride(X), dense(row_scale), dense(col_scale)
    heads, *head_strides = (X.shape[1], X.stride(1), G.stride(1)) if X.dim() == 3 else (1, 0, 0)
    _KERNELS[X.dtype, indices.dtype](
        indptr.data_ptr(),
        indices.data_ptr(),
        G.shape[0],
        address(row_scale),
        address(col_scale),
        G.data_ptr(),
        G.stride(0),
        X.data_ptr(),
        X.stride(0),
        X.shape[-1],
        out.data_ptr(),
        heads,
        *head_strides,
        threads(indices.shape[0] * heads * X.shape[-1]),
    )


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    *block, G, X = inputs
    needs_G, needs_X = ctx.needs_input_grad[7:9]
    ctx.save_for_backward(*block, G if needs_X else None, X if needs_G else None)


def _backward(ctx: Any, products: Tensor) -> tuple[Tensor | None, ...]:
    *sides, row_scale, col_scale, G, X = ctx.saved_tensors
    block = *sides, products, None, row_scale, col_scale
    dG = operators["spmm"](*block, X, False) if ctx.needs_input_grad[7] else None
    dX = operators["spmm"](*block, G, True) if ctx.needs_input_grad[8] else None
    return *[None] * 7, dG, dX


def _batched(info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:
    """Batches are heads."""
    only_batched("sddmm", in_dims, 7, 8)
    *block, G, X = arguments
    G, X = with_batch(G, in_dims[7], info, -2), with_batch(X, in_dims[8], info, -2)
    products = _multiply(*block, G.flatten(1, -2), X.flatten(1, -2))
    return products.unflatten(1, X.shape[1:-1]), X.dim() - 2


_multiply = Operator(
    define(
        "sddmm(Tensor indptr, Tensor indices, Tensor? t_indptr, Tensor? t_indices, Tensor? order, "
        "Tensor? row_scale, Tensor? col_scale, Tensor G, Tensor X) -> Tensor",
        cpu=_one_side(_on_cpu),
        cuda=_one_side(on_cuda("sddmm")),
        empty=_empty,
    ),
    save=_save,
    backward=_backward,
    batched=_batched,
)
