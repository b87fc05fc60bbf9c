"""Effect of approximate codecs on the traffic of a plan, over a whole run.

Bits, delays and bins are functions of the epoch, so the bytes of a row are known for every epoch in
advance; an epoch is priced at the mean over the run. A sample of rows is priced at the share that
is drawn. Codecs that skip unchanged rows depend on values, and cannot be priced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from spgnn import kernels
from spgnn.errors import InputError
from spgnn.exchange import Codec
from spgnn.exchange.codec import LEAST_WITH_FEEDBACK
from spgnn.layout import Int64Array
from spgnn.plan.machine import Float64Array


@dataclass(frozen=True)
class Wired:
    """Codec of a run.

    Attributes
    ----------
    asked : Codec
    epochs : int
    """

    asked: Codec
    epochs: int

    @classmethod
    def of(cls, asked: Codec, epochs: int) -> Wired | None:
        """The codec of a run; ``None`` if rows are sent exactly.

        Raises
        ------
        InputError
            If the messages depend on values, which are not known in advance.
        """
        if asked.fresh:
            raise InputError(
                f"messages.fresh {asked.fresh}: what travels depends on values, so no plan can "
                "be priced; name an --algo, or take what a plan without it chooses"
            )
        return None if asked.exact else cls(asked, epochs)

    @property
    def of_weighed(self) -> Wired:
        """Of rows that attention weighs: without means."""
        return replace(self, asked=replace(self.asked, exact_means=False))

    @property
    def of_scores(self) -> Wired:
        """Codec of attention's messages other than rows: exact, not late, of the same sample."""
        asked, never = self.asked, self.asked.delay is None
        exact = Codec(sampling=asked.sampling, exact_last=asked.exact_last, exact_means=False)
        return replace(self, asked=replace(exact, delay=None) if never else exact)

    @property
    def of_late_scores(self) -> Wired:
        """Codec of the scores of late rows: exact, and as late as the rows."""
        asked = replace(self.asked, bits=((0, 32),), feedback=False)
        return replace(self, asked=asked)

    def bytes_of(self, rows: Int64Array, width: Any, dtype: torch.dtype) -> Float64Array:
        """Of so many rows in a mean epoch; of a width each, or of one for all."""
        widths = np.asarray(width)
        known = {w: _row_bytes(self, w, dtype.itemsize) for w in set(widths.ravel().tolist())}
        each = np.array([known[w] for w in widths.ravel().tolist()]).reshape(widths.shape)
        return np.asarray(rows * each, np.float64)

    def centring(self, messages: Int64Array, width: Any, dtype: torch.dtype) -> Float64Array:
        """Bytes of the means of so many messages in a mean epoch; `width` is one or int64 [P]."""
        return np.asarray(messages * self._centring * width * dtype.itemsize, np.float64)

    @property
    def sending(self) -> float:
        """Number of messages to a peer in a mean epoch."""
        return self._centring + self._carrying

    @property
    def _carrying(self) -> float:
        """Share of epochs in which rows are sent."""
        if self.asked.delay is not None:
            return 1.0
        codec = replace(self.asked, epochs=self.epochs)
        return sum(map(codec.is_exact, range(self.epochs))) / self.epochs

    @property
    def _centring(self) -> float:
        """Share of epochs in which means are sent."""
        if not self.asked.sends_means:
            return 0.0
        codec = replace(self.asked, epochs=self.epochs)
        return 1 - sum(map(codec.passes, range(self.epochs))) / self.epochs

    @property
    def held(self) -> tuple[float, float, float]:
        """Copies kept of rows: of those received, of those sent, and of both in transit."""
        late = self.asked.delay or 0
        return float(late > 0), float(self.asked.feedback), late / self.asked.bins


@cache
def _row_bytes(wired: Wired, width: int, itemsize: int) -> float:
    """Mean over all epochs of the bytes of a row of so many columns."""
    asked, total = wired.asked, 0.0
    codec = replace(asked, epochs=wired.epochs)
    for epoch in range(wired.epochs if width else 0):
        if asked.delay is None and not codec.is_exact(epoch):
            continue
        bits = max(codec.bits_at(epoch), LEAST_WITH_FEEDBACK if asked.feedback else 1)
        packed = bits < min(32, 8 * itemsize)
        nbytes = kernels.packed_bytes(width, bits) if packed else width * itemsize
        share = codec.sampling_at(epoch)
        # The first epoch of a delay is exact; its bins take turns from then on.
        late = bool(epoch and asked.delay and codec.delay_at(epoch))
        total += nbytes * share / (asked.bins if late else 1)
    return total / wired.epochs
