"""Transports: how, and when, the rows of one exchange arrive; routes: which rows these are.

What both ends of a route call its rows are names. Draws are hashes of (seed, matrix, step, name of
the row), so both ends know them without talking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from spgnn.comm import Communicator
from spgnn.comm.traffic import RowCounts
from spgnn.kernels.rows import known_rows
from spgnn.layout import Int64Array
from spgnn.torch_internals import on_cpu

# Of keys of draws.
GOLDEN, ODD = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
# Of the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class Names(NamedTuple):
    """Names of the rows of an exchange that both ends know, so that they draw alike."""

    sent: Tensor  # int64 [rows to send]
    received: Tensor  # int64 [rows received]
    me: int = 0  # what the peers call this rank


@dataclass(frozen=True, eq=False)
class Route:
    """The rows to and from each peer in one exchange, in one direction."""

    counts: RowCounts  # rows to and from each peer
    names: Names | None = None  # of these rows
    # if these are only some of the rows of an exchange: the route of all of them
    whole: Route | None = None
    # then: their numbers among all, int64 [rows to send] and [rows received]
    places: tuple[Tensor, Tensor] | None = None
    _lists: dict[object, Tensor] = field(default_factory=dict)

    @on_cpu
    def list_of(self, what: object, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """A list that depends on the route alone: made once, and kept on the device."""
        key = what, device
        if key not in self._lists:
            self._lists[key] = make().to(device)
        return self._lists[key]

    def reversed(self) -> Route:
        """The way back."""
        names = self.names
        turned = None if names is None else Names(names.received, names.sent, names.me)
        if self.whole is None or self.places is None:
            return Route(self.counts.reversed(), turned)
        return Route(self.counts.reversed(), turned, self.whole.reversed(), self.places[::-1])

    def taken(self, sent: Tensor, received: Tensor, counts: RowCounts) -> Route:
        """Some of the rows: numbers of those sent and received, rising, and how many of whom."""
        names = self.names
        if names is not None:
            names = Names(names.sent[sent], names.received[received], names.me)
        if self.whole is None or self.places is None:
            return Route(counts, names, self, (sent, received))
        leaving, arriving = self.places
        whole = self.whole.counts
        places = (
            known_rows(leaving[sent], whole.sent),
            known_rows(arriving[received], whole.received),
        )
        return Route(counts, names, self.whole, places)

    def marked(self, sent: Tensor, received: Tensor) -> Subset:
        """Some of the rows: marks of those sent and received, bool; a device is waited for once."""
        counts, device, marks = self.counts, sent.device, (sent, received)
        peers = ("to", counts.send), ("from", counts.recv)
        ends = [self.list_of(way, device, partial(_ends, rows)) for way, rows in peers]
        before = [functional.pad(each.cumsum(0), (1, 0)) for each in marks]  # marked ones
        both = torch.stack([ranks[end] for ranks, end in zip(before, ends, strict=True)])
        send, receive = np.diff(both.cpu().numpy(), prepend=0)
        leaving = _numbers(sent, before[0], int(send.sum()))
        arriving = _numbers(received, before[1], int(receive.sum()))
        fewer = RowCounts(send, receive, counts.largest)
        return Subset(leaving, arriving, self.taken(leaving, arriving, fewer))

    def bin(self, bins: int, number: int) -> Subset:
        """Row k of each message, where k modulo `bins` is `number`."""
        device = "cpu" if self.names is None else self.names.sent.device
        marks = []
        for counts in (self.counts.send, self.counts.recv):
            within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            marks.append(torch.from_numpy(within % bins == number).to(device))
        return self.marked(*marks)

    def draw(self, key: int, share: float, *, adjoint: bool) -> tuple[Tensor, Tensor]:
        """Marks of rows sent and received, each drawn with the same probability, below 1; bool.

        The receivers of a row draw each for themselves; a product and its adjoint draw the same.
        """
        drawn = hashed(self._names_of_pairs(adjoint), key) < int(share * 2**64) - 2**63
        return drawn[: self.counts.sent], drawn[self.counts.sent :]

    def _names_of_pairs(self, adjoint: bool) -> Tensor:
        """Names of the rows sent, then received, each with its receiver in the product, int64."""
        names = self.names
        assert names is not None

        def with_peers(rows: Tensor, counts: Int64Array) -> Tensor:
            ranks = torch.tensor(
                [_signed(rank * ODD % 2**64) for rank in range(len(counts))], device="cpu"
            )
            return rows + ranks.repeat_interleave(torch.tensor(counts, device="cpu")).to(
                rows.device
            )

        def make() -> Tensor:
            me = _signed(names.me * ODD % 2**64)
            if adjoint:
                return torch.cat((names.sent + me, with_peers(names.received, self.counts.recv)))
            return torch.cat((with_peers(names.sent, self.counts.send), names.received + me))

        return self.list_of(("names", adjoint), names.sent.device, make)


class Subset(NamedTuple):
    """Some of the rows of an exchange: their numbers, rising, and the route of these alone."""

    sent: Tensor  # int64
    received: Tensor
    route: Route


def _ends(rows: Int64Array) -> Tensor:
    return torch.from_numpy(np.cumsum(rows))


def _numbers(marks: Tensor, before: Tensor, count: int) -> Tensor:
    """Numbers of the marked rows; `before` [rows + 1] counts those before each."""
    if marks.device.type == "cpu":
        return marks.nonzero()[:, 0]
    numbers = torch.arange(1, count + 1, device=marks.device)
    return known_rows(torch.searchsorted(before, numbers) - 1, len(marks))


def hashed(names: Tensor, key: int) -> Tensor:
    """A number for each name: uniform over all of int64, the same wherever it is drawn."""
    z = names ^ _signed(key)
    z += _signed(GOLDEN)
    for shift, factor in _MIXING:
        z ^= _shifted(z, shift)
        z *= _signed(factor)
    z ^= _shifted(z, 31)
    return z


def _shifted(z: Tensor, bits: int) -> Tensor:
    """To the right, as if there was no sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """64 bits as int64 has them."""
    return word - 2**64 if word >= 2**63 else word


