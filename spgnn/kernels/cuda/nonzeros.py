"""Host side of the kernels that make a number for every nonzero: SDDMM, softmax, sums of rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.kept import kept
from spgnn.kernels.cuda.shapes import instance, lanes_for, thread_shape, vector_width
from spgnn.kernels.library import dense, unit_stride

NONZEROS_IN_FLIGHT = 4  # kNonzerosInFlight of sddmm.cuh
MOST_HEADS = 65535  # blocks that CUDA has along y
LONG_ROW = 64  # nonzeros of a thread, above which a whole block takes the row


def sddmm(*arguments: Any) -> None:
    """out[e] = row_scale[i] col_scale[j] <G[i], X[j]>, for each head where there are heads."""
    indptr, indices, row_scale, col_scale, G, X, out = arguments
    if not X.shape[-1]:
        out.zero_()
    if not out.numel() or not X.shape[-1]:
        return
    G, X = unit_stride(G), unit_stride(X)
    heads, *head_strides = (X.shape[1], G.stride(1), X.stride(1)) if X.dim() == 3 else (1, 0, 0)
    shape = thread_shape(X.shape[-1], vector_width(G, X))
    each = device.THREADS // shape.lanes * NONZEROS_IN_FLIGHT
    for first in range(0, heads, MOST_HEADS):
        g, x = (G[:, first:], X[:, first:]) if heads > 1 else (G, X)
        device.launch(
            instance("sddmm", X.dtype, indices.dtype, shape.vector, shape.lanes),
            (-(-len(indices) // each), min(heads - first, MOST_HEADS)),
            (
                indptr,
                len(indptr) - 1,
                indices,
                len(indices),
                dense(row_scale),
                dense(col_scale),
                g,
                G.stride(0),
                head_strides[0],
                x,
                X.stride(0),
                head_strides[1],
                X.shape[-1],
                out.view(-1)[first:],
                heads,
            ),
        )


def edge_softmax(indptr: Tensor, scores: Tensor, out: Tensor) -> None:
    """exp(scores) over their sum in each row; zeros where all of a row is −∞."""
    _over_rows("edge_softmax", indptr, (scores.contiguous(),), out)


def row_sums(indptr: Tensor, a: Tensor, b: Tensor | None, out: Tensor) -> None:
    """The sum of a · b (or of a) over the row, for every nonzero."""
    _over_rows("row_sums", indptr, (a.contiguous(), dense(b)), out)


def _over_rows(kernel: str, indptr: Tensor, arrays: tuple[Tensor | None, ...], out: Tensor) -> None:
    """Rows of about the average length are shared by a few threads each, long ones by a block."""
    if not out.numel():
        return
    rows, heads = len(indptr) - 1, out[:1].numel()
    lanes = lanes_for(max(1, len(out) // rows))
    longest = LONG_ROW * lanes
    long_rows = kept.get(
        indptr, ("longer than", longest), lambda: (indptr.diff() > longest).nonzero()[:, 0]
    )
    for listed, count, threads, limit in (
        (None, rows, lanes, longest),
        (long_rows, len(long_rows), device.THREADS, len(out)),
    ):
        if count:
            blocks = -(-count * heads // (device.THREADS // threads))
            device.launch(
                instance(kernel, out.dtype, threads),
                (blocks, 1),
                (indptr, listed, count, limit, *arrays, out, heads),
            )
