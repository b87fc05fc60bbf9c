"""Wires: how, and when, the rows of one hop arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange.plan import Hop
from spgnn.exchange.traffic import AsTheyAre


@dataclass(frozen=True)
class Step:
    """What a hop is part of.

    Attributes
    ----------
    epoch : int
    product : int
        Of the epoch, in the order of their forwards. The adjoint of a product has its number.
    hop : int
        Of the plan.
    adjoint : bool
    """

    epoch: int = 0
    product: int = 0
    hop: int = 0
    adjoint: bool = False

    def at(self, hop: int) -> Step:
        """The same product at one of its hops."""
        return replace(self, hop=hop)

    def reversed(self) -> Step:
        """The adjoint of this product, or the product of this adjoint."""
        return replace(self, adjoint=not self.adjoint)


class Steps:
    """Counts the products of each epoch."""

    def __init__(self) -> None:
        self._epoch = self._products = 0

    def begin_epoch(self, epoch: int) -> None:
        """The next product is the first of an epoch."""
        self._epoch, self._products = epoch, 0

    def next(self) -> Step:
        """The step of a product that is about to begin."""
        step = Step(self._epoch, self._products)
        self._products += 1
        return step


class Flight(Protocol):
    """Rows under way; neither buffer may be touched before they have arrived."""

    def wait(self) -> None:
        """Return when all of them are there. Waiting again does nothing."""


class Wire(Protocol):
    """Carries the rows of a hop, and keeps what that takes, by step."""

    def begin(self, rows: Tensor, out: Tensor, hop: Hop, comm: Communicator, step: Step) -> Flight:
        """Start Π: `rows` of everyone become `out`; if ``step.adjoint``, Πᵀ.

        Parameters
        ----------
        rows : Tensor
            Forward [n_send, f], adjoint [n_recv, f].
        out : Tensor
            Forward [n_recv, f], adjoint [n_send, f].
        hop : Hop
        comm : Communicator
            Of the peers along the hop's axis.
        step : Step
        """

    def bytes(self, rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of so many rows [rows, width] on their way. Exact: the ledger counts the same."""


class Exact(AsTheyAre):
    """Only needed rows, by one all-to-allv; the adjoint sends them back where they came from."""

    def begin(self, rows: Tensor, out: Tensor, hop: Hop, comm: Communicator, step: Step) -> Flight:
        """One all-to-allv with the hop's counts, or with these swapped."""
        counts = hop.counts.reversed() if step.adjoint else hop.counts
        return comm.alltoallv(rows, out, counts)


class Broadcast(AsTheyAre):
    """Every rank broadcasts all its rows (CAGNET); the adjoint sums them back at their owner."""

    def begin(self, rows: Tensor, out: Tensor, hop: Hop, comm: Communicator, step: Step) -> Flight:
        """One broadcast of each rank's rows, or one reduction to each rank."""
        sizes = [int(size) for size in hop.counts.recv]
        if step.adjoint:
            blocks = list(rows.split(sizes))
            blocks[comm.rank] = out.zero_()
            return _Together([comm.reduce(block, root) for root, block in enumerate(blocks)])
        blocks = list(out.split(sizes))
        blocks[comm.rank] = rows
        return _Together([comm.broadcast(block, root) for root, block in enumerate(blocks)])


class _Together:
    """Several operations under way, waited for as one."""

    def __init__(self, flights: Sequence[Flight]) -> None:
        self._flights = flights

    def wait(self) -> None:
        for flight in self._flights:
            flight.wait()


def wire_of(hop: Hop) -> Wire:
    """How the rows of a hop travel unless somebody says otherwise."""
    return Broadcast() if hop.broadcast else Exact()
