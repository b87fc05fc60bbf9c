"""Seconds of one training epoch: its steps, each as long as on its slowest rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from spgnn.layout import Int64Array
from spgnn.plan.census import Census, HopCensus, StageCensus, TurnedCensus, priced
from spgnn.plan.machine import Float64Array, Link, Machine
from spgnn.plan.network import Dense, Epoch, Network, Pass, Product, Sparse
from spgnn.plan.subject import Counted

_FLOAT, _DOUBLE = 4, 8
# Passes over the weights that Adam's step makes, all of them elementwise; SGD's has fewer.
_STEP_PASSES = 12
# A product calls and does in Python what so many operators take.
_OPERATIONS = 10


def epoch_seconds(
    counted: Counted,
    epoch: Epoch,
    network: Network,
    words: Int64Array | None,
    machine: Machine,
) -> dict[str, float]:
    """Seconds by kind of work: spmm, exchange, dense, passes, allreduce, overhead.

    Each step takes as long as on its slowest rank, for the next exchange waits for that. Of a
    product, what hides behind the exchange is not counted. Parameters as those of `price`.
    """
    ranks = len(counted.ghosts)
    slow = machine.slowdown(ranks)
    spent: dict[str, float] = defaultdict(float)
    for step in epoch.steps:
        if isinstance(step, Product):
            parts = _product(counted.of(step.layer), step, machine, slow)
            whole = np.sum(list(parts.values()), axis=0)
            slowest = int(whole.argmax())
            for kind, seconds in parts.items():
                spent[kind] += float(seconds[slowest])
            spent["overhead"] += slow * _fixed(step, counted, machine)
            continue
        kind, seconds = _local(step, counted.rows, words, network, machine)
        spent[kind] += slow * float(seconds.max())
        spent["overhead"] += slow * machine.overhead.operation
    weights = _FLOAT * network.weights
    spent["passes"] += slow * _STEP_PASSES * weights / machine.streams.elementwise
    spent["overhead"] += slow * machine.overhead.epoch
    spent["allreduce"] += _all_reduce(weights, ranks, machine, slow)
    for numbers in network.summed:
        spent["allreduce"] += _all_reduce(_DOUBLE * numbers, ranks, machine, slow)
    return dict(spent)


def layer_seconds(counted: Counted, epoch: Epoch, layers: int, machine: Machine) -> list[float]:
    """Seconds of the products of each layer: what its algorithm alone decides."""
    slow, spent = machine.slowdown(len(counted.ghosts)), [0.0] * layers
    for step in epoch.products:
        parts = _product(counted.of(step.layer), step, machine, slow)
        whole: Float64Array = np.sum(list(parts.values()), axis=0)
        spent[step.layer] += float(whole.max()) + slow * _fixed(step, counted, machine)
    return spent


def _fixed(step: Product, counted: Counted, machine: Machine) -> float:
    """Seconds of a product whatever its size."""
    exchanges = 0
    for factor in counted.of(step.layer).factors:
        exchanges += sum(bool(hop.messages.any()) for part in factor.parts() for hop in part.hops)
        if isinstance(factor, TurnedCensus):
            exchanges += 2
    return exchanges * machine.overhead.exchange + _OPERATIONS * machine.overhead.operation


def _local(
    step: Dense | Sparse | Pass,
    rows: Int64Array,
    words: Int64Array | None,
    network: Network,
    machine: Machine,
) -> tuple[str, Float64Array]:
    """What a step on a rank's own rows takes on each of them."""
    match step:
        case Dense():
            return "dense", np.asarray(machine.gemm.seconds(step.flops * rows[step.at], step.width))
        case Pass():
            return "passes", step.nbytes * rows[step.at] / getattr(machine.streams, step.kind)
        case Sparse():
            own = rows[0]
            features = np.full_like(own, network.widths[0])
            made, operand = (features, own) if step.adjoint else (own, features)
            entries = own if words is None else words
            return "spmm", _spmm(machine, entries, made, operand, step.width)


def _product(
    census: Census, step: Product, machine: Machine, slow: float
) -> dict[str, Float64Array]:
    """Seconds of a product on each rank: local work, and what of the exchange is not hidden."""
    spent = {kind: np.zeros(len(census.columns)) for kind in ("spmm", "exchange", "pack")}
    for factor in census.factors:
        inner = replace(step, width=factor.share(step.width))
        for stage in factor.parts():
            for kind, seconds in _stage(stage, inner, machine, slow).items():
                spent[kind] += seconds
        if isinstance(factor, TurnedCensus):
            for turn, back in ((factor.before, step.adjoint), (factor.after, not step.adjoint)):
                sent, received, messages = turn.traffic(step.width, step.dtype, back=back)
                moved = np.maximum(sent, received)
                spent["exchange"] += _moving(messages, moved, machine, slow)
                spent["pack"] += slow * 2 * moved.sum(axis=0) / machine.streams.elementwise
    return spent


