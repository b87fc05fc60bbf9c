"""The plans of all ranks of a job, counted and forgotten: a few numbers a rank remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn.exchange.plan import Hop, Plan, Stage, Turn, Turned
from spgnn.layout import Axes, Int64Array
from spgnn.plan.hops import LEVELS, HopCensus, Moved, Nodes, Width, count_rows
from spgnn.plan.weighed import WeighedCensus, count_weighed
from spgnn.plan.wired import Wired


@dataclass(frozen=True, eq=False)
class StageCensus:
    """One stage of all ranks, int64 [P] each.

    Attributes
    ----------
    rows, columns : of L
    local, remote : nonzeros of L and of R
    kept : rows in buffers from one product to the next
    """

    rows: Int64Array
    columns: Int64Array
    local: Int64Array
    remote: Int64Array
    kept: Int64Array
    hops: tuple[HopCensus, ...]

    def traffic(self, width: Width, dtype: torch.dtype, *, adjoint: bool) -> list[Moved]:
        """Traffic of each hop."""
        return [hop.traffic(width, dtype, adjoint=adjoint) for hop in self.hops]

    def exchanges(self, width: Width, dtype: torch.dtype, *, adjoint: bool) -> list[list[Moved]]:
        """The same of rows as they are, by what is under way together: all of them."""
        return [[hop.plain.traffic(width, dtype, adjoint=adjoint) for hop in self.hops]]

    def buffers(self, width: Width) -> Int64Array:
        """Elements of buffers."""
        return np.asarray(self.kept * width, np.int64)

    def parts(self) -> tuple[StageCensus, ...]:
        """The stage itself."""
        return (self,)

    def share(self, width: int) -> int:
        """Columns that are multiplied: all."""
        return width


@dataclass(frozen=True, eq=False)
class TurnCensus:
    """One transpose of all ranks within their groups of c.

    Attributes
    ----------
    me : int64 [P]
        Place of each rank in its group.
    rows : int64 [P, c]
        Rows that each of its group has.
    near : bool [P, c]
        Which of its group are on its node.
    """

    me: Int64Array
    rows: Int64Array
    near: npt.NDArray[np.bool_]

    @cached_property
    def own(self) -> Int64Array:
        """Rows of each rank."""
        return np.asarray(self.rows[np.arange(len(self.me)), self.me])

    @cached_property
    def all(self) -> Int64Array:
        """Rows of each rank's group."""
        return np.asarray(self.rows.sum(axis=1))

    @cached_property
    def _others(self) -> npt.NDArray[np.bool_]:
        """Mask of other ranks of a rank's group on its node, and on other nodes: bool [2, P, c]."""
        apart = np.arange(self.rows.shape[1]) != self.me[:, None]
        return np.stack((self.near & apart, ~self.near & apart))

    @cached_property
    def _theirs(self) -> tuple[Int64Array, Int64Array]:
        """Rows of these others, and how many of them have any: int64 [2, P] each."""
        rows = [(self.rows * others).sum(axis=1) for others in self._others]
        having = [np.count_nonzero((self.rows > 0) & others, axis=1) for others in self._others]
        return np.stack(rows), np.stack(having)

    def shares(self, width: int) -> Int64Array:
        """Columns of each rank, int64 [P]."""
        copies = self.rows.shape[1]
        return np.asarray(width // copies + (self.me < width % copies), np.int64)

    def traffic(self, width: int, dtype: torch.dtype, *, back: bool) -> Moved:
        """Traffic of a turn, or of a turn back."""
        each, more = divmod(width, self.rows.shape[1])
        with_more = np.count_nonzero(self._others[:, :, :more], axis=2)
        with_any = np.count_nonzero(self._others, axis=2) if each else with_more
        theirs, having = self._theirs
        shares = self.shares(width)
        to = self.own * (each * with_any + with_more)
        fro = theirs * shares
        messages = having * (shares > 0) if back else with_any * (self.own > 0)
        sent, received = (fro, to) if back else (to, fro)
        return sent * dtype.itemsize, received * dtype.itemsize, messages


@dataclass(frozen=True, eq=False)
class TurnedCensus:
    """A turn, stages at a share of the columns, and the turn back, of all ranks."""

    before: TurnCensus
    stages: tuple[StageCensus, ...]
    after: TurnCensus

    @property
    def rows(self) -> Int64Array:
        """Rows that each rank makes."""
        return self.after.own

    @property
    def columns(self) -> Int64Array:
        """Rows of the operand that each rank holds."""
        return self.before.own

    def traffic(self, width: int, dtype: torch.dtype, *, adjoint: bool) -> list[Moved]:
        """Traffic of both turns, and of each hop between them."""
        share = self.before.shares(width)
        inner = (stage.traffic(share, dtype, adjoint=adjoint) for stage in self.stages)
        return [*self._turns(width, dtype, adjoint=adjoint), *chain.from_iterable(inner)]

    def exchanges(self, width: int, dtype: torch.dtype, *, adjoint: bool) -> list[list[Moved]]:
        """The same of rows as they are, one after the other, as forward takes them."""
        share = self.before.shares(width)
        before, after = self._turns(width, dtype, adjoint=adjoint)
        inner = (stage.exchanges(share, dtype, adjoint=adjoint) for stage in self.stages)
        return [[before], *chain.from_iterable(inner), [after]]

    def _turns(self, width: int, dtype: torch.dtype, *, adjoint: bool) -> tuple[Moved, Moved]:
        before = self.before.traffic(width, dtype, back=adjoint)
        return before, self.after.traffic(width, dtype, back=not adjoint)

    def buffers(self, width: int) -> Int64Array:
        """Elements of messages, of what has been turned, and of the buffers of the stages."""
        before, after, share = self.before, self.after, self.before.shares(width)
        turned = width * np.maximum(before.own, after.own)
        turned = turned + share * np.maximum(before.all, after.all)
        return turned + sum_of([stage.buffers(share) for stage in self.stages])

    def parts(self) -> tuple[StageCensus, ...]:
        """The stages between the turns."""
        return self.stages

    def share(self, width: int) -> int:
        """Columns that are multiplied by the rank that has most of them."""
        copies: int = self.before.rows.shape[1]
        return -(-width // copies)


@dataclass(frozen=True, eq=False)
class Census:
    """The plan of one matrix on all ranks.

    Attributes
    ----------
    factors : tuple of StageCensus or TurnedCensus
    matrix, transpose : int64 [P]
        Bytes of L, R and S, and of their other sides.
    weighed : WeighedCensus, optional
        What attention makes of it, if there is any.
    """

    factors: tuple[StageCensus | TurnedCensus, ...]
    matrix: Int64Array
    transpose: Int64Array
    weighed: WeighedCensus | None = None

    @property
    def columns(self) -> Int64Array:
        """Rows of the operand that each rank holds."""
        return self.factors[0].columns

    @property
    def rows(self) -> Int64Array:
        """Rows that each rank makes."""
        return self.factors[-1].rows

    @property
    def stages(self) -> list[StageCensus]:
        """All of them, those between turns too."""
        return [stage for factor in self.factors for stage in factor.parts()]

    @property
    def nonzeros(self) -> dict[str, Int64Array]:
        """Of L and of R."""
        return {
            "local": sum_of([stage.local for stage in self.stages]),
            "remote": sum_of([stage.remote for stage in self.stages]),
        }

    def buffers(self, width: int) -> Int64Array:
        """Elements kept from one product of some width to the next, int64 [P]."""
        between = [factor.rows * width for factor in self.factors[:-1]]
        return sum_of([*(factor.buffers(width) for factor in self.factors), *between])

    def traffic(
        self, width: int, dtype: torch.dtype = torch.float32, *, adjoint: bool = False
    ) -> Moved:
        """Traffic of one product."""
        nothing = np.zeros((3, len(LEVELS), len(self.matrix)), np.int64)
        moved = [factor.traffic(width, dtype, adjoint=adjoint) for factor in self.factors]
        # Means over a run need not be whole numbers.
        sent, received, messages = sum((*map(np.stack, chain.from_iterable(moved)),), nothing)
        return sent, received, messages


def sum_of(arrays: Sequence[Int64Array]) -> Int64Array:
    """Added up elementwise."""
    found: Int64Array = np.sum(np.stack(arrays), axis=0, dtype=np.int64)
    return found


def count(
    plans: Sequence[Plan],
    axes: Axes,
    ranks_a_node: int,
    wired: Wired | None = None,
    *,
    weighs: bool = False,
) -> Census:
    """Count the plans of one matrix on all ranks.

    Parameters
    ----------
    plans : sequence of Plan
        Of every rank, in order.
    axes : Axes
    ranks_a_node : int
        Rank r is on node r // ranks_a_node.
    wired : Wired, optional
        Codecs of the messages, if any compresses or delays them.
    weighs : bool
        Whether its nonzeros are weighed by attention.

    Raises
    ------
    InputError
        If attention cannot be had of these plans.
    """
    nodes = Nodes(axes, ranks_a_node, wired.of_weighed if wired is not None and weighs else wired)
    memory = [plan.memory(1) for plan in plans]
    factors = zip(*(plan.stages for plan in plans), strict=True)
    return Census(
        tuple(_factor(list(factor), nodes) for factor in factors),
        np.array([items["matrix"] for items in memory], np.int64),
        np.array([items["transpose"] for items in memory], np.int64),
        count_weighed(plans, nodes) if weighs else None,
    )


def _factor(factors: Sequence[Any], nodes: Nodes) -> StageCensus | TurnedCensus:
    """Every rank takes part in every factor."""
    if not isinstance(factors[0], Turned):
        return _stage(factors, nodes)
    inner = zip(*(factor.stages for factor in factors), strict=True)
    return TurnedCensus(
        _turn([factor.before for factor in factors], nodes),
        tuple(_stage(list(stages), nodes) for stages in inner),
        _turn([factor.after for factor in factors], nodes),
    )


def _turn(turns: Sequence[Turn], nodes: Nodes) -> TurnCensus:
    return TurnCensus(
        np.array([turn.me for turn in turns]),
        np.stack([turn.rows for turn in turns]),
        np.stack([~nodes.elsewhere(turn.axis, rank) for rank, turn in enumerate(turns)]),
    )


def _stage(stages: Sequence[Stage], nodes: Nodes) -> StageCensus:
    figures = [
        (
            *stage.local.shape,
            stage.local.nnz,
            0 if stage.remote is None else stage.remote.nnz,
            stage.buffers(1),
        )
        for stage in stages
    ]
    hops = zip(*(stage.hops for stage in stages), strict=True)
    rows, columns, local, remote, kept = np.array(figures, np.int64).T
    counted = tuple(_hop(list(hop), nodes) for hop in hops)
    return StageCensus(rows, columns, local, remote, kept, counted)


def _hop(hops: Sequence[Hop], nodes: Nodes) -> HopCensus:
    sums = any(hop.selected_rows is None for hop in hops)
    entries = [hop.send.nnz for hop in hops]
    return count_rows(hops[0].axis, [hop.counts for hop in hops], entries, nodes, sums=sums)
