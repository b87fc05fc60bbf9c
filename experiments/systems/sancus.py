"""Rows that have hardly moved are not sent again, as in Sancus (Peng et al., PVLDB 15, 2022).

Sancus decides for all rows of a rank at once, which it then broadcasts or not; here each row is
compared for itself, and so is each gradient. A bound of 0 is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator, RowCounts
from spgnn.config import Extension, TrainConfig
from spgnn.errors import InputError, check_number
from spgnn.exchange import (
    ByteCounts,
    Codec,
    CodecLayer,
    Handle,
    Route,
    Step,
    Then,
    kind_of,
    squared_norm,
)
from spgnn.layout import Int64Array
from spgnn.options import key


@dataclass(frozen=True)
class Skipping(Extension):
    """Key of the training command."""

    section = "messages"

    fresh: Annotated[
        float, key("send only rows that moved by more than this share of their norm", "BOUND")
    ] = 0.0

    def codec(self, config: TrainConfig, codec: Codec) -> Codec:
        """The codec that skips rows, too."""
        if not self.fresh:
            return codec
        if codec.samples or codec.bins > 1:
            other = "--boundary-sampling" if codec.samples else "--delay-bins"
            raise InputError(f"messages.fresh compares all rows: it cannot be had with {other}")
        return replace(codec, extra=(*codec.extra, ("fresh", self.fresh)))


class SkipUnchanged(CodecLayer):
    """Each row is sent only if it is farther than a share of its norm from what was last sent."""

    remembers = reads_values = True
    BLOCK = 1024  # rows that a CPU compares at a time: their differences stay in cache

    @classmethod
    def check(cls, argument: Any, codec: Codec) -> None:
        """Refuse what is no share, and codecs that leave rows out."""
        check_number("fresh", argument, 0.0, math.inf)
        for other, is_set in {"sampling": codec.samples, "bins": codec.bins > 1}.items():
            if is_set:
                raise InputError(f"fresh compares all rows: it cannot be had with {other}")

    def forget(self) -> None:
        super().forget()
        # By product, of the last step; each row as it was last sent, and arrived, is in `saved`.
        self._moved: dict[str, Route | None] = {}

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Send the rows that have moved; `out` becomes all of them, as they are known."""
        last, theirs = (self.saved.get(f"{step.name}.{side}") for side in ("sent", "known"))
        exact = self.setting.codec.is_exact(step.epoch)
        other = theirs is None or theirs.shape != out.shape or theirs.dtype != out.dtype
        if last is None or theirs is None or exact or other:
            self._moved[step.name] = None
            handle = self.inner.begin(rows, out, route, comm, step)
            if exact:
                for side in ("sent", "known"):
                    self.saved.pop(f"{step.name}.{side}", None)
                return handle
            fresh = torch.empty_like(out)
            self.saved |= {f"{step.name}.sent": rows.clone(), f"{step.name}.known": fresh}
            return Then(handle, lambda: fresh.copy_(out))
        moves = self._moves(rows, last, step)
        subset = route.marked(moves, swap_bits(moves, route, comm))
        self._moved[step.name] = subset.route
        # Buffers with room for all, since nobody knows how many will move in other steps.
        sent = self._pool.take(len(rows), *kind_of(rows))[: len(subset.sent)]
        arriving = self._pool.take(len(out), *kind_of(out))[: len(subset.received)]
        kernels.gather_rows(rows, subset.sent, out=sent)
        last.index_copy_(0, subset.sent, sent)
        handle = self.inner.begin(sent, arriving, subset.route, comm, step)

        def renew() -> None:
            theirs.index_copy_(0, subset.received, arriving)
            out.copy_(theirs)
            self._pool.give(sent, arriving)

        return Then(handle, renew)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """Bits and rows of the last step of the product; all rows before there was one."""
        last = self._moved.get(step.name)
        if last is None or self.setting.codec.is_exact(step.epoch):
            return self.inner.bytes(route, width, dtype, step)
        sent, received = self.inner.bytes(last, width, dtype, step)
        bits = bytes_of_bits(route.counts)
        return sent + bits.send, received + bits.recv

    def _moves(self, rows: Tensor, last: Tensor, step: Step) -> Tensor:
        """Rows to send, bool [rows]: also those whose distance is not a number."""
        distance, norm = rows.new_empty(2, len(rows))
        size = self.BLOCK if rows.device.type == "cpu" else max(1, len(rows))
        differences = self._pool.take(min(size, len(rows)), *kind_of(rows))
        for first in range(0, len(rows), size):
            block = slice(first, first + size)
            some = differences[: len(rows[block])]
            torch.sub(rows[block], last[block], out=some)
            torch.linalg.vector_norm(some, dim=1, out=distance[block])
            torch.linalg.vector_norm(rows[block], dim=1, out=norm[block])
        self._pool.give(differences)
        stays: Tensor = distance <= self.argument * norm
        if self.setting.errors.measured(step.epoch):
            stale = distance.double().square_().where(stays, 0.0).sum()
            account = self.setting.errors.account("fresh", step, rows.device)
            account.add_(torch.stack((stale, squared_norm(rows))))
        return ~stays


def swap_bits(marks: Tensor, route: Route, comm: Communicator) -> Tensor:
    """A yes or no for each row, bool [rows to send], to its receiver; theirs, bool [received]."""
    counts, bits = route.counts, bytes_of_bits(route.counts)
    to, from_ = (
        route.list_of(f"bits {way}", marks.device, partial(_places_of_bits, rows, nbytes))
        for way, rows, nbytes in (("to", counts.send, bits.send), ("from", counts.recv, bits.recv))
    )
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=marks.device)
    spread = torch.zeros(8 * bits.sent, dtype=torch.uint8, device=marks.device)
    spread[to] = marks.to(torch.uint8)
    packed = (spread.view(-1, 8) * weights).sum(dim=1, keepdim=True, dtype=torch.uint8)
    arriving = packed.new_empty(bits.received, 1)
    comm.alltoallv(packed, arriving, bits).wait()
    arrived = (arriving & weights).view(-1).bool()
    return arrived[from_]


def bytes_of_bits(counts: RowCounts) -> RowCounts:
    """Bytes to and from each peer, of a bit for each row."""
    return RowCounts((counts.send + 7) // 8, (counts.recv + 7) // 8, (counts.largest + 7) // 8)


def _places_of_bits(rows: Int64Array, nbytes: Int64Array) -> Tensor:
    """The place of each row's bit, where those of each peer begin with a byte."""
    begins, filled = np.cumsum(rows) - rows, 8 * (np.cumsum(nbytes) - nbytes)
    return torch.from_numpy(np.repeat(filled - begins, rows) + np.arange(int(rows.sum())))
