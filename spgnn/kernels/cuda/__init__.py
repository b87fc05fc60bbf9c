"""The five operations on CUDA tensors.

Arguments have been checked by `spgnn.kernels`; all work happens on torch's current stream.
Without CuPy the operations run through torch and cuSPARSE, after one notice.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

from torch import Tensor

from spgnn.kernels.cuda import cusparse, device, native
from spgnn.sparse import CSR

__all__ = ["dropout_rows", "gather_rows", "scatter_add_rows", "spmm", "spmm_transposed"]


def spmm(A: CSR, X: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """``Y = A X``, or ``Y += A X``; see `spgnn.kernels.spmm`.

    Bitwise reproducible on one device. The first product with a block makes a plan (see
    `spgnn.kernels.cuda.plan`), which waits for the device.
    """
    if out is None:
        out = X.new_empty((A.indptr.shape[0] - 1, X.shape[1]))
    _implementation().spmm(A, X, out, accumulate)
    return out


def spmm_transposed(
    A: CSR, X: Tensor, out: Tensor | None = None, accumulate: bool = False
) -> Tensor:
    """``Y = Aᵀ X``, or ``Y += Aᵀ X``, with the transpose that the block keeps."""
    return spmm(A.T, X, out, accumulate)


def gather_rows(
    X: Tensor, rows: Tensor, scale: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``Y[i] = scale[i] · X[rows[i]]``; see `spgnn.kernels.gather_rows`."""
    if out is None:
        out = X.new_empty((rows.shape[0], X.shape[1]))
    _implementation().gather_rows(X, rows, scale, out)
    return out


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None = None) -> Tensor:
    """``Y[rows[i]] += scale[i] · X[i]``, in place; see `spgnn.kernels.scatter_add_rows`.

    Equal rows are added up in the order of the list and then to Y, so the result is bitwise
    reproducible. The first use of a list sorts it, which waits for the device.
    """
    _implementation().scatter_add_rows(Y, rows, X, scale)
    return Y


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    """``X / (1 - p)`` where kept, 0 elsewhere; see `spgnn.kernels.dropout_rows`."""
    out = X.new_empty(X.shape)
    _implementation().dropout_rows(X, vertex_ids, key, p, out)
    return out


@cache
def _implementation() -> ModuleType:
    if device.available():
        return native
    warnings.warn(
        "CuPy is not installed: CUDA tensors are multiplied by cuSPARSE through torch; "
        "spgnn's own kernels come with: pip install spgnn[gpu]",
        RuntimeWarning,
        stacklevel=3,
    )
    return cusparse
