"""What an error in each row that travels does where it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.exchange import Plan, Stage
from spgnn.exchange.inspect import swapped
from spgnn.exchange.plan import Factor
from spgnn.exchange.schedule import Communicators
from spgnn.exchange.turn import Turned
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Weights:
    """For the rows that one hop sends: squared coefficients that they meet, summed.

    Errors of rows are independent, so that the squared error of what a stage makes is the sum of
    theirs, so weighted.

    Attributes
    ----------
    forward : Tensor [rows to send]
    adjoint : Tensor [received rows]
        They are sent back.
    most : (int, int)
        Rows that the rank sends that sends most, and that sends most back.
    """

    forward: Tensor
    adjoint: Tensor
    most: tuple[int, int]


def weights_of(plan: Plan, mesh: Communicators) -> list[Weights]:
    """The weights of each hop, as those who receive its rows know them. Collective.

    Parameters
    ----------
    plan : Plan
    mesh : communicators by axis
    """
    return [
        weights for stage in plan.stages for each in _stages(stage) for weights in _of(each, mesh)
    ]


def _stages(stage: Factor) -> Iterator[Stage]:
    if isinstance(stage, Turned):
        for each in stage.stages:
            yield from _stages(each)
    elif isinstance(stage, Stage):
        yield stage
    else:
        raise TypeError(f"nothing weighs the rows of a {type(stage).__name__}")


def _of(stage: Stage, mesh: Communicators) -> list[Weights]:
    """Of one stage: what a hop passes on weighs what it weighs there."""
    hops, ends = stage.hops, stage.received
    if not hops:
        return []
    assert stage.remote is not None
    own = torch.ones(stage.shape[0], dtype=torch.float64, device=stage.local.device)
    received = own[: ends[-1]] if stage.adds_received else _squared(stage.remote.T, own)
    forward: list[Tensor] = []
    for number, hop in reversed(list(enumerate(hops))):
        arriving = received[ends[number] : ends[number + 1]]
        forward.insert(0, swapped(mesh[hop.axis], arriving, hop.counts.reversed()))
        if hop.relay is not None:
            received[: ends[number]] += _squared(hop.relay.T, forward[0])
    own = torch.ones(stage.shape[1], dtype=torch.float64, device=stage.local.device)
    adjoint: list[Tensor] = []
    for hop in hops:
        returned = _squared(hop.send, own)
        if hop.relay is not None:
            returned += _squared(hop.relay, torch.cat(adjoint))
        adjoint.append(swapped(mesh[hop.axis], returned, hop.counts))
    found = []
    for hop, there, back in zip(hops, forward, adjoint, strict=True):
        comm = mesh[hop.axis]
        most = comm.agree(hop.counts.sent), comm.agree(hop.counts.received)
        found.append(Weights(there, back, most))
    return found


def _squared(block: CSR, weights: Tensor) -> Tensor:
    """The matrix of squares times weights [columns], float64 [rows]."""
    values, row_scale, col_scale = (
        None if array is None else array.square()
        for array in (block.values, block.row_scale, block.col_scale)
    )
    numbers = [array.dtype for array in (values, row_scale, col_scale) if array is not None]
    squares = block.with_values(values).with_scales(row_scale, col_scale)
    operand = weights[:, None].to(numbers[0] if numbers else torch.float64)
    return kernels.spmm(squares, operand)[:, 0].double()
