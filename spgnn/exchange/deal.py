"""Arrays dealt to peers along an axis: what schemes settle that is no demand yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.exchange.inspect import by_receiver, swapped, swapped_counts
from spgnn.layout import Int64Array

Arrays = tuple[Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Deal:
    """What a scheme yields to hand stretches of arrays to its peers.

    The answer is a :class:`Hand`: what all peers dealt to this rank, in their order.

    Attributes
    ----------
    axis : str
    counts : tuple of int64 [peers]
        Lengths of stretches; as many of them as there are groups of arrays.
    arrays : tuple of groups
        Arrays [counts[i].sum(), …] of group i are cut by counts[i]. An array that is ``None`` is
        so on all ranks.
    """

    axis: str
    counts: tuple[Int64Array, ...]
    arrays: tuple[Arrays, ...]

    def settle(self, comm: Communicator) -> Hand:
        """The exchange over a communicator."""
        counts = swapped_counts(comm, *self.counts)
        arrays = tuple(
            tuple(None if array is None else swapped(comm, array, cut) for array in group)
            for group, cut in zip(self.arrays, counts, strict=True)
        )
        return Hand(tuple(counts), arrays)

    @staticmethod
    def settle_all(parts: Sequence[Deal]) -> list[Hand]:
        """The exchange of a whole group in one process."""
        counts: list[list[RowCounts]] = [[] for _ in parts]
        arrays: list[list[Arrays]] = [[] for _ in parts]
        for number, group in enumerate(parts[0].arrays):
            sent = np.stack([part.counts[number] for part in parts])
            largest = int(sent.max(initial=0))
            moved = [
                by_receiver([part.arrays[number][place] for part in parts], sent)
                for place in range(len(group))
            ]
            for rank in range(len(parts)):
                counts[rank].append(RowCounts(sent[rank], sent[:, rank], largest))
                arrays[rank].append(tuple(array[rank] for array in moved))
        return [Hand(tuple(c), tuple(a)) for c, a in zip(counts, arrays, strict=True)]


@dataclass(frozen=True, eq=False)
class Hand:
    """What was dealt to this rank.

    Attributes
    ----------
    counts : tuple of RowCounts
        To and from each peer, for each group of arrays.
    arrays : tuple of groups
    """

    counts: tuple[RowCounts, ...]
    arrays: tuple[Arrays, ...]
