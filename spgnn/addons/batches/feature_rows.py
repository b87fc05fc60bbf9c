"""Tables of rows, in memory and on a disk, and the cost of asking them."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn import _native, kernels
from spgnn.addons.batches.sampling import union_of
from spgnn.direct import as_bytes
from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath
from spgnn.kernels import new_rows
from spgnn.layout import Int64Array
from spgnn.sparse import CSR, take_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)
DEPTH = 32  # reads that are under way at once
GAP = 1024  # bytes: few in vain, and a disk does only so many requests a second


@dataclass
class Counts:
    """Rows that a table was asked for, and the cost."""

    rows_needed: int = 0
    rows_read: int = 0  # of these, from where the table really lies: a disk, another rank
    bytes_needed: int = 0
    bytes_read: int = 0  # that were moved for them: of a disk whole blocks
    reads: int = 0  # requests to a disk
    hits: int = 0  # of the rows needed, those that a cache had
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **more: int) -> None:
        """Count some more; from any thread."""
        with self._lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)

    @property
    def hit_rate(self) -> float:
        """Hits among the rows needed; 0 before any were."""
        return self.hits / max(self.rows_needed, 1)

    def record(self) -> dict[str, int]:
        """The numbers by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.repr}


Wait = Callable[[], None]
"""Blocks until rows are there; an InputError says why they cannot be read."""


