"""Tables of rows that are processed chunk by chunk: in memory, or in a file of column panels."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from pathlib import Path

import torch
from torch import Tensor

from spgnn.direct import DirectFile, Transfers, keep_pages, padded, page_buffer, pages_held
from spgnn.errors import InputError
from spgnn.memory import give_back_holes, resident_bytes

MOST_UNDERWAY = 2  # stretches of a table that wait to be written


@dataclass(frozen=True)
class Placement:
    """Tables on the disk, and the columns of an operand in memory at a time."""

    on_disk: frozenset[str] = frozenset()
    panel_bytes: int = 0  # bytes of an operand's row in memory at a time; 0: all of them

    def panel(self, width: int, itemsize: int, heads: int = 0) -> int:
        """Columns in a panel of a table of some width."""
        limit = self.panel_bytes
        if not limit:
            return max(width, 1)
        if not heads:
            return max(1, min(width, limit // itemsize))
        channels = width // heads
        most = max(1, min(heads, limit // itemsize // channels))
        return channels * next(number for number in range(most, 0, -1) if not heads % number)


class Table:
    """Rows of one width, in chunks: in memory, with space for `extra` rows that a product receives.

    Parameters
    ----------
    bounds : sequence of int [K + 1]
        Chunk k has rows [bounds[k], bounds[k + 1]).
    width : int
    dtype : torch.dtype
    extra : int
    """

    def __init__(
        self, bounds: Sequence[int], width: int, dtype: torch.dtype, extra: int = 0
    ) -> None:
        self._shape(bounds, width, dtype)
        self._all = memory_rows(self.rows + extra, width, dtype)

    def _shape(self, bounds: Sequence[int], width: int, dtype: torch.dtype, panel: int = 0) -> None:
        """Chunks and panels; of `panel` columns, 0: all."""
        self.bounds, self.width, self.dtype = tuple(bounds), width, dtype
        self.rows, self.chunks = self.bounds[-1], len(self.bounds) - 1
        self.panels = panels_of(width, panel or width)

    @property
    def lengths(self) -> list[int]:
        """Rows of each chunk."""
        return [last - first for first, last in pairwise(self.bounds)]

    def read(self, chunk: int) -> Tensor:
        """The rows of a chunk [rows of it, width]; a view where that costs nothing."""
        return self._all[self.bounds[chunk] : self.bounds[chunk + 1]]

    def read_panel(self, chunk: int, first: int, last: int) -> Tensor:
        """Columns [first, last) of the rows of a chunk: a panel."""
        return self.read(chunk)[:, first:last]

    def write(self, chunk: int, values: Tensor) -> None:
        """Overwrite the rows of a chunk."""
        self.read(chunk).copy_(values)

    def write_panel(self, chunk: int, first: int, values: Tensor) -> None:
        """Overwrite columns [first, first + f) of a chunk's rows: a panel."""
        self.read(chunk)[:, first : first + values.shape[1]].copy_(values)

    def write_some(self, chunk: int, rows: Tensor | None, values: Tensor) -> None:
        """Overwrite a chunk: some of its rows, by number, are these; the others are zero."""
        if rows is not None:
            values = values.new_zeros(self.lengths[chunk], self.width).index_copy_(0, rows, values)
        self.write(chunk, values)

    def panel(self, first: int, last: int, extra: int = 0) -> Tensor:
        """A panel, columns [first, last), of all rows, and space for more rows below.

        That is not initialised, and what was returned before is overwritten.
        """
        assert self.rows + extra <= self._all.shape[0]
        return self._all[: self.rows + extra, first:last]

    def forget_panel(self) -> None:
        """Give up the memory of what `panel` returned, if it is no view."""

    def settle(self) -> None:
        """Wait until all that was written lies where it belongs, and is counted."""

    def like(self, bounds: Sequence[int]) -> Table:
        """A new table of as many columns with other rows, where this one lies."""
        return Table(bounds, self.width, self.dtype)

    def release(self) -> None:
        """Give up its memory, or its place on the disk. Released again, it does nothing."""
        self._all = self._all.new_empty(0, self.width)  # freed with the last view of it


