"""Plans and machines as tables and pictures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from spgnn.addons.plan.choose import Choice
from spgnn.command import plural, say, show_table
from spgnn.machine import Level, Machine
from spgnn.partition import check_plot, write_figure

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
