"""Rows of H that a rank lists by their numbers, wherever they are: a scheme without a matrix."""

from __future__ import annotations

from spgnn.exchange.inspect import Ask, demand
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.schemes import Scheme
from spgnn.layout import EVERYONE, RowLayout
from spgnn.sparse import CSR


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