class DiskTable(Table):
    """A table in a file, written in the background; the chunk that is next is read ahead."""

    def __init__(
        self,
        bounds: Sequence[int],
        width: int,
        dtype: torch.dtype,
        *,
        panel: int,
        path: Path,
        counts: Transfers,
    ) -> None:
        self._shape(bounds, width, dtype, panel)
        self._path, self._counts, self._copies = path, counts, count()
        sizes = [
            padded((last - first) * rows * dtype.itemsize)
            for first, last in self.panels
            for rows in self.lengths
        ]
        self._offsets = list(accumulate(sizes, initial=0))
        self._file = DirectFile(path, counts, create=True)
        self._columns: Tensor | None = None  # what `panel` returned
        self._removed = False
        self._reader, self._writer = ThreadPoolExecutor(1, "table"), ThreadPoolExecutor(1, "table")
        self._ahead: dict[int, Future[Tensor]] = {}
        self._underway: dict[tuple[int, int], Future[None]] = {}

    def read(self, chunk: int) -> Tensor:
        ahead = self._ahead.pop(chunk, None)
        rows = self._all_columns(chunk) if ahead is None else ahead.result()
        following = chunk + 1
        if following < self.chunks and following not in self._ahead:
            self._ahead[following] = self._reader.submit(self._all_columns, following)
        return rows

    def read_panel(self, chunk: int, first: int, last: int) -> Tensor:
        return self._stretch(self.panels.index((first, last)), chunk)

    def _all_columns(self, chunk: int) -> Tensor:
        if len(self.panels) == 1:
            return self._stretch(0, chunk)
        rows = torch.empty(self.lengths[chunk], self.width, dtype=self.dtype)
        for number, (first, last) in enumerate(self.panels):
            rows[:, first:last] = self._stretch(number, chunk)
        return rows

    def write(self, chunk: int, values: Tensor) -> None:
        for first, last in self.panels:
            self.write_panel(chunk, first, values[:, first:last])

    def write_panel(self, chunk: int, first: int, values: Tensor) -> None:
        if (stale := self._ahead.pop(chunk, None)) is not None:
            stale.result()
        self._put(self.panels.index((first, first + values.shape[1])), chunk, values)

    def _put(self, panel: int, chunk: int, values: Tensor) -> None:
        """Write a stretch, as soon as there are not too many on their way."""
        nbytes = values.numel() * self.dtype.itemsize
        if not nbytes:
            return
        while len(self._underway) >= MOST_UNDERWAY:
            self._underway.pop(next(iter(self._underway))).result()
        pages = page_buffer(padded(nbytes))
        torch.from_numpy(pages[:nbytes]).view(self.dtype).view(values.shape).copy_(values)
        if (before := self._underway.pop((panel, chunk), None)) is not None:
            before.result()
        offset = self._offsets[panel * self.chunks + chunk]
        write = self._writer.submit(self._file.write_pages, offset, pages, nbytes)
        self._underway[panel, chunk] = write

    def panel(self, first: int, last: int, extra: int = 0) -> Tensor:
        shape = self.rows + extra, last - first
        if self._columns is None or self._columns.shape != shape:
            self._columns = None
            self._columns = memory_rows(*shape, self.dtype)
        number = self.panels.index((first, last))
        ahead = self._reader.submit(self._stretch, number, 0)
        for chunk, (begin, end) in enumerate(pairwise(self.bounds)):
            stretch = ahead.result()
            if chunk + 1 < self.chunks:
                ahead = self._reader.submit(self._stretch, number, chunk + 1)
            self._columns[begin:end] = stretch
        return self._columns

    def forget_panel(self) -> None:
        self._columns = None

    def like(self, bounds: Sequence[int]) -> Table:
        path = self._path.with_name(f"{self._path.name}.{next(self._copies)}")
        panel, counts = self.panels[0][1], self._counts
        return DiskTable(bounds, self.width, self.dtype, panel=panel, path=path, counts=counts)

    def settle(self) -> None:
        for write in self._underway.values():
            write.result()
        self._underway.clear()

    def release(self) -> None:
        self._columns = None
        self._reader.shutdown(cancel_futures=True)
        self._ahead.clear()
        wait(self._underway.values())  # so that they are counted
        if self._removed:
            return
        self._removed = True
        # Removing a large file takes the system a while.
        self._writer.submit(self._remove)
        self._writer.shutdown(wait=False)

    def _remove(self) -> None:
        self._file.close()
        self._file.path.unlink(missing_ok=True)

    def _stretch(self, panel: int, chunk: int) -> Tensor:
        first, last = self.panels[panel]
        rows, width = self.lengths[chunk], last - first
        nbytes = rows * width * self.dtype.itemsize
        if not nbytes:
            return torch.empty(rows, width, dtype=self.dtype)
        # The reader looks at what is under way, too, but takes nothing out.
        if (write := self._underway.get((panel, chunk))) is not None:
            write.result()
        read = self._file.read(self._offsets[panel * self.chunks + chunk], nbytes)
        return torch.from_numpy(read).view(self.dtype).view(rows, width)


