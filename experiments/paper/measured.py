"""Epochs of real ranks behind links as slow as this machine is beside the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from paper.graphs import PaperGraph, shape_of
from paper.slow_link import RepeatedWork, throttled
from paper.times import AWARE, Model, Point, Scheme, predicted
from spgnn.addons.plan.graphs import Partitions
from spgnn.comm import Ledger, connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.machine import Link, Machine
from spgnn.memory import FreedMemory
from spgnn.progress import ProgressBar
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.run import task_of

EPOCHS = 5  # after one that makes buffers
# Kinds of work as Figures 4 and 5 have them, and sums over ranks: of gradients, of partial sums.
KINDS = ("local", "all-to-all", "broadcast", "all-reduce")
_TINY = 8  # vertices of a rank whose local seconds are Python's alone


@dataclass(frozen=True)
class Pace:
    """How much slower this machine is.

    Attributes
    ----------
    slower : float
        Seconds here, on the stand-in, that stand for one of the paper's machine on the original.
    inside, between : Link
        As much slower for each row and each message of the original.
    ranks_a_node : int
    """

    slower: float
    inside: Link
    between: Link
    ranks_a_node: int


@dataclass(frozen=True)
class Measured:
    """One scheme on one number of ranks.

    Attributes
    ----------
    point : Point
        What is predicted.
    pace : Pace
    nbytes : int
        That all ranks sent in an epoch, on the stand-in.
    spent, predicted : dict of float
        Seconds by kind, averaged over ranks, of the paper's machine on the original.
    """

    point: Point
    pace: Pace
    nbytes: int
    spent: dict[str, float]
    predicted: dict[str, float]


def measured(
    graph: PaperGraph,
    name: str,
    partitions: Partitions,
    schemes: Sequence[tuple[Scheme, int]],
    ranks: Sequence[int],
    machine: Machine,
    model: Model,
    progress: ProgressBar,
) -> Iterator[Measured]:
    """Train every scheme, with its c, on every number of forked ranks that c² divides.

    Many ranks share few cores, so each has a clock of its own processor's seconds, which stands
    still while others compute, and advances by what the links need. Python's share of these
    seconds, which a GPU hides, is left out.

    Parameters
    ----------
    graph : PaperGraph
    name : str
        Under which ranks load it.
    partitions, schemes, ranks, machine, model, progress
        As of `paper.times.points`; schemes with their c.
    """

    def epoch(scheme: Scheme, c: int, count: int, pace: Pace) -> tuple[dict[str, float], int]:
        """Seconds by kind, averaged over ranks, and bytes sent by all."""
        config = scheme.config(c, model.layers, model.hidden)
        cut = scheme.partition(config, count, machine.ranks_a_node)
        labels = "block" if cut is None else str(partitions.file(*cut))
        made_up = {"random_features": 300, "random_classes": 24}
        tiny = f"amazon-like@{_TINY * max(count, 8) / shape_of('amazon').vertices:.4g}"
        configs = [
            config.but(dataset=tiny, partition="block", **made_up),
            config.but(dataset=name, partition=labels, **made_up),
        ]
        ended = run_ranks(_train, count, configs, pace, scheme.ours, backend="shm")
        spent = {kind: fmean(seconds[kind] for seconds, _ in ended) for kind in KINDS}
        return spent, sum(nbytes for _, nbytes in ended)

    # As much slower as local work is, of which links know nothing.
    first, link = min(ranks), Link(0.0, 0.0, 1e12)
    progress(f"{graph.dataset}: speed of a rank", 0, 1)
    spent, _ = epoch(AWARE, 1, first, Pace(1.0, link, link, machine.ranks_a_node))
    price = predicted(graph, partitions, AWARE, first, 1, machine=machine, model=model)
    slower = spent["local"] / _grouped(AWARE, price.seconds or {})["local"]
    levels = machine.levels
    inside, between = (
        Link(0.0, slower * link.latency, link.bandwidth / graph.factor / slower)
        for link in (levels.inside.alltoallv, (levels.between or levels.inside).alltoallv)
    )
    pace = Pace(slower, inside, between, machine.ranks_a_node)
    cases = [(p, s, c) for p in ranks for s, c in schemes if p % c**2 == 0 and p // c > 1]
    for done, (count, scheme, c) in enumerate(cases):
        progress(f"{graph.dataset}: {scheme.name}, c = {c}, {count} ranks", done, len(cases))
        spent, nbytes = epoch(scheme, c, count, pace)
        price = predicted(graph, partitions, scheme, count, c, machine=machine, model=model)
        yield Measured(
            Point.of(graph, scheme, c, price),
            pace,
            nbytes,
            {kind: seconds / slower for kind, seconds in spent.items()},
            _grouped(scheme, price.seconds or {}),
        )


def _train(
    rank: int, configs: Sequence[TrainConfig], pace: Pace, overlap: bool
) -> tuple[dict[str, float], int]:
    """Seconds by kind of an epoch of the last training, less the first one's; bytes it sent."""
    idle: Sequence[float] = ()
    for config in configs:
        links = pace.inside, pace.between, pace.ranks_a_node
        epoch = last_epoch(config, *links, EPOCHS, idle=idle, overlap=overlap)
        idle = epoch.steps
    spent = dict.fromkeys(KINDS, 0.0)
    for (operation, group), seconds in epoch.waited.items():
        reduces = operation == "all_reduce" or group == "replica"
        rooted = operation in ("broadcast", "reduce")
        spent["all-reduce" if reduces else "broadcast" if rooted else "all-to-all"] += seconds
    spent["local"] = epoch.seconds - sum(spent.values())
    return spent, sum(epoch.moved.of(one).sent_bytes for one in ("alltoall", "broadcast", "reduce"))


