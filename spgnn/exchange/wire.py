"""Wires: how, and when, the rows of one hop arrive."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange.plan import Hop
from spgnn.exchange.route import Route
from spgnn.layout import Int64Array


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
    group : int
        Of the peers whose rows are under way together, where not all are.
    use : int, optional
        Of the product, where its matrix has a codec that keeps rows: see ``Codecs.begin``.
    exact : bool
        Whether rows travel as they are, whatever codec the matrix has. Decided where a step is
        made; an adjoint is what its forward was.
    """

    epoch: int = 0
    product: int = 0
    hop: int = 0
    adjoint: bool = False
    group: int = 0
    use: int | None = None
    exact: bool = False

    def at(self, hop: int, group: int = 0) -> Step:
        """The same product at one of its hops."""
        return replace(self, hop=hop, group=group)

    def reversed(self) -> Step:
        """The adjoint of this product, or the product of this adjoint."""
        return replace(self, adjoint=not self.adjoint)


EXACT = Step(exact=True)


class Flight(Protocol):
    """Rows under way; neither buffer may be touched before they have arrived."""

    def wait(self) -> None:
        """Return when all of them are there. Waiting again does nothing."""


@runtime_checkable
class Lent(Flight, Protocol):
    """Rows that their wire holds anyway: who only reads them may do so where they are."""

    @abstractmethod
    def land(self) -> Tensor:
        """All rows, arrived; as they are until the next step of the same product."""


Moved = tuple[Int64Array, Int64Array]
"""Bytes to and from each peer, int64 [peers] both."""


class Wire(Protocol):
    """Carries the rows of a hop, and keeps what that takes, by step.

    Attributes
    ----------
    remembers : bool
        Whether it keeps anything of one product for another.
    """

    remembers: bool = False

    @abstractmethod
    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Start Π: `rows` of everyone become `out`; if ``step.adjoint``, Πᵀ.

        Parameters
        ----------
        rows : Tensor [rows to send, f]
            Grouped by receiver.
        out : Tensor [rows to receive, f]
            Grouped by sender; all of it is written.
        route : Route
            Of this direction.
        comm : Communicator
            Of the peers along the hop's axis.
        step : Step
        """

    def room(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """Where to put the rows to send, if it keeps them for longer than they are under way.

        It takes over what it is given there; ``None`` if it does not care.
        """
        return None

    @abstractmethod
    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """What a step moves; exact, the ledger counts the same.

        Of steps to come, where that does not depend on data; else of the last one like it.

        Parameters
        ----------
        route : Route
            Of the step's direction.
        width : int
        dtype : torch.dtype
            Of the rows.
        step : Step
        """


class AsTheyAre:
    """Rows that travel as they are: width × bytes of an element each."""

    remembers = False

    def room(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """Anywhere."""
        return None

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """What a step moves."""
        row_bytes = width * dtype.itemsize
        return route.counts.send * row_bytes, route.counts.recv * row_bytes


class Exact(AsTheyAre):
    """Only needed rows, by one all-to-allv; the adjoint sends them back where they came from."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """One all-to-allv."""
        return comm.alltoallv(rows, out, route.counts)


class Broadcast(AsTheyAre):
    """Every rank broadcasts all its rows (CAGNET); the adjoint sums them back at their owner."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """One broadcast of each rank's rows, or one reduction to each rank."""
        peers = route.counts.send if step.adjoint else route.counts.recv
        sizes = [int(size) for size in peers]
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
