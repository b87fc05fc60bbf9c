"""Blocks of rows and columns: taken out of a CSR, renumbered, put next to each other."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR


def take_rows(A: CSR, rows: Tensor) -> CSR:
    """Any rows of a block, in the order asked for."""
    cols, scale = A.shape[1], None if A.row_scale is None else A.row_scale[rows]
    if isinstance(A.pattern, Selection):
        values = None if A.values is None else A.values[rows]
        return CSR(Selection(A.indices[rows], cols), values, scale, A.col_scale)
    indptr = torch.zeros(len(rows) + 1, dtype=torch.int64, device=A.device)
    torch.cumsum(A.row_lengths[rows], 0, out=indptr[1:])
    source = entries_of(A, rows)
    values = None if A.values is None else A.values[source]
    pattern = Pattern.trusted(indptr, A.indices[source], (len(rows), cols))
    return CSR(pattern, values, scale, A.col_scale)


def entries_of(A: CSR, rows: Tensor) -> Tensor:
    """Where the entries of some rows lie among all, row after row, int64."""
    lengths = A.row_lengths[rows]
    # Entry k of new row r is entry k + (old start − new start) of the old arrays.
    shift = (A.indptr[rows] - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
    return shift + torch.arange(len(shift), device=A.device)


def keep_columns(A: CSR, columns: Tensor) -> CSR:
    """The same entries where only some columns are left; all entries lie in these.

    Parameters
    ----------
    A : CSR [rows, n]
    columns : Tensor int64 [m]
        Rising; column ``columns[k]`` becomes column k.
    """
    number = torch.empty(A.shape[1], dtype=index_dtype(len(columns)), device=A.device)
    number[columns] = torch.arange(len(columns), dtype=number.dtype, device=A.device)
    indices, shape = number[A.indices], (A.shape[0], len(columns))
    if isinstance(A.pattern, Selection):
        pattern: Pattern = Selection(indices, len(columns))
    else:
        pattern = Pattern.trusted(A.indptr, indices, shape)
    scale = None if A.col_scale is None else A.col_scale[columns]
    return CSR(pattern, A.values, A.row_scale, scale)


def side_by_side(left: CSR, right: CSR | None) -> CSR:
    """``[left right]``: the rows of two blocks next to each other, without their scalings.

    Parameters
    ----------
    left, right : CSR [rows, m] and [rows, n]
        Both with values or both without.
    """
    if right is None:
        return CSR(left.pattern, left.values)
    shape = left.shape[0], left.shape[1] + right.shape[1]
    # Entries move right by what their row has of the other block before them.
    count = partial(torch.arange, device=left.device)
    places = (
        count(left.nnz) + right.indptr[:-1].repeat_interleave(left.row_lengths),
        count(right.nnz) + left.indptr[1:].repeat_interleave(right.row_lengths),
    )
    indices = left.indices.new_empty(left.nnz + right.nnz)
    indices[places[0]] = left.indices
    indices[places[1]] = right.indices + left.shape[1]
    pattern = Pattern.trusted(left.indptr + right.indptr, indices, shape)
    if left.values is None or right.values is None:
        return CSR(pattern)
    values = left.values.new_empty(len(indices))
    values[places[0]] = left.values
    values[places[1]] = right.values
    return CSR(pattern, values)
