"""A cache of rows before a table that lies elsewhere, and the rules by which it keeps them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.layout import Int64Array
from spgnn.loader.rows import Counts, Pending, Rows, check_ids, copy_rows

PolicyName = Literal["belady", "degree", "lru", "none"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
AHEAD = 1  # batches that are read while another one is used


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows that are asked for, these once each, and (if they repeat) which of those each is."""

    ids: Int64Array
    distinct: Int64Array
    inverse: Int64Array | None

    @classmethod
    def of(cls, ids: Int64Array) -> _Batch:
        if len(ids) < 2 or bool(np.diff(np.sort(ids)).all()):
            return cls(ids, ids, None)
        distinct, inverse = np.unique(ids, return_inverse=True)
        return cls(ids, distinct, inverse)


@dataclass(eq=False)
class _Plan:
    """A batch, the slots of its hits and those of its misses, and its rows once they are read."""

    batch: _Batch
    from_slot: Int64Array
    to_slot: Int64Array
    out: Tensor | None = None
    pending: Pending | None = None

    @property
    def missing(self) -> Int64Array:
        return np.flatnonzero(self.from_slot < 0)


class CachedRows(Rows):
    """Another table behind a cache; gives the same rows.

    A batch asks for distinct rows at once: those that are kept when it begins are hits, the others
    are read, and a row that was read need not be kept. What `prefetch` announces is planned in
    order, and the misses of the next batch are read while the caller works on this one: into the
    tensor that `gather` will return. So besides the cache the rows of one more batch are in memory,
    and four bytes for each row of the table.

    Parameters
    ----------
    rows : Rows
        The table behind.
    policy : {"belady", "degree", "lru", "none"}
        ``"belady"``: keep what is needed soonest among the batches that were announced (Belady
        1966; on superbatches, Ginex, VLDB'22). ``"degree"``: the rows of the highest scores, for
        ever (PaGraph, SoCC'20). ``"lru"``: what was used last. ``"none"``: nothing.
    capacity : int
        Bytes of rows that are kept.
    scores : Tensor [rows], optional
        Of ``"degree"``: how many rows of the graph name a vertex (`degrees_of`). With ``"belady"``
        they decide among rows that no announced batch needs; otherwise these go in the order of
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
        self._kept = torch.empty(self.slots, rows.width, dtype=rows.dtype)
        self._lock = threading.Lock()
        self._empty()

    @property
    def counts(self) -> Counts:
        """Rows that this table was asked for, and those read of the one behind for it."""
        read = self.behind.counts
        return replace(self._counts, rows_read=read.rows_read, bytes_read=read.bytes_read)

    @property
    def fetches_together(self) -> bool:
        """As the table behind."""
        return self.behind.fetches_together

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        """Announce the next batches: `gather` then asks for exactly these, in this order.

        Called again, it adds batches behind those that are still to come; a policy that looks ahead
        knows them all. If the table behind fetches several batches at once, it does so here.
        """
        batches = [_Batch.of(check_ids(batch, self.rows, str(self))) for batch in ids]
        with self._lock:
            for batch in batches:
                self._announce(batch)
            if self.fetches_together:
                planned = [self._plan() for _ in range(len(self._coming))]
                self._planned += planned
                try:
                    self.behind.prefetch(
                        [torch.from_numpy(plan.batch.distinct[plan.missing]) for plan in planned]
                    )
                except BaseException:
                    self._give_up()
                    raise
            self._read_ahead(AHEAD)

    def forget(self) -> None:
        """Call off all that was announced and has not been gathered."""
        with self._lock:
            # The cache was promised the rows of what has been planned.
            while self._reading or self._planned:
                if not self._reading:
                    self._begin()
                self._complete()
            self._coming.clear()
            self._table.forget()
            self.behind.forget()

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """As every table; what was announced must be asked for in that order.

        Raises
        ------
        InputError
            As every table, and if another batch was announced. After a read error the cache is
            empty, nothing is announced, and it can be used again.
        """
        wanted = check_ids(ids, self.rows, str(self))
        if out is not None:
            self._output(len(wanted), out)
        with self._lock:
            self._expect(wanted)
            if not self._reading:
                self._begin(out)
            self._read_ahead(1 + AHEAD)
            plan = self._complete()
        self._counts.add(
            rows_needed=len(wanted),
            bytes_needed=len(wanted) * self.row_bytes,
            hits=len(wanted) - len(plan.missing),
        )
        rows, inverse = plan.out, plan.batch.inverse
        assert rows is not None
        if inverse is not None:
            rows = rows.index_select(0, torch.from_numpy(inverse))
        return rows if out is None or out is rows else out.copy_(rows)

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Gathers at once; the reads of the next batch go on."""
        rows = self.gather(torch.from_numpy(ids), out[: len(ids)] if places is None else None)
        if places is not None:
            copy_rows(rows, None, out, places)
        return Pending()

    def __str__(self) -> str:
        return str(self.behind)

    def _empty(self) -> None:
        self._table = cache_table(self.policy, self.rows, self.slots, self._scores)
        self._coming: deque[_Batch] = deque()  # announced
        self._planned: deque[_Plan] = deque()
        self._reading: deque[_Plan] = deque()

    def _announce(self, batch: _Batch) -> None:
        self._coming.append(batch)
        self._table.announce(batch.distinct)

    def _expect(self, wanted: Int64Array) -> None:
        """Make sure that the next batch is this one."""
        begun = [*self._reading, *self._planned]
        following = [plan.batch for plan in begun[:1]] + list(self._coming)
        if not following:
            self._announce(_Batch.of(wanted))
        elif not np.array_equal(following[0].ids, wanted):
            raise InputError(
                f"{self}: {len(wanted)} rows are asked for, but others were announced, "
                f"{len(following[0].ids)} of them; gather what prefetch was told, in that order"
            )

    def _plan(self) -> _Plan:
        return _Plan(self._coming.popleft(), *self._table.plan())

    def _read_ahead(self, batches: int) -> None:
        while len(self._reading) < batches and (self._planned or self._coming):
            self._begin()

    def _begin(self, out: Tensor | None = None) -> None:
        plan = self._planned.popleft() if self._planned else self._plan()
        distinct, missing = plan.batch.distinct, plan.missing
        if out is None or plan.batch.inverse is not None:
            out = self._output(len(distinct), None)
        try:
            plan.pending = self.behind.begin(distinct[missing], out, missing)
        except BaseException:
            self._give_up()
            raise
        plan.out = out
        self._reading.append(plan)

    def _complete(self) -> _Plan:
        """Wait for the first batch: hits leave the cache, then what is to be kept goes there."""
        plan = self._reading.popleft()
        assert plan.out is not None
        assert plan.pending is not None
        try:
            plan.pending.wait()
        except BaseException:
            self._give_up()
            raise
        hits = np.flatnonzero(plan.from_slot >= 0)
        copy_rows(self._kept, plan.from_slot[hits], plan.out, hits)
        kept = np.flatnonzero(plan.to_slot >= 0)
        copy_rows(plan.out, kept, self._kept, plan.to_slot[kept])
        return plan

    def _give_up(self) -> None:
        """Begin anew, after what was promised to the cache did not come."""
        self._empty()
        self.behind.forget()


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
    """Hits of each batch of a trace, without any rows; the cache is empty at first.

    With ``"belady"`` and all batches announced (`ahead` not given) their sum is the most that any
    rule can have.

    Parameters
    ----------
    policy, scores
        As of `CachedRows`.
    trace : iterable of int64 [k]
        The distinct rows of one batch after another.
    slots : int
        Rows that the cache holds.
    ahead : int, optional
        So many batches are announced at a time (a superbatch); by default all.
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
