"""Tables of rows that are worked through in chunks: in memory, or in a file of column panels."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.direct import DirectFile, Transfers, keep_pages, padded, page_buffer, pages_held
from spgnn.errors import InputError
from spgnn.memory import give_back_holes, resident_bytes


@dataclass(frozen=True)
class Spare:
    """Share of a budget for freed memory that is kept because it is reused soon.

    Attributes
    ----------
    pages : int
        Bytes of tables and of read buffers, in use and kept.
    piece : int
        Bytes that the computation of a chunk may take besides those.
    resident : int, optional
        Bytes that the process may have at most; ``None``: whatever it takes.
    """

    pages: int
    piece: int
    resident: int | None

    def keep(self) -> None:
        """From now on keep freed pages, up to their share."""
        keep_pages(self.pages)

    def make_room(self) -> None:
        """Give back freed pages, if memory is short, before a pass with pieces of other sizes."""
        if self.resident is None:
            return
        may_come = self.pages - pages_held() + self.piece
        if resident_bytes() + may_come > self.resident:
            give_back_holes()


def keep_nothing() -> None:
    """Give back the pages that are kept; what is in use is not touched."""
    keep_pages(None)


MOST_UNDERWAY = 2  # stretches of a table that wait to be written


class Table(ABC):
    """Rows of one width, in chunks.

    Parameters
    ----------
    bounds : sequence of int [K + 1]
        Chunk k has rows [bounds[k], bounds[k + 1]).
    width : int
    dtype : torch.dtype

    Attributes
    ----------
    rows, parts : int
    """

    def __init__(self, bounds: Sequence[int], width: int, dtype: torch.dtype) -> None:
        self.bounds, self.width, self.dtype = tuple(bounds), width, dtype
        self.rows, self.parts = self.bounds[-1], len(self.bounds) - 1

    @property
    def lengths(self) -> list[int]:
        """Rows of each chunk."""
        return [last - first for first, last in pairwise(self.bounds)]

    @abstractmethod
    def read(self, part: int) -> Tensor:
        """The rows of a chunk [rows of it, width]; a view where that costs nothing."""

    @abstractmethod
    def read_panel(self, part: int, first: int, last: int) -> Tensor:
        """Columns [first, last) of the rows of a chunk, which must be whole panels."""

    @abstractmethod
    def write(self, part: int, values: Tensor) -> None:
        """Overwrite the rows of a chunk."""

    def write_some(self, part: int, rows: Tensor | None, values: Tensor) -> None:
        """Overwrite a chunk: some of its rows, by number, are these; the others are zero."""
        if rows is not None:
            first, last = self.bounds[part : part + 2]
            values = values.new_zeros(last - first, self.width).index_copy_(0, rows, values)
        self.write(part, values)

    @abstractmethod
    def panel(self, first: int, last: int, extra: int = 0) -> Tensor:
        """Columns [first, last) of all rows, and room for more rows below, not initialised.

        What was returned before is overwritten.
        """

    @abstractmethod
    def forget_panel(self) -> None:
        """Give up the memory of what `panel` returned, if it is no view."""

    @abstractmethod
    def write_panel(self, part: int, first: int, values: Tensor) -> None:
        """Overwrite columns [first, first + f) of a chunk's rows."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until all that was written lies where it is kept, and is counted."""

    @abstractmethod
    def release(self) -> None:
        """Give up its memory, or its place on the disk; it is not used any more.

        Released again, it does nothing.
        """


class MemoryTable(Table):
    """A table in memory.

    Parameters
    ----------
    bounds, width, dtype
    extra : int
        Rows below, for what a product receives.
    """

    def __init__(
        self, bounds: Sequence[int], width: int, dtype: torch.dtype, extra: int = 0
    ) -> None:
        super().__init__(bounds, width, dtype)
        self._all = memory_rows(self.rows + extra, width, dtype)

    def read(self, part: int) -> Tensor:
        """A view."""
        return self._all[self.bounds[part] : self.bounds[part + 1]]

    def read_panel(self, part: int, first: int, last: int) -> Tensor:
        """A view."""
        return self.read(part)[:, first:last]

    def write(self, part: int, values: Tensor) -> None:
        """Overwrite the rows of a chunk."""
        self.read(part).copy_(values)

    def write_some(self, part: int, rows: Tensor | None, values: Tensor) -> None:
        """Overwrite a chunk: some of its rows are these, the others are zero."""
        here = self.read(part)
        if rows is not None:
            here.zero_()
        here[slice(None) if rows is None else rows] = values.to(self.dtype)

    def panel(self, first: int, last: int, extra: int = 0) -> Tensor:
        """A view."""
        assert self.rows + extra <= self._all.shape[0]
        return self._all[: self.rows + extra, first:last]

    def forget_panel(self) -> None:
        """A view takes none."""

    def write_panel(self, part: int, first: int, values: Tensor) -> None:
        """Overwrite columns [first, first + f) of a chunk's rows."""
        self.read(part)[:, first : first + values.shape[1]].copy_(values)

    def settle(self) -> None:
        """It lies there at once."""

    def release(self) -> None:
        """Drop the reference to the memory; it is freed with the last view of it."""
        self._all = self._all.new_empty(0, self.width)


