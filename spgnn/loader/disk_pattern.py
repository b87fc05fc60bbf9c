"""The structure of a graph that lies on a disk, read in blocks behind a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath
from spgnn.layout import Int64Array
from spgnn.loader.cache import CachedRows, PolicyName
from spgnn.loader.rows import (
    Counts,
    DiskRows,
    MemoryRows,
    Rows,
    StackedRows,
    as_bytes,
    check_ids,
    finish_read,
    open_reader,
)
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

BLOCK = 512  # bytes; what most disks read at least
_PIECE = 1 << 22  # nonzeros that are worked on at once


class DiskPattern:
    """A pattern whose column numbers are read when they are asked for; made by `open`.

    Row offsets are in memory (or mapped). Column numbers are a table of blocks of the file, so a
    cache keeps blocks, and short rows that lie in one block are read together (AliGraph, VLDB'19,
    caches whole neighbourhoods). Threads may call it at the same time.

    Attributes
    ----------
    path : Path
    indptr : Tensor int64 [rows + 1]
    shape : (rows, cols)
    dtype : torch.dtype
        Of the column numbers, int32 or int64.
    blocks : Rows
        The file, a block a row; perhaps behind a cache.
    block_bytes : int
    """

    def __init__(
        self,
        file: tuple[Path, _native.Reader, int],
        indptr: Tensor,
        cols: int,
        dtype: torch.dtype,
        blocks: Rows,
    ) -> None:
        self._file = file
        self.path, self._reader, self._offset = file
        self.indptr, self.dtype, self.blocks = indptr, dtype, blocks
        self.shape = len(indptr) - 1, cols
        self.block_bytes = blocks.row_bytes

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
        block_bytes: int | None = None,
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
            Places among the numbers at which rows begin.
        cols : int
        dtype : int32 or int64
        direct : bool
            Read past the page cache where that is possible.
        block_bytes : int, optional
            A multiple of 8; by default 512, or as much as direct reads take at least.

        Raises
        ------
        InputError
            If the file cannot be opened, or is too short for the offsets.
        """
        source = Path(path)
        check_integer("offset", offset, 0)
        check_integer("cols", cols, 0)
        if dtype not in (torch.int32, torch.int64):
            raise InputError(f"{source}: column numbers must be int32 or int64, not {dtype}")
        if indptr.dtype != torch.int64 or indptr.dim() != 1 or len(indptr) < 1:
            raise InputError(f"{source}: indptr must be int64 [rows + 1]")
        if int(indptr[0]) != 0 or bool((indptr[1:] < indptr[:-1]).any()):
            raise InputError(f"{source}: indptr must rise from 0")
        reader = open_reader(source, direct=direct)
        needed = offset + int(indptr[-1]) * dtype.itemsize
        if reader.size < needed:
            raise InputError(
                f"{source}: {reader.size} bytes, but {int(indptr[-1])} column numbers from byte "
                f"{offset} on need {needed}; it was cut off"
            )
        size = max(BLOCK, reader.alignment) if block_bytes is None else block_bytes
        if check_integer("block_bytes", size, 8) % 8:
            raise InputError(f"block_bytes must be a multiple of 8, got {size}")
        whole, rest = divmod(needed, size)
        width = size // torch.int64.itemsize
        blocks: Rows = DiskRows.open(source, 0, whole, width, torch.int64, direct=direct, gap=0)
        if rest:  # a last block that is not full is in memory
            last, one = torch.zeros(1, width, dtype=torch.int64), np.zeros(1, np.int64)
            ticket = reader.read(one + whole * size, one + rest, one, as_bytes(last), 0)
            finish_read(ticket, source)
            blocks = StackedRows([blocks, MemoryRows(last)])
        return cls((source, reader, offset), indptr, cols, dtype, blocks)

    def cached(
        self, policy: PolicyName, capacity: int, row_scores: Tensor | None = None
    ) -> DiskPattern:
        """The same pattern with a neighbour cache before it.

        Parameters
        ----------
        policy, capacity
            As of `CachedRows`; what is kept are blocks.
        row_scores : Tensor [rows], optional
            How often each row will be asked for (`degrees_of`). A block's score is the sum of those
            of its rows.

        Raises
        ------
        InputError
            As `CachedRows`, and if there is not one score a row.
        """
        scores = None if row_scores is None else self.block_scores(row_scores)
        blocks = CachedRows(self.blocks, policy, capacity, scores=scores)
        return DiskPattern(self._file, self.indptr, self.shape[1], self.dtype, blocks)

    def block_scores(self, row_scores: Tensor) -> Tensor:
        """Sums of the scores of the rows that lie in each block, float64 [blocks]."""
        if row_scores.shape != (self.shape[0],):
            raise InputError(
                f"scores of rows must be [{self.shape[0]}], got {list(row_scores.shape)}"
            )
        first, last = self._blocks_of(*self._bytes_of(np.arange(self.shape[0])))
        scores, ends = row_scores.double().numpy() * (last > first), self.blocks.rows + 1
        steps = np.bincount(first, scores, ends) - np.bincount(last, scores, ends)
        return torch.from_numpy(np.cumsum(steps)[:-1])

    @property
    def counts(self) -> Counts:
        """Blocks that were asked for, found in the cache, and read."""
        return self.blocks.counts

    @property
    def nnz(self) -> int:
        """Number of column numbers."""
        return int(self.indptr[-1])

    @property
    def row_lengths(self) -> Tensor:
        """Entries of each row, int64 [rows]."""
        return self.indptr.diff()

    @property
    def indices(self) -> DiskColumns:
        """All column numbers; stretches of them are read when asked for."""
        return DiskColumns(self)

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
        begins, lengths = self._bytes_of(check_ids(ids, self.shape[0], str(self.path)))
        first, last = self._blocks_of(begins, lengths)
        counts = last - first
        before = np.cumsum(counts) - counts
        blocks = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
        distinct = np.unique(blocks)
        gathered = self.blocks.gather(torch.from_numpy(distinct))
        # The blocks of a stretch are neighbours among the distinct ones as well.
        place = np.searchsorted(distinct, first)
        source = place * self.block_bytes + begins - first * self.block_bytes
        ends = np.cumsum(lengths)
        columns = torch.empty(int(lengths.sum()) // self.dtype.itemsize, dtype=self.dtype)
        _native.copy_stretches(
            as_bytes(gathered), source, lengths, ends - lengths, as_bytes(columns)
        )
        self._check(columns)
        indptr = np.concatenate((np.zeros(1, np.int64), ends // self.dtype.itemsize))
        return torch.from_numpy(indptr), columns

    def stretch(self, first: int, last: int) -> Tensor:
        """Column numbers [first, last), by one long read past any cache."""
        columns = torch.empty(last - first, dtype=self.dtype)
        size = self.dtype.itemsize
        begin, length = np.array([first * size + self._offset]), np.array([(last - first) * size])
        if last > first:
            ticket = self._reader.read(begin, length, np.zeros(1, np.int64), as_bytes(columns), 0)
            finish_read(ticket, self.path)
        self._check(columns)
        return columns

    def _bytes_of(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Bytes of the file at which rows begin, and their lengths."""
        indptr, size = self.indptr.numpy(), self.dtype.itemsize
        begins = indptr[rows]
        return begins * size + self._offset, (indptr[rows + 1] - begins) * size

    def _blocks_of(self, begins: Int64Array, lengths: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Blocks [first, last) that stretches of the file lie in; none of an empty one."""
        first = begins // self.block_bytes
        last = -(-(begins + lengths) // self.block_bytes)
        return first, np.where(lengths > 0, last, first)

    def _check(self, columns: Tensor) -> None:
        """Numbers from a file may be anything."""
        if len(columns) == 0:
            return
        low, high = (int(end) for end in torch.aminmax(columns))
        if low < 0 or high >= self.shape[1]:
            raise InputError(
                f"{self.path}: damaged: names column {low if low < 0 else high}, but there are "
                f"columns 0 to {self.shape[1] - 1}"
            )


class DiskColumns:
    """The column numbers of a pattern on a disk, as far as they are sliced."""

    def __init__(self, pattern: DiskPattern) -> None:
        self._pattern = pattern

    def __len__(self) -> int:
        return self._pattern.nnz

    def __getitem__(self, which: slice) -> Tensor:
        first, last, _ = which.indices(len(self))
        return self._pattern.stretch(first, max(first, last))


def degrees_of(pattern: Pattern | CSR | DiskPattern) -> Tensor:
    """Out-degrees, the number of rows that name a vertex, int64 [cols]: scores of ``"degree"``."""
    indptr = pattern.indptr.numpy()
    total = torch.zeros(pattern.shape[1], dtype=torch.int64)
    first, n = 0, len(indptr) - 1
    while first < n:
        last = int(np.searchsorted(indptr, indptr[first] + _PIECE, side="right")) - 1
        last = min(max(last, first + 1), n)
        columns = pattern.indices[indptr[first] : indptr[last]]
        total += torch.bincount(columns, minlength=len(total))
        first = last
    return total
