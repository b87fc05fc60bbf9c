"""The commands spgnn machine and spgnn plan, and their options."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from spgnn.comm import (
    BACKENDS,
    Communicator,
    connect,
    guarded,
    launch,
    run_job,
)
from spgnn.config import Job, TrainConfig
from spgnn.data.load import open_source
from spgnn.data.source import GraphSource, MemorySource
from spgnn.errors import InputError, check_choice, memory_for
from spgnn.files import atomic_file, check_writable
from spgnn.memory import resident_bytes
from spgnn.options import Record, flag, positional, read_options
from spgnn.partition import METHODS
from spgnn.plan.choose import Choice, Planner
from spgnn.plan.machine import Machine, read_machine, write_machine
from spgnn.plan.measure import measure
from spgnn.plan.network import PRICED, Network, normalisation_of
from spgnn.plan.out_of_core import OutOfCore, speed_of
from spgnn.plan.pairs import LinkTask
from spgnn.plan.partitions import Partitions, cache_directory
from spgnn.plan.rates import EDGES
from spgnn.plan.search import configurations, fitting
from spgnn.plan.subject import Subject
from spgnn.plan.table import check_plot, of_choice, plot_choices, show_choice, show_machine
from spgnn.plan.wired import Wired
from spgnn.progress import ProgressBar

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
    device: Annotated[Literal["auto", "cpu", "cuda"], flag("to measure")] = "auto"

    @property
    def job(self) -> Job:
        """The options of the job."""
        return replace(Job(), backend=self.backend, device=self.device, nproc=self.nproc)

    def check(self, ranks: int) -> None:
        """Any number of ranks will do."""


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


# Graphs of more nonzeros are partitioned by streaming, unless it is said how.
STREAMED = 3_000_000
_MEASURED_RANKS = 4


def run_machine(words: Sequence[str]) -> int:
    """Measure, print, and write; returns the exit status of this rank, or of the job."""
    about = "Measure this machine, alone or as a rank of torchrun, mpiexec or srun."

    def read() -> MachineOptions:
        return MachineOptions(
            **read_options([MachineOptions], words, program="spgnn machine", about=about)
        )

    def measured(options: MachineOptions, comm: Communicator) -> Machine:
        path, spill = options.json, options.spill
        if path is not None:
            comm.on_rank_zero(lambda: check_writable(path, "--json"))
        machine = measure(comm, options.name, edges=EDGES)
        disk = None if spill is None else comm.on_rank_zero(lambda: speed_of(spill))
        return machine if disk is None else replace(machine, disk=disk)

    def publish(options: MachineOptions, machine: Machine) -> None:
        show_machine(machine)
        if options.json is not None:
            write_machine(machine, options.json, f"--json {options.json}")

    return run_job(read, measured, publish)


def measured_here(ranks: int, edges: Collection[str] = ()) -> Machine:
    """Measure this machine now, by forked ranks, with what edges take in some kinds of layers.

    Raises
    ------
    InputError
        If a rank failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "machine.json")

        def body() -> int:
            comm = connect("auto", "cpu")
            with guarded(comm):
                machine = measure(comm, edges=edges)
                if comm.rank == 0:
                    write_machine(machine, path)
            return 0

        status = launch(body, ranks, threads=0)
        if status:
            raise InputError(f"measuring this machine ended with status {status}; use --machine")
        return read_machine(path)


