"""Rows under way, as wires see them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from spgnn.exchange import Flight


class Then:
    """A flight after which something is to be done, once.

    Parameters
    ----------
    flight : Flight
    then : callable
        Called when what is under way has arrived.
    """

    def __init__(self, flight: Flight, then: Callable[[], object]) -> None:
        self._under_way: tuple[Flight, Callable[[], object]] | None = flight, then

    def wait(self) -> None:
        """Return when everything is done."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            flight, then = under_way
            flight.wait()
            then()


class Lending(ABC):
    """Rows of which a wire keeps its own: lent to who only reads them, copied for others, once.

    Parameters
    ----------
    out : Tensor [rows, f]
        Where others want them.
    """

    def __init__(self, out: Tensor) -> None:
        self._out, self._waited = out, False

    def wait(self) -> None:
        """Return when a copy of them is in ``out``."""
        if not self._waited:
            self._waited = True
            self._out.copy_(self.land())

    @abstractmethod
    def land(self) -> Tensor:
        """All rows, arrived, where their wire keeps them."""


class Landed:
    """Nothing under way."""

    def wait(self) -> None:
        """Return at once."""
