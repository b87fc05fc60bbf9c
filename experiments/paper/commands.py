"""The commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.fit import compared, summary
from paper.graphs import DATASETS, shape_of
from paper.options import (
    caption,
    graphs,
    machine_of,
    model_of,
    partitions_of,
    read,
)
from paper.output import Output, can_draw, show
from paper.published import (
    ITS_RANKS,
    LARGEST_SPEEDUP,
    LOGS_SOURCE,
    METIS_IMBALANCE,
    authors_runs,
    read_table2,
)
from paper.schemes import AWARE, GVB, METIS, OBLIVIOUS, PARTITIONERS, SCALING, Scheme
from paper.times import Point, points
from paper.volumes import METHODS, Row, volumes
from spgnn.command import run
from spgnn.progress import ProgressBar

TABLE2_RANKS = (16, 32, 64, 128, 256)
COMPARED = (*METHODS, "block", "stream", "kahypar", "mtkahypar")


@dataclass(frozen=True)
class Figure:
    """A figure of seconds.

    Attributes
    ----------
    what : str
    datasets : tuple of str
    schemes : tuple of Scheme
    ranks, replicas : tuple of int
        By default.
    stacked : bool
        Whether seconds are shown by kind of work.
    """

    what: str
    datasets: tuple[str, ...]
    schemes: tuple[Scheme, ...]
    ranks: tuple[int, ...] = (4, 16, 64, 256)
    replicas: tuple[int, ...] = (1,)
    stacked: bool = False


_THREE = ("reddit", "amazon", "protein")
FIGURES = {
    "scaling-1d": Figure("seconds an epoch against ranks, 1D", _THREE, SCALING),
    "breakdown-1d": Figure(
        "where the seconds go, 1D", _THREE, SCALING, ranks=(16, 64, 256), stacked=True
    ),
    "partitioners": Figure(
        "seconds an epoch with partitions of METIS and of gvb", _THREE, PARTITIONERS
    ),
    "papers": Figure(
        "seconds an epoch on Papers", ("papers",), (OBLIVIOUS, AWARE, METIS, *SCALING[2:])
    ),
    "scaling-1.5d": Figure(
        "seconds an epoch against ranks, 1.5D, c = 1, 2, 4",
        ("amazon", "protein"),
        (OBLIVIOUS, AWARE, GVB, SCALING[3]),
        ranks=(16, 64, 256),
        replicas=(1, 2, 4),
    ),
    "breakdown-1.5d": Figure(
        "where the seconds go, 1.5D, c = 1, 2, 4",
        ("amazon",),
        (OBLIVIOUS, AWARE, GVB, SCALING[3]),
        ranks=(64,),
        replicas=(1, 2, 4),
        stacked=True,
    ),
}


def make_datasets(options: argparse.Namespace, output: Output, progress: ProgressBar) -> None:
    """Sizes of the originals and of what is counted on instead."""
    records = []
    for graph in graphs(options, DATASETS):
        structure = graph.data.structure
        original = shape_of(graph.dataset) if options.dataset is None else None
        records.append(
            {
                "graph": graph.dataset,
                "vertices": original.vertices if original else graph.vertices,
                "nonzeros": original.edges if original else structure.nnz,
                "features": graph.data.features,
                "classes": graph.data.classes,
                "counted on": graph.data.name,
                "its vertices": graph.data.vertices,
                "its nonzeros": structure.nnz,
                "its average degree": structure.nnz / graph.data.vertices,
                "its largest degree": int(structure.row_lengths.max()),
            }
        )
    show("Graphs", records)
    output.write_csv(records)


def make_table2(options: argparse.Namespace, output: Output, progress: ProgressBar) -> None:
    """Volumes of one product under METIS and gvb, beside the paper's."""
    typed = read_table2(options.published) if options.published else {}
    for graph in graphs(options, ("amazon",)):
        found: list[Row] = []
        partitions = partitions_of(graph, options, progress)
        for row in volumes(
            graph, partitions, options.ranks or TABLE2_RANKS, options.methods, progress
        ):
            found.append(row)
            print(f"{row.ranks} parts, {row.method}: {row.seconds:.0f} s", flush=True)
            # After each row: at full size a partition takes long, and may not fit into memory.
            records = [_table2_record(row, typed, options.width) for row in found]
            output.write_csv(records)
        show(f"Rows of H that one product sends. {caption(graph)}", records)
        print(_table2_words(found))
        if can_draw():
            lines = {
                f"{method}, {what}": [
                    (row.ranks, getattr(row, what)) for row in found if row.method == method
                ]
                for method in options.methods
                for what in ("average", "maximum")
            }
            output.draw_lines({graph.dataset: lines}, "rows sent in one product", caption(graph))


