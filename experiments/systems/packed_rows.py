"""Batches whose rows are written one after another: DiskGNN (SIGMOD 2025)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.addons.batches import Counts, Rows, Wait, check_ids, copy_rows, finish_read, open_reader
from spgnn.addons.diskbatches import FeatureTable
from spgnn.direct import PAGE, DirectFile, Transfers, as_bytes, nameless_file, padded
from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath, digest
from spgnn.layout import Int64Array
from spgnn.options import Record, key

_PIECE = 1 << 24  # bytes of the table that are read at once


@dataclass(frozen=True, eq=False)
class _Batch:
    """Places in a batch, int64 each, by where the rows come from."""

    common: Int64Array  # in memory, …
    common_rows: Int64Array  # … at these rows there
    written: Int64Array  # in the file, from byte `offset` on, with rising ids
    offset: int
    others: Int64Array  # still in the table


class PackedRows(FeatureTable):
    """A table with some batches packed (DiskGNN, SIGMOD'25).

    A disk reads a long stretch several times as fast as rows that lie anywhere, at the price of a
    copy of each row in each batch; the rows that most batches have are kept in memory instead. Any
    rows may be asked for, but only those of one of these batches, in its order, come by a long
    read. The file has no name, so the system removes it when the process ends, however it does.

    Parameters
    ----------
    behind : Rows
    directory : path
        On a disk with room; the file has no name there.
    cap_bytes : int
        Of disk; when it is used up, the rest of the batches stays with the table.
    memory_bytes : int
        Of rows that are kept in memory.
    epochs : int
        Whose batches a loader has packed together.

    Attributes
    ----------
    disk_bytes : int
        Of its file.
    packing : Counts
        Rows of the table that packing read; reads of batches are `counts`.

    Raises
    ------
    InputError
        If there is no such directory.
    """

    @dataclass(frozen=True)
    class Keys(Record):
        """Its options."""

        section = "storage"
        pack: Annotated[
            int,
            key(
                "of disk, in store-dir: copies of each batch's rows in one stretch, written before "
                "its epoch; --cache then keeps the rows of most batches",
                "BYTES",
                in_bytes=True,
            ),
        ] = 0
        pack_epochs: Annotated[int, key("whose batches are packed together", low=1)] = 1

    keys = Keys

    def __init__(
        self,
        behind: Rows,
        directory: AnyPath,
        cap_bytes: int,
        *,
        memory_bytes: int = 0,
        epochs: int = 1,
    ) -> None:
        super().__init__(behind.rows, behind.width, behind.dtype)
        self._cap = check_integer("cap_bytes", cap_bytes, 0)
        check_integer("memory_bytes", memory_bytes, 0)
        self._epochs, self._packed = check_integer("epochs", epochs, 1), range(0)
        self._most_kept = memory_bytes // max(self.row_bytes, 1)
        self.behind, self._directory = behind, Path(directory)
        if not self._directory.is_dir():
            raise InputError(f"{self._directory}: no such directory")
        self._batches: dict[str, tuple[_Batch, _native.Reader]] = {}
        self._memory = torch.empty(0, behind.width, dtype=behind.dtype)
        self.disk_bytes, self.packing = 0, Counts()

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuse keys that do not go together."""
        how, on_disk = config.options, config.storage.store == "disk"
        if how.pack and (not on_disk or how.store_dir is None):
            raise InputError("storage.pack needs --store disk and storage.store-dir for it")
        if how.pack and how.memory:
            raise InputError(
                "storage.memory chooses the size of a cache, and storage.pack has none"
            )
        if how.pack_epochs > 1 and not how.pack:
            raise InputError(f"storage.pack-epochs {how.pack_epochs} needs storage.pack")
        if how.fixed and on_disk and not how.pack:
            raise InputError(
                "sampling.fixed needs storage.pack under --store disk: both are packed"
            )
        if how.fixed and how.pack_epochs > 1:
            raise InputError(
                f"storage.pack-epochs {how.pack_epochs} needs sampling.fixed off: fixed batches "
                "are packed once"
            )

    @classmethod
    def of(cls, rows: Rows, options: Any, directory: Any) -> PackedRows:
        """From options of the training command."""
        return cls(
            rows, directory, options.pack, memory_bytes=options.cache, epochs=options.pack_epochs
        )

    def report(self) -> dict[str, int]:
        """Bytes of the file, and those read for it."""
        return {"disk_bytes": self.disk_bytes, "bytes_read": self.packing.bytes_read}

    def foresee(
        self, epoch: int, batches: Callable[[int], Iterable[Tensor]], *, fixed: bool
    ) -> None:
        """Pack the batches of an epoch, and of some that follow, unless they are."""
        if epoch not in self._packed:
            self._packed = range(0)
            epochs = range(epoch, epoch + self._epochs)
            self.pack([ids for number in epochs for ids in batches(number)])
            self._packed = range(epoch, sys.maxsize) if fixed else epochs

    def pack(self, id_lists: Sequence[Tensor]) -> None:
        """Pack these batches, instead of those before."""
        batches = [check_ids(ids, self.rows, str(self)) for ids in id_lists]
        self._batches, self.disk_bytes = {}, 0
        common = _most_used(batches, self.rows, self._most_kept)
        plans, offset, last = [], PAGE, self._cap // PAGE * PAGE
        for ids in batches:
            room = max(0, last - offset) // max(self.row_bytes, 1)
            plans.append(_plan(ids, common, offset, room))
            offset += padded(len(plans[-1].written) * self.row_bytes)
        free = shutil.disk_usage(self._directory).free
        if offset > free:
            raise InputError(
                f"{self._directory}: packed batches need {offset} bytes, but {free} are free; "
                "give a smaller cap"
            )
        before = self.behind.counts.record()
        self._memory = self.behind.gather(torch.from_numpy(common))
        with nameless_file(self._directory, Transfers()) as file:
            # How reads have to be aligned can only be found out on a file that holds something.
            file.write(0, np.zeros(PAGE, np.uint8))
            reader = open_reader(file.path)
        with closing(file):
            rows = [ids[plan.written] for ids, plan in zip(batches, plans, strict=True)]
            _write(self.behind, file, rows, [plan.offset for plan in plans])
        after = self.behind.counts.record()
        self.packing.add(
            **{name: after[name] - before[name] for name in ("rows_read", "bytes_read")}
        )
        self.disk_bytes = reader.size
        self._batches = {
            digest(ids.tobytes()): (plan, reader) for ids, plan in zip(batches, plans, strict=True)
        }

    def gather_many(self, ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        """One after another: each has its own stretch."""
        yield from map(self.gather, ids)

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Wait:
        """One long read for a batch that is packed; else as the table behind."""
        batch, reader = self._batches.get(digest(ids.tobytes()), (None, None))
        if batch is None or reader is None:
            return self._begin_behind(ids, out, places)
        common, written, others = (
            chosen if places is None else places[chosen]
            for chosen in (batch.common, batch.written, batch.others)
        )
        numbers = np.arange(len(written))
        ticket = reader.read_rows(numbers, written, as_bytes(out), batch.offset, self.row_bytes, 0)
        self._counts.add(rows_read=len(written), bytes_read=ticket.bytes, hits=len(common))
        rest = self._begin_behind(ids[batch.others], out, others)
        copy_rows(self._memory, batch.common_rows, out, common)

        def wait() -> None:
            finish_read(ticket, self._directory)
            rest()

        return wait

    def __str__(self) -> str:
        return str(self.behind)

    def _begin_behind(self, ids: Int64Array, out: Tensor, places: Int64Array | None) -> Wait:
        before = self.behind.counts.bytes_read
        wait = self.behind.begin(ids, out, places)
        self._counts.add(rows_read=len(ids), bytes_read=self.behind.counts.bytes_read - before)
        return wait


def _write(
    rows: Rows, file: DirectFile, batches: Sequence[Int64Array], offsets: Sequence[int]
) -> None:
    """The rows of each batch, rising, from its offset on; the table is read once, in pieces."""
    each = max(1, _PIECE // max(rows.row_bytes, 1))
    done, at = [0] * len(batches), list(offsets)
    rest = [np.empty(0, np.uint8) for _ in batches]  # what does not fill a page yet
    for first in range(0, rows.rows, each):
        ends = [int(np.searchsorted(ids, first + each)) for ids in batches]
        parts = [ids[begin:end] for ids, begin, end in zip(batches, done, ends, strict=True)]
        union = np.unique(np.concatenate([*parts, np.empty(0, np.int64)]))
        if len(union) == 0:
            continue
        piece = rows.gather(torch.from_numpy(union))
        for b, part in enumerate(parts):
            if len(part):
                mine = piece[torch.from_numpy(np.searchsorted(union, part))]
                rest[b] = np.concatenate((rest[b], as_bytes(mine)))
                full = len(rest[b]) // PAGE * PAGE
                if full:
                    file.write(at[b], rest[b][:full])
                    at[b], rest[b] = at[b] + full, rest[b][full:].copy()
        done = ends
    for b, left in enumerate(rest):
        if len(left):
            file.write(at[b], left)


def _most_used(batches: Sequence[Int64Array], rows: int, most: int) -> Int64Array:
    """The rows that most batches have, at most so many, rising."""
    used = np.zeros(rows, np.int64)
    for ids in batches:
        np.add.at(used, ids, 1)
    # What one batch alone has is no better in memory than in the file.
    order = np.argsort(-used, kind="stable")[: min(most, int((used > 1).sum()))]
    return np.sort(order)


def _plan(ids: Int64Array, common: Int64Array, offset: int, room: int) -> _Batch:
    """Places of a batch's rows, with room for so many in the file."""
    place = np.searchsorted(common, ids)
    hit = np.zeros(len(ids), np.bool_)
    inside = place < len(common)
    hit[inside] = common[place[inside]] == ids[inside]
    missing = np.flatnonzero(~hit)
    missing = missing[np.argsort(ids[missing], kind="stable")]
    return _Batch(np.flatnonzero(hit), place[hit], missing[:room], offset, missing[room:])