ByteCounts = tuple[Int64Array, Int64Array]
"""Bytes to and from each peer, int64 [peers] both."""


@dataclass(frozen=True)
class Step:
    """The product that an exchange is part of."""

    epoch: int = 0
    # number within the epoch, in the order of forwards. The adjoint of a product has its number.
    product: int = 0
    hop: int = 0  # of the plan
    adjoint: bool = False
    group: int = 0  # of the peers whose rows are under way together, where not all are
    # how often the product has been computed in its epoch, where a codec keeps rows of it
    use: int = 0
    # whether rows travel as they are, whatever codec the matrix has. Decided where a step is made;
    # an adjoint is what its forward was.
    exact: bool = False

    def at(self, hop: int, group: int = 0) -> Step:
        """The same product at one of its hops."""
        return replace(self, hop=hop, group=group)

    def reversed(self) -> Step:
        """The adjoint of this product, or the product of this adjoint."""
        return _EXACT_BACK if self is EXACT else replace(self, adjoint=not self.adjoint)

    @property
    def name(self) -> str:
        """A name for the same product of all epochs, in one direction."""
        return f"{self.product}{'t' if self.adjoint else ''}{f'+{self.use}' if self.use else ''}"


EXACT = Step(exact=True)
_EXACT_BACK = Step(exact=True, adjoint=True)


class Handle(Protocol):
    """Rows under way; neither buffer may be touched before they have arrived."""

    def wait(self) -> None:
        """Return when all of them are there. Waiting again does nothing."""


class Then:
    """A handle whose rows need a last touch, once, after another handle's have arrived."""

    def __init__(self, handle: Handle | None, then: Callable[[], object]) -> None:
        self._handle, self._then, self._waited = handle, then, False

    def wait(self) -> None:
        if not self._waited:
            self._waited = True
            if self._handle is not None:
                self._handle.wait()
            self._then()


class View(ABC):
    """Rows that a codec keeps anyway: readers may look at them, others get a copy, once."""

    def __init__(self, out: Tensor) -> None:
        self._out, self._waited = out, False

    def wait(self) -> None:
        """Return when a copy of them is in ``out``."""
        if not self._waited:
            self._waited = True
            self._out.copy_(self.view())

    @abstractmethod
    def view(self) -> Tensor:
        """All rows, arrived; valid until the next step of the same product."""


class Transport:
    """Carries the rows of a hop: here exactly, and only those that are needed."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Start Π: `rows` of everyone become `out`; if ``step.adjoint``, Πᵀ."""
        return comm.alltoallv(rows, out, route.counts)

    def send_buffer(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """A buffer for the rows to send, if they are kept for longer than they are under way."""
        return None

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """The bytes of a step, exactly as the ledger counts them."""
        row_bytes = width * dtype.itemsize
        return route.counts.send * row_bytes, route.counts.recv * row_bytes


class Broadcast(Transport):
    """Every rank broadcasts all its rows (CAGNET); the adjoint sums them back at their owner."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """One broadcast of each rank's rows, or one reduction to each rank."""
        peers = route.counts.send if step.adjoint else route.counts.recv
        blocks = list((rows if step.adjoint else out).split(peers.tolist()))
        blocks[comm.rank] = out.zero_() if step.adjoint else rows
        move = comm.reduce if step.adjoint else comm.broadcast
        handles = [move(block, root) for root, block in enumerate(blocks)]

        def wait() -> None:
            for handle in handles:
                handle.wait()

        return Then(None, wait)
