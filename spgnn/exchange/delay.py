"""Codecs whose rows are used epochs after they were sent, or never."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.exchange.compression import CodecLayer, State, kind_of
from spgnn.exchange.transport import ByteCounts, Handle, Route, Step, Subset, Then, View


@dataclass(eq=False)
class Parcel:
    """Rows of one epoch on their way to their product."""

    epoch: int  # in which they were sent
    places: Tensor | None  # where they go among the rows of the product; None: all of them
    rows: Tensor
    handle: Handle | None  # until they have arrived
    sent: Tensor | None = None  # until then


@dataclass(eq=False)
class DelayQueue:
    """State of the same product of all epochs, in one direction."""

    opened: int  # the first epoch
    stale: Tensor  # the last rows that arrived, or their mean: used instead of those under way
    times: Tensor | None  # int32, how often each row has arrived, where means are taken
    parcels: deque[Parcel] = field(default_factory=deque)  # under way, or arrived and not used yet


class Delay(CodecLayer):
    """Rows sent in epoch e are used in epoch e + R; gradients too."""

    def forget(self) -> None:
        super().forget()
        self._bins: dict[tuple[bool, int], Subset] = {}
        self._lines: dict[str, DelayQueue] = {}
        self._buffer: Tensor | None = None

    def send_buffer(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """A buffer in which all rows of a step stay until they have arrived, epochs later."""
        line, codec = self._lines.get(step.name), self.setting.codec
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
        subset, places = self._subset(route, step), None
        if subset is None:
            sent, arriving = self._sent_later(rows), self._pool.take(len(out), *kind_of(out))
        else:
            sent = self._pool.take(len(subset.sent), *kind_of(out))
            arriving = self._pool.take(len(subset.received), *kind_of(out))
            kernels.gather_rows(rows, subset.sent, out=sent)
            route, places = subset.route, subset.received
        handle = self.inner.begin(sent, arriving, route, comm.apart(), step)
        line.parcels.append(Parcel(step.epoch, places, arriving, handle, sent))
        return _Stale(self, line, step, out)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """All rows where a line is opened, or nothing is delayed; else those of a bin."""
        line = self._lines.get(step.name)
        if step.epoch > (line.opened if line else 0) and self.setting.codec.delay_at(step.epoch):
            subset = self._subset(route, step)
            route = route if subset is None else subset.route
        return self.inner.bytes(route, width, dtype, step)

    def land(self) -> None:
        for line in self._lines.values():
            for parcel in line.parcels:
                self._arrive(parcel)
        super().land()

    def state(self) -> State:
        self.land()
        state = super().state()
        for name, line in self._lines.items():
            tensors = {
                "opened": torch.tensor(line.opened, device="cpu"),
                "stale": line.stale,
                "times": line.times,
            }
            for number, parcel in enumerate(line.parcels):
                tensors[f"{number}.epoch"] = torch.tensor(parcel.epoch, device="cpu")
                tensors |= {f"{number}.rows": parcel.rows, f"{number}.places": parcel.places}
            state |= {f"{name}.{key}": t for key, t in tensors.items() if t is not None}
        return state

    def load(self, state: State) -> None:
        super().load(state)
        saved, self.saved, self._lines = self.saved, {}, {}
        for name in [key.removesuffix(".stale") for key in saved if key.endswith(".stale")]:
            opened, stale = int(saved[f"{name}.opened"]), saved[f"{name}.stale"]
            # Buffers of their own, for they are written to again once these rows have been used.
            line = DelayQueue(opened, stale.clone(), saved.get(f"{name}.times"))
            while (rows := saved.get(f"{name}.{len(line.parcels)}.rows")) is not None:
                own = f"{name}.{len(line.parcels)}"
                epoch, places = int(saved[f"{own}.epoch"]), saved.get(f"{own}.places")
                line.parcels.append(Parcel(epoch, places, rows.clone(), None))
            self._lines[name] = line

    def use(self, line: DelayQueue, parcel: Parcel, step: Step) -> None:
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

    def _sent_later(self, rows: Tensor) -> Tensor:
        """Rows where nobody writes until they have arrived."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            if buffer.data_ptr() == rows.data_ptr() and buffer.shape == rows.shape:
                return buffer
            self._pool.give(buffer)
        return self._pool.take(len(rows), *kind_of(rows)).copy_(rows)

    def _line(self, out: Tensor, step: Step) -> DelayQueue | None:
        """The line of a product, opened if there is none; ``None`` while nothing is delayed."""
        codec = self.setting.codec
        line, delay = self._lines.get(step.name), codec.delay_at(step.epoch)
        if line is not None:
            other = line.stale.shape != out.shape or line.stale.dtype != out.dtype
            if not other and delay:
                return line
            # Waited for in the order in which all ranks began them.
            for parcel in line.parcels:
                self._arrive(parcel)
            del self._lines[step.name]
        if not delay:
            return None
        times = None
        if codec.smoothing:
            times = torch.ones(len(out), dtype=torch.int32, device=out.device)
        line = self._lines[step.name] = DelayQueue(step.epoch, torch.empty_like(out), times)
        return line

    def _subset(self, route: Route, step: Step) -> Subset | None:
        """The bin whose turn it is; ``None`` for all rows."""
        bins = self.setting.codec.bins
        if bins == 1:
            return None
        key = step.adjoint, step.epoch % bins
        if key not in self._bins:
            self._bins[key] = route.bin(bins, step.epoch % bins)
        return self._bins[key]

    def _arrive(self, parcel: Parcel) -> None:
        if parcel.handle is not None:
            parcel.handle.wait()
            parcel.handle = None
        if parcel.sent is not None:
            self._pool.give(parcel.sent)
            parcel.sent = None


class _Stale(View):
    """Rows of an earlier epoch, which have had all the time since."""

    def __init__(self, codec: Delay, line: DelayQueue, step: Step, out: Tensor) -> None:
        super().__init__(out)
        self._codec, self._line, self._step = codec, line, step
        self._until = step.epoch - codec.setting.codec.delay_at(step.epoch)

    def view(self) -> Tensor:
        parcels = self._line.parcels
        while parcels and parcels[0].epoch <= self._until:
            self._codec.use(self._line, parcels.popleft(), self._step)
        return self._line.stale


class SendNothing(CodecLayer):
    """Nothing is sent (0c of DistGNN): rows of others are zero, until epochs that are exact."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        if self.setting.codec.is_exact(step.epoch):
            return self.inner.begin(rows, out, route, comm, step)
        out.zero_()
        errors = self.setting.errors
        if errors.measured(step.epoch):
            errors.add("never", step, rows, rows)
        return Then(None, lambda: None)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        if self.setting.codec.is_exact(step.epoch):
            return self.inner.bytes(route, width, dtype, step)
        nothing = np.zeros(len(route.counts.send), np.int64)
        return nothing, nothing
