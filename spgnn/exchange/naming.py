"""Names for the rows of all exchanges of a plan, so that both ends of each can draw alike."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from spgnn.exchange.inspect import swapped
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.route import Names
from spgnn.exchange.schedule import Communicators
from spgnn.exchange.turn import Turned
from spgnn.pattern import Selection
from spgnn.sparse import CSR

_RANKS, _ROWS = 2**20, 2**36


class _Numbers:
    """Numbers for rows that are no vertex's: sums. Below zero, and of this rank alone."""

    def __init__(self, rank: int) -> None:
        self._rank, self._place = rank, 0

    def of(self, like: Tensor, count: int) -> Tensor:
        """So many new ones, int64."""
        first = (self._place * _RANKS + self._rank) * _ROWS + 1
        self._place += 1
        return -torch.arange(first, first + count, device=like.device)


def named(plan: Plan, ids: Tensor, mesh: Communicators, rank: int) -> Plan:
    """The plan with names of the rows of all its hops. Collective.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    ids : Tensor int64 [columns]
        Original ids of the vertices whose rows it takes.
    mesh : communicators by axis
    rank : int
        Of all.
    """
    numbers, stages = _Numbers(rank), []
    for stage in plan.stages:
        stages.append(_named(stage, ids, mesh, numbers))
        # What one stage hands to the next are sums.
        ids = numbers.of(ids, stage.shape[0])
    return Plan(tuple(stages))


@singledispatch
def _named(stage: Any, ids: Tensor, mesh: Communicators, numbers: _Numbers) -> Any:
    raise TypeError(f"nothing names the rows of a {type(stage).__name__}")


@_named.register
def _(stage: Stage, ids: Tensor, mesh: Communicators, numbers: _Numbers) -> Stage:
    hops: list[Hop] = []
    received = ids[:0]
    for hop in stage.hops:
        sent = _names_of(hop, ids, received, numbers)
        comm = mesh[hop.axis]
        arriving = swapped(comm, sent, hop.counts)
        hops.append(replace(hop, names=Names(sent, arriving, comm.rank)))
        received = torch.cat((received, arriving))
    return replace(stage, hops=tuple(hops))


@_named.register
def _(stage: Turned, ids: Tensor, mesh: Communicators, numbers: _Numbers) -> Turned:
    turn, inner = stage.before, []
    here = ids.new_empty(turn.all, 1)
    mesh[turn.axis].all_gather(ids[:, None].contiguous(), here, turn.rows.tolist())
    ids = here[:, 0]
    for each in stage.stages:
        inner.append(_named(each, ids, mesh, numbers))
        ids = numbers.of(ids, each.shape[0])
    return replace(stage, stages=tuple(inner))


def _names_of(hop: Hop, ids: Tensor, received: Tensor, numbers: _Numbers) -> Tensor:
    """Of the rows a hop sends: of its vertex, where it is one row as it is, or passed on."""
    names = numbers.of(ids, hop.send.shape[0])
    given = hop.send.row_lengths.to(ids.device)
    passed = torch.zeros_like(given)
    if hop.relay is not None:
        passed = hop.relay.row_lengths.to(ids.device)
        _name(names, hop.relay, received, (given == 0) & (passed == 1))
    _name(names, hop.send, ids, (given == 1) & (passed == 0))
    return names


def _name(names: Tensor, block: CSR, ids: Tensor, alone: Tensor) -> None:
    """Name rows that have a single nonzero after its column."""
    rows = alone.nonzero()[:, 0]
    entries = rows if isinstance(block.pattern, Selection) else block.indptr[rows]
    names[rows] = ids[block.indices[entries].long()]
