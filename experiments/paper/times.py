"""The lines of the figures, and an epoch of each: plans of the stand-in, scaled and priced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from paper.graphs import PaperGraph
from spgnn.addons.plan import Prediction
from spgnn.addons.plan.epoch import trace
from spgnn.addons.plan.graphs import Partitions
from spgnn.addons.plan.predict import price
from spgnn.addons.plan.ranks import ModelCounts, VirtualRanks
from spgnn.config import TrainConfig
from spgnn.machine import Machine
from spgnn.progress import Progress
from spgnn.registry import Cover, Objective

PartitionOf = tuple[str, Objective, int, int | None]


@dataclass(frozen=True)
class Scheme:
    """One line.

    Attributes
    ----------
    name : str
    exchange : {"oblivious", "sparsity-aware"}
    method : str or None
        Of the partition; ``None`` leaves vertices where they are, in even blocks.
    objective : {"both", "send", "cover"}
        Of gvb; the paper's GVB minimises what is sent.
    nodes : bool
        Whether gvb knows which parts share a node.
    cover : {"column", "minimum"}
    ours : bool
        Whether with what else the paper does not have: the order that moves less, and no rows that
        no loss looks at.
    halo : bool
        Whether the second layer's remote rows are recomputed.
    """

    name: str
    exchange: str = "sparsity-aware"
    method: str | None = None
    objective: Objective = "both"
    nodes: bool = False
    cover: Cover = "column"
    ours: bool = False
    halo: bool = False

    def config(self, c: int, layers: int, hidden: int) -> TrainConfig:
        """A training of it: 1D, or with c replicas 1.5D; the paper replicates block rows."""
        grid = "1.5d" if self.ours else "1.5d-replicated"
        return TrainConfig.of(
            algo="1d" if c == 1 else grid,
            c=c,
            exchange=self.exchange,
            cover=self.cover,
            order="auto" if self.ours else "paper",
            recompute_halo=self.halo and layers > 1,
            prune=self.ours,
            layers=layers,
            hidden=hidden,
        )

    def partition(self, config: TrainConfig, ranks: int, ranks_a_node: int) -> PartitionOf | None:
        """Method, objective, parts and nodes of its partition; ``None`` for even blocks."""
        if self.method is None:
            return None
        parts, nodes = config.distribution.parts(ranks), ranks // ranks_a_node
        fits = ranks % ranks_a_node == 0 and parts % nodes == 0
        return self.method, self.objective, parts, nodes if self.nodes and fits else None


OBLIVIOUS = Scheme("oblivious", "oblivious")
AWARE = Scheme("sparsity-aware")
METIS = Scheme("sparsity-aware + metis", method="metis")
GVB = Scheme("sparsity-aware + gvb", method="gvb", objective="send")
# The same algorithm with what training chooses by default where nodes are known.
COVERED = Scheme(
    "sparsity-aware + gvb, covers", method="gvb", objective="cover", nodes=True, cover="minimum"
)
OURS_METIS = Scheme("ours + metis", method="metis", ours=True)
OURS = replace(COVERED, name="ours", ours=True)
OURS_HALO = replace(OURS, name="ours with a halo", halo=True)

SCALING = (OBLIVIOUS, AWARE, GVB, OURS, OURS_HALO)
PARTITIONERS = (METIS, GVB, COVERED, OURS_METIS, OURS)
BY_NAME = {scheme.name: scheme for scheme in (*SCALING, METIS)}


# What of an epoch's seconds the network takes; the rest is the machine's own.
EXCHANGE = ("exchange", "replica", "allreduce")
# Counts of peers, and places among them: the same in a graph of any size.
_OF_RANKS = {"peers", "me", "away", "axis", "broadcast"}


@dataclass(frozen=True)
class Model:
    """Of every line of a figure."""

    layers: int = 3
    hidden: int = 16


@dataclass(frozen=True)
class Point:
    """One scheme on one number of ranks.

    Attributes
    ----------
    dataset, scheme : str
    c, ranks : int
    factor : float
        By which counts of the stand-in were multiplied.
    total, maximum, average : float
        Bytes sent in an epoch: by all ranks, by the busiest, by a rank on average.
    between : float
        Of the busiest rank's bytes to other nodes.
    spent : dict of float
        Seconds by kind of work.
    cut, bound : float, optional
        cut_P(G), rows of the largest message, and T_comm of an epoch as sections 4.1 and 4.2 have
        it; not of oblivious schemes.
    """

    dataset: str
    scheme: str
    c: int
    ranks: int
    factor: float
    total: float
    maximum: float
    average: float
    between: float
    spent: dict[str, float]
    cut: float | None = None
    bound: float | None = None

    @property
    def seconds(self) -> float:
        """Of an epoch."""
        return sum(self.spent.values())

    @property
    def exchange(self) -> float:
        """Seconds of an epoch on the network."""
        return sum(self.spent.get(kind, 0.0) for kind in EXCHANGE)

    @classmethod
    def of(cls, graph: PaperGraph, scheme: Scheme, c: int, priced: Prediction) -> Point:
        """From what planning says."""
        volume, seconds = priced.volume, priced.seconds
        assert seconds is not None
        return cls(
            graph.dataset,
            scheme.name,
            c,
            priced.sent.shape[1],
            graph.factor,
            volume["total_bytes"],
            volume["max_send_bytes"],
            volume["avg_send_bytes"],
            priced.volume_by_level["between"]["max_send_bytes"],
            seconds,
            priced.largest_message,
            priced.bound_seconds,
        )


def points(
    graph: PaperGraph,
    partitions: Partitions,
    schemes: Sequence[Scheme],
    ranks: Sequence[int],
    machine: Machine,
    *,
    replicas: Sequence[int] = (1,),
    model: Model = Model(),  # frozen
    progress: Progress | None = None,
) -> Iterator[Point]:
    """All lines at all numbers of ranks that c² divides, with at least two parts."""
    wanted = [(p, c, s) for p in ranks for c in replicas for s in schemes]
    for done, (number, c, scheme) in enumerate(wanted):
        if progress is not None:
            progress(f"{graph.dataset}: {scheme.name}, {number} ranks", done, len(wanted))
        if number % c**2 == 0 and number // c > 1:
            priced = predicted(graph, partitions, scheme, number, c, machine=machine, model=model)
            yield Point.of(graph, scheme, c, priced)


def predicted(
    graph: PaperGraph,
    partitions: Partitions,
    scheme: Scheme,
    ranks: int,
    c: int,
    *,
    machine: Machine,
    model: Model,
) -> Prediction:
    """What one epoch moves and takes on a graph of the original's size.

    Plans of the stand-in are built for all ranks and counted; rows, nonzeros and recomputed halos
    are then multiplied by the graph's factor. Messages are not: there are as many ranks. What the
    paper has waits for every exchange before it multiplies; ours overlaps them as far as the
    machine does.
    """
    if not scheme.ours:
        machine = replace(machine, overlap=0.0)
    config, data = scheme.config(c, model.layers, model.hidden), graph.data
    cut = scheme.partition(config, ranks, machine.ranks_a_node)
    labels = None if cut is None else partitions.labels(*cut)
    virtual = VirtualRanks(data, labels, config, ranks, machine.ranks_a_node)
    counted = scaled(virtual.counted(config), graph.factor)
    epoch = trace(config, data.features, data.classes, sparse=data.sparse)
    return price(counted, epoch, None, machine)


def scaled(counted: ModelCounts, factor: float) -> ModelCounts:
    """Counts of a graph with `factor` times the vertices and edges, all else alike."""
    found: ModelCounts = counted if factor == 1 else _grown(counted, factor)
    return found


def _grown(value: Any, factor: float) -> Any:
    """Rows, nonzeros and bytes times the factor, in arrays, tuples and records."""
    if isinstance(value, np.ndarray):
        return np.rint(value * factor).astype(np.int64)
    if isinstance(value, tuple | list):
        return type(value)(_grown(one, factor) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in fields(value) if field.name not in _OF_RANKS)
        return replace(value, **{name: _grown(getattr(value, name), factor) for name in names})
    return value
