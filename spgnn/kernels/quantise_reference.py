"""Quantised rows as docs/kernels.md defines them, in plain torch, on any device.

What tests compare with, and what runs on CUDA without CuPy. All integers are int64 here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spgnn.kernels.reference import GOLDEN, MASK64, _shift_right, _signed, mix64
from spgnn.sparse import SUM_DTYPE

HEADER = 4  # bytes of a row's minimum and scale
WEYL = 0x9E3779B9
HALF = 0x8000
NAN = 0x7FC0
LEAST_SCALE = 2.0**-110


def random_halves(ids: Tensor, columns: int, key: int) -> Tensor:
    """16 random bits for every element, int64 [n, columns]."""
    golden = _signed(GOLDEN)
    seed = mix64(torch.tensor(_signed(key & MASK64), device=ids.device))
    stream = mix64(seed + golden * (ids + 1))[:, None]
    start, factor = stream & 0xFFFFFFFF, _shift_right(stream, 32) | 1
    column = torch.arange(columns, device=ids.device)
    pair = column // 32 * 16 + column % 16
    z = (start + pair * WEYL) & 0xFFFFFFFF
    z = ((z ^ (z >> 16)) * factor) & 0xFFFFFFFF
    z = z ^ (z >> 16)
    return torch.where(column % 32 < 16, z & 0xFFFF, z >> 16)


def quantise_rows(
    X: Tensor,
    bits: int | Tensor,
    ids: Tensor,
    key: int,
    *,
    stochastic: bool = True,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Packed rows (flat), what of them arrives [n, f], and the residual afterwards [n, f]."""
    V = X.to(SUM_DTYPE[X.dtype])
    V = V if residual is None else V + residual.to(V.dtype)
    halves = random_halves(ids, X.shape[1], key)
    halves = halves if stochastic else torch.full_like(halves, HALF)
    each = torch.full((len(X),), bits, device=X.device) if isinstance(bits, int) else bits
    ends = torch.cumsum(_sizes(X.shape[1], each), 0)
    packed = X.new_empty(int(ends[-1]) if len(ends) else 0, dtype=torch.uint8)
    for width, rows, places in _groups(X.shape[1], each):
        pack = _in_bfloat16 if width == 16 else _in_codes
        packed[places] = pack(V[rows], width, halves[rows])
    arrived = dequantise_rows(packed, each, X.shape[1], X.dtype)
    left = (V - arrived.to(V.dtype)).to(X.dtype)
    return packed, arrived, torch.where(arrived.isfinite(), left, 0.0)


