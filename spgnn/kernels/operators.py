"""The five operations. Arguments are checked here, once; what lies below trusts them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from spgnn.errors import InputError
from spgnn.kernels import registration
from spgnn.kernels.ordering import is_reordered, stored_arrays
from spgnn.kernels.registration import SUM_DTYPE
from spgnn.sparse import CSR


def spmm(A: CSR, X: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """Multiply a CSR block with a dense matrix: ``Y = A X``, or ``Y += A X``.

    The bits of the result do not depend on the number of threads (``torch.get_num_threads()``).
    Differentiable in ``X`` and in the values of ``A`` where ``out`` is not given; the gradients are
    ``Aᵀ G`` and, for nonzero e in row i and column j, ``row_scale[i] col_scale[j] <G[i], X[j]>``.

    Parameters
    ----------
    A : CSR [rows, cols]
        Values and scalings, if any, have the dtype of the sum.
    X : Tensor [cols, f], float32, float64 or bfloat16
        Sums are taken in float32, float64 and float32. Any row stride.
    out : Tensor [rows, f], dtype of X, unit column stride, optional
        Where to write; must not overlap X.
    accumulate : bool
        Add to ``out`` instead of overwriting it.

    Returns
    -------
    Tensor [rows, f]
        ``out`` if given.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit.
    """
    rows, cols = A.shape
    _check_operands(A, X, cols)
    if out is not None:
        _check_out("out", out, (rows, X.shape[1]), X, A)
        registration.spmm_out(*_operands(A, None), _unit_stride(X), out, accumulate)
        return out
    _forbid_accumulate(accumulate)
    transpose = A.T if torch.is_grad_enabled() and X.requires_grad else None
    Y: Tensor = registration.spmm(*_operands(A, transpose), _unit_stride(X))
    return Y


def spmm_transposed(
    A: CSR, X: Tensor, out: Tensor | None = None, accumulate: bool = False
) -> Tensor:
    """Multiply the transpose of a CSR block with a dense matrix: ``Y = Aᵀ X``, or ``Y += Aᵀ X``.

    Uses the stored transpose ``A.T``, which the first call makes (see docs/kernels.md for the
    measurement behind this choice). Otherwise as `spmm`.

    Parameters
    ----------
    A : CSR [rows, cols]
    X : Tensor [rows, f]
    out : Tensor [cols, f], optional
    accumulate : bool

    Returns
    -------
    Tensor [cols, f]

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit.
    """
    rows, cols = A.shape
    _check_operands(A, X, rows)
    if out is not None:
        _check_out("out", out, (cols, X.shape[1]), X, A)
        registration.spmm_transposed_out(*_operands(A, A.T), _unit_stride(X), out, accumulate)
        return out
    _forbid_accumulate(accumulate)
    Y: Tensor = registration.spmm_transposed(*_operands(A, A.T), _unit_stride(X))
    return Y


def gather_rows(
    X: Tensor, rows: Tensor, scale: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Copy listed rows: ``Y[i] = scale[i] · X[rows[i]]``.

    Differentiable in ``X`` where ``out`` is not given; the gradient is a scatter-add.

    Parameters
    ----------
    X : Tensor [n, f], float32, float64 or bfloat16
    rows : Tensor, int64 [m]
        Each in [0, n); may repeat.
    scale : Tensor [m], dtype of the sum, optional
    out : Tensor [m, f], dtype of X, optional
        Where to write; must not overlap X.

    Returns
    -------
    Tensor [m, f]

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit, or a row is out of range.
    """
    _check_dense("X", X)
    _check_list("rows", rows, X)
    _check_scale(scale, rows, X)
    X = _unit_stride(X)
    if out is not None:
        _check_out("out", out, (rows.shape[0], X.shape[1]), X)
        registration.gather_rows_out(X, rows.contiguous(), scale, out)
        return out
    Y: Tensor = registration.gather_rows(X, rows.contiguous(), scale)
    return Y


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None = None) -> Tensor:
    """Add rows to listed rows, in place: ``Y[rows[i]] += scale[i] · X[i]``, in the order of i.

    Rows may repeat; the bits of the result do not depend on the number of threads. Not
    differentiable: it is the gradient of `gather_rows`.

    Parameters
    ----------
    Y : Tensor [n, f], float32, float64 or bfloat16, unit column stride
        Each addition is rounded to its dtype.
    rows : Tensor, int64 [m]
        Each in [0, n).
    X : Tensor [m, f], dtype of Y
        Must not overlap Y.
    scale : Tensor [m], dtype of the sum, optional

    Returns
    -------
    Tensor [n, f]
        ``Y`` itself.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit, or a row is out of range.
    """
    _check_dense("X", X)
    _check_list("rows", rows, X)
    _check_scale(scale, rows, X)
    if rows.shape[0] != X.shape[0]:
        raise InputError(f"rows has {rows.shape[0]} entries for {X.shape[0]} rows of X")
    _check_out("Y", Y, (*Y.shape[:1], X.shape[1]), X)
    registration.scatter_add_rows(Y, rows.contiguous(), _unit_stride(X), scale)
    return Y


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    """Zero elements at random and scale the rest: ``X / (1 - p)`` where kept, 0 elsewhere.

    Whether element (i, c) is kept is a pure function of ``(key, vertex_ids[i], c)``, the same on
    every device, rank and number of threads; docs/kernels.md defines it. Differentiable in ``X``:
    the gradient passes the same mask, made again.

    Parameters
    ----------
    X : Tensor [n, f], float32, float64 or bfloat16
    vertex_ids : Tensor, int64 [n]
        Global number of the vertex in each row.
    key : int
        64 bits (signed or unsigned) made from seed, epoch and layer.
    p : float
        Probability of being dropped, in [0, 1); taken to a multiple of 2⁻³².

    Returns
    -------
    Tensor [n, f]

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit, or p is outside [0, 1).
    """
    _check_dense("X", X)
    _check_list("vertex_ids", vertex_ids, X)
    if vertex_ids.shape[0] != X.shape[0]:
        raise InputError(f"vertex_ids has {vertex_ids.shape[0]} entries for {X.shape[0]} rows of X")
    if not 0.0 <= p < 1.0:
        raise InputError(f"p must be in [0, 1), got {p}")
    signed_key = (key + 2**63) % 2**64 - 2**63
    Y: Tensor = registration.dropout_rows(_unit_stride(X), vertex_ids.contiguous(), signed_key, p)
    return Y


