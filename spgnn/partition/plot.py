"""The picture of a partition: who sends and receives how much, and from whom to whom."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from spgnn.errors import InputError
from spgnn.files import write_file
from spgnn.partition.volume import Volumes


def check_plot(path: str) -> str:
    """The format that the suffix of `path` names; refused before the long work if unknown."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise InputError("--plot needs matplotlib: pip install 'spgnn[plot]'") from None
    suffix = Path(path).suffix.removeprefix(".").lower() or "png"
    known = FigureCanvasAgg.get_supported_filetypes()
    if suffix not in known:
        raise InputError(f"--plot {path}: unknown suffix .{suffix}; known are {', '.join(known)}")
    return suffix


def plot_volumes(volumes: Volumes, path: str, title: str) -> None:
    """Draw send and receive volume per part and the block heat map, for the column cover."""
    suffix = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    volume = volumes.column
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    figure.suptitle(title, parse_math=False)
    bars, heat = figure.subplots(1, 2)
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
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix, dpi=150)
    write_file(path, [drawn.getvalue()], f"--plot {path}")