def dequantise_rows(packed: Tensor, bits: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """What arrives of packed rows (flat), [n, columns]."""
    Y = packed.new_empty((len(bits), columns), dtype=dtype)
    wide = SUM_DTYPE[dtype]
    for width, rows, places in _groups(columns, bits.to(packed.device)):
        found = packed[places].long()
        if width == 16:
            Y[rows] = _float32((found[:, ::2] | found[:, 1::2] << 8) << 16).to(dtype)
            continue
        low, scale = (
            _float32((found[:, at] | found[:, at + 1] << 8) << 16).to(wide)[:, None]
            for at in (0, 2)
        )
        shifts = torch.arange(0, 8, width, device=packed.device)
        codes = found[:, HEADER:, None] >> shifts & (1 << width) - 1
        Y[rows] = (low + scale * codes.flatten(1)[:, :columns].to(wide)).to(dtype)
    return Y


def quantise_into(*arguments: Any) -> None:
    """The operator: packed rows into ``out``, what was lost into ``residual`` and ``lost``."""
    X, all_bits, row_bits, ids, key, stochastic, rows, residual, lost, out = arguments
    bits = all_bits if row_bits is None else row_bits
    X = X if rows is None else X[rows]
    packed, arrived, left = quantise_rows(
        X, bits, ids, key, stochastic=stochastic, residual=residual
    )
    out.copy_(packed.view(out.shape))
    if residual is not None:
        residual.copy_(left)
    if lost is not None:
        exact = X.double()
        lost += torch.stack(((arrived.double() - exact).square().sum(), exact.square().sum()))


def dequantise_into(
    packed: Tensor, all_bits: int, row_bits: Tensor | None, rows: Tensor | None, out: Tensor
) -> None:
    """The operator: unpacked rows into ``out``."""
    count = len(out) if rows is None else len(rows)
    bits = torch.full((count,), all_bits, device=out.device) if row_bits is None else row_bits
    found = dequantise_rows(packed.flatten(), bits, out.shape[1], out.dtype)
    out[slice(None) if rows is None else rows] = found


def _sizes(columns: int, bits: Tensor) -> Tensor:
    """Bytes of each row."""
    bits = bits.long()
    return torch.where(bits == 16, 2 * columns, HEADER + (columns * bits + 7) // 8)


def _groups(columns: int, bits: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each width in bits: its rows, and where each of their bytes lies [rows, bytes]."""
    sizes = _sizes(columns, bits)
    begins = torch.cumsum(sizes, 0) - sizes
    for width in (16, 8, 4, 2, 1):
        rows = (bits == width).nonzero()[:, 0]
        if len(rows):
            count = int(sizes[rows[0]])
            yield width, rows, begins[rows, None] + torch.arange(count, device=bits.device)


def _in_bfloat16(V: Tensor, _: int, halves: Tensor) -> Tensor:
    number = _bits(V.float())
    rounded = torch.where(V.isnan(), number | 0x400000, number + halves) >> 16
    return torch.stack((rounded & 0xFF, rounded >> 8 & 0xFF), -1).flatten(1).byte()


def _in_codes(V: Tensor, width: int, halves: Tensor) -> Tensor:
    most = (1 << width) - 1
    low, scale, fits = _low_and_scale(V, most)
    wide_low, wide_scale = (_float32(number << 16).to(V.dtype) for number in (low, scale))
    inverse = torch.where(fits & (scale > 0), 65536 / wide_scale, 0.0)
    steps = torch.where(fits[:, None], (V - wide_low[:, None]) * inverse[:, None], 0.0)
    codes = torch.clamp(steps.round().long() + halves >> 16, max=most)
    codes = torch.where(fits[:, None], codes, 0)
    each = 8 // width
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % each)).unflatten(1, (-1, each))
    shifts = torch.arange(0, 8, width, device=V.device)
    low, scale = torch.where(fits, low, NAN), torch.where(fits, scale, NAN)
    header = torch.stack((low & 0xFF, low >> 8, scale & 0xFF, scale >> 8), 1)
    return torch.cat((header, (codes << shifts).sum(2)), 1).byte()


def _low_and_scale(V: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: minimum and scale, bfloat16 as integers, and whether these hold the row."""
    if V.shape[1] == 0:
        nothing = torch.zeros(len(V), dtype=torch.int64, device=V.device)
        return nothing, nothing, nothing == 0
    smallest, largest = V.amin(1), V.amax(1)
    low = _down(smallest)
    wide = _float32(low << 16).to(V.dtype)
    span = largest - wide + 0.0  # no -0
    # The rounding error of the difference (Knuth's two-sum).
    back = span - largest
    beyond = (largest - (span - back)) - (wide + back)
    scale = _up(span / most)
    reach = _float32(scale << 16).to(V.dtype) * most
    scale = scale + ((reach < span) | (reach == span) & (beyond > 0)).long()
    least = int(_bits(torch.tensor(LEAST_SCALE))) >> 16
    scale = torch.where(scale > 0, torch.clamp(scale, min=least), 0)
    fits = V.isfinite().all(1) & (_float32(scale << 16) * most).isfinite()
    fits &= (low & 0x7F80) < 0x7F80
    return low, scale, fits


def _down(x: Tensor) -> Tensor:
    """The largest bfloat16 that is not above x, as an integer; +0 for both zeros."""
    nearest = x.float()
    below = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf))
    number = _bits(torch.where(nearest > x, below, nearest) + 0.0)
    negative = number >> 31
    return (number + negative * 0xFFFF) >> 16


def _up(x: Tensor) -> Tensor:
    """The smallest bfloat16 that is not below x ≥ 0, as an integer."""
    nearest = x.float()
    above = torch.nextafter(nearest, torch.full_like(nearest, torch.inf))
    return (_bits(torch.where(nearest < x, above, nearest)) + 0xFFFF) >> 16


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int32).long() & 0xFFFFFFFF


def _float32(bits: Tensor) -> Tensor:
    signed = torch.where(bits >= 2**31, bits - 2**32, bits)
    return signed.int().view(torch.float32)