def _table2_record(
    row: Row, typed: Mapping[tuple[int, str], Mapping[str, float]], width: int
) -> dict[str, Any]:
    paper = typed.get((row.ranks, row.method), {})
    return {
        "p": row.ranks,
        "method": row.method,
        "total": row.total,
        "average": row.average,
        "maximum": row.maximum,
        "imbalance %": 100 * row.imbalance,
        "max received": row.receive,
        f"average MB, f = {width}": row.megabytes(row.average, width),
        f"maximum MB, f = {width}": row.megabytes(row.maximum, width),
        "partition s": row.seconds,
        "paper's average": paper.get("average"),
        "paper's maximum": paper.get("maximum"),
        "paper's imbalance %": paper.get("imbalance"),
    }


def _table2_words(rows: Sequence[Row]) -> str:
    """What the table says, computed from it."""
    by_key = {(row.ranks, row.method): row for row in rows}
    low, high = METIS_IMBALANCE
    said = [f"In the paper METIS's maximum is {low:.0%} to {high:.0%} above its average."]
    pairs = [(row, by_key.get((row.ranks, "gvb"))) for row in rows if row.method == "metis"]
    for metis, gvb in pairs:
        if gvb is None or not metis.total:
            continue
        line = (
            f"p = {metis.ranks}: gvb sends {gvb.total / metis.total:.2f} of METIS's total and "
            f"{gvb.maximum / metis.maximum:.2f} of its maximum; imbalance {gvb.imbalance:.1%} "
            f"against {metis.imbalance:.1%}"
        )
        random = by_key.get((metis.ranks, "random"))
        if random is not None and random.total:
            line += f"; of random METIS leaves {metis.total / random.total:.2f} of the total"
        said.append(line + ".")
    return "\n".join(said)


def make_figure(options: argparse.Namespace, output: Output, progress: ProgressBar) -> None:
    """Predicted seconds and planned bytes of one figure."""
    figure = FIGURES[options.command]
    machine = machine_of(options)
    found: list[Point] = []
    captions = []
    for graph in graphs(options, figure.datasets):
        captions.append(caption(graph))
        mine = list(
            points(
                graph,
                partitions_of(graph, options, progress),
                figure.schemes,
                options.ranks or figure.ranks,
                machine,
                replicas=figure.replicas,
                model=model_of(options),
                progress=progress,
            )
        )
        found += mine
        show(captions[-1], [_shown(point) for point in mine])
    output.write_csv([_record(point) for point in found])
    said = "; ".join((f"seconds predicted for {machine.name}", *captions))
    print(f"{figure.what}; {said}")
    for line in _speedups(found):
        print(line)
    if can_draw():
        _draw(figure, found, output, said)


def _speedups(found: Sequence[Point]) -> list[str]:
    """What each graph's oblivious 1D line takes over the others, at the most ranks."""
    said = []
    for dataset in dict.fromkeys(point.dataset for point in found):
        most = max(point.ranks for point in found if point.dataset == dataset)
        last = [p for p in found if (p.dataset, p.ranks) == (dataset, most)]
        slow = [p for p in last if (p.scheme, p.c) == (OBLIVIOUS.name, 1)]
        ratios = [f"{_line(p, p.c > 1)} {slow[0].seconds / p.seconds:.3g}" for p in last if slow]
        if slow:
            said.append(f"{dataset}, {most} ranks, oblivious over each: {', '.join(ratios)}")
    if said:
        said.append(f"(the paper: up to {LARGEST_SPEEDUP} on {ITS_RANKS} GPUs)")
    return said


