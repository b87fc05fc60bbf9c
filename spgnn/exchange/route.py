"""Which rows go where in one exchange, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spgnn.comm import RowCounts


@dataclass(frozen=True, eq=False)
class Names:
    """What both ends call the rows of an exchange, so that they draw the same of them.

    A row of H has the original id of its vertex. A partial sum has a number of its sender's own.

    Attributes
    ----------
    sent : Tensor int64 [rows to send]
    received : Tensor int64 [rows received]
    me : int
        What the peers call this rank.
    """

    sent: Tensor
    received: Tensor
    me: int = 0

    def to(self, device: torch.device | str) -> Names:
        """The same on a device."""
        return Names(self.sent.to(device), self.received.to(device), self.me)


@dataclass(frozen=True, eq=False)
class Route:
    """Which rows go where in one exchange, in one direction.

    Attributes
    ----------
    counts : RowCounts
        Rows to and from each peer.
    names : Names, optional
        Of these rows.
    whole : Route, optional
        If these are only some of the rows of an exchange: the route of all of them.
    places : (Tensor int64 [rows to send], Tensor int64 [rows received]), optional
        Then: their numbers among all.
    pair_names : dict
        Names of the rows with their receivers, as codecs have computed them, by adjoint or not.
    """

    counts: RowCounts
    names: Names | None = None
    whole: Route | None = None
    places: tuple[Tensor, Tensor] | None = None
    pair_names: dict[bool, Tensor] = field(default_factory=dict)

    def reversed(self) -> Route:
        """The way back."""
        names = self.names
        turned = None if names is None else Names(names.received, names.sent, names.me)
        if self.whole is None or self.places is None:
            return Route(self.counts.reversed(), turned)
        sent, received = self.places
        return Route(self.counts.reversed(), turned, self.whole.reversed(), (received, sent))

    def taken(self, sent: Tensor, received: Tensor, counts: RowCounts) -> Route:
        """Some of the rows.

        Parameters
        ----------
        sent, received : Tensor int64
            Numbers of those that are sent, and received, rising.
        counts : RowCounts
            To and from each peer.
        """
        names = self.names
        if names is not None:
            names = Names(names.sent[sent], names.received[received], names.me)
        if self.whole is None or self.places is None:
            return Route(counts, names, self, (sent, received))
        leaving, arriving = self.places
        return Route(counts, names, self.whole, (leaving[sent], arriving[received]))
