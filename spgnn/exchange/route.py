"""Routes: which rows one exchange moves, what both of its ends call them, and draws by these names.

Draws are hashes of (seed, matrix, step, name of the row), so both ends know them without talking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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
        """Some of the rows: marks of those sent and received, bool.

        A device is waited for once: for the numbers of rows to and from each peer.
        """
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
    wanted = torch.arange(1, count + 1, device=marks.device)
    return known_rows(torch.searchsorted(before, wanted) - 1, len(marks))


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
