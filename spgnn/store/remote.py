"""Rows of all ranks: each has some of a table, and any of them may be asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import index_dtype
from spgnn.store.rows import Pending, Rows, copy_rows


@dataclass(eq=False)
class _Union:
    """The rows of several batches, each row once: own ones first, then the other ranks'."""

    table: Tensor
    pending: Pending
    batches: deque[tuple[Int64Array, Int64Array]]
    """What each batch asks for, and where in the table that lies."""


class RemoteRows(Rows):
    """A table whose rows lie on the ranks of a group; `gather` and `prefetch` are collective.

    What `prefetch` is told (a superbatch) comes in one exchange: the union of its rows, each once,
    by one all-to-allv of row numbers and one of rows. The calls of `gather` that follow take their
    rows from it, without communication. A call that was not announced is an exchange of its own. So
    all ranks announce the same number of batches, and gather the same number.

    Parameters
    ----------
    own : Rows
        This rank's rows.
    layout : RowLayout
        Which rank has which rows.
    comm : Communicator

    Raises
    ------
    InputError
        If own rows do not fit the layout, or ranks do not agree on layout, width and dtype.
    """

    def __init__(self, own: Rows, layout: RowLayout, comm: Communicator) -> None:
        super().__init__(layout.rows, own.width, own.dtype)
        fits = layout.parts == comm.size and own.rows == int(layout.sizes[comm.rank])
        comm.check_agreement(
            "rows of all ranks", fits=fits, offsets=layout.offsets, width=own.width, dtype=own.dtype
        )
        if not fits:
            raise InputError(
                f"{own.rows} rows on rank {comm.rank} of {comm.size}, but the layout has "
                f"{layout.parts} parts of {layout.sizes.tolist()} rows"
            )
        self.own, self.layout, self._comm = own, layout, comm
        # Numbers of rows among their owner's: what travels for each that is asked for.
        self._number = index_dtype(int(layout.sizes.max()))
        self._unions: deque[_Union] = deque()

    @property
    def fetches_together(self) -> bool:
        """True: see `prefetch`."""
        return True

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        """Fetch the rows of several batches, for the next calls of `gather`. Collective.

        Returns while the rows are on their way; the next `gather` waits for them.

        Raises
        ------
        InputError
            If an id is out of range, or ranks announce different numbers of batches.
        """
        batches = [self._checked(batch) for batch in ids]
        self._comm.check_agreement("rows that are prefetched", batches=len(batches))
        if batches:
            self._unions.append(self._fetch(batches))

    def forget(self) -> None:
        """What was fetched ahead and has not been gathered is dropped; on all ranks."""
        for union in self._unions:
            union.pending.wait()
        self._unions.clear()

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Collective, unless these rows have been fetched ahead."""
        if not self._unions:
            self._unions.append(self._fetch([ids]))
        union = self._unions[0]
        wanted, found = union.batches[0]
        if not np.array_equal(wanted, ids):
            raise InputError(
                f"{self}: {len(ids)} rows are asked for, but others were announced, "
                f"{len(wanted)} of them; gather what prefetch was told, in that order"
            )
        union.batches.popleft()
        if not union.batches:
            self._unions.popleft()

        def finish() -> None:
            union.pending.wait()
            copy_rows(union.table, found, out, places)

        return Pending(finish)

    def _fetch(self, batches: Sequence[Int64Array]) -> _Union:
        """One exchange for the union of some batches."""
        rows, places = np.unique(np.concatenate(batches), return_inverse=True)
        cuts = np.searchsorted(rows, self.layout.offsets)
        me = self._comm.rank
        begin, end = int(cuts[me]), int(cuts[me + 1])
        own = end - begin
        table = self._room(len(rows), None)
        owner = np.repeat(np.arange(self.layout.parts), np.diff(cuts))
        local = rows - self.layout.offsets[owner]
        pending = self._exchange(np.delete(local, slice(begin, end)), cuts, table[own:])
        self.own.gather(torch.from_numpy(local[begin:end]), table[:own])
        # Own rows, which lie between the other ranks' in the order of numbers, come first.
        moved = np.concatenate(
            (np.arange(own, own + begin), np.arange(own), np.arange(end, len(rows)))
        )
        found = np.split(moved[places], np.cumsum([len(batch) for batch in batches])[:-1])
        return _Union(table, pending, deque(zip(batches, found, strict=True)))

    def _exchange(self, asked: Int64Array, cuts: Int64Array, received: Tensor) -> Pending:
        """Ask the other ranks for some of their rows, and answer what they ask."""
        comm = self._comm
        wanted = np.diff(cuts)
        wanted[comm.rank] = 0
        counts = comm.exchange_counts(wanted.tolist())
        numbers = torch.from_numpy(asked).to(self._number)
        asked_here = numbers.new_empty(counts.received)
        comm.alltoallv(numbers, asked_here, counts).wait()
        answer = self.own.gather(asked_here.long())
        self._asked.add(rows_read=counts.sent, bytes_read=counts.sent * self.row_bytes)
        flight = comm.alltoallv(answer, received, counts.reversed())

        def finish() -> None:
            flight.wait()

        return Pending(finish)
