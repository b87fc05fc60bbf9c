"""The mean of each message, and what it is along directions, travel as they are, at once."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange import Flight, Route, Step
from spgnn.exchange.wire import Lent, Moved
from spgnn.sparse import SUM_DTYPE
from spgnn.wires.base import Layer, State, line_name
from spgnn.wires.directions import Directions, Frame, coordinates_of, told_of
from spgnn.wires.flights import Then
from spgnn.wires.pool import Pool


class Centred(Layer):
    """A few combinations of a message's rows are exact and of now; the rest is carried on.

    With M the projection onto them, and D what the inner wire does, that is
    M + (I − M)D(I − M): senders take off what is sent as it is, and receivers once more what D has
    made of nothing. So that part is right whatever D is, and what arrives is unbiased if D is.

    The first of them is the mean. Rows of hidden layers have much in common, for activations are
    not negative; so when weights move, the mean is what moves most. Where it is late, the optimiser
    acts on what it has corrected already, and a loop with such a lag is stable only with steps that
    are many times smaller. Of a sample, the mean is a control variate (as historical rows are in
    VR-GCN, Chen, Zhu & Song, ICML'18): what is left out arrives as the mean, and not as zeros. With
    the mean alone, a product and its adjoint are transposes if those of D are.

    Others are directions in which rows were longest when they were first sent, products and
    adjoints apart: rows that were multiplied by a graph's matrix have few, which stay. As PowerSGD
    (Vogels, Karimireddy & Jaggi, NeurIPS'19) finds those of gradients of weights.

    Parameters
    ----------
    inner : Wire
    setting : Setting
    """

    def _forget(self) -> None:
        self._pool = Pool()
        self._room: Tensor | None = None
        self._lines: dict[str, Directions] = {}

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether there are directions, or others keep something."""
        return self._asked > 0 or self.inner.remembers

    def room(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """Where the inner wire wants rows: what is sent as it is is taken off there."""
        self._room = self.inner.room(rows, like, step)
        return self._room

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Send the means, and what rows are along directions; hand on what they are beside it."""
        room, self._room = self._room, None
        if self.setting.dials.passes(step.epoch) or not rows.shape[1]:
            return self.inner.begin(rows, out, route, comm, step)
        near, far = self._frames(rows, route, comm, step)
        own = near.coordinates(rows)
        arriving = rows.new_empty(int(far.sizes.sum()), rows.shape[1])
        of_now = comm.alltoallv(own, arriving, coordinates_of(route.counts, self._asked))
        beside = self.inner.room(len(rows), rows, step) if room is None else room
        borrowed = beside is None
        if beside is None:
            beside = self._pool.take(len(rows), rows.shape[1], rows.dtype, rows.device)
        near.moved(rows, own, beside, sign=-1)
        flight = self.inner.begin(beside, out, route, comm, step)
        if borrowed:
            flight = Then(flight, lambda: self._pool.give(beside))
        return _Centring((of_now, own), flight, arriving, out, far)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """Some rows more for each message that is not empty; at first, directions as well."""
        sent, received = self.inner.bytes(route, width, dtype, step)
        if self.setting.dials.passes(step.epoch) or not width:
            return sent, received
        more, row_bytes = coordinates_of(route.counts, self._asked), width * dtype.itemsize
        sent, received = sent + more.send * row_bytes, received + more.recv * row_bytes
        line = self._lines.get(line_name(step))
        if self._asked and (line is None or line.epoch == step.epoch):
            told, of_each = told_of(route.counts, self._asked), SUM_DTYPE[dtype].itemsize
            sent = sent + told.send * self._asked * of_each
            received = received + told.recv * self._asked * of_each
        return sent, received

    def state(self) -> State:
        """All directions."""
        found = super().state()
        for name, line in self._lines.items():
            found[f"{name}.chosen"] = torch.tensor([line.epoch, line.width])
            found[f"{name}.near"], found[f"{name}.far"] = line.sent, line.received
        return found

    def load(self, state: State) -> None:
        """Go on from a state."""
        super().load(state)
        self._lines = {}
        for name in [key.removesuffix(".chosen") for key in state if key.endswith(".chosen")]:
            if not name.startswith("inner."):
                epoch, width = state[f"{name}.chosen"].tolist()
                near, far = state[f"{name}.near"], state[f"{name}.far"]
                self._lines[name] = Directions(epoch, width, near, far)

    @property
    def _asked(self) -> int:
        return self.setting.dials.asked.directions

    def _frames(
        self, rows: Tensor, route: Route, comm: Communicator, step: Step
    ) -> tuple[Frame, Frame]:
        """Of what is sent, and of what arrives; directions are chosen if there are none."""
        counts = route.counts
        if not self._asked:
            return Frame(counts.send), Frame(counts.recv)
        name, dtype = line_name(step), SUM_DTYPE[rows.dtype]
        line = self._lines.get(name)
        if line is None or (line.width, line.sent.dtype) != (rows.shape[1], dtype):
            line = self._lines[name] = Directions.chosen(
                rows,
                counts,
                comm,
                asked=self._asked,
                epoch=step.epoch,
                key=self.setting.key(step, "directions"),
            )
        return Frame(counts.send, line.sent), Frame(counts.recv, line.received)


class _Centring:
    """What is sent as it is, and the rest, under way."""

    def __init__(
        self,
        of_now: tuple[Flight, Tensor],
        beside: Flight,
        coordinates: Tensor,
        out: Tensor,
        frame: Frame,
    ) -> None:
        # With what is sent, which nobody else holds.
        self._of_now: tuple[Flight, Tensor] | None = of_now
        self._beside, self._coordinates, self._out, self._frame = beside, coordinates, out, frame

    def wait(self) -> None:
        """Put what has come as it is in the place of what the rest has made of it."""
        if self._of_now is None:
            return
        rest = self._out
        if isinstance(self._beside, Lent):
            rest = self._beside.land()
        else:
            self._beside.wait()
        self._of_now[0].wait()
        self._of_now = None
        moves = self._coordinates - self._frame.coordinates(rest)
        self._frame.moved(rest, moves, self._out, sign=1)