def _operands(A: CSR, transpose: CSR | None) -> tuple[Tensor | None, ...]:
    """A block and, if given, its transpose as the arrays that the operators take."""
    return (*stored_arrays(A), *stored_arrays(transpose), A.row_scale, A.col_scale)


def _unit_stride(X: Tensor) -> Tensor:
    return X if X.stride(1) == 1 or X.shape[1] == 1 else X.contiguous()


def _check_operands(A: CSR, X: Tensor, length: int) -> None:
    _check_dense("X", X)
    if X.shape[0] != length:
        raise InputError(f"X must be [{length}, f] for a block {list(A.shape)}, got {_shape(X)}")
    if A.device != X.device:
        raise InputError(f"the block is on {A.device}, X on {X.device}")
    wanted = SUM_DTYPE[X.dtype]
    if A.values is not None and A.values.requires_grad and is_reordered(A):
        raise InputError("a reordered block keeps a copy of its values; they cannot be learnt")
    for name in ("values", "row_scale", "col_scale"):
        array = getattr(A, name)
        scale = name != "values"
        if scale and array is not None and array.requires_grad and torch.is_grad_enabled():
            raise InputError(f"{name} of a block is a constant; it cannot require a gradient")
        if array is not None and array.dtype != wanted:
            raise InputError(
                f"{name} of the block must be {wanted} for X of {X.dtype}, got {array.dtype}"
            )


def _check_dense(name: str, X: Tensor) -> None:
    if X.dim() != 2 or X.dtype not in SUM_DTYPE:
        raise InputError(
            f"{name} must be float32, float64 or bfloat16 [rows, f], got {X.dtype} {_shape(X)}"
        )


def _check_list(name: str, rows: Tensor, X: Tensor) -> None:
    if rows.dim() != 1 or rows.dtype != torch.int64:
        raise InputError(f"{name} must be int64 [m], got {rows.dtype} {_shape(rows)}")
    if rows.device != X.device:
        raise InputError(f"{name} is on {rows.device}, X on {X.device}")


def _check_scale(scale: Tensor | None, rows: Tensor, X: Tensor) -> None:
    if scale is None:
        return
    wanted = SUM_DTYPE[X.dtype]
    if scale.shape != rows.shape or scale.dtype != wanted or scale.device != X.device:
        raise InputError(
            f"scale must be {wanted} {_shape(rows)} on {X.device}, "
            f"got {scale.dtype} {_shape(scale)} on {scale.device}"
        )


def _check_out(
    name: str, out: Tensor, shape: tuple[int, ...], X: Tensor, A: CSR | None = None
) -> None:
    if out.shape != shape or out.dtype != X.dtype or out.device != X.device:
        raise InputError(
            f"{name} must be {X.dtype} {list(shape)} on {X.device}, "
            f"got {out.dtype} {_shape(out)} on {out.device}"
        )
    if out.shape[1] > 1 and out.stride(1) != 1:
        raise InputError(f"{name} must have unit column stride, got strides {out.stride()}")
    if _overlap(out, X):
        raise InputError(f"{name} must not overlap X in memory")
    learns = A is not None and A.values is not None and A.values.requires_grad
    if torch.is_grad_enabled() and (X.requires_grad or out.requires_grad or learns):
        raise InputError(f"writing into {name} is not differentiable; call under torch.no_grad()")


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether some element of a matrix is also one of another; exact for equal row strides."""
    if a.numel() == 0 or b.numel() == 0 or isinstance(a, FakeTensor):
        return False
    (a_begin, a_end), (b_begin, b_end) = _addresses(a), _addresses(b)
    if a_end <= b_begin or b_end <= a_begin:
        return False
    if a.stride(0) != b.stride(0):
        return True
    # Columns of one wide matrix: their ranges of addresses interleave.
    stride = a.stride(0) * a.element_size()
    offset = (b_begin - a_begin) % stride if stride else 0
    widths = a.shape[1] * a.element_size(), b.shape[1] * b.element_size()
    return offset < widths[0] or offset + widths[1] > stride


def _addresses(X: Tensor) -> tuple[int, int]:
    """First byte and one past the last."""
    (rows, columns), (row_stride, column_stride) = X.shape, X.stride()
    begin = X.data_ptr()
    last = (rows - 1) * row_stride + (columns - 1) * column_stride
    return begin, begin + (last + 1) * X.element_size()


def _forbid_accumulate(accumulate: bool) -> None:
    if accumulate:
        raise InputError("accumulate=True needs out, the tensor to add to")


def _shape(X: Tensor) -> list[int]:
    return list(X.shape)
