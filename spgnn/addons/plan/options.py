"""Options of the commands spgnn machine and spgnn plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from spgnn.addons.outofcore import Storage
from spgnn.config import Job, TrainConfig
from spgnn.errors import InputError, check_choice
from spgnn.options import Record, flag, positional
from spgnn.registry import BACKENDS, LIBRA, METHODS

MOST_RANKS = 1 << 16


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
        numbers = {int(w) for w in words if w.isascii() and w.isdigit() and len(w) < 10}
        if len(numbers) != len(set(words)) or not all(1 <= n <= MOST_RANKS for n in numbers):
            raise InputError(
                f"--ranks {self.ranks}: must be numbers from 1 to {MOST_RANKS}, as in 4,16,64"
            )
        return sorted(numbers)


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """One run of ``spgnn plan``: the options of training, and what is planned."""

    program: ClassVar[str] = "spgnn plan"
    about: ClassVar[str] = (
        "Rank all configurations of training a graph by predicted seconds. Flags are those of "
        "training; one that would be planned, as --algo or --cover, stays as it is if given."
    )

    fixed: ClassVar[tuple[str, ...]] = ("nproc", "resume", "checkpoint", "predictions")

    plan: Plan = field(kw_only=True)

    @classmethod
    def of(cls, **values: Any) -> PlanConfig:
        """The defaults with some options set; the graph is the data set."""
        graph = values.get("graph", "sbm")
        if values.get("dataset", graph) != graph:
            raise InputError(f"--dataset {values['dataset']}: plans are of GRAPH, {graph}")
        return super().of(**{**values, "dataset": graph})

    def check(self, ranks: int) -> None:
        """Refuse what cannot be planned."""
        if self.algorithm.plan is not None:
            raise InputError("--plan is for training: spgnn plan makes what it reads")
        for method in self.methods:
            if method == LIBRA:
                raise InputError("--partition libra: spgnn plan has no prices for it: leave it out")
            check_choice("--partition", method, METHODS)
        storage = self.extension(Storage)
        if storage.chunks:
            raise InputError("--chunks is what plans choose: give --memory, or --spill")
        if storage != Storage() and not storage.asked:
            TrainConfig.check(self, ranks)  # which says what it needs
        # A budget asks for plans that fit, in memory or from a disk.
        TrainConfig.check(self.but(plan="auto").having(Storage()), ranks)

    @property
    def methods(self) -> list[str]:
        """Methods of the partitioner that are tried."""
        return list(dict.fromkeys(self.algorithm.partition.split(",")))


@dataclass(frozen=True)
class MachineOptions(Record):
    """Measure this machine, alone or as a rank of torchrun, mpiexec or srun."""

    json: Annotated[str | None, flag("write the machine file", "FILE")] = None
    name: Annotated[str | None, flag("what to call it; default: the host", "N")] = None
    nproc: Annotated[int, flag("fork so many ranks", "P", low=1, high=4096)] = 1
    spill: Annotated[str | None, flag("measure the disk of this directory, too", "DIR")] = None
    backend: Annotated[str, flag("of torch.distributed, or mpi", choices=BACKENDS)] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], flag("to measure")] = "auto"

    @property
    def job(self) -> Job:
        """The options of the job."""
        return replace(Job(), backend=self.backend, device=self.device, nproc=self.nproc)

    def check(self, ranks: int) -> None:
        """Any number of ranks will do."""
