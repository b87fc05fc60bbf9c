"""The table that closes a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from spgnn.command import counted, show_table
from spgnn.exchange.approximation import DIRECTIONS
from spgnn.train.clock import CATEGORIES
from spgnn.train.objective import SPLITS
from spgnn.train.repeated import AT_BEST

TITLES = {"acc": "accuracy"}
SHARES = ("acc", "f1_micro", "f1_macro", "roc_auc")
Report = Mapping[str, Any]


def show(report: Report) -> None:
    """Print the table of a report."""
    graph, config = report["graph"], report["config"]
    table = Table(
        title=f"{graph['name']}: {graph['vertices']:,} vertices, {graph['edges']:,} edges, "
        f"{counted(report['world_size'], 'rank')}, {config['algo']}, c = {config['c']}",
        show_header=False,
        title_justify="left",
    )
    _add_scores(table, report)
    _add_times(table, report)
    _add_bytes(table, report)
    if report.get("approximation") is not None:
        _add_approximation(table, report["approximation"])
    if report.get("storage") is not None:
        _add_storage(table, report["storage"])
    for name, title in (("peak_bytes", "peak memory"), ("peak_above_idle_bytes", "of it for data")):
        most, middle, first = (
            f"{report['memory'][f'{which}_{name}'] / 2**20:,.0f}"
            for which in ("max_rank", "median_rank", "rank_0")
        )
        table.add_row(title, f"{most} MiB at most on a rank, median {middle}, rank 0 {first}")
    show_table(table)


def _add_scores(table: Table, report: Report) -> None:
    last = report["history"][-1] if report["history"] else {}
    if last and not report.get("runs"):
        table.add_row("loss", f"{last['loss']:.6f}")
        for name, value in last.items():
            split, _, score = name.partition("_")
            if split in SPLITS and score not in ("", "loss") and value is not None:
                table.add_row(_titled(name), _shown(name, value))
    for name, value in (report.get("mean") or {}).items():
        spread = _shown(name, report["std"][name])
        table.add_row(_titled(name), f"{_shown(name, value)} ± {spread}")


def _add_times(table: Table, report: Report) -> None:
    epoch, spent = report["epoch_seconds"], report["breakdown_seconds"]
    table.add_row(
        "seconds per epoch",
        f"{epoch['median']:.4f} (min {epoch['min']:.4f}, max {epoch['max']:.4f})",
    )
    table.add_row("of which", "  ".join(f"{name} {spent[name]:.4f}" for name in CATEGORIES))
    for name, seconds in list(report["seconds_to"].items())[-1:]:
        table.add_row(f"seconds to {name}", f"{seconds:.4f}")


def _add_bytes(table: Table, report: Report) -> None:
    for name, title in (("planned_volume", "planned"), ("volume", "counted")):
        volume = report.get(name)
        if volume is not None:
            table.add_row(f"bytes per epoch, {title}", _moved(volume))
    levels = report["volume_by_level"]
    if levels is not None and levels["between"]["total_bytes"]:
        table.add_row("of them between nodes", _moved(levels["between"]))


def _add_approximation(table: Table, told: Report) -> None:
    for direction in DIRECTIONS:
        errors = [each["error"] for each in told["errors"] if each["direction"] == direction]
        if errors:
            shown = ", ".join("–" if error is None else f"{error:.2%}" for error in errors)
            table.add_row(f"error of wires, {direction}", shown)


def _add_storage(table: Table, storage: Report) -> None:
    where = ", ".join(storage["on_disk"]) or "nothing"
    table.add_row("chunks of a rank's rows", f"{storage['chunks']}; on the disk: {where}")
    table.add_row(
        "bytes per epoch, disk",
        f"{storage['read_bytes']:,} read, {storage['written_bytes']:,} written",
    )


def _moved(volume: Report) -> str:
    total, most = volume["total_bytes"], volume["max_send_bytes"]
    return f"{total:,} in all, most sent by a rank {most:,}"


def _titled(name: str) -> str:
    """What a score of a split, or a loss, is called."""
    plain = name.removesuffix(AT_BEST)
    split, _, score = plain.partition("_")
    if not score:
        return split
    where = AT_BEST.replace("_", " ") if plain != name else ""
    return f"{split} {TITLES.get(score, score.replace('_', ' '))}{where}"


def _shown(name: str, value: float) -> str:
    """A score: shares in percent."""
    score = name.removesuffix(AT_BEST).partition("_")[2]
    return f"{value:.2%}" if score in SHARES else f"{value:.6g}"
