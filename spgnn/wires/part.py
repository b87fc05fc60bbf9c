"""Some of the rows of an exchange, which travel without the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import RowCounts
from spgnn.exchange import Route
from spgnn.layout import Int64Array


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the rows of an exchange.

    Attributes
    ----------
    sent, received : Tensor int64
        Their numbers, rising.
    route : Route
        Of these alone.
    """

    sent: Tensor
    received: Tensor
    route: Route

    @classmethod
    def where(cls, route: Route, sent: Tensor, received: Tensor) -> Part:
        """Those that are marked.

        Parameters
        ----------
        route : Route
        sent, received : Tensor bool [rows]
        """
        leaving, arriving = sent.nonzero()[:, 0], received.nonzero()[:, 0]
        counts = route.counts
        send, receive = _of_peers(leaving, counts.send), _of_peers(arriving, counts.recv)
        fewer = RowCounts(send, receive, counts.largest)
        return cls(leaving, arriving, route.taken(leaving, arriving, fewer))


def _of_peers(rows: Tensor, counts: Int64Array) -> Int64Array:
    """How many of some rows, numbers rising, lie in the stretch of each peer."""
    ends = torch.from_numpy(np.cumsum(counts)).to(rows.device)
    before = torch.searchsorted(rows, ends).cpu().numpy()
    return np.diff(before, prepend=0)
