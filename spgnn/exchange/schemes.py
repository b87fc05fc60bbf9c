"""Schemes: who computes what, as generators that yield demands and return plans.

A scheme knows one rank. It yields what has to be settled with the peers along an axis, is sent the
answer, and returns the plan. :func:`build` drives one with the communicators of this rank;
:func:`build_all` drives those of all ranks in lockstep and needs none, so the plans of ranks that
do not exist are made by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.errors import check_choice
from spgnn.exchange.inspect import COVERS, Ask, Cover, demand, whole_rows
from spgnn.exchange.plan import Factor, Hop, Plan, Stage
from spgnn.exchange.regroup import Joined, Regroup, Stacked
from spgnn.exchange.rounds import Rounds, most_rows
from spgnn.exchange.schedule import Communicators
from spgnn.exchange.turn import Turn, Turned
from spgnn.layout import EVERYONE, Axes, Int64Array, RowLayout
from spgnn.pattern import Pattern, Selection
from spgnn.sparse import CSR

Strategy = Literal["sparsity-aware", "oblivious"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)


class Unsettled(Protocol):
    """What a scheme yields."""

    @property
    def axis(self) -> str:
        """Along which it is settled."""

    def settle(self, comm: Communicator) -> Any:
        """The answer for this rank. Collective."""

    @staticmethod
    def settle_all(parts: Sequence[Any]) -> list[Any]:
        """The answers for all ranks of a group, in one process."""


Made = TypeVar("Made")
# A generator that yields what has to be settled and returns what is made of it.
Scheme = Generator[Unsettled, Any, Made]


@dataclass(frozen=True)
class Gathered:
    """What a scheme yields to learn a number of each peer along an axis; the answer lists them."""

    axis: str
    number: int

    def settle(self, comm: Communicator) -> Int64Array:
        """The numbers of all peers, int64 [peers]."""
        mine, all_ = torch.tensor([self.number]), torch.empty(comm.size, dtype=torch.int64)
        comm.all_gather(mine, all_, [1] * comm.size)
        return all_.numpy()

    @staticmethod
    def settle_all(parts: Sequence[Gathered]) -> list[Int64Array]:
        """The same for a whole group in one process."""
        return [np.array([part.number for part in parts], np.int64)] * len(parts)


@dataclass(frozen=True)
class Most:
    """What a scheme yields to learn the largest of some numbers over all peers along an axis."""

    axis: str
    numbers: Int64Array

    def settle(self, comm: Communicator) -> Int64Array:
        """The largest of each number, int64."""
        most = torch.from_numpy(self.numbers.copy())
        comm.all_reduce(most, "max").wait()
        return most.numpy()

    @staticmethod
    def settle_all(parts: Sequence[Most]) -> list[Int64Array]:
        """The same for a whole group in one process."""
        return [np.max([part.numbers for part in parts], axis=0)] * len(parts)


def in_rounds(scheme: Scheme[Plan], axes: Axes, rank: int) -> Scheme[Plan]:
    """The plan of another scheme, with what it takes to exchange with a few peers at a time.

    All ranks of the mesh agree, also those that never talk: a budget is too small for all or none.
    """
    plan = yield from scheme
    stages: list[Factor] = []
    for stage in plan.stages:
        if isinstance(stage, Stage) and len(stage.hops) == 1 and not stage.adds_received:
            (hop,) = stage.hops
            place = axes.coordinate(hop.axis, rank)
            most = yield Most(EVERYONE, most_rows(hop.counts, place))
            rounds = Rounds(place, tuple(most.tolist()))
            stages.append(replace(stage, hops=(replace(hop, rounds=rounds),)))
        else:
            stages.append(stage)
    return replace(plan, stages=tuple(stages))


def grid(
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    *,
    strategy: Strategy = "sparsity-aware",
    cover: Cover = "column",
    column_scale: Tensor | None = None,
) -> Scheme[Plan]:
    """1D, 1.5D, 2D, feature-parallel and 3D: one family, told apart by the lengths of three axes.

    "row"
        Rank (i, j) holds slice j of block row i of H, and takes the columns that ranks (·, j) own.
        Rows of H travel along it.
    "replica"
        Partial sums are added along it. One replica is 1D (ICPP'24, Algorithm 1; CAGNET, SC'20),
        several are 1.5D (ICPP'24, Algorithm 2; how and why we differ stands in
        ``docs/architecture.md``). About as many as block rows are 2D: rows of H are expanded along
        one axis, partial sums folded along the other (Tripathy et al., SC'20), and only those that
        are needed (Abubaker & Hoefler, SpComm3D, 2024).
    "feature"
        Rank (i, j, k) holds slice (j, k) of block row i. All ranks (i, j, ·) hold the same part of
        A and multiply it by a share of the columns of H each: :mod:`spgnn.exchange.turn`. With one
        replica that is feature-parallel, with one block row too it is tensor parallelism (Kurt et
        al., RDM, IPDPS'23; Ai et al., NeutronTP, PVLDB 18, 2024), and with all three axes it is 3D
        (Tripathy et al., SC'20; Ranjan et al., Plexus, SC'25).

    Parameters
    ----------
    block : CSR [rows, n]
        The rank's rows of A, or those of them that are wanted. Global columns; may carry values
        and a ``row_scale``.
    layout : RowLayout
        Rows of H over all ranks.
    axes : Axes
        Of :meth:`Axes.grid`.
    rank : int
    strategy : {"sparsity-aware", "oblivious"}
        Send only needed rows (ICPP'24, Algorithm 1), or all rows to every peer (CAGNET, SC'20).
    cover : {"column", "row", "minimum"}
        What covers the nonzeros of a remote block; the oblivious strategy knows only columns.
    column_scale : Tensor [own rows], optional
        Scaling of the columns this rank owns, applied where a row of H leaves its owner.

    Raises
    ------
    InputError
        If strategy or cover is unknown.
    """
    check_choice("exchange", strategy, STRATEGIES)
    check_choice("cover", cover, COVERS)
    stages_of = partial(_expand_and_fold, axes=axes, rank=rank, strategy=strategy, cover=cover)
    if "feature" not in axes.names:
        return Plan((yield from stages_of(block, layout, column_scale=column_scale)))
    return (yield from _in_shares(stages_of, block, layout, axes, rank, column_scale))


def _in_shares(
    stages_of: Callable[..., Scheme[tuple[Stage, ...]]],
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    column_scale: Tensor | None,
) -> Scheme[Plan]:
    """The plan of ranks along "feature", which multiply a share of the columns each.

    Parameters
    ----------
    stages_of : callable
        A scheme of the stages of a block, its layout, and the scale of its columns.
    others
        As of `grid`.
    """
    made = yield Gathered("feature", block.shape[0])
    owned = layout.sizes[axes.group("feature", rank)]
    # From here on the ranks of a group are as one, which has the rows of all of them.
    block = yield Stacked("feature", block)
    if column_scale is not None:
        column_scale = yield Joined("feature", column_scale, owned)
    stages = yield from stages_of(block, layout.grouped(len(owned)), column_scale=column_scale)
    return turned(stages, owned, made, axes.coordinate("feature", rank))


def turned(stages: tuple[Factor, ...], owned: Int64Array, made: Int64Array, me: int) -> Plan:
    """A plan of stages in which each rank of a group multiplies a share of the columns.

    Parameters
    ----------
    stages : tuple of Factor
        Of all rows of the group.
    owned, made : int64 [ranks of the group]
        Rows of H that each of them has, and rows that it is to make.
    me : int
        Which of them this rank is.
    """
    return Plan((Turned(Turn("feature", me, owned), stages, Turn("feature", me, made)),))


def _expand_and_fold(
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    *,
    strategy: Strategy,
    cover: Cover,
    column_scale: Tensor | None,
) -> Scheme[tuple[Stage, ...]]:
    """Block columns along "row", then partial sums added along "replica".

    `layout` has one part for every group of ranks that differ in nothing but their "feature".
    """
    peers = axes.group("row", rank)
    members = np.arange(peers.start, peers.stop, peers.step) * layout.parts // axes.ranks
    me = axes.coordinate("row", rank)
    own, c = int(layout.sizes[members[me]]), axes.size("replica")
    made = np.array([block.shape[0]])
    if c > 1:
        made = yield Gathered("replica", block.shape[0])
        # Along "replica" parts are neighbours, so a part's place there is its number modulo c.
        replica = layout.owner(block.indices.numpy()) % c
        block = yield Regroup.of("replica", block, replica, c)
    sums = None
    if strategy == "oblivious":
        L, R, send, counts = whole_rows(block, layout, members, me)
    else:
        L, R, asked = demand(block, layout, members, me, cover)
        send, counts = yield Ask("row", asked, own)
        sums = asked.sums
    L, send = L.with_scales(L.row_scale, column_scale), send.with_scales(None, column_scale)
    first = Stage(L)
    if len(members) > 1:
        hop = Hop("row", send, counts, broadcast=strategy == "oblivious", sums=sums)
        first = Stage(L, R, (hop,))
    return (first, *fold(made, axes.coordinate("replica", rank)))


def fold(made: Int64Array, me: int) -> tuple[Stage, ...]:
    """Add the partial sums that the ranks along "replica" hold of their common rows.

    Each rank keeps its own rows, sends the others theirs, and adds what it gets. No stage at all
    where there is one replica.

    Parameters
    ----------
    made : int64 [replicas]
        Rows that each of them keeps.
    me : int
        Which of them this rank is.
    """
    copies = len(made) - 1
    if not copies:
        return ()
    begins = np.concatenate(([0], np.cumsum(made)))
    rows, own = int(begins[-1]), int(made[me])
    mine = torch.arange(int(begins[me]), int(begins[me + 1]))
    others = torch.cat((torch.arange(int(begins[me])), torch.arange(int(begins[me + 1]), rows)))
    # Row r of ours is row r of what each of the others sends.
    received = (torch.arange(own)[:, None] + own * torch.arange(copies)).ravel()
    pattern = (
        Selection(received, own)
        if copies == 1
        else Pattern(torch.arange(own + 1) * copies, received, (own, own * copies))
    )
    apart = np.arange(len(made)) != me
    counts = RowCounts(made * apart, own * apart, int(made.max()))
    hop = Hop("replica", CSR(Selection(others, rows)), counts)
    return (Stage(CSR(Selection(mine, rows)), CSR(pattern), (hop,)),)


def build(scheme: Scheme[Made], mesh: Communicators) -> Made:
    """What a scheme makes for this rank. Collective: every rank drives the same scheme."""
    try:
        part = next(scheme)
        while True:
            part = scheme.send(part.settle(mesh[part.axis]))
    except StopIteration as done:
        made: Made = done.value
        return made


def build_all(schemes: Sequence[Scheme[Made]], axes: Axes) -> list[Made]:
    """What schemes make for all ranks, in one process: what :func:`build` would give each of them.

    Parameters
    ----------
    schemes : sequence of Scheme
        One for each rank, in order.
    axes : Axes
    """
    made: dict[int, Made] = {}
    answers: list[Any] = [None] * len(schemes)
    while len(made) < len(schemes):
        parts: list[Unsettled] = []
        for rank, scheme in enumerate(schemes):
            try:
                parts.append(scheme.send(answers[rank]))
            except StopIteration as done:
                made[rank] = done.value
        if not parts:
            break
        for group in axes.groups(parts[0].axis):
            found = parts[0].settle_all([parts[rank] for rank in group])
            for rank, answer in zip(group, found, strict=True):
                answers[rank] = answer
    return [made[rank] for rank in range(len(schemes))]
