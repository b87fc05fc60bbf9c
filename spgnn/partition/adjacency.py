"""The square sparse pattern that is partitioned."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.errors import InputError
from spgnn.partition import _partition
from spgnn.sparse import CSR

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

# (stage, steps done, steps in all); called often, from the thread that called us.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Pattern:
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
    def of(cls, A: Any) -> Pattern:
        """Take a SciPy sparse matrix, a CSR block, or a graph on disk (`OnDiskCSR`).

        Explicit zeros count: the exchange moves rows for every stored entry.

        Raises
        ------
        InputError
            If A is none of these, is not square, or has 2³¹ rows or more.
        """
        if isinstance(A, Pattern):
            return A
        if not (isinstance(A, CSR) or sp.issparse(A) or hasattr(A, "indptr")):
            raise InputError(
                f"cannot partition a {type(A).__name__}; give a SciPy sparse matrix, a CSR block "
                "or a graph on disk"
            )
        rows, cols = A.shape
        if rows != cols:
            raise InputError(
                f"the matrix is {rows} × {cols}; a partition labels rows and columns alike, so it "
                "must be square"
            )
        if rows >= 2**31:
            raise InputError(f"{rows} vertices; at most 2³¹ − 1 can be partitioned")
        if isinstance(A, CSR):
            return cls(A.indptr.cpu().numpy(), _int32(A.indices.cpu().numpy()))
        if not sp.issparse(A):
            return cls(A.indptr, A.indices, on_disk=True)
        A = sp.csr_array(A)
        if not A.has_canonical_format:
            A = A.copy()
            A.sum_duplicates()
        return cls(A.indptr.astype(np.int64), _int32(A.indices))

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


def available_threads() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    """The callback (done, all) of one stage."""
    return None if progress is None else lambda done, total: progress(name, done, total)


def _int32(indices: npt.NDArray[Any]) -> Int32Array:
    return np.ascontiguousarray(indices, dtype=np.int32)
