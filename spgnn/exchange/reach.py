"""Reach: a plan that makes fewer rows needs fewer rows of the layer before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spgnn.exchange.plan import Plan, Stage
from spgnn.exchange.regroup import Joined
from spgnn.exchange.schemes import Scheme
from spgnn.exchange.turn import Turned
from spgnn.sparse import keep_columns


def narrowed(plan: Plan, kept: Tensor, most: float = 1.0) -> Scheme[tuple[Plan, Tensor]]:
    """The same plan without the columns that it neither multiplies nor sends.

    What other ranks ask of this one is in its send matrices, so the columns that are left are what
    *any* rank needs of this one's rows.

    Parameters
    ----------
    plan : Plan
    kept : Tensor int64
        Columns that stay in any case.
    most : float
        Leave the plan as it is if more than this share of its columns would stay.

    Returns
    -------
    plan : Plan
    columns : Tensor int64 [columns left]
        Which ones they are, rising.
    """
    first, *rest = plan.stages
    used = torch.zeros(plan.shape[1], dtype=torch.bool)
    used[kept] = True
    if isinstance(first, Turned):
        # Ranks that share the columns of H hold the same matrices, and come to the same rows.
        turn, inner = first.before, first.stages[0]
        used = yield Joined(turn.axis, used, turn.rows)
        begins = np.concatenate(([0], np.cumsum(turn.rows)))
        begin, end = int(begins[turn.me]), int(begins[turn.me + 1])
    else:
        inner, begin, end = first, 0, len(used)
    if not isinstance(inner, Stage):
        raise TypeError(f"a plan that begins with a {type(inner).__name__} cannot be narrowed")
    for block in (inner.local, *(hop.send for hop in inner.hops)):
        used[block.indices.long()] = True
    columns = used.nonzero()[:, 0]
    if len(columns) == len(used) or len(columns) > most * len(used):
        return plan, torch.arange(end - begin)
    hops = tuple(replace(hop, send=keep_columns(hop.send, columns)) for hop in inner.hops)
    inner = replace(inner, local=keep_columns(inner.local, columns), hops=hops)
    if not isinstance(first, Turned):
        return Plan((inner, *rest)), columns
    left = np.add.reduceat(np.append(used.numpy(), False), begins[:-1], dtype=np.int64)
    left[turn.rows == 0] = 0
    narrow = replace(first, before=replace(turn, rows=left), stages=(inner, *first.stages[1:]))
    return Plan((narrow, *rest)), used[begin:end].nonzero()[:, 0]
