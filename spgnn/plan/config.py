"""The options of ``spgnn plan`` and ``spgnn machine``, and a configuration as planners see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from spgnn.comm import BACKENDS
from spgnn.config import TrainConfig
from spgnn.data.source import GraphSource
from spgnn.errors import InputError, check_choice
from spgnn.options import Record, flag, positional
from spgnn.partition import METHODS
from spgnn.plan.network import PRICED, Network, normalisation_of
from spgnn.plan.pairs import LinkTask
from spgnn.plan.subject import Subject

MOST_RANKS = 1 << 16
# Options of training that plans choose, and those that they leave as they are given.
CHOSEN = (
    *("algo", "c", "exchange", "cover", "hierarchy", "order", "recompute_halo", "prune"),
    "partition",
)
LEFT = ("schedule", "buffer")


@dataclass(frozen=True)
class Plan(Record):
    """The graph, the numbers of ranks, and the output."""

    graph: Annotated[str, positional("a file, a directory or a data set's name")]
    ranks: Annotated[str, flag("numbers of ranks", "P,P,…")]
    top: Annotated[int, flag("plans shown for each P", "N", low=1)] = 5
    plot: Annotated[
        str | None, flag("draw bytes and seconds against P for each scheme", "FILE")
    ] = None
    cache: Annotated[str | None, flag("where partitions are kept", "DIR")] = None
    disk_speed: Annotated[
        int, flag("of the disk of --spill; default: measured", "BYTES/S", in_bytes=True)
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.numbers

    @property
    def numbers(self) -> list[int]:
        """The numbers of ranks, rising."""
        words = self.ranks.split(",")
        found = {int(w) for w in words if w.isascii() and w.isdigit() and len(w) < 10}
        if len(found) != len(set(words)) or not all(1 <= n <= MOST_RANKS for n in found):
            raise InputError(
                f"--ranks {self.ranks}: must be numbers from 1 to {MOST_RANKS}, as in 4,16,64"
            )
        return sorted(found)


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """One run of ``spgnn plan``: the options of training, and what is planned."""

    program: ClassVar[str] = "spgnn plan"
    about: ClassVar[str] = (
        "Rank all configurations of training a graph by predicted seconds. Flags are those of "
        "training; what they say of --algo, --cover and the like is not planned."
    )

    plan: Plan = field(kw_only=True)

    @classmethod
    def of(cls, **values: Any) -> PlanConfig:
        """The defaults with some options set; the graph is the data set."""
        return super().of(**{**values, "dataset": values.get("graph", "sbm")})

    def check(self, ranks: int) -> None:
        """Refuse what cannot be planned.

        Raises
        ------
        InputError
        """
        if self.algorithm.plan is not None:
            raise InputError("--plan is for training: spgnn plan makes what it reads")
        for method in self.methods:
            check_choice("--partition", method, METHODS)
        # A budget asks for plans that fit, in memory or from a disk.
        TrainConfig.check(self.but(memory=0, spill=None, chunks=0), ranks)

    @property
    def methods(self) -> list[str]:
        """Methods of the partitioner that are tried."""
        return list(dict.fromkeys(self.algorithm.partition.split(",")))


@dataclass(frozen=True)
class MachineOptions(Record):
    """Options of ``spgnn machine``."""

    json: Annotated[str | None, flag("write the machine file", "FILE")] = None
    name: Annotated[str | None, flag("what to call it; default: the host", "N")] = None
    nproc: Annotated[int, flag("fork so many ranks", "P", low=1, high=4096)] = 1
    spill: Annotated[str | None, flag("measure the disk of this directory, too", "DIR")] = None
    backend: Annotated[str, flag("of torch.distributed, or mpi", choices=BACKENDS)] = "auto"
    device: Annotated[str, flag("to measure", choices=("auto", "cpu", "cuda"))] = "auto"


def fixed_by(config: TrainConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options that plans choose, but were given."""
    return {name: config.flat()[name] for name in (*CHOSEN, *LEFT) if name in given}


def subject_of(config: TrainConfig, source: GraphSource) -> Subject:
    """The graph that is planned for."""
    data, model = config.data, config.model
    normalisation, loops = normalisation_of(model.model, model.aggregate, data.normalisation)
    return Subject.of(
        source,
        split=data.split,
        seed=config.training.seed,
        random_features=data.random_features,
        random_classes=data.random_classes,
        normalisation=normalisation,
        loops=loops,
        links=links_of(config),
    )


def links_of(config: TrainConfig) -> LinkTask | None:
    """The link task of a configuration, if links are learnt."""
    aim = config.aim
    if aim.task != "links":
        return None
    return LinkTask(
        aim.val_links,
        aim.test_links,
        aim.negatives,
        aim.eval_negatives,
        aim.decoder,
        config.training.epochs,
    )


def network_of(config: TrainConfig, subject: Subject | None) -> Network:
    """The model that a configuration describes, to be priced on a graph, or on none as yet."""
    model = config.model
    features, outputs = (1, 1) if subject is None else (subject.features, subject.classes)
    if config.aim.task == "links":
        outputs = model.hidden
    return Network(
        (features, *[model.hidden] * (model.layers - 1), outputs),
        model.model,
        dropout=model.dropout,
        input_dropout=model.input_dropout,
        sparse=subject is not None and subject.word_counts is not None,
        optimizer=config.training.optimizer,
        dtype=config.training.dtype,
        links=links_of(config),
        **{name: getattr(model, name) for name in PRICED},
    )
