"""Y = A X: a CSR block times a dense matrix.

The operator knows both sides of the block's pattern, so that it can also multiply by the transpose:
each of the two products is the other's gradient in X, and `sddmm` is that in values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice
from spgnn.kernels.checks import check_block, check_is, check_out
from spgnn.kernels.extremes import extreme
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
    traced,
    transformed,
    unit_stride,
    watched,
    with_batch,
)
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import CSR, SUM_DTYPE

# X of at most this many columns is scaled as a whole, if its rows are used so often on average.
SCALED_COLUMNS = 16
LEAST_USES = 12
REDUCTIONS = ("sum", "mean", "max", "min")

_KERNELS = by_types("spmm")


def spmm(
    A: CSR,
    X: Tensor,
    out: Tensor | None = None,
    accumulate: bool = False,
    reduce: str = "sum",
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
    reduce : "sum", "mean", "max" or "min"
        What is made of the products in a row. The mean is over its nonzeros. "max" and "min" take a
        matrix without values and scalings; of equal elements the first nonzero's gets the gradient.
        Rows without nonzeros give 0. All but "sum" make their own result.

    Returns
    -------
    Tensor [rows, f] or [rows, heads, f]
        ``out`` if given.

    Raises
    ------
    InputError
        If types, shapes, dtypes or devices do not fit.
    """
    check_is("A", A, CSR)
    check_block(A, X)
    if reduce != "sum":
        return _reduced(A, X, out, accumulate, reduce)
    pattern, values = A.pattern, A.values
    if X.dim() == 3 and (values is None or values.dim() == 1):
        return _shared_by_heads(A, X, out, accumulate)
    if values is not None and values.dim() == 2 and X.shape[1:-1] != values.shape[1:]:
        wanted = f"[{X.shape[0]}, {values.shape[1]}, f]"
        raise InputError(f"X must be {wanted} for values {list(values.shape)}, got {list(X.shape)}")
    if out is not None:
        check_out("out", out, pattern.shape[0], X, values)
    elif accumulate:
        raise InputError("accumulate=True needs out, the tensor to add to")
    elif watched(X, values):
        constant = values is None or not (values.requires_grad or traced())
        side = other_side(pattern, X, ordered=not constant)
        kept = constant and values is not None and side[0] is not None
        numbers = values, A.T.values if kept else None, A.row_scale, A.col_scale
        return _multiply(pattern.indptr, pattern.indices, *side, *numbers, X, False)
    else:
        out = new_rows(pattern.shape[0], X)
    into = _into if torch.compiler.is_compiling() else _into._op
    block = pattern.indptr, pattern.indices, values, A.row_scale, A.col_scale
    into(*block, X, out, bool(accumulate))
    return out


def _reduced(A: CSR, X: Tensor, out: Tensor | None, accumulate: bool, reduce: str) -> Tensor:
    check_choice("reduce", reduce, REDUCTIONS)
    if out is not None or accumulate:
        raise InputError(f'reduce="{reduce}" makes its own result; it takes no out')
    if reduce != "mean":
        return extreme(A, X, largest=reduce == "max")
    share = A.pattern.row_lengths.clamp_min(1).to(SUM_DTYPE[X.dtype]).reciprocal()
    scale = share if A.row_scale is None else A.row_scale * share
    Y: Tensor = spmm(CSR(A.pattern, A.values, scale, A.col_scale), X)
    return Y


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


def other_side(pattern: Pattern, X: Tensor, ordered: bool) -> tuple[Tensor | None, ...]:
    """What the gradient in X takes of the transpose: its indptr, indices and order of values.

    Nothing where no such gradient can be asked for.
    """
    if not (X.requires_grad or transformed()):
        return None, None, None
    if traced():
        make_other_side(pattern)
    T = pattern.T
    return T.indptr, T.indices, pattern.order if ordered else None


def make_other_side(pattern: Pattern) -> None:
    """Make it now: compilers keep what this returns, and look at nothing inside."""
    _ = pattern.T, pattern.order