def run_plan(words: Sequence[str]) -> int:
    """Rank all configurations, print the best, and write what was asked for."""
    idle = resident_bytes()
    given = PlanConfig.given(words)
    config = PlanConfig.of(**given)
    numbers, job, plot = config.plan.numbers, config.job, config.plan.plot
    # What is said of one scheme may not work on some numbers of ranks: then there is no plan.
    config.but(algo="1d", c=1, hierarchy="none").check(1)
    messages = Wired.of(config.messages.codec, config.training.epochs)
    if job.json is not None:
        check_writable(job.json, "--json")
    if plot is not None:
        check_plot(plot)
        check_writable(plot, "--plot")
    with ProgressBar() as progress:
        if config.algorithm.machine is None:
            progress("measuring this machine", 0, 1)
            # Forked before anything makes threads.
            measured = max(2, min(_MEASURED_RANKS, *numbers))
            machine = measured_here(measured, network_of(config, None).edges)
        else:
            machine = read_machine(config.algorithm.machine)
        with memory_for(config.plan.graph):
            planner = _planner(config, given, machine, messages, progress, idle)
            fixed = {n: v for n, v in fixed_by(config, given).items() if n != "partition"}
            choices = [_choose(planner, ranks, fixed) for ranks in numbers]
    base = config.written("graph", "ranks", "top", "plot", "cache", "disk_speed", *_NOT_PLANNED)
    records = [of_choice(choice, base) for choice in choices]
    for choice, record in zip(choices, records, strict=True):
        show_choice(choice, record, config.plan.top, estimated=planner.estimates)
    _write(config, planner, choices, records)
    return 0


# What of a command line is not repeated in that of a plan, which chooses it or says it itself.
_NOT_PLANNED = (*CHOSEN, *LEFT, "machine", "memory", "spill", "chunks", "json", "nproc", "config")


def _choose(planner: Planner, ranks: int, fixed: Mapping[str, Any]) -> Choice:
    """Of all configurations that have what was given."""
    if not fixed:
        return planner.choose(ranks)
    machine, network = planner.machine, planner.network
    every = configurations(
        ranks, network, planner.methods, ranks_a_node=machine.ranks_a_node, thorough=True
    )
    return planner.choose(ranks, fitting(every, fixed))


def _planner(
    config: PlanConfig,
    given: Mapping[str, Any],
    machine: Machine,
    messages: Wired | None,
    progress: ProgressBar,
    idle: int,
) -> Planner:
    """Planner for the command line's options; `idle` are this process's bytes without data."""
    data, memory = config.data, config.storage.memory
    source = open_source(
        data.dataset, data.data_dir, progress=progress, graph_split=data.graphs_of_splits
    )
    if data.symmetrise:
        source = MemorySource(source.graph().symmetrised())
    subject = subject_of(config, source)
    partitions = Partitions(
        subject,
        cache_directory(config.plan.cache),
        seed=config.training.seed,
        imbalance=config.algorithm.imbalance,
        progress=progress,
    )
    large = subject.structure.nnz > STREAMED
    return Planner(
        subject,
        network_of(config, subject),
        machine,
        partitions,
        methods=config.methods if "partition" in given else (["stream"] if large else ["gvb"]),
        memory=memory or None,
        wired=messages,
        progress=progress,
        beside=_out_of_core(config, source, machine, idle) if messages is None else None,
    )


def _out_of_core(
    config: PlanConfig, source: GraphSource, machine: Machine, idle: int
) -> OutOfCore | None:
    """The price of training from a disk, if memory is short."""
    storage = config.storage
    if not storage.spill and not storage.memory:
        return None
    spill = storage.spill or "."
    known = config.plan.disk_speed or (0.0 if storage.spill else machine.disk)
    speed = known or speed_of(spill)
    return OutOfCore(
        source, config.plan.graph, config.data.split, spill, speed, storage.memory or None, idle
    )


def _write(
    config: PlanConfig,
    planner: Planner,
    choices: list[Choice],
    records: list[dict[str, Any]],
) -> None:
    subject = planner.subject
    if config.job.json is not None:
        whole = {
            "graph": {
                "name": subject.name,
                "vertices": subject.vertices,
                "edges": subject.structure.nnz,
                "features": subject.features,
                "classes": subject.classes,
            },
            "machine": planner.machine.name,
            "plans": [plan for record in records for plan in record["plans"]],
            "dropped": [plan for record in records for plan in record["dropped"]],
            "outpaced": [plan for record in records for plan in record["outpaced"]],
        }
        with atomic_file(config.job.json, f"--json {config.job.json}") as file:
            file.write((json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
    if config.plan.plot is not None:
        plot_choices(choices, config.plan.plot, f"{subject.name} on {planner.machine.name}")
