"""An epoch on ranks that do not exist: plans of the stand-in, counted, scaled, and priced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paper.graphs import PaperGraph
from paper.schemes import Scheme
from spgnn.layout import Int64Array
from spgnn.plan import Machine, Prediction
from spgnn.plan.census import Census, HopCensus, StageCensus
from spgnn.plan.network import trace
from spgnn.plan.partitions import Partitions
from spgnn.plan.predict import price
from spgnn.plan.subject import Counted, set_up
from spgnn.progress import Progress

# Of a breakdown, in the words of the paper: what the local machine does, and what the network does.
EXCHANGE = ("exchange", "allreduce")
LOCAL = ("spmm", "pack", "dense", "passes", "overhead")


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
    """All lines at all numbers of ranks that c divides, with at least two parts."""
    wanted = [(p, c, s) for p in ranks for c in replicas for s in schemes]
    for done, (number, c, scheme) in enumerate(wanted):
        if progress is not None:
            progress(f"{graph.dataset}: {scheme.name}, {number} ranks", done, len(wanted))
        if number % c == 0 and number // c > 1:
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

    Plans of the stand-in are built for all ranks and counted; rows, nonzeros and ghosts are then
    multiplied by the graph's factor. Messages are not: there are as many ranks. What the paper has
    waits for every exchange before it multiplies; ours overlaps them as far as the machine does.
    """
    if not scheme.ours:
        machine = replace(machine, overlap=0.0)
    algorithm = scheme.algorithm(c)
    labels = None
    if scheme.method is not None:
        labels = partitions.labels(scheme.method, scheme.objective, algorithm.parts(ranks))
    setting = set_up(graph.subject, labels, algorithm, ranks, machine.ranks_a_node)
    network = scheme.network(graph.subject, model.layers, model.hidden)
    network = replace(network, ghosts=network.ghosts and network.takes_ghosts)
    counted = setting.counted(
        network.layers, reach=scheme.ours, ghosts=network.ghosts, propagated=network.propagated
    )
    words = setting.words
    if words is not None:
        words = _times(words, graph.factor)
    return price(scaled(counted, graph.factor), trace(network), network, words, machine)


def scaled(counted: Counted, factor: float) -> Counted:
    """Counts of a graph with `factor` times the vertices and edges, all else alike."""
    if factor == 1:
        return counted
    return Counted(
        _census(counted.whole, factor),
        tuple(None if layer is None else _census(layer, factor) for layer in counted.layers),
        _times(counted.rows, factor),
        _times(counted.ghosts, factor),
    )


def _census(census: Census, factor: float) -> Census:
    return Census(
        tuple(_stage(stage, factor) for stage in census.stages),
        _times(census.matrix, factor),
        _times(census.transpose, factor),
    )


def _stage(stage: StageCensus, factor: float) -> StageCensus:
    counts = {
        name: _times(getattr(stage, name), factor)
        for name in ("rows", "columns", "local", "remote")
    }
    return replace(stage, **counts, hops=tuple(_hop(hop, factor) for hop in stage.hops))


def _hop(hop: HopCensus, factor: float) -> HopCensus:
    counts = {name: _times(getattr(hop, name), factor) for name in ("sent", "received", "entries")}
    return replace(hop, **counts)


def _times(counts: Int64Array, factor: float) -> Int64Array:
    return np.rint(counts * factor).astype(np.int64)
