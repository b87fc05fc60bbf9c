"""The picture of a run: scores against seconds of training."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from spgnn.files import write_file
from spgnn.partition.plot import check_plot

_COLOURS = {"mini-batch": "C0", "full graph": "C1"}


def plot_scores(report: Mapping[str, Any], path: str) -> None:
    """Draw validation and test scores of mini-batches and, if it was trained, of the whole graph.

    Raises
    ------
    InputError
        As `check_plot`, and if the file cannot be written.
    """
    suffix = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    axes = figure.subplots()
    for kind, told in (("mini-batch", report), ("full graph", report.get("full"))):
        for (name, points), style in zip(curves(told).items(), ("-", ":", "--"), strict=False):
            seconds, scores = zip(*points, strict=True)
            colour = _COLOURS[kind]
            axes.plot(seconds, scores, style, color=colour, label=f"{kind}, {name}")
    config, graph = report["config"], report["graph"]
    title = f"{graph['name']}: {config['model']}, {config['num_neighbors']}"
    axes.set_title(title, parse_math=False)
    axes.set(xlabel="seconds of training", ylabel="score")
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize="small")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix, dpi=150)
    write_file(path, [drawn.getvalue()], f"--plot {path}")


def curves(report: Mapping[str, Any] | None) -> dict[str, list[tuple[float, float]]]:
    """For test and validation, seconds of training and the score then, where there is one."""
    history: Sequence[Mapping[str, Any]] = [] if report is None else report["history"]
    seconds = list(accumulate(record["seconds"] for record in history))
    found: dict[str, list[tuple[float, float]]] = {}
    for split in ("test", "val"):
        names = [n for record in history for n in record if n.startswith(split) and "loss" not in n]
        for name in dict.fromkeys(names[:1]):
            points = [
                (at, record[name])
                for at, record in zip(seconds, history, strict=True)
                if record.get(name) is not None
            ]
            if points:
                found[name.replace("_", " ")] = points
    return found


__all__ = ["check_plot", "curves", "plot_scores"]