def _stage(
    stage: StageCensus, step: Product, machine: Machine, slow: float
) -> dict[str, Float64Array]:
    local = slow * _spmm(machine, stage.local, *_sides(stage, step), step.words)
    spent = {"spmm": local + slow * _remote(stage, step, machine)}
    if stage.hops:
        moving = [_hop(hop, step, machine, slow) for hop in stage.hops]
        # Rows that are used in a later epoch have all of this one to hide behind.
        late = [hop.wire is not None and bool(hop.wire.asked.delay) for hop in stage.hops]
        at_once = np.sum([each * (not waits) for each, waits in zip(moving, late, strict=True)], 0)
        hidden = np.minimum(at_once, local) + np.sum(moving, axis=0) - at_once
        spent["exchange"] = np.sum(moving, axis=0) - machine.overlap * hidden
        packing = [_pack(hop, stage, step, machine) for hop in stage.hops]
        spent["pack"] = slow * np.sum(packing, axis=0)
    return spent


def _sides(stage: StageCensus, step: Product) -> tuple[Int64Array, Int64Array]:
    """Rows made, and rows of the operand."""
    sides = stage.rows, stage.columns
    return sides[::-1] if step.adjoint else sides


def _remote(stage: StageCensus, step: Product, machine: Machine) -> Float64Array:
    """``R·received``, or ``Rᵀ·G``."""
    received = np.sum([hop.received.sum(axis=0) for hop in stage.hops], axis=0)
    if not stage.hops:
        return np.zeros(len(stage.rows))
    # Forward adds to rows that are there, where R has any nonzero.
    touched = np.minimum(stage.remote, stage.rows)
    made, operand = (received, stage.rows) if step.adjoint else (touched, received)
    return _spmm(machine, stage.remote, made, operand, step.words)


def _pack(hop: HopCensus, stage: StageCensus, step: Product, machine: Machine) -> Float64Array:
    """``S·H``, or adding ``Sᵀ`` of what came back."""
    return _rows_to_send(hop, stage, step, machine) + _rounding(hop, step, machine)


def _rounding(hop: HopCensus, step: Product, machine: Machine) -> Float64Array:
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
        return _spmm(machine, hop.entries, touched, rows, step.words)
    if hop.sums:
        return _spmm(machine, hop.entries, rows, stage.columns, step.words)
    return np.asarray(machine.gather.seconds(rows, step.words), np.float64)


def _hop(hop: HopCensus, step: Product, machine: Machine, slow: float) -> Float64Array:
    """The exchange itself; what is sent and what is received do not share a rank's link."""
    messages = hop.returned if step.adjoint else hop.messages
    moved = hop.bytes_of(np.maximum(hop.sent, hop.received), step.width, step.dtype)
    return _moving(messages, moved, machine, slow)


def _moving(messages: Int64Array, moved: Int64Array, machine: Machine, slow: float) -> Float64Array:
    """Both levels at once: a rank is done when the slower one is."""
    inside = machine.levels.inside
    between = machine.levels.between or inside
    here = slow * np.asarray(inside.alltoallv.seconds(messages[0], moved[0]), np.float64)
    there = np.asarray(between.alltoallv.seconds(messages[1], moved[1]), np.float64)
    return np.maximum(here, there)


def _spmm(
    machine: Machine, nonzeros: Int64Array, made: Int64Array, operand: Int64Array, width: float
) -> Float64Array:
    return np.asarray(machine.spmm.seconds(nonzeros, made, width, _FLOAT * width * operand))


def _all_reduce(nbytes: int, ranks: int, machine: Machine, slow: float) -> float:
    """As a ring does it: 2 (P − 1) messages, 2 (P − 1) / P of the buffer."""
    if ranks == 1:
        return 0.0
    several = machine.nodes(ranks) > 1 and machine.levels.between is not None
    link: Link = machine.levels.inside.allreduce
    if several and machine.levels.between is not None:
        link, slow = machine.levels.between.allreduce, 1.0
    steps = 2 * int(np.ceil(np.log2(ranks)))
    return float(slow * link.seconds(steps, 2 * (ranks - 1) * nbytes / ranks))
