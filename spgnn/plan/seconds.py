"""Seconds of one training epoch: its steps, each as long as on its slowest rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from spgnn.layout import Int64Array
from spgnn.plan.census import Census, StageCensus, TurnedCensus
from spgnn.plan.counted import Counted
from spgnn.plan.machine import Float64Array, Link, Machine
from spgnn.plan.network import Network
from spgnn.plan.pairs import PairsCensus
from spgnn.plan.rows_seconds import OPERATIONS, hop_seconds, moving, pack, spmm
from spgnn.plan.steps import Dense, Epoch, Extreme, Pass, Product, Sparse, Weighing
from spgnn.plan.weighed_seconds import (
    extreme_seconds,
    fixed_of_weighing,
    weighing_seconds,
)

_FLOAT, _DOUBLE = 4, 8
# Passes over the weights that Adam's step makes, all of them elementwise; SGD's has fewer.
_STEP_PASSES = 12
# Sources of pairs are drawn, looked up and asked for: each takes as long as so many short rows that
# are gathered, and all together these exchanges (measured once, on cora).
_LOOKED_UP, _TOLD = 16, 6


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
    rows = counted.every_row
    for step in epoch.steps:
        if isinstance(step, Product):
            parts = _step(counted.of(step.layer), step, machine, slow)
            whole = np.sum(list(parts.values()), axis=0)
            slowest = int(whole.argmax())
            for kind, seconds in parts.items():
                spent[kind] += float(seconds[slowest])
            spent["overhead"] += slow * _fixed(step, counted, machine)
            continue
        kind, seconds = _local(step, rows, words, network, machine)
        spent[kind] += slow * float(seconds.max())
        spent["overhead"] += slow * machine.overhead.operation
    if counted.pairs is not None and network.links is not None:
        spent["pairs"] = slow * _drawing(counted.pairs, network.links.negatives, machine)
    weights = _FLOAT * network.weights
    spent["passes"] += slow * _STEP_PASSES * weights / machine.streams.elementwise
    spent["overhead"] += slow * machine.overhead.epoch
    spent["allreduce"] += _all_reduce(weights, ranks, machine, slow)
    for numbers in network.summed:
        spent["allreduce"] += _all_reduce(_DOUBLE * numbers, ranks, machine, slow)
    return dict(spent)


def _drawing(pairs: PairsCensus, negatives: int, machine: Machine) -> float:
    """Seconds of drawing sources, finding and asking for them, and of what ranks tell for that."""
    sources = int(pairs.pairs.max()) * (1 + negatives)
    exchanges = 0 if len(pairs.pairs) == 1 else _TOLD
    drawn = _LOOKED_UP * sources * machine.gather.seconds(1, 1)
    return float(drawn + exchanges * machine.overhead.exchange)


def _fixed(step: Product, counted: Counted, machine: Machine) -> float:
    """Seconds of a product whatever its size."""
    census = counted.of(step.layer)
    if isinstance(step, Weighing):
        return fixed_of_weighing(census, step, machine)
    exchanges = 0
    for factor in census.factors:
        exchanges += sum(bool(hop.messages.any()) for part in factor.parts() for hop in part.hops)
        if isinstance(factor, TurnedCensus):
            exchanges += 2
    return exchanges * machine.overhead.exchange + OPERATIONS * machine.overhead.operation


def _step(census: Census, step: Product, machine: Machine, slow: float) -> dict[str, Float64Array]:
    """Seconds of a product, or of what is in its place, on each rank."""
    match step:
        case Weighing():
            return weighing_seconds(census, step, machine, slow)
        case Extreme():
            return extreme_seconds(census, step, machine, slow)
    return _product(census, step, machine, slow)


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
            return "spmm", spmm(machine, entries, made, operand, step.width)


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
                spent["exchange"] += moving(messages, moved, machine, slow)
                spent["pack"] += slow * 2 * moved.sum(axis=0) / machine.streams.elementwise
    return spent


def _stage(
    stage: StageCensus, step: Product, machine: Machine, slow: float
) -> dict[str, Float64Array]:
    local = slow * spmm(machine, stage.local, *_sides(stage, step), step.words)
    spent = {"spmm": local + slow * _remote(stage, step, machine)}
    if stage.hops:
        moving = [hop_seconds(hop, step, machine, slow) for hop in stage.hops]
        # Rows that are used in a later epoch have all of this one to hide behind.
        late = [hop.wire is not None and bool(hop.wire.asked.delay) for hop in stage.hops]
        at_once = np.sum([each * (not waits) for each, waits in zip(moving, late, strict=True)], 0)
        hidden = np.minimum(at_once, local) + np.sum(moving, axis=0) - at_once
        spent["exchange"] = np.sum(moving, axis=0) - machine.overlap * hidden
        packing = [pack(hop, stage, step, machine) for hop in stage.hops]
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
    return spmm(machine, stage.remote, made, operand, step.words)


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
