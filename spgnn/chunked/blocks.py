"""Rows of a sparse matrix in blocks, one a chunk: views of memory, or read from files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.chunked.table import as_bytes
from spgnn.direct import PAGE, Bytes, DirectFile, Transfers, padded, page_buffer
from spgnn.errors import InputError
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR


class Blocks(ABC):
    """A sparse matrix [rows, columns] in blocks of neighbouring rows.

    Parameters
    ----------
    bounds : sequence of int [K + 1]
        Block k has rows [bounds[k], bounds[k + 1]).
    columns : int
    """

    def __init__(self, bounds: Sequence[int], columns: int) -> None:
        self.bounds, self.columns = tuple(bounds), columns

    @property
    def number(self) -> int:
        """K."""
        return len(self.bounds) - 1

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that are read to go through all blocks once; 0 in memory."""

    @abstractmethod
    def row_lengths(self, number: int) -> Tensor:
        """Nonzeros of each row of a block, int64."""

    @abstractmethod
    def stream(self) -> Iterator[tuple[int, CSR]]:
        """All blocks in turn, each valid until the next one is asked for."""


class MemoryBlocks(Blocks):
    """Blocks in memory.

    Parameters
    ----------
    blocks : sequence of CSR [rows, columns]
    columns : int
    """

    def __init__(self, blocks: Sequence[CSR], columns: int) -> None:
        super().__init__(list(accumulate((b.shape[0] for b in blocks), initial=0)), columns)
        self._blocks = list(blocks)

    @classmethod
    def of(cls, matrix: CSR, bounds: Sequence[int]) -> MemoryBlocks:
        """Views of a matrix in memory."""
        return cls([rows_of(matrix, *pair) for pair in pairwise(bounds)], matrix.shape[1])

    @property
    def nbytes(self) -> int:
        """Nothing is read."""
        return 0

    def row_lengths(self, number: int) -> Tensor:
        """Nonzeros of each row of a block."""
        return self._blocks[number].row_lengths

    def stream(self) -> Iterator[tuple[int, CSR]]:
        """All blocks in turn."""
        yield from enumerate(self._blocks)


def rows_of(matrix: CSR, first: int, last: int) -> CSR:
    """Rows [first, last) of a matrix without scalings; its columns and values are views."""
    begin, end = int(matrix.indptr[first]), int(matrix.indptr[last])
    values = None if matrix.values is None else matrix.values[begin:end]
    indptr = matrix.indptr[first : last + 1] - begin
    shape = last - first, matrix.shape[1]
    return CSR(Pattern.trusted(indptr, matrix.indices[begin:end], shape), values)


@dataclass(frozen=True)
class Stretch:
    """Position of an array's numbers in a file."""

    path: Path
    offset: int = 0


class FileBlocks(Blocks):
    """Blocks that are read from a disk, the next one while one is worked on.

    Parameters
    ----------
    bounds, columns
    indptr, indices, values : Stretch
        Row offsets, int64, from 0; columns, int32 where they fit; float32.
    counts : Transfers
    checked : bool
        Whether columns are known to be right.
    """

    def __init__(
        self,
        bounds: Sequence[int],
        columns: int,
        *,
        indptr: Stretch,
        indices: Stretch,
        values: Stretch | None,
        counts: Transfers,
        checked: bool = False,
    ) -> None:
        super().__init__(bounds, columns)
        self._where = indptr, indices, values
        self._files = [None if s is None else DirectFile(s.path, counts) for s in self._where]
        self._index = index_dtype(columns)
        self._checked = checked
        starts = self._read_starts()
        self._starts = starts
        self._nonzeros: list[int] = starts.diff().tolist()
        self._buffers: list[dict[str, Bytes]] = []

    @property
    def nbytes(self) -> int:
        """Row offsets, columns, and values if there are any."""
        entry = self._index.itemsize + (0 if self._where[2] is None else 4)
        offsets = 8 * (self.bounds[-1] + self.number)
        return offsets + entry * sum(self._nonzeros)

    def stream(self) -> Iterator[tuple[int, CSR]]:
        """All blocks in turn; the memory of one is used again for the next but one."""
        if not self._buffers:
            self._buffers = [{}, {}]
        with ThreadPoolExecutor(1, "blocks") as reader:
            ahead: Future[CSR] = reader.submit(self._read, 0)
            for number in range(self.number):
                block = ahead.result()
                if number + 1 < self.number:
                    ahead = reader.submit(self._read, number + 1)
                yield number, block
        self._checked = True

    def row_lengths(self, number: int) -> Tensor:
        """Read from the row offsets alone."""
        first, last = self.bounds[number : number + 2]
        return self._numbers(0, {}, first, last + 1, torch.int64).diff()

    def _read_starts(self) -> Tensor:
        """Offset of each block's first nonzero, int64 [K + 1]."""
        file, where = self._files[0], self._where[0]
        assert file is not None
        found = [int(file.read(where.offset + 8 * b, 8).view(np.int64)[0]) for b in self.bounds]
        starts = torch.tensor(found)
        if found[0] < 0 or bool((starts.diff() < 0).any()):
            raise InputError(f"{where.path}: row offsets must rise from 0")
        return starts

    def _read(self, number: int) -> CSR:
        first, last = self.bounds[number : number + 2]
        begin, end = (int(s) for s in self._starts[number : number + 2])
        kept = self._buffers[number % 2]
        indptr = self._numbers(0, kept, first, last + 1, torch.int64) - begin
        indices = self._numbers(1, kept, begin, end, self._index)
        values = None
        if self._where[2] is not None:
            values = self._numbers(2, kept, begin, end, torch.float32)
        if not self._checked:
            self._check(indptr, indices, end - begin)
        shape = last - first, self.columns
        return CSR(Pattern.trusted(indptr, indices, shape), values)

    def _numbers(
        self, which: int, kept: dict[str, Bytes], begin: int, end: int, dtype: torch.dtype
    ) -> Tensor:
        file, where = self._files[which], self._where[which]
        assert file is not None
        assert where is not None
        nbytes = (end - begin) * dtype.itemsize
        if not nbytes:
            return torch.empty(0, dtype=dtype)
        name = str(which)
        if name not in kept or len(kept[name]) < nbytes + 2 * PAGE:
            kept.pop(name, None)
            kept[name] = page_buffer(max(nbytes, self._longest(which)) + 2 * PAGE)
        found = file.read(where.offset + begin * dtype.itemsize, nbytes, kept[name])
        return torch.from_numpy(found).view(dtype)

    def _longest(self, which: int) -> int:
        if which == 0:
            return 8 * (1 + max(b - a for a, b in pairwise(self.bounds)))
        return max(self._nonzeros) * (self._index.itemsize if which == 1 else 4)

    def _check(self, indptr: Tensor, indices: Tensor, nonzeros: int) -> None:
        """Refuse what would read elsewhere than in the operand."""
        rises = bool((indptr.diff() >= 0).all()) and int(indptr[-1]) == nonzeros
        if not rises or int(indptr[0]):
            raise InputError(f"{self._where[0].path}: row offsets must rise")
        if nonzeros and not 0 <= int(indices.min()) <= int(indices.max()) < self.columns:
            raise InputError(f"{self._where[1].path}: columns must be in [0, {self.columns})")


