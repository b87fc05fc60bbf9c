"""Rows of a sparse matrix in blocks, one a chunk: views of memory, or read from files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.direct import PAGE, Bytes, DirectFile, Transfers, as_bytes, padded, page_buffer
from spgnn.errors import InputError
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR


class Blocks:
    """A sparse matrix [rows, columns] in blocks of neighbouring rows, in memory."""

    nbytes = 0  # in files

    def __init__(self, blocks: Sequence[CSR], columns: int) -> None:
        self.bounds = (*accumulate((block.shape[0] for block in blocks), initial=0),)
        self.columns, self._blocks = columns, list(blocks)

    @classmethod
    def of(cls, matrix: CSR, bounds: Sequence[int]) -> Blocks:
        """Views of a matrix in memory."""
        return Blocks([rows_of(matrix, *pair) for pair in pairwise(bounds)], matrix.shape[1])

    def row_lengths(self, number: int) -> Tensor:
        """Nonzeros of each row of a block, int64; reads row offsets alone."""
        return self._blocks[number].row_lengths

    def stream(self) -> Iterator[tuple[int, CSR]]:
        """All blocks in turn, each valid until the next one is asked for."""
        yield from enumerate(self._blocks)

    def start(self, row: int) -> int:
        """Nonzeros before a row of the only block."""
        return int(self._blocks[0].indptr[row])

    def cut(self, bounds: Sequence[int]) -> Blocks:
        """The only block in several."""
        return self.of(self._blocks[0], bounds)

    def nonzeros(self, mask: Tensor | None = None) -> int:
        """Nonzeros in some rows, bool [rows], or in all of them."""
        total = 0
        for number, (first, last) in enumerate(pairwise(self.bounds)):
            lengths = self.row_lengths(number)
            total += int((lengths if mask is None else lengths[mask[first:last]]).sum())
        return total


def rows_of(matrix: CSR, first: int, last: int) -> CSR:
    """Rows [first, last) of a matrix without scalings; its columns and values are views."""
    begin, end = int(matrix.indptr[first]), int(matrix.indptr[last])
    values = None if matrix.values is None else matrix.values[begin:end]
    indptr = matrix.indptr[first : last + 1] - begin
    shape = last - first, matrix.shape[1]
    return CSR(Pattern.trusted(indptr, matrix.indices[begin:end], shape), values)


@dataclass(frozen=True)
class FileExtent:
    """Position of an array's numbers in a file."""

    path: Path
    offset: int = 0


class _FileArray:
    """Numbers of one dtype in a file, and two buffers that stretches of it are read into."""

    def __init__(
        self, where: FileExtent, dtype: torch.dtype, counts: Transfers, width: int = 1
    ) -> None:
        self.path, self.dtype, self._width = where.path, dtype, width
        self._offset, self._file = where.offset, DirectFile(where.path, counts)
        self._buffers: dict[int, Bytes] = {}
        self.longest = 0  # numbers of the longest stretch

    def read(self, begin: int, end: int, buffer: int | None = None) -> Tensor:
        item = self.dtype.itemsize * self._width
        nbytes, shape = (end - begin) * item, (-1, self._width)[: 1 + (self._width > 1)]
        if not nbytes:
            return torch.empty(0, dtype=self.dtype).view(0, *shape[1:])
        into = None
        if buffer is not None:
            if buffer not in self._buffers:
                self._buffers[buffer] = page_buffer(self.longest * item + 2 * PAGE)
            into = self._buffers[buffer]
        read = self._file.read(self._offset + begin * item, nbytes, into)
        return torch.from_numpy(read).view(self.dtype).view(shape)