class Rows(ABC):
    """A table [rows, width] somewhere.

    Attributes
    ----------
    pinned : bool
        Gather into pinned memory, from which copies to a GPU need no processor.
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.rows, self.width, self.dtype, self.pinned = rows, width, dtype, False
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """Rows that the table was asked for, and the cost."""
        return self._counts

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype.itemsize

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Some rows, int64 [k] in any order, in `out` (contiguous, on the CPU) or a new tensor.

        An InputError says which id is no row, that `out` does not fit, or rows cannot be read.
        """
        rows = check_ids(ids, self.rows, str(self))
        out = self._output(len(rows), out)
        self._counts.add(rows_needed=len(rows), bytes_needed=len(rows) * self.row_bytes)
        self.begin(rows, out)()
        return out

    def gather_many(self, ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        """The rows of several batches (a superbatch), one after another, as `gather` makes each.

        A row that several of them need is fetched once; but of batches that are no list, as those
        that wait on a disk, all rows at once may be more than memory holds.
        """
        if len(ids) == 1 or not isinstance(ids, list):
            yield from map(self.gather, ids)
            return
        union, places = union_of(ids)
        rows = self.gather(union)
        for part in places:
            yield kernels.gather_rows(rows, part) if rows.is_floating_point() else rows[part]

    @abstractmethod
    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Wait:
        """Start fetching row ``ids[i]`` into ``out[places[i]]`` (by default i), and count reads.

        For tables to build on: the ids are in range, and `out` fits. `out` must not be touched
        before the returned function has been called.
        """

    def begin_many(self, ids: Sequence[Int64Array]) -> list[Callable[..., Wait]]:
        """For each of several batches a function that begins it: `begin` but for its ids."""
        return [partial(self.begin, batch) for batch in ids]

    def release(self) -> None:
        """Give back memory that can be filled again, until rows are asked for."""
        return

    def foresee(
        self, epoch: int, batches: Callable[[int], Iterable[Tensor]], *, fixed: bool
    ) -> None:
        """An epoch begins: `batches` of its number, or a later one's, are those it will ask for.

        If `fixed`, those of all later epochs are the same.
        """
        return

    def _output(self, rows: int, out: Tensor | None) -> Tensor:
        if out is None and self.pinned:
            return torch.empty(rows, self.width, dtype=self.dtype, pin_memory=True)
        if out is None:
            return new_rows(rows, torch.empty(0, self.width, dtype=self.dtype))
        fits = out.shape == (rows, self.width) and out.dtype == self.dtype
        if not fits or not out.is_contiguous() or out.device.type != "cpu":
            raise InputError(
                f"out must be a contiguous {self.dtype} [{rows}, {self.width}], on the CPU"
            )
        return out

    def __str__(self) -> str:
        return f"table of {self.rows} rows"


class MemoryRows(Rows):
    """The rows of a tensor [rows, width] in memory (or mapped there)."""

    def __init__(self, table: Tensor) -> None:
        if table.dim() != 2:
            raise InputError(f"a table of rows must be [rows, width], got {list(table.shape)}")
        super().__init__(table.shape[0], table.shape[1], table.dtype)
        self.table = table.contiguous()

    def gather_many(self, ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        """One after another."""
        yield from map(self.gather, ids)

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Wait:
        """Copies at once; nothing is read."""
        copy_rows(self.table, ids, out, places)
        return _nothing


def _nothing() -> None:
    """Wait for rows that are there."""


class DiskRows(Rows):
    """Rows that follow each other in a file, say after the header of an .npy array.

    Reads are direct where the file system allows it, so neither do they fill the page cache, nor is
    it asked. Rows that lie in the same or neighbouring blocks are read together. The file must not
    change while it is open; an InputError says if it cannot be opened or is too short.

    Parameters
    ----------
    path : path
    offset : int
        Bytes before row 0. Rows that lie at multiples of 512 or 4096 bytes cost least.
    rows, width : int
    dtype : float32, bfloat16, float64 or int64
        As in this machine's memory.
    direct : bool
        Read past the page cache where that is possible.
    depth : int
        Reads that are under way at once, in the whole process at least.
    gap : int
        Two rows are read together if at most so many bytes lie between their blocks.
    """

    def __init__(
        self,
        path: AnyPath,
        offset: int,
        rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        direct: bool = True,
        depth: int = DEPTH,
        gap: int = GAP,
    ) -> None:
        check_integer("offset", offset, 0)
        check_integer("rows", rows, 0)
        check_integer("width", width, 0)
        check_integer("depth", depth, 1, 1024)
        check_integer("gap", gap, 0)
        if dtype not in DTYPES:
            names = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
            raise InputError(f"{path}: rows of {dtype} cannot be read; only {names}")
        super().__init__(rows, width, dtype)
        self.path, self.offset = Path(path), offset
        self._reader = open_reader(self.path, direct=direct, depth=depth)
        self.gap = gap if self.direct else 0
        needed = offset + rows * self.row_bytes
        if self._reader.size < needed:
            raise InputError(
                f"{path}: {self._reader.size} bytes, but {rows} rows of {self.row_bytes} bytes "
                f"from byte {offset} on need {needed}; it was cut off, or the sizes are wrong"
            )

    @property
    def direct(self) -> bool:
        """True if reads go past the page cache."""
        return self._reader.alignment > 1

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Wait:
        """Queues the reads, and returns."""
        if places is None:
            places = np.arange(len(ids))
        ticket = self._reader.read_rows(
            ids, places, as_bytes(out), self.offset, self.row_bytes, self.gap
        )
        self._counts.add(rows_read=len(ids), bytes_read=ticket.bytes, reads=ticket.reads)
        return lambda: finish_read(ticket, self.path)

    def __str__(self) -> str:
        return str(self.path)


def open_reader(path: Path, *, direct: bool = True, depth: int = DEPTH) -> _native.Reader:
    """A reader of a file.

    What it reads past the page cache it reads through io_uring, if spgnn was built with liburing
    and the kernel lets it; all else by threads. ``SPGNN_IO_URING=0`` has everything read by
    threads, ``1`` everything through io_uring.
    """
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    try:
        reader = _native.Reader(os.fspath(path), direct, depth)
    except RuntimeError as error:
        raise InputError(f"{path}: cannot be opened: {error}") from None
    # To copy what the page cache has is work for several threads; a ring has but one.
    setting = os.environ.get("SPGNN_IO_URING")
    reader.ring = setting == "1" or (setting != "0" and reader.alignment > 1)
    return reader


def finish_read(ticket: _native.Ticket, path: Path) -> None:
    """Wait for reads; an InputError names the file if one failed."""
    wrong = ticket.wait()
    if wrong:
        raise InputError(f"{path}: {wrong}")


def check_ids(ids: Tensor, rows: int, name: str) -> Int64Array:
    """Numbers of rows as an array, int64 [k] in [0, rows); an InputError says of what."""
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise InputError(f"row ids must be int64 [k], got {ids.dtype} {list(ids.shape)}")
    numbers = np.ascontiguousarray(ids.numpy(force=True))
    if len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        if low < 0 or high >= rows:
            wrong = low if low < 0 else high
            raise InputError(f"{name}: no row {wrong}; it has rows 0 to {rows - 1}")
    return numbers


def copy_rows(
    source: Tensor, from_row: Int64Array | None, target: Tensor, to_row: Int64Array | None
) -> None:
    """Copy row ``from_row[i]`` of one table to row ``to_row[i]`` of another; by default i."""
    rows = from_row if from_row is not None else to_row
    assert rows is not None
    every = np.arange(len(rows))
    _native.copy_rows(
        as_bytes(source),
        every if from_row is None else from_row,
        as_bytes(target),
        every if to_row is None else to_row,
        source.shape[1] * source.dtype.itemsize,
    )


def features_of(
    x: Rows | CSR | None, batches: Sequence[Tensor], counts: Counts
) -> Generator[Tensor | CSR | None, None, None]:
    """Features of the vertices of some batches, int64 [m] each, one after the other."""
    if isinstance(x, Rows):
        with closing(x.gather_many(batches)) as tables:
            for rows in tables:
                counts.add(rows_needed=len(rows), bytes_needed=len(rows) * x.row_bytes)
                yield rows
        return
    for ids in batches:
        sparse = None if x is None else take_rows(x, ids)
        if sparse is not None:
            counts.add(rows_needed=len(ids), bytes_needed=sparse.nbytes)
        yield sparse
