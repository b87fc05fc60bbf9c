"""Adjacencies: from lists of edges, cut, stacked, renumbered, symmetrised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.sparse import CSR, take_rows

Rows = TypeVar("Rows", Tensor, CSR)


def block_of(
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    shape: tuple[int, int],
    values: npt.NDArray[Any] | None = None,
) -> CSR:
    """The block of three NumPy arrays, which it shares."""
    numbers = None if values is None else torch.from_numpy(values)
    return CSR.of(torch.from_numpy(indptr), torch.from_numpy(indices), shape, numbers)


def slice_rows(A: CSR, rows: slice) -> CSR:
    """Neighbouring rows of a block; indices and values are views."""
    first, last, _ = rows.indices(A.shape[0])
    indptr = A.indptr[first : max(first, last) + 1]
    start, stop = int(indptr[0]), int(indptr[-1])
    values = None if A.values is None else A.values[start:stop]
    return CSR.of(indptr - start, A.indices[start:stop], (len(indptr) - 1, A.shape[1]), values)


def select_rows(x: Rows, rows: Tensor | slice) -> Rows:
    """Some rows of a dense or sparse matrix; views, if they are a slice."""
    if isinstance(x, Tensor):
        return x[rows]
    return slice_rows(x, rows) if isinstance(rows, slice) else take_rows(x, rows)


def stack_rows(blocks: Sequence[Rows]) -> Rows:
    """The rows of blocks of equal width, one block after another; one block alone is returned."""
    if len(blocks) == 1:
        return blocks[0]
    if isinstance(blocks[0], Tensor):
        return torch.cat(tuple(blocks))
    values = [b.values for b in blocks if b.values is not None]
    lengths = torch.cat([blocks[0].indptr[:1] * 0, *(b.row_lengths for b in blocks)])
    return CSR.of(
        lengths.cumsum(0),
        torch.cat([b.indices for b in blocks]),
        (len(lengths) - 1, blocks[0].shape[1]),
        torch.cat(values) if values else None,
    )


def rename_columns(A: CSR, position: Tensor) -> CSR:
    """The same rows with column c called ``position[c]``; columns stay sorted within rows."""
    return with_columns(A, position[A.indices])


def with_columns(A: CSR, columns: Tensor) -> CSR:
    """The same entries in other columns, int [nnz]; sorted within rows."""
    s = with_entries(CSR.of(A.indptr, columns, A.shape, A.values))
    s.has_sorted_indices = False
    s.sort_indices()
    return from_entries(s, weighted=A.values is not None)


def with_entries(A: CSR) -> scipy.sparse.csr_array:
    """A as SciPy sees it: its own values, or one byte an entry where it has none."""
    data = np.ones(A.nnz, np.bool_) if A.values is None else A.values.numpy().copy()
    return scipy.sparse.csr_array(
        (data, A.indices.numpy(), A.indptr.numpy()), shape=A.shape, copy=True
    )


def from_entries(A: scipy.sparse.csr_array, *, weighted: bool) -> CSR:
    """The block of a matrix that nobody else has, whose arrays it keeps; duplicates are summed."""
    A.sum_duplicates()
    values = A.data if weighted else None
    return block_of(A.indptr.astype(np.int64, copy=False), A.indices, A.shape, values)


def without_ones(A: CSR) -> CSR:
    """The same block, without weights if all are 1.

    Ask for it where entries that occur twice have been summed: three times 1 is 3.
    """
    return A if A.values is None or not bool((A.values == 1).all()) else A.with_values(None)


def added(A: scipy.sparse.csr_array, B: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """A + B, with an entry wherever one of them has one: SciPy leaves out those that are 0."""
    places, data = _both(A, B)
    return scipy.sparse.coo_array((data, places), shape=A.shape).tocsr()


def union(A: scipy.sparse.csr_array, B: scipy.sparse.csr_array, *, weighted: bool) -> CSR:
    """An entry wherever A or B has one; of two weights the larger."""
    if not weighted:
        return from_entries(A + B, weighted=False)
    # SciPy's maximum would take a missing entry for a 0, which is larger than a negative weight.
    (row, col), data = _both(A, B)
    order = np.lexsort((col, row))
    row, col = row[order], col[order]
    first = np.ones(len(row), np.bool_)
    first[1:] = (row[1:] != row[:-1]) | (col[1:] != col[:-1])
    starts = np.flatnonzero(first)
    largest = np.maximum.reduceat(data[order], starts) if len(starts) else data
    arrays = (largest, (row[starts], col[starts]))
    return from_entries(scipy.sparse.coo_array(arrays, shape=A.shape).tocsr(), weighted=True)


def _both(
    A: scipy.sparse.csr_array, B: scipy.sparse.csr_array
) -> tuple[tuple[Any, ...], npt.NDArray[Any]]:
    """The places and values of the entries of two matrices, one after the other."""
    pair = (A.tocoo(), B.tocoo())
    places = tuple(np.concatenate([entries.coords[axis] for entries in pair]) for axis in (0, 1))
    return places, np.concatenate([entries.data for entries in pair])


def csr_from_edges(
    source: npt.NDArray[Any],
    target: npt.NDArray[Any],
    vertices: int,
    weights: npt.NDArray[np.floating] | None = None,
    *,
    symmetric: bool = False,
    loops: bool = True,
) -> CSR:
    """The adjacency [vertices, vertices] of edges source → target: row = target, column = source.

    Weights of an edge named several times are summed, in their own dtype. `symmetric` stores every
    edge in both directions (a loop once); `loops` says whether loops stay.

    Raises
    ------
    InputError
        If an end is not in [0, vertices).
    """
    for end in (source, target):
        if len(end) and not 0 <= int(end.min()) <= int(end.max()) < vertices:
            edge = int(np.argmax((end < 0) | (end >= vertices)))
            raise InputError(f"edge {edge}: vertex {end[edge]} is outside [0, {vertices})")
    if not loops:
        keep = source != target
        source, target = source[keep], target[keep]
        weights = None if weights is None else weights[keep]
    data = np.ones(len(source), np.bool_) if weights is None else weights
    shape = (vertices, vertices)
    A = scipy.sparse.coo_array((data, (target, source)), shape=shape).tocsr()
    if symmetric:
        once = source != target
        if not once.all():
            source, target, data = source[once], target[once], data[once]
        A = added(A, scipy.sparse.coo_array((data, (source, target)), shape=shape).tocsr())
    return from_entries(A, weighted=weights is not None)


def row_ranges(lengths: npt.NDArray[np.integer], limit: int) -> list[int]:
    """Bounds of row ranges with at most `limit` entries each (a longer row stands alone)."""
    ends = np.cumsum(lengths, dtype=np.int64)
    bounds = [0]
    while bounds[-1] < len(lengths):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        last = int(np.searchsorted(ends, before + limit, side="right"))
        bounds.append(max(last, bounds[-1] + 1))
    return bounds
