"""Products with a sparse matrix: Y = A X, and its gradient in the values of A (SDDMM).

The operators know both sides of the block's pattern, so that they can also multiply by the
transpose: each of the products by A and Aᵀ is the other's gradient in X, and `sddmm` is that in
values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn._native import spmm_if_plain
from spgnn.errors import InputError, check_choice
from spgnn.kernels.checks import check_array, check_block, check_dense, check_is, check_out
from spgnn.kernels.library import Operator, Writer, kernels_for, with_batch
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.registry import REDUCTIONS
from spgnn.sparse import CSR, SUM_DTYPE
from spgnn.torch_internals import operators_seen, traced, transformed, watched

# X of at most this many columns is scaled as a whole, if its rows are used so often on average.
SCALED_COLUMNS = 16
LEAST_USES = 12


def spmm(
    A: CSR, X: Tensor, out: Tensor | None = None, accumulate: bool = False, reduce: str = "sum"
) -> Tensor:
    """Multiply a CSR block with a dense matrix: ``Y = A X``, or ``Y += A X``.

    Multiply by the transpose with ``spmm(A.T, X)``. The bits of the result do not depend on the
    number of threads (``torch.get_num_threads()``). Differentiable at every order in ``X`` and in
    the values of ``A`` where ``out`` is not given: the gradients are ``Aᵀ G`` and `sddmm`. Values
    that are changed in place between a product and its backward are an error of torch's.

    Parameters
    ----------
    A : CSR [rows, cols]
        Values and scalings, if any, have the dtype of the sum. Values [nnz, heads] make one matrix
        for each head.
    X : Tensor [cols, f] or [cols, heads, f], float32, float64 or bfloat16
        Sums are taken in float32, float64 and float32. Any strides.
    out : Tensor of the result's shape, dtype of X, unit column stride, optional
        Where to write; must not overlap X.
    accumulate : bool
        Add to ``out`` instead of overwriting it.
    reduce : "sum", "mean", "max", "min" or "std"
        Reduction of the products in a row. The mean is over its nonzeros. "max", "min" and "std"
        take a matrix without values and scalings; of equal elements the first nonzero's gets the
        gradient. Rows without nonzeros give 0. All but "sum" allocate their own result.

    Returns
    -------
    Tensor [rows, f] or [rows, heads, f]
        ``out`` if given.
    """
    if type(A) is not CSR:
        check_is("A", A, CSR)
    if reduce == "sum" and (plain := _plain_product(A, X, out, bool(accumulate))) is not None:
        return plain
    check_block(A, X)
    if reduce != "sum":
        if reduce not in REDUCTIONS:
            check_choice("reduce", reduce, ("sum", *REDUCTIONS))
        if out is not None or accumulate:
            raise InputError(f'reduce="{reduce}" makes its own result; it takes no out')
        return REDUCTIONS[reduce](A, X)  # type: ignore[no-any-return]
    pattern, values = A.pattern, A.values
    if X.dim() == 3 and (values is None or values.dim() == 1):
        return _shared_by_heads(A, X, out, accumulate)
    if values is not None and values.dim() == 2 and X.shape[1:-1] != values.shape[1:]:
        shape = f"[{X.shape[0]}, {values.shape[1]}, f]"
        raise InputError(f"X must be {shape} for values {list(values.shape)}, got {list(X.shape)}")
    if out is not None:
        check_out("out", out, pattern.shape[0], X, values)
    elif accumulate:
        raise InputError("accumulate=True needs out, the tensor to add to")
    elif watched(X, values):
        constant = values is None or not (values.requires_grad or traced())
        side = other_side(pattern, X, ordered=not constant)
        transposed = constant and values is not None and side[0] is not None
        numbers = values, A.T.values if transposed else None, A.row_scale, A.col_scale
        return spmm_operator(pattern.indptr, pattern.indices, *side, *numbers, X, False)
    else:
        out = new_rows(pattern.shape[0], X)
    block = pattern.indptr, pattern.indices, values, A.row_scale, A.col_scale
    seen = torch.compiler.is_compiling() or operators_seen(X)
    (_spmm_into if seen else _multiply_into)(*block, X, out, bool(accumulate))
    return out


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
    """
    check_is("A", A, CSR, Pattern)
    check_dense("G", G, (2, 3))
    check_block(A, X)
    check_array("G", G, (A.shape[0], *X.shape[1:]), X, X.dtype)
    pattern = A if isinstance(A, Pattern) else A.pattern
    scales = (None, None) if isinstance(A, Pattern) else (A.row_scale, A.col_scale)
    side = other_side(pattern, X, ordered=True)
    return sddmm_operator(pattern.indptr, pattern.indices, *side, *scales, G, X)


