"""CSV and SVG files, written aside and renamed, and the same figures on the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from spgnn.errors import InputError
from spgnn.files import check_writable, write_file

Line = Sequence[tuple[float, float]]
_MARKS = "osD^vP*X"
PREDICTED = ", predicted"


class Output:
    """Where the files of one command go.

    Parameters
    ----------
    directory : Path
        Made if it does not exist.
    name : str
        Of the command; what its files are called.

    Raises
    ------
    InputError
        If nothing can be written there; before any long work.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.csv, self.svg = directory / f"{name}.csv", directory / f"{name}.svg"
        self.written: dict[Path, None] = {}
        make_directory(directory, "--output")
        for path in (self.csv, self.svg):
            check_writable(path, "--output")

    def write_csv(self, records: Sequence[Mapping[str, Any]]) -> None:
        """One line a record, unrounded; the first one's keys are the columns."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        self._write(self.csv, text.getvalue().encode())

    def draw_lines(
        self,
        panels: Mapping[str, Mapping[str, Line]],
        ylabel: str,
        caption: str,
        xlabel: str = "ranks",
        part: str = "",
    ) -> None:
        """A panel for each graph, a line for each scheme, both axes logarithmic.

        Predictions beside measurements are dashed, in the same colour. With a `part`, one of
        several pictures.
        """
        figure, axes = _figure(len(panels))
        for plot, (title, lines) in zip(axes, panels.items(), strict=True):
            schemes = list(dict.fromkeys(name.removesuffix(PREDICTED) for name in lines))
            for name, line in lines.items():
                if not line:
                    continue
                xs, ys = zip(*line, strict=True)
                number = schemes.index(name.removesuffix(PREDICTED))
                look: dict[str, Any] = {
                    "marker": _MARKS[number % len(_MARKS)],
                    "color": f"C{number % 10}",
                }
                look |= {"linestyle": "--", "alpha": 0.6} if name.endswith(PREDICTED) else {}
                plot.plot(xs, ys, markersize=4, linewidth=1.2, label=name, **look)
            plot.set_title(title, parse_math=False)
            plot.set_xscale("log", base=2)
            plot.set_yscale("log")
            plot.set(xlabel=xlabel, ylabel=ylabel)
            plot.grid(visible=True, which="both", linewidth=0.3)
        axes[0].legend(frameon=False, fontsize="x-small")
        self._save(figure, caption, part)

    def draw_stacks(
        self,
        panels: Mapping[str, Mapping[str, Mapping[str, float]]],
        ylabel: str,
        caption: str,
        part: str = "",
    ) -> None:
        """A panel for each graph, a bar for each scheme and number of ranks, a colour a kind."""
        figure, axes = _figure(len(panels))
        for plot, (title, bars) in zip(axes, panels.items(), strict=True):
            floor = [0.0] * len(bars)
            kinds = list(dict.fromkeys(kind for parts in bars.values() for kind in parts))
            for kind in kinds:
                heights = [parts.get(kind, 0.0) for parts in bars.values()]
                plot.bar(range(len(bars)), heights, bottom=floor, label=kind)
                floor = [a + b for a, b in zip(floor, heights, strict=True)]
            plot.set_title(title, parse_math=False)
            plot.set_xticks(range(len(bars)), list(bars), rotation=90, fontsize="xx-small")
            plot.set_ylabel(ylabel)
        axes[0].legend(frameon=False, fontsize="x-small")
        self._save(figure, caption, part)

    def _save(self, figure: Any, caption: str, part: str) -> None:
        figure.supxlabel(caption, fontsize="x-small", parse_math=False, wrap=True)
        drawn = io.BytesIO()
        figure.savefig(drawn, format="svg")
        name = f"{self.svg.stem}-{part}.svg" if part else self.svg.name
        self._write(self.svg.with_name(name), drawn.getvalue())

    def _write(self, path: Path, content: bytes) -> None:
        write_file(path, [content], f"--output {path}")
        self.written[path] = None


def make_directory(directory: Path, option: str) -> None:
    """Make a directory, unless it is there; an `InputError` names the option."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{option} {directory}: cannot be made: {said}") from None


def finished(output: Output) -> None:
    """Say what was written, and why there is no picture."""
    print(f"written: {', '.join(map(str, output.written))}")
    if not can_draw():
        print("no SVG: pip install 'spgnn[plot]'")


def can_draw() -> bool:
    """True if matplotlib is there; without it only CSV files are written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def show(title: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Print records as a table; whole and in full width where nobody looks."""
    table = Table(title=title, title_justify="left")
    for name, value in records[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for record in records:
        table.add_row(*(_written(value) for value in record.values()))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def _figure(panels: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * panels, 4.2), layout="constrained")
    FigureCanvasSVG(figure)  # no window system
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _written(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{round(value):,}" if isinstance(value, float | int) else str(value)
