"""The picture of plans: bytes and seconds against the number of ranks, a line a scheme."""

from __future__ import annotations

import io
from collections.abc import Sequence

from spgnn.files import write_file
from spgnn.partition.plot import check_plot
from spgnn.plan.choose import Choice

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
