"""Rows in a file, many of which are read at once, past the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn._native import Reader, Ticket
from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath
from spgnn.layout import Int64Array
from spgnn.store.rows import Pending, Rows, as_bytes

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)
DEPTH = 32  # reads that are under way at once
GAP = 1024  # bytes: few in vain, and a disk does only so many requests a second


class DiskRows(Rows):
    """Rows that follow each other in a file; made by `open`.

    Reads are direct where the file system allows it, so neither do they fill the page cache, nor is
    it asked. Rows that lie in the same or neighbouring blocks are read together. The file must not
    change while it is open.

    Attributes
    ----------
    path : Path
    offset : int
        Where in the file row 0 begins.
    gap : int
        Bytes between two blocks that are rather read than skipped.
    """

    def __init__(
        self, file: tuple[Path, Reader], offset: int, shape: tuple[int, int], dtype: torch.dtype
    ) -> None:
        super().__init__(*shape, dtype)
        self.path, self._reader = file
        self.offset = offset
        self.gap = GAP

    @classmethod
    def open(
        cls,
        path: AnyPath,
        offset: int,
        rows: int,
        width: int,
        dtype: torch.dtype,
        *,
        direct: bool = True,
        depth: int = DEPTH,
        gap: int = GAP,
    ) -> DiskRows:
        """Open rows that begin at any byte of a file, say after the header of an .npy array.

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
            Two rows are read together if at most so many bytes lie between their blocks: bytes in
            place of a request. Nothing is read in vain with 0, except within blocks.

        Raises
        ------
        InputError
            If the file cannot be opened or is too short.
        """
        source = Path(path)
        check_integer("offset", offset, 0)
        check_integer("rows", rows, 0)
        check_integer("width", width, 0)
        check_integer("depth", depth, 1, 1024)
        check_integer("gap", gap, 0)
        if dtype not in DTYPES:
            names = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
            raise InputError(f"{source}: rows of {dtype} cannot be read; only {names}")
        if not os.path.isfile(source):
            raise InputError(f"{source}: no such file")
        reader = open_reader(source, direct=direct, depth=depth)
        table = cls((source, reader), offset, (rows, width), dtype)
        table.gap = gap if table.direct else 0
        needed = offset + rows * table.row_bytes
        if reader.size < needed:
            raise InputError(
                f"{source}: {reader.size} bytes, but {rows} rows of {table.row_bytes} bytes from "
                f"byte {offset} on need {needed}; it was cut off, or the sizes are wrong"
            )
        return table

    @property
    def direct(self) -> bool:
        """Whether the page cache is passed by."""
        return self._reader.alignment > 1

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Queues the reads, and returns."""
        if places is None:
            places = np.arange(len(ids))
        ticket = self._reader.read_rows(
            ids, places, as_bytes(out), self.offset, self.row_bytes, self.gap
        )
        self._asked.add(rows_read=len(ids), bytes_read=ticket.bytes)
        return Pending(lambda: finish(ticket, self.path))

    def __str__(self) -> str:
        return str(self.path)


def open_reader(path: Path, *, direct: bool = True, depth: int = DEPTH) -> Reader:
    """A reader of a file.

    What it reads past the page cache it reads through io_uring, if spgnn was built with liburing
    and the kernel lets it; all else by threads. ``SPGNN_IO_URING=0`` in the environment has
    everything read by threads, ``1`` everything through io_uring.

    Raises
    ------
    InputError
        If it cannot be opened.
    """
    try:
        reader = Reader(os.fspath(path), direct, depth)
    except RuntimeError as error:
        raise InputError(f"{path}: cannot be opened: {error}") from None
    # To copy what the page cache has is work for several threads; a ring has but one.
    asked = os.environ.get("SPGNN_IO_URING")
    reader.ring = asked == "1" or (asked != "0" and reader.alignment > 1)
    return reader


def finish(ticket: Ticket, path: Path) -> None:
    """Wait for reads.

    Raises
    ------
    InputError
        If one failed; names the file.
    """
    wrong = ticket.wait()
    if wrong:
        raise InputError(f"{path}: {wrong}")
