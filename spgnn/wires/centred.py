"""The mean of each message travels as it is, at once; the rest is what other wires make of it."""

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
    """The mean of a message's rows is exact and of now; what they are beside it is carried on.

    With M the mean over the rows of each message, and D what the inner wire does, that is
    M + (I − M)D(I − M): senders take the mean off, and receivers once more what D has made of
    nothing. So the mean is right whatever D is; a product and its adjoint are transposes if those
    of D are, and unbiased if D is.

    Rows of hidden layers have much in common, for activations are not negative; so when weights
    move, the mean is what moves most. Where it is late, the optimiser acts on what it has corrected
    already, and a loop with such a lag is stable only with steps that are many times smaller. Of a
    sample, the mean is a control variate (as historical rows are in VR-GCN, Chen, Zhu & Song,
    ICML'18): what is left out arrives as the mean, and not as zeros.

    Parameters
    ----------
    inner : Wire
    setting : Setting
    """

    def _forget(self) -> None:
        self._pool = Pool()
        self._room: Tensor | None = None

    def room(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """Where the inner wire wants rows: the means are taken off there."""
        self._room = self.inner.room(rows, like, step)
        return self._room

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Send the means, and hand on what rows are beside them."""
        room, self._room = self._room, None
        if self.setting.dials.passes(step.epoch):
            return self.inner.begin(rows, out, route, comm, step)
        counts = route.counts
        means = means_of(rows, counts.send)
        arriving = rows.new_empty(int((counts.recv > 0).sum()), rows.shape[1])
        of_now = comm.alltoallv(means, arriving, _one_each(counts))
        beside = self.inner.room(len(rows), rows, step) if room is None else room
        borrowed = beside is None
        if beside is None:
            beside = self._pool.take(len(rows), rows.shape[1], rows.dtype, rows.device)
        for block, mean, rest in zip(
            _messages(rows, counts.send), means, _messages(beside, counts.send), strict=True
        ):
            torch.sub(block, mean, out=rest)
        flight = self.inner.begin(beside, out, route, comm, step)
        if borrowed:
            flight = Then(flight, lambda: self._pool.give(beside))
        return _Centring((of_now, means), flight, arriving, out, counts.recv)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """One row more for each message that is not empty."""
        sent, received = self.inner.bytes(route, width, dtype, step)
        if self.setting.dials.passes(step.epoch):
            return sent, received
        counts, row_bytes = _one_each(route.counts), width * dtype.itemsize
        return sent + counts.send * row_bytes, received + counts.recv * row_bytes


class _Centring:
    """What was beside the means, and the means, under way."""

    def __init__(
        self,
        of_now: tuple[Flight, Tensor],
        beside: Flight,
        means: Tensor,
        out: Tensor,
        counts: Int64Array,
    ) -> None:
        # With what is sent, which nobody else holds.
        self._of_now: tuple[Flight, Tensor] | None = of_now
        self._beside, self._means, self._out, self._counts = beside, means, out, counts

    def wait(self) -> None:
        """Put the means in the place of those that have arrived."""
        if self._of_now is None:
            return
        rest = self._out
        if isinstance(self._beside, Lent):
            rest = self._beside.land()
        else:
            self._beside.wait()
        self._of_now[0].wait()
        self._of_now = None
        moves = self._means - means_of(rest, self._counts)
        blocks = (_messages(each, self._counts) for each in (rest, self._out))
        for block, whole, move in zip(*blocks, moves, strict=True):
            torch.add(block, move, out=whole)


def means_of(rows: Tensor, counts: Int64Array) -> Tensor:
    """The mean over the rows of each message, [messages that are not empty, f]."""
    blocks = _messages(rows, counts)
    found = rows.new_empty(len(blocks), rows.shape[1])
    for block, mean in zip(blocks, found, strict=True):
        mean.copy_(block.mean(0, dtype=SUM_DTYPE[rows.dtype]))
    return found


def _messages(rows: Tensor, counts: Int64Array) -> list[Tensor]:
    """The rows of each message that is not empty."""
    return list(rows.split([int(count) for count in counts if count]))


def _one_each(counts: RowCounts) -> RowCounts:
    """A row for each message that is not empty."""
    send, receive = ((each > 0).astype(np.int64) for each in (counts.send, counts.recv))
    return RowCounts(send, receive, min(counts.largest, 1))
