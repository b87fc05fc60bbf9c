"""Host side of the kernels of bias, activation and dropout in one pass."""

from __future__ import annotations

from typing import Any

import torch

from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.shapes import instance, thread_shape, vector_width
from spgnn.kernels.library import dense, unit_stride

ROWS_A_GROUP = 32  # of which a block sums the columns


def update_rows(*arguments: Any) -> None:
    """``dropout(act(Z + b))`` into ``out``, which may be Z."""
    Z, bias, vertex_ids, key, p, act, alpha, out = arguments
    if not out.numel():
        return
    Z = unit_stride(Z)
    shape = thread_shape(Z.shape[1], vector_width(Z, out))
    device.launch(
        instance("update_rows", Z.dtype, shape.vector, shape.lanes),
        (-(-len(Z) // (device.THREADS // shape.lanes)), 1),
        (
            Z,
            Z.stride(0),
            dense(bias),
            act,
            alpha,
            dense(vertex_ids),
            out,
            out.stride(0),
            *Z.shape,
            key,
            round(p * 2**32),
            1.0 / (1.0 - p),
        ),
    )


def update_rows_backward(*arguments: Any) -> None:
    """What passes of G into ``dZ``, and its columns' sums into ``sums``, where that has columns."""
    G, Y, vertex_ids, key, p, act, alpha, dZ, sums = arguments
    G, Y = unit_stride(G), None if Y is None else unit_stride(Y)
    shape = thread_shape(G.shape[1], vector_width(*(m for m in (G, Y, dZ) if m is not None)))
    rows = device.THREADS // shape.lanes * ROWS_A_GROUP
    blocks = -(-len(G) // rows)
    partial = sums.new_empty(blocks, G.shape[1]) if len(sums) else None
    device.launch(
        instance("update_rows_backward", G.dtype, shape.vector, shape.lanes),
        (blocks, 1),
        (
            G,
            G.stride(0),
            Y,
            0 if Y is None else Y.stride(0),
            act,
            alpha,
            dense(vertex_ids),
            dZ,
            dZ.stride(0),
            partial,
            *G.shape,
            rows,
            key,
            round(p * 2**32),
            1.0 / (1.0 - p),
        ),
    )
    if partial is not None:
        torch.sum(partial, 0, out=sums)
