"""The commands spgnn machine and spgnn plan, and their options."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from spgnn.addons.outofcore import Storage
from spgnn.addons.plan.choose import Choice, Planner
from spgnn.addons.plan.disk import Disk, speed_of
from spgnn.addons.plan.epoch import edges_of
from spgnn.addons.plan.measure import EDGES, measure
from spgnn.addons.plan.predict import codec_of
from spgnn.addons.plan.show import plot_choices, show_choice, show_machine
from spgnn.comm import BACKENDS, Communicator, connect, run_job
from spgnn.command import plural, say
from spgnn.config import Job, TrainConfig
from spgnn.data import open_source
from spgnn.errors import InputError, check_choice, memory_for
from spgnn.files import atomic_file, check_writable
from spgnn.machine import Machine, read_machine, write_machine
from spgnn.memory import resident_bytes
from spgnn.options import Record, flag, positional, read_options
from spgnn.partition import METHODS, check_plot
from spgnn.progress import ProgressBar
from spgnn.testing import run_ranks

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
    """Measure this machine now, by forked ranks, with what edges take in some kinds of layers."""
    try:
        machines = run_ranks(
            lambda _: measure(connect("auto", "cpu"), edges=edges), ranks, threads=0
        )
    except RuntimeError as error:
        raise InputError(f"measuring this machine: {error}; use --machine") from None
    machine: Machine = machines[0]
    return machine


def run_plan(words: Sequence[str]) -> int:
    """Rank all configurations, print the best, and write what was asked for."""
    idle = resident_bytes()
    flags = PlanConfig.given(words)
    config = PlanConfig.of(**flags)
    options, job, storage = config.plan, config.job, config.extension(Storage)
    # What is said of one scheme may not work on some numbers of ranks: then there is no plan.
    config.but(algo="1d", c=1, hierarchy="none").check(1)
    _ = codec_of(config)
    if job.json is not None:
        check_writable(job.json, "--json")
    if options.plot is not None:
        check_plot(options.plot)
        check_writable(options.plot, "--plot")
    with ProgressBar() as progress:
        if config.algorithm.machine is None:
            progress("measuring this machine", 0, 1)
            # Forked before anything makes threads.
            measured = max(2, min(_MEASURED_RANKS, *options.numbers))
            machine = measured_here(measured, edges_of(config))
            machine = replace(machine, ranks_a_node=options.numbers[-1])
        else:
            machine = read_machine(config.algorithm.machine)
        with memory_for(options.graph):
            source = open_source(
                config.data.dataset,
                config.data.data_dir,
                progress=progress,
                graph_split=config.data.graphs_of_splits,
            )
            disk = None
            if codec_of(config) is None and (storage.spill or storage.memory):
                speed = options.disk_speed or (0.0 if storage.spill else machine.disk)
                here = replace(storage, spill=storage.spill or ".")
                disk = Disk(options.graph, here, speed, idle, is_asked=storage.spill is not None)
            planner = Planner(
                source,
                config,
                machine,
                given=flags,
                memory=storage.memory or None,
                disk=disk,
                cache=options.cache,
                progress=progress,
            )
            dataset, choices, refused = planner.dataset, list[Choice](), list[InputError]()
            for ranks in options.numbers:
                try:
                    choices.append(planner.choose(ranks))
                except InputError as error:
                    refused.append(error)
    if not choices:
        raise refused[0]
    for why in refused:
        say(f"no plan: {why}")
    if config.algorithm.machine is None:
        say(
            f"priced as one machine like this one, of {plural(machine.cores, 'core')}; --machine "
            "FILE, which spgnn machine --json writes, prices others\n"
        )
    elif machine.ranks_a_node < options.numbers[-1]:
        a_node = plural(machine.ranks_a_node, "rank")
        say(f"priced with {a_node} on each node of {machine.name}: torchrun needs --nnodes there\n")
    records = [choice.record for choice in choices]
    for choice, record in zip(choices, records, strict=True):
        show_choice(choice, record, options.top, estimated=planner.estimates)
    if job.json is not None:
        whole: dict[str, Any] = {
            "graph": {
                "name": dataset.name,
                "vertices": dataset.vertices,
                "edges": dataset.structure.nnz,
                "features": dataset.features,
                "classes": dataset.classes,
            },
            "machine": machine.name,
        }
        for name in ("plans", "dropped"):
            whole[name] = [plan for record in records for plan in record[name]]
        with atomic_file(job.json, f"--json {job.json}") as file:
            file.write((json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
    if options.plot is not None:
        plot_choices(choices, options.plot, f"{dataset.name} on {machine.name}")
    return 0


MACHINE = ("Measure this machine.", run_machine)
PLAN = ("Rank all configurations of training a graph by predicted seconds.", run_plan)
