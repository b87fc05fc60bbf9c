"""The mean of each message travels as it is, at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.exchange import Flight, Route, Step
from spgnn.exchange.wire import Lent, Moved
from spgnn.layout import Int64Array
from spgnn.sparse import SUM_DTYPE
from spgnn.wires.base import Layer
from spgnn.wires.flights import Then
from spgnn.wires.pool import Pool


class Centred(Layer):
    """Each message's mean is exact and in time; the inner wire carries the differences from it.

    With M the projection onto means, and D what the inner wire does, a message becomes
    M + (I − M)D(I − M): the sender subtracts the mean, and the receiver replaces the mean of what
    arrived by the true one. So the mean is right whatever D is, the result is unbiased if D is, and
    a product and its adjoint are transposes if those of D are.

    Rows of hidden layers have much in common, for activations are not negative; so when weights
    move, the mean is what moves most. Where it is late, the optimiser acts on what it has corrected
    already, and a loop with such a lag is stable only with steps that are many times smaller. Of a
    sample, the mean is a control variate (as historical rows are in VR-GCN, Chen, Zhu & Song,
    ICML'18): rows that are left out arrive as the mean, and not as zeros.

    Parameters
    ----------
    inner : Wire
    setting : Setting
    """

    def _forget(self) -> None:
        self._pool = Pool()
        self._room: Tensor | None = None

    def room(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """Where the inner wire wants rows: the mean is subtracted there."""
        self._room = self.inner.room(rows, like, step)
        return self._room

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Send the means, and hand the differences on."""
        room, self._room = self._room, None
        if self.setting.dials.passes(step.epoch) or not rows.shape[1]:
            return self.inner.begin(rows, out, route, comm, step)
        counts = route.counts
        own = _means(rows, counts.send)
        arriving = rows.new_empty(int(np.count_nonzero(counts.recv)), rows.shape[1])
        means = comm.alltoallv(own, arriving, _one_each(counts))
        differences = self.inner.room(len(rows), rows, step) if room is None else room
        borrowed = differences is None
        if differences is None:
            differences = self._pool.take(len(rows), rows.shape[1], rows.dtype, rows.device)
        _add_means(rows, own, counts.send, differences, sign=-1)
        flight = self.inner.begin(differences, out, route, comm, step)
        if borrowed:
            flight = Then(flight, lambda: self._pool.give(differences))
        return _Centring((means, own), flight, arriving, out, counts.recv)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """One row more for each message that is not empty."""
        sent, received = self.inner.bytes(route, width, dtype, step)
        if self.setting.dials.passes(step.epoch) or not width:
            return sent, received
        means, row_bytes = _one_each(route.counts), width * dtype.itemsize
        return sent + means.send * row_bytes, received + means.recv * row_bytes


class _Centring:
    """Means and differences under way."""

    def __init__(
        self,
        means: tuple[Flight, Tensor],
        differences: Flight,
        arriving: Tensor,
        out: Tensor,
        counts: Int64Array,
    ) -> None:
        # With the means that are sent, which nobody else holds.
        self._means: tuple[Flight, Tensor] | None = means
        self._differences, self._arriving, self._out = differences, arriving, out
        self._counts = counts

    def wait(self) -> None:
        """Replace the mean of what arrived by the true one."""
        if self._means is None:
            return
        rows = self._out
        if isinstance(self._differences, Lent):
            rows = self._differences.land()
        else:
            self._differences.wait()
        self._means[0].wait()
        self._means = None
        _add_means(
            rows, self._arriving - _means(rows, self._counts), self._counts, self._out, sign=1
        )


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
