"""Rows that are used epochs after they were sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator, RowCounts
from spgnn.exchange import Flight, Route, Step
from spgnn.exchange.wire import Moved
from spgnn.layout import Int64Array
from spgnn.wires.base import Layer, State, line_name
from spgnn.wires.flights import Landed, Lending, Then
from spgnn.wires.part import Part
from spgnn.wires.pool import Pool


@dataclass(eq=False)
class Parcel:
    """Rows of one epoch on their way to one line.

    Attributes
    ----------
    epoch : int
        In which they were sent.
    places : Tensor int64 [rows], or None
        Where they go among the rows of the line; ``None`` for all.
    rows : Tensor [rows, f]
    flight : Flight or None
        ``None`` once they have landed.
    copy : Tensor or None
        What is sent, until then.
    """

    epoch: int
    places: Tensor | None
    rows: Tensor
    flight: Flight | None
    copy: Tensor | None = None


@dataclass(eq=False)
class Line:
    """What a wire keeps of one product of each epoch, in one direction.

    Attributes
    ----------
    opened : int
        The first epoch.
    held : Tensor [received rows, f]
        What is used in the place of rows that are under way.
    times : Tensor int32 [received rows], or None
        How often each of them has arrived, where means are taken.
    parcels : deque of Parcel
        Under way, or landed and not used yet.
    """

    opened: int
    held: Tensor
    times: Tensor | None
    parcels: deque[Parcel] = field(default_factory=deque)


class Delayed(Layer):
    """Rows sent in epoch e are used in epoch e + R; gradients too.

    All of them in each epoch (PipeGCN, Wan et al., ICLR'22: R = 1), or one of several bins in turn
    (cd-r of DistGNN, Md et al., SC'21: as many bins as R). Row k of a message is in bin k modulo
    their number, which both ends know. The first epoch of a line is exact, and what arrives then is
    held. With smoothing, what is held is a running mean whose weights add up to one from the first
    arrival on (Kingma & Ba, ICLR'15, section 3).

    Parameters
    ----------
    inner : Wire
    setting : Setting
    """

    remembers = True

    def _forget(self) -> None:
        self._bins: dict[tuple[bool, int, int], Part] = {}
        self._lines: dict[str, Line] = {}
        self._pool = Pool()
        self._room: Tensor | None = None

    def room(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """Where all rows of a step may be kept until they have arrived, epochs later."""
        line, dials = self._lines.get(line_name(step)), self.setting.dials
        if line is None or not dials.delay_at(step.epoch) or dials.asked.bins > 1:
            return None
        if line.opened == step.epoch or _kind(line.held) != _kind(like):
            return None
        self._room = self._pool.take(rows, *_kind(like))
        return self._room

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Send rows of now; `out` becomes what was sent before."""
        line = self._line(out, step)
        if line is None or line.opened == step.epoch:
            flight = self.inner.begin(rows, out, route, comm, step)
            if line is None:
                return flight
            held = line.held
            return Then(flight, lambda: held.copy_(out))
        dials = self.setting.dials
        part = self._part(route, step)
        if part is None:
            sent, landing = self._kept(rows), self._pool.take(len(out), *_kind(out))
        else:
            sent = self._pool.take(len(part.sent), *_kind(out))
            landing = self._pool.take(len(part.received), *_kind(out))
            kernels.gather_rows(rows, part.sent, out=sent)
        travels = route if part is None else part.route
        flight = self.inner.begin(sent, landing, travels, comm.apart(), step)
        places = None if part is None else part.received
        line.parcels.append(Parcel(step.epoch, places, landing, flight, sent))
        return _Late(self, line, step, step.epoch - dials.delay_at(step.epoch), out)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """All rows where a line is opened, or nothing is delayed; else those of a bin."""
        line = self._lines.get(line_name(step))
        opened = 0 if line is None else line.opened
        part = None
        if step.epoch > opened and self.setting.dials.delay_at(step.epoch):
            part = self._part(route, step)
        travels = route if part is None else part.route
        return self.inner.bytes(travels, width, dtype, step)

    def land(self) -> None:
        """Wait for all rows that are under way; they stay unused. Collective."""
        for line in self._lines.values():
            self._land(line)
        super().land()

    def state(self) -> State:
        """Rows that are held, and rows that have landed. Collective."""
        self.land()
        found = super().state()
        for name, line in self._lines.items():
            found[f"{name}.opened"] = torch.tensor(line.opened)
            found[f"{name}.held"] = line.held
            if line.times is not None:
                found[f"{name}.times"] = line.times
            for number, parcel in enumerate(line.parcels):
                found[f"{name}.{number}.epoch"] = torch.tensor(parcel.epoch)
                found[f"{name}.{number}.rows"] = parcel.rows
                if parcel.places is not None:
                    found[f"{name}.{number}.places"] = parcel.places
        return found

    def load(self, state: State) -> None:
        """Go on from a state."""
        super().load(state)
        self._lines = {}
        for name in [key.removesuffix(".held") for key in state if key.endswith(".held")]:
            if name.startswith("inner."):
                continue
            # Buffers of their own, for they are written to again once these rows have been used.
            opened, held = int(state[f"{name}.opened"]), state[f"{name}.held"].clone()
            line = self._lines[name] = Line(opened, held, state.get(f"{name}.times"))
            while (rows := state.get(f"{name}.{len(line.parcels)}.rows")) is not None:
                own = f"{name}.{len(line.parcels)}"
                places = state.get(f"{own}.places")
                epoch, rows = int(state[f"{own}.epoch"]), rows.clone()
                line.parcels.append(Parcel(epoch, places, rows, None))

    def use(self, line: Line, parcel: Parcel, step: Step) -> None:
        """Put the rows of a parcel, which has landed, into the place of those that are held."""
        self._landed(parcel)
        rows, places, smoothing = parcel.rows, parcel.places, self.setting.dials.asked.smoothing
        held = line.held if places is None else line.held[places]
        errors = self.setting.errors
        if errors.measured(step.epoch):
            errors.add("delay", step, rows - held, rows)
        if line.times is not None:
            times = line.times if places is None else line.times[places]
            times += 1
            share = (1 - smoothing) / (1 - torch.pow(smoothing, times.to(torch.float64)))
            rows = torch.lerp(held, rows, share.to(held.dtype)[:, None])
            if places is not None:
                line.times[places] = times
        if rows is parcel.rows and places is None:
            line.held, rows = rows, line.held
        else:
            line.held[slice(None) if places is None else places] = rows
            rows = parcel.rows
        self._pool.give(rows)

    def _kept(self, rows: Tensor) -> Tensor:
        """Rows where nobody writes until they have arrived."""
        room, self._room = self._room, None
        if room is not None and room.data_ptr() == rows.data_ptr() and room.shape == rows.shape:
            return room
        if room is not None:
            self._pool.give(room)
        return self._pool.take(len(rows), *_kind(rows)).copy_(rows)

    def _line(self, out: Tensor, step: Step) -> Line | None:
        """The line of a product, opened if there is none; ``None`` while nothing is delayed."""
        name, delay = line_name(step), self.setting.dials.delay_at(step.epoch)
        line = self._lines.get(name)
        stale = line is not None and (line.held.shape != out.shape or line.held.dtype != out.dtype)
        if line is not None and (stale or not delay):
            # Waited for in the order in which all ranks began them.
            self._land(line)
            del self._lines[name]
            line = None
        if line is None and delay:
            times = None
            if self.setting.dials.asked.smoothing:
                times = torch.ones(len(out), dtype=torch.int32, device=out.device)
            line = self._lines[name] = Line(step.epoch, torch.empty_like(out), times)
        return line

    def _part(self, route: Route, step: Step) -> Part | None:
        """The rows whose turn it is; ``None`` for all."""
        bins = self.setting.dials.asked.bins
        if bins == 1:
            return None
        key = step.adjoint, bins, step.epoch % bins
        if key not in self._bins:
            self._bins[key] = bin_of(route, bins, step.epoch % bins)
        return self._bins[key]

    def _land(self, line: Line) -> None:
        for parcel in line.parcels:
            self._landed(parcel)

    def _landed(self, parcel: Parcel) -> None:
        if parcel.flight is not None:
            parcel.flight.wait()
            parcel.flight = None
        if parcel.copy is not None:
            self._pool.give(parcel.copy)
            parcel.copy = None


def bin_of(route: Route, bins: int, number: int) -> Part:
    """Row k of each message, where k modulo `bins` is `number`."""
    counts, names = route.counts, route.names
    device = torch.device("cpu") if names is None else names.sent.device
    sent, received = (
        torch.from_numpy(_every(each, bins, number)).to(device)
        for each in (counts.send, counts.recv)
    )
    send, receive, largest = (
        np.maximum(0, (each - number + bins - 1) // bins)
        for each in (counts.send, counts.recv, np.int64(counts.largest))
    )
    fewer = RowCounts(send, receive, int(largest))
    return Part(sent, received, route.taken(sent, received, fewer))


class _Late(Lending):
    """Rows of an earlier epoch, which have had all the time since."""

    def __init__(self, wire: Delayed, line: Line, step: Step, until: int, out: Tensor) -> None:
        super().__init__(out)
        self._wire, self._line, self._step, self._until = wire, line, step, until

    def land(self) -> Tensor:
        parcels = self._line.parcels
        while parcels and parcels[0].epoch <= self._until:
            self._wire.use(self._line, parcels.popleft(), self._step)
        return self._line.held


class Never(Layer):
    """Nothing is sent (0c of DistGNN): rows of others are zero, until epochs that are exact."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Zeros, at once."""
        if self.setting.dials.is_exact(step.epoch):
            return self.inner.begin(rows, out, route, comm, step)
        out.zero_()
        errors = self.setting.errors
        if errors.measured(step.epoch):
            errors.add("never", step, rows, rows)
        return Landed()

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """None."""
        if self.setting.dials.is_exact(step.epoch):
            return self.inner.bytes(route, width, dtype, step)
        nothing = np.zeros(len(route.counts.send), np.int64)
        return nothing, nothing


def _every(counts: Int64Array, bins: int, number: int) -> Int64Array:
    begins = np.cumsum(counts) - counts
    within = np.arange(int(counts.sum())) - np.repeat(begins, counts)
    return np.flatnonzero(within % bins == number)


def _kind(like: Tensor) -> tuple[int, torch.dtype, torch.device]:
    return like.shape[1], like.dtype, like.device
