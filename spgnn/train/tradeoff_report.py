"""The table and the picture of a comparison of approximate wires."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from spgnn.files import write_pieces
from spgnn.partition.plot import check_plot

NONE = "–"
TITLES = {"acc": "accuracy"}


def show(report: Mapping[str, Any]) -> None:
    """Print the table: a setting a line."""
    graph, config = report["graph"], report["config"]
    runs = config["runs"]
    table = Table(
        title=f"{graph['name']}: {graph['vertices']:,} vertices, {graph['edges']:,} edges, "
        f"{report['world_size']} ranks, {config['model']}, {config['epochs']} epochs, "
        f"{runs} run{'s' if runs > 1 else ''}",
        title_justify="left",
    )
    if "_at_" in report["score"]:
        table.caption = "* of the test set, at the best validation; errors of forward; of adjoint"
        table.caption_justify = "left"
    for title in columns(report):
        is_text = title in ("setting", "error of rows, %")
        table.add_column(title, justify="left" if is_text else "right", no_wrap=True)
    for one in report["settings"]:
        table.add_row(*cells(one))
    # Not narrower than what it holds: a table is read on a wide screen, or from a file.
    console = Console(width=max(400, Console().width))
    with console.capture() as drawn:
        console.print(table)
    # Rich would end the process where nobody reads.
    print(drawn.get(), end="")


def columns(report: Mapping[str, Any]) -> list[str]:
    """Titles of the columns."""
    score, _, where = report["score"].removeprefix("test_").partition("_at_")
    return [
        "setting",
        TITLES.get(score, score.replace("_", " ")) + ("*" if where else ""),
        "±",
        "points to exact",
        "bytes an epoch",
        "of a rank",
        "times fewer",
        "s an epoch",
        "s to exact − 0.5",
        "error of rows, %",
    ]


def cells(one: Mapping[str, Any]) -> list[str]:
    """What a line says of one setting."""
    to = one["seconds_to"] or {"seconds": None}
    missed = to["seconds"] is not None and to["runs"] < len(one["runs"])
    return [
        one["setting"],
        _shown(one["score"], "{:.2%}"),
        _shown(one["score_std"], "{:.2%}"),
        _shown(one["points"], "{:+.2f}"),
        f"{one['volume']['total_bytes']:,}",
        f"{one['volume']['max_send_bytes']:,}",
        _shown(one["fewer"], "{:.2f}"),
        f"{one['epoch_seconds']:.4f}",
        _shown(to["seconds"], "{:.2f}") + (f" ({to['runs']} runs)" if missed else ""),
        _errors(one["approximation"]),
    ]


def plot_tradeoff(report: Mapping[str, Any], path: str) -> None:
    """Draw scores, and seconds until exact's is nearly reached, against bytes of an epoch.

    Parameters
    ----------
    report : mapping
    path : str
        Its suffix says in which format.

    Raises
    ------
    InputError
        As `check_plot`, and if the file cannot be written.
    """
    suffix = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    left, right = figure.subplots(1, 2)
    moved = [one["volume"]["total_bytes"] for one in report["settings"]]
    for number, one in enumerate(report["settings"]):
        style = {"color": f"C{number % 10}", "marker": "o^s"[number // 10 % 3]}
        bytes_, score, to = moved[number], one["score"], one["seconds_to"] or {"seconds": None}
        if score is not None:
            spread = 100 * (one["score_std"] or 0)
            name = one["setting"]
            left.errorbar(bytes_, 100 * score, spread, **style, linestyle="none", label=name)
        if to["seconds"] is not None:
            right.plot(bytes_, to["seconds"], **style, linestyle="none")
    least = min((bytes_ for bytes_ in moved if bytes_), default=1)
    for axes, what in ((left, f"{report['score'].replace('_', ' ')}, %"), (right, _title(report))):
        # Logarithmic, with a place for settings that send nothing.
        axes.set_xscale("symlog", linthresh=least / 2)
        axes.set_xlim(-least / 8, 1.5 * max(*moved, least))
        axes.set(xlabel="bytes of rows an epoch", ylabel=what)
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    graph, config = report["graph"], report["config"]
    title = f"{graph['name']}: {config['model']}, {report['world_size']} ranks"
    figure.suptitle(title, parse_math=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix, dpi=150)
    write_pieces(path, [drawn.getvalue()], f"--plot {path}")


def _errors(approximation: Mapping[str, Any] | None) -> str:
    """Relative errors of an epoch's products, one after the other, and of their adjoints."""
    if approximation is None:
        return "0"
    found: dict[str, list[str]] = {}
    for one in approximation["errors"]:
        error = one["error"]
        found.setdefault(one["direction"], []).append(_shown(error and 100 * error, "{:.3g}"))
    return "; ".join(" ".join(errors) for errors in found.values()) or NONE


def _title(report: Mapping[str, Any]) -> str:
    targets = [one["seconds_to"]["score"] for one in report["settings"] if one["seconds_to"]]
    return f"seconds of training to {targets[0]:.2%}" if targets else "seconds of training"


def _shown(value: float | None, form: str) -> str:
    return NONE if value is None else form.format(value)
