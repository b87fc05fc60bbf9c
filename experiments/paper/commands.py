"""The commands: their options, tables and figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from paper.graphs import (
    DATASETS,
    DEFAULT_SCALES,
    MEASURED_SCALES,
    PaperGraph,
    real_graph,
    shape_of,
    stand_in_of,
)
from paper.measured import KINDS, Measured, measured
from paper.output import PREDICTED, Output, can_draw, finished, make_directory, show
from paper.published import (
    CLAIMS,
    FASTEST,
    LOGS_SOURCE,
    TABLE2,
    Compared,
    authors_runs,
    compared,
    summary,
)
from paper.times import (
    AWARE,
    COVERED,
    GVB,
    METIS,
    OBLIVIOUS,
    OURS,
    PARTITIONERS,
    SCALING,
    Model,
    Point,
    Scheme,
    points,
)
from paper.volumes import METHODS, Row, volumes
from spgnn.addons.plan.graphs import Partitions, cache_directory
from spgnn.command import run
from spgnn.errors import InputError, check_choice
from spgnn.machine import Machine, read_machine
from spgnn.options import Record, flag, positional, read_options
from spgnn.partition.problem import PRESETS
from spgnn.progress import Progress, ProgressBar

MACHINE = Path(__file__).parents[1] / "machines" / "perlmutter_a100.json"
MOST_RANKS = 4096


@dataclass(frozen=True)
class Options(Record):
    """Options of all tables and figures."""

    command: Annotated[str, positional("the table or figure")]
    output: Annotated[str, flag("where it goes", "DIR")] = "icpp24"
    datasets: Annotated[str | None, flag(f"of {', '.join(DATASETS)}", "NAME,…")] = None
    dataset: Annotated[str | None, flag("a real graph: a file or a set's name", "FILE")] = None
    scale: Annotated[float | None, flag("of the stand-ins; the defaults take minutes")] = None
    full: Annotated[bool, flag("stand-ins as large as the originals")] = False
    ranks: Annotated[str | None, flag("numbers of ranks", "P,…")] = None
    preset: Annotated[str, flag("of gvb", choices=PRESETS)] = "fast"
    imbalance: Annotated[float, flag("of the partition", high=1)] = 0.05
    seed: Annotated[int, flag("of the partition")] = 0
    cache: Annotated[str | None, flag("where partitions are kept", "DIR")] = None
    data_dir: Annotated[str | None, flag("where named sets live", "DIR")] = None
    methods: Annotated[str, flag("table2: of the partitioner", "METHOD,…")] = ",".join(METHODS)
    width: Annotated[int, flag("table2: of H, for megabytes", low=1)] = 300
    machine: Annotated[str, flag("default: Perlmutter's A100 nodes", "FILE")] = str(MACHINE)
    layers: Annotated[int, flag("of the model", low=1, high=1000)] = 3
    hidden: Annotated[int, flag("width of the layers between", low=1)] = 16


def read(
    arguments: Sequence[str] | None, commands: Mapping[str, str], methods: Sequence[str]
) -> argparse.Namespace:
    """The options of a command line, lists as lists.

    Parameters
    ----------
    arguments : sequence of str, optional
    commands : mapping of str to str
        Names of tables and figures, and what they are.
    methods : sequence of str
        That may be compared.

    Raises
    ------
    InputError
    """
    about = "; ".join(f"{name}: {what}" for name, what in commands.items())
    given = read_options([Options], arguments, program="icpp24.py", about=about)
    options = argparse.Namespace(**vars(Options(**given)))
    options.command = OF_FIGURE.get(options.command, options.command)
    check_choice("COMMAND", options.command, commands)
    options.methods = _names("--methods", options.methods, methods)
    if options.datasets is not None:
        options.datasets = _names("--datasets", options.datasets, DATASETS)
    if options.ranks is not None:
        words = options.ranks.split(",")
        options.ranks = sorted({int(word) for word in words if word.isascii() and word.isdigit()})
        if len(options.ranks) < len(set(words)) or not 2 <= options.ranks[0] <= MOST_RANKS:
            raise InputError(f"--ranks {','.join(words)}: must be numbers from 2 to {MOST_RANKS}")
    return options


def _names(named: str, text: str, choices: Sequence[str]) -> list[str]:
    """Some of the names there are, each once."""
    for name in text.split(","):
        check_choice(named, name, choices)
    return list(dict.fromkeys(text.split(",")))


def graphs(
    options: argparse.Namespace,
    datasets: Iterable[str],
    scales: Mapping[str, float] = DEFAULT_SCALES,
    *,
    kept: bool = False,
) -> Iterator[PaperGraph]:
    """The real graph that is asked for, or the stand-ins, one after the other.

    Stand-ins may be kept beside the partitions.

    Raises
    ------
    InputError
    """
    if options.dataset is not None:
        yield real_graph(options.dataset, options.data_dir)
        return
    for name in options.datasets or datasets:
        scale = 1.0 if options.full else options.scale or scales[name]
        directory = cache_directory(options.cache) if kept else None
        if directory is not None:
            make_directory(directory, "--cache")
        yield stand_in_of(name, scale, directory=directory)


def partitions_of(
    graph: PaperGraph, options: argparse.Namespace, progress: Progress | None
) -> Partitions:
    """Partitions of a graph, made once and kept."""
    return Partitions(
        graph.data,
        cache_directory(options.cache),
        seed=options.seed,
        imbalance=options.imbalance,
        preset=options.preset,
        progress=progress,
    )


def machine_of(options: argparse.Namespace, ranks_a_node: int | None = None) -> Machine:
    """The machine that seconds are those of; with so many ranks on each node, each on its own GPU.

    Raises
    ------
    InputError
        If its file cannot be read.
    """
    machine = read_machine(options.machine)
    if ranks_a_node is None or ranks_a_node == machine.ranks_a_node:
        return machine
    alone = replace(machine.conditions, ranks_here=ranks_a_node)
    return replace(machine, ranks_a_node=ranks_a_node, cores=ranks_a_node, conditions=alone)


def model_of(options: argparse.Namespace) -> Model:
    """Of every line."""
    return Model(options.layers, options.hidden)


def caption(graph: PaperGraph) -> str:
    """A caption of a graph in one line that hides nothing."""
    data = graph.data
    if graph.factor == 1:
        return f"{graph.dataset}: {data.vertices:,} vertices, {data.structure.nnz:,} nonzeros"
    return (
        f"{graph.dataset}: counted on {data.name} ({data.vertices:,} vertices, "
        f"{data.structure.nnz:,} nonzeros), rows and nonzeros times {graph.factor:,.6g}"
    )


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
        ranks=(16, 32, 64, 128, 256),
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


# By the paper's numbers.
OF_FIGURE = {
    "fig3": "scaling-1d",
    "fig4": "breakdown-1d",
    "fig5": "papers",
    "fig6": "partitioners",
    "fig7": "scaling-1.5d",
}

# What `measure` trains: Figures 3, 4 and 6; and Figure 7.
MEASURED = (
    *((scheme, 1) for scheme in (OBLIVIOUS, AWARE, METIS, GVB, COVERED, OURS)),
    *((scheme, c) for c in (2, 4) for scheme in (OBLIVIOUS, AWARE, GVB, OURS)),
)


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
    for graph in graphs(options, ("amazon",), kept=True):
        found: list[Row] = []
        partitions = partitions_of(graph, options, progress)
        ranks, cells = options.ranks or TABLE2_RANKS, output.csv.with_name("table2-cells.json")
        # At full size a row takes hours, and may not fit into memory: each is kept at once.
        for row in volumes(graph, partitions, ranks, options.methods, progress, cells):
            found.append(row)
            print(
                f"{row.ranks} parts, {row.method}: {row.seconds:.0f} s, {row.peak / 1e9:.3g} GB",
                flush=True,
            )
            records = [_table2_record(row, options) for row in found]
            output.write_csv(records)
        title = f"Rows of H that one product sends, gvb with preset {options.preset}. "
        show(title + caption(graph), records)
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


def _table2_record(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    width = options.width
    given = row.method == "metis" and width == 300 and row.ranks in TABLE2
    paper = TABLE2[row.ranks] if given else (None, None, None)
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
        "preset": options.preset if row.method == "gvb" else None,
        "partition s": row.seconds,
        "peak GB": row.peak / 1e9,
        "paper's average MB": paper[0],
        "paper's maximum MB": paper[1],
        "paper's imbalance %": paper[2],
    }


def _table2_words(rows: Sequence[Row]) -> str:
    """What the table says, computed from it."""
    by_key = {(row.ranks, row.method): row for row in rows}
    said = list[str]()
    pairs = [(row, by_key.get((row.ranks, "gvb"))) for row in rows if row.method == "metis"]
    for metis, gvb in pairs:
        if gvb is None or not metis.total:
            continue
        line = (
            f"p = {metis.ranks}: gvb sends {gvb.total / metis.total:.2f} of METIS's total and "
            f"{gvb.maximum / metis.maximum:.2f} of its maximum, which is "
            f"{metis.maximum / max(gvb.maximum, 1):.2f} times gvb's; imbalance {gvb.imbalance:.1%} "
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


def make_measured(options: argparse.Namespace, output: Output, progress: ProgressBar) -> None:
    """Figures 3, 4, 6 and 7 from epochs of real ranks, beside what is predicted for them."""
    machine, found = machine_of(options), list[Measured]()
    captions = []
    for graph in graphs(options, ("amazon",), MEASURED_SCALES):
        captions.append(caption(graph))
        mine = measured(
            graph,
            options.dataset or graph.data.name,
            partitions_of(graph, options, progress),
            MEASURED,
            options.ranks or (4, 16, 32),
            machine,
            model_of(options),
            progress,
        )
        for number, one in enumerate(mine):
            pace, point = one.pace, one.point
            if number == 0:
                between, inside = (8e-9 * each.bandwidth for each in (pace.between, pace.inside))
                print(
                    f"{captions[-1]}; a second of {machine.name} is {pace.slower:.3g} s here: "
                    f"links of {between:.3g} Gb/s between nodes and {inside:.3g} inside, messages "
                    f"of {1e6 * pace.between.latency:.3g} µs"
                )
            found.append(one)
            print(
                f"{_line(point, point.c > 1)}, {point.ranks} ranks: "
                f"{1e3 * sum(one.spent.values()):.4g} ms, predicted "
                f"{1e3 * sum(one.predicted.values()):.4g}",
                flush=True,
            )
            output.write_csv([_measured_record(each) for each in found])
    show("Milliseconds an epoch, measured (predicted)", [_measured_shown(one) for one in found])
    said = (
        f"seconds of {machine.name}: measured on throttled ranks, predicted; {'; '.join(captions)}"
    )
    for line in _speedups([replace(one.point, spent=one.spent) for one in found]):
        print(f"measured: {line}")
    if not can_draw():
        return
    lines: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}
    stacks: dict[str, dict[str, dict[str, float]]] = {}
    for one in found:
        point = one.point
        figure = "1d" if point.c == 1 else "1.5d"
        panel = lines.setdefault(figure, {}).setdefault(point.dataset, {})
        for name, spent in (("", one.spent), (PREDICTED, one.predicted)):
            panel.setdefault(_line(point, point.c > 1) + name, []).append(
                (point.ranks, sum(spent.values()))
            )
            if figure == "1d":
                bars = stacks.setdefault(point.dataset, {})
                bars[f"{point.scheme}, {point.ranks}{name}"] = spent
    for figure, panels in lines.items():
        output.draw_lines(panels, "seconds an epoch", said, part=figure)
    output.draw_stacks(stacks, "seconds an epoch", said, part="breakdown-1d")


def _measured_record(one: Measured) -> dict[str, Any]:
    point = one.point
    return {
        "dataset": point.dataset,
        "scheme": point.scheme,
        "c": point.c,
        "ranks": point.ranks,
        "scaled_by": point.factor,
        "sent_bytes_here": one.nbytes,
        "seconds_here_for_one": one.pace.slower,
        "seconds": sum(one.spent.values()),
        "predicted_seconds": sum(one.predicted.values()),
        **{f"{kind}_seconds": one.spent[kind] for kind in KINDS},
        **{f"predicted_{kind}_seconds": one.predicted[kind] for kind in KINDS},
    }


def _measured_shown(one: Measured) -> dict[str, Any]:
    both = {"ms": (sum(one.spent.values()), sum(one.predicted.values()))}
    both |= {kind: (one.spent[kind], one.predicted[kind]) for kind in KINDS}
    return {
        "scheme": one.point.scheme,
        "c": one.point.c,
        "ranks": one.point.ranks,
        **{kind: f"{1e3 * a:.4g} ({1e3 * b:.4g})" for kind, (a, b) in both.items()},
    }


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
    seconds = {(p.dataset, p.ranks, p.c, p.scheme): p.seconds for p in found}

    def share(point: Point) -> float:
        names = ("replica", "allreduce", "all-reduce")
        return sum(point.spent.get(name, 0.0) for name in names) / point.seconds

    for claim in CLAIMS:
        for ranks in claim.ranks:
            at = claim.dataset, ranks, 1
            before, after = (seconds.get((*at, s.name)) for s in (claim.slow, claim.fast))
            if before and after:
                said.append(
                    f"{claim.dataset}, {ranks} ranks, {claim.slow.name} over {claim.fast.name}: "
                    f"{before / after:.3g} (the paper, {claim.section}: {claim.times:g})"
                )
    # The negative result of section 7.2, and the reason it gives.
    aware = [p for p in found if p.scheme == AWARE.name and p.c > 1]
    for dataset, c in dict.fromkeys((p.dataset, p.c) for p in aware):
        said.append(
            f"{dataset}, c = {c}, oblivious over sparsity-aware (the paper, 7.2: no more than 1): "
            + ", ".join(
                f"{seconds[dataset, p.ranks, c, OBLIVIOUS.name] / p.seconds:.3g} on {p.ranks} "
                f"ranks, where {share(p):.0%} are the all-reduce"
                for p in aware
                if (p.dataset, p.c) == (dataset, c)
                and (dataset, p.ranks, c, OBLIVIOUS.name) in seconds
            )
        )
    for c, ranks in FASTEST.items():
        of = {
            r: s
            for (name, r, at, scheme), s in seconds.items()
            if (name, at, scheme) == ("amazon", c, GVB.name)
        }
        if of:
            said.append(
                f"amazon, c = {c}: {GVB.name} is fastest on {min(of, key=lambda r: of[r])} ranks "
                f"(the paper, 7.2: {ranks})"
            )
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
    kinds = ("spmm", "exchange", "replica", "pack", "dense", "passes", "allreduce", "overhead")
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
        "cut_p_rows": point.cut,
        "t_comm": point.bound,
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
        "cut_P rows": point.cut,
        "T_comm ms": None if point.bound is None else 1e3 * point.bound,
        "ms": 1e3 * point.seconds,
        "network ms": 1e3 * point.exchange,
        "replicas ms": 1e3 * point.spent.get("replica", 0.0),
    }


def make_fit(options: argparse.Namespace, output: Output, progress: ProgressBar) -> None:
    """Predictions beside the authors' own job logs."""
    runs = authors_runs()
    machines = {count: machine_of(options, count) for count in {run.ranks_a_node for run in runs}}
    if options.ranks:
        runs = [run for run in runs if run.ranks in options.ranks]
    found = list[Compared]()
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
        finished(output)

    return run(body)


COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace, Output, ProgressBar], None]]] = {
    "datasets": ("the graphs, and what stands for them", make_datasets),
    "table2": ("volumes under METIS and gvb on Amazon", make_table2),
    **{name: (figure.what, make_figure) for name, figure in FIGURES.items()},
    "measure": ("epochs of real ranks behind throttled links, beside predictions", make_measured),
    "fit": ("predictions beside the authors' job logs", make_fit),
}
