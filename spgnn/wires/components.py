"""Some columns of each row, drawn anew in each step."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange import Flight, Route, Step
from spgnn.exchange.wire import Moved
from spgnn.wires.base import Layer
from spgnn.wires.draws import Pairs, drawn
from spgnn.wires.errors import squared_norm
from spgnn.wires.flights import Then
from spgnn.wires.pool import Pool

# Rows whose columns are looked up at a time: their numbers stay in cache.
_BLOCK = 4096


class Components(Layer):
    """Of the f columns of each row, k are sent, as f/k of them; the others arrive as zeros.

    Variable-rate compression (VARCO, Cerviño et al., 2024): the share of columns may change from
    epoch to epoch. A row has k neighbours in an order of the columns that is drawn in each step,
    from a place on that is drawn of its name; so each column is among them with probability k/f. A
    product and its adjoint have the same columns. Both ends know them: no numbers travel.

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
        """Send the columns that are drawn; whatever is not among them is zero."""
        width = rows.shape[1]
        count = self._count(width, step)
        if count == width:
            return self.inner.begin(rows, out, route, comm, step)
        sent, landing = (
            self._pool.take(len(each), count, each.dtype, each.device) for each in (rows, out)
        )
        key = self.setting.shared_key(step, "columns")
        windows = Windows(key, width, count, rows.device)
        leaving, arriving = windows.of(self._pairs.of(route, step)).split([len(rows), len(out)])
        for block, columns in windows.blocks(leaving):
            torch.gather(rows[block], 1, columns, out=sent[block])
        scale = width / count
        if self.setting.errors.measured(step.epoch):
            whole, kept = squared_norm(rows), squared_norm(sent)
            made = whole - kept + (scale - 1) ** 2 * kept
            account = self.setting.errors.account("components", step, rows.device)
            account.add_(torch.stack((made, whole)))
        sent *= scale
        flight = self.inner.begin(sent, landing, route, comm, step)

        def spread() -> None:
            out.zero_()
            for block, columns in windows.blocks(arriving):
                out[block].scatter_(1, columns, landing[block])
            self._pool.give(sent, landing)

        return Then(flight, spread)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """Of the columns that are sent."""
        return self.inner.bytes(route, self._count(width, step), dtype, step)

    def _count(self, width: int, step: Step) -> int:
        share = self.setting.dials.components_at(step.epoch)
        return min(width, max(1, ceil(share * width)))


class Windows:
    """Columns of each row of one step: neighbours in an order of all columns.

    Parameters
    ----------
    key : int
    width, count : int
        How many columns there are, and how many of them are drawn.
    device : torch.device
    """

    def __init__(self, key: int, width: int, count: int, device: torch.device) -> None:
        self._key, self._width = key, width
        numbers = torch.arange(width, device=device)
        order = drawn(numbers, ~key % 2**64).argsort(stable=True)
        self._columns = order[(numbers[:, None] + numbers[:count]) % width]

    def of(self, names: Tensor) -> Tensor:
        """The window of each row, int64 [rows]."""
        return drawn(names, self._key).remainder_(self._width)

    def blocks(self, windows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Some rows at a time, and their columns, int64 [rows, count]."""
        for first in range(0, len(windows), _BLOCK):
            block = slice(first, first + _BLOCK)
            yield block, self._columns[windows[block]]
