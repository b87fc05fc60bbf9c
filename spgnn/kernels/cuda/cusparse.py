"""The same operations through torch (cuSPARSE): the baseline, and the way without CuPy."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from spgnn.kernels import reference
from spgnn.pattern import INT32_LIMIT
from spgnn.sparse import CSR


def as_torch(A: CSR, cols: int, dtype: torch.dtype) -> Tensor:
    """A CSR block as a torch sparse tensor, scalings multiplied in.

    int32 indices where they can hold the block: the faster of torch's two.
    """
    row_lengths = A.indptr.diff()
    values = A.values
    if values is None:
        values = torch.ones(A.nnz, dtype=dtype, device=A.device)
    if A.row_scale is not None:
        values = values * A.row_scale.repeat_interleave(row_lengths, output_size=A.nnz)
    if A.col_scale is not None:
        values = values * A.col_scale[A.indices]
    index_type = torch.int32 if max(A.nnz, cols) < INT32_LIMIT else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            A.indptr.to(index_type),
            A.indices.to(index_type),
            values.to(dtype),
            (len(row_lengths), cols),
            check_invariants=False,
        )


def spmm(A: CSR, X: Tensor, out: Tensor, accumulate: bool) -> None:
    """Y = A X or Y += A X, into ``out``."""
    wide = X.float() if X.dtype == torch.bfloat16 else X
    Y = torch.sparse.mm(as_torch(A, X.shape[0], wide.dtype), wide)
    if accumulate:
        Y += out
    out.copy_(Y)


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Y[i] = scale[i] X[rows[i]], into ``out``."""
    Y = X.index_select(0, rows)
    out.copy_(Y if scale is None else scale[:, None] * Y)


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    """Y[rows[i]] += scale[i] X[i]; on a GPU torch adds equal rows in no fixed order."""
    Y.index_add_(0, rows, X if scale is None else (scale[:, None] * X).to(Y.dtype))


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None:
    """X / (1 - p) where kept, 0 elsewhere, into ``out``."""
    out.copy_(reference.dropout_rows(X, vertex_ids, key, p))
