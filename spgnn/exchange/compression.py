"""Codecs that compress rows or leave some out, and hand the rest to another transport.

Each does one thing, so any two compose; and each works on every hop of every scheme and cover,
because it sees rows, whatever they mean.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.exchange.codec import Codec, CodecSetting
from spgnn.exchange.transport import ByteCounts, Handle, Route, Step, Subset, Then, Transport, View
from spgnn.kernels.quantise import packed_bytes
from spgnn.layout import Int64Array
from spgnn.sparse import SUM_DTYPE

State = dict[str, Tensor]


class CodecLayer(Transport):
    """A transport that does something to rows, and hands them to another one.

    One that is registered (``spgnn.registry.CODECS``) has an argument: ``Codec.of(NAME=ARGUMENT)``.

    Attributes
    ----------
    saved : dict of Tensor
        What it keeps of one product for another, by name: its part of a checkpoint.
    remembers : bool
        Whether anything of one epoch is kept for another.
    reads_values : bool
        Whether its bytes depend on the values of rows, so that no plan can know them.
    keeps_gradients : bool
        Whether gradients travel in a run's exact epochs alone.
    """

    remembers: ClassVar[bool] = False
    reads_values: ClassVar[bool] = False
    keeps_gradients: ClassVar[bool] = False

    def __init__(self, inner: Transport, setting: CodecSetting, argument: Any = None) -> None:
        self.inner, self.setting, self.argument = inner, setting, argument
        self.forget()

    @classmethod
    def check(cls, argument: Any, codec: Codec) -> None:
        """Raise an InputError if the argument is wrong, or does not go with the rest of a codec."""

    def forget(self) -> None:
        """Begin anew, with other buffers; no rows may be under way."""
        self.saved: State = {}
        self._pool = Pool()
        if isinstance(self.inner, CodecLayer):
            self.inner.forget()

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        return self.inner.begin(rows, out, route, comm, step)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        return self.inner.bytes(route, width, dtype, step)

    def land(self) -> None:
        """Wait for all rows that are under way. Collective."""
        if isinstance(self.inner, CodecLayer):
            self.inner.land()

    def state(self) -> State:
        """Its state, by name; collective if rows are under way.

        A codec that loads it goes on as this one would. Tensors are those that the codec uses.
        """
        inner = self.inner.state() if isinstance(self.inner, CodecLayer) else {}
        return self.saved | {f"inner.{name}": tensor for name, tensor in inner.items()}

    def load(self, state: State) -> None:
        """Go on from a state, which is the codec's own from then on."""
        self.saved = {name: t for name, t in state.items() if not name.startswith("inner.")}
        if isinstance(self.inner, CodecLayer):
            inner = {k.removeprefix("inner."): v for k, v in state.items() if k not in self.saved}
            self.inner.load(inner)


