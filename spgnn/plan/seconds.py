"""Seconds of one training epoch: its steps, each as long as on its slowest rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from spgnn.layout import Int64Array
from spgnn.plan.census import Census, StageCensus, TurnedCensus
from spgnn.plan.counted import Counted
from spgnn.plan.hops import HopCensus, priced
from spgnn.plan.machine import Float64Array, Link, Machine
from spgnn.plan.network import Dense, Epoch, Extreme, Network, Pass, Product, Sparse, Weighing
from spgnn.plan.pairs import PairsCensus
from spgnn.plan.weighed import WeighedCensus
from spgnn.sparse import SUM_DTYPE

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


# Of each block of nonzeros that attention works on: what it calls and does in Python.
_BLOCK_OPERATIONS = 15
_LISTED = 2


def fixed_of_weighing(census: Census, step: Weighing, machine: Machine) -> float:
    """Seconds of a layer of attention whatever its size."""
    weighed = step.of(census)
    exchanges = sum(bool(moved[2].any()) for (moved,) in step.exchanges(census))
    others = (weighed.fetch, weighed.sums, weighed.fold)
    blocks = 1 + sum(hop is not None and bool(hop.messages.any()) for hop in others)
    calls = OPERATIONS + _BLOCK_OPERATIONS * blocks
    return exchanges * machine.overhead.exchange + calls * machine.overhead.operation


def weighing_seconds(
    census: Census, step: Weighing, machine: Machine, slow: float
) -> dict[str, Float64Array]:
    """Seconds of a layer of attention, or of its gradient, by kind of work, on each rank."""
    weighed = step.of(census)
    table, way = machine.edges_of("gatv2" if step.whole_rows else "gat"), (step.heads, step.adjoint)

    def block(nonzeros: Int64Array, rows: Int64Array, sources: Int64Array) -> Float64Array:
        both = (rows + sources) / 2
        size = _FLOAT * step.words * sources
        found = table.seconds(nonzeros, both, step.words, size, *way, step.drops)
        return np.asarray(slow * found, np.float64)

    local = block(weighed.local, weighed.partial, weighed.columns)
    touched = np.minimum(weighed.remote, weighed.partial)
    others = block(weighed.remote, touched, weighed.fetched)
    # Scores of all sources are recomputed for the softmaxes that others ask for.
    sources = np.where(weighed.summed > 0, weighed.columns, 0)
    others = others + block(weighed.summed, weighed.asked, sources)
    if not step.adjoint:
        others = others + block(
            weighed.merged, np.minimum(weighed.merged, weighed.rows), weighed.merged
        )
    exchanges = weighed.exchanges(step.shape, adjoint=step.adjoint)
    moved = [moving(m, np.maximum(s, r), machine, slow) for s, r, m in exchanges]
    total = np.sum(moved, axis=0) if moved else np.zeros_like(local)
    return {
        "attention": local + others + slow * _finished(weighed, step, machine),
        "exchange": total - machine.overlap * np.minimum(total, local),
        "pack": slow * _packed(census, step, machine),
    }


def _finished(weighed: WeighedCensus, step: Weighing, machine: Machine) -> Float64Array:
    """Sums divided by their weights; or products of gradients with what was made and kept."""
    rows = weighed.rows + weighed.partial if step.adjoint else weighed.partial
    row = step.width * step.dtype.itemsize
    return np.asarray(2 * row * rows / machine.streams.elementwise, np.float64)


def _packed(census: Census, step: Weighing, machine: Machine) -> Float64Array:
    """Rows of sources are gathered, or added up; what else travels is packed and unpacked."""
    weighed, stream = step.of(census), machine.streams.elementwise
    found = np.zeros(len(weighed.rows))
    if weighed.fetch is not None:
        rows = weighed.fetch.sent.sum(axis=0)
        found = found + _gathered(weighed.fetch, rows, weighed.columns, step, machine)
        found = found + rounding(weighed.fetch, step, machine)
    for way in (weighed.sums, weighed.fold):
        if way is not None:
            own = weighed.rows if way is weighed.fold else 0 * weighed.rows
            found = found + _carried(way, own, step) / stream + rounding(way, step, machine)
    return found


def _carried(way: HopCensus, own: Int64Array, step: Weighing) -> Float64Array:
    """Bytes read and written around both exchanges of a way.

    Rows that leave are selected and packed, rows that arrive unpacked and scattered, and with a
    fold own rows are separated from those of others. Indexed rows that no cache holds any more take
    as long as twice as many contiguous ones.
    """
    there, back = way.sent.sum(axis=0), way.received.sum(axis=0)
    heads = step.heads * SUM_DTYPE[step.dtype].itemsize
    row = step.width * step.dtype.itemsize
    # Rows travel with their scores one way; the other way destinations, or gradients of these.
    both = row + heads + (row if step.whole_rows else heads)
    return np.asarray(_LISTED * both * (4 * (there + back) + 2 * own), np.float64)


def _gathered(
    hop: HopCensus, rows: Int64Array, columns: Int64Array, step: Product, machine: Machine
) -> Float64Array:
    if step.adjoint:
        return spmm(machine, hop.entries, np.minimum(hop.entries, columns), rows, step.words)
    return np.asarray(machine.gather.seconds(rows, step.words), np.float64)


def extreme_seconds(
    census: Census, step: Extreme, machine: Machine, slow: float
) -> dict[str, Float64Array]:
    """Seconds of taking the largest neighbours, or of their gradient, on each rank."""
    (stage,) = census.stages
    table = machine.edges_of("largest")
    received = np.zeros_like(stage.rows)
    found, packed = np.zeros(len(stage.rows)), np.zeros(len(stage.rows))
    for hop in stage.hops:
        received = received + hop.received.sum(axis=0)
        found = found + hop_seconds(hop, step, machine, slow)
        rows = hop.sent.sum(axis=0)
        packed = packed + _gathered(hop, rows, stage.columns, step, machine)
        packed = packed + rounding(hop, step, machine)
    halo = stage.columns + received
    size = _FLOAT * step.words * halo
    nonzeros = stage.local + stage.remote
    work = table.seconds(nonzeros, (stage.rows + halo) / 2, step.words, size, 1, step.adjoint)
    # Own rows are copied in front of those that arrive.
    copied = 2 * step.width * step.dtype.itemsize * stage.columns / machine.streams.elementwise
    return {"largest": slow * work, "exchange": found, "pack": slow * (packed + copied)}


_DOUBLE = 8
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
    """Kind and seconds, on each rank, of a step on its own rows."""
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