def other_side(pattern: Pattern, X: Tensor, ordered: bool) -> tuple[Tensor | None, ...]:
    """The transpose's indptr, indices, order of values, if a gradient in X may be asked for."""
    if not (X.requires_grad or transformed()):
        return None, None, None
    if traced():
        pattern.make_other_side()
    T = pattern.T
    return T.indptr, T.indices, pattern.order if ordered else None


def _shared_by_heads(A: CSR, X: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """All heads have the same matrix: they are columns."""
    if out is None:
        Y: Tensor = spmm(A, X.flatten(1), None, accumulate).unflatten(1, X.shape[1:])
        return Y
    check_out("out", out, A.shape[0], X, A.values)
    if out.stride(1) != out.shape[2] and out.shape[1] != 1:
        raise InputError(f"out must have neighbouring heads, got strides {out.stride()}")
    spmm(A, X.flatten(1), out.flatten(1), accumulate)
    return out


def _plain_product(A: CSR, X: Tensor, out: Tensor | None, accumulate: bool) -> Tensor | None:
    """The product where nobody watches and all fits, else ``None``: then the long way says why."""
    pattern, values, row_scale, col_scale = A.pattern, A.values, A.row_scale, A.col_scale
    seen = watched(X, out, values, row_scale, col_scale) or operators_seen(X)
    if seen or not getattr(X, "is_cpu", False):  # arrays of others are refused by name
        return None
    if out is None:
        if accumulate or X.dim() != 2:
            return None
        out = new_rows(pattern.shape[0], X)
    scaled = None if col_scale is None else _scaled_rows(pattern.indices, col_scale, X)
    block = pattern.indptr, pattern.indices, values, row_scale, col_scale, pattern.shape[1]
    return out if spmm_if_plain(*block, X, out, accumulate, scaled) else None


def _scaled_rows(indices: Tensor, col_scale: Tensor | None, X: Tensor) -> Tensor | None:
    """Room for a narrow X scaled first: looking up a factor for every nonzero would cost more."""
    if col_scale is None or X.shape[-1] > SCALED_COLUMNS or X.dim() != 2 or not X.is_cpu:
        return None
    scaled = indices.shape[0] >= LEAST_USES * X.shape[0] and col_scale.dtype == X.dtype
    return new_rows(X.shape[0], X) if scaled else None


def _multiply_into(*arguments: Any) -> None:
    """The product of a block into ``out``."""
    _, indices, _, _, col_scale, X, _, _ = arguments
    scaled = _scaled_rows(indices, col_scale, X)
    kernels_for(X).spmm(*arguments, *(() if scaled is None else (scaled,)))


def _multiply(*arguments: Any) -> Tensor:
    """The product by A or, as its adjoint, by Aᵀ."""
    indptr, indices, t_indptr, t_indices, order, values, t_values, *scales, X, adjoint = arguments
    out = _new_product(*arguments)
    if not adjoint:
        _multiply_into(indptr, indices, values, *scales, X, out, False)
        return out
    if t_values is None and values is not None:
        t_values = values.index_select(0, order)
    _multiply_into(t_indptr, t_indices, t_values, *reversed(scales), X, out, False)
    return out


def _new_product(indptr: Tensor, indices: Tensor, t_indptr: Tensor, *others: Any) -> Tensor:
    *_, X, adjoint = others
    return new_rows((t_indptr if adjoint else indptr).shape[0] - 1, X)


def _save_spmm(ctx: Any, inputs: Any, output: Tensor) -> None:
    *block, X, ctx.adjoint = inputs
    ctx.save_for_backward(*block, X if ctx.needs_input_grad[5] else None)


def _spmm_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    *block, X = ctx.saved_tensors
    *sides, _, _, row_scale, col_scale = block
    dX = dvalues = None
    if ctx.needs_input_grad[9]:
        dX = spmm_operator(*block, G, not ctx.adjoint)
    if ctx.needs_input_grad[5]:
        by_row, by_column = (X, G) if ctx.adjoint else (G, X)
        dvalues = sddmm_operator(*sides, row_scale, col_scale, by_row, by_column)
    return *[None] * 5, dvalues, *[None] * 3, dX, None


def _batched_spmm(
    operator: Operator, info: Any, in_dims: Any, *arguments: Any
) -> tuple[Tensor, int]:
    """Batches are more columns or, where values have them, more heads."""
    operator.refuse_batches_but(in_dims, 5, 9)
    *sides, values, t_values, row_scale, col_scale, X, adjoint = arguments
    if in_dims[5] is None:
        X = with_batch(X, in_dims[9], info, -1)
        block = *sides, values, t_values, row_scale, col_scale
        Y = operator(*block, X.flatten(-2), adjoint)
        return Y.unflatten(-1, X.shape[-2:]), X.dim() - 1
    values, X = values.movedim(in_dims[5], -1), with_batch(X, in_dims[9], info, -2)
    block = *sides, values.flatten(1), None, row_scale, col_scale
    Y = operator(*block, X.flatten(1, -2), adjoint)
    return Y.unflatten(1, X.shape[1:-1]), X.dim() - 2


def _products(indptr: Tensor, indices: Tensor, *others: Any) -> Tensor:
    out = _new_products(indptr, indices, *others)
    kernels_for(out).sddmm(indptr, indices, *others[3:], out)
    return out


def _new_products(indptr: Tensor, indices: Tensor, *others: Any) -> Tensor:
    X: Tensor = others[-1]
    return X.new_empty((indices.shape[0], *X.shape[1:-1]), dtype=SUM_DTYPE[X.dtype])


def _save_sddmm(ctx: Any, inputs: Any, output: Tensor) -> None:
    *block, G, X = inputs
    needs_G, needs_X = ctx.needs_input_grad[7:9]
    ctx.save_for_backward(*block, G if needs_X else None, X if needs_G else None)


def _sddmm_backward(ctx: Any, products: Tensor) -> tuple[Tensor | None, ...]:
    *sides, row_scale, col_scale, G, X = ctx.saved_tensors
    block = *sides, products, None, row_scale, col_scale
    dG = spmm_operator(*block, X, False) if ctx.needs_input_grad[7] else None
    dX = spmm_operator(*block, G, True) if ctx.needs_input_grad[8] else None
    return *[None] * 7, dG, dX


def _batched_sddmm(
    operator: Operator, info: Any, in_dims: Any, *arguments: Any
) -> tuple[Tensor, int]:
    """Batches are heads."""
    operator.refuse_batches_but(in_dims, 7, 8)
    *block, G, X = arguments
    G, X = with_batch(G, in_dims[7], info, -2), with_batch(X, in_dims[8], info, -2)
    products = operator(*block, G.flatten(1, -2), X.flatten(1, -2))
    return products.unflatten(1, X.shape[1:-1]), X.dim() - 2


SIDES = "Tensor indptr, Tensor indices, Tensor? t_indptr, Tensor? t_indices, Tensor? order"
_SCALES = "Tensor? row_scale, Tensor? col_scale"

_spmm_into = Writer(
    f"spmm.out(Tensor indptr, Tensor indices, Tensor? values, {_SCALES}, Tensor X, "
    "Tensor(a!) out, bool accumulate) -> ()",
    compute=_multiply_into,
)
spmm_operator = Operator(
    f"spmm({SIDES}, Tensor? values, Tensor? t_values, {_SCALES}, Tensor X, bool adjoint) -> Tensor",
    new=_new_product,
    compute=_multiply,
    save=_save_spmm,
    backward=_spmm_backward,
    batched=_batched_spmm,
)
sddmm_operator = Operator(
    f"sddmm({SIDES}, {_SCALES}, Tensor G, Tensor X) -> Tensor",
    new=_new_products,
    compute=_products,
    save=_save_sddmm,
    backward=_sddmm_backward,
    batched=_batched_sddmm,
)
