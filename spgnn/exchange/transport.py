"""Transports: how, and when, the rows of one exchange arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange.route import Route
from spgnn.layout import Int64Array

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
        return replace(self, adjoint=not self.adjoint)

    @property
    def name(self) -> str:
        """A name for the same product of all epochs, in one direction."""
        return f"{self.product}{'t' if self.adjoint else ''}{f'+{self.use}' if self.use else ''}"


EXACT = Step(exact=True)


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
    """Carries the rows of a hop: here exactly, and only those that are needed.

    What does otherwise (`Broadcast`, codecs) has the same methods.
    """

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
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
        return comm.alltoallv(rows, out, route.counts)

    def send_buffer(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """A buffer for the rows to send, if they are kept for longer than they are under way.

        The transport owns it from then on; ``None``: anywhere.
        """
        return None

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """The bytes of a step, exactly as the ledger counts them.

        Of steps to come, where that does not depend on data; else of the last one like it.
        """
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
