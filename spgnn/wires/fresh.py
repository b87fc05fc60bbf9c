"""Rows are sent only if they have moved since they were last sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator, RowCounts
from spgnn.exchange import Flight, Route, Step
from spgnn.exchange.wire import Moved
from spgnn.layout import Int64Array
from spgnn.wires.base import Layer, State, line_name
from spgnn.wires.errors import squared_norm
from spgnn.wires.flights import Then
from spgnn.wires.part import Part
from spgnn.wires.pool import Pool

# Rows that are compared at a time: what they differ by stays in cache.
_BLOCK = 1024


@dataclass(eq=False)
class Line:
    """What both ends keep of one product of each epoch, in one direction.

    Attributes
    ----------
    sent : Tensor [rows to send, f]
        Each as it was when it was last sent.
    held : Tensor [received rows, f]
        Each as it last arrived.
    """

    sent: Tensor
    held: Tensor


class Fresh(Layer):
    """Each row is sent only if it is farther than a share of its norm from what was last sent.

    As in Sancus (Peng et al., PVLDB 15, 2022) and CDFGNN (2024), but row by row, in both
    directions. Receivers are told by a bit for each row, and use what they have in the place of the
    others. The first rows of a line are all sent. The bits are waited for at once, for only they
    say how many rows will come; the rows travel meanwhile, as those of other wires do.

    Where rows are sent in fewer bits, what is kept here is the row before that: a row moves, or
    does not, whatever was lost of it.

    Parameters
    ----------
    inner : Wire
    setting : Setting
    """

    remembers = True

    def _forget(self) -> None:
        self._lines: dict[str, Line] = {}
        self._moved: dict[str, Route | None] = {}
        self._pool = Pool()

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Send the rows that have moved; `out` becomes all of them, as they are known."""
        name, line = line_name(step), self._line(rows, out, step)
        if line is None:
            self._moved[name] = None
            flight = self.inner.begin(rows, out, route, comm, step)
            if self.setting.dials.is_exact(step.epoch):
                return flight
            line = self._lines[name] = Line(rows.clone(), torch.empty_like(out))
            held = line.held
            return Then(flight, lambda: held.copy_(out))
        sends = self._moves(rows, line, step)
        part = Part.where(route, sends, told(sends, route.counts, comm))
        self._moved[name] = part.route
        # Buffers with room for all, since nobody knows how many will move in other steps.
        sent, landing = (
            self._pool.take(len(each), each.shape[1], each.dtype, each.device)[: len(numbers)]
            for each, numbers in ((rows, part.sent), (out, part.received))
        )
        kernels.gather_rows(rows, part.sent, out=sent)
        line.sent.index_copy_(0, part.sent, sent)
        flight = self.inner.begin(sent, landing, part.route, comm, step)

        def renew() -> None:
            line.held.index_copy_(0, part.received, landing)
            out.copy_(line.held)
            self._pool.give(sent, landing)

        return Then(flight, renew)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """Bits and rows of the last step of the line; all rows before there was one."""
        last = self._moved.get(line_name(step))
        if last is None or self.setting.dials.is_exact(step.epoch):
            return self.inner.bytes(route, width, dtype, step)
        sent, received = self.inner.bytes(last, width, dtype, step)
        bits = bytes_of_bits(route.counts)
        return sent + bits.send, received + bits.recv

    def state(self) -> State:
        """What was last sent, and what is held."""
        found = super().state()
        for name, line in self._lines.items():
            found[f"{name}.sent"], found[f"{name}.held"] = line.sent, line.held
        return found

    def load(self, state: State) -> None:
        """Go on from a state."""
        super().load(state)
        self._lines = {}
        for name in [key.removesuffix(".sent") for key in state if key.endswith(".sent")]:
            if not name.startswith("inner."):
                self._lines[name] = Line(state[f"{name}.sent"], state[f"{name}.held"])

    def _line(self, rows: Tensor, out: Tensor, step: Step) -> Line | None:
        """The line of a product, unless all of its rows are to be sent."""
        name = line_name(step)
        line = self._lines.get(name)
        if line is not None:
            exact = self.setting.dials.is_exact(step.epoch)
            if exact or line.held.shape != out.shape or line.held.dtype != out.dtype:
                self._lines.pop(name)
                return None
        return line

    def _moves(self, rows: Tensor, line: Line, step: Step) -> Tensor:
        """Which rows are to be sent, bool [rows]: also those of which nothing can be said."""
        distance, norm = rows.new_empty(2, len(rows))
        for first in range(0, len(rows), _BLOCK):
            block = slice(first, first + _BLOCK)
            away = rows[block] - line.sent[block]
            torch.linalg.vector_norm(away, dim=1, out=distance[block])
            torch.linalg.vector_norm(rows[block], dim=1, out=norm[block])
        stays: Tensor = distance <= self.setting.dials.asked.fresh * norm
        if self.setting.errors.measured(step.epoch):
            account = self.setting.errors.account("fresh", step, rows.device)
            stale = distance.double().square_().where(stays, 0.0).sum()
            account.add_(torch.stack((stale, squared_norm(rows))))
        return ~stays


def told(marks: Tensor, counts: RowCounts, comm: Communicator) -> Tensor:
    """What the others say of their rows, where everyone says of each of his yes or no. Collective.

    Parameters
    ----------
    marks : Tensor bool [rows to send]
    counts : RowCounts
        Of the rows.
    comm : Communicator

    Returns
    -------
    Tensor bool [rows received]
    """
    bits = bytes_of_bits(counts)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=marks.device)
    spread = torch.zeros(8 * bits.sent, dtype=torch.uint8, device=marks.device)
    spread[_places(counts.send, bits.send).to(marks.device)] = marks.to(torch.uint8)
    packed = (spread.view(-1, 8) * weights).sum(dim=1, keepdim=True, dtype=torch.uint8)
    landing = packed.new_empty(bits.received, 1)
    comm.alltoallv(packed, landing, bits).wait()
    arrived = (landing & weights).view(-1).bool()
    return arrived[_places(counts.recv, bits.recv).to(marks.device)]


def bytes_of_bits(counts: RowCounts) -> RowCounts:
    """Bytes to and from each peer, of a bit for each row."""
    return RowCounts((counts.send + 7) // 8, (counts.recv + 7) // 8, (counts.largest + 7) // 8)


def _places(rows: Int64Array, nbytes: Int64Array) -> Tensor:
    """Where the bit of each row lies, where those of each peer begin with a byte."""
    begins, filled = np.cumsum(rows) - rows, 8 * (np.cumsum(nbytes) - nbytes)
    return torch.from_numpy(np.repeat(filled - begins, rows) + np.arange(int(rows.sum())))
