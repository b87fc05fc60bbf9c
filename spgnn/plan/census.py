"""The plans of all ranks of a job, counted and forgotten: a few numbers a rank remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spgnn.exchange.plan import EXACT, Hop, Plan
from spgnn.layout import Axes, Int64Array

LEVELS = ("inside", "between")


@dataclass(frozen=True, eq=False)
class HopCensus:
    """One hop of all ranks; every array is of ranks, int64 [P], or of levels and ranks [2, P].

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
    """

    sent: Int64Array
    received: Int64Array
    messages: Int64Array
    returned: Int64Array
    entries: Int64Array
    sums: bool


@dataclass(frozen=True, eq=False)
class StageCensus:
    """One stage of all ranks, int64 [P] each.

    Attributes
    ----------
    rows, columns : of L
    local, remote : nonzeros of L and of R
    """

    rows: Int64Array
    columns: Int64Array
    local: Int64Array
    remote: Int64Array
    hops: tuple[HopCensus, ...]


@dataclass(frozen=True, eq=False)
class Census:
    """The plan of one matrix on all ranks.

    Attributes
    ----------
    stages : tuple of StageCensus
    matrix, transpose : int64 [P]
        Bytes of L, R and S, and of their other sides.
    """

    stages: tuple[StageCensus, ...]
    matrix: Int64Array
    transpose: Int64Array

    @property
    def columns(self) -> Int64Array:
        """Rows of the operand that each rank holds."""
        return self.stages[0].columns

    @property
    def rows(self) -> Int64Array:
        """Rows that each rank makes."""
        return self.stages[-1].rows

    @property
    def nonzeros(self) -> dict[str, Int64Array]:
        """Of L and of R."""
        return {
            "local": sum_of([stage.local for stage in self.stages]),
            "remote": sum_of([stage.remote for stage in self.stages]),
        }

    @property
    def buffered(self) -> Int64Array:
        """Rows to send and rows received that are kept from one product to the next."""
        rows = [hop.sent + hop.received for stage in self.stages for hop in stage.hops]
        return sum_of(rows).sum(axis=0) if rows else np.zeros_like(self.matrix)

    def traffic(
        self, width: int, dtype: torch.dtype = torch.float32, *, adjoint: bool = False
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """What one product moves: bytes sent, bytes received, messages; int64 [2, P] each."""
        nothing = np.zeros((len(LEVELS), len(self.matrix)), np.int64)
        sent, received, messages = nothing, nothing, nothing
        for stage in self.stages:
            for hop in stage.hops:
                there, back = priced(hop.sent, width, dtype), priced(hop.received, width, dtype)
                sent = sent + (back if adjoint else there)
                received = received + (there if adjoint else back)
                messages = messages + (hop.returned if adjoint else hop.messages)
        return sent, received, messages


def priced(rows: Int64Array, width: int, dtype: torch.dtype) -> Int64Array:
    """Bytes of rows on their way."""
    nbytes: Any = EXACT.bytes(rows, width, dtype)  # type: ignore[arg-type]
    return np.asarray(nbytes, np.int64)


def sum_of(arrays: Sequence[Int64Array]) -> Int64Array:
    """Added up elementwise."""
    found: Int64Array = np.sum(np.stack(arrays), axis=0, dtype=np.int64)
    return found


def count(plans: Sequence[Plan], axes: Axes, ranks_a_node: int) -> Census:
    """Count the plans of one matrix on all ranks.

    Parameters
    ----------
    plans : sequence of Plan
        Of every rank, in order.
    axes : Axes
    ranks_a_node : int
        Rank r is on node r // ranks_a_node.
    """
    nodes = _Nodes(axes, ranks_a_node)
    memory = [plan.memory(1) for plan in plans]
    return Census(
        tuple(_stage(plans, number, nodes) for number in range(_most(plans))),
        np.array([items["matrix"] for items in memory], np.int64),
        np.array([items["transpose"] for items in memory], np.int64),
    )


def _most(plans: Sequence[Plan]) -> int:
    lengths = {len(plan.stages) for plan in plans}
    assert len(lengths) == 1, "every rank takes part in every stage"
    return lengths.pop()


def _stage(plans: Sequence[Plan], number: int, nodes: _Nodes) -> StageCensus:
    stages = [plan.stages[number] for plan in plans]
    figures = [
        (*stage.local.shape, stage.local.nnz, 0 if stage.remote is None else stage.remote.nnz)
        for stage in stages
    ]
    rows, columns, local, remote = np.array(figures, np.int64).T
    hops = zip(*(stage.hops for stage in stages), strict=True)
    return StageCensus(rows, columns, local, remote, tuple(_hop(list(hop), nodes) for hop in hops))


def _hop(hops: Sequence[Hop], nodes: _Nodes) -> HopCensus:
    ranks = len(hops)
    sent, received, messages, returned = np.zeros((4, len(LEVELS), ranks), np.int64)
    entries = np.zeros(ranks, np.int64)
    sums = False
    for rank, hop in enumerate(hops):
        outside = nodes.elsewhere(hop.axis, rank)
        for array, counts in ((sent, hop.counts.send), (received, hop.counts.recv)):
            array[1, rank] = counts[outside].sum()
            array[0, rank] = counts.sum() - array[1, rank]
        for array, counts in ((messages, hop.counts.send), (returned, hop.counts.recv)):
            array[1, rank] = np.count_nonzero(counts[outside])
            array[0, rank] = np.count_nonzero(counts) - array[1, rank]
        entries[rank] = hop.send.nnz
        sums = sums or hop.selected_rows is None
    return HopCensus(sent, received, messages, returned, entries, sums)


class _Nodes:
    """Which peers are on another node."""

    def __init__(self, axes: Axes, ranks_a_node: int) -> None:
        self._axes, self._size = axes, ranks_a_node
        self._groups: dict[tuple[str, int], Int64Array] = {}

    def elsewhere(self, axis: str, rank: int) -> Any:
        """Bool [peers along the axis]; an empty list of peers where there is one node."""
        if self._axes.ranks <= self._size:
            return slice(0, 0)
        return self._of_group(axis, rank) != rank // self._size

    def _of_group(self, axis: str, rank: int) -> Int64Array:
        """The node of each peer."""
        if axis not in {name for name, _ in self._groups}:
            for group in self._axes.groups(axis):
                found = np.array(group) // self._size
                self._groups.update({(axis, member): found for member in group})
        return self._groups[axis, rank]
