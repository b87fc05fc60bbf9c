"""The most hits that any cache rule could have had, found while batches come."""

from __future__ import annotations

import numpy as np

from spgnn.errors import check_integer
from spgnn.layout import Int64Array


class Optimum:
    """Counts what Belady's rule would have hit, had it known all batches so far.

    A row that comes again is a hit if it was kept from its last batch on: an interval between two
    batches. At most `slots` intervals may lie over any point of time. Taken in the order in which
    they end, and shorter ones first among those that end together, as many fit as can at all; so
    what comes later changes nothing (as in Hawkeye's OPTgen; Jain & Lin, ISCA 2016).

    Parameters
    ----------
    rows : int
        Of the table that is cached; four bytes are kept for each.
    slots : int
        Rows that the cache holds.

    Attributes
    ----------
    hits : int
        The most there could have been, from an empty cache.
    """

    def __init__(self, rows: int, slots: int) -> None:
        check_integer("slots", slots, 0)
        self.hits = 0
        self._slots = slots
        self._last = np.full(rows, -1, np.int32)  # batch that had the row
        self._free = np.empty(64, np.int64)  # slots without a row between each batch and the next
        self._batches = 0

    def add(self, ids: Int64Array) -> None:
        """One more batch.

        Parameters
        ----------
        ids : int64 [k]
            Its distinct rows.
        """
        now = self._batches
        last = self._last[ids]
        ending = np.bincount(last[last >= 0], minlength=now)
        taken = np.zeros(now, np.int64)
        room = self._slots
        for begin in range(now - 1, -1, -1):
            room = min(room, int(self._free[begin]))
            if room == 0:
                break
            taken[begin] = min(room, int(ending[begin]))
            room -= int(taken[begin])
        self._free[:now] -= np.cumsum(taken)
        self.hits += int(taken.sum())
        self._last[ids] = now
        if now == len(self._free):
            self._free = np.concatenate((self._free, np.empty_like(self._free)))
        self._free[now] = self._slots
        self._batches += 1