# What torch.compiler.assume_constant_result does, without importing the compiler: that takes more
# than a second, in every process.
make_other_side._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _on_cpu(*arguments: Any) -> None:
    indptr, indices, values, row_scale, col_scale, X, out, accumulate = arguments
    X, rows, columns = unit_stride(X), out.shape[0], out.shape[-1]
    values, row_scale, col_scale = dense(values), dense(row_scale), dense(col_scale)
    if col_scale is not None and _worth_scaling(X, indices, col_scale):
        spread = col_scale.view(-1, *[1] * (X.dim() - 1))
        X, col_scale = torch.mul(X, spread, out=new_rows(X.shape[0], X)), None
    heads, x_head, y_head = (X.shape[1], X.stride(1), out.stride(1)) if X.dim() == 3 else (1, 0, 0)
    _KERNELS[X.dtype, indices.dtype](
        indptr.data_ptr(),
        indices.data_ptr(),
        rows,
        address(values),
        heads,
        address(row_scale),
        address(col_scale),
        X.data_ptr(),
        X.shape[0],
        X.stride(0),
        out.data_ptr(),
        out.stride(0),
        columns,
        accumulate,
        heads,
        x_head,
        y_head,
        threads((indices.shape[0] + rows) * heads * columns),
    )


def _worth_scaling(X: Tensor, indices: Tensor, scale: Tensor) -> bool:
    """Whether scaling all rows of X costs less than looking up a factor for every nonzero."""
    narrow = X.shape[-1] <= SCALED_COLUMNS and X.dtype == scale.dtype
    return narrow and indices.shape[0] >= LEAST_USES * X.shape[0]


def _empty(indptr: Tensor, indices: Tensor, *others: Any) -> Tensor:
    t_indptr, *_, X, adjoint = others
    return new_rows((t_indptr if adjoint else indptr).shape[0] - 1, X)


def _either(multiply: Any) -> Any:
    """A kernel for the product by A or, as its adjoint, by Aᵀ."""

    def product(*arguments: Any) -> None:
        *here, t_indptr, t_indices, order, values, t_values = arguments[:7]
        row_scale, col_scale, X, adjoint, out = arguments[7:]
        if not adjoint:
            multiply(*here, values, row_scale, col_scale, X, out, False)
            return
        if t_values is None and values is not None:
            t_values = values.index_select(0, order)
        multiply(t_indptr, t_indices, t_values, col_scale, row_scale, X, out, False)

    return product


def _save(ctx: Any, inputs: Any, output: Tensor) -> None:
    *block, X, ctx.adjoint = inputs
    ctx.save_for_backward(*block, X if ctx.needs_input_grad[5] else None)


def _backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    *block, X = ctx.saved_tensors
    *sides, _, _, row_scale, col_scale = block
    dX = dvalues = None
    if ctx.needs_input_grad[9]:
        dX = _multiply(*block, G, not ctx.adjoint)
    if ctx.needs_input_grad[5]:
        by_row, by_column = (X, G) if ctx.adjoint else (G, X)
        dvalues = operators["sddmm"](*sides, row_scale, col_scale, by_row, by_column)
    return *[None] * 5, dvalues, *[None] * 3, dX, None


def _batched(info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:
    """Batches are more columns or, where values have them, more heads."""
    only_batched("spmm", in_dims, 5, 9)
    *sides, values, t_values, row_scale, col_scale, X, adjoint = arguments
    if in_dims[5] is None:
        X = with_batch(X, in_dims[9], info, -1)
        block = *sides, values, t_values, row_scale, col_scale
        Y = _multiply(*block, X.flatten(-2), adjoint)
        return Y.unflatten(-1, X.shape[-2:]), X.dim() - 1
    values, X = values.movedim(in_dims[5], -1), with_batch(X, in_dims[9], info, -2)
    block = *sides, values.flatten(1), None, row_scale, col_scale
    Y = _multiply(*block, X.flatten(1, -2), adjoint)
    return Y.unflatten(1, X.shape[1:-1]), X.dim() - 2


_into = define(
    "spmm.out(Tensor indptr, Tensor indices, Tensor? values, Tensor? row_scale, Tensor? col_scale, "
    "Tensor X, Tensor(a!) out, bool accumulate) -> ()",
    cpu=_on_cpu,
    cuda=on_cuda("spmm"),
)
_multiply = Operator(
    define(
        "spmm(Tensor indptr, Tensor indices, Tensor? t_indptr, Tensor? t_indices, Tensor? order, "
        "Tensor? values, Tensor? t_values, Tensor? row_scale, Tensor? col_scale, Tensor X, "
        "bool adjoint) -> Tensor",
        cpu=_either(_on_cpu),
        cuda=_either(on_cuda("spmm")),
        empty=_empty,
    ),
    save=_save,
    backward=_backward,
    batched=_batched,
)