class DiskTable(Table):
    """A table in a file. What is written goes there meanwhile; what is next in turn is read ahead.

    Parameters
    ----------
    bounds, width, dtype
    panel : int
        Columns of a panel.
    path : Path
        Of a file that is made, and removed when the table is released.
    counts : Transfers
        Counts what is read and written.
    """

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
        super().__init__(bounds, width, dtype)
        self._panels = panels_of(width, panel)
        sizes = [
            padded((last - first) * rows * dtype.itemsize)
            for first, last in self._panels
            for rows in self.lengths
        ]
        self._offsets = list(accumulate(sizes, initial=0))
        self._file = DirectFile(path, counts, create=True)
        self._held: Tensor | None = None
        self._removed = False
        self._reader, self._writer = ThreadPoolExecutor(1, "table"), ThreadPoolExecutor(1, "table")
        self._ahead: dict[int, Future[Tensor]] = {}
        self._underway: dict[tuple[int, int], Future[None]] = {}

    def read(self, part: int) -> Tensor:
        """All columns of a chunk's rows; those of the next chunk are read meanwhile."""
        found = self._ahead.pop(part, None)
        rows = self._whole(part) if found is None else found.result()
        following = part + 1
        if following < self.parts and following not in self._ahead:
            self._ahead[following] = self._reader.submit(self._whole, following)
        return rows

    def read_panel(self, part: int, first: int, last: int) -> Tensor:
        """Read when it is asked for."""
        at = [number for number, (low, _) in enumerate(self._panels) if first <= low < last]
        found = [self._stretch(number, part) for number in at]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def _whole(self, part: int) -> Tensor:
        if len(self._panels) == 1:
            return self._stretch(0, part)
        found = torch.empty(self.lengths[part], self.width, dtype=self.dtype)
        for number, (first, last) in enumerate(self._panels):
            found[:, first:last] = self._stretch(number, part)
        return found

    def write(self, part: int, values: Tensor) -> None:
        """Overwrite the rows of a chunk."""
        for first, last in self._panels:
            self.write_panel(part, first, values[:, first:last])

    def panel(self, first: int, last: int, extra: int = 0) -> Tensor:
        """Columns of all rows, read into memory that the next call uses again."""
        shape = self.rows + extra, last - first
        if self._held is None or self._held.shape != shape:
            self._held = None
            self._held = memory_rows(*shape, self.dtype)
        found = self._held
        columns = [number for number, pair in enumerate(self._panels) if _meet(pair, first, last)]
        places = [(number, part) for part in range(self.parts) for number in columns]
        for (number, part), read in zip(places, self._in_turn(places), strict=True):
            (low, high), (begin, end) = self._panels[number], self.bounds[part : part + 2]
            a, b = max(first, low), min(last, high)
            found[begin:end, a - first : b - first] = read[:, a - low : b - low]
        return found

    def _in_turn(self, places: Sequence[tuple[int, int]]) -> Iterator[Tensor]:
        """Stretches of the file, the next one being read while one is used."""
        ahead = [self._reader.submit(self._stretch, *place) for place in places[:1]]
        for place in [*places[1:], None]:
            if place is not None:
                ahead.append(self._reader.submit(self._stretch, *place))
            if ahead:
                yield ahead.pop(0).result()

    def forget_panel(self) -> None:
        """The next `panel` takes memory of its own."""
        self._held = None

    def write_panel(self, part: int, first: int, values: Tensor) -> None:
        """Overwrite columns of a chunk's rows, which must be whole panels."""
        if (stale := self._ahead.pop(part, None)) is not None:
            stale.result()
        begins = [low for low, _ in self._panels]
        last = first + values.shape[1]
        for number in range(begins.index(first), len(begins)):
            low, high = self._panels[number]
            if low >= last:
                break
            self._put(number, part, values[:, low - first : high - first])

    def _put(self, panel: int, part: int, values: Tensor) -> None:
        """Write a stretch, as soon as there are not too many on their way."""
        nbytes = values.numel() * self.dtype.itemsize
        if not nbytes:
            return
        while len(self._underway) >= MOST_UNDERWAY:
            self._underway.pop(next(iter(self._underway))).result()
        pages = page_buffer(padded(nbytes))
        torch.from_numpy(pages[:nbytes]).view(self.dtype).view(values.shape).copy_(values)
        if (before := self._underway.pop((panel, part), None)) is not None:
            before.result()
        place = self._offset(panel, part)
        write = self._writer.submit(self._file.write_pages, place, pages, nbytes)
        self._underway[panel, part] = write

    def settle(self) -> None:
        """Wait for the writes that are under way, and raise what one of them met."""
        for write in self._underway.values():
            write.result()
        self._underway.clear()

    def release(self) -> None:
        """Remove the file."""
        self._held = None
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

    def _offset(self, panel: int, part: int) -> int:
        return self._offsets[panel * self.parts + part]

    def _stretch(self, panel: int, part: int) -> Tensor:
        first, last = self._panels[panel]
        rows, width = self.lengths[part], last - first
        nbytes = rows * width * self.dtype.itemsize
        if not nbytes:
            return torch.empty(rows, width, dtype=self.dtype)
        # The reader looks at what is under way, too, but takes nothing out.
        if (write := self._underway.get((panel, part))) is not None:
            write.result()
        found = self._file.read(self._offset(panel, part), nbytes)
        return torch.from_numpy(found).view(self.dtype).view(rows, width)


