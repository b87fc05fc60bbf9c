"""A sample of the rows, drawn anew in each step."""

from __future__ import annotations

from math import ceil, sqrt

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.exchange import Flight, Route, Step
from spgnn.exchange.wire import Moved
from spgnn.sparse import SUM_DTYPE
from spgnn.wires.base import Layer
from spgnn.wires.draws import Pairs, chosen
from spgnn.wires.flights import Then
from spgnn.wires.part import Part
from spgnn.wires.pool import Pool


class Sampled(Layer):
    """Each row is sent with probability p, as 1/p of it; the others are zeros where they arrive.

    Boundary sampling (BNS-GCN, Wan et al., MLSys'22). A product and its adjoint have the same
    sample and the same factor, so that one is the transpose of the other; both are unbiased. Both
    ends draw by names of the row and of its receiver: no numbers of rows travel. The receivers of a
    row draw each for themselves, and so do the products of an epoch.

    Parameters
    ----------
    inner : Wire
    setting : Setting
    """

    def _forget(self) -> None:
        self._pairs = Pairs()
        self._pool = Pool()

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Send the sample; whatever is not in it is zero at once."""
        share = self.setting.dials.sampling_at(step.epoch)
        if share == 1:
            return self.inner.begin(rows, out, route, comm, step)
        part = self._drawn(route, share, step)
        sent, landing = (
            self._room(numbers, each, share)
            for numbers, each in ((part.sent, rows), (part.received, out))
        )
        dtype, device = SUM_DTYPE[rows.dtype], rows.device
        scale = torch.full(part.sent.shape, 1 / share, dtype=dtype, device=device)
        kernels.gather_rows(rows, part.sent, scale=scale, out=sent)
        if self.setting.errors.measured(step.epoch):
            self._account(rows, part, share, step)
        flight = self.inner.begin(sent, landing, part.route, comm, step)

        def spread() -> None:
            kernels.scatter_add_rows(out.zero_(), part.received, landing)
            self._pool.give(sent, landing)

        return Then(flight, spread)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """Of the rows in the sample."""
        share = self.setting.dials.sampling_at(step.epoch)
        if share < 1:
            route = self._drawn(route, share, step).route
        return self.inner.bytes(route, width, dtype, step)

    def _drawn(self, route: Route, share: float, step: Step) -> Part:
        key = self.setting.shared_key(step, "sample")
        marks = chosen(self._pairs.of(route, step), key, share)
        return Part.where(route, marks[: route.counts.sent], marks[route.counts.sent :])

    def _room(self, numbers: Tensor, of: Tensor, share: float) -> Tensor:
        """A buffer for the rows of a sample, with room for most others."""
        expected = share * len(of)
        rows = min(len(of), ceil(expected + 4 * sqrt(expected)))
        taken = self._pool.take(max(rows, len(numbers)), of.shape[1], of.dtype, of.device)
        return taken[: len(numbers)]

    def _account(self, rows: Tensor, part: Part, share: float, step: Step) -> None:
        """Add up the error that is made."""
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
        whole, sent = norms.sum(), norms[part.sent].sum()
        made = whole - sent + (1 / share - 1) ** 2 * sent
        account = self.setting.errors.account("sampling", step, rows.device)
        account.add_(torch.stack((made, whole)))
