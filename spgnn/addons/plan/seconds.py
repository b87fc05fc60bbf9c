"""Seconds of one training epoch: its steps, each as long as on its slowest rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spgnn.addons.plan.counts import (
    AttentionCounts,
    Float64Array,
    HopCounts,
    MatrixCounts,
    MeanRowBytes,
    Product,
    StageCounts,
    codec_at,
    total_of,
)
from spgnn.addons.plan.epoch import Dense, Epoch, Pass, Sparse
from spgnn.addons.plan.ranks import ModelCounts
from spgnn.exchange import Codec
from spgnn.layout import Int64Array
from spgnn.machine import Level, Machine
from spgnn.sparse import SUM_DTYPE

_FLOAT, _DOUBLE = 4, 8
# Operators that take as long as what a product does in Python; and each block of attention.
OPERATIONS, _BLOCK_OPERATIONS = 10, 15
# Passes over the weights that Adam's step makes, all of them elementwise; SGD's has fewer.
_STEP_PASSES = 12
# Sources of pairs are drawn, looked up and requested: each takes as long as so many short rows that
# are gathered, and all together these exchanges (measured once, on cora).
_LOOKED_UP, _REQUESTS = 16, 6


def epoch_seconds(
    counted: ModelCounts, epoch: Epoch, codec: Codec | None, machine: Machine
) -> dict[str, float]:
    """Seconds by kind of work: spmm, exchange, dense, passes, allreduce, overhead, …."""
    ranks, rows = len(counted.halo), counted.all_rows
    slow = machine.slowdown(ranks)
    spent: dict[str, float] = defaultdict(float)
    for step in epoch.steps:
        operations, exchanges = 1, 0
        match step:
            case Product():
                own = codec_at(step, codec, epoch.layers)
                pricing = _Pricing(counted.of(step.layer), step, own, machine, slow)
                parts, operations, exchanges = pricing.parts()
            case Dense():
                flops = step.flops * rows[step.at]
                parts = {"dense": slow * machine.gemm.seconds(flops, step.width)}
            case Pass():
                moved = step.nbytes * rows[step.at]
                parts = {"passes": slow * moved / getattr(machine.streams, step.kind)}
            case Sparse():
                sides = np.full_like(rows[0], epoch.widths[0]), rows[0]
                rows_made, operand = sides if step.adjoint else sides[::-1]
                entries = counted.feature_nonzeros
                entries = rows[0] if entries is None else entries
                parts = {"spmm": slow * spmm(machine, entries, rows_made, operand, step.width)}
        slowest = int(total_of(list(parts.values())).argmax())
        for kind, seconds in parts.items():
            spent[kind] += float(seconds[slowest])
        overhead = machine.overhead
        spent["overhead"] += slow * (
            operations * overhead.operation + exchanges * overhead.exchange
        )
    if counted.pairs is not None:
        drawn = int(counted.pairs.links.max()) * (1 + epoch.config.aim.negatives)
        looked_up = _LOOKED_UP * drawn * float(machine.gather.seconds(1, 1))
        requests = (ranks > 1) * _REQUESTS * machine.overhead.exchange
        spent["pairs"] = slow * (looked_up + requests)
    weights = _FLOAT * epoch.weights
    spent["passes"] += slow * _STEP_PASSES * weights / machine.streams.elementwise
    spent["overhead"] += slow * machine.overhead.epoch
    for nbytes in (weights, *(_DOUBLE * numbers for numbers in epoch.summed)):
        spent["allreduce"] += _all_reduce(nbytes, ranks, machine, slow)
    return dict(spent)


def _all_reduce(nbytes: int, ranks: int, machine: Machine, slow: float) -> float:
    """As a ring does it: 2 (P − 1) messages, 2 (P − 1) / P of the buffer."""
    if ranks == 1:
        return 0.0
    level = _outermost(machine, ranks)
    link, slow = level.allreduce, slow if level is machine.levels.inside else 1.0
    steps = 2 * int(np.ceil(np.log2(ranks)))
    return float(slow * link.seconds(steps, 2 * (ranks - 1) * nbytes / ranks))


def _outermost(machine: Machine, ranks: int) -> Level:
    """Links between nodes, where there are several; else inside one."""
    inside, between = machine.levels.inside, machine.levels.between
    return inside if machine.nodes(ranks) == 1 or between is None else between


def cut_and_bound(
    counted: ModelCounts, epoch: Epoch, machine: Machine | None
) -> tuple[int | None, float | None]:
    """cut_P(G) and T_comm of the ICPP'24 paper, of an epoch: sections 4.1 (1D) and 4.2 (1.5D)."""
    how, ranks = epoch.config.algorithm, len(counted.halo)
    plan = epoch.config.distribution
    if plan.copies(ranks) != (how.c, 1) or "edge_labels" in plan.can or how.exchange == "oblivious":
        return None, None
    # That of each layer's matrix, which may be pruned.
    cuts = dict[int, int]()
    for step in epoch.products:
        hops = [hop for hop in counted.of(step.layer).hops if hop.axis == "row"]
        if any(hop.largest is None for hop in hops):
            return None, None
        cuts[step.layer] = max((int(hop.largest.max()) for hop in hops), default=0)  # type: ignore[union-attr]
    cut = max(cuts.values(), default=0)
    if machine is None:
        return cut, None
    rounds = ranks - 1 if how.c == 1 else ranks / how.c**2
    messages = rounds if how.c == 1 else rounds * np.log2(max(rounds, 1))
    link, seconds = _outermost(machine, ranks).alltoallv, 0.0
    for step in epoch.products:
        moved = rounds * cuts[step.layer] * step.width * step.dtype.itemsize
        seconds += link.latency * messages + moved / link.bandwidth
    return cut, float(seconds)