class FileBlocks(Blocks):
    """Blocks that are read from a disk, the next one while one is worked on.

    Values are `width` numbers of each nonzero.
    """

    def __init__(
        self,
        bounds: Sequence[int],
        columns: int,
        *,
        indptr: FileExtent,
        indices: FileExtent,
        values: FileExtent | None,
        counts: Transfers,
        checked: bool = False,
        width: int = 1,
    ) -> None:
        self.bounds, self.columns, self._checked = tuple(bounds), columns, checked
        where: dict[str, Any] = {"indptr": indptr, "indices": indices, "values": values}
        self._again = partial(FileBlocks, columns=columns, counts=counts, width=width, **where)
        rows = (self.bounds[-1] + 1,)
        self._offsets = np.memmap(indptr.path, "<i8", "r", indptr.offset, rows)
        self._indptr = _FileArray(indptr, torch.int64, counts)
        self._indices = _FileArray(indices, index_dtype(columns), counts)
        self._values = None
        if values is not None:
            self._values = _FileArray(values, torch.float32, counts, width)
        starts = torch.cat([self._indptr.read(bound, bound + 1) for bound in self.bounds])
        if int(starts[0]) < 0 or bool((starts.diff() < 0).any()):
            raise InputError(f"{indptr.path}: row offsets must rise from 0")
        self._starts: list[int] = starts.tolist()
        self._indptr.longest = 1 + max(b - a for a, b in pairwise(self.bounds))
        entry = self._indices.dtype.itemsize
        for array in (self._indices, self._values):
            if array is not None:
                array.longest = int(starts.diff().max())
        # Row offsets, columns, and values if there are any.
        entry += 0 if values is None else 4 * width
        offsets = 8 * (self.bounds[-1] + len(self.bounds) - 1)
        self.nbytes = offsets + entry * int(starts.diff().sum())

    def stream(self) -> Iterator[tuple[int, CSR]]:
        """All blocks in turn; the memory of one is used again for the next but one."""
        blocks = len(self.bounds) - 1
        with ThreadPoolExecutor(1, "blocks") as reader:
            ahead: Future[CSR] = reader.submit(self._read, 0)
            for number in range(blocks):
                block = ahead.result()
                if number + 1 < blocks:
                    ahead = reader.submit(self._read, number + 1)
                yield number, block
        self._checked = True

    def start(self, row: int) -> int:
        return int(self._offsets[row])

    def cut(self, bounds: Sequence[int]) -> FileBlocks:
        return self._again(bounds=bounds, checked=self._checked)

    def row_lengths(self, number: int) -> Tensor:
        first, last = self.bounds[number : number + 2]
        return self._indptr.read(first, last + 1).diff()

    def _read(self, number: int) -> CSR:
        first, last = self.bounds[number : number + 2]
        begin, end = self._starts[number : number + 2]
        buffer = number % 2
        indptr = self._indptr.read(first, last + 1, buffer) - begin
        indices = self._indices.read(begin, end, buffer)
        values = None if self._values is None else self._values.read(begin, end, buffer)
        if not self._checked:
            self._check(indptr, indices, end - begin)
        return CSR(Pattern.trusted(indptr, indices, (last - first, self.columns)), values)

    def _check(self, indptr: Tensor, indices: Tensor, nonzeros: int) -> None:
        """Refuse what would read elsewhere than in the operand."""
        rises = bool((indptr.diff() >= 0).all()) and int(indptr[-1]) == nonzeros
        if not rises or int(indptr[0]):
            raise InputError(f"{self._indptr.path}: row offsets must rise")
        if nonzeros and not 0 <= int(indices.min()) <= int(indices.max()) < self.columns:
            raise InputError(f"{self._indices.path}: columns must be in [0, {self.columns})")


class _Appended:
    """A file that numbers are written to, one stretch after another, in whole pages."""

    def __init__(self, path: Path, counts: Transfers) -> None:
        self._file, self._end = DirectFile(path, counts, create=True), 0
        self._pending = np.empty(0, np.uint8)

    def add(self, numbers: Tensor) -> None:
        self._pending = np.concatenate((self._pending, as_bytes(numbers.contiguous())))
        self._write(len(self._pending) // PAGE * PAGE)

    def close(self) -> None:
        self._write(len(self._pending))
        self._file.close()

    def _write(self, nbytes: int) -> None:
        if nbytes:
            self._file.write(self._end, self._pending[:nbytes])
            self._end += padded(nbytes)
            self._pending = self._pending[nbytes:].copy()


@dataclass(frozen=True)
class MatrixStorage:
    """The directory of matrices (``None``: memory), and memory for building a transpose."""

    directory: Path | None
    counts: Transfers
    sort_bytes: int = 0

    def copied(self, name: str, columns: int, blocks: Iterable[CSR]) -> Blocks:
        """Copies of blocks, of which there is one at least, as they come."""
        index = index_dtype(columns)
        if self.directory is None:
            several = list[CSR]()
            for block in blocks:
                arrays = block.indptr.clone(), block.indices.to(index).clone()
                pattern = Pattern.trusted(*arrays, (block.shape[0], columns))
                values = None if block.values is None else block.values.clone()
                several.append(CSR(pattern, values))
            return Blocks(several, columns)
        names = "indptr", "indices", "values"
        where = {array: FileExtent(self.directory / f"{name}.{array}") for array in names}
        files = {array: _Appended(where[array].path, self.counts) for array in names[:2]}
        files["indptr"].add(torch.zeros(1, dtype=torch.int64))
        bounds, nonzeros, width = [0], 0, 1
        for block in blocks:
            files["indptr"].add(block.indptr[1:] + nonzeros)
            files["indices"].add(block.indices.to(index))
            if block.values is not None:
                if "values" not in files:
                    files["values"] = _Appended(where["values"].path, self.counts)
                width = block.values[:1].numel() or width
                files["values"].add(block.values.float())
            nonzeros += block.nnz
            bounds.append(bounds[-1] + block.shape[0])
        for file in files.values():
            file.close()
        extents: dict[str, Any] = {one: where[one] if one in files else None for one in names}
        how: dict[str, Any] = {"counts": self.counts, "checked": True, "width": width}
        return FileBlocks(bounds, columns, **extents, **how)