class TableFactory:
    """Creates tables where a placement says that they lie."""

    def __init__(
        self, placement: Placement, directory: Path | None, dtype: torch.dtype, counts: Transfers
    ) -> None:
        self.placement, self.directory, self.dtype = placement, directory, dtype
        self.counts = counts
        self._names = count()

    def table(
        self,
        purpose: str,
        bounds: tuple[int, ...],
        width: int,
        extra: int = 0,
        *,
        dtype: torch.dtype | None = None,
        panel: int | None = None,
        heads: int = 0,
    ) -> Table:
        """A new table; on the disk its panels have whole heads, if there are any."""
        if purpose not in self.placement.on_disk:
            return Table(bounds, width, dtype or self.dtype, extra)
        assert self.directory is not None
        return DiskTable(
            bounds,
            width,
            dtype or self.dtype,
            panel=panel or self.panel(width, heads),
            path=self.directory / f"{purpose}-{next(self._names)}",
            counts=self.counts,
        )

    def panel(self, width: int, heads: int = 0) -> int:
        """Columns of a panel of a table of some width."""
        return self.placement.panel(width, self.dtype.itemsize, heads)


def release(table: Table | None) -> None:
    """Give up a table, if there is one."""
    if table is not None:
        table.release()


def memory_rows(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised [rows, width] on large pages, which may have been used before."""
    pages = torch.from_numpy(page_buffer(rows * width * dtype.itemsize))
    return pages.view(dtype).view(rows, width)


def panels_of(width: int, panel: int) -> list[tuple[int, int]]:
    """Columns [first, last) of each panel."""
    return [(first, min(first + panel, width)) for first in range(0, width, max(panel, 1))]


class MappedRows:
    """Rows in a file that is mapped into memory; it is removed with its directory."""

    def __init__(self, path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
        numbers = shape[0] * shape[1]
        nbytes = max(numbers * dtype.itemsize, 1)
        try:
            with path.open("w+b") as file:
                # A page that finds no space when it is written ends the process without a word.
                os.posix_fallocate(file.fileno(), 0, nbytes)
                self._pages = mmap.mmap(file.fileno(), nbytes)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
        empty = torch.empty(0, dtype=dtype)
        flat = torch.frombuffer(self._pages, dtype=dtype, count=numbers) if numbers else empty
        self.rows: Tensor = flat.view(shape)

    def give_back(self) -> None:
        """Let the system have the memory of pages that were touched; the file keeps their bytes."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class FreedPages:
    """Share of a budget for freed memory that is kept because it is used again soon."""

    pages: int  # bytes of tables and of read buffers, in use and kept
    chunk: int  # bytes that the computation of a chunk may take besides those
    resident: int | None  # bytes that the process may have at most; ``None``: whatever it takes

    def keep(self) -> None:
        """From now on keep freed pages, up to their share."""
        keep_pages(self.pages)

    def make_room(self) -> None:
        """Give back freed pages, if memory is short, before a pass with pieces of other sizes."""
        if self.resident is None:
            return
        may_come = self.pages - pages_held() + self.chunk
        if resident_bytes() + may_come > self.resident:
            give_back_holes()
