"""Host side of the kernel of the largest and smallest of listed rows."""

from __future__ import annotations

from typing import Any

from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.shapes import instance, thread_shape, vector_width


def extreme(*arguments: Any) -> None:
    """Largest or smallest elements into ``out``, their columns into ``arg``."""
    indptr, indices, X, largest, begun, first_column, out, arg = arguments
    shape = thread_shape(X.shape[1], vector_width(X, out))
    device.launch(
        instance("extreme", X.dtype, indices.dtype, arg.dtype, shape.vector, shape.lanes),
        (-(-len(out) // (device.THREADS // shape.lanes)), 1),
        (
            indptr,
            indices,
            X,
            X.stride(0),
            *out.shape,
            int(largest),
            int(begun),
            first_column,
            out,
            out.stride(0),
            arg,
        ),
    )
