"""Rows of a pattern that lies on a disk, with those that are most worth it in memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath
from spgnn.layout import Int64Array
from spgnn.store._store import Reader, copy_stretches
from spgnn.store.disk import GAP, finish, open_reader
from spgnn.store.rows import Counts, as_bytes, check_ids

_DTYPES = (torch.int32, torch.int64)


class DiskPattern:
    """A pattern whose column numbers are read when they are asked for; made by `open`.

    Row offsets are in memory (or mapped). The neighbour cache keeps whole rows, as AliGraph does
    (VLDB'19): those with the most uses for each byte they take.

    Attributes
    ----------
    path : Path
    indptr : Tensor int64 [rows + 1]
    shape : (rows, cols)
    dtype : torch.dtype
        Of the column numbers, int32 or int64.
    counts : Counts
        Rows and their bytes; of single neighbours, each counts as a row.
    """

    def __init__(
        self, file: tuple[Path, Reader], offset: int, indptr: Tensor, cols: int, dtype: torch.dtype
    ) -> None:
        self.path, self._reader = file
        self.indptr, self.dtype, self._offset = indptr, dtype, offset
        self.shape = len(indptr) - 1, cols
        self.counts = Counts()
        # Row r of the pattern is row _kept_as[r] of the cache, if that is not negative.
        self._kept_as = np.empty(0, np.int32)
        self._kept_indptr = np.zeros(1, np.int64)
        self._kept = torch.empty(0, dtype=dtype)

    @classmethod
    def open(
        cls,
        path: AnyPath,
        offset: int,
        indptr: Tensor,
        cols: int,
        *,
        dtype: torch.dtype = torch.int32,
        direct: bool = True,
    ) -> DiskPattern:
        """Open a pattern.

        Parameters
        ----------
        path : path
            Holds the column numbers of one row after another, ``indices.npy`` of a graph directory
            for instance.
        offset : int
            Bytes before the first number.
        indptr : Tensor int64 [rows + 1]
            Where each row begins among the numbers.
        cols : int
        dtype : int32 or int64
        direct : bool
            Read past the page cache where that is possible.

        Raises
        ------
        InputError
            If the file cannot be opened, or is too short for the offsets.
        """
        source = Path(path)
        check_integer("offset", offset, 0)
        check_integer("cols", cols, 0)
        if dtype not in _DTYPES:
            raise InputError(f"{source}: column numbers must be int32 or int64, not {dtype}")
        if indptr.dtype != torch.int64 or indptr.dim() != 1 or len(indptr) < 1:
            raise InputError(f"{source}: indptr must be int64 [rows + 1]")
        if int(indptr[0]) != 0 or bool((indptr[1:] < indptr[:-1]).any()):
            raise InputError(f"{source}: indptr must rise from 0")
        if not os.path.isfile(source):
            raise InputError(f"{source}: no such file")
        reader = open_reader(source, direct=direct)
        needed = offset + int(indptr[-1]) * dtype.itemsize
        if reader.size < needed:
            raise InputError(
                f"{source}: {reader.size} bytes, but {int(indptr[-1])} column numbers from byte "
                f"{offset} on need {needed}; it was cut off"
            )
        return cls((source, reader), offset, indptr, cols, dtype)

    def keep(self, uses: Tensor, capacity: int) -> None:
        """Read the rows that are worth most into memory, in place of what was kept before.

        Parameters
        ----------
        uses : Tensor [rows]
            How often each row will be asked for: `uses` of the graph, or `visit_probability`.
        capacity : int
            Bytes of column numbers that are kept.
        """
        rows = self.shape[0]
        check_integer("capacity of a neighbour cache, in bytes,", capacity, 0)
        if uses.shape != (rows,):
            raise InputError(f"uses must be [{rows}], got {list(uses.shape)}")
        lengths = np.diff(self.indptr.numpy())
        worth = uses.double().numpy() / np.maximum(lengths, 1)
        order = np.argsort(-worth, kind="stable")
        order = order[lengths[order] > 0]
        fits = np.cumsum(lengths[order]) * self.dtype.itemsize <= capacity
        kept = np.sort(order[fits])
        self._kept_as = np.empty(0, np.int32)
        indptr, columns = self._read_rows(kept)
        self._check(columns)
        self._kept_as = np.full(rows, -1, np.int32)
        self._kept_as[kept] = np.arange(len(kept))
        self._kept_indptr, self._kept = indptr, columns

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Some rows, in the order asked for.

        Parameters
        ----------
        ids : Tensor int64 [k]

        Returns
        -------
        indptr : Tensor int64 [k + 1]
        columns : Tensor [nnz]

        Raises
        ------
        InputError
            If an id is out of range, or the file cannot be read or holds a column that is.
        """
        wanted = check_ids(ids, self.shape[0], str(self.path))
        kept = self._kept_rows(wanted)
        hits = np.flatnonzero(kept >= 0)
        indptr, columns = self._read_rows(wanted, skip=hits)
        begins = self._kept_indptr[kept[hits]]
        lengths = np.diff(indptr)[hits]
        begin, length, to = self._bytes(begins, lengths, indptr[hits])
        copy_stretches(as_bytes(self._kept), begin, length, to, as_bytes(columns))
        self._check(columns)
        self.counts.add(
            rows_needed=len(wanted),
            bytes_needed=len(columns) * self.dtype.itemsize,
            hits=len(hits),
            rows_read=len(wanted) - len(hits),
        )
        return torch.from_numpy(indptr), columns

    def neighbors(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Single entries of rows: what sampling needs of a long one.

        Parameters
        ----------
        ids : Tensor int64 [k]
            Rows; may repeat.
        numbers : Tensor int64 [k]
            Which entry of its row, from 0.

        Returns
        -------
        Tensor [k]
            Column numbers.

        Raises
        ------
        InputError
            As `rows`, and if a row has no such entry.
        """
        wanted = check_ids(ids, self.shape[0], str(self.path))
        begins = self.indptr.numpy()[wanted]
        places = begins + numbers.numpy()
        wrong = (places < begins) | (places >= self.indptr.numpy()[wanted + 1])
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            row, number = int(wanted[first]), int(numbers[first])
            raise InputError(f"{self.path}: row {row} has no entry {number}")
        columns = torch.empty(len(wanted), dtype=self.dtype)
        kept = self._kept_rows(wanted)
        hits, missing = np.flatnonzero(kept >= 0), np.flatnonzero(kept < 0)
        inside = self._kept_indptr[kept[hits]] + numbers.numpy()[hits]
        columns[torch.from_numpy(hits)] = self._kept[torch.from_numpy(inside)]
        self._read(places[missing], np.ones(len(missing), np.int64), missing, columns)
        self._check(columns)
        self.counts.add(
            rows_needed=len(wanted),
            bytes_needed=len(wanted) * self.dtype.itemsize,
            hits=len(hits),
            rows_read=len(missing),
        )
        return columns

    def _kept_rows(self, wanted: Int64Array) -> npt.NDArray[np.int32]:
        if len(self._kept_as) == 0:
            return np.full(len(wanted), -1, np.int32)
        return self._kept_as[wanted]

    def _read_rows(
        self, wanted: Int64Array, skip: Int64Array | None = None
    ) -> tuple[Int64Array, Tensor]:
        """Offsets and columns of some rows; those at the places `skip` are left undefined."""
        begins = self.indptr.numpy()[wanted]
        lengths = self.indptr.numpy()[wanted + 1] - begins
        indptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        columns = torch.empty(int(indptr[-1]), dtype=self.dtype)
        read = np.flatnonzero(lengths)
        if skip is not None:
            read = np.setdiff1d(read, skip, assume_unique=True)
        self._read(begins[read], lengths[read], indptr[read], columns)
        return indptr, columns

    def _read(
        self, begins: Int64Array, lengths: Int64Array, to: Int64Array, columns: Tensor
    ) -> None:
        """Stretches of the file's numbers, into stretches of `columns`."""
        first, size, target = self._bytes(begins, lengths, to)
        gap = GAP if self._reader.alignment > 1 else 0
        ticket = self._reader.read(first + self._offset, size, target, as_bytes(columns), gap)
        self.counts.add(bytes_read=ticket.bytes)
        finish(ticket, self.path)

    def _bytes(self, *numbers: Int64Array) -> list[Int64Array]:
        return [array * self.dtype.itemsize for array in numbers]

    def _check(self, columns: Tensor) -> None:
        """Whoever takes column numbers from a file makes sure that they are some."""
        if len(columns) == 0:
            return
        low, high = (int(end) for end in torch.aminmax(columns))
        if low < 0 or high >= self.shape[1]:
            raise InputError(
                f"{self.path}: damaged: names column {low if low < 0 else high}, but there are "
                f"columns 0 to {self.shape[1] - 1}"
            )
