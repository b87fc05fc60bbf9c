"""Rows in fewer bits, each in as many as its error is worth."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator, RowCounts
from spgnn.exchange import Flight, Route, Step
from spgnn.exchange.wire import Moved
from spgnn.layout import Int64Array
from spgnn.wires.approximation import LEAST_WITH_FEEDBACK
from spgnn.wires.base import Setting, State, line_name
from spgnn.wires.flights import Landed, Then
from spgnn.wires.quantised import Quantised
from spgnn.wires.sharing import OF_BFLOAT16, PLAIN, WIDTHS, Limits, chosen
from spgnn.wires.weights import Weights


@dataclass(eq=False)
class Line:
    """What both ends know of one product of each epoch, in one direction.

    Attributes
    ----------
    bits : int
        On average, over the rows of each sender.
    sent, received : Tensor uint8 [rows]
        Bits of each row.
    told : Flight
        After which `received` is known.
    moved : (epoch, bytes to and from each peer), or None
        Of the last step.
    """

    bits: int
    sent: Tensor
    received: Tensor
    told: Flight
    moved: tuple[int, Moved] | None = None
    _counts: dict[int, RowCounts] = field(default_factory=dict)

    def counts(self, route: Route, width: int) -> RowCounts:
        """Bytes of packed rows to and from each peer."""
        if width not in self._counts:
            rows = route.counts
            self._counts[width] = RowCounts(
                _of_peers(self.sent, width, rows.send),
                _of_peers(self.received, width, rows.recv),
                rows.largest * max(kernels.packed_bytes(width, b) for b in (WIDTHS[-1], PLAIN)),
            )
        return self._counts[width]


class Adaptive(Quantised):
    """Each row has its own bits, together no more bytes than equal bits would take.

    A row has 1, 2, 4, 8 or 16 bits an element. Bits go where they take away most of the variance of
    what receivers make of the rows, for each byte that they cost (AdaQP, Wan et al., MLSys'23). A
    row of f columns and range r has the variance w·f·s²/6, where s = r/(2ᵇ − 1), and w are the
    squared coefficients that it meets; with 16 bits, it depends on the norm (`sharing.py`).

    The bytes are those of each rank, or of what decides how long an exchange takes: the largest
    message between two ranks, or the rank that sends most. Smaller messages may then grow as large.

    Ranges are those of the rows of an epoch. The bits chosen of them are told to receivers
    meanwhile, a byte for each row, and hold from the next epoch on. The first epoch has equal bits,
    and so have all with 1 bit, or 16 and more.

    Parameters
    ----------
    setting : Setting
    weights : Weights
        Of the hop.
    """

    def __init__(self, setting: Setting, weights: Weights) -> None:
        super().__init__(setting)
        self._weights = weights
        self._widths = tuple(b for b in WIDTHS if b >= LEAST_WITH_FEEDBACK or not self._feedback)

    def _forget(self) -> None:
        super()._forget()
        self._lines: dict[str, Line] = {}

    remembers = True

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Pack rows in their bits, and choose these anew now and then."""
        width, bits = rows.shape[1], self._shared(step, rows.dtype)
        if bits is None or not width:
            return super().begin(rows, out, route, comm, step)
        name, line = line_name(step), self._line(route, step, bits)
        moved = self._moved(route, width, rows.dtype, step, line)
        if line is None:
            flight = super().begin(rows, out, route, comm, step)
        else:
            flight = self._begin_in_bits(line, rows, out, route=route, comm=comm, step=step)
        if self._chooses(line, step):
            in_codes, plain = self._variances(rows, step)
            limits = self._limits(route, kernels.packed_bytes(width, bits), step)
            widths = chosen(in_codes, width, limits, self._widths, plain=plain)
            line = self._lines[name] = self._told(widths, bits, route, comm)
        assert line is not None
        line.moved = step.epoch, moved
        return flight

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """Packed rows, and what is told of them; of steps to come, as things stand."""
        bits = self._shared(step, dtype)
        if bits is None or not width:
            return super().bytes(route, width, dtype, step)
        last = self._lines.get(line_name(step))
        if last is not None and last.moved is not None and last.moved[0] == step.epoch:
            return last.moved[1]
        return self._moved(route, width, dtype, step, self._line(route, step, bits))

    def state(self) -> State:
        """What was lost of each row, and the bits of each. Collective."""
        found = super().state()
        for name, line in self._lines.items():
            line.told.wait()
            found[f"bits.{name}"] = torch.tensor(line.bits)
            found[f"bits.{name}.sent"], found[f"bits.{name}.received"] = line.sent, line.received
        return found

    def load(self, state: State) -> None:
        """Go on from a state."""
        super().load({name: kept for name, kept in state.items() if name.startswith("lost.")})
        self._lines = {}
        for key in state:
            kind, _, name = key.partition(".")
            if kind == "bits" and f"{key}.sent" in state:
                sent, received = state[f"{key}.sent"], state[f"{key}.received"]
                self._lines[name] = Line(int(state[key]), sent, received, Landed())

    def land(self) -> None:
        """Wait for all rows that are under way, and what is told of them. Collective."""
        for line in self._lines.values():
            line.told.wait()
        super().land()

    def _shared(self, step: Step, dtype: torch.dtype) -> int | None:
        """Bits to share out; ``None`` where all rows have equally many."""
        bits = self._bits(step, dtype)
        return bits if bits is not None and self._widths[0] < bits < PLAIN else None

    def _line(self, route: Route, step: Step, bits: int) -> Line | None:
        """The line of a product, if there is one of this kind, and its bits are known."""
        line = self._lines.get(line_name(step))
        if line is None or line.bits != bits or len(line.sent) != route.counts.sent:
            return None
        line.told.wait()
        return line

    def _chooses(self, line: Line | None, step: Step) -> bool:
        """Whether bits are chosen in this step; all ranks agree."""
        return line is None or step.epoch % self.setting.dials.asked.adaptive == 0

    def _moved(
        self, route: Route, width: int, dtype: torch.dtype, step: Step, line: Line | None
    ) -> Moved:
        if line is None:
            sent, received = super().bytes(route, width, dtype, step)
        else:
            counts = line.counts(route, width)
            sent, received = counts.send, counts.recv
        if self._chooses(line, step):
            return sent + route.counts.send, received + route.counts.recv
        return sent, received

    def _variances(self, rows: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """What the error of each row would do with one bit, and with 16, float64 [rows] both."""
        weights = self._weights.adjoint if step.adjoint else self._weights.forward
        weights = weights.to(rows.device)
        scale = (rows.amax(dim=1) - rows.amin(dim=1)).double()
        norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        in_codes = scale.square_().mul_(weights).mul_(rows.shape[1] / 6)
        return in_codes, norm.square_().mul_(weights).mul_(OF_BFLOAT16)

    def _limits(self, route: Route, row_bytes: int, step: Step) -> Limits:
        """Which rows share how many bytes."""
        counts, limit = route.counts, self.setting.dials.asked.adaptive_limit
        if limit == "pair":
            return Limits(counts.send, np.full_like(counts.send, counts.largest * row_bytes))
        most = self._weights.most[step.adjoint] if limit == "rank" else counts.sent
        return Limits(np.array([counts.sent]), np.array([most * row_bytes]))

    def _begin_in_bits(
        self,
        line: Line,
        rows: Tensor,
        out: Tensor,
        *,
        route: Route,
        comm: Communicator,
        step: Step,
    ) -> Flight:
        """One all-to-allv of packed rows, as long as they happen to be."""
        width, counts = rows.shape[1], line.counts(route, rows.shape[1])
        equal = kernels.packed_bytes(width, line.bits)
        # With room for what they usually are: the next choice will be another one.
        packed, landing = (
            self._pool.take(1, max(n, len(each) * equal), torch.uint8, each.device)[0, :n]
            for n, each in ((counts.sent, rows), (counts.received, out))
        )
        self._pack(rows, line.sent, packed, route, step, by=comm.job.rank if step.adjoint else 0)
        flight, bits = comm.alltoallv(packed, landing, counts), line.received

        def unpack() -> None:
            kernels.dequantise_rows(landing, bits, width, out.dtype, out=out)
            self._pool.give(packed, landing)

        return Then(flight, unpack)

    def _told(self, widths: Tensor, bits: int, route: Route, comm: Communicator) -> Line:
        """Tell receivers the bits of rows; nobody waits for that yet."""
        received = widths.new_empty(route.counts.received)
        flight = comm.alltoallv(widths[:, None], received[:, None], route.counts)
        return Line(bits, widths, received, flight)


def _of_peers(bits: Tensor, width: int, counts: Int64Array) -> Int64Array:
    """Bytes of the packed rows of each peer."""
    sizes = torch.zeros(PLAIN + 1, dtype=torch.int64)
    for b in (*WIDTHS, PLAIN):
        sizes[b] = kernels.packed_bytes(width, b)
    before: Int64Array = np.zeros(len(bits) + 1, np.int64)
    np.cumsum(sizes[bits.cpu().long()].numpy(), out=before[1:])
    return np.diff(before[np.cumsum(counts)], prepend=0)
