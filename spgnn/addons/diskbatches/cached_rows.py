"""A cache of rows before a table that lies elsewhere, and the rules by which it keeps them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.addons.batches import Counts, Rows, Wait, check_ids, copy_rows
from spgnn.addons.diskbatches.superbatch import NodesOnDisk
from spgnn.direct import mapped
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.layout import Int32Array, Int64Array

PolicyName = Literal["belady", "degree", "lru", "none"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
AHEAD = 1  # batches that are read while another one is used
_NONE = np.empty(0, np.int64)


class _Trace:
    """Distinct rows of each of several batches, and of each row the batch that needs it next."""

    def __init__(self, batches: Sequence[Tensor], rows: int, name: str) -> None:
        self._batches, self._rows, self._name = batches, rows, name
        self._uses: dict[int, Int32Array] = {}
        if not isinstance(batches, NodesOnDisk):
            self._batches = [torch.from_numpy(check_ids(ids, rows, name)) for ids in batches]

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, number: int) -> tuple[int, Int64Array, Int64Array | None]:
        """Rows asked for, the distinct ones, and which of them each is, where one repeats."""
        rows = check_ids(self._batches[number], self._rows, self._name)
        if len(rows) > 1 and not bool(np.diff(np.sort(rows)).all()):
            return len(rows), *np.unique(rows, return_inverse=True)
        return len(rows), rows, None

    def look_ahead(self) -> Int32Array:
        """Note the next use of each row in each batch; returns the first use of each row."""
        seen = np.full(self._rows, -1, np.int32)
        for number in reversed(range(len(self))):
            _, rows, _ = self.batch(number)
            uses = seen[rows]
            if isinstance(self._batches, NodesOnDisk):
                self._batches.file.put_uses(number, uses)
            else:
                self._uses[number] = uses
            seen[rows] = number
        return seen

    def uses(self, number: int) -> Int32Array:
        """The next uses that were noted for a batch."""
        if isinstance(self._batches, NodesOnDisk):
            return self._batches.file.read_uses(number)
        return self._uses.pop(number)


class _Step(NamedTuple):
    """A batch, or what comes before the first: empty slots are filled."""

    reads: Int64Array  # rows that have to be read
    to_slot: Int64Array  # where rows go in the cache, or −1; of a batch all its distinct rows
    from_slot: Int64Array = _NONE  # where they are in the cache, or −1: one of `reads`
    size: int = 0  # rows asked for
    inverse: Int64Array | None = None  # which of the distinct ones each is, if one repeats
    filled: int = 0  # rows of this batch that the first step read


def _planned(table: _native.CacheTable, trace: _Trace, policy: PolicyName) -> Iterator[_Step]:
    """Reads, and changes of the cache: before the first batch, then batch by batch."""
    looks_ahead = policy == "belady" and len(trace) > 1
    filled, first = np.zeros(len(trace), np.int64), _Step(_NONE, _NONE)
    if looks_ahead:
        soonest = trace.look_ahead()
        first = _Step(*table.begin(soonest))
        filled += np.bincount(soonest[first.reads], minlength=len(trace))
        del soonest
    yield first
    for number in range(len(trace)):
        size, rows, inverse = trace.batch(number)
        from_slot, to_slot = table.plan(rows, trace.uses(number) if looks_ahead else None)
        yield _Step(rows[from_slot < 0], to_slot, from_slot, size, inverse, int(filled[number]))


class CachedRows(Rows):
    """Another table behind a cache; gives the same rows.

    A batch asks for distinct rows at once: those that are kept when it begins are hits, the others
    are read, and a row that was read need not be kept. Of the batches of `gather_many`, the misses
    of the next one are read while the caller works on this one: into the tensor that will be
    returned. So besides the cache the rows of one more batch are in memory, and four bytes for each
    row of the table (eight while ``"belady"`` looks ahead). Meanwhile the cache refuses everybody
    else. If the caller leaves before the end, or a read fails, it is emptied.

    Parameters
    ----------
    rows : Rows
        The table behind.
    policy : {"belady", "degree", "lru", "none"}
        ``"belady"``: keep what is needed soonest among the batches of `gather_many` (Belady 1966;
        on superbatches, Ginex, VLDB'22). Empty slots are first filled with what is needed first.
        ``"degree"``: the rows of the highest scores, for ever (PaGraph, SoCC'20).
        ``"lru"``: what was used last. ``"none"``: nothing.
    capacity : int
        Bytes of rows that are kept: of `slots` rows.
    scores : Tensor [rows], optional
        Of ``"degree"``: how many rows of the graph name a vertex (`degrees_of`). With ``"belady"``
        they decide among rows that none of these batches needs; otherwise these go in the order of
        their last use.
    """

    def __init__(
        self, rows: Rows, policy: PolicyName, capacity: int, *, scores: Tensor | None = None
    ) -> None:
        super().__init__(rows.rows, rows.width, rows.dtype)
        check_integer("capacity of a cache, in bytes,", capacity, 0)
        self.behind, self.policy, self._scores = rows, policy, scores
        self._lock, self._is_busy = threading.Lock(), False
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Empty the cache; from now on it has so many bytes."""
        self.slots = min(self.rows, capacity // max(self.row_bytes, 1) * (self.policy != "none"))
        self.release()

    def release(self) -> None:
        """Empty the cache and give its memory back, until the next batch."""
        with self._lock:
            self._check_idle()
            self._cache: Tensor | None = None
            self._empty()

    @property
    def counts(self) -> Counts:
        """Rows that this table was asked for, and those read of the one behind for it."""
        read = self.behind.counts
        of_disk = {name: getattr(read, name) for name in ("rows_read", "bytes_read", "reads")}
        return replace(self._counts, **of_disk)

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """As every table; threads take turns."""
        if out is not None:
            self._output(len(ids), out)
        with self._lock:
            self._check_idle()
            (rows,) = self._rows([ids], out)
        return rows if out is None or out is rows else out.copy_(rows)

    def gather_many(self, ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        """The rows of several batches, which the policy knows from the first one on."""
        with self._lock:
            self._check_idle()
            self._is_busy = True
        try:
            yield from self._rows(ids)
        finally:
            self._is_busy = False

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Wait:
        """Gathers at once."""
        rows = self.gather(torch.from_numpy(ids), out[: len(ids)] if places is None else None)
        if places is not None:
            copy_rows(rows, None, out, places)
        return lambda: None

    def __str__(self) -> str:
        return str(self.behind)

    def _empty(self) -> None:
        self._table = cache_table(self.policy, self.rows, self.slots, self._scores)

    def _check_idle(self) -> None:
        if self._is_busy:
            raise InputError(f"{self}: batches of another iterator are under way, which must end")

    def _rows(
        self, ids: Sequence[Tensor], out: Tensor | None = None
    ) -> Generator[Tensor, None, None]:
        """The rows of each batch; while one is in use, the next one's misses are read."""
        if self._cache is None:
            nbytes = self.slots * self.row_bytes  # mapped: they go back when they are released
            self._cache = mapped(nbytes)[:nbytes].view(self.dtype).view(self.slots, self.width)
        cache, is_complete = self._cache, False
        reading: deque[tuple[_Step, Tensor, Wait]] = deque()
        try:
            trace = _Trace(ids, self.rows, str(self))
            steps = self._begun(_planned(self._table, trace, self.policy))
            fill, begin = next(steps)
            begin(cache, fill.to_slot)()
            while True:
                while len(reading) < 1 + AHEAD:
                    step, begin = next(steps, (None, begin))
                    if step is None:
                        break
                    distinct = out
                    if distinct is None or step.inverse is not None:
                        distinct = self._output(len(step.from_slot), None)
                    wait = begin(distinct, np.flatnonzero(step.from_slot < 0))
                    reading.append((step, distinct, wait))
                if not reading:
                    break
                step, rows, wait = reading[0]
                wait()
                # Hits leave the cache, then what is to be kept goes there.
                hits = np.flatnonzero(step.from_slot >= 0)
                copy_rows(cache, step.from_slot[hits], rows, hits)
                stay = np.flatnonzero(step.to_slot >= 0)
                copy_rows(rows, stay, cache, step.to_slot[stay])
                reading.popleft()
                self._counts.add(
                    rows_needed=step.size,
                    bytes_needed=step.size * self.row_bytes,
                    hits=step.size - len(step.reads) - step.filled,
                )
                repeated = step.inverse
                is_complete = not reading
                yield rows if repeated is None else rows[torch.from_numpy(repeated)]
            is_complete = True
        finally:
            if not is_complete:  # the cache was promised their rows
                for _, _, wait in reading:
                    with suppress(InputError):
                        wait()
                self._empty()

    def _begun(self, steps: Iterator[_Step]) -> Iterator[tuple[_Step, Callable[..., Wait]]]:
        """Each step, and the function that begins its reads; a table may want them all at once."""
        if type(self.behind).begin_many is Rows.begin_many:
            for step in steps:
                yield step, partial(self.behind.begin, step.reads)
            return
        every = list(steps)
        begins = self.behind.begin_many([step.reads for step in every])
        yield from zip(every, begins, strict=True)


def cache_table(
    policy: PolicyName, rows: int, slots: int, scores: Tensor | None = None
) -> _native.CacheTable:
    """The bookkeeping of an empty cache of so many slots before a table of so many rows."""
    check_choice("cache policy", policy, POLICIES)
    if policy == "degree" and scores is None:
        raise InputError("cache policy degree needs scores, one a row")
    values = torch.zeros(0) if scores is None else scores.detach().cpu()
    if scores is not None and values.shape != (rows,):
        raise InputError(f"cache policy {policy}: scores {list(values.shape)} of {rows} rows")
    slots = min(slots, rows)
    if policy == "none" or slots == 0:
        return _native.fixed_cache_table(rows, np.empty(0, np.int64))
    if policy == "degree":
        highest = torch.topk(values.double(), slots).indices
        return _native.fixed_cache_table(rows, np.ascontiguousarray(highest.numpy()))
    return _native.cache_table(policy, rows, slots, values.float().contiguous().numpy())


def hits(
    policy: PolicyName,
    trace: Iterable[Tensor | Int64Array],
    slots: int,
    *,
    ahead: int | None = None,
    scores: Tensor | None = None,
) -> list[int]:
    """Hits of each batch of a trace, without any rows, in a cache that is empty at first."""
    check_integer("slots", slots, 0)
    batches = [torch.from_numpy(np.ascontiguousarray(batch, np.int64)) for batch in trace]
    rows = 1 + max((int(batch.max()) for batch in batches if len(batch)), default=-1)
    rows = rows if scores is None else len(scores)
    table = cache_table(policy, rows, slots, scores)
    size, counts = max(1, len(batches) if ahead is None else ahead), []
    for first in range(0, len(batches), size):
        steps = _planned(table, _Trace(batches[first : first + size], rows, "trace"), policy)
        next(steps)
        counts += [step.size - len(step.reads) - step.filled for step in steps]
    return counts
