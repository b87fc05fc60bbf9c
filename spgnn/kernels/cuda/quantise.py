"""Host side of the kernels that pack rows into few bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.kept import kept
from spgnn.kernels.cuda.rows import check_range, listed
from spgnn.kernels.cuda.shapes import instance, lanes_for, vector_width
from spgnn.kernels.library import dense, unit_stride

CHUNK = 8  # kChunk of quantise.cuh
HEADER = 4


def quantise_rows(*arguments: Any) -> None:
    """Packed rows into ``out``, what was lost into ``residual`` and ``lost``."""
    X, all_bits, row_bits, ids, key, stochastic, rows, residual, lost, out = arguments
    if not out.numel():
        return
    if rows is not None:
        check_range(rows, X.shape[0])
    X, columns = unit_stride(X), X.shape[1]
    vector = min(CHUNK, vector_width(*(m for m in (X, residual) if m is not None)))
    lanes = lanes_for(max(1, -(-columns // CHUNK)))
    blocks = -(-len(ids) // (device.THREADS // lanes))
    sums = None if lost is None else lost.new_empty(blocks, 2)
    device.launch(
        instance("quantise_rows", X.dtype, vector, lanes),
        (blocks, 1),
        (
            X,
            X.stride(0),
            *listed(rows),
            all_bits,
            dense(row_bits),
            _places(row_bits, columns),
            ids.contiguous(),
            key,
            int(stochastic),
            residual,
            0 if residual is None else residual.stride(0),
            sums,
            out,
            len(ids),
            columns,
        ),
    )
    if sums is not None:
        lost += sums.sum(0)


def dequantise_rows(
    packed: Tensor, all_bits: int, row_bits: Tensor | None, rows: Tensor | None, out: Tensor
) -> None:
    """Unpacked rows into ``out``."""
    if rows is not None:
        check_range(rows, out.shape[0])
    count, columns = len(out) if rows is None else len(rows), out.shape[1]
    if not count * columns:
        return
    vector = vector_width(out)
    lanes = lanes_for(-(-columns // vector))
    device.launch(
        instance("dequantise_rows", out.dtype, vector, lanes),
        (-(-count // (device.THREADS // lanes)), 1),
        (
            packed,
            all_bits,
            dense(row_bits),
            _places(row_bits, columns),
            *listed(rows),
            out,
            out.stride(0),
            count,
            columns,
        ),
    )


def _places(row_bits: Tensor | None, columns: int) -> Tensor | None:
    """Where the packed rows begin, if each has bits of its own."""
    if row_bits is None:
        return None
    bits = row_bits

    def begins() -> Tensor:
        wide = bits.long()
        sizes = torch.where(wide == 16, 2 * columns, HEADER + (columns * wide + 7) // 8)
        return torch.cumsum(sizes, 0) - sizes

    found: Tensor = kept.get(bits, ("places", columns), begins)
    return found
