"""A cache of rows before a table that lies elsewhere, and the rules by which it keeps them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.layout import Int64Array
from spgnn.loader.feature_rows import Counts, Rows, Wait, check_ids, copy_rows

PolicyName = Literal["belady", "degree", "lru", "none"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
AHEAD = 1  # batches that are read while another one is used


class _Plan(NamedTuple):
    """A batch: rows asked for, which of the distinct ones each is, the slots of these."""

    size: int
    inverse: Int64Array | None  # None where none repeats
    from_slot: Int64Array
    to_slot: Int64Array
    missing: Int64Array
    begin: Callable[[Tensor, Int64Array], Wait]


class CachedRows(Rows):
    """Another table behind a cache; gives the same rows.

    A batch asks for distinct rows at once: those that are kept when it begins are hits, the others
    are read, and a row that was read need not be kept. Of the batches of `gather_many`, the misses
    of the next one are read while the caller works on this one: into the tensor that will be
    returned. So besides the cache the rows of one more batch are in memory, and four bytes for each
    row of the table. Meanwhile the cache refuses everybody else. If the caller leaves before the
    end, or a read fails, the cache is emptied, and can be used again.

    Parameters
    ----------
    rows : Rows
        The table behind.
    policy : {"belady", "degree", "lru", "none"}
        ``"belady"``: keep what is needed soonest among the batches of `gather_many` (Belady 1966;
        on superbatches, Ginex, VLDB'22, which has their samples on a disk, not in memory).
        ``"degree"``: the rows of the highest scores, for ever (PaGraph, SoCC'20).
        ``"lru"``: what was used last. ``"none"``: nothing.
    capacity : int
        Bytes of rows that are kept.
    scores : Tensor [rows], optional
        Of ``"degree"``: how many rows of the graph name a vertex (`degrees_of`). With ``"belady"``
        they decide among rows that none of these batches needs; otherwise these go in the order of
        their last use.

    Attributes
    ----------
    slots : int
        Rows that are kept at most.

    Raises
    ------
    InputError
        If there is no such policy, or scores are missing or do not fit.
    """

    def __init__(
        self, rows: Rows, policy: PolicyName, capacity: int, *, scores: Tensor | None = None
    ) -> None:
        super().__init__(rows.rows, rows.width, rows.dtype)
        check_integer("capacity of a cache, in bytes,", capacity, 0)
        self.behind, self.policy, self._scores = rows, policy, scores
        self.slots = min(rows.rows, capacity // max(rows.row_bytes, 1) * (policy != "none"))
        self._cache = torch.empty(self.slots, rows.width, dtype=rows.dtype)
        self._lock, self._is_busy = threading.Lock(), False
        self._empty()

    @property
    def counts(self) -> Counts:
        """Rows that this table was asked for, and those read of the one behind for it."""
        read = self.behind.counts
        return replace(self._counts, rows_read=read.rows_read, bytes_read=read.bytes_read)

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """As every table; threads take turns."""
        if out is not None:
            self._output(len(ids), out)
        with self._lock:
            (rows,) = self._rows(self._planned([ids]), out)
        return rows if out is None or out is rows else out.copy_(rows)

    def gather_many(self, ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        """The rows of several batches, which the policy knows from the first one on."""
        with self._lock:
            planned, self._is_busy = self._planned(ids), True
        try:
            yield from self._rows(planned)
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

    def _planned(self, ids: Sequence[Tensor]) -> deque[_Plan]:
        """The fate of each batch, in order, and of the cache."""
        if self._is_busy:
            raise InputError(f"{self}: batches of another iterator are under way, which must end")
        asked = [check_ids(batch, self.rows, str(self)) for batch in ids]
        once: list[tuple[Int64Array, Int64Array | None]] = []
        for wanted in asked:
            repeats = len(wanted) > 1 and not bool(np.diff(np.sort(wanted)).all())
            once.append(np.unique(wanted, return_inverse=True) if repeats else (wanted, None))
            self._table.announce(once[-1][0])
        slots = [self._table.plan() for _ in asked]
        missing = [np.flatnonzero(from_slot < 0) for from_slot, _ in slots]
        try:
            begin = self.behind.begin_many(
                [rows[places] for (rows, _), places in zip(once, missing, strict=True)]
            )
        except BaseException:
            self._empty()
            raise
        return deque(
            _Plan(len(wanted), inverse, *both, places, start)
            for wanted, (_, inverse), both, places, start in zip(
                asked, once, slots, missing, begin, strict=True
            )
        )

    def _rows(
        self, planned: deque[_Plan], out: Tensor | None = None
    ) -> Generator[Tensor, None, None]:
        """The rows of each plan; while one is in use, the next one's misses are read."""
        reading: deque[tuple[_Plan, Tensor, Wait]] = deque()
        try:
            while planned or reading:
                while planned and len(reading) < 1 + AHEAD:
                    plan, distinct = planned.popleft(), out
                    if distinct is None or plan.inverse is not None:
                        distinct = self._output(len(plan.from_slot), None)
                    reading.append((plan, distinct, plan.begin(distinct, plan.missing)))
                plan, rows, wait = reading[0]
                wait()
                # Hits leave the cache, then what is to be kept goes there.
                hits = np.flatnonzero(plan.from_slot >= 0)
                copy_rows(self._cache, plan.from_slot[hits], rows, hits)
                kept = np.flatnonzero(plan.to_slot >= 0)
                copy_rows(rows, kept, self._cache, plan.to_slot[kept])
                reading.popleft()
                self._counts.add(
                    rows_needed=plan.size,
                    bytes_needed=plan.size * self.row_bytes,
                    hits=plan.size - len(plan.missing),
                )
                repeated = plan.inverse
                yield rows if repeated is None else rows[torch.from_numpy(repeated)]
        finally:
            if planned or reading:  # the cache was promised their rows
                for _, _, wait in reading:
                    with suppress(InputError):
                        wait()
                self._empty()


def cache_table(
    policy: PolicyName, rows: int, slots: int, scores: Tensor | None = None
) -> _native.CacheTable:
    """The bookkeeping of an empty cache of so many slots before a table of so many rows."""
    check_choice("cache policy", policy, POLICIES)
    if policy == "degree" and scores is None:
        raise InputError("cache policy degree needs scores, one a row")
    values = torch.zeros(0) if scores is None else scores.detach().cpu()
    if scores is not None and values.shape != (rows,):
        raise InputError(
            f"cache policy {policy}: scores {list(values.shape)} for a table of {rows} rows"
        )
    slots = min(slots, rows)
    if policy == "none" or slots == 0:
        return _native.fixed_cache_table(rows, np.empty(0, np.int64))
    if policy == "degree":
        kept = torch.topk(values.double(), slots).indices
        return _native.fixed_cache_table(rows, np.ascontiguousarray(kept.numpy()))
    return _native.cache_table(policy, rows, slots, values.float().contiguous().numpy())


def hits(
    policy: PolicyName,
    trace: Iterable[Tensor | Int64Array],
    slots: int,
    *,
    ahead: int | None = None,
    scores: Tensor | None = None,
) -> list[int]:
    """Hits of each batch of a trace, without any rows, in a cache that is empty at first.

    A trace are the distinct rows of one batch after another; `ahead` of them are announced at a
    time (a superbatch), by default all: then no rule has more hits than ``"belady"``.
    """
    check_integer("slots", slots, 0)
    batches = [np.ascontiguousarray(batch, np.int64) for batch in trace]
    rows = 1 + max((int(batch.max(initial=-1)) for batch in batches), default=-1)
    table = cache_table(policy, rows if scores is None else len(scores), slots, scores)
    size = max(1, len(batches) if ahead is None else ahead)
    counts = []
    for first in range(0, len(batches), size):
        superbatch = batches[first : first + size]
        for batch in superbatch:
            table.announce(batch)
        counts += [int((table.plan()[0] >= 0).sum()) for _ in superbatch]
    return counts
