"""A cache of rows in memory before a table that lies elsewhere."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.layout import Int64Array
from spgnn.store.optimum import Optimum
from spgnn.store.policy import Policy
from spgnn.store.rows import Counts, Pending, Rows, copy_rows

AHEAD = 1  # batches that are read while another one is used


@dataclass(frozen=True, eq=False)
class _Batch:
    """What is asked for: rows, these once each, and (if they repeat) which of those each is."""

    ids: Int64Array
    distinct: Int64Array
    inverse: Int64Array | None

    @classmethod
    def of(cls, ids: Int64Array) -> _Batch:
        if len(ids) < 2 or bool(np.diff(np.sort(ids)).all()):
            return cls(ids, ids, None)
        distinct, inverse = np.unique(ids, return_inverse=True)
        return cls(ids, distinct, inverse)


@dataclass(frozen=True, eq=False)
class _Change:
    """A batch and its plan: where its hits lie, and where its misses will."""

    batch: _Batch
    from_slot: Int64Array
    to_slot: Int64Array

    @property
    def missing(self) -> Int64Array:
        """Places of the rows that have to be read."""
        return np.flatnonzero(self.from_slot < 0)


@dataclass(frozen=True, eq=False)
class _Flight:
    """A batch whose misses are on their way into `out`."""

    change: _Change
    out: Tensor
    pending: Pending


class CachedRows(Rows):
    """Another table behind a cache; gives the same rows.

    What `prefetch` announces is planned in order, and the misses of the next batch are read while
    the caller works on this one: into the tensor that `gather` will return. So beside the cache the
    rows of one more batch are in memory, and four bytes for each row of the table.

    Parameters
    ----------
    rows : Rows
        The table behind.
    policy : Policy or str
    capacity : int
        Bytes of rows that are kept.
    bound : bool
        Also find out how many hits any policy could have had: four more bytes for each row.

    Attributes
    ----------
    slots : int
        Rows that are kept at most.
    optimum : Optimum or None
        Of what has been gathered, with `bound`.
    """

    def __init__(
        self, rows: Rows, policy: Policy | str, capacity: int, *, bound: bool = False
    ) -> None:
        super().__init__(rows.rows, rows.width, rows.dtype)
        check_integer("capacity of a cache, in bytes,", capacity, 0)
        self.behind = rows
        self.policy = Policy(policy) if isinstance(policy, str) else policy
        kept = 0 if self.policy.name == "none" else capacity // max(rows.row_bytes, 1)
        self.slots = min(rows.rows, kept)
        self.optimum = Optimum(rows.rows, self.slots) if bound else None
        self._kept = torch.empty(self.slots, rows.width, dtype=rows.dtype)
        self._lock = threading.Lock()
        self._empty()

    @property
    def counts(self) -> Counts:
        """What this table was asked for, and what was read of the one behind for it."""
        read = self.behind.counts
        return replace(self._asked, rows_read=read.rows_read, bytes_read=read.bytes_read)

    @property
    def fetches_together(self) -> bool:
        """As the table behind."""
        return self.behind.fetches_together

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        """Announce the next batches: `gather` then asks for exactly these, in this order.

        Called again, it adds batches behind those that are still to come; a policy that looks ahead
        knows them all. If the table behind fetches several batches at once, it does so here.
        """
        batches = [_Batch.of(self._checked(batch)) for batch in ids]
        with self._lock:
            for batch in batches:
                self._announce(batch)
            if self.fetches_together:
                planned = [self._plan() for _ in range(len(self._coming))]
                missing = [c.batch.distinct[c.missing] for c in planned]
                self._planned += planned
                try:
                    self.behind.prefetch([torch.from_numpy(rows) for rows in missing])
                except BaseException:
                    self._give_up()
                    raise
            self._read_ahead(AHEAD)

    def forget(self) -> None:
        """What was announced and has not been gathered never comes."""
        with self._lock:
            # The cache was promised the rows of what has been planned.
            while self._flights or self._planned:
                if not self._flights:
                    self._begin()
                self._land()
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
        wanted = self._checked(ids)
        if out is not None:
            self._room(len(wanted), out)
        with self._lock:
            self._expect(wanted)
            if not self._flights:
                self._begin(out)
            self._read_ahead(1 + AHEAD)
            flight = self._land()
            missed = len(flight.change.missing)
            if self.optimum is not None:
                self.optimum.add(flight.change.batch.distinct)
        self._asked.add(
            rows_needed=len(wanted),
            bytes_needed=len(wanted) * self.row_bytes,
            hits=len(wanted) - missed,
        )
        found, inverse = flight.out, flight.change.batch.inverse
        if inverse is not None:
            found = found.index_select(0, torch.from_numpy(inverse))
        return found if out is None or out is found else out.copy_(found)

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Gathers at once; the reads of the next batch go on."""
        found = self.gather(torch.from_numpy(ids), out[: len(ids)] if places is None else None)
        if places is not None:
            copy_rows(found, None, out, places)
        return Pending()

    def __str__(self) -> str:
        return str(self.behind)

    def _empty(self) -> None:
        self._table = self.policy.table(self.rows, self.slots)
        self._coming: deque[_Batch] = deque()  # announced
        self._planned: deque[_Change] = deque()
        self._flights: deque[_Flight] = deque()  # begun

    def _announce(self, batch: _Batch) -> None:
        self._coming.append(batch)
        self._table.announce(batch.distinct)

    def _expect(self, wanted: Int64Array) -> None:
        """Make sure that the next batch is this one."""
        begun = [flight.change for flight in self._flights] + list(self._planned)
        following = [change.batch for change in begun[:1]] + list(self._coming)
        if not following:
            self._announce(_Batch.of(wanted))
        elif not np.array_equal(following[0].ids, wanted):
            raise InputError(
                f"{self}: {len(wanted)} rows are asked for, but others were announced, "
                f"{len(following[0].ids)} of them; gather what prefetch was told, in that order"
            )

    def _plan(self) -> _Change:
        return _Change(self._coming.popleft(), *self._table.plan())

    def _read_ahead(self, flights: int) -> None:
        while len(self._flights) < flights and (self._planned or self._coming):
            self._begin()

    def _begin(self, out: Tensor | None = None) -> None:
        change = self._planned.popleft() if self._planned else self._plan()
        distinct, missing = change.batch.distinct, change.missing
        if out is None or change.batch.inverse is not None:
            out = self._room(len(distinct), None)
        try:
            pending = self.behind.begin(distinct[missing], out, missing)
        except BaseException:
            self._give_up()
            raise
        self._flights.append(_Flight(change, out, pending))

    def _land(self) -> _Flight:
        """Complete the first flight: hits leave the cache, then what is to be kept goes there."""
        flight = self._flights.popleft()
        try:
            flight.pending.wait()
        except BaseException:
            self._give_up()
            raise
        hits = np.flatnonzero(flight.change.from_slot >= 0)
        copy_rows(self._kept, flight.change.from_slot[hits], flight.out, hits)
        kept = np.flatnonzero(flight.change.to_slot >= 0)
        copy_rows(flight.out, kept, self._kept, flight.change.to_slot[kept])
        return flight

    def _give_up(self) -> None:
        """Begin anew, after what was promised to the cache did not come."""
        self._empty()
        self.behind.forget()
