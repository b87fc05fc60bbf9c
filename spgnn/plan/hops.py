"""Hops of all ranks, counted: who sends how many rows to whom, inside nodes and between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn.comm import RowCounts
from spgnn.layout import Axes, Int64Array
from spgnn.plan.wired import Wired

LEVELS = ("inside", "between")
# Columns of an operand, or of each rank's share of it.
Width = int | Int64Array


Moved = tuple[Int64Array, Int64Array, Int64Array]
"""Bytes sent, bytes received and messages, inside a node and between nodes: int64 [2, P] each."""


@dataclass(frozen=True, eq=False)
class HopCensus:
    """One hop of all ranks; arrays are of levels and ranks [2, P], or of ranks [P], int64.

    Attributes
    ----------
    sent, received : int64 [2, P]
        Rows, inside a node and between nodes.
    messages, returned : int64 [2, P]
        Peers that get something, forward and in the adjoint.
    entries : int64 [P]
        Nonzeros of the send matrix.
    sums : bool
        Whether any rank sends partial sums rather than rows as they are.
    wire : Wired, optional
        Codec of the rows, if any; bytes are then means over a run.
    """

    sent: Int64Array
    received: Int64Array
    messages: Int64Array
    returned: Int64Array
    entries: Int64Array
    sums: bool
    wire: Wired | None = None

    @property
    def plain(self) -> HopCensus:
        """The same with rows as they are."""
        return replace(self, wire=None)

    def bytes_of(self, rows: Int64Array, width: Width, dtype: torch.dtype) -> Any:
        """Bytes of rows on their way."""
        if self.wire is not None:
            return self.wire.bytes_of(rows, width, dtype)
        return priced(rows, width, dtype)

    def traffic(self, width: Width, dtype: torch.dtype, *, adjoint: bool) -> Moved:
        """Traffic of rows of some width, forward or in the adjoint."""
        sent, received = (self.bytes_of(n, width, dtype) for n in (self.sent, self.received))
        if self.wire is not None:
            sent = sent + self.wire.centring(self.messages, width, dtype)
            received = received + self.wire.centring(self.returned, width, dtype)
        any_ = (np.asarray(width) > 0) * (1 if self.wire is None else self.wire.sending)
        if adjoint:
            return received, sent, self.returned * any_
        return sent, received, self.messages * any_


def priced(rows: Int64Array, width: Width, dtype: torch.dtype) -> Int64Array:
    """Bytes of rows on their way."""
    return np.asarray(rows * width * dtype.itemsize, np.int64)


def count_rows(
    axis: str, counts: Sequence[RowCounts], entries: Sequence[int], nodes: Nodes, *, sums: bool
) -> HopCensus:
    """Count the rows of one exchange of all ranks.

    Parameters
    ----------
    axis : str
    counts : sequence of RowCounts
        Of every rank, in order.
    entries : sequence of int
        Nonzeros of what makes the rows, on each rank.
    nodes : Nodes
    sums : bool
        Whether any of them is a sum.
    """
    sent, received, messages, returned = np.zeros((4, len(LEVELS), len(counts)), np.int64)
    outside = [
        nodes.elsewhere(axis, rank) if nodes.several else slice(0, 0) for rank in range(len(counts))
    ]
    for rank, mine in enumerate(counts):
        for array, peers, rows in ((sent, messages, mine.send), (received, returned, mine.recv)):
            array[1, rank] = rows[outside[rank]].sum()
            array[0, rank] = rows.sum() - array[1, rank]
            peers[1, rank] = np.count_nonzero(rows[outside[rank]])
            peers[0, rank] = np.count_nonzero(rows) - peers[1, rank]
    return HopCensus(
        sent,
        received,
        messages,
        returned,
        np.array(entries, np.int64),
        sums=sums,
        wire=nodes.wired,
    )


class Nodes:
    """Peers on other nodes, and the codec of the messages."""

    def __init__(self, axes: Axes, ranks_a_node: int, wired: Wired | None) -> None:
        self.wired = wired
        self._axes, self._size = axes, ranks_a_node
        self.several = axes.ranks > ranks_a_node
        self._groups: dict[str, dict[int, Int64Array]] = {}

    def elsewhere(self, axis: str, rank: int) -> npt.NDArray[np.bool_]:
        """Bool [peers along the axis]."""
        if axis not in self._groups:
            self._groups[axis] = {}
            for group in self._axes.groups(axis):
                nodes = np.array(group) // self._size
                self._groups[axis].update(dict.fromkeys(group, nodes))
        return np.asarray(self._groups[axis][rank] != rank // self._size)
