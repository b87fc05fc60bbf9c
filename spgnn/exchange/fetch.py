"""Rows of H that a rank lists by their numbers, wherever they are: a scheme without a matrix."""

from __future__ import annotations

import numpy as np

from spgnn.comm import RowCounts
from spgnn.exchange.inspect import Ask, demand
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.schemes import Scheme
from spgnn.exchange.traffic import Carried
from spgnn.layout import EVERYONE, RowLayout
from spgnn.sparse import CSR

# Bytes to ask for rows: how many of each peer (two int64), and the number of each row (int32).
COUNTS, COLUMN = 16, 4


def fetch(wanted: CSR, layout: RowLayout, rank: int) -> Scheme[Plan]:
    """The plan that makes listed rows of all ranks; what is listed twice travels once.

    Parameters
    ----------
    wanted : CSR [listed, n]
        A selection of rows, by global number.
    layout : RowLayout
        Which rank owns which rows.
    rank : int
    """
    L, R, asked = demand(wanted, layout, range(layout.parts), rank, "column")
    traded = yield Ask(EVERYONE, asked, int(layout.sizes[rank]))
    if layout.parts == 1:
        return Plan((Stage(L),))
    return Plan((Stage(L, R, (Hop(EVERYONE, *traded),)),))


def asking(counts: RowCounts, rank: int) -> Carried:
    """The bytes of the demands that are traded before rows are fetched.

    Parameters
    ----------
    counts : RowCounts
        Rows to and from each rank, once they travel.
    rank : int
    """
    each = COUNTS * (np.arange(len(counts.send)) != rank)
    return Carried(EVERYONE, each + COLUMN * counts.recv, each + COLUMN * counts.send)
