"""A sample of the rows is sent; the others are as they last arrived."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.exchange import Flight, Route, Step
from spgnn.wires.base import State, line_name
from spgnn.wires.errors import squared_norm
from spgnn.wires.flights import Lending, Then
from spgnn.wires.part import Part
from spgnn.wires.sampled import Sampled


class Held(Sampled):
    """Each row is sent with probability p; receivers go on with what last came of the others.

    A sample that is scaled by 1/p (:class:`Sampled`) is right on average, and as far from right in
    the last epoch as in the first. Rows that are held are wrong by what they have moved since, for
    1/p − 1 epochs on average: not right on average, but with less noise, which ends where rows come
    to rest, as SAG's beside SAGA's (Schmidt, Le Roux & Bach, Mathematical Programming 162, 2017).
    Receivers alone keep rows; one that has never come is zero.

    Parameters
    ----------
    inner : Wire
    setting : Setting
    """

    remembers = True

    def _forget(self) -> None:
        super()._forget()
        self._held: dict[str, Tensor] = {}

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Send the sample; whatever is not in it is as it was."""
        flight = super().begin(rows, out, route, comm, step)
        dials = self.setting.dials
        if dials.is_exact(step.epoch):
            return flight
        held = self._of(out, step)
        if dials.sampling_at(step.epoch) < 1:
            return _Holding(flight, held, out)
        return Then(flight, lambda: held.copy_(out))

    def state(self) -> State:
        """What last arrived of each row."""
        return super().state() | {f"{name}.last": rows for name, rows in self._held.items()}

    def load(self, state: State) -> None:
        """Go on from a state."""
        super().load(state)
        self._held = {
            key.removesuffix(".last"): rows.clone()
            for key, rows in state.items()
            if key.endswith(".last") and not key.startswith("inner.")
        }

    def _scale(self, rows: Tensor, part: Part, share: float) -> None:
        """Rows are sent as they are."""

    def _account(self, rows: Tensor, part: Part, share: float, step: Step) -> None:
        """Nothing: who sends does not know what others hold."""

    def _spread(self, landing: Tensor, part: Part, out: Tensor, share: float, step: Step) -> None:
        held = self._of(out, step)
        if self.setting.errors.measured(step.epoch):
            # Those that came are a sample of all: what they have moved, the others have as well.
            moved = squared_norm(landing - kernels.gather_rows(held, part.received))
            account = self.setting.errors.account("sampling", step, out.device)
            whole = squared_norm(landing) / share
            account.add_(torch.stack(((1 - share) / share * moved, whole)))
        held.index_copy_(0, part.received, landing)

    def _of(self, out: Tensor, step: Step) -> Tensor:
        """What is held of the rows of a product, zeros at first."""
        name = line_name(step)
        held = self._held.get(name)
        if held is None or held.shape != out.shape or held.dtype != out.dtype:
            held = self._held[name] = torch.zeros_like(out)
        return held


class _Holding(Lending):
    """A sample on its way to the rows that are held."""

    def __init__(self, sample: Flight, held: Tensor, out: Tensor) -> None:
        super().__init__(out)
        self._sample, self._held = sample, held

    def land(self) -> Tensor:
        self._sample.wait()
        return self._held
