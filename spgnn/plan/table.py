"""Plans as records, tables and pictures."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from spgnn.command import plural, say, show_table
from spgnn.files import write_file
from spgnn.partition.plot import check_plot
from spgnn.plan.choose import Choice
from spgnn.plan.hops import LEVELS
from spgnn.plan.machine import Level, Machine
from spgnn.plan.search import Outpaced, Planned


def of_choice(choice: Choice, base: Sequence[str]) -> dict[str, Any]:
    """All plans for one number of ranks, and those that do not fit.

    Parameters
    ----------
    choice : Choice
    base : sequence of str
        What of the training command line is not planned.
    """
    return {
        "ranks": choice.ranks,
        "plans": [{**of_plan(one, base), "why": choice.why(one)} for one in choice.plans],
        "dropped": [of_plan(one, base) for one in choice.dropped],
        "outpaced": [of_outpaced(one) for one in choice.outpaced],
    }


def of_outpaced(outpaced: Outpaced) -> dict[str, Any]:
    """A configuration that was not counted, and the least seconds that it would take."""
    one = outpaced.configuration
    return {"ranks": one.ranks, **one.flags, "seconds_at_least": outpaced.seconds}


def of_plan(planned: Planned, base: Sequence[str]) -> dict[str, Any]:
    """One complete configuration, its price, and the command that runs it."""
    one, price = planned.configuration, planned.prediction
    flags, volume, levels = one.flags, price.volume, price.volume_by_level
    return {
        "ranks": one.ranks,
        **{name: flags[name] for name in ("algo", "c", "exchange", "cover")},
        "recompute_halo": flags["recompute_halo"],
        "prune": flags["prune"],
        "order": flags["order"],
        "partition": one.method,
        "objective": one.objective,
        "schedule": flags["schedule"],
        "hierarchy": flags["hierarchy"],
        "bytes": volume["total_bytes"],
        "max_send_bytes": volume["max_send_bytes"],
        "max_recv_bytes": volume["max_recv_bytes"],
        "bytes_by_level": {level: levels[level]["total_bytes"] for level in LEVELS},
        "messages": int(price.messages.sum()),
        "memory_bytes": price.memory_bytes,
        "memory": {name: int(bytes_.max()) for name, bytes_ in price.memory.items()},
        "seconds": planned.seconds,
        "seconds_by_kind": price.seconds,
        "estimated": planned.estimated,
        "storage": one.storage,
        "command": command_of(planned, base),
    }


def command_of(planned: Planned, base: Sequence[str]) -> str:
    """The command line that runs a plan."""
    one = planned.configuration
    words = ["torchrun", "--nproc-per-node", str(one.ranks), "experiments/gcn.py"]
    return shlex.join([*words, *base, *one.written()])


_WIDTH = 140  # of tables that go into a file


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
    for column in ("MB an epoch", "most sent", "messages", "MiB a rank", "ms"):
        table.add_column(column, justify="right")
    table.add_column("why", overflow="fold")
    for place, (one, plan) in enumerate(
        zip(choice.plans[:top], record["plans"], strict=False), start=1
    ):
        cover = " (cover)" if plan["objective"] == "cover" else ""
        table.add_row(
            str(place),
            str(one.configuration),
            plan["partition"] + cover,
            f"{plan['bytes'] / 1e6:,.3f}",
            f"{plan['max_send_bytes'] / 1e6:,.3f}",
            f"{plan['messages']:,}",
            f"{plan['memory_bytes'] / 2**20:,.1f}",
            f"{1e3 * plan['seconds']:,.2f}",
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
    if choice.outpaced:
        least_seconds = min(one.seconds for one in choice.outpaced)
        say(
            f"     {len(choice.outpaced)} with hierarchy were not counted; at best they take "
            f"{1e3 * least_seconds:,.2f} ms"
        )
    say("")


def show_machine(machine: Machine) -> None:
    """Print what a machine file says."""
    from rich.table import Table  # the library prints none

    table = Table(title=machine.name, show_header=False, title_justify="left")
    table.add_row("cores of a node, ranks there", f"{machine.cores}, {machine.ranks_a_node}")
    inside, between = machine.levels.inside, machine.levels.between
    table.add_row("inside nodes", _level(inside))
    if between is not None:
        table.add_row("between nodes", _level(between))
    table.add_row("overlap", f"{machine.overlap:.0%} of the shorter one")
    spmm = machine.spmm
    for size, row in zip(spmm.operand_bytes, spmm.seconds_per_nonzero, strict=True):
        table.add_row(
            f"SpMM, operand of {size / 2**20:.3g} MiB",
            "  ".join(
                f"{width:.0f}: {1e9 * each:.2f} ns"
                for width, each in zip(spmm.widths, row, strict=True)
            ),
        )
    for kind, weighed in vars(machine.edges).items():
        for way in ("forward", "backward") if weighed is not None else ():
            edges = getattr(weighed, way)
            table.add_row(
                f"edges of {kind}, {way}",
                "  ".join(
                    f"{width:.0f}: {1e9 * each:.2f} ns"
                    for width, each in zip(edges.widths, edges.seconds_per_nonzero[0], strict=True)
                ),
            )
    table.add_row(
        "gather",
        "  ".join(
            f"{width:.0f}: {1e9 * each:.1f} ns"
            for width, each in zip(
                machine.gather.widths, machine.gather.seconds_per_row, strict=True
            )
        ),
    )
    table.add_row(
        "GEMM",
        "  ".join(
            f"{width:.0f}: {rate / 1e9:.1f} Gflop/s"
            for width, rate in zip(machine.gemm.widths, machine.gemm.flops_per_second, strict=True)
        ),
    )
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
    """Draw, for every scheme, bytes and seconds of an epoch against P.

    Raises
    ------
    InputError
        As `check_plot`, and if the file cannot be written.
    """
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
        axes.set_yscale("symlog" if axes is left else "log")
    right.legend(frameon=False, fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix, dpi=150)
    write_file(path, [drawn.getvalue()], f"--plot {path}")


def lines(choices: Sequence[Choice]) -> dict[str, list[tuple[int, int, float]]]:
    """For each scheme: ranks, bytes and seconds; of several partitions the faster one's."""
    found: dict[str, dict[int, tuple[int, int, float]]] = {}
    best: dict[str, int] = {}
    for choice in choices:
        for place, one in enumerate(choice.plans):
            name = str(one.configuration)
            point = choice.ranks, int(one.prediction.volume["total_bytes"]), one.seconds
            found.setdefault(name, {}).setdefault(choice.ranks, point)
            best[name] = min(place, best.get(name, place))
    shown = sorted(found, key=lambda name: best[name])[:_MOST_LINES]
    return {name: list(found[name].values()) for name in shown}


__all__ = ["check_plot", "lines", "plot_choices"]
