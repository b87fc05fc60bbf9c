"""Groups of peers: an executor whose received rows fit a budget (as in SAR, MLSys'22).

Of each exchange, the rows of a few peers are under way at a time, in two buffers: while those of
one group are multiplied, those of the next one travel. With a small budget there is one buffer. The
adjoint goes the same way back. Products fetch nothing again in backward; attention does.

In a round every rank talks with one peer, and nobody with two: a 1-factorisation of the complete
graph, here by the circle method (Kirkman 1847; Lucas 1883). Odd numbers of ranks have a bye. What
pairs exchange is at most so many rows a round, on any rank of the mesh and in either direction;
these numbers, one for each round, are all that ranks have to agree on: of them everyone makes the
same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.exchange.compression import CodecLayer
from spgnn.exchange.executor import (
    Exchange,
    Executor,
    Workspace,
    adjoint_product,
    local_product,
    pack,
    rows_in_place,
    unpack_add,
)
from spgnn.exchange.needs import Communicators, Gather, Scheme
from spgnn.exchange.plan import Factor, Hop, Plan, Stage
from spgnn.exchange.transport import Handle, Step, Transport
from spgnn.layout import EVERYONE, Axes, Int64Array
from spgnn.pattern import Pattern, index_dtype
from spgnn.registry import Schedule
from spgnn.sparse import CSR, take_rows

SCHEDULES: tuple[str, ...] = get_args(Schedule)
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


def in_rounds(scheme: Scheme[Plan], axes: Axes, rank: int) -> Scheme[Plan]:
    """The plan of another scheme, with what it takes to exchange with a few peers at a time."""
    plan = yield from scheme
    stages: list[Factor] = []
    for stage in plan.stages:
        if isinstance(stage, Stage) and len(stage.hops) == 1 and not stage.adds_received:
            (hop,) = stage.hops
            place = axes.coordinate(hop.axis, rank)
            own = torch.from_numpy(most_rows(hop.counts, place))[None]
            (every,) = yield Gather(EVERYONE, (own,))
            rounds = Rounds(place, tuple(every.amax(0).tolist()))
            stages.append(replace(stage, hops=(replace(hop, rounds=rounds),)))
        else:
            stages.append(stage)
    return replace(plan, stages=tuple(stages))


@dataclass(frozen=True, eq=False)
class Piece:
    """One group on one rank: its part of the hop, and the columns of R for what arrives."""

    hop: Hop
    remote: CSR
    received: Tensor | None = None  # int64: its rows among all received ones; ``None`` for all


class Peers(Executor):
    """Runs a plan like any executor, with received rows that fit a budget."""

    def __init__(
        self,
        plan: Plan,
        mesh: Communicators,
        budget: int,
        codecs: Sequence[Transport] | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__(plan, mesh, codecs, workspace)
        self.budget = budget
        for stage in plan.stages:
            runs = isinstance(stage, Stage) and (stage.grouped or stage.adds_received)
            if stage.hops and not runs:
                raise InputError(
                    "schedule peers needs a plan of one exchange in rounds a stage; "
                    "build it with schedule='peers'"
                )
        layers = [codec for codec in self.codecs if isinstance(codec, CodecLayer)]
        if any(layer.setting.codec.remembers for layer in layers):
            raise InputError(
                "schedule peers needs a codec that keeps no rows: no delay, no feedback, no bound"
            )

    def check(self, width: int, dtype: torch.dtype) -> None:
        """Refuse a product that cannot keep within the budget; on all ranks alike."""
        least = least_budget(self.plan, width, dtype)
        if self.budget < least:
            raise InputError(
                f"--buffer {self.budget}: rows of {width} columns, {str(dtype)[6:]}, need "
                f"{least} bytes at least; give more, or --schedule overlap"
            )

    def widest(self, dtype: torch.dtype) -> int:
        """The most columns that keep within the budget, at least one."""
        return max(1, self.budget // max(1, least_budget(self.plan, 1, dtype)))

    def exchange(self, stage: Stage, first: int = 0) -> Exchange:
        """The runner of a stage: group by group, if it is in rounds."""
        return Grouped(stage, first, self) if stage.grouped else super().exchange(stage, first)


class Grouped(Exchange):
    """Runs one stage, the rows of a group of peers at a time."""

    def __init__(self, stage: Stage, first: int, executor: Peers) -> None:
        super().__init__(stage, first, executor)
        self._peers = executor
        # By the bytes of a row, and by the groups that these make: other widths may have the same.
        self._known: dict[int | tuple[Group, ...], list[Piece]] = {}

    def forward(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """``L·H + R·Π·S·H``, group by group. Collective."""
        stage, (pieces, received, sent) = self.stage, self._buffers(H_local)

        def start(number: int) -> Handle:
            rows = rows_in_place(pieces[number].hop, H_local)
            if rows is None:
                rows = pack(pieces[number].hop, H_local, sent[number])
            return self._begin(pieces[number].hop, rows, received[number], step, number)

        def multiply() -> Tensor:
            Z_local = local_product(stage, H_local, out)
            return Z_local if stage.local_run is None else Z_local.clone()  # rows of the operand

        def add(number: int, Z: Tensor) -> None:
            kernels.spmm(pieces[number].remote, received[number], out=Z, accumulate=True)

        return self._in_groups(len(pieces), start, multiply, add)

    def adjoint(self, G_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """``Lᵀ·G + Sᵀ·Πᵀ·Rᵀ·G``, group by group. Collective."""
        stage, (pieces, received, sent) = self.stage, self._buffers(G_local)

        def start(number: int) -> Handle:
            hop, back = pieces[number].hop, received[number]
            kernels.spmm(pieces[number].remote.T, G_local, out=back)
            return self._begin(hop, back, sent[number], step, number)

        def multiply() -> Tensor:
            return adjoint_product(stage, G_local, out, zeroed=True)

        def add(number: int, dH_local: Tensor) -> None:
            hop = pieces[number].hop
            if hop.run is None and hop.selected_rows is not None:
                # Without the other side of S, where that only selects rows.
                scale = hop.selected_scale
                kernels.scatter_add_rows(dH_local, hop.selected_rows, sent[number], scale)
            else:
                unpack_add(hop, sent[number], dH_local)

        return self._in_groups(len(pieces), start, multiply, add)

    def _in_groups(
        self,
        groups: int,
        start: Callable[[int], Handle],
        multiply: Callable[[], Tensor],
        add: Callable[[int, Tensor], None],
    ) -> Tensor:
        """Start as many groups as there are buffers, multiply, and add group after group."""
        at_once, handles = under_way(self._peers.budget), list[Handle]()
        try:
            for number in range(min(at_once, groups)):
                handles.append(start(number))
            result = multiply()
            for number in range(groups):
                handles[number].wait()
                add(number, result)
                if number + at_once < groups:
                    handles.append(start(number + at_once))
        finally:
            for handle in handles:  # whatever happened here
                handle.wait()
        return result

    def _begin(self, hop: Hop, rows: Tensor, out: Tensor, step: Step, group: int) -> Handle:
        transports = self._peers.transports if step.exact else self._peers.codecs
        route, comm = hop.route(adjoint=step.adjoint), self._peers.mesh[hop.axis]
        return transports[self.first].begin(rows, out, route, comm, step.at(self.first, group))

    def _buffers(self, like: Tensor) -> tuple[list[Piece], list[Tensor], list[Tensor]]:
        """The groups for such rows, and where their rows lie: they take turns."""
        pieces = self._pieces(bytes_of_row(like.shape[1], like.dtype))
        handles = under_way(self._peers.budget)

        def in_turns(role: str, sizes: list[int]) -> list[Tensor]:
            rows = buffered(sizes, handles)
            buffers = self._peers.workspace.rows((role,), sum(rows), like).split(rows)
            return [buffers[number % handles][:size] for number, size in enumerate(sizes)]

        received = in_turns("receive", [piece.hop.counts.received for piece in pieces])
        return pieces, received, in_turns("send", [piece.hop.counts.sent for piece in pieces])

    def _pieces(self, row_bytes: int) -> list[Piece]:
        """The groups for rows of so many bytes, made once for each way to group."""
        pieces = self._known.get(row_bytes)
        if pieces is None:
            rounds = self.stage.hops[0].rounds
            assert rounds is not None
            groups = rounds.groups(self._peers.budget, row_bytes)
            pieces = self._known.get(groups) or cut(self.stage, groups, rounds)
            self._known[groups] = self._known[row_bytes] = pieces
        return pieces


def least_budget(plan: Plan, width: int, dtype: torch.dtype) -> int:
    """The smallest budget for products of some width, in bytes."""
    row_bytes = bytes_of_row(width, dtype)
    rounds = [hop.rounds for hop in plan.hops if hop.rounds is not None]
    return max((each.least_budget(row_bytes) for each in rounds), default=0)


def cut(stage: Stage, groups: Sequence[Group], rounds: Rounds) -> list[Piece]:
    """The pieces of a stage on one rank, one for each group."""
    (hop,), remote, counts = stage.hops, stage.remote, stage.hops[0].counts
    assert remote is not None
    if len(groups) == 1:
        return [Piece(hop, remote)]
    # The group that each received row is in, and its place there.
    group_of, place = np.zeros((2, counts.received), np.int64)
    hops, places = [], []
    for number, group in enumerate(groups):
        arriving, fewer_received = _listed(*rounds.stretches(group, counts.recv), counts.recv)
        leaving, fewer_sent = _listed(*rounds.stretches(group, counts.send), counts.send)
        group_of[arriving], place[arriving] = number, np.arange(len(arriving))
        rows = torch.from_numpy(leaving).to(hop.send.device)
        fewer = RowCounts(fewer_sent, fewer_received, counts.largest)
        places.append(torch.from_numpy(arriving).to(rows.device))
        route = hop.route().taken(rows, places[-1], fewer)
        send = take_rows(hop.send, rows)
        hops.append(replace(hop, send=send, counts=fewer, rounds=None, names=route.names))
    sizes = [each.counts.received for each in hops]
    blocks = _columns_of(remote, group_of, place, sizes)
    return [Piece(*each) for each in zip(hops, blocks, places, strict=True)]


def _listed(
    first: Int64Array, last: Int64Array, counts: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Numbers of some of the rows of each peer among all, which lie peer by peer; how many."""
    begins = np.cumsum(counts) - counts
    talking = np.flatnonzero(last > first)
    rows = [begins[peer] + np.arange(first[peer], last[peer]) for peer in talking]
    return np.concatenate(rows) if rows else np.zeros(0, np.int64), last - first


def _columns_of(
    block: CSR, group_of: Int64Array, place: Int64Array, sizes: Sequence[int]
) -> Iterator[CSR]:
    """A block cut by columns: each is in one group, at some place there."""
    device, rows = block.device, block.shape[0]
    columns = block.indices.long()
    group = torch.from_numpy(group_of).to(device)[columns]
    entries = group.argsort(stable=True)
    per_group = torch.bincount(group, minlength=len(sizes)).tolist()
    row_of = torch.arange(rows, device=device).repeat_interleave(block.row_lengths)
    moved = torch.from_numpy(place).to(device)[columns]
    for chosen, size in zip(entries.split(per_group), sizes, strict=True):
        indptr = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        torch.cumsum(torch.bincount(row_of[chosen], minlength=rows), 0, out=indptr[1:])
        indices = moved[chosen].to(index_dtype(size))
        pattern = Pattern.trusted(indptr, indices, (rows, size))
        values = None if block.values is None else block.values[chosen]
        yield CSR(pattern, values, block.row_scale)