class Epoch(NamedTuple):
    """An epoch by the clock of a rank, which has processor seconds and waits for links.

    Attributes
    ----------
    seconds : float
    waited : Counter of float
        Of them, by operation and group.
    moved : Ledger
    steps : sequence of float
        Processor seconds of each step in the fastest epoch so far.
    """

    seconds: float
    waited: Counter[tuple[str, str]]
    moved: Ledger
    steps: Sequence[float]


def last_epoch(
    config: TrainConfig,
    inside: Link,
    between: Link,
    ranks_a_node: int,
    epochs: int,
    *,
    idle: Sequence[float] = (),
    overlap: bool = True,
) -> Epoch:
    """Train so many epochs, after one that makes buffers, behind links of two levels. Collective.

    Of each step `idle` seconds do not count.
    """
    work = RepeatedWork(idle)
    comm = throttled(
        connect(),
        8e-9 * between.bandwidth,
        between.latency,
        inside=(8e-9 * inside.bandwidth, inside.latency),
        ranks_a_node=ranks_a_node,
        clock=work,
        overlap=overlap,
    )
    trainer = Trainer(task_of(config, training_graph(config, comm)), options=config.training)
    freed = FreedMemory(comm.size, comm.ranks_here)
    freed.begin()
    trainer.train_epoch(0)  # makes buffers
    freed.after_epoch()
    work.steps.clear()
    for number in range(1, epochs + 1):
        work.begin()
        comm.barrier()
        start, waited, ledger = comm.seconds, Counter(comm.waited), comm.ledger.copy()
        trainer.train_epoch(number)
        seconds = comm.seconds - start
    return Epoch(seconds, Counter(comm.waited) - waited, comm.ledger.since(ledger), work.steps)


def _grouped(scheme: Scheme, seconds: Mapping[str, float]) -> dict[str, float]:
    """Predicted seconds by the same kinds, without what any operation takes."""
    found = dict.fromkeys(KINDS, 0.0)
    exchange = "broadcast" if scheme.exchange == "oblivious" else "all-to-all"
    names = {"exchange": exchange, "replica": "all-reduce", "allreduce": "all-reduce"}
    for kind, spent in seconds.items():
        if kind != "overhead":
            found[names.get(kind, "local")] += spent
    return found
