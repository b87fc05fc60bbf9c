"""Rows under way, as wires see them."""

from __future__ import annotations

from collections.abc import Callable

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


class Landed:
    """Nothing under way."""

    def wait(self) -> None:
        """Return at once."""