def spmm(
    machine: Machine, nonzeros: Int64Array, rows: Int64Array, operand: Int64Array, width: Any
) -> Float64Array:
    """Seconds of a sparse product, from nonzeros, rows made and rows of the operand."""
    return np.asarray(machine.spmm.seconds(nonzeros, rows, width, _FLOAT * width * operand))


@dataclass(frozen=True, eq=False)
class _Pricing:
    """Seconds of one product of a layer, or of what is in its place, on each rank."""

    matrix: MatrixCounts
    step: Product
    codec: Codec | None
    machine: Machine
    slow: float

    def parts(self) -> tuple[dict[str, Float64Array], int, int]:
        """Seconds by kind of work; then operators, and exchanges, whatever their size."""
        exchanges = sum(bool(hop.peers[0].any()) for hop in self.matrix.hops)
        if self.step.heads:
            return self._attention()
        if self.step.largest:
            return self._largest(), OPERATIONS, exchanges
        return self._product(), OPERATIONS, exchanges + 2 * (self.matrix.turns is not None)

    def _product(self) -> dict[str, Float64Array]:
        spent = defaultdict[str, Float64Array](lambda: np.zeros(len(self.matrix.matrix)))
        # Of the rank that has most columns.
        width = int(np.max(self.matrix.share(self.step.width)))
        for stage in self.matrix.stages:
            for kind, seconds in self._stage(stage, width).items():
                spent[kind] = spent[kind] + seconds
        for sent, received, messages in self.matrix.turns_moved(self.step):
            moved = np.maximum(sent, received)
            spent["exchange"] += self._moving(messages, moved)
            spent["pack"] += self.slow * 2 * moved.sum(axis=0) / self._stream
        return spent

    def _stage(self, stage: StageCounts, width: int) -> dict[str, Float64Array]:
        """Local work, and what of the exchange is not hidden."""
        words, adjoint = width * self.step.dtype.itemsize / _FLOAT, self.step.adjoint
        sides = (stage.columns, stage.rows) if adjoint else (stage.rows, stage.columns)
        local = self.slow * spmm(self.machine, stage.local, *sides, words)
        if not stage.hops:
            return {"spmm": local}
        received = total_of([hop.received_rows for hop in stage.hops])
        # Forward adds to rows that are there, where R has any nonzero.
        forward = np.minimum(stage.remote, stage.rows), received
        sides = (received, stage.rows) if adjoint else forward
        remote = self.slow * spmm(self.machine, stage.remote, *sides, words)
        moving, relayed = self._moving_of(stage.hops, width)
        exchange = "replica" if stage.hops[0].axis == "replica" else "exchange"
        # Rows that are used in a later epoch have all of this one to hide behind.
        late = self.codec is not None and bool(self.codec.delay)
        hidden = moving if late else np.minimum(moving, local)
        packing = total_of([self._packing(hop, stage.columns, width) for hop in stage.hops])
        return {
            "spmm": local + remote,
            exchange: moving - self.machine.overlap * hidden + relayed * (not late),
            "pack": self.slow * packing,
        }

    def _moving_of(self, hops: Sequence[HopCounts], width: int) -> tuple[Float64Array, float]:
        """The exchanges of a stage, and what relays send after them, or before on the way back."""
        moving = total_of([self._hop(hop, width) for hop in hops if not hop.few])
        few = [float(self._hop(hop, width).max()) for hop in hops if hop.few]
        return (np.full_like(moving, moving.max()) if few else moving), sum(few)

    def _hop(self, hop: HopCounts, width: int) -> Float64Array:
        """The exchange itself; what is sent and what is received do not share a rank's link."""
        row = MeanRowBytes.of(self.codec, width, self.step.dtype).row
        rows = hop.rows[1] if hop.broadcast else hop.rows.max(axis=0)
        return self._moving(hop.peers[int(self.step.adjoint)], row * rows)

    def _moving(self, messages: Any, moved: Any) -> Float64Array:
        """Both levels at once: a rank is done when the slower one is."""
        inside = self.machine.levels.inside
        between = self.machine.levels.between or inside
        here = self.slow * np.asarray(inside.alltoallv.seconds(messages[0], moved[0]), np.float64)
        there = np.asarray(between.alltoallv.seconds(messages[1], moved[1]), np.float64)
        return np.maximum(here, there)

    def _packing(self, hop: HopCounts, columns: Int64Array, width: int) -> Float64Array:
        """``S·H``, or adding ``Sᵀ`` of what came back; and rounding, if a codec does."""
        rows, machine, words = (
            hop.sent_rows,
            self.machine,
            width * self.step.words / self.step.width,
        )
        if self.step.adjoint:
            touched = np.minimum(hop.entries, columns)
            seconds = spmm(machine, hop.entries, touched, rows, words)
        elif hop.sums:
            seconds = spmm(machine, hop.entries, rows, columns, words)
        else:
            seconds = np.asarray(machine.gather.seconds(rows, words), np.float64)
        return seconds + self._rounding(hop, width)

    def _rounding(self, hop: HopCounts, width: int) -> Float64Array:
        """Pack what is sent into fewer bits, and unpack what arrives: a pass over both."""
        rows = hop.sent_rows + hop.received_rows
        if self.codec is None or not self.codec.quantises:
            return np.zeros(len(rows))
        both = (MeanRowBytes.of(each, width, self.step.dtype).row for each in (None, self.codec))
        return np.asarray(rows * sum(both) / self._stream)

    def _largest(self) -> dict[str, Float64Array]:
        """Seconds of taking the largest neighbours, or of their gradient."""
        (stage,), step, slow = self.matrix.stages, self.step, self.slow
        nothing = np.zeros(len(stage.rows), np.int64)
        received = total_of([nothing, *(hop.received_rows for hop in stage.hops)])
        moving = [sum(self._moving_of(stage.hops, step.width))] if stage.hops else []
        # Rows are gathered whatever they are; own rows are copied in front of those that arrive.
        packing = [self._packing(hop, stage.columns, step.width) for hop in stage.hops]
        copied = 2 * step.width * step.dtype.itemsize * stage.columns / self._stream
        halo, nonzeros = stage.columns + received, stage.local + stage.remote
        rows, size = (stage.rows + halo) / 2, _FLOAT * step.words * halo
        table = self.machine.edges_of("largest")
        work = table.seconds(nonzeros, rows, step.words, size, 1, step.adjoint)
        return {
            "largest": slow * work,
            "exchange": total_of([nothing, *moving]),
            "pack": slow * total_of([copied, *packing]),
        }

    def _attention(self) -> tuple[dict[str, Float64Array], int, int]:
        """Seconds of a layer of attention, or of its gradient."""
        parts, step, machine, slow = self.matrix.attention, self.step, self.machine, self.slow
        assert parts is not None
        table = machine.edges_of("gatv2" if step.joint else "gat")

        def block(nonzeros: Int64Array, rows: Int64Array, sources: Int64Array) -> Float64Array:
            both, size = (rows + sources) / 2, _FLOAT * step.words * sources
            how = step.heads, step.adjoint, step.drops
            return np.asarray(slow * table.seconds(nonzeros, both, step.words, size, *how))

        local = block(parts.local, parts.partial, parts.columns)
        others = block(parts.remote, np.minimum(parts.remote, parts.partial), parts.fetched)
        # Scores of all sources are recomputed for the softmaxes that others request.
        sources = np.where(parts.summed > 0, parts.columns, 0)
        others = others + block(parts.summed, parts.requested, sources)
        if not step.adjoint:
            merged = parts.merged
            others = others + block(merged, np.minimum(merged, parts.rows), merged)
        # Sums divided by their weights; or products of gradients with what was made and kept.
        rows = parts.rows + parts.partial if step.adjoint else parts.partial
        finished = 2 * step.width * step.dtype.itemsize * rows / self._stream
        moved = list(parts.exchanges(step, self.codec))
        exchange = total_of([0 * local, *(self._moving(m, np.maximum(s, r)) for s, r, m in moved)])
        spent = {
            "attention": local + others + slow * finished,
            "exchange": exchange - machine.overlap * np.minimum(exchange, local),
            "pack": slow * self._attention_packing(parts),
        }
        exact = parts.exchanges(step, None)
        hops = [*parts.fetch, *parts.ways]
        blocks = 1 + sum(bool(hop.peers[0].any()) for hop in hops)
        operations = OPERATIONS + _BLOCK_OPERATIONS * blocks
        return spent, operations, sum(bool(moved[2].any()) for moved in exact)

    def _attention_packing(self, parts: AttentionCounts) -> Float64Array:
        """Rows of sources are gathered, or added up; what else travels is packed and unpacked."""
        step, seconds = self.step, np.zeros(len(parts.rows))
        for hop in parts.fetch:
            seconds = seconds + self._packing(hop, parts.columns, step.width)
        heads, row = step.heads * SUM_DTYPE[step.dtype].itemsize, step.width * step.dtype.itemsize
        # Rows travel with their scores one way; the other way destinations, or their gradients.
        both = row + heads + (row if step.joint else heads)
        for way in parts.ways:
            rows = 4 * (way.sent_rows + way.received_rows) + 2 * parts.rows * (way is parts.fold)
            seconds = seconds + 2 * both * rows / self._stream + self._rounding(way, step.width)
        return seconds

    @property
    def _stream(self) -> float:
        return self.machine.streams.elementwise
