"""The square sparse matrix that is partitioned, without its values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.errors import InputError
from spgnn.partition import _partition
from spgnn.partition.arguments import integers

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Where the nonzeros of a square matrix are: row v needs the rows of H its columns name.

    Parameters
    ----------
    indptr : int64 [vertices + 1]
    indices : int32 [edges]
        May be memory-mapped; then nothing but `stream` and the report of column and row volumes
        reads it in bounded memory.
    on_disk : bool
        Whether the arrays are memory-mapped.
    """

    indptr: Int64Array
    indices: Int32Array
    on_disk: bool = False

    @classmethod
    def of(cls, A: Any) -> Adjacency:
        """Take a SciPy sparse matrix, a CSR block, or a graph on disk.

        A CSR block or a graph on disk is anything with ``indptr``, ``indices`` and ``shape``: a
        block of tensors, a graph on disk of arrays, which may be memory-mapped; both are shared.
        Arrays of a SciPy matrix are copied. Explicit zeros count: the exchange moves rows for every
        stored entry.

        Raises
        ------
        InputError
            If A is none of these, is not square, has 2³¹ rows or more, or contradicts itself.
            Column indices are not looked at before they are used.
        """
        if isinstance(A, Adjacency):
            return A
        if not (sp.issparse(A) or all(hasattr(A, x) for x in ("indptr", "indices", "shape"))):
            raise InputError(
                f"cannot partition a {type(A).__name__}; give a SciPy sparse matrix, a CSR block "
                "or a graph on disk"
            )
        if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
            raise InputError(
                f"the matrix is {' × '.join(map(str, A.shape))}; a partition labels rows and "
                "columns alike, so it must be square"
            )
        if A.shape[0] >= 2**31:
            raise InputError(f"{A.shape[0]} vertices; at most 2³¹ − 1 can be partitioned")
        indptr, indices, on_disk = _arrays(A)
        if len(indptr) != A.shape[0] + 1:
            raise InputError(f"indptr must have {A.shape[0] + 1} entries, got {len(indptr)}")
        return cls(*checked_arrays(indptr, indices), on_disk)

    @property
    def vertices(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """Number of nonzeros, the diagonal included."""
        return len(self.indices)

    @property
    def row_lengths(self) -> Int64Array:
        """Nonzeros of each row, int64 [vertices]: the work that a vertex brings to its owner."""
        return np.diff(self.indptr)

    @cached_property
    def undirected(self) -> tuple[Int64Array, Int32Array]:
        """(indptr, indices) of A + Aᵀ without diagonal and duplicates."""
        indptr, indices = _partition.symmetrize(self.indptr, self.indices)
        return indptr, indices

    @cached_property
    def column_nets(self) -> tuple[Int64Array, Int32Array]:
        """(begin, pins): net v holds v and every row that needs it."""
        begin, pins = _partition.column_nets(self.indptr, self.indices)
        return begin, pins


def _arrays(A: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any], bool]:
    """indptr, indices, and whether they may be memory-mapped."""
    if not sp.issparse(A):
        if hasattr(A.indptr, "cpu"):
            return A.indptr.cpu().numpy(), A.indices.cpu().numpy(), False
        return integers(A.indptr, "indptr"), integers(A.indices, "indices"), True
    given, A = A, sp.csr_array(A)
    if given.format == A.format or not A.has_canonical_format:
        # One byte an entry, for values say nothing here, and SciPy copies them with the rest.
        A = sp.csr_array((np.ones(A.nnz, np.bool_), A.indices, A.indptr), shape=A.shape, copy=True)
        A.sum_duplicates()
    return A.indptr, A.indices, False


def checked_arrays(indptr: npt.ArrayLike, indices: npt.ArrayLike) -> tuple[Int64Array, Int32Array]:
    """The two arrays of a CSR as int64 and int32; what has these types is not copied.

    Raises
    ------
    InputError
        If they are no integers, or `indptr` does not rise from 0 to the number of nonzeros.
    """
    begin, columns = integers(indptr, "indptr"), integers(indices, "indices")
    if not (
        len(begin) > 0
        and begin[0] == 0
        and begin[-1] == len(columns)
        and (begin[1:] >= begin[:-1]).all()
    ):
        raise InputError(f"indptr must rise from 0 to the number of nonzeros, {len(columns)}")
    if columns.dtype != np.int32:
        check_columns(columns, len(begin) - 1)
    return np.ascontiguousarray(begin, np.int64), np.ascontiguousarray(columns, np.int32)


def check_columns(columns: npt.NDArray[Any], vertices: int) -> None:
    """Refuse column indices outside [0, vertices).

    Raises
    ------
    InputError
    """
    if len(columns) and (columns.min() < 0 or columns.max() >= vertices):
        worst = columns.max() if columns.max() >= vertices else columns.min()
        raise InputError(f"column index {worst} outside [0, {vertices}): the matrix must be square")
