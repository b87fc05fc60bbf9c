"""The picture of a partition: who sends and receives how much, and from whom to whom."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from spgnn.errors import InputError
from spgnn.files import write_file
from spgnn.partition.volume import Report, Volumes


def check_plot(path: str, flag: str = "--plot") -> str:
    """The format that the suffix of `path` names; refused before the long work if unknown."""
    if find_spec("matplotlib") is None:
        raise InputError(f"{flag} needs matplotlib: pip install 'spgnn[plot]'")
    suffix = Path(path).suffix.removeprefix(".").lower() or "png"
    if suffix not in ("png", "svg", "pdf"):
        raise InputError(f"{flag} {path}: unknown suffix .{suffix}; known are png, svg, pdf")
    return suffix


def write_figure(figure: Any, path: str, suffix: str, flag: str = "--plot") -> None:
    """Write a figure with all that is drawn, at its edges too."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix, dpi=150, bbox_inches="tight")
    write_file(path, [drawn.getvalue()], f"{flag} {path}")


def plot_volumes(volumes: Volumes, path: str, title: str, reports: Sequence[Report] = ()) -> None:
    """Draw volumes per part, the heat map of blocks and the busiest part of each report."""
    suffix = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    volume, several = volumes.column, len(reports) > 1
    figure = Figure(figsize=(16 if several else 11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    figure.suptitle(title, parse_math=False)
    bars, heat, *compared = figure.subplots(1, 2 + several)
    parts = np.arange(len(volume.send))
    bars.bar(parts - 0.2, volume.send, 0.4, label="send")
    bars.bar(parts + 0.2, volume.receive, 0.4, label="receive")
    bars.axhline(volume.send.mean(), color="black", linewidth=0.8, label="average")
    bars.set(xlabel="part", ylabel="rows")
    bars.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    if volume.blocks is None:
        heat.text(0.5, 0.5, "too many parts for a block map", ha="center", va="center")
        heat.set_axis_off()
    else:
        image = heat.imshow(volume.blocks, cmap="viridis", interpolation="nearest")
        heat.set(xlabel="receiving part", ylabel="sending part")
        figure.colorbar(image, ax=heat, label="rows")
    for axis in (bars.xaxis, heat.xaxis, heat.yaxis):
        axis.get_major_locator().set_params(integer=True)  # parts have no halves
    for axes in compared:
        places = np.arange(len(reports))
        axes.bar(places - 0.2, [one["busiest"] for one in reports], 0.4, label="busiest part")
        axes.bar(places + 0.2, [one["avg_send"] for one in reports], 0.4, label="average")
        axes.set_xticks(places, [one["method"] for one in reports], rotation=30, ha="right")
        axes.set(ylabel="rows")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    write_figure(figure, path, suffix)