def memory_rows(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised [rows, width] on large pages, which may have been used before."""
    pages = torch.from_numpy(page_buffer(rows * width * dtype.itemsize))
    return pages.view(dtype).view(rows, width)


def panels_of(width: int, panel: int) -> list[tuple[int, int]]:
    """Columns [first, last) of each panel."""
    return [(first, min(first + panel, width)) for first in range(0, width, max(panel, 1))]


def _meet(pair: tuple[int, int], first: int, last: int) -> bool:
    """True if columns [a, b) and [first, last) overlap."""
    return max(pair[0], first) < min(pair[1], last)


def as_bytes(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The bytes of a contiguous tensor of any dtype."""
    # One number may be contiguous with any stride.
    flat = values.detach().reshape(-1).as_strided((values.numel(),), (1,))
    found: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = flat.view(torch.uint8).numpy()
    return found


class MappedRows:
    """A table of one file; removed with its directory.

    Parameters
    ----------
    path : Path
    shape : tuple of int
    dtype : torch.dtype

    Attributes
    ----------
    rows : Tensor

    Raises
    ------
    InputError
        If there is no room on the disk.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
        nbytes = max(shape[0] * shape[1] * dtype.itemsize, 1)
        try:
            with path.open("w+b") as file:
                # A page that finds no room when it is written ends the process without a word.
                os.posix_fallocate(file.fileno(), 0, nbytes)
                self._pages = mmap.mmap(file.fileno(), nbytes)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
        count = shape[0] * shape[1]
        flat = torch.frombuffer(self._pages, dtype=dtype, count=count) if count else torch.empty(0)
        self.rows: Tensor = flat.to(dtype).view(shape)

    def give_back(self) -> None:
        """Let the system have the memory of pages that were touched; the file keeps their bytes."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)


class OutputRows:
    """Outputs of all rows: in a file, if there is a directory for it.

    Parameters
    ----------
    directory : Path, optional
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._mapped: MappedRows | None = None

    def make(self, rows: int, like: Tensor) -> Tensor:
        """Uninitialised [rows, width and dtype of `like`]."""
        if self._directory is None or not rows:
            return like.new_empty(rows, like.shape[1])
        path = self._directory / "outputs"
        self._mapped = MappedRows(path, (rows, like.shape[1]), like.dtype)
        return self._mapped.rows

    def give_back(self) -> None:
        """Let go of the memory of those that lie in a file."""
        if self._mapped is not None:
            self._mapped.give_back()
