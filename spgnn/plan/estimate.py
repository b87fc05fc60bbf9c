"""Counts of graphs too large to plan now, from a sample of their vertices.

Row v of H travels to every other part that has a neighbour of v. For the vertices of a sample that
number is counted; all others are taken to be like them. Rows of v stand for its column too, which
is exact for undirected graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from spgnn.exchange import Algorithm
from spgnn.layout import Int64Array
from spgnn.plan.census import Census, StageCensus
from spgnn.plan.counted import Counted
from spgnn.plan.hops import HopCensus
from spgnn.plan.search import Configuration
from spgnn.plan.subject import Setting
from spgnn.plan.weighed import WeighedCensus

# Nonzeros that are looked at, in stretches of neighbouring vertices all over the graph.
SAMPLED, STRETCHES = 4_000_000, 256
_FLOAT, _INDEX, _OFFSET = 4, 4, 8


def can_be_estimated(one: Configuration) -> bool:
    """True if a sample predicts a configuration's traffic: whole columns, no recomputed halo."""
    known = one.algorithm.algo in ("1d", "1.5d") and one.algorithm.cover == "column"
    return known and one.algorithm.node_size == 1 and not one.ghosts and not one.reach


@dataclass(frozen=True, eq=False)
class EstimatedSetting(Setting):
    """A setting whose counts are estimated."""

    def under(self, algorithm: Algorithm) -> Setting:
        """The same rows under another algorithm, which has as many parts."""
        return replace(self, algorithm=algorithm)

    @cached_property
    def whole(self) -> Census:
        """Of a sample."""
        return estimate(self)

    def counted(self, layers: int, *, reach: bool, ghosts: bool, propagated: bool) -> Counted:
        """All layers work on the whole matrix."""
        own, whole = self.arranged.ranks.sizes, self.whole
        nobody = np.zeros_like(own)
        rows = np.stack([own] * (layers + 1))
        return Counted(whole, (None,) * layers, rows, nobody, self.together)


def estimated_setting(setting: Setting) -> Setting:
    """The same with counts of a sample."""
    arranged, algorithm = setting.arranged, setting.algorithm
    node = setting.ranks_a_node
    return EstimatedSetting(
        setting.subject, arranged, algorithm, node, wired=setting.wired, weighs=setting.weighs
    )


def estimate(setting: Setting, sampled: int = SAMPLED) -> Census:
    """The census of a sample, scaled to the graph.

    Parameters
    ----------
    setting : Setting
        Of 1D or 1.5D with whole columns.
    sampled : int
        About so many nonzeros are looked at.
    """
    layout, algorithm = setting.arranged.ranks, setting.algorithm
    ranks, c = layout.parts, algorithm.c
    own = layout.sizes
    lengths = setting.subject.structure.row_lengths[setting.arranged.order].numpy()
    entries = np.diff(np.concatenate(([0], np.cumsum(lengths)))[layout.offsets]) + own
    seen, remote, needed, between = (np.zeros(ranks, np.int64) for _ in range(4))
    node = setting.ranks_a_node
    for first, last in _stretches(layout.rows, len(setting.subject.structure.indices), sampled):
        rows = setting.arranged.rows(setting.subject.structure, first, last)
        part = layout.owner(rows.indices.numpy()) // c
        vertex = np.repeat(np.arange(first, last), rows.row_lengths.numpy())
        rank = layout.owner(vertex)
        far = part != rank // c
        remote += np.bincount(rank[far], minlength=ranks)
        pairs = np.unique(np.stack((vertex[far], part[far])), axis=1)
        sender = layout.owner(pairs[0])
        # Its peer along "row" has the same place in its own block row.
        outside = (pairs[1] * c + sender % c) // node != sender // node
        needed += np.bincount(sender, minlength=ranks)
        between += np.bincount(sender[outside], minlength=ranks)
        seen += np.bincount(layout.owner(np.arange(first, last)), minlength=ranks)
    scale = own / np.maximum(seen, 1)
    sent = np.stack(((needed - between) * scale, between * scale)).round().astype(np.int64)
    far_entries = np.minimum(entries, (remote * scale).round().astype(np.int64))
    return _census(setting, sent, entries, far_entries)


def _stretches(rows: int, entries: int, sampled: int) -> list[tuple[int, int]]:
    """Rows that are looked at: all of them, or a share of each of many pieces."""
    share = min(1.0, sampled / max(entries, 1))
    cuts = np.arange(min(STRETCHES, rows) + 1) * rows // min(STRETCHES, rows)
    lengths = np.maximum(1, np.ceil(np.diff(cuts) * share)).astype(np.int64)
    return [(int(a), int(a + n)) for a, n in zip(cuts[:-1], lengths, strict=True)]


def _census(setting: Setting, sent: Int64Array, entries: Int64Array, far: Int64Array) -> Census:
    """One stage that exchanges rows, and with replicas one that adds up partial sums."""
    own, c = setting.arranged.ranks.sizes, setting.algorithm.c
    ranks = len(own)
    peers = np.zeros((2, ranks), np.int64)
    if ranks // c > 1:
        peers[0] = np.minimum(ranks // c - 1, sent.sum(axis=0))
    zero = np.zeros((2, ranks), np.int64)
    stages = []
    block_rows = own * c
    wired = setting.wired
    wire = wired.of_weighed if wired is not None and setting.weighs else wired
    hop = HopCensus(sent, sent, peers, peers, sent.sum(axis=0), False, wire)
    hops = (hop,) if ranks > c else ()
    kept, added_up = 2 * sent.sum(axis=0), None
    stages.append(StageCensus(block_rows, own, entries - far, far, kept, hops))
    if c > 1:
        added = zero.copy()
        added[0] = (c - 1) * own
        messages = zero.copy()
        messages[0] = c - 1
        added_up = fold = HopCensus(added, added, messages, messages, added[0], False, wire)
        stages.append(StageCensus(own, block_rows, own, (c - 1) * own, added[0], (fold,)))
    matrix = _INDEX * (entries + sent.sum(axis=0)) + 2 * _OFFSET * block_rows + 2 * _FLOAT * own
    if not setting.weighs:
        return Census(tuple(stages), matrix, matrix)
    nobody = np.zeros_like(own)
    weighed = WeighedCensus(
        rows=own,
        columns=own,
        partial=block_rows,
        fetched=sent.sum(axis=0) * (ranks > c),
        asked=nobody,
        local=entries - far,
        remote=far,
        summed=nobody,
        kept=kept,
        fetch=hop if hops else None,
        sums=None,
        fold=added_up,
    )
    return Census(tuple(stages), matrix, matrix, weighed)
