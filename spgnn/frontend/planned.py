"""``distribute(plan="auto")``: who computes what is chosen by what it would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

from spgnn.command import nbytes
from spgnn.data import GraphSource
from spgnn.data.source import MemorySource
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.exchange import Algorithm
from spgnn.frontend.sources import Placement
from spgnn.partition import METHODS
from spgnn.partition.adjacency import Int32Array
from spgnn.plan.choose import Planner
from spgnn.plan.machine import Machine
from spgnn.plan.network import ATTENDING, ModelKind, Network, normalisation_of
from spgnn.plan.partitions import Partitions, cache_directory
from spgnn.plan.search import Configuration, configurations
from spgnn.plan.subject import Subject
from spgnn.plan.table import of_plan
from spgnn.progress import ProgressBar

AUTO = "auto"


@dataclass(frozen=True)
class Hints:
    """Facts of the model to be trained that the planner needs.

    Attributes
    ----------
    kind : {"gcn", "sage", "gin", "gat", "gatv2"}
        Where it is none of these, the one whose layers multiply most like its own.
    hidden_channels, num_layers : int
    halo : bool
        Whether rows of the halo are wanted, rather than products with the matrix alone.
    memory : int, float or str, optional
        Bytes each rank may use: 2e10, or "20GiB".
    """

    kind: ModelKind = "gcn"
    hidden_channels: int = 64
    num_layers: int = 2
    halo: bool = True
    memory: int | float | str | None = None

    def check(self) -> None:
        """Refuse what is no such thing.

        Raises
        ------
        InputError
        """
        check_choice("plan_for", self.kind, get_args(ModelKind))
        check_integer("hidden_channels", self.hidden_channels, 1)
        check_integer("num_layers", self.num_layers, 1)
        _ = self.bytes

    @property
    def edges(self) -> tuple[str, ...]:
        """Kinds of attention whose cost per edge the machine model needs."""
        return (self.kind,) if self.kind in ATTENDING else ()

    @property
    def bytes(self) -> float | None:
        """The memory, as a number."""
        if not isinstance(self.memory, str):
            return self.memory
        try:
            return nbytes(self.memory)
        except InputError as error:
            raise InputError(f"memory: {error}") from None


@dataclass(frozen=True, eq=False)
class Chosen:
    """The best plan.

    Attributes
    ----------
    algorithm : Algorithm
    labels : int32 [n]
        The partition it was priced with.
    record : dict
        What was predicted, and why it is the best.
    """

    algorithm: Algorithm
    labels: Int32Array
    record: dict[str, Any]


def choose(
    source: GraphSource,
    widths: tuple[int, int],
    hints: Hints,
    how: Placement,
    ranks: int,
    machine: Machine,
) -> Chosen:
    """Price everything that can be had on so many ranks; on rank 0 alone.

    Parameters
    ----------
    source : GraphSource
    widths : two int
        Of x and of what is predicted, if the source has neither.
    hints, how, ranks, machine

    Raises
    ------
    InputError
        If nothing fits into memory, or the partition is given.
    """
    method = how.partition
    if not isinstance(method, str) or method not in METHODS:
        raise InputError('plan="auto" makes partitions by itself: give it a method, as "gvb"')
    if how.symmetrise:
        source = MemorySource(source.graph().symmetrised())
    with ProgressBar() as progress:
        normalisation, loops = normalisation_of(hints.kind, "mean")
        subject = Subject.of(
            source,
            split=how.split or 0,
            random_features=widths[0],
            random_classes=widths[1],
            seed=how.seed,
            normalisation=normalisation,
            loops=loops,
        )
        hidden = (hints.hidden_channels,) * (hints.num_layers - 1)
        layers = subject.features, *hidden, subject.classes
        network = Network(layers, hints.kind, sparse=subject.word_counts is not None)
        directory = cache_directory(None)
        kept = Partitions(
            subject, directory, seed=how.seed, imbalance=how.imbalance, progress=progress
        )
        planner = Planner(
            subject,
            network,
            machine,
            kept,
            methods=[method],
            memory=hints.bytes,
            progress=progress,
        )
        every = configurations(ranks, network, [method], ranks_a_node=machine.ranks_a_node)
        choice = planner.choose(ranks, _possible(every, hints.halo))
        best = choice.plans[0]
        one = best.configuration
        labels = kept.labels(one.method, one.objective, one.algorithm.parts(ranks))
    record = {**of_plan(best, []), "why": choice.why(best)}
    del record["command"]  # of the training command, which this is not
    return Chosen(one.algorithm, labels, record)


def _possible(every: Iterator[Configuration], halo: bool) -> Iterator[Configuration]:
    """Configurations in which all layers work on all own rows; with whole rows, if need be."""
    for one in every:
        how = one.algorithm
        plain = not one.reach and not one.ghosts and one.order == "auto"
        rows = (how.algo, how.cover, how.node_size) == ("1d", "column", 1)
        if plain and (rows or not halo):
            yield one


def told(chosen: Chosen | None) -> Any:
    """The chosen plan as JSON-serialisable data for the other ranks; ``None`` without one."""
    if chosen is None:
        return None
    return {"algorithm": asdict(chosen.algorithm), "record": chosen.record}
