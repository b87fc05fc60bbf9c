"""Seconds of layers that weigh or compare neighbours: attention, and the largest of all."""

from __future__ import annotations

import numpy as np

from spgnn.layout import Int64Array
from spgnn.plan.census import Census
from spgnn.plan.hops import HopCensus
from spgnn.plan.machine import Float64Array, Machine
from spgnn.plan.rows_seconds import OPERATIONS, hop_seconds, moving, rounding, spmm
from spgnn.plan.steps import Extreme, Product, Weighing
from spgnn.plan.weighed import WeighedCensus
from spgnn.sparse import SUM_DTYPE

_FLOAT = 4
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
    # Scores of all sources are made again for the softmaxes that others ask for.
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

    What leaves is selected and packed, what arrives unpacked and put where it belongs, and with a
    fold own rows are told from those of others. Listed rows of what no cache holds any more take
    as long as twice as many in their order.
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
