"""The commands ``spgnn machine`` and ``spgnn plan``."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import torch

from spgnn.comm import (
    BACKENDS,
    connect,
    default_threads,
    find_place,
    guarded,
    launch,
    on_rank_zero,
    refuse,
)
from spgnn.command import at_least, nbytes, real
from spgnn.data.load import open_source
from spgnn.data.source import GraphSource, MemorySource
from spgnn.errors import InputError, check_choice, memory_for, shortened
from spgnn.files import check_writable, written_aside
from spgnn.memory import resident_bytes
from spgnn.nn import PRECISIONS
from spgnn.partition import METHODS
from spgnn.plan.choose import Choice, Planner
from spgnn.plan.edges import EDGES
from spgnn.plan.machine import Machine, read_machine, write_machine
from spgnn.plan.measure import measure
from spgnn.plan.network import PRICED, ModelKind, Network, normalisation_of
from spgnn.plan.out_of_core import OutOfCore, speed_of
from spgnn.plan.pairs import LinkTask
from spgnn.plan.partitions import Partitions, cache_directory
from spgnn.plan.plot import check_plot, plot_choices
from spgnn.plan.records import of_choice
from spgnn.plan.subject import Subject
from spgnn.plan.table import show_choice, show_machine
from spgnn.plan.wire_flags import delay, staged, wired_of, written_wires
from spgnn.progress import ProgressBar

MOST_RANKS = 1 << 16
# Graphs of more nonzeros are partitioned by streaming, unless it is said how.
STREAMED = 3_000_000
_MEASURED_RANKS = 4


def add_machine(commands: Any) -> None:
    """Add ``spgnn machine`` to the subcommands."""
    parser = commands.add_parser(
        "machine",
        help="measure this machine, alone or as a rank of torchrun, mpiexec or srun",
        allow_abbrev=False,
    )
    parser.add_argument("--json", metavar="FILE", help="write the machine file")
    parser.add_argument("--name", metavar="N", help="what to call it (default: the host)")
    parser.add_argument(
        "--nproc", type=at_least(1, 4096), default=1, metavar="P", help="fork so many ranks"
    )
    parser.add_argument("--spill", metavar="DIR", help="measure the disk of this directory, too")
    parser.add_argument("--backend", default="auto", choices=BACKENDS)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.set_defaults(run=run_machine)


ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid")
NORMS = ("none", "batch", "layer", "node", "graph", "pair")


def add_plan(commands: Any) -> None:
    """Add ``spgnn plan`` to the subcommands."""
    parser = commands.add_parser(
        "plan",
        help="rank all configurations of training a graph by predicted seconds",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("graph", metavar="GRAPH", help="a file, a directory or a data set's name")
    add("--ranks", required=True, type=rank_list, metavar="P,P,…", help="numbers of ranks")
    model = parser.add_argument_group("model, as the training command has it")
    model.add_argument("--layers", type=at_least(1, 1000), default=3, metavar="L")
    model.add_argument("--hidden", type=at_least(1), default=16, metavar="F")
    model.add_argument("--dropout", type=real(0, 1), default=0.0, metavar="P")
    model.add_argument("--no-input-dropout", action="store_true")
    model.add_argument("--model", choices=get_args(ModelKind), default="gcn")
    model.add_argument("--act", choices=ACTIVATIONS, default="relu")
    model.add_argument("--norm", choices=NORMS, default="none")
    model.add_argument("--residual", action="store_true")
    model.add_argument("--jk", choices=("none", "last", "cat", "max"), default="none")
    model.add_argument("--aggregate", choices=("mean", "sum", "max"), default="mean")
    model.add_argument("--heads", type=at_least(1, 1024), default=1, metavar="H")
    model.add_argument("--attention-dropout", type=real(0, 1), metavar="P")
    model.add_argument("--message-dropout", type=real(0, 1), default=0.0, metavar="P")
    model.add_argument("--dtype", choices=PRECISIONS, default="float32")
    model.add_argument("--optimizer", choices=("adam", "adamw", "sgd"), default="adam")
    model.add_argument("--normalisation", choices=("auto", "sym", "row", "none"), default="auto")
    model.add_argument("--split", type=at_least(0), default=0, metavar="N")
    model.add_argument("--random-features", type=at_least(0), default=0, metavar="F")
    model.add_argument("--random-classes", type=at_least(0), default=0, metavar="C")
    model.add_argument("--symmetrise", action="store_true")
    _add_links(parser)
    _add_wires(parser)
    add(
        "--partition", type=method_list, metavar="METHOD,…", help="default: gvb, or stream if large"
    )
    add("--imbalance", type=real(0, 1000), default=0.05, metavar="E")
    add("--seed", type=at_least(0), default=0)
    add("--memory", type=byte_count, metavar="BYTES", help="of each rank: 20GB, 512MiB")
    add("--spill", metavar="DIR", help="price training from a disk, which --memory does as well")
    add("--disk-speed", type=byte_count, metavar="BYTES/S", help="of that disk; default: measured")
    add("--machine", metavar="FILE", help="default: this machine, measured now")
    add("--top", type=at_least(1), default=5, metavar="N", help="plans shown for each P")
    add("--json", metavar="FILE", help="write all plans")
    add("--plot", metavar="FILE", help="draw bytes and seconds against P for each scheme")
    add("--cache", metavar="DIR", help="where partitions are kept")
    add("--data-dir", metavar="DIR", help="where named sets live")
    parser.set_defaults(run=run_plan)


def _add_wires(parser: argparse.ArgumentParser) -> None:
    wires = parser.add_argument_group("wires, as the training command has them")
    wires.add_argument("--bits", type=staged(int), default=((0, 32),), metavar="B")
    wires.add_argument("--error-feedback", action="store_true")
    wires.add_argument("--delay", type=delay, default=0, metavar="R|never")
    wires.add_argument("--delay-bins", type=at_least(1), default=1, metavar="B")
    wires.add_argument("--centred", action=argparse.BooleanOptionalAction)
    wires.add_argument("--exact-last", type=at_least(0), default=0, metavar="K")
    wires.add_argument("--boundary-sampling", type=staged(float), default=((0, 1.0),), metavar="P")
    wires.add_argument("--epochs", type=at_least(1), default=100, metavar="N")


def _add_links(parser: argparse.ArgumentParser) -> None:
    """Flags of what is learnt."""
    add = parser.add_argument_group("what is learnt, as the training command has it").add_argument
    add("--task", choices=("vertices", "links"), default="vertices")
    add("--decoder", choices=("dot", "mlp"), default="dot")
    add("--negatives", type=at_least(1), default=1, metavar="N")
    add("--eval-negatives", type=at_least(1), default=100, metavar="N")
    add("--val-links", type=real(0, 1), default=0.05, metavar="SHARE")
    add("--test-links", type=real(0, 1), default=0.1, metavar="SHARE")


def rank_list(text: str) -> list[int]:
    """The type of a flag: numbers of ranks, rising."""
    one = at_least(1, MOST_RANKS)
    return sorted({one(part) for part in text.split(",")})


def method_list(text: str) -> list[str]:
    """The type of a flag: methods of the partitioner."""
    try:
        for name in text.split(","):
            check_choice("method", name, METHODS)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return list(dict.fromkeys(text.split(",")))


def byte_count(text: str) -> int:
    """The type of a flag: some bytes, with or without a unit."""
    value = nbytes(text)
    if not 1 <= value < 2**60:
        raise argparse.ArgumentTypeError(f"'{shortened(text, 40)}' is no number of bytes to have")
    return value


def run_machine(options: argparse.Namespace) -> int:
    """Measure, print, and write; returns the exit status of this rank, or of the job."""

    def body() -> int:
        try:
            comm = connect(options.backend, options.device)
        except InputError as error:
            return refuse(error)
        with guarded(comm):
            if options.json is not None:
                on_rank_zero(comm, lambda: check_writable(options.json, "--json"))
            machine = measure(comm, options.name, edges=EDGES)
            if options.spill is not None:
                disk = on_rank_zero(comm, lambda: speed_of(options.spill))
                machine = replace(machine, disk=disk or 0.0)
            if comm.rank == 0:
                show_machine(machine)
                if options.json is not None:
                    write_machine(machine, options.json, f"--json {options.json}")
        return 0

    return _started(body, options.nproc)


def _started(body: Callable[[], int], nproc: int) -> int:
    """As a rank of a launcher, or as so many forked ranks."""
    place = find_place()
    if place is not None and nproc > 1 and place.size != nproc:
        raise InputError(
            f"--nproc {nproc} starts ranks, but a launcher has already started {place.size}; "
            "leave one of them out"
        )
    if place is None and nproc > 1:
        return launch(body, nproc, default_threads(nproc))
    torch.set_num_threads(default_threads())
    return body()


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

        status = launch(body, ranks, default_threads(ranks))
        if status:
            raise InputError(f"measuring this machine ended with status {status}; use --machine")
        return read_machine(path)


def run_plan(options: argparse.Namespace) -> int:
    """Rank all configurations, print the best, and write what was asked for."""
    idle = resident_bytes()
    wired_of(options)  # before anything is measured
    if options.json is not None:
        check_writable(options.json, "--json")
    if options.plot is not None:
        check_plot(options.plot)
        check_writable(options.plot, "--plot")
    with ProgressBar() as progress:
        if options.machine is None:
            progress("measuring this machine", 0, 1)
            # Forked before anything makes threads.
            measured = max(2, min(_MEASURED_RANKS, *options.ranks))
            machine = measured_here(measured, _network(options, 1, 1).edges)
        else:
            machine = read_machine(options.machine)
        with memory_for(options.graph):
            planner = _planner(options, machine, progress, idle)
            choices = [planner.choose(ranks) for ranks in options.ranks]
    records = [of_choice(choice, _base(options)) for choice in choices]
    for choice, record in zip(choices, records, strict=True):
        show_choice(choice, record, options.top, estimated=planner.estimates)
    _write(options, planner, choices, records)
    return 0


def _planner(
    options: argparse.Namespace, machine: Machine, progress: ProgressBar, idle: int
) -> Planner:
    """For what the command line says; `idle` are bytes of this process before it had any data."""
    source = open_source(options.graph, options.data_dir, progress=progress)
    if options.symmetrise:
        source = MemorySource(source.graph().symmetrised())
    normalisation, loops = normalisation_of(options.model, options.aggregate, options.normalisation)
    subject = Subject.of(
        source,
        split=options.split,
        seed=options.seed,
        random_features=options.random_features,
        random_classes=options.random_classes,
        normalisation=normalisation,
        loops=loops,
        links=_links(options),
    )
    network = _network(options, subject.features, subject.classes)
    network = replace(network, sparse=subject.word_counts is not None)
    partitions = Partitions(
        subject,
        cache_directory(options.cache),
        seed=options.seed,
        imbalance=options.imbalance,
        progress=progress,
    )
    large = subject.structure.nnz > STREAMED
    return Planner(
        subject,
        network,
        machine,
        partitions,
        methods=options.partition or (["stream"] if large else ["gvb"]),
        memory=options.memory,
        wired=wired_of(options),
        progress=progress,
        beside=_out_of_core(options, source, machine, idle),
    )


def _network(options: argparse.Namespace, features: int, classes: int) -> Network:
    """The model that the command line describes."""
    outputs = classes if _links(options) is None else options.hidden
    return Network(
        (features, *[options.hidden] * (options.layers - 1), outputs),
        options.model,
        dropout=options.dropout,
        input_dropout=not options.no_input_dropout,
        optimizer=options.optimizer,
        dtype=options.dtype,
        links=_links(options),
        **{name: getattr(options, name) for name in PRICED},
    )


def _links(options: argparse.Namespace) -> LinkTask | None:
    """What is said of links, if they are learnt.

    Raises
    ------
    InputError
        If none is left to train on.
    """
    if options.task != "links":
        return None
    if options.val_links + options.test_links >= 1:
        raise InputError("--val-links and --test-links leave nothing to train on: sum ≥ 1")
    names = (field.name for field in fields(LinkTask))
    return LinkTask(**{name: getattr(options, name) for name in names})


def _out_of_core(
    options: argparse.Namespace, source: GraphSource, machine: Machine, idle: int
) -> OutOfCore | None:
    """What training from a disk takes, if somebody is short of memory."""
    # From a disk rows travel as they are.
    if (options.spill is None and options.memory is None) or wired_of(options) is not None:
        return None
    spill = options.spill or "."
    speed = options.disk_speed or (0.0 if options.spill else machine.disk) or speed_of(spill)
    return OutOfCore(source, options.graph, options.split, spill, speed, options.memory, idle)


def _base(options: argparse.Namespace) -> list[str]:
    """What of the training command line is not planned."""
    found = ["--dataset", options.graph]
    defaults = {"layers": 3, "hidden": 16, "dropout": 0.0, "optimizer": "adam", "split": 0}
    defaults |= {
        "normalisation": "auto",
        "model": "gcn",
        "act": "relu",
        "norm": "none",
        "jk": "none",
        "aggregate": "mean",
        "heads": 1,
        "attention_dropout": None,
        "message_dropout": 0.0,
        "dtype": "float32",
        "random_features": 0,
        "random_classes": 0,
        "seed": 0,
    }
    defaults |= {"imbalance": 0.05, "data_dir": None, "task": "vertices"}
    defaults |= {field.name: field.default for field in fields(LinkTask) if field.name != "epochs"}
    for name, default in defaults.items():
        if getattr(options, name) != default:
            found += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    found += written_wires(options)
    for name in ("no_input_dropout", "residual", "symmetrise"):
        found += ["--" + name.replace("_", "-")] * getattr(options, name)
    return found


def _write(
    options: argparse.Namespace,
    planner: Planner,
    choices: list[Choice],
    records: list[dict[str, Any]],
) -> None:
    subject = planner.subject
    if options.json is not None:
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
        with written_aside(options.json, f"--json {options.json}") as file:
            file.write((json.dumps(whole, indent=1, allow_nan=False) + "\n").encode())
    if options.plot is not None:
        plot_choices(choices, options.plot, f"{subject.name} on {planner.machine.name}")
