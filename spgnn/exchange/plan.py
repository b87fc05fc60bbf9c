"""Plans: the stages of one matrix on one rank, and everything that can be known of them beforehand.

A stage is ``Z = local·H + remote·received``, where what is received are rows of ``send·H`` of other
ranks. Plans hold numbers only: they can be pickled, made for ranks that do not exist, and priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.comm.traffic import RowCounts
from spgnn.exchange.transport import Names, Route
from spgnn.layout import EVERYONE, LOCAL, Axes, Int64Array
from spgnn.pattern import Selection
from spgnn.sparse import CSR

if TYPE_CHECKING:
    from spgnn.exchange.peers import Rounds


@dataclass(frozen=True)
class Volume:
    """Rows one rank sends and receives in one forward product; the adjoint swaps them."""

    send: int = 0
    receive: int = 0

    def __add__(self, other: Volume) -> Volume:
        return Volume(self.send + other.send, self.receive + other.receive)


@dataclass(frozen=True)
class Traffic:
    """Bytes and messages of one rank along one axis of the mesh in one product."""

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
            self.messages + other.messages,
        )


@dataclass(frozen=True, eq=False)
class Carried:
    """Bytes that one exchange moves between a rank and its peers along an axis."""

    axis: str
    sent: Int64Array  # int64 [peers]: bytes to and from each of them
    received: Int64Array
    # which of a plan's hops it is: a codec may have its rows travel in fewer bytes
    hop: Hop | None = None
    width: int = 0  # columns of these rows

    def traffic(self, peers: npt.NDArray[np.bool_] | None = None) -> Traffic:
        """Bytes and messages; of some peers only, if they are given [peers]."""
        sent, received = self.sent, self.received
        if peers is not None:
            sent, received = sent[peers], received[peers]
        return Traffic(int(sent.sum()), int(received.sum()), int(np.count_nonzero(sent)))


def levels_of(group_sizes: Sequence[int]) -> tuple[str, ...]:
    """Names of the levels of groups of neighbouring ranks, whose sizes rise to those of nodes."""
    return ("inside", *(f"between groups of {size}" for size in group_sizes[:-1]), "between")


def carried_by_level(
    exchanges: Iterable[Carried], axes: Axes, rank: int, *, group_sizes: Sequence[int]
) -> dict[str, Traffic]:
    """Bytes of a rank's exchanges by level: ``inside`` nodes of so many ranks, and ``between``."""
    levels = levels_of(group_sizes)
    by_level = dict.fromkeys(levels, Traffic())
    for moved in exchanges:
        peers = np.array(axes.group(moved.axis, rank))
        crossed = sum((peers // size != rank // size).astype(np.int64) for size in group_sizes)
        for number, level in enumerate(levels):
            by_level[level] += moved.traffic(crossed == number)
    return by_level


@dataclass(frozen=True, eq=False)
class Hop:
    """One exchange Π along one axis of the mesh."""

    axis: str
    # [n_send, columns of the stage]: what this rank sends, grouped by receiver: first rows of H,
    # then partial sums
    send: CSR
    counts: RowCounts  # rows to and from each peer along the axis
    # [n_send, rows received by earlier hops of the stage]: what is added to what is sent: rows that
    # are passed on, or added up on their way. Such a hop starts when those before it have arrived.
    relay: CSR | None = None
    # every peer gets all the rows that are sent, rather than its own stretch of them
    broadcast: bool = False
    rounds: Rounds | None = None  # what it takes to exchange with a few peers at a time
    # bool [received rows]: which of the received rows are sums of several; ``None`` where nobody
    # asked for sums
    sums: Tensor | None = None
    names: Names | None = None  # of the rows, for codecs that draw
    part: Route | None = None  # their route, if these are some of the rows of another exchange
    few: bool = False  # of the rows of a stage, as what ranks hand on that have time

    def route(self, *, adjoint: bool = False) -> Route:
        """The route of the rows; or, in the adjoint, of those that come back."""
        return self._routes[adjoint]

    @cached_property
    def _routes(self) -> tuple[Route, Route]:
        there = Route(self.counts, self.names) if self.part is None else self.part
        return there, there.reversed()

    @property
    def volume(self) -> Volume:
        """Rows this rank sends and receives."""
        return Volume(self.counts.sent, self.counts.received)

    def to(self, target: torch.dtype | torch.device | str) -> Hop:
        """The same hop on a device, or ready for operands of a dtype."""
        relay, sums, names = self.relay, self.sums, self.names
        if not isinstance(target, torch.dtype):
            sums = None if sums is None else sums.to(target)
            if names is not None:
                names = Names(names.sent.to(target), names.received.to(target), names.me)
        relay = None if relay is None else relay.to(target)
        return replace(self, send=self.send.to(target), relay=relay, sums=sums, names=names)

    @cached_property
    def selected_rows(self) -> Tensor | None:
        """Own rows to send, int32 or int64 [n_send], if S only selects rows of H; else ``None``."""
        selects = isinstance(self.send.pattern, Selection) and self.send.values is None
        return self.send.indices if selects else None

    @cached_property
    def selected_scale(self) -> Tensor | None:
        """The factor of each selected row."""
        scale, rows = self.send.col_scale, self.selected_rows
        return None if scale is None or rows is None else scale[rows]

    @property
    def near(self) -> bool:
        """True if waiting for its rows is short: they stay inside a node, or are few."""
        return self.few or self.axis.startswith(LOCAL)

    @cached_property
    def passed_rows(self) -> Tensor | None:
        """Received rows to pass on as they are, int32 or int64 [n_send], if that is all it does."""
        relay = self.relay
        passes = relay is not None and isinstance(relay.pattern, Selection) and not self.send.nnz
        return relay.indices if relay is not None and passes else None

    @property
    def sends_rows(self) -> bool:
        """True if it sends rows of H as they are, own ones or what relays hand on."""
        return self.selected_rows is not None or (self.few and self.passed_rows is not None)

    @cached_property
    def run(self) -> int | None:
        """The first row, if S selects neighbouring rows as they are; else ``None``."""
        return run_of(self.send)


@dataclass(frozen=True, eq=False)
class Stage:
    """``Z = local·H + remote·[received by the first hop, by the second, …]`` on one rank."""

    local: CSR  # [rows, columns]
    remote: CSR | None = None  # [rows, received rows]; None if nothing is exchanged
    hops: tuple[Hop, ...] = ()
    # rows of each peer, where it only adds up their partial sums of these: its adjoint is an
    # all-gather
    fold: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows this rank makes, and rows of the operand it holds."""
        return self.local.shape

    @cached_property
    def received(self) -> tuple[int, ...]:
        """The beginnings of each hop's rows among all that are received, and the end."""
        ends = [0]
        for hop in self.hops:
            ends.append(ends[-1] + hop.counts.received)
        return tuple(ends)

    @cached_property
    def adds_received(self) -> bool:
        """True if R does nothing to what is received: it is added as it is."""
        R = self.remote
        if R is None or any(hop.relay is not None for hop in self.hops):
            return False  # what is passed on must not be added to first
        return run_of(R) == 0 and R.shape[0] == R.shape[1]

    @cached_property
    def local_run(self) -> int | None:
        """The first column, if L selects neighbouring rows as they are; else ``None``."""
        return run_of(self.local)

    @property
    def grouped(self) -> bool:
        """True if its rows can come from a few peers at a time."""
        return len(self.hops) == 1 and self.hops[0].rounds is not None

    @cached_property
    def rearranges(self) -> bool:
        """True if L and S name every column once: the adjoint puts rows in place, adding none."""
        if len(self.hops) != 1 or self.hops[0].relay is not None:
            return False
        own, sent = self.local_run, self.hops[0].run
        if own is None or sent is None:
            return False
        halves = sorted([(own, self.local.shape[0]), (sent, self.hops[0].send.shape[0])])
        (begin, first), (middle, second) = halves
        return begin == 0 and first == middle and middle + second == self.local.shape[1]

    def blocks(self) -> Iterator[CSR]:
        """All matrices of the stage."""
        yield self.local
        if self.remote is not None:
            yield self.remote
        for hop in self.hops:
            yield hop.send
            if hop.relay is not None:
                yield hop.relay

    def carried(
        self, width: int, dtype: torch.dtype, *, adjoint: bool = False
    ) -> Iterator[Carried]:
        """Bytes of one exact product of some width, exchange by exchange."""
        row_bytes = width * dtype.itemsize
        for hop in self.hops:
            counts = hop.route(adjoint=adjoint).counts
            sent, received = counts.send * row_bytes, counts.recv * row_bytes
            yield Carried(hop.axis, sent, received, hop, width)

    def buffers(self, width: int) -> int:
        """Elements of rows to send and rows received that lie neither in H nor in the result."""
        received = 0 if self.adds_received else self.received[-1]
        sent = 0 if self.rearranges else sum(hop.send.shape[0] for hop in self.hops)
        return width * (received + sent)

    def to(self, target: torch.dtype | torch.device | str) -> Stage:
        """The same stage on a device, or ready for operands of a dtype."""
        remote = None if self.remote is None else self.remote.to(target)
        hops = tuple(hop.to(target) for hop in self.hops)
        return Stage(self.local.to(target), remote, hops, self.fold)


@dataclass(frozen=True, eq=False)
class Turn:
    """The transpose of a group of ranks: [own rows, f] to [rows of the group, share of f].

    Columns are shared out without padding: of f columns, the first f mod c ranks have one more than
    the others, and where f < c some have none. Rows stay in the order of the ranks. A turn and the
    turn back are each other's adjoint.
    """

    axis: str  # of the mesh; the group are the peers along it
    me: int  # which of them this rank is
    rows: Int64Array  # int64 [c]: rows that each of them has

    @property
    def own(self) -> int:
        """Rows that this rank has."""
        return int(self.rows[self.me])

    @property
    def all(self) -> int:
        """Rows of the group."""
        return int(self.rows.sum())

    def shares(self, width: int) -> Int64Array:
        """Columns of each rank, of so many in all."""
        peers = len(self.rows)
        return width // peers + (np.arange(peers) < width % peers)

    def share(self, width: int) -> int:
        """Columns of this rank."""
        return int(self.shares(width)[self.me])

    def counts(self, width: int) -> RowCounts:
        """Elements to and from each rank of the group, this one included."""
        shares = self.shares(width)
        largest = int(self.rows.max()) * int(shares.max())
        return RowCounts(self.own * shares, self.rows * int(shares[self.me]), largest)

    def carried(self, width: int, dtype: torch.dtype, *, back: bool) -> Carried:
        """Bytes of a turn, or a turn back, to and from the others."""
        others = np.arange(len(self.rows)) != self.me
        counts = self.counts(width).reversed() if back else self.counts(width)
        each = others * dtype.itemsize
        return Carried(self.axis, counts.send * each, counts.recv * each)


@dataclass(frozen=True, eq=False)
class Turned:
    """A turn, some stages at a share of the columns, and the turn back: one factor of a plan."""

    before: Turn  # of the rows of H
    stages: tuple[Factor, ...]  # from the rows of H to the rows made, of all ranks of the group
    after: Turn  # of the rows made; run backwards

    @property
    def shape(self) -> tuple[int, int]:
        """Rows this rank makes, and rows of the operand it holds."""
        return self.after.own, self.before.own

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of the stages. The turns have no codec: they move everything, as it is."""
        return tuple(hop for stage in self.stages for hop in stage.hops)

    def blocks(self) -> Iterator[CSR]:
        """All matrices of the stages."""
        for stage in self.stages:
            yield from stage.blocks()

    def carried(
        self, width: int, dtype: torch.dtype, *, adjoint: bool = False
    ) -> Iterator[Carried]:
        """Bytes of one exact product of some width: both turns, and the stages between."""
        yield self.before.carried(width, dtype, back=adjoint)
        for stage in self.stages:
            yield from stage.carried(self.before.share(width), dtype, adjoint=adjoint)
        yield self.after.carried(width, dtype, back=not adjoint)

    def buffers(self, width: int) -> int:
        """Elements of messages, of what has been turned, and of the buffers of the stages."""
        before, after, share = self.before, self.after, self.before.share(width)
        turned = width * max(before.own, after.own) + share * max(before.all, after.all)
        return turned + sum(stage.buffers(share) for stage in self.stages)

    def to(self, target: torch.dtype | torch.device | str) -> Turned:
        """The same on a device, or ready for operands of a dtype."""
        return Turned(self.before, tuple(stage.to(target) for stage in self.stages), self.after)


Factor = Stage | Turned
"""One factor of a matrix on one rank."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages of a matrix on one rank, in the order in which they are applied; immutable.

    Attributes
    ----------
    stages : tuple of Stage or Turned
        Each takes the rows that the one before it makes.
    """

    stages: tuple[Factor, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows this rank makes, and rows of the operand it holds."""
        return self.stages[-1].shape[0], self.stages[0].shape[1]

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of all stages."""
        return tuple(hop for stage in self.stages for hop in stage.hops)

    @property
    def blocks(self) -> list[CSR]:
        """All matrices."""
        return [block for stage in self.stages for block in stage.blocks()]

    @property
    def call(self) -> int:
        """The call of all ranks in which they planned it, a name for it; 0 if in none of all."""
        return next((abs(hop.counts.call) for hop in self.hops if hop.axis == EVERYONE), 0)

    @cached_property
    def volume(self) -> Volume:
        """Rows this rank sends and receives in one product, all hops together.

        Where columns are shared out, these are rows of a share, and what the turns move is not
        among them: :meth:`traffic` knows all bytes.
        """
        return sum((hop.volume for hop in self.hops), Volume())

    @property
    def nonzeros(self) -> int:
        """Nonzeros this rank multiplies in one product, those of the send matrices included."""
        return sum(block.nnz for block in self.blocks)

    def carried(
        self, width: int, dtype: torch.dtype, *, adjoint: bool = False
    ) -> Iterator[Carried]:
        """Bytes of one exact product, A·H or Aᵀ·G of some width, exchange by exchange."""
        for stage in self.stages:
            yield from stage.carried(width, dtype, adjoint=adjoint)

    def traffic(
        self, width: int, dtype: torch.dtype = torch.float32, *, adjoint: bool = False
    ) -> dict[str, Traffic]:
        """The same by axis of the mesh."""
        by_axis: dict[str, Traffic] = {}
        for moved in self.carried(width, dtype, adjoint=adjoint):
            by_axis[moved.axis] = by_axis.get(moved.axis, Traffic()) + moved.traffic()
        return by_axis

    def memory(self, width: int, dtype: torch.dtype = torch.float32) -> dict[str, int]:
        """Bytes this rank holds for products of some width, by item.

        ``matrix``: L, R and S; ``transpose``: their other sides, which adjoints need; ``buffers``:
        rows to send, rows received, and rows that one stage hands to the next, kept from one
        product to the next.
        """
        between = sum(stage.shape[0] for stage in self.stages[:-1])
        elements = sum(stage.buffers(width) for stage in self.stages) + width * between
        return {
            "matrix": sum(block.nbytes for block in self.blocks),
            "transpose": sum(b.transpose_nbytes for b in self.blocks if run_of(b) is None),
            "buffers": dtype.itemsize * elements,
        }

    def ready(self) -> Plan:
        """The same plan with all transposes that it needs, made now, not in the first backward."""
        for stage in self.stages:
            whole = not (isinstance(stage, Stage) and stage.grouped)
            for block in islice(stage.blocks(), None if whole else 1):
                if run_of(block) is None:
                    _ = block.T
        return self

    def to(self, target: torch.dtype | torch.device | str) -> Plan:
        """The same plan on a device, or ready for operands of a dtype."""
        return Plan(tuple(stage.to(target) for stage in self.stages))


def run_of(block: CSR) -> int | None:
    """The first row, if a block selects neighbouring rows as they are; else ``None``."""
    plain = block.values is block.row_scale is block.col_scale is None
    return block.pattern.first_of_run if plain and isinstance(block.pattern, Selection) else None