class Quantise(CodecLayer):
    """Rows in fewer bits, each direction rounded by itself (Sylvie, EC-Graph, AdaQP)."""

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Pack, and one all-to-allv of bytes; unpacked when they are waited for."""
        if not rows.is_floating_point():
            raise InputError(f"rows of {rows.dtype} cannot be sent in fewer bits: use float32")
        bits = self._bits(step, rows.dtype)
        if bits is None or not rows.shape[1]:
            return self.inner.begin(rows, out, route, comm, step)
        packed_width = packed_bytes(rows.shape[1], bits)
        packed, arriving = (
            self._pool.take(len(each), packed_width, torch.uint8, rows.device)
            for each in (rows, out)
        )
        self._pack(rows, bits, packed, route, step, comm.job.rank)
        handle = comm.alltoallv(packed, arriving, route.counts)

        def unpack() -> None:
            kernels.dequantise_rows(arriving, bits, out.shape[1], out.dtype, out=out)
            self._pool.give(packed, arriving)

        return Then(handle, unpack)

    def _pack(
        self, rows: Tensor, bits: int, out: Tensor, route: Route, step: Step, rank: int
    ) -> None:
        assert route.names is not None
        errors, feedback = self.setting.errors, self.setting.codec.feedback
        residual, lost, places = None, None, None
        if feedback:
            # Of all rows of the exchange, whichever of them are sent now.
            name, shape = f"lost.{step.name}", ((route.whole or route).counts.sent, rows.shape[1])
            lost = self.saved.get(name)
            if lost is None or lost.shape != shape or lost.dtype != rows.dtype:
                lost = self.saved[name] = rows.new_zeros(shape)
            places = None if route.places is None else route.places[0]
            residual = lost if places is None else kernels.gather_rows(lost, places)
        # Ranks that send gradients of the same vertex must not round them alike.
        key = self.setting.key(step, f"round {rank if step.adjoint else 0}")
        measured = errors.measured(step.epoch)
        kernels.quantise_rows(
            rows,
            bits,
            route.names.sent,
            key,
            # Of what is added again, a code to the nearest loses half as much as one at random.
            stochastic=not feedback,
            residual=residual,
            lost=errors.account("rounding", step, rows.device) if measured else None,
            out=out,
        )
        if lost is not None and residual is not None and places is not None:
            lost.index_copy_(0, places, residual)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """Bytes of packed rows."""
        bits = self._bits(step, dtype)
        if bits is None or not width:
            return self.inner.bytes(route, width, dtype, step)
        row_bytes = packed_bytes(width, bits)
        return route.counts.send * row_bytes, route.counts.recv * row_bytes

    def _bits(self, step: Step, dtype: torch.dtype) -> int | None:
        """Bits of an element, or ``None`` where rows have no more anyway."""
        bits = self.setting.codec.bits_at(step.epoch)
        return bits if bits < min(32, 8 * dtype.itemsize) else None


class Sample(CodecLayer):
    """Each row is sent with probability p, as 1/p of it; the others are zeros where they arrive."""

    def forget(self) -> None:
        super().forget()
        # Of one epoch, by key and group: what has been drawn, for the adjoint and for bytes too.
        self._epoch, self._drawn = -1, dict[tuple[int, int], tuple[RowCounts, Subset]]()

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Send the sample; whatever is not in it is zero at once."""
        share = self.setting.codec.sampling_at(step.epoch)
        if share == 1:
            return self.inner.begin(rows, out, route, comm, step)
        subset = self._draw(route, share, step)
        sent = self._buffer(subset.sent, rows, share)
        arriving = self._buffer(subset.received, out, share)
        dtype, device = SUM_DTYPE[rows.dtype], rows.device
        scale = torch.full(subset.sent.shape, 1 / share, dtype=dtype, device=device)
        kernels.gather_rows(rows, subset.sent, scale=scale, out=sent)
        errors = self.setting.errors
        if errors.measured(step.epoch):
            norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
            whole, drawn = norms.sum(), norms[subset.sent].sum()
            error = whole - drawn + (1 / share - 1) ** 2 * drawn
            errors.account("sampling", step, rows.device).add_(torch.stack((error, whole)))
        handle = self.inner.begin(sent, arriving, subset.route, comm, step)

        def spread() -> None:
            if out.device.type == "cpu":
                kernels.scatter_add_rows(out.zero_(), subset.received, arriving)
            else:  # where that would sort each new list, though no row is in it twice
                out.zero_().index_copy_(0, subset.received, arriving)
            self._pool.give(sent, arriving)

        return Then(handle, spread)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """Count bytes of the rows in the sample."""
        share = self.setting.codec.sampling_at(step.epoch)
        if share < 1:
            route = self._draw(route, share, step).route
        return self.inner.bytes(route, width, dtype, step)

    def _draw(self, route: Route, share: float, step: Step) -> Subset:
        key = self.setting.shared_key(step, "sample")
        if step.epoch != self._epoch:
            self._epoch, self._drawn = step.epoch, {}
        of, subset = self._drawn.get((key, step.group), (None, None))
        if subset is not None and of is route.counts:
            return subset
        if subset is not None and of is route.counts.reversed():
            return Subset(subset.received, subset.sent, subset.route.reversed())
        subset = route.marked(*route.draw(key, share, adjoint=step.adjoint))
        self._drawn[key, step.group] = route.counts, subset
        return subset

    def _buffer(self, numbers: Tensor, of: Tensor, share: float) -> Tensor:
        """For the rows of a sample, with room for most others."""
        expected = share * len(of)
        rows = max(min(len(of), ceil(expected + 4 * sqrt(expected))), len(numbers))
        return self._pool.take(rows, *kind_of(of))[: len(numbers)]


