"""The commands spgnn machine and spgnn plan: options, tables and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from spgnn.addons.outofcore import Storage
from spgnn.addons.plan.choose import Choice, Planner
from spgnn.addons.plan.disk import Disk, speed_of
from spgnn.addons.plan.epoch import edges_of
from spgnn.addons.plan.measure import EDGES, measure
from spgnn.addons.plan.options import MachineOptions, PlanConfig
from spgnn.addons.plan.predict import codec_of
from spgnn.comm import Communicator, connect, run_job
from spgnn.command import plural, say, show_table
from spgnn.data import open_source
from spgnn.errors import InputError, memory_for
from spgnn.files import atomic_file, check_writable
from spgnn.machine import Level, Machine, read_machine, write_machine
from spgnn.memory import resident_bytes
from spgnn.options import read_options
from spgnn.partition import check_plot, write_figure
from spgnn.progress import ProgressBar
from spgnn.testing import run_ranks

_WIDTH = 140  # of tables that go into a file


_MEASURED_RANKS = 4


def run_machine(words: Sequence[str]) -> int:
    """Measure, print, and write; returns the exit status of this rank, or of the job."""

    def read() -> MachineOptions:
        about = str(MachineOptions.__doc__)
        options = read_options([MachineOptions], words, program="spgnn machine", about=about)
        return MachineOptions(**options)

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
                pinned=flags,
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


def show_choice(choice: Choice, record: dict[str, Any], top: int, *, estimated: bool) -> None:
    """Print the best plans for one number of ranks, why they are where they are, and commands."""
    from rich.table import Table  # the library prints none

    table = Table(
        title=f"{plural(choice.ranks, 'rank')}: {plural(len(choice.plans), 'plan')}"
        + (", λ̄ estimated from a sample of vertices" if estimated else ""),
        title_justify="left",
    )
    for column in ("", "scheme", "partition"):
        table.add_column(column)
    for column in ("MB an epoch", "most sent", "messages", "largest", "MiB a rank", "ms", "bound"):
        table.add_column(column, justify="right")
    table.add_column("why", overflow="fold")
    for place, (one, plan) in enumerate(
        zip(choice.plans[:top], record["plans"], strict=False), start=1
    ):
        cover = " (cover)" if plan["objective"] == "cover" else ""
        table.add_row(
            str(place),
            one.name,
            plan["partition"] + cover,
            f"{plan['bytes'] / 1e6:,.3f}",
            f"{plan['max_send_bytes'] / 1e6:,.3f}",
            f"{plan['messages']:,}",
            "–" if plan["largest_message_rows"] is None else f"{plan['largest_message_rows']:,}",
            f"{plan['memory_bytes'] / 2**20:,.1f}",
            f"{1e3 * plan['seconds']:,.2f}",
            "–" if plan["bound_seconds"] is None else f"{1e3 * plan['bound_seconds']:,.2f}",
            plan["why"],
        )
    show_table(table, None if sys.stdout.isatty() else _WIDTH)
    for place, plan in enumerate(record["plans"][:top], start=1):
        say(f"{place:>3}  {plan['command']}")
    if choice.dropped:
        least = min(one.prediction.memory_bytes for one in choice.dropped)
        say(
            f"     {len(choice.dropped)} more do not fit into memory; they need {least:,} bytes a "
            "rank or more"
        )
    say("")


def show_machine(machine: Machine) -> None:
    """Print what a machine file says."""
    from rich.table import Table  # the library prints none

    def at_widths(table: Any, values: Sequence[float], scale: float, unit: str) -> str:
        pairs = zip(table.widths, values, strict=True)
        return "  ".join(f"{width:.0f}: {scale * each:.2f} {unit}" for width, each in pairs)

    table = Table(title=machine.name, show_header=False, title_justify="left")
    table.add_row("cores of a node, ranks there", f"{machine.cores}, {machine.ranks_a_node}")
    for name, level in vars(machine.levels).items():
        if level is not None:
            table.add_row(f"{name} nodes", _level(level))
    table.add_row("overlap", f"{machine.overlap:.0%} of the shorter one")
    spmm = machine.spmm
    for size, row in zip(spmm.operand_bytes, spmm.seconds_per_nonzero, strict=True):
        shown = at_widths(spmm, row, 1e9, "ns")
        table.add_row(f"SpMM, operand of {size / 2**20:.3g} MiB", shown)
    for kind, rates in vars(machine.edges).items():
        for way in ("forward", "backward") if rates is not None else ():
            edges = getattr(rates, way)
            shown = at_widths(edges, edges.seconds_per_nonzero[0], 1e9, "ns")
            table.add_row(f"edges of {kind}, {way}", shown)
    gather, gemm = machine.gather, machine.gemm
    table.add_row("gather", at_widths(gather, gather.seconds_per_row, 1e9, "ns"))
    table.add_row("GEMM", at_widths(gemm, gemm.flops_per_second, 1e-9, "Gflop/s"))
    streams = vars(machine.streams).items()
    table.add_row("streams", "  ".join(f"{name} {rate / 1e9:.2f} GB/s" for name, rate in streams))
    overhead = machine.overhead
    table.add_row(
        "overhead",
        f"operation {1e6 * overhead.operation:.1f} µs  exchange {1e6 * overhead.exchange:.1f} µs  "
        f"epoch {1e6 * overhead.epoch:.0f} µs  memory {overhead.memory / 2**20:.0f} MiB",
    )
    show_table(table, None if sys.stdout.isatty() else _WIDTH)


def _level(level: Level) -> str:
    return "  ".join(
        f"{name}: {1e6 * link.call:.1f} µs a call, {1e6 * link.latency:.1f} a message, "
        f"{link.bandwidth / 1e9:.2f} GB/s a rank"
        for name, link in vars(level).items()
    )


# Schemes that are drawn: those that are best anywhere first.
_MOST_LINES = 10


def plot_choices(choices: Sequence[Choice], path: str, title: str) -> None:
    """Draw, for every scheme, bytes and seconds of an epoch against P."""
    suffix = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    figure.suptitle(title, parse_math=False)
    left, right = figure.subplots(1, 2)
    for name, points in lines(choices).items():
        ranks, bytes_, seconds = zip(*points, strict=True)
        left.plot(ranks, bytes_, marker="o", markersize=3, label=name)
        right.plot(ranks, seconds, marker="o", markersize=3, label=name)
    for axes, what in ((left, "bytes an epoch, all ranks"), (right, "seconds an epoch")):
        axes.set(xlabel="ranks", ylabel=what)
        axes.set_xscale("log", base=2)
        numbers = [choice.ranks for choice in choices]
        axes.set_xticks(numbers, [str(ranks) for ranks in numbers])
        axes.minorticks_off()
    right.set_yscale("log")
    moved = [choice.plans[0].prediction.volume["total_bytes"] for choice in choices]
    if any(moved):  # one rank moves nothing, which a logarithm has no place for
        left.set_yscale("symlog", linthresh=min(filter(None, moved)) / 2)
    left.set_ylim(0, 1.5 * left.get_ylim()[1])
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    write_figure(figure, path, suffix)


def lines(choices: Sequence[Choice]) -> dict[str, list[tuple[int, int, float]]]:
    """For each scheme: ranks, bytes and seconds; of several partitions the faster one's."""
    lines: dict[str, dict[int, tuple[int, int, float]]] = {}
    best: dict[str, int] = {}
    for choice in choices:
        for place, one in enumerate(choice.plans):
            name = one.name
            point = choice.ranks, int(one.prediction.volume["total_bytes"]), one.seconds
            lines.setdefault(name, {}).setdefault(choice.ranks, point)
            best[name] = min(place, best.get(name, place))
    shown = sorted(lines, key=lambda name: best[name])[:_MOST_LINES]
    return {name: list(lines[name].values()) for name in shown}
