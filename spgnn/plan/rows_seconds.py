"""Seconds of what all steps are made of: sparse products, packing rows, and exchanging them."""

from __future__ import annotations

import numpy as np

from spgnn.layout import Int64Array
from spgnn.plan.census import StageCensus
from spgnn.plan.hops import HopCensus, priced
from spgnn.plan.machine import Float64Array, Machine
from spgnn.plan.steps import Product

_FLOAT = 4
# A product calls and does in Python what so many operators take.
OPERATIONS = 10


def pack(hop: HopCensus, stage: StageCensus, step: Product, machine: Machine) -> Float64Array:
    """``S·H``, or adding ``Sᵀ`` of what came back."""
    return _rows_to_send(hop, stage, step, machine) + rounding(hop, step, machine)


def rounding(hop: HopCensus, step: Product, machine: Machine) -> Float64Array:
    """Packing what is sent into fewer bits, and unpacking what arrives: a pass over both."""
    if hop.wire is None or not hop.wire.asked.quantises:
        return np.zeros(len(hop.entries))
    rows = (hop.sent + hop.received).sum(axis=0)
    packed = hop.wire.bytes_of(rows, step.width, step.dtype)
    return np.asarray(
        (priced(rows, step.width, step.dtype) + packed) / machine.streams.elementwise, np.float64
    )


def _rows_to_send(
    hop: HopCensus, stage: StageCensus, step: Product, machine: Machine
) -> Float64Array:
    rows = hop.sent.sum(axis=0)
    if step.adjoint:
        touched = np.minimum(hop.entries, stage.columns)
        return spmm(machine, hop.entries, touched, rows, step.words)
    if hop.sums:
        return spmm(machine, hop.entries, rows, stage.columns, step.words)
    return np.asarray(machine.gather.seconds(rows, step.words), np.float64)


def hop_seconds(hop: HopCensus, step: Product, machine: Machine, slow: float) -> Float64Array:
    """The exchange itself; what is sent and what is received do not share a rank's link."""
    messages = hop.returned if step.adjoint else hop.messages
    moved = hop.bytes_of(np.maximum(hop.sent, hop.received), step.width, step.dtype)
    return moving(messages, moved, machine, slow)


def moving(messages: Int64Array, moved: Int64Array, machine: Machine, slow: float) -> Float64Array:
    """Both levels at once: a rank is done when the slower one is."""
    inside = machine.levels.inside
    between = machine.levels.between or inside
    here = slow * np.asarray(inside.alltoallv.seconds(messages[0], moved[0]), np.float64)
    there = np.asarray(between.alltoallv.seconds(messages[1], moved[1]), np.float64)
    return np.maximum(here, there)


def spmm(
    machine: Machine, nonzeros: Int64Array, made: Int64Array, operand: Int64Array, width: float
) -> Float64Array:
    """Of a sparse product, from nonzeros, rows made and rows of the operand."""
    return np.asarray(machine.spmm.seconds(nonzeros, made, width, _FLOAT * width * operand))
