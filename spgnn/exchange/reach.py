"""Reach: a plan that makes fewer rows needs fewer rows of the layer before it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spgnn.blocks import keep_columns
from spgnn.exchange.plan import Plan, Stage


def narrowed(plan: Plan, kept: Tensor) -> tuple[Plan, Tensor]:
    """The same plan without the columns that it neither multiplies nor sends. Pure.

    What other ranks ask of this one is in its send matrices, so the columns that are left are what
    *any* rank needs of this one's rows.

    Parameters
    ----------
    plan : Plan
    kept : Tensor int64
        Columns that stay in any case.

    Returns
    -------
    plan : Plan
    columns : Tensor int64 [columns left]
        Which ones they are, rising.
    """
    stage = plan.stages[0]
    if not isinstance(stage, Stage):
        return plan, torch.arange(plan.shape[1])
    used = torch.zeros(plan.shape[1], dtype=torch.bool)
    used[kept] = True
    for block in (stage.local, *(hop.send for hop in stage.hops)):
        used[block.indices.long()] = True
    columns = used.nonzero()[:, 0]
    if len(columns) == len(used):
        return plan, columns
    hops = tuple(replace(hop, send=keep_columns(hop.send, columns)) for hop in stage.hops)
    first = replace(stage, local=keep_columns(stage.local, columns), hops=hops)
    return Plan((first, *plan.stages[1:])), columns
