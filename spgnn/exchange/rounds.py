"""Rounds and groups: in which order peers meet, and how many of them fit a budget. Numbers only.

In a round every rank talks with one peer, and nobody with two: a 1-factorisation of the complete
graph, here by the circle method (Kirkman 1847; Lucas 1883). Odd numbers of ranks have a bye. What
pairs exchange is at most so many rows a round, on any rank of the mesh and in either direction;
these numbers, one for each round, are all that ranks have to agree on: of them everyone makes the
same groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from spgnn.comm.traffic import RowCounts
from spgnn.layout import Int64Array

# A group can hold this part, at least, of what any pair exchanges: each group costs a message, a
# pass over the rows of the result, and row pointers of its own.
LEAST_OF_PAIR = 16
# Below this budget a group costs more than the rows it carries: there are half as many groups, and
# none travels while another one is multiplied.
SMALL_BUDGET = 1 << 20


class Meeting(NamedTuple):
    """Rows `first` to `last` (exclusive) of what the pairs of a round exchange."""

    round: int
    first: int
    last: int


# What is under way at once.
Group = tuple[Meeting, ...]


def rounds_of(ranks: int) -> int:
    """Rounds in which everyone meets everyone."""
    return ranks - 1 + ranks % 2 if ranks > 1 else 0


def partner(rank: int, round_: int, ranks: int) -> int | None:
    """Whom a rank meets in a round; ``None`` if nobody. It is mutual."""
    seats = rounds_of(ranks)
    # On a circle of an odd number of seats, i meets round − i; whom this leaves alone meets the
    # rank in the middle, if there is one.
    if rank == seats:
        other = round_ * (seats + 1) // 2 % seats
    else:
        other = (round_ - rank) % seats
        other = seats if other == rank else other
    return other if other < ranks else None


@dataclass(frozen=True)
class Rounds:
    """The rounds of one hop, on which ranks have agreed."""

    rank: int  # this rank's place along the hop's axis
    # the most rows of any pair in each round, in either direction; the same on all ranks
    most: tuple[int, ...]

    def least_budget(self, row_bytes: int) -> int:
        """The smallest budget: two buffers, in each a 16th of the pair that has most rows."""
        return 2 * -(-max(self.most, default=0) // LEAST_OF_PAIR) * row_bytes

    def groups(self, budget: int, row_bytes: int) -> tuple[Group, ...]:
        """Rounds in groups that fit a budget while under way; one group if all fit at once."""
        rows = sum(self.most)
        if not rows:
            return ()
        each = budget // under_way(budget) // row_bytes
        count = 1 if rows * row_bytes <= budget else -(-rows // each)
        # As even as can be, in the order of rounds, cut wherever a group is full.
        room = -(-rows // count)
        groups: list[Group] = [()]
        filled = 0
        for number, most in enumerate(self.most):
            first = 0
            while first < most:
                if filled == room:
                    groups.append(())
                    filled = 0
                last = min(most, first + room - filled)
                groups[-1] += (Meeting(number, first, last),)
                filled, first = filled + last - first, last
        return tuple(groups)

    def stretches(self, group: Group, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
        """A group's stretch of the rows to or from each peer: `first` to `last` (exclusive)."""
        first, last = np.zeros_like(counts), np.zeros_like(counts)
        for number, begin, end in group:
            peer = partner(self.rank, number, len(counts))
            if peer is not None:
                first[peer], last[peer] = np.minimum((begin, end), counts[peer])
        return first, last


def most_rows(counts: RowCounts, rank: int) -> Int64Array:
    """Rows a rank exchanges in each round, the larger of both directions, int64 [rounds]."""
    both = np.maximum(counts.send, counts.recv)
    met = [partner(rank, number, len(both)) for number in range(rounds_of(len(both)))]
    return np.array([0 if peer is None else both[peer] for peer in met], np.int64)


def bytes_of_row(width: int, dtype: torch.dtype) -> int:
    """Bytes of a row, and one at least."""
    return max(1, width * dtype.itemsize)


def under_way(budget: int) -> int:
    """Groups that are under way at a time: one or two."""
    return 1 if budget < SMALL_BUDGET else 2


def buffered(sizes: Sequence[int], handles: int) -> list[int]:
    """Rows of each of the buffers, one a handle, in which groups of these sizes take turns."""
    return [max(sizes[number::handles], default=0) for number in range(handles)]
