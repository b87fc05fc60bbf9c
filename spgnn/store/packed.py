"""Batches whose rows are written one after another, so that reading one is one long read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath, digest
from spgnn.layout import Int64Array
from spgnn.store._store import Reader
from spgnn.store.direct import PAGE, DirectFile, Transfers, padded
from spgnn.store.disk import finish, open_reader
from spgnn.store.rows import Pending, Rows, as_bytes, check_ids, copy_rows


@dataclass(frozen=True, eq=False)
class _Batch:
    """Where the rows of a batch are: places in it, by where they come from.

    Attributes
    ----------
    kept, kept_rows : int64 [·]
        Places of rows in memory, and where they are there.
    written : int64 [·]
        Of rows in the file, from byte `offset` on.
    others : int64 [·]
        Of rows that stayed with the table.
    """

    kept: Int64Array
    kept_rows: Int64Array
    written: Int64Array
    offset: int
    others: Int64Array


class PackedRows(Rows):
    """A table of which some batches are packed; made by `packed`.

    Gives any rows, but only what is asked for as one of these batches, in its order, comes by a
    long read. Its file has no name, so the system removes it when the process ends, however it
    does.

    Attributes
    ----------
    behind : Rows
        The table that was packed.
    disk_bytes : int
        Of its file.
    """

    def __init__(
        self, behind: Rows, memory: Tensor, file: tuple[Path, Reader], batches: dict[str, _Batch]
    ) -> None:
        super().__init__(behind.rows, behind.width, behind.dtype)
        self.behind, self._memory, self._batches = behind, memory, batches
        self._directory, self._reader = file
        self.disk_bytes = self._reader.size

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """One long read for a batch that is packed; else as the table behind."""
        batch = self._batches.get(digest(ids.tobytes()))
        if batch is None:
            return self._begin_behind(ids, out, places)
        kept, written, others = (
            chosen if places is None else places[chosen]
            for chosen in (batch.kept, batch.written, batch.others)
        )
        numbers = np.arange(len(written))
        ticket = self._reader.read_rows(
            numbers, written, as_bytes(out), batch.offset, self.row_bytes, 0
        )
        self._asked.add(rows_read=len(written), bytes_read=ticket.bytes, hits=len(kept))
        rest = self._begin_behind(ids[batch.others], out, others)
        copy_rows(self._memory, batch.kept_rows, out, kept)

        def wait() -> None:
            finish(ticket, self._directory)
            rest.wait()

        return Pending(wait)

    def __str__(self) -> str:
        return str(self.behind)

    def _begin_behind(self, ids: Int64Array, out: Tensor, places: Int64Array | None) -> Pending:
        before = self.behind.counts.bytes_read
        pending = self.behind.begin(ids, out, places)
        self._asked.add(rows_read=len(ids), bytes_read=self.behind.counts.bytes_read - before)
        return pending


def packed(
    rows: Rows,
    id_lists: Sequence[Tensor],
    directory: AnyPath,
    cap_bytes: int,
    *,
    memory_bytes: int = 0,
) -> PackedRows:
    """Write the rows of some batches one after another, each batch for itself (DiskGNN, SIGMOD'25).

    For batches that come again, epoch after epoch: a disk reads a long stretch several times as
    fast as rows that lie anywhere, at the price of a copy of each row in each batch. The rows that
    most batches have are kept in memory instead.

    Parameters
    ----------
    rows : Rows
    id_lists : sequence of Tensor int64 [k]
        The rows of each batch.
    directory : path
        Where there is room; the file has no name there.
    cap_bytes : int
        Of disk; when it is used up, what is left of the batches stays with `rows`.
    memory_bytes : int
        Of rows that are kept in memory.

    Raises
    ------
    InputError
        If an id is out of range, there is no such directory, or the disk is full.
    """
    folder = Path(directory)
    check_integer("cap_bytes", cap_bytes, 0)
    check_integer("memory_bytes", memory_bytes, 0)
    batches = [check_ids(ids, rows.rows, str(rows)) for ids in id_lists]
    if not folder.is_dir():
        raise InputError(f"{folder}: no such directory")
    kept = _most_used(batches, rows.rows, memory_bytes // max(rows.row_bytes, 1))
    plans, offset, last = [], PAGE, cap_bytes // PAGE * PAGE
    for ids in batches:
        room = max(0, last - offset) // max(rows.row_bytes, 1)
        plans.append(_plan(ids, kept, offset, room))
        offset += padded(len(plans[-1].written) * rows.row_bytes)
    free = shutil.disk_usage(folder).free
    if offset > free:
        raise InputError(
            f"{folder}: packed batches need {offset} bytes, but {free} are free; give a smaller cap"
        )
    with _nameless_file(folder) as (file, reader):
        for ids, plan in zip(batches, plans, strict=True):
            file.write(plan.offset, as_bytes(rows.gather(torch.from_numpy(ids[plan.written]))))
    memory = rows.gather(torch.from_numpy(kept))
    by_digest = {digest(ids.tobytes()): plan for ids, plan in zip(batches, plans, strict=True)}
    return PackedRows(rows, memory, (folder, reader), by_digest)


def _most_used(batches: Sequence[Int64Array], rows: int, most: int) -> Int64Array:
    """The rows that most batches have, at most so many, rising."""
    used = np.zeros(rows, np.int64)
    for ids in batches:
        np.add.at(used, ids, 1)
    # What one batch alone has is no better in memory than in the file.
    order = np.argsort(-used, kind="stable")[: min(most, int((used > 1).sum()))]
    return np.sort(order)


def _plan(ids: Int64Array, kept: Int64Array, offset: int, room: int) -> _Batch:
    """Where the rows of a batch will be, with room for so many in the file."""
    found = np.searchsorted(kept, ids)
    hit = np.zeros(len(ids), np.bool_)
    inside = found < len(kept)
    hit[inside] = kept[found[inside]] == ids[inside]
    missing = np.flatnonzero(~hit)
    return _Batch(np.flatnonzero(hit), found[hit], missing[:room], offset, missing[room:])


@contextmanager
def _nameless_file(folder: Path) -> Iterator[tuple[DirectFile, Reader]]:
    """A file to write, and what reads it later; it loses its name at once.

    Raises
    ------
    InputError
        If it cannot be made.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=".packed-", dir=folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    try:
        os.close(handle)
        file = DirectFile(name, Transfers(), create=True)
        # How reads have to be aligned can only be found out on a file that holds something.
        file.write(0, np.zeros(PAGE, np.uint8))
        reader = open_reader(Path(name))
    finally:
        with suppress(OSError):
            os.unlink(name)
    try:
        yield file, reader
    finally:
        file.close()
