"""Plans: the stages of one matrix on one rank, and everything that can be known of them beforehand.

A stage is ``Z = local·H + remote·received``, where what is received are rows of ``send·H`` of other
ranks. Plans hold numbers only: they can be pickled, made for ranks that do not exist, and priced.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from spgnn.comm import RowCounts
from spgnn.exchange.rounds import Rounds
from spgnn.exchange.route import Names, Route
from spgnn.exchange.traffic import Messages, Traffic, Volume
from spgnn.layout import LOCAL
from spgnn.pattern import Selection
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Hop:
    """One exchange Π along one axis of the mesh.

    Attributes
    ----------
    axis : str
    send : CSR [n_send, columns of the stage]
        What this rank sends, grouped by receiver: first rows of H, then partial sums.
    counts : RowCounts
        Rows to and from each peer along the axis.
    relay : CSR [n_send, rows received by earlier hops of the stage], optional
        What is added to what is sent: rows that are passed on, or added up on their way. Such a
        hop starts when those before it have arrived.
    broadcast : bool
        Every peer gets all the rows that are sent, rather than its own stretch of them.
    rounds : Rounds, optional
        What it takes to exchange with a few peers at a time.
    sums : Tensor bool [received rows], optional
        Which of the received rows are sums of several; ``None`` where nobody asked for sums.
    names : Names, optional
        Of the rows, for wires that draw.
    part : Route, optional
        Their route, if these are some of the rows of another exchange.
    """

    axis: str
    send: CSR
    counts: RowCounts
    relay: CSR | None = None
    broadcast: bool = False
    rounds: Rounds | None = None
    sums: Tensor | None = None
    names: Names | None = None
    part: Route | None = None

    def route(self, *, adjoint: bool = False) -> Route:
        """Which rows go where; or, in the adjoint, come back."""
        return self._returned if adjoint else self._sent

    @cached_property
    def volume(self) -> Volume:
        """Rows this rank sends and receives."""
        return Volume(self.counts.sent, self.counts.received)

    def messages(self, width: int, *, adjoint: bool = False) -> Messages:
        """Rows of some width on their way, or on their way back."""
        counts = self.counts.reversed() if adjoint else self.counts
        return Messages(self.axis, counts.send, counts.recv, width)

    def to(self, target: torch.dtype | torch.device | str) -> Hop:
        """The same hop on a device, or ready for operands of a dtype."""
        relay, sums = self.relay, self.sums
        if relay is not None:
            relay = relay.to(target)
        names = self.names
        if not isinstance(target, torch.dtype):
            sums = None if sums is None else sums.to(target)
            names = None if names is None else names.to(target)
        return replace(self, send=self.send.to(target), relay=relay, sums=sums, names=names)

    def unscaled(self) -> Hop:
        """The same rows as they are."""
        return replace(self, send=self.send.with_scales(None, None))

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

    @cached_property
    def _sent(self) -> Route:
        return Route(self.counts, self.names) if self.part is None else self.part

    @cached_property
    def _returned(self) -> Route:
        return self._sent.reversed()

    @property
    def near(self) -> bool:
        """Whether its rows stay inside a node, so that waiting for them is short."""
        return self.axis == LOCAL

    @cached_property
    def passed_rows(self) -> Tensor | None:
        """Received rows to pass on as they are, int32 or int64 [n_send], if that is all it does."""
        relay = self.relay
        passes = relay is not None and isinstance(relay.pattern, Selection) and not self.send.nnz
        return relay.indices if relay is not None and passes else None

    @cached_property
    def run(self) -> int | None:
        """The first row, if S selects neighbouring rows as they are; else ``None``."""
        return run_of(self.send)


class Factor(Protocol):
    """One factor of a matrix on one rank: what a plan knows of its stages, whatever they are.

    Widths are those of the operand of the whole plan.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Rows this rank makes, and rows of the operand it holds."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The exchanges that have wires, in order."""

    def blocks(self) -> Iterator[CSR]:
        """All matrices."""

    def share(self, width: int) -> int:
        """Columns that they multiply of so many."""

    def messages(self, width: int, *, adjoint: bool = False) -> Iterator[Messages]:
        """What one product of some width moves, exchange by exchange."""

    def buffers(self, width: int) -> int:
        """Elements of the buffers that are kept from one product to the next."""

    def to(self, target: torch.dtype | torch.device | str) -> Factor:
        """The same on a device, or ready for operands of a dtype."""


