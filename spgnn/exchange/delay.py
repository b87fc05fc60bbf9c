"""Rows that are used epochs after they were sent, or never."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator, RowCounts
from spgnn.exchange.compression import (
    CodecLayer,
    State,
    Subset,
    Then,
    kind_of,
    product_name,
)
from spgnn.exchange.plan import Route
from spgnn.exchange.transport import ByteCounts, Handle, Step, View
from spgnn.layout import Int64Array


@dataclass(eq=False)
class Parcel:
    """Rows of one epoch on their way to their product.

    Attributes
    ----------
    epoch : int
        In which they were sent.
    places : Tensor int64 [rows], or None
        Where they go among the rows of the product; ``None`` for all.
    rows : Tensor [rows, f]
    handle : Handle or None
        ``None`` once they have arrived.
    sent : Tensor or None
        What is sent, until then.
    """

    epoch: int
    places: Tensor | None
    rows: Tensor
    handle: Handle | None
    sent: Tensor | None = None


@dataclass(eq=False)
class Line:
    """State of the same product of all epochs, in one direction.

    Attributes
    ----------
    opened : int
        The first epoch.
    stale : Tensor [received rows, f]
        The last rows that arrived, or their mean: used instead of rows that are under way.
    times : Tensor int32 [received rows], or None
        How often each of them has arrived, where means are taken.
    parcels : deque of Parcel
        Under way, or arrived and not used yet.
    """

    opened: int
    stale: Tensor
    times: Tensor | None
    parcels: deque[Parcel] = field(default_factory=deque)


class Delay(CodecLayer):
    """Rows sent in epoch e are used in epoch e + R; gradients too.

    All of them in each epoch (PipeGCN, Wan et al., ICLR'22: R = 1), or one of several bins in turn
    (cd-r of DistGNN, Md et al., SC'21: as many bins as R). Row k of a message is in bin k modulo
    their number, which both ends know. The first epoch of a line is exact, and the rows that arrive
    then are kept. With smoothing, the stale rows are a running mean whose weights add up to one
    from the first arrival on (Kingma & Ba, ICLR'15, section 3).
    """

    remembers = True

    def _forget(self) -> None:
        self._bins: dict[tuple[bool, int, int], Subset] = {}
        self._lines: dict[str, Line] = {}
        self._buffer: Tensor | None = None

    def send_buffer(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """A buffer in which all rows of a step stay until they have arrived, epochs later."""
        line, codec = self._lines.get(product_name(step)), self.setting.codec
        if line is None or not codec.delay_at(step.epoch) or codec.bins > 1:
            return None
        if line.opened == step.epoch or kind_of(line.stale) != kind_of(like):
            return None
        self._buffer = self._pool.take(rows, *kind_of(like))
        return self._buffer

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Send the rows of now; `out` becomes what was sent before."""
        line = self._line(out, step)
        if line is None or line.opened == step.epoch:
            handle = self.inner.begin(rows, out, route, comm, step)
            if line is None:
                return handle
            stale = line.stale
            return Then(handle, lambda: stale.copy_(out))
        subset = self._subset(route, step)
        if subset is None:
            sent, arriving = self._kept(rows), self._pool.take(len(out), *kind_of(out))
        else:
            sent = self._pool.take(len(subset.sent), *kind_of(out))
            arriving = self._pool.take(len(subset.received), *kind_of(out))
            kernels.gather_rows(rows, subset.sent, out=sent)
        travels = route if subset is None else subset.route
        handle = self.inner.begin(sent, arriving, travels, comm.apart(), step)
        places = None if subset is None else subset.received
        line.parcels.append(Parcel(step.epoch, places, arriving, handle, sent))
        return _Stale(self, line, step, out)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """All rows where a line is opened, or nothing is delayed; else those of a bin."""
        line = self._lines.get(product_name(step))
        opened = 0 if line is None else line.opened
        subset = None
        if step.epoch > opened and self.setting.codec.delay_at(step.epoch):
            subset = self._subset(route, step)
        travels = route if subset is None else subset.route
        return self.inner.bytes(travels, width, dtype, step)

    def land(self) -> None:
        """Wait for all rows that are under way; they stay unused. Collective."""
        for line in self._lines.values():
            self._land(line)
        super().land()

    def state(self) -> State:
        """Stale rows, and rows that have arrived. Collective."""
        self.land()
        state = super().state()
        for name, line in self._lines.items():
            state[f"{name}.opened"] = torch.tensor(line.opened)
            state[f"{name}.stale"] = line.stale
            if line.times is not None:
                state[f"{name}.times"] = line.times
            for number, parcel in enumerate(line.parcels):
                state[f"{name}.{number}.epoch"] = torch.tensor(parcel.epoch)
                state[f"{name}.{number}.rows"] = parcel.rows
                if parcel.places is not None:
                    state[f"{name}.{number}.places"] = parcel.places
        return state

    def load(self, state: State) -> None:
        """Go on from a state."""
        super().load(state)
        self._lines = {}
        for name in [key.removesuffix(".stale") for key in state if key.endswith(".stale")]:
            if name.startswith("inner."):
                continue
            # Buffers of their own, for they are written to again once these rows have been used.
            opened, stale = int(state[f"{name}.opened"]), state[f"{name}.stale"].clone()
            line = self._lines[name] = Line(opened, stale, state.get(f"{name}.times"))
            while (rows := state.get(f"{name}.{len(line.parcels)}.rows")) is not None:
                own = f"{name}.{len(line.parcels)}"
                epoch, places = int(state[f"{own}.epoch"]), state.get(f"{own}.places")
                line.parcels.append(Parcel(epoch, places, rows.clone(), None))

    def use(self, line: Line, parcel: Parcel, step: Step) -> None:
        """Replace the stale rows by those of a parcel."""
        self._arrive(parcel)
        rows, places, smoothing = parcel.rows, parcel.places, self.setting.codec.smoothing
        stale = line.stale if places is None else line.stale[places]
        errors = self.setting.errors
        if errors.measured(step.epoch):
            errors.add("delay", step, rows - stale, rows)
        if line.times is not None:
            times = line.times if places is None else line.times[places]
            times += 1
            share = (1 - smoothing) / (1 - torch.pow(smoothing, times.to(torch.float64)))
            rows = torch.lerp(stale, rows, share.to(stale.dtype)[:, None])
            if places is not None:
                line.times[places] = times
        if rows is parcel.rows and places is None:
            line.stale, rows = rows, line.stale
        else:
            line.stale[slice(None) if places is None else places] = rows
            rows = parcel.rows
        self._pool.give(rows)

    def _kept(self, rows: Tensor) -> Tensor:
        """Rows where nobody writes until they have arrived."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            if buffer.data_ptr() == rows.data_ptr() and buffer.shape == rows.shape:
                return buffer
            self._pool.give(buffer)
        return self._pool.take(len(rows), *kind_of(rows)).copy_(rows)

    def _line(self, out: Tensor, step: Step) -> Line | None:
        """The line of a product, opened if there is none; ``None`` while nothing is delayed."""
        name, delay = product_name(step), self.setting.codec.delay_at(step.epoch)
        line = self._lines.get(name)
        if line is not None:
            other = line.stale.shape != out.shape or line.stale.dtype != out.dtype
            if other or not delay:
                # Waited for in the order in which all ranks began them.
                self._land(line)
                del self._lines[name]
                line = None
        if line is None and delay:
            times = None
            if self.setting.codec.smoothing:
                times = torch.ones(len(out), dtype=torch.int32, device=out.device)
            line = self._lines[name] = Line(step.epoch, torch.empty_like(out), times)
        return line

    def _subset(self, route: Route, step: Step) -> Subset | None:
        """The bin whose turn it is; ``None`` for all rows."""
        bins = self.setting.codec.bins
        if bins == 1:
            return None
        key = step.adjoint, bins, step.epoch % bins
        if key not in self._bins:
            self._bins[key] = bin_of(route, bins, step.epoch % bins)
        return self._bins[key]

    def _land(self, line: Line) -> None:
        for parcel in line.parcels:
            self._arrive(parcel)

    def _arrive(self, parcel: Parcel) -> None:
        if parcel.handle is not None:
            parcel.handle.wait()
            parcel.handle = None
        if parcel.sent is not None:
            self._pool.give(parcel.sent)
            parcel.sent = None


def bin_of(route: Route, bins: int, number: int) -> Subset:
    """Row k of each message, where k modulo `bins` is `number`."""
    counts, names = route.counts, route.names
    device = torch.device("cpu") if names is None else names.sent.device

    def rows_of(counts: Int64Array) -> Tensor:
        begins = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum())) - np.repeat(begins, counts)
        return torch.from_numpy(np.flatnonzero(within % bins == number)).to(device)

    sent, received = rows_of(counts.send), rows_of(counts.recv)
    send, receive, largest = (
        np.maximum(0, (each - number + bins - 1) // bins)
        for each in (counts.send, counts.recv, np.int64(counts.largest))
    )
    fewer = RowCounts(send, receive, int(largest))
    return Subset(sent, received, route.taken(sent, received, fewer))


class _Stale(View):
    """Rows of an earlier epoch, which have had all the time since."""

    def __init__(self, codec: Delay, line: Line, step: Step, out: Tensor) -> None:
        super().__init__(out)
        self._codec, self._line, self._step = codec, line, step
        self._until = step.epoch - codec.setting.codec.delay_at(step.epoch)

    def view(self) -> Tensor:
        parcels = self._line.parcels
        while parcels and parcels[0].epoch <= self._until:
            self._codec.use(self._line, parcels.popleft(), self._step)
        return self._line.stale


class Never(CodecLayer):
    """Nothing is sent (0c of DistGNN): rows of others are zero, until epochs that are exact."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Zeros, at once."""
        if self.setting.codec.is_exact(step.epoch):
            return self.inner.begin(rows, out, route, comm, step)
        out.zero_()
        errors = self.setting.errors
        if errors.measured(step.epoch):
            errors.add("never", step, rows, rows)
        return Then(None, lambda: None)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """None."""
        if self.setting.codec.is_exact(step.epoch):
            return self.inner.bytes(route, width, dtype, step)
        nothing = np.zeros(len(route.counts.send), np.int64)
        return nothing, nothing