def _draw(figure: Figure, found: Sequence[Point], output: Output, said: str) -> None:
    replicated = figure.replicas != (1,)
    datasets = dict.fromkeys(point.dataset for point in found)
    named = {name: [point for point in found if point.dataset == name] for name in datasets}
    if figure.stacked:
        stacks = {
            name: {f"{_line(point, replicated)}, {point.ranks}": point.spent for point in mine}
            for name, mine in named.items()
        }
        output.draw_stacks(stacks, "seconds an epoch", said)
        return
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, mine in named.items():
        for point in mine:
            line = lines.setdefault(name, {}).setdefault(_line(point, replicated), [])
            line.append((point.ranks, point.seconds))
    output.draw_lines(lines, "seconds an epoch", said)


def _line(point: Point, replicated: bool) -> str:
    return f"{point.scheme}, c = {point.c}" if replicated else point.scheme


def _record(point: Point) -> dict[str, Any]:
    """One line of the CSV."""
    kinds = ("spmm", "exchange", "pack", "dense", "passes", "allreduce", "overhead")
    return {
        "dataset": point.dataset,
        "scheme": point.scheme,
        "c": point.c,
        "ranks": point.ranks,
        "scaled_by": point.factor,
        "total_bytes": point.total,
        "average_send_bytes": point.average,
        "max_send_bytes": point.maximum,
        "max_send_bytes_between_nodes": point.between,
        "seconds": point.seconds,
        **{f"{kind}_seconds": point.spent.get(kind, 0.0) for kind in kinds},
    }


def _shown(point: Point) -> dict[str, Any]:
    """One line of the terminal's table."""
    return {
        "scheme": point.scheme,
        "c": point.c,
        "ranks": point.ranks,
        "GB an epoch": point.total / 1e9,
        "busiest MB": point.maximum / 1e6,
        "imbalance %": 100 * (point.maximum / point.average - 1) if point.average else 0.0,
        "ms": 1e3 * point.seconds,
        "network ms": 1e3 * point.exchange,
    }


def make_fit(options: argparse.Namespace, output: Output, progress: ProgressBar) -> None:
    """Predictions beside the authors' own job logs."""
    runs = authors_runs()
    machines = {count: machine_of(options, count) for count in {run.ranks_a_node for run in runs}}
    if options.ranks:
        runs = [run for run in runs if run.ranks in options.ranks]
    found = []
    for graph in graphs(options, ("amazon", "reddit")):
        mine = [run for run in runs if run.dataset == graph.dataset]
        found += compared(graph, partitions_of(graph, options, progress), mine, machines)
        print(caption(graph))
    if not found:
        print("none of the authors' jobs ran on such a graph and so many ranks")
        return
    records = [one.record for one in found]
    output.write_csv(records)
    show(f"Measured: {LOGS_SOURCE}", [{k: v for k, v in r.items() if k != "log"} for r in records])
    show("Seconds predicted over measured", summary(found))
    if can_draw():
        lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for one in found:
            line = lines.setdefault(one.run.dataset, {}).setdefault(one.run.scheme, [])
            line.append((one.run.ranks, one.ratio))
        output.draw_lines(lines, "predicted / measured", LOGS_SOURCE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one table or figure; returns the exit status."""

    def body() -> None:
        about = {name: what for name, (what, _) in COMMANDS.items()}
        options = read(arguments, about, COMPARED)
        output = Output(Path(options.output), options.command)
        with ProgressBar() as progress:
            COMMANDS[options.command][1](options, output, progress)
        print(f"written: {', '.join(str(p) for p in (output.csv, output.svg) if p.exists())}")
        if not can_draw():
            print("no SVG: pip install 'spgnn[plot]'")

    return run(body)


COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace, Output, ProgressBar], None]]] = {
    "datasets": ("the graphs, and what stands for them", make_datasets),
    "table2": ("volumes under METIS and gvb on Amazon", make_table2),
    **{name: (figure.what, make_figure) for name, figure in FIGURES.items()},
    "fit": ("predictions beside the authors' job logs", make_fit),
}
