"""A pattern as the samplers read it: in an order that depends on the graph alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.pattern import Pattern, described
from spgnn.sampling import _sampling
from spgnn.sparse import CSR

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Arrays of CSR form whose rows list their columns by original id.

    Parameters
    ----------
    pattern : Pattern
        As the caller has it.
    indptr, indices : NumPy arrays
    ids : int64 [rows], or None
        Original id of each row; None: its number.
    order : int64 [nnz], or None
        Which nonzero of the pattern each entry is; None: the same.
    """

    pattern: Pattern
    indptr: Int64Array
    indices: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    ids: Int64Array | None
    order: Int64Array | None

    def neighbors(self) -> _sampling._Neighbors:
        """What samples from them."""
        kind = _sampling.Neighbors32 if self.indices.dtype == np.int32 else _sampling.Neighbors64
        return kind(self.indptr, self.indices, self.pattern.shape[1], self.ids, self.order)


def sampled_rows(
    source: Pattern | CSR, vertex_ids: Tensor | None, row_ids: Tensor | None
) -> SampledRows:
    """Read a pattern; its arrays are shared unless a row lists its columns in another order."""
    pattern = source.pattern if isinstance(source, CSR) else source
    if not isinstance(pattern, Pattern):
        raise InputError(f"a Pattern or a CSR is sampled from, got {type(source).__name__}")
    rows, cols = pattern.shape
    columns = _ids("vertex_ids", vertex_ids, cols)
    if row_ids is not None:
        ids = _ids("row_ids", row_ids, rows)
    elif columns is not None and rows > cols:
        raise InputError(f"row_ids must be given for a pattern of {rows} rows and {cols} columns")
    else:
        ids = None if columns is None else columns[:rows]
    indptr, indices = pattern.indptr.cpu().numpy(), pattern.indices.cpu().numpy()
    order = _order(indptr, indices, columns)
    if order is not None:
        indices = indices[order]
    return SampledRows(pattern, indptr, indices, ids, order)


def int64_list(what: str, values: Tensor) -> Int64Array:
    """An argument that must be a list of integers."""
    if not isinstance(values, Tensor) or values.dim() != 1 or values.dtype != torch.int64:
        got = described(values) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{what} must be a tensor, int64 [n], got {got}")
    return values.cpu().contiguous().numpy()


def _ids(what: str, ids: Tensor | None, length: int) -> Int64Array | None:
    if ids is None:
        return None
    listed = int64_list(what, ids)
    if len(listed) != length:
        raise InputError(f"{what} must be int64 [{length}], got {described(ids)}")
    return listed


def _order(
    indptr: Int64Array,
    indices: npt.NDArray[np.int32] | npt.NDArray[np.int64],
    ids: Int64Array | None,
) -> Int64Array | None:
    """Entries of each row by original id of their column; None if they are."""
    keys = indices if ids is None else ids[indices]
    falls = np.flatnonzero(keys[1:] < keys[:-1]) + 1
    if np.isin(falls, indptr).all():
        return None
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return np.lexsort((keys, rows)).astype(np.int64, copy=False)
