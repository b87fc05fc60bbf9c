"""Rows in fewer bits: rounded at random between the least and the largest of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.exchange import Exact, Flight, Route, Step
from spgnn.exchange.wire import Moved
from spgnn.wires.approximation import LEAST_WITH_FEEDBACK
from spgnn.wires.base import Layer, Setting, State, line_name
from spgnn.wires.flights import Then
from spgnn.wires.pool import Pool


class Quantised(Layer):
    """Rows of so many bits an element, each direction rounded by itself (Sylvie, EC-Graph, AdaQP).

    A row's least element and its step are rounded outward to bfloat16, and these are what both ends
    use; so what arrives is unbiased. With feedback, what was lost of a row is added to the one that
    is sent in its place in the next epoch (Seide et al., Interspeech'14), and rows are rounded to
    the nearest: no single one is unbiased then anyway.

    Parameters
    ----------
    setting : Setting
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(Exact(), setting)
        self._feedback = setting.dials.asked.feedback

    def _forget(self) -> None:
        self._residuals: dict[str, Tensor] = {}
        self._pool = Pool()

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether what was lost is kept."""
        return self._feedback

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Pack, and one all-to-allv of bytes; unpacked when they are waited for."""
        if not rows.is_floating_point():
            raise InputError(f"rows of {rows.dtype} cannot be sent in fewer bits: use float32")
        bits = self._bits(step, rows.dtype)
        if bits is None or not rows.shape[1]:
            return self.inner.begin(rows, out, route, comm, step)
        packed_width = kernels.packed_bytes(rows.shape[1], bits)
        packed, landing = (
            self._pool.take(len(each), packed_width, torch.uint8, rows.device)
            for each in (rows, out)
        )
        self._pack(rows, bits, packed, route, step, by=comm.job.rank if step.adjoint else 0)
        flight = comm.alltoallv(packed, landing, route.counts)

        def unpack() -> None:
            kernels.dequantise_rows(landing, bits, out.shape[1], out.dtype, out=out)
            self._pool.give(packed, landing)

        return Then(flight, unpack)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """Packed rows."""
        bits = self._bits(step, dtype)
        if bits is None or not width:
            return self.inner.bytes(route, width, dtype, step)
        row_bytes = kernels.packed_bytes(width, bits)
        return route.counts.send * row_bytes, route.counts.recv * row_bytes

    def state(self) -> State:
        """What was lost of each row."""
        return {f"lost.{name}": tensor for name, tensor in self._residuals.items()}

    def load(self, state: State) -> None:
        """Go on from a state."""
        self._residuals = {name.removeprefix("lost."): tensor for name, tensor in state.items()}

    def _bits(self, step: Step, dtype: torch.dtype) -> int | None:
        """Bits of an element, or ``None`` where rows have no more anyway."""
        bits = self.setting.dials.bits_at(step.epoch)
        if self._feedback:
            bits = max(bits, LEAST_WITH_FEEDBACK)
        return bits if bits < min(32, 8 * dtype.itemsize) else None

    def _pack(
        self, rows: Tensor, bits: int | Tensor, out: Tensor, route: Route, step: Step, *, by: int
    ) -> None:
        """Write rows in fewer bits; what is lost of them is kept, with feedback, and reported.

        Ranks that send gradients of the same vertex must not round them alike: `by` tells them
        apart.
        """
        assert route.names is not None
        errors, kept = self.setting.errors, self._kept(rows, route, step)
        some = None if route.places is None else route.places[0]
        residual = kept if kept is None or some is None else kernels.gather_rows(kept, some)
        kernels.quantise_rows(
            rows,
            bits,
            route.names.sent,
            self.setting.key(step, f"round {by}"),
            # Of what is added again, a code to the nearest loses half as much as one at random.
            stochastic=not self._feedback,
            residual=residual,
            lost=errors.account("rounding", step, rows.device)
            if errors.measured(step.epoch)
            else None,
            out=out,
        )
        if kept is not None and residual is not None and some is not None:
            kept.index_copy_(0, some, residual)

    def _kept(self, rows: Tensor, route: Route, step: Step) -> Tensor | None:
        """What was lost of all rows of the exchange, whichever of them are sent now."""
        if not self._feedback:
            return None
        name, count = line_name(step), (route.whole or route).counts.sent
        kept = self._residuals.get(name)
        if kept is None or kept.shape != (count, rows.shape[1]) or kept.dtype != rows.dtype:
            kept = self._residuals[name] = rows.new_zeros(count, rows.shape[1])
        return kept