@dataclass(frozen=True, eq=False)
class Stage:
    """``Z = local·H + remote·[received by the first hop, by the second, …]`` on one rank.

    Attributes
    ----------
    local : CSR [rows, columns]
    remote : CSR [rows, received rows], or ``None`` if nothing is exchanged
    hops : tuple of Hop
    """

    local: CSR
    remote: CSR | None = None
    hops: tuple[Hop, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows this rank makes, and rows of the operand it holds."""
        return self.local.shape

    @cached_property
    def received(self) -> tuple[int, ...]:
        """Where the rows of each hop begin among all that are received, and the end."""
        ends = [0]
        for hop in self.hops:
            ends.append(ends[-1] + hop.volume.receive)
        return tuple(ends)

    @cached_property
    def adds_received(self) -> bool:
        """Whether R does nothing to what is received: it is added as it is."""
        return self.remote is not None and is_identity(self.remote)

    @property
    def grouped(self) -> bool:
        """Whether its rows can come from a few peers at a time."""
        return len(self.hops) == 1 and self.hops[0].rounds is not None

    @cached_property
    def rearranges(self) -> bool:
        """Whether L and S name every column once: the adjoint puts rows in place, adding none."""
        if len(self.hops) != 1 or self.hops[0].relay is not None:
            return False
        kept, sent = run_of(self.local), self.hops[0].run
        if kept is None or sent is None:
            return False
        halves = sorted([(kept, self.local.shape[0]), (sent, self.hops[0].send.shape[0])])
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

    def share(self, width: int) -> int:
        """Columns that its matrices multiply: all."""
        return width

    def messages(self, width: int, *, adjoint: bool = False) -> Iterator[Messages]:
        """What one product of some width moves, exchange by exchange."""
        yield from (hop.messages(width, adjoint=adjoint) for hop in self.hops)

    def buffers(self, width: int) -> int:
        """Elements of rows to send and rows received that lie neither in H nor in the result."""
        received = 0 if self.adds_received else self.received[-1]
        sent = 0 if self.rearranges else sum(hop.send.shape[0] for hop in self.hops)
        return width * (received + sent)

    def to(self, target: torch.dtype | torch.device | str) -> Stage:
        """The same stage on a device, or ready for operands of a dtype."""
        remote = None if self.remote is None else self.remote.to(target)
        return Stage(self.local.to(target), remote, tuple(hop.to(target) for hop in self.hops))


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages of a matrix on one rank, in the order in which they are applied; immutable.

    Attributes
    ----------
    stages : tuple of Stage, or of what else is a :class:`Factor`
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
        return sum(block.nnz for block in self._blocks())

    def multiplications(self, width: int) -> int:
        """Numbers this rank multiplies by nonzeros in one product of some width."""
        return sum(
            block.nnz * stage.share(width) for stage in self.stages for block in stage.blocks()
        )

    def traffic(
        self,
        width: int,
        dtype: torch.dtype = torch.float32,
        *,
        adjoint: bool = False,
    ) -> dict[str, Traffic]:
        """What one product moves, by axis of the mesh, of rows that travel as they are.

        Parameters
        ----------
        width : int
            Columns of the operand.
        dtype : torch.dtype
            Of the operand.
        adjoint : bool
            Of Aᵀ·G rather than A·H.
        """
        found: dict[str, Traffic] = {}
        for moved in self.messages(width, adjoint=adjoint):
            so_far = found.get(moved.axis, Traffic())
            found[moved.axis] = so_far + moved.traffic(dtype)
        return found

    def messages(self, width: int, *, adjoint: bool = False) -> Iterator[Messages]:
        """What one product of some width moves, exchange by exchange."""
        for stage in self.stages:
            yield from stage.messages(width, adjoint=adjoint)

    def memory(self, width: int, dtype: torch.dtype = torch.float32) -> dict[str, int]:
        """Bytes this rank holds for products of some width, by item.

        ``matrix``: L, R and S; ``transpose``: their other sides, which adjoints need; ``buffers``:
        rows to send, rows received, and rows that one stage hands to the next, kept from one
        product to the next.
        """
        buffered = sum(stage.buffers(width) for stage in self.stages)
        between = sum(stage.shape[0] for stage in self.stages[:-1])
        blocks = list(self._blocks())
        return {
            "matrix": sum(block.nbytes for block in blocks),
            "transpose": sum(b.transpose_nbytes for b in blocks if run_of(b) is None),
            "buffers": dtype.itemsize * (buffered + width * between),
        }

    def ready(self) -> Plan:
        """The same plan with all transposes made: now, rather than in the first backward.

        Of R and S that are cut into pieces, only those of the pieces are needed.
        """
        for stage in self.stages:
            whole = not (isinstance(stage, Stage) and stage.grouped)
            for block in stage.blocks() if whole else itertools.islice(stage.blocks(), 1):
                if run_of(block) is None:
                    _ = block.T
        return self

    def to(self, target: torch.dtype | torch.device | str) -> Plan:
        """The same plan on a device, or ready for operands of a dtype."""
        return Plan(tuple(stage.to(target) for stage in self.stages))

    def _blocks(self) -> Iterator[CSR]:
        for stage in self.stages:
            yield from stage.blocks()


def run_of(block: CSR) -> int | None:
    """The first row, if a block selects neighbouring rows as they are; else ``None``."""
    plain = block.values is block.row_scale is block.col_scale is None
    return block.pattern.first_of_run if plain and isinstance(block.pattern, Selection) else None


def is_identity(block: CSR) -> bool:
    """Whether a block only names all rows in their order."""
    return run_of(block) == 0 and block.shape[0] == block.shape[1]