class BlockWriter:
    """Writes blocks to files, one after another.

    Parameters
    ----------
    directory : Path
    name : str
        Of the matrix; the files' names begin with it.
    columns : int
    weighted : bool
    counts : Transfers
    """

    def __init__(
        self, directory: Path, name: str, columns: int, *, weighted: bool, counts: Transfers
    ) -> None:
        self._columns, self._counts = columns, counts
        names = ["indptr", "indices", *(["values"] if weighted else [])]
        self._paths = [directory / f"{name}.{array}" for array in names]
        self._files = [DirectFile(path, counts, create=True) for path in self._paths]
        self._pending = [np.empty(0, np.uint8) for _ in names]
        self._at = [0 for _ in names]
        self._bounds, self._nonzeros = [0], 0
        self._append(0, torch.zeros(1, dtype=torch.int64))

    def add(self, block: CSR) -> None:
        """One more block."""
        self._append(0, block.indptr[1:] + self._nonzeros)
        self._append(1, block.indices.to(index_dtype(self._columns)))
        if len(self._files) > 2:
            assert block.values is not None
            self._append(2, block.values.float())
        self._nonzeros += block.nnz
        self._bounds.append(self._bounds[-1] + block.shape[0])

    def finish(self) -> FileBlocks:
        """All blocks, ready to be read."""
        for which in range(len(self._files)):
            self._flush(which, 0)
            self._files[which].close()
        stretches = [Stretch(path) for path in self._paths]
        return FileBlocks(
            self._bounds,
            self._columns,
            indptr=stretches[0],
            indices=stretches[1],
            values=stretches[2] if len(stretches) > 2 else None,
            counts=self._counts,
            checked=True,
        )

    def _append(self, which: int, numbers: Tensor) -> None:
        joined = np.concatenate((self._pending[which], as_bytes(numbers.contiguous())))
        self._pending[which] = joined
        self._flush(which, PAGE - 1)

    def _flush(self, which: int, kept: int) -> None:
        """Write whole pages, or all if nothing is to be kept."""
        pending = self._pending[which]
        nbytes = len(pending) // PAGE * PAGE if kept else len(pending)
        if nbytes:
            self._files[which].write(self._at[which], pending[:nbytes])
            self._at[which] += padded(nbytes)
            self._pending[which] = pending[nbytes:].copy()


class Collector:
    """Keeps blocks in memory, or writes them to a directory.

    Parameters
    ----------
    name : str
        Of the matrix.
    columns : int
    weighted : bool
    directory : Path, optional
        Without, blocks stay in memory.
    counts : Transfers
    """

    def __init__(
        self,
        name: str,
        columns: int,
        *,
        weighted: bool,
        directory: Path | None,
        counts: Transfers,
    ) -> None:
        self._columns, self._kept = columns, list[CSR]()
        self._writer = None
        if directory is not None:
            self._writer = BlockWriter(directory, name, columns, weighted=weighted, counts=counts)

    def add(self, block: CSR) -> None:
        """One more block, which is copied."""
        if self._writer is not None:
            self._writer.add(block)
            return
        values = None if block.values is None else block.values.clone()
        arrays = block.indptr.clone(), block.indices.to(index_dtype(self._columns)).clone()
        self._kept.append(CSR(Pattern.trusted(*arrays, (block.shape[0], self._columns)), values))

    def finish(self) -> Blocks:
        """All of them."""
        if self._writer is not None:
            return self._writer.finish()
        return MemoryBlocks(self._kept, self._columns)
