"""The CSR block: a local sparse matrix, and its structural operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.errors import InputError

INT32_LIMIT = 2**31


def index_dtype(columns: int) -> type[np.int32] | type[np.int64]:
    """The dtype of column indices of a block with that many columns."""
    return np.int32 if columns < INT32_LIMIT else np.int64


@dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix ``diag(row_scale) · B · diag(col_scale)`` with B in CSR form.

    The normalised adjacency of an unweighted graph is two scalings of a 0/1 matrix, so it stores
    no values at all. Any of ``values``, ``row_scale``, ``col_scale`` may be ``None`` (all ones).

    Parameters
    ----------
    indptr : Tensor, int64 [rows + 1]
    indices : Tensor, int32 or int64 [nnz]
        Column of each nonzero, in [0, cols). int64 only where cols ≥ 2³¹.
    shape : (rows, cols)
    values : Tensor, floating [nnz], optional
    row_scale, col_scale : Tensor, floating [rows] and [cols], optional

    Raises
    ------
    InputError
        If the arrays contradict each other or an index is out of range. Checked once, here;
        kernels trust a CSR block.
    """

    indptr: Tensor
    indices: Tensor
    shape: tuple[int, int]
    values: Tensor | None = None
    row_scale: Tensor | None = None
    col_scale: Tensor | None = None

    def __post_init__(self) -> None:
        rows, cols = self.shape
        if self.indptr.dtype != torch.int64 or self.indptr.shape != (rows + 1,):
            raise InputError(f"indptr must be int64 [{rows + 1}], got {_describe(self.indptr)}")
        if self.indices.dtype not in (torch.int32, torch.int64) or self.indices.dim() != 1:
            raise InputError(f"indices must be int32 or int64 [nnz], got {_describe(self.indices)}")
        nnz = self.indices.shape[0]
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0 or last != nnz or bool((self.indptr[1:] < self.indptr[:-1]).any()):
            raise InputError(f"indptr must rise from 0 to nnz = {nnz}; it runs {first} to {last}")
        if nnz:
            low, high = (int(v) for v in torch.aminmax(self.indices))
            if low < 0 or high >= cols:
                raise InputError(f"column index {low if low < 0 else high} outside [0, {cols})")
        for name, length in (("values", nnz), ("row_scale", rows), ("col_scale", cols)):
            array = getattr(self, name)
            if array is not None and (array.shape != (length,) or not array.is_floating_point()):
                raise InputError(f"{name} must be floating [{length}], got {_describe(array)}")
            if array is not None and array.device != self.indices.device:
                raise InputError(f"{name} is on {array.device}, indices on {self.indices.device}")

    @classmethod
    def from_scipy(cls, A: Any) -> CSR:
        """Take any SciPy sparse matrix or array; duplicates are summed, indices sorted.

        Values are kept as float32 or float64 (other types become float32); a boolean matrix
        becomes a block without values. The input is not modified; arrays are shared if possible.
        """
        A = sp.csr_array(A)
        if not A.has_canonical_format:
            A = A.copy()
            A.sum_duplicates()
        values = None
        if A.dtype != np.bool_:
            dtype = A.dtype if A.dtype in (np.float32, np.float64) else np.float32
            values = torch.from_numpy(np.ascontiguousarray(A.data, dtype=dtype))
        return cls(
            torch.from_numpy(A.indptr.astype(np.int64)),
            torch.from_numpy(np.ascontiguousarray(A.indices, dtype=index_dtype(A.shape[1]))),
            (int(A.shape[0]), int(A.shape[1])),
            values,
        )

    def to_scipy(self) -> sp.csr_array:
        """The whole matrix, scalings multiplied in, as a SciPy CSR array (float32 if 0/1)."""
        if self.values is None:
            scales = [s for s in (self.row_scale, self.col_scale) if s is not None]
            values = torch.ones(self.nnz, dtype=scales[0].dtype if scales else torch.float32)
        else:
            values = self.values.clone()
        if self.row_scale is not None:
            values *= self.row_scale.repeat_interleave(self.row_lengths)
        if self.col_scale is not None:
            values *= self.col_scale[self.indices.long()]
        if values.dtype == torch.bfloat16:
            values = values.float()
        arrays = (values.cpu().numpy(), self.indices.cpu().numpy(), self.indptr.cpu().numpy())
        return sp.csr_array(arrays, shape=self.shape)

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.indices.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the arrays live."""
        return self.indices.device

    @property
    def row_lengths(self) -> Tensor:
        """Nonzeros of each row, int64 [rows]."""
        return self.indptr.diff()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays (of a cached transpose, nothing)."""
        return sum(a.numel() * a.element_size() for a in self.arrays())

    def arrays(self) -> list[Tensor]:
        """The arrays this block is made of, those that are not ``None``."""
        all_arrays = (self.indptr, self.indices, self.values, self.row_scale, self.col_scale)
        return [a for a in all_arrays if a is not None]

    @cached_property
    def T(self) -> CSR:
        """The transpose as a CSR block, made on first use and kept; rows stay sorted.

        A symmetric matrix shares its arrays with its transpose.
        """
        rows, cols = self.shape
        # SciPy's counting sort is linear in nnz; positions carry the values along. Narrow indptr,
        # where it fits, keeps SciPy from widening the indices too.
        carried = np.ones(self.nnz, np.bool_) if self.values is None else np.arange(self.nnz)
        indptr = self.indptr.cpu().numpy().astype(index_dtype(self.nnz), copy=False)
        arrays = (carried, self.indices.cpu().numpy(), indptr)
        t = sp.csr_array(arrays, shape=self.shape).T.tocsr()
        t_indptr = torch.from_numpy(t.indptr.astype(np.int64)).to(self.device)
        t_indices = torch.from_numpy(t.indices.astype(index_dtype(rows), copy=False))
        t_indices = t_indices.to(self.device)
        t_values = None
        if self.values is not None:
            t_values = self.values[torch.from_numpy(t.data).to(self.device)]
        if torch.equal(t_indptr, self.indptr) and torch.equal(t_indices, self.indices):
            t_indptr, t_indices = self.indptr, self.indices
            if t_values is not None and self.values is not None:
                t_values = self.values if torch.equal(t_values, self.values) else t_values
        return CSR(t_indptr, t_indices, (cols, rows), t_values, self.col_scale, self.row_scale)

    def where(self, mask: npt.NDArray[np.bool_], columns: npt.NDArray[Any], n_columns: int) -> CSR:
        """The nonzeros where `mask` is true, under new column numbers; keeps ``row_scale`` alone.

        Parameters
        ----------
        mask : bool [nnz]
        columns : int [number of true entries]
            Column of each kept nonzero in the new block, which has `n_columns`.
        """
        indptr = self.indptr.numpy()
        lengths = np.zeros(self.shape[0] + 1, dtype=np.int64)
        filled = indptr[1:] > indptr[:-1]
        # reduceat reads one element for an empty stretch: only rows with nonzeros take part.
        lengths[1:][filled] = np.add.reduceat(mask, indptr[:-1][filled], dtype=np.int64)
        return CSR(
            torch.from_numpy(np.cumsum(lengths)),
            torch.from_numpy(columns.astype(index_dtype(n_columns), copy=False)),
            (self.shape[0], n_columns),
            None if self.values is None else self.values[torch.from_numpy(mask)],
            self.row_scale,
        )

    def with_scales(self, row_scale: Tensor | None, col_scale: Tensor | None) -> CSR:
        """The same B between other scalings."""
        return replace(self, row_scale=row_scale, col_scale=col_scale)

    def to(self, target: torch.dtype | torch.device | str) -> CSR:
        """Move to a device, or convert values and scalings to a dtype.

        A block that is there already is returned as it is, with the transpose it may hold.
        """
        if not isinstance(target, torch.dtype) and torch.device(target) == self.device:
            return self
        moved = (None if a is None else a.to(target) for a in self._floating())
        if isinstance(target, torch.dtype):
            return CSR(self.indptr, self.indices, self.shape, *moved)
        return CSR(self.indptr.to(target), self.indices.to(target), self.shape, *moved)

    def _floating(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.values, self.row_scale, self.col_scale

    def __repr__(self) -> str:
        parts = ("values", "row_scale", "col_scale")
        kept = [name for name in parts if getattr(self, name) is not None]
        return f"CSR({self.shape[0]}×{self.shape[1]}, nnz={self.nnz}, {'+'.join(kept) or '0/1'})"


def _describe(array: Tensor) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}"
