"""Lists of numbers, one a row, that grow and shrink in place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class Neighbours:
    """Rows of a sparse matrix in one array; those that grow move to its end, with room to spare.

    An entry is found by looking through its row, and the last one of the row takes the place of one
    that is dropped: so the order within a row means nothing.

    Parameters
    ----------
    lengths : int64 [rows]
    columns : int32 [sum of lengths]
        Row after row; given away.
    weights : float32 [sum of lengths], optional
        One an entry; given away.
    """

    def __init__(self, lengths: Int64, columns: Int32, weights: Float32 | None = None) -> None:
        self.columns, self.weights = columns, weights
        self.lengths, self._room = lengths, lengths.copy()
        self._starts = np.cumsum(lengths) - lengths
        self._end = len(columns)  # what follows is free

    @classmethod
    def grouped(cls, rows: Int64, columns: Int64, count: int) -> Neighbours:
        """Lists of (row, column) pairs in any order."""
        order = np.argsort(rows, kind="stable")
        return cls(np.bincount(rows, minlength=count), columns[order].astype(np.int32))

    def extend(self, rows: int) -> None:
        """Add rows without entries."""
        none = np.zeros(rows, np.int64)
        self.lengths, self._room, self._starts = (
            np.concatenate((array, none)) for array in (self.lengths, self._room, self._starts)
        )

    def find(self, row: int, column: int, skip: int = 0) -> int:
        """The place of an entry, the first few of the row left out; −1 if it is not there."""
        begin = self._starts[row]
        places = np.flatnonzero(self.columns[begin + skip : begin + self.lengths[row]] == column)
        return int(begin + skip + places[0]) if len(places) else -1

    def add(self, row: int, column: int, weight: float = 1.0) -> None:
        """Add an entry, the last one of its row."""
        length = self.lengths[row]
        if length == self._room[row]:
            self._move(row, 2 * int(length) + 2)
        place = self._starts[row] + length
        self.columns[place] = column
        if self.weights is not None:
            self.weights[place] = weight
        self.lengths[row] = length + 1

    def drop(self, row: int, place: int) -> None:
        """Drop the entry at a place."""
        self.lengths[row] -= 1
        last = self._starts[row] + self.lengths[row]
        self.columns[place] = self.columns[last]
        if self.weights is not None:
            self.weights[place] = self.weights[last]

    def take(
        self, rows: Int64, skip: npt.NDArray[np.bool_] | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Some rows in CSR form: int64 [rows + 1], columns int32 [entries], and weights.

        `skip` says of which rows the first entry is left out.
        """
        starts, lengths = self._starts[rows], self.lengths[rows]
        if skip is not None:
            starts, lengths = starts + skip, lengths - skip
        indptr = torch.zeros(len(rows) + 1, dtype=torch.int64)
        torch.cumsum(torch.from_numpy(lengths), 0, out=indptr[1:])
        shift = torch.from_numpy(starts) - indptr[:-1]
        entries = int(indptr[-1])
        places = shift.repeat_interleave(indptr.diff(), output_size=entries)
        places += torch.arange(entries)
        columns = torch.from_numpy(self.columns).index_select(0, places)
        if self.weights is None:
            return indptr, columns, None
        return indptr, columns, torch.from_numpy(self.weights).index_select(0, places)

    def _move(self, row: int, room: int) -> None:
        """Give a row more room at the end."""
        if self._end + room > len(self.columns):
            self._pack(room)
        start, length, self._starts[row] = self._starts[row], self.lengths[row], self._end
        self._room[row] = room
        for array in (self.columns, self.weights):
            if array is not None:
                array[self._end : self._end + length] = array[start : start + length]
        self._end += room

    def _pack(self, room: int) -> None:
        """Take together what rows left behind, into an array with a quarter to spare."""
        _, columns, weights = self.take(np.arange(len(self.lengths)))
        self._end = len(columns)
        size = self._end + self._end // 4 + room
        self.columns = np.empty(size, np.int32)
        self.columns[: self._end] = columns.numpy()
        if weights is not None:
            self.weights = np.empty(size, np.float32)
            self.weights[: self._end] = weights.numpy()
        self._starts, self._room = np.cumsum(self.lengths) - self.lengths, self.lengths.copy()
