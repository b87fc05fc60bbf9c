"""The structure of a graph that lies on a disk, read in blocks behind a cache."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.direct import as_bytes
from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath
from spgnn.kernels.recycling import new_rows
from spgnn.layout import Int64Array
from spgnn.loader.cached_rows import CachedRows, PolicyName
from spgnn.loader.feature_rows import (
    Counts,
    DiskRows,
    Rows,
    check_ids,
    finish_read,
    open_reader,
)
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

BLOCK = 512  # bytes; what most disks read at least
_PIECE = 1 << 22  # nonzeros that are worked on at once


class DiskPattern:
    """A pattern whose column numbers are read when they are needed.

    Row offsets are in memory (or mapped). Column numbers are a table of blocks of the file, so a
    cache keeps blocks, and short rows that lie in one block are read together (AliGraph, VLDB'19,
    caches whole neighbourhoods). A last block that is not full is in memory. Threads may call it at
    the same time.

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
        Of the column numbers.
    direct : bool
        Read past the page cache where that is possible.
    block_bytes : int, optional
        A multiple of 8; by default 512, or as much as direct reads take at least.

    Attributes
    ----------
    path : Path
    indptr : Tensor int64 [rows + 1]
    shape : (rows, cols)
    blocks : Rows
        The full blocks of the file, a block a row; perhaps behind a cache.

    Raises
    ------
    InputError
        If the file cannot be opened, or is too short for the offsets.
    """

    def __init__(
        self,
        path: AnyPath,
        offset: int,
        indptr: Tensor,
        cols: int,
        *,
        dtype: torch.dtype = torch.int32,
        direct: bool = True,
        block_bytes: int | None = None,
    ) -> None:
        self.path, self._offset = Path(path), check_integer("offset", offset, 0)
        check_integer("cols", cols, 0)
        if dtype not in (torch.int32, torch.int64):
            raise InputError(f"{path}: column numbers must be int32 or int64, not {dtype}")
        if indptr.dtype != torch.int64 or indptr.dim() != 1 or len(indptr) < 1:
            raise InputError(f"{path}: indptr must be int64 [rows + 1]")
        if int(indptr[0]) != 0 or bool((indptr[1:] < indptr[:-1]).any()):
            raise InputError(f"{path}: indptr must rise from 0")
        self.indptr, self.dtype, self.shape = indptr, dtype, (len(indptr) - 1, cols)
        self._reader = open_reader(self.path, direct=direct)
        needed = offset + self.nnz * dtype.itemsize
        if self._reader.size < needed:
            raise InputError(
                f"{path}: {self._reader.size} bytes, but {self.nnz} column numbers from byte "
                f"{offset} on need {needed}; it was cut off"
            )
        size = max(BLOCK, self._reader.alignment) if block_bytes is None else block_bytes
        if check_integer("block_bytes", size, 8) % 8:
            raise InputError(f"block_bytes must be a multiple of 8, got {size}")
        self.block_bytes = size
        whole, rest = divmod(needed, size)
        width = size // torch.int64.itemsize
        self.blocks: Rows = DiskRows(path, 0, whole, width, torch.int64, direct=direct, gap=0)
        self._last_block = torch.zeros(1, width, dtype=torch.int64)
        if rest:
            self._read(whole * size, rest, self._last_block)

    def cached(
        self, policy: PolicyName, capacity: int, row_scores: Tensor | None = None
    ) -> DiskPattern:
        """The same pattern with its blocks behind a cache, as `CachedRows`.

        `row_scores` [rows] say how often each row will be asked for (`degrees_of`); a block's score
        is the sum of those of its rows. An InputError refuses what does not fit.
        """
        scores = None if row_scores is None else self.block_scores(row_scores)
        same = copy(self)
        same.blocks = CachedRows(self.blocks, policy, capacity, scores=scores)
        return same

    def block_scores(self, row_scores: Tensor) -> Tensor:
        """Sums of the scores of the rows that lie in each full block, float64 [blocks]."""
        if row_scores.shape != (self.shape[0],):
            raise InputError(
                f"scores of rows must be [{self.shape[0]}], got {list(row_scores.shape)}"
            )
        first, last = self._blocks_of(*self._bytes_of(np.arange(self.shape[0])))
        scores, ends = row_scores.double().numpy() * (last > first), self.blocks.rows + 2
        steps = np.bincount(first, scores, ends) - np.bincount(last, scores, ends)
        return torch.from_numpy(np.cumsum(steps)[: self.blocks.rows])

    @property
    def counts(self) -> Counts:
        """Blocks that were asked for, hits of the cache, and blocks read."""
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
        """All column numbers; stretches of them are read when they are sliced."""
        return DiskColumns(self)

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Some rows, int64 [k], in this order: indptr int64 [k + 1], and columns [nnz].

        An InputError says which id is out of range, or that the file cannot be read or holds a
        column that is.
        """
        begins, lengths = self._bytes_of(check_ids(ids, self.shape[0], str(self.path)))
        first, last = self._blocks_of(begins, lengths)
        counts = last - first
        before = np.cumsum(counts) - counts
        blocks = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
        distinct = np.unique(blocks)
        gathered = new_rows(len(distinct), self._last_block)
        full = int(np.searchsorted(distinct, self.blocks.rows))
        self.blocks.gather(torch.from_numpy(distinct[:full]), gathered[:full])
        gathered[full:] = self._last_block
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
        columns, size = torch.empty(last - first, dtype=self.dtype), self.dtype.itemsize
        if last > first:
            self._read(first * size + self._offset, (last - first) * size, columns)
        self._check(columns)
        return columns

    def _read(self, first: int, length: int, out: Tensor) -> None:
        """So many bytes of the file, from one on."""
        begin, size, place = (np.array([number]) for number in (first, length, 0))
        finish_read(self._reader.read(begin, size, place, as_bytes(out), 0), self.path)

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
