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
    """Rows of a sparse matrix in one array; those that grow move to its end, with room to spare."""

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

    def extend(self, rows: int, before: int) -> None:
        """Insert rows without entries."""
        self.lengths, self._room, self._starts = (
            np.insert(array, before, np.zeros(rows, np.int64))
            for array in (self.lengths, self._room, self._starts)
        )

    def find(self, rows: Int64, columns: Int64, skip: int = 0) -> Int64:
        """The places of entries, the first few of each row left out; −1 for what is not there."""
        places = np.full(len(rows), -1)
        begins, ends = self._starts[rows] + skip, self._starts[rows] + self.lengths[rows]
        ranges = zip(begins.tolist(), ends.tolist(), columns.tolist(), strict=True)
        for number, (begin, end, column) in enumerate(ranges):
            if end > begin:
                there = self.columns[begin:end] == column
                place = there.argmax()
                if there[place]:
                    places[number] = begin + place
        return places

    def add(self, rows: Int64, columns: Int64, weights: Float32 | None = None) -> None:
        """Add entries at the ends of their rows."""
        order = np.argsort(rows, kind="stable")
        rows, columns = rows[order], columns[order]
        every, counts = np.unique(rows, return_counts=True)
        needed = self.lengths[every] + counts
        self._make_room(every, needed)
        number = np.arange(len(rows)) - (np.cumsum(counts) - counts).repeat(counts)
        places = self._starts[rows] + self.lengths[rows] + number
        self.columns[places] = columns
        if self.weights is not None and weights is not None:
            self.weights[places] = weights[order]
        self.lengths[every] = needed

    def drop(self, rows: Int64, places: Int64) -> None:
        """Drop the entries of these rows at these places."""
        order = np.lexsort((-places, rows))  # the last of each row first
        while len(order):
            first = np.ones(len(order), np.bool_)
            first[1:] = rows[order[1:]] != rows[order[:-1]]
            row, place = rows[order[first]], places[order[first]]
            self.lengths[row] -= 1
            last = self._starts[row] + self.lengths[row]
            self.columns[place] = self.columns[last]
            if self.weights is not None:
                self.weights[place] = self.weights[last]
            order = order[~first]

    def take(
        self, rows: Int64, skip: npt.NDArray[np.bool_] | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Some rows in CSR form: int64 [rows + 1], columns int32 [entries], and weights."""
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

    def _make_room(self, rows: Int64, needed: Int64) -> None:
        """Move rows without room for so many entries to the end, where they get twice that."""
        full = needed > self._room[rows]
        if not full.any():
            return
        if self._end + 2 * int(needed.sum()) > len(self.columns):
            self._pack(2 * int(needed.sum()))
            full = needed > self._room[rows]
        rows, rooms = rows[full], 2 * needed[full]
        starts = self._end + np.cumsum(rooms) - rooms
        indptr, columns, weights = self.take(rows)
        places = np.repeat(starts - indptr.numpy()[:-1], self.lengths[rows]) + np.arange(
            len(columns)
        )
        self.columns[places] = columns.numpy()
        if self.weights is not None and weights is not None:
            self.weights[places] = weights.numpy()
        self._starts[rows], self._room[rows] = starts, rooms
        self._end += int(rooms.sum())

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