class ExactMeans(CodecLayer):
    """Each message's mean is exact and in time; the inner codec carries the differences from it."""

    _buffer: Tensor | None = None

    def send_buffer(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """The inner codec's buffer: the mean is subtracted there."""
        self._buffer = self.inner.send_buffer(rows, like, step)
        return self._buffer

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Send the means, and hand the differences on."""
        differences, self._buffer = self._buffer, None
        if self.setting.codec.passes(step.epoch) or not rows.shape[1]:
            return self.inner.begin(rows, out, route, comm, step)
        counts = route.counts
        own = _means(rows, counts.send)
        means = rows.new_empty(int(np.count_nonzero(counts.recv)), rows.shape[1])
        # With the means that are sent, which nobody else holds.
        under_way = comm.alltoallv(own, means, _one_each(counts)), own
        if differences is None:
            differences = self.inner.send_buffer(len(rows), rows, step)
        borrowed = differences is None
        if differences is None:
            differences = self._pool.take(len(rows), *kind_of(rows))
        _add_means(rows, own, counts.send, differences, sign=-1)
        handle = self.inner.begin(differences, out, route, comm, step)

        def centre() -> None:
            if isinstance(handle, View):
                arrived = handle.view()
            else:
                handle.wait()
                arrived = out
            under_way[0].wait()
            _add_means(arrived, means - _means(arrived, counts.recv), counts.recv, out, sign=1)
            if borrowed:
                self._pool.give(differences)

        return Then(None, centre)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """One row more for each message that is not empty."""
        sent, received = self.inner.bytes(route, width, dtype, step)
        if self.setting.codec.passes(step.epoch) or not width:
            return sent, received
        means, row_bytes = _one_each(route.counts), width * dtype.itemsize
        return sent + means.send * row_bytes, received + means.recv * row_bytes


def _one_each(counts: RowCounts) -> RowCounts:
    """One row for each message that is not empty."""
    send, receive = ((each > 0).astype(np.int64) for each in (counts.send, counts.recv))
    return RowCounts(send, receive, min(counts.largest, 1))


def _means(rows: Tensor, counts: Int64Array) -> Tensor:
    """The mean of each message that is not empty, [messages, f]."""
    messages = rows.split(counts[counts > 0].tolist())
    means = rows.new_empty(len(messages), rows.shape[1])
    for message, mean in zip(messages, means, strict=True):
        mean.copy_(message.mean(0, dtype=SUM_DTYPE[rows.dtype]))
    return means


def _add_means(rows: Tensor, means: Tensor, counts: Int64Array, out: Tensor, *, sign: int) -> None:
    """Write ``rows + sign · (the mean of their message)`` to `out`, which may be `rows`."""
    lengths = counts[counts > 0].tolist()
    for message, mean, target in zip(rows.split(lengths), means, out.split(lengths), strict=True):
        torch.add(message, mean, alpha=sign, out=target)


class Pool:
    """Buffers that are given back: rows under way for long must not be written to meanwhile."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised [rows, width]."""
        nbytes = rows * width * dtype.itemsize
        fitting = [b for b in self._free if b.device == device and len(b) >= nbytes]
        if fitting:
            best = min(fitting, key=len)
            self._free = [buffer for buffer in self._free if buffer is not best]
        else:
            best = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return best[:nbytes].view(dtype).view(rows, width)

    def give(self, *buffers: Tensor) -> None:
        """Give buffers back."""
        for rows in buffers:
            whole = torch.empty(0, dtype=torch.uint8, device=rows.device)
            self._free.append(whole.set_(rows.untyped_storage()))


def kind_of(like: Tensor) -> tuple[int, torch.dtype, torch.device]:
    """Width, dtype and device."""
    return like.shape[1], like.dtype, like.device
