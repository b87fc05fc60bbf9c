"""Rows in few bits: packed before they are sent, unpacked where they arrive.

Not differentiable: autograd's functions call these on rows and on gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.kernels.checks import check_array, check_is, check_list, check_out, signed_key
from spgnn.kernels.library import Writer
from spgnn.pattern import described
from spgnn.sparse import SUM_DTYPE

BITS = (16, 8, 4, 2, 1)
HEADER = 4  # bytes of a row's minimum and scale


def packed_bytes(width: int, bits: int) -> int:
    """Bytes of a packed row of so many columns."""
    width, bits = check_integer("width", width, 0), check_integer("bits", bits, 1, 16)
    if bits not in BITS:
        raise InputError(f"bits must be 16, 8, 4, 2 or 1, got {bits}")
    return 2 * width if bits == 16 else HEADER + (width * bits + 7) // 8


def quantise_rows(
    X: Tensor,
    bits: int,
    ids: Tensor,
    key: int,
    *,
    stochastic: bool = True,
    residual: Tensor | None = None,
    lost: Tensor | None = None,
    out: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Pack rows: each as its minimum and scale in bfloat16, and a code of few bits per element.

    ``code = floor((x - minimum) / scale + u)`` with u in [0, 1) a pure function of
    ``(key, ids[i], column)``: the same on every device, rank and number of threads, and unbiased.
    16 bits: bfloat16, rounded stochastically. torch_kernels.py defines every bit. What bfloat16
    cannot hold arrives non-finite, and so does all of a row (at 8 bits and fewer) with a NaN or an
    infinity in it, or whose range float32 cannot hold. Scales below 2⁻¹¹⁰ are raised to it.

    Parameters
    ----------
    X : Tensor [n, f] ([any, f] with ``rows``), float32, float64 or bfloat16
    bits : 16, 8, 4, 2 or 1
    ids : Tensor, int64 [n]
        Global number of the vertex in each row.
    key : int
        64 bits (signed or unsigned) made from seed, epoch and step.
    stochastic : bool
        False: to the nearest code, or bfloat16.
    residual : Tensor [n, f], dtype of X, optional
        Error feedback: what is sent is X + residual, and residual becomes, in place, what of that
        does not arrive (0 where what arrives is not finite).
    lost : Tensor [2], float64, optional
        Sum of (arrived - X)² and sum of X² are added to it.
    out : Tensor, uint8 [n, packed_bytes(f, bits)], optional
        Where to write.
    rows : Tensor [n], int32 or int64, optional
        The rows of X to pack, instead of all; each may repeat.

    Returns
    -------
    Tensor, uint8 [n, packed_bytes(f, bits)]
    """
    _check_matrix(X)
    if rows is not None:
        check_list("rows", rows, X, torch.int32, torch.int64)
    count = X.shape[0] if rows is None else rows.shape[0]
    shape = (count, packed_bytes(X.shape[1], bits))
    check_list("ids", ids, X, torch.int64)
    if ids.shape[0] != count:
        raise InputError(f"ids has {ids.shape[0]} entries for {count} rows")
    number = signed_key(key)
    if residual is not None:
        check_out("residual", residual, count, X)
    if lost is not None:
        _check_whole("lost", lost, (2,), X, torch.float64)
    if out is None:
        out = X.new_empty(shape, dtype=torch.uint8)
    else:
        _check_whole("out", out, shape, X, torch.uint8)
    _quantise(X, int(bits), ids, number, bool(stochastic), rows, residual, lost, out)
    return out


def dequantise_rows(
    packed: Tensor,
    bits: int,
    width: int,
    dtype: torch.dtype,
    *,
    out: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """Unpack rows: ``minimum + scale · code``.

    Parameters
    ----------
    packed : Tensor, uint8 [n, packed_bytes(width, bits)]
        Of `quantise_rows`.
    bits : 16, 8, 4, 2 or 1
        As there.
    width : int
        Columns of each row.
    dtype : torch.dtype
        float32, float64 or bfloat16 (rounded to the nearest).
    out : Tensor [n, width] ([any, width] with ``rows``), dtype, optional
        Where to write; unit column stride.
    rows : Tensor [n], int32 or int64, optional
        The rows of ``out`` to write, instead of all: different ones.

    Returns
    -------
    Tensor
        ``out``
    """
    check_is("packed", packed, Tensor)
    if dtype not in SUM_DTYPE:
        raise InputError(f"rows are unpacked to float32, float64 or bfloat16, got {dtype}")
    count, width = len(packed) if packed.dim() else 0, check_integer("width", width, 0)
    _check_whole("packed", packed, (count, packed_bytes(width, bits)), packed, torch.uint8)
    if rows is not None:
        check_list("rows", rows, packed, torch.int32, torch.int64)
        if rows.shape[0] != count:
            raise InputError(f"rows has {rows.shape[0]} entries for {count} packed rows")
    if out is not None:
        written = count if rows is None or out.dim() == 0 else out.shape[0]
        check_out("out", out, written, packed.new_empty((0, width), dtype=dtype))
    elif rows is None:
        out = packed.new_empty((count, width), dtype=dtype)
    else:
        raise InputError("rows are those of out: give both")
    _dequantise(packed, int(bits), rows, out)
    return out


def _check_matrix(X: Tensor) -> None:
    check_is("X", X, Tensor)
    if X.dtype not in SUM_DTYPE:
        raise InputError(
            f"rows of {X.dtype} cannot be quantised; float32, float64 and bfloat16 can"
        )
    if X.dim() != 2:
        raise InputError(f"X must be [rows, f], got {described(X)}")
    if X.requires_grad and torch.is_grad_enabled():
        raise InputError("quantising rows is not differentiable; call under torch.no_grad()")


def _check_whole(
    name: str, array: Tensor, shape: tuple[int, ...], X: Tensor, dtype: torch.dtype
) -> None:
    """Refuse what is not exactly this, without gaps."""
    check_array(name, array, shape, X, dtype)
    if not array.is_contiguous():
        raise InputError(f"{name} must be contiguous, got strides {array.stride()}")


_quantise = Writer(
    "quantise_rows(Tensor X, int bits, Tensor ids, int key, bool stochastic, Tensor? rows, "
    "Tensor(a!)? residual, Tensor(b!)? lost, Tensor(c!) out) -> ()"
)
_dequantise = Writer("dequantise_rows(Tensor packed, int bits, Tensor? rows, Tensor(a!) out) -> ()")
