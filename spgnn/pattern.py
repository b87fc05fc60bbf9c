"""The places of the nonzeros of a matrix, seen from both sides."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError
from spgnn.torch_internals import constant_when_compiled, untraced

INT32_LIMIT = 2**31


def index_dtype(limit: int) -> torch.dtype:
    """The dtype of numbers in [0, limit): int32 while they fit."""
    return torch.int32 if limit < INT32_LIMIT else torch.int64


def numpy_index_dtype(limit: int) -> type[np.int32] | type[np.int64]:
    """The same for NumPy."""
    return np.int32 if limit < INT32_LIMIT else np.int64


@dataclass(frozen=True, eq=False)
class Pattern:
    """The places of the nonzeros of a matrix, in CSR form; immutable.

    Tensors of the right dtype are shared with the caller, not copied, for patterns of mapped files
    may be larger than memory. They must not change afterwards: the other side, and whatever is
    derived from a pattern, is made once.

    Parameters
    ----------
    indptr : Tensor, int64 [rows + 1]
    indices : Tensor, int32 or int64 [nnz]
        Column of each nonzero, in [0, cols). Kept as int32 unless cols ≥ 2³¹.
    shape : (rows, cols)

    Raises
    ------
    InputError
        If the arrays contradict each other or an index is out of range. Checked once, here;
        kernels trust a pattern.
    """

    indptr: Tensor
    indices: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        rows, cols = self.shape
        if self.indptr.dtype != torch.int64 or self.indptr.shape != (rows + 1,):
            raise InputError(f"indptr must be int64 [{rows + 1}], got {described(self.indptr)}")
        _check_columns(self.indices, cols)
        nnz = self.indices.shape[0]
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0 or last != nnz or bool((self.indptr[1:] < self.indptr[:-1]).any()):
            raise InputError(f"indptr must rise from 0 to nnz = {nnz}; it runs {first} to {last}")
        object.__setattr__(self, "indptr", self.indptr.contiguous())
        object.__setattr__(self, "indices", self.indices.to(index_dtype(cols)).contiguous())

    @classmethod
    def trusted(cls, indptr: Tensor, indices: Tensor, shape: tuple[int, int]) -> Pattern:
        """A pattern of arrays that are known to be right: contiguous, and of the right dtypes."""
        pattern = object.__new__(cls)
        pattern.__dict__.update(indptr=indptr, indices=indices, shape=shape)
        return pattern

    @property
    def nnz(self) -> int:
        """Number of nonzeros."""
        return int(self.indices.shape[0])

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return self.indices.device

    @property
    def row_lengths(self) -> Tensor:
        """Nonzeros of each row, int64 [rows]."""
        return self.indptr.diff()

    @property
    def nbytes(self) -> int:
        """Bytes of this side alone."""
        return self.indptr.nbytes + self.indices.nbytes

    @cached_property
    def is_symmetric(self) -> bool:
        """True if the pattern is its own transpose."""
        rows, cols = self.shape
        if rows != cols:
            return False
        with untraced():
            if _is_sorted_there(self):
                other, _ = _sorted_by_column(self)
                pairs = (self.indptr, other.indptr), (self.indices, other.indices)
                return all(torch.equal(mine, theirs) for mine, theirs in pairs)
            here = self.indptr.cpu().numpy(), self.indices.cpu().numpy()
            return _native.is_symmetric(*here, cols)

    @property
    def transpose_nbytes(self) -> int:
        """Bytes that the other side adds, made or not."""
        rows, cols = self.shape
        if self.is_symmetric:
            return 0
        return (cols + 1) * self.indptr.itemsize + self.nnz * index_dtype(rows).itemsize

    @property
    def T(self) -> Pattern:
        """The same nonzeros seen by columns, made on first use and kept; columns of a row rise.

        ``P.T.T is P``. A symmetric pattern is its own transpose.
        """
        other: Pattern | None = self.__dict__.get("_other_side")
        if other is None and (first := self.__dict__.get("_first_side")) is not None:
            other = first()
        if other is None:
            with untraced():
                other = self.__dict__["_other_side"] = _transposed(self)
            if other is not self:
                # Weak, so that both sides go when the last user of this one does.
                other.__dict__["_first_side"] = weakref.ref(self)
        return other

    @cached_property
    def order(self) -> Tensor:
        """The number here of each nonzero of `T`, whose values are ``values[order]``: integers."""
        with untraced():
            if _is_sorted_there(self):
                return _sorted_by_column(self)[1]
            order = torch.empty(self.nnz, dtype=index_dtype(self.nnz), device="cpu")
            here = self.indptr.cpu().numpy(), self.indices.cpu().numpy()
            _native.transposed_order(*here, self.T.indptr.cpu().numpy(), order.numpy())
            return order.to(self.device)

    @constant_when_compiled
    def make_other_side(self) -> None:
        """Make `T` and `order` now: compilers keep what this returns, and look at nothing inside.

        A method, for compilers before 2.13 take no frozen dataclass as an argument.
        """
        _ = self.T, self.order

    @cached_property
    def by_nonzero(self) -> Pattern:
        """The same rows, with a column for each nonzero: it multiplies rows of nonzeros."""
        numbers = torch.arange(self.nnz, dtype=index_dtype(self.nnz), device=self.device)
        return Pattern.trusted(self.indptr, numbers, (self.shape[0], self.nnz))

    def to(self, device: torch.device | str) -> Pattern:
        """The same pattern on a device, with the other side if that has been made."""
        if torch.device(device) == self.device:
            return self
        moved = self._moved(device)
        other = self.__dict__.get("_other_side")
        if other is self:
            moved.__dict__["_other_side"] = moved
        elif other is not None:
            moved.__dict__["_other_side"] = other._moved(device)
            moved.__dict__["_other_side"].__dict__["_first_side"] = weakref.ref(moved)
        return moved

    def _moved(self, device: torch.device | str) -> Pattern:
        return Pattern.trusted(self.indptr.to(device), self.indices.to(device), self.shape)

    def __getstate__(self) -> dict[str, Any]:
        # Neither the other side, which is recomputed, nor the weak reference to it.
        return {name: self.__dict__[name] for name in ("indptr", "indices", "shape")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape[0]}×{self.shape[1]}, nnz={self.nnz})"


class Selection(Pattern):
    """A pattern with one nonzero in every row: it lists `rows` [m], each in [0, cols), shared."""

    def __init__(self, rows: Tensor, cols: int) -> None:
        _check_columns(rows, cols)
        self.__dict__.update(indices=rows.to(index_dtype(cols)).contiguous())
        self.__dict__.update(shape=(int(rows.shape[0]), cols))

    @classmethod
    def drawn(cls, rows: Tensor, cols: int) -> Selection:
        """A selection of rows that are known to be right, and to be no neighbours."""
        selection = object.__new__(cls)
        selection.__dict__.update(indices=rows, shape=(len(rows), cols), first_of_run=None)
        return selection

    @cached_property
    def indptr(self) -> Tensor:
        """0, 1, …, m; made where somebody asks for it."""
        return torch.arange(self.shape[0] + 1, device=self.device)

    @property
    def nbytes(self) -> int:
        """Bytes of the list."""
        return self.indices.nbytes

    @cached_property
    def first_of_run(self) -> int | None:
        """The first row if all are neighbours in order, so that nothing need be copied."""
        m = self.shape[0]
        first = int(self.indices[0]) if m else 0
        run = torch.arange(first, first + m, dtype=self.indices.dtype, device=self.device)
        return first if torch.equal(self.indices, run) else None

    def _moved(self, device: torch.device | str) -> Selection:
        return Selection(self.indices.to(device), self.shape[1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("indices", "shape")}


def _transposed(pattern: Pattern) -> Pattern:
    rows, cols = pattern.shape
    if pattern.is_symmetric:
        return pattern
    if _is_sorted_there(pattern):
        return _sorted_by_column(pattern)[0]
    indptr = torch.empty(cols + 1, dtype=torch.int64, device="cpu")
    indices = torch.empty(pattern.nnz, dtype=index_dtype(rows), device="cpu")
    here = pattern.indptr.cpu().numpy(), pattern.indices.cpu().numpy()
    _native.transpose(*here, cols, indptr.numpy(), indices.numpy())
    device = pattern.device
    return Pattern.trusted(indptr.to(device), indices.to(device), (cols, rows))


def _is_sorted_there(pattern: Pattern) -> bool:
    """True if the device sorts the nonzeros; torch has a limit there."""
    return pattern.device.type != "cpu" and pattern.nnz < 2**31


def _sorted_by_column(pattern: Pattern) -> tuple[Pattern, Tensor]:
    """The transpose, and the number of each of its nonzeros, without a way through the host."""
    (rows, cols), nnz, device = pattern.shape, pattern.nnz, pattern.device
    columns, order = torch.sort(pattern.indices, stable=True)
    ends = torch.arange(cols + 1, dtype=columns.dtype, device=device)
    numbers = torch.arange(rows, dtype=index_dtype(rows), device=device)
    row = numbers.repeat_interleave(pattern.row_lengths, output_size=nnz)
    other = Pattern.trusted(torch.searchsorted(columns, ends), row[order], (cols, rows))
    return other, order.to(index_dtype(nnz))


def _check_columns(indices: Tensor, cols: int) -> None:
    if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 1:
        raise InputError(f"indices must be int32 or int64 [nnz], got {described(indices)}")
    if indices.shape[0]:
        low, high = (int(v) for v in torch.aminmax(indices))
        if low < 0 or high >= cols:
            raise InputError(f"column index {low if low < 0 else high} outside [0, {cols})")


def described(array: object) -> str:
    """Dtype and shape, or what it is if it is no tensor, for an error."""
    if not isinstance(array, Tensor):
        return type(array).__name__
    return f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}"
