"""What of a plan's traffic crosses between nodes, and what stays inside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
import torch

from spgnn.exchange.plan import Plan
from spgnn.exchange.traffic import Messages, Priced, Traffic
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
    wires: Mapping[str, Priced] | None = None,
) -> dict[Level, Traffic]:
    """What one product moves inside nodes, and between them; of any scheme.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    axes : Axes
        Of the scheme that made it.
    rank : int
    width, dtype, adjoint, wires
        As for :meth:`Plan.traffic`.
    node_size : int
        So many neighbouring ranks are a node.
    """
    messages = plan.messages(width, adjoint=adjoint)
    return messages_by_level(messages, axes, rank, dtype, node_size=node_size, wires=wires)


def messages_by_level(
    messages: Iterable[Messages],
    axes: Axes,
    rank: int,
    dtype: torch.dtype = torch.float32,
    *,
    node_size: int,
    wires: Mapping[str, Priced] | None = None,
) -> dict[Level, Traffic]:
    """What exchanges move inside nodes, and between them.

    Parameters
    ----------
    messages : iterable of Messages
        Of this rank.
    axes, rank, dtype, node_size, wires
        As for :func:`by_level`.
    """
    found: dict[Level, Traffic] = {"inside": Traffic(), "between": Traffic()}
    for moved in messages:
        away = np.array(axes.group(moved.axis, rank)) // node_size != rank // node_size
        found["inside"] += moved.traffic(dtype, wires, ~away)
        found["between"] += moved.traffic(dtype, wires, away)
    return found
