"""Checks of arguments that several operations share. What lies below trusts them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.pattern import Pattern, described
from spgnn.sparse import CSR, SUM_DTYPE
from spgnn.torch_internals import is_fake


def check_is(name: str, value: object, *kinds: type) -> None:
    """Refuse an argument of another type."""
    if not isinstance(value, kinds):
        types = " or ".join(
            f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds
        )
        raise InputError(f"{name} must be a {types}, got {type(value).__name__}")


def check_dense(name: str, X: Tensor, dims: tuple[int, ...] = (2,)) -> None:
    """Refuse what is no floating matrix (with heads, where they may be)."""
    check_is(name, X, Tensor)
    if X.dim() not in dims or X.dtype not in SUM_DTYPE:
        heads = " or [rows, heads, f]" if 3 in dims else ""
        raise InputError(
            f"{name} must be float32, float64 or bfloat16 [rows, f]{heads}, got {described(X)}"
        )


def check_block(A: CSR | Pattern, X: Tensor) -> None:
    """Refuse a block that an operand X [rows, f] or [rows, heads, f] does not go with."""
    pattern = A if isinstance(A, Pattern) else A.pattern
    check_dense("X", X, (2, 3))
    if X.shape[0] != pattern.shape[1]:
        raise InputError(
            f"X must be [{pattern.shape[1]}, f] for a block {list(pattern.shape)}, "
            f"got {list(X.shape)}"
        )
    if pattern.device != X.device:
        raise InputError(f"the block is on {pattern.device}, X on {X.device}")
    if isinstance(A, CSR):
        _check_numbers("values", A.values, X)
        _check_numbers("row_scale", A.row_scale, X)
        _check_numbers("col_scale", A.col_scale, X)


def _check_numbers(name: str, array: Tensor | None, X: Tensor) -> None:
    if array is None:
        return
    if array.dtype != SUM_DTYPE[X.dtype]:
        raise InputError(
            f"{name} of the block must be {SUM_DTYPE[X.dtype]} for X of {X.dtype}, "
            f"got {array.dtype}: give X.to({array.dtype}), or take A.to({X.dtype}), or "
            f"graph.to({X.dtype}) and a model of that dtype"
        )
    if name != "values" and array.requires_grad and torch.is_grad_enabled():
        raise InputError(f"{name} of a block is a constant; it cannot require a gradient")


def check_list(name: str, rows: Tensor, X: Tensor, *dtypes: torch.dtype) -> None:
    """Refuse an argument that is no list of rows on the device of X."""
    check_is(name, rows, Tensor)
    if rows.dim() != 1 or rows.dtype not in dtypes:
        types = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise InputError(f"{name} must be {types} [m], got {described(rows)}")
    if rows.device != X.device:
        raise InputError(f"{name} is on {rows.device}, X on {X.device}")


def check_array(
    name: str, array: Tensor, shape: Sequence[int], X: Tensor, *dtypes: torch.dtype
) -> None:
    """Refuse what is not of this shape, of one of these dtypes and on the device of X."""
    check_is(name, array, Tensor)
    if array.shape != tuple(shape) or array.dtype not in dtypes or array.device != X.device:
        raise InputError(
            f"{name} must be {' or '.join(map(str, dtypes))} {list(shape)} on {X.device}, "
            f"got {described(array)} on {array.device}"
        )


def check_out(name: str, out: Tensor, rows: int, X: Tensor, learnt: Tensor | None = None) -> None:
    """Refuse a place for the result that does not fit, overlaps X, or whose past is recorded."""
    check_array(name, out, (rows, *X.shape[1:]), X, X.dtype)
    if out.stride(-1) != 1 and out.shape[-1] > 1:
        raise InputError(f"{name} must have unit column stride, got strides {out.stride()}")
    if torch.is_grad_enabled() and (
        X.requires_grad or out.requires_grad or (learnt is not None and learnt.requires_grad)
    ):
        raise InputError(f"writing into {name} is not differentiable; call under torch.no_grad()")
    if not torch.compiler.is_compiling() and _overlap(out, X):
        raise InputError(f"{name} must not overlap X in memory")


def signed_key(key: object) -> int:
    """A key of 64 bits, signed or unsigned, as operators take it."""
    return (check_integer("key", key, -(2**63), 2**64 - 1) + 2**63) % 2**64 - 2**63


def _overlap(a: Tensor, b: Tensor) -> bool:
    """True if two matrices share an element in memory; exact for equal row strides."""
    if is_fake(a):
        return False
    gap = b.data_ptr() - a.data_ptr()
    first = a if gap > 0 else b
    if (first.is_contiguous() and first.nbytes <= abs(gap)) or not a.numel() or not b.numel():
        return False
    a_begin, a_step, a_width = _rows_of(a)
    b_begin, b_step, b_width = _rows_of(b)
    a_end = a_begin + (a.shape[0] - 1) * a_step + a_width
    b_end = b_begin + (b.shape[0] - 1) * b_step + b_width
    if a_end <= b_begin or b_end <= a_begin:
        return False
    # Columns of one wide matrix: their ranges of addresses interleave.
    offset = (b_begin - a_begin) % a_step if a_step else 0
    return a_step != b_step or offset < a_width or offset + b_width > a_step


def _rows_of(X: Tensor) -> tuple[int, int, int]:
    """First byte, bytes from one row to the next, bytes from a row's first element to its last."""
    size, (step, *steps) = X.element_size(), X.stride()
    width = 1
    for length, stride in zip(X.shape[1:], steps, strict=True):
        width += (length - 1) * stride
    return X.data_ptr(), step * size, width * size
