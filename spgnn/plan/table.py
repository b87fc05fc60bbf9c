"""What the commands print."""

from __future__ import annotations

import sys
from typing import Any

from rich.table import Table

from spgnn.command import plural, say, show_table
from spgnn.plan.choose import Choice
from spgnn.plan.machine import Level, Machine

_WIDTH = 140  # of tables that go into a file


def show_choice(choice: Choice, record: dict[str, Any], top: int, *, estimated: bool) -> None:
    """Print the best plans for one number of ranks, why they are where they are, and commands."""
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
