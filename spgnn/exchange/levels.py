"""What of a plan's traffic crosses between nodes, and what stays inside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch

from spgnn.exchange.plan import Plan
from spgnn.exchange.traffic import Carried, Traffic
from spgnn.layout import Axes

Level = Literal["inside", "between"]


def by_level(
    plan: Plan,
    axes: Axes,
    rank: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    *,
    node_size: int,
    adjoint: bool = False,
) -> dict[Level, Traffic]:
    """What one product moves inside nodes, and between them; of any scheme.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    axes : Axes
        Of the scheme that made it.
    rank : int
    width, dtype, adjoint
        As for :meth:`Plan.traffic`.
    node_size : int
        So many neighbouring ranks are a node.
    """
    carried = (moved.carried(dtype) for moved in plan.messages(width, adjoint=adjoint))
    return carried_by_level(carried, axes, rank, node_size=node_size)


def carried_by_level(
    exchanges: Iterable[Carried], axes: Axes, rank: int, *, node_size: int
) -> dict[Level, Traffic]:
    """What exchanges move inside nodes, and between them.

    Parameters
    ----------
    exchanges : iterable of Carried
        Of this rank.
    axes, rank, node_size
        As for :func:`by_level`.
    """
    found: dict[Level, Traffic] = {"inside": Traffic(), "between": Traffic()}
    for moved in exchanges:
        away = np.array(axes.group(moved.axis, rank)) // node_size != rank // node_size
        found["inside"] += moved.traffic(~away)
        found["between"] += moved.traffic(away)
    return found
