"""``python -m spgnn.partition`` and ``spgnn-partition``: the partitioner as a tool of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from spgnn import data
from spgnn.command import LARGEST, plural, run, say
from spgnn.errors import InputError, check_choice, memory_for
from spgnn.files import check_writable, write_file
from spgnn.options import Record, flag, positional, read_options
from spgnn.progress import ProgressBar
from spgnn.registry import (
    LARGEST_IMBALANCE,
    LIBRA,
    METHODS,
    MORTON,
    MOST_THREADS,
    OPENERS,
    WRITERS,
    Objective,
    Preset,
)

if TYPE_CHECKING:  # imported where it is used: --help waits for none of it
    import numpy as np
    import numpy.typing as npt

    from spgnn.layout import Int32Array
    from spgnn.partition.vertex_cut import VertexCut
    from spgnn.partition.volume import Report, Volumes

    Columns = dict[str, npt.NDArray[Any]]

# The flags that name a file to write.
OUTPUTS = ("--output", "--edges", "--sizes", "--permutation", "--json", "--plot")
_UNEVEN = 0.5  # from here on, an imbalance of vertices has a remark


def _methods() -> tuple[str, ...]:
    return (*METHODS, LIBRA, MORTON)


@dataclass(frozen=True)
class Options(Record):
    """Options of the partition command."""

    graph: Annotated[
        str,
        positional(".mtx, .txt, .csv, .graph, .npz (text also .gz), tables, or a graph directory"),
    ]
    parts: Annotated[int, flag("number of parts", "K", low=1)]
    method: Annotated[
        str,
        flag(
            "libra is a vertex cut: it gives parts to nonzeros; morton needs --positions",
            choices=_methods,
        ),
    ] = "gvb"
    positions: Annotated[
        str | None, flag("of morton: numbers [vertices, 2 or 3] (.npy)", "FILE")
    ] = None
    objective: Annotated[
        Objective,
        flag("gvb: the busiest part, both ways, by rows sent, or by covers; stream: no covers"),
    ] = "both"
    imbalance: Annotated[float, flag("of the parts", high=LARGEST_IMBALANCE)] = 0.05
    seed: Annotated[int, flag("of the method", high=LARGEST)] = 0
    preset: Annotated[Preset, flag("of gvb, stream, kaminpar; strong: mtkahypar")] = "default"
    balance: Annotated[str, flag("of nnz, vertices, train", "LIST")] = "nnz"
    nodes: Annotated[int | None, flag("K/N parts on each of N nodes", "N", low=1)] = None
    machine: Annotated[
        str | None, flag("of spgnn machine: what its nodes are, and how fast their links", "FILE")
    ] = None
    shares: Annotated[str | None, flag("each part's share of the work, one a line", "FILE")] = None
    fixed: Annotated[
        str | None, flag("the part that each vertex must be in, -1: any, one a line", "FILE")
    ] = None
    refine_from: Annotated[str | None, flag("start from these labels (gvb, stream)", "FILE")] = None
    labels: Annotated[str | None, flag("report on these labels (and place them)", "FILE")] = None
    edge_labels: Annotated[str | None, flag("only report on this vertex cut (.npy)", "FILE")] = None
    compare: Annotated[str | None, flag("further methods for the table", "M,M,…")] = None
    features: Annotated[
        int | None, flag("report bytes too, for rows of F float32 numbers", "F", low=1)
    ] = None
    minimum: Annotated[
        bool | None, flag("count minimum covers; default: unless the graph is on disk")
    ] = None
    threads: Annotated[int | None, flag("default: all cores", "T", low=1, high=MOST_THREADS)] = None
    output: Annotated[
        str | None,
        flag("write the labels, one a line (METIS's format), or .parquet: with ids", "FILE"),
    ] = None
    edges: Annotated[str | None, flag("write the part of each nonzero (.npy)", "FILE")] = None
    sizes: Annotated[str | None, flag("write the number of vertices of each part", "FILE")] = None
    permutation: Annotated[
        str | None, flag("write the original vertex ids in order of their part", "FILE")
    ] = None
    json: Annotated[str | None, flag("write the report", "FILE")] = None
    plot: Annotated[
        str | None, flag("draw send and receive volumes and the block heat map", "FILE")
    ] = None

    @property
    def compared(self) -> list[str]:
        return [] if self.compare is None else self.compare.split(",")

    def objective_of(self, compared: str) -> Objective:
        """The objective of a further method: the same, where it has it."""
        from spgnn.partition.methods import OURS

        return self.objective if self.objective in OURS.get(compared, ()) else "both"

    def outputs(self) -> dict[str, str]:
        named = {flag: getattr(self, flag.removeprefix("--")) for flag in OUTPUTS}
        return {flag: path for flag, path in named.items() if path is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status (`spgnn.command.run`)."""
    return run(lambda: _command(arguments))


def _command(arguments: Sequence[str] | None) -> None:
    about = "Partition a graph and report exactly what its training would move."
    options = Options(**read_options([Options], arguments, program="spgnn-partition", about=about))
    _check_names(options)
    _check_outputs(options)
    from spgnn.partition.problem import check_parts
    from spgnn.partition.volume import count_volumes

    volumes = None
    with ProgressBar() as progress:
        progress("reading", 0, 1)
        with memory_for(f"reading {options.graph}"):
            matrix, train_mask, columns = _read(options.graph)
        if not matrix.shape[0]:
            raise InputError(f"{options.graph}: a graph without vertices")
        check_parts(options.parts, matrix.shape[0], "--parts")
        labels, reports, edges = _results(options, matrix, train_mask, progress)
        if options.plot is not None:
            volumes = count_volumes(matrix, labels, options.parts, minimum=False)
    try:
        _write_outputs(options, labels, columns, reports, volumes, edges)
    finally:
        _print_reports(reports, options.features)


def _check_names(options: Options) -> None:
    from spgnn.partition.methods import check_method
    from spgnn.partition.places import levels_of
    from spgnn.partition.problem import BALANCES, check_nodes

    for name in options.balance.split(","):
        check_choice("--balance", name, BALANCES)
    for name in options.compared:
        check_choice("--compare", name, (*METHODS, MORTON))
    if options.labels is not None and options.refine_from is not None:
        raise InputError("--labels only reports on labels, --refine-from refines them: give one")
    if options.edge_labels is not None and options.refine_from is not None:
        raise InputError("--edge-labels only reports on a vertex cut; leave out --refine-from")
    places = options.labels and options.output and (options.nodes or options.machine)
    if options.fixed is not None and (options.labels or options.edge_labels) and not places:
        raise InputError(
            "--labels and --edge-labels only report; --fixed needs --nodes and --output with them"
        )
    refused = options.refine_from or options.objective != "both" or options.balance != "nnz"
    if options.method == LIBRA and (refused or options.shares or options.fixed):
        raise InputError(
            "--method libra balances nonzeros; it takes no --refine-from, --objective, --balance, "
            "--shares or --fixed"
        )
    there = options.positions is not None
    inputs = {name for name in ("shares", "fixed") if getattr(options, name) is not None}
    more = {MORTON: {"positions"}} if there else {}
    for name in options.compared:
        check_method(name, options.objective_of(name), inputs | more.get(name, set()))
    if options.labels is None and options.edge_labels is None and options.method != LIBRA:
        inputs |= more.get(options.method, set()) | ({"initial"} if options.refine_from else set())
        balanced = len(options.balance.split(","))
        check_method(options.method, options.objective, inputs, balanced)
    if there and MORTON not in (options.method, *options.compared):
        raise InputError("--positions needs method morton, in --method or --compare")
    check_nodes(options.nodes, options.parts, "--nodes")
    levels_of(options.machine, options.parts, options.nodes)


def _check_outputs(options: Options) -> None:
    """Refuse what would fail, or overwrite what is read, only after the long work."""
    from spgnn.partition.plot import check_plot

    named_set = str(data.data_directory() / f"{options.graph}.npz")
    sources = [("the graph", options.graph), ("the graph", named_set)]
    for name in ("labels", "edge_labels", "refine_from", "machine", "shares", "fixed"):
        sources.append((f"--{name.replace('_', '-')}", getattr(options, name)))
    taken = [(what, path) for what, path in sources if path is not None and os.path.exists(path)]
    for named, path in options.outputs().items():
        check_writable(path, named)
        for other, source in taken:
            if os.path.exists(path) and os.path.exists(source):
                # One file, or a file below a directory that is read.
                same = os.path.samefile(path, source)
                same = same or Path(path).resolve().is_relative_to(Path(source).resolve())
            else:
                same = os.path.realpath(path) == os.path.realpath(source)
            if same:
                raise InputError(f"{named} {path}: would overwrite {other}; name another file")
        taken.append((named, path))
    if options.plot is not None:
        check_plot(options.plot)
    if options.output is not None and options.output.endswith(".parquet"):
        what = f"--output {options.output}"
        WRITERS.need(".parquet", what, "io").check(what)


def _read(path: str) -> tuple[Any, npt.NDArray[np.bool_] | None, Columns]:
    """The matrix, the training mask, and ids that are no strings; a graph on disk is mapped."""
    typed = OPENERS["several types"](path) if "several types" in OPENERS else None
    if typed is not None:
        return typed.adjacency, None, typed.columns
    if os.path.isdir(path) and not data.is_graph_file(path):
        return data.open_shards(path).pattern(), None, {}
    graph = data.load_dataset(path)
    mask = None if graph.train_mask is None else graph.select_split(0).train_mask
    ids = {} if graph.vertex_ids is None else {"id": graph.vertex_ids.numpy()}
    return graph.adjacency, None if mask is None else mask.numpy(), ids


def _results(
    options: Options, matrix: Any, train_mask: npt.NDArray[np.bool_] | None, progress: ProgressBar
) -> tuple[Int32Array, list[Report], Int32Array | None]:
    """Labels, the reports of them and of what is compared, and edge labels if they matter."""
    from spgnn.partition.labels import read_edge_labels, read_labels, read_shares
    from spgnn.partition.methods import partition
    from spgnn.partition.morton import read_positions
    from spgnn.partition.places import levels_of, place
    from spgnn.partition.vertex_cut import cut_vertices
    from spgnn.partition.volume import report

    parts, vertices = options.parts, matrix.shape[0]
    nodes, _ = levels_of(options.machine, parts, options.nodes)
    shared: dict[str, Any] = {"threads": options.threads, "progress": progress}
    shares = None if options.shares is None else read_shares(options.shares, parts)
    fixed = None
    if options.fixed is not None:
        fixed = read_labels(options.fixed, vertices, parts, lowest=-1)
    counting = {"minimum": options.minimum, "shares": shares, **shared}
    numbers: dict[str, Any] = {"imbalance": options.imbalance, "seed": options.seed}

    def by_method(name: str, **chosen: Any) -> tuple[Int32Array, Report]:
        objective = options.objective if chosen else options.objective_of(name)
        if name == MORTON and options.positions is not None:
            chosen |= {"positions": read_positions(options.positions)}
        chosen |= {"preset": options.preset, "train_mask": train_mask, "fixed": fixed}
        chosen |= {"nodes": options.nodes, "machine": options.machine, **numbers, **counting}
        return partition(matrix, parts, name, objective=objective, **chosen)

    def cut(labels: Int32Array | None) -> VertexCut:
        edges = None
        if options.edge_labels is not None:
            edges = read_edge_labels(options.edge_labels, len(matrix.indices), parts)
        return cut_vertices(matrix, parts, labels=labels, edges=edges, **numbers, **shared)

    compared = options.compared
    vertex_cut = None
    if options.labels is not None:
        labels = read_labels(options.labels, vertices, parts)
        if nodes is not None and options.output is not None:
            labels = place(matrix, labels, parts, nodes=nodes, shares=shares, fixed=fixed)
        first = report(matrix, labels, parts, nodes=nodes, **counting)
    elif options.method == LIBRA or options.edge_labels is not None:
        started = time.perf_counter()
        vertex_cut = cut(None)
        seconds = time.perf_counter() - started
        labels = vertex_cut.owners
        first = report(matrix, labels, parts, nodes=nodes, **counting)
        if options.edge_labels is None:
            first["method"], first["seconds"] = LIBRA, seconds
    else:
        initial = None
        if options.refine_from is not None:
            initial = read_labels(options.refine_from, vertices, parts)
        balance = options.balance.split(",")
        labels, first = by_method(options.method, balance=balance, initial=initial)
        compared = [name for name in compared if name != options.method]
    if vertex_cut is None and (options.edges is not None or options.edge_labels is not None):
        vertex_cut = cut(labels)
    if vertex_cut is not None:
        first["vertex_cut"] = vertex_cut.report
    reports = [first, *(by_method(name)[1] for name in compared)]
    return labels, reports, None if vertex_cut is None else vertex_cut.edges


def _write_outputs(
    options: Options,
    labels: Int32Array,
    columns: Columns,
    reports: list[Report],
    volumes: Volumes | None,
    edges: Int32Array | None,
) -> None:
    """Write every file; what cannot be written does not keep the rest from it."""
    import numpy as np

    from spgnn.partition.labels import part_sizes, permutation, write_edge_labels, write_labels
    from spgnn.partition.plot import plot_volumes

    failures = []
    for named, path in options.outputs().items():
        what = f"{named} {path}"
        try:
            if named == "--output" and path.endswith(".parquet"):
                source = None if columns else options.graph
                with WRITERS[".parquet"].open(path, what, source) as table:
                    numbers = np.arange(len(labels)) if table.ids is None else table.ids
                    table.write({"id": numbers, **columns, "part": labels})
            elif named == "--output":
                write_labels(path, labels, what)
            elif named == "--edges":
                assert edges is not None
                write_edge_labels(path, edges, options.parts, what)
            elif named == "--sizes":
                write_labels(path, part_sizes(labels, options.parts), what)
            elif named == "--permutation":
                write_labels(path, permutation(labels), what)
            elif named == "--json":
                write_file(path, [_record(options, reports)], what)
            else:
                assert volumes is not None
                title = f"{Path(options.graph).name}, {reports[0]['method']}"
                plot_volumes(volumes, path, title, reports)
        except InputError as error:
            failures.append(str(error))
        else:
            print(f"wrote {path}", file=sys.stderr)
    if failures:
        raise InputError("; ".join(failures))


def _record(options: Options, reports: list[Report]) -> bytes:
    first = reports[0]
    record: dict[str, Any] = {**first, "graph": options.graph}
    if options.features is not None:
        figures = ("total", "max_send", "max_recv", "busiest")
        volumes = {name: first[name] * 4 * options.features for name in figures}
        record["bytes"] = {"features": options.features, **volumes}
    if len(reports) > 1:
        record["compared"] = reports[1:]
    return json.dumps(record, indent=2, allow_nan=False).encode() + b"\n"


_LEVELS = {
    "between nodes (rows)": "levels.between",
    "once a part there": "levels.between_flat",
    "inside nodes": "levels.inside",
    "cover minimum, between nodes": "levels.minimum.between_flat",
    "cover minimum, inside nodes": "levels.minimum.inside",
}
# Lines of the table: name, place in a report, form. Those that no report has are left out.
_TABLE = (
    ("total volume (rows)", "total_volume", "rows"),
    ("busiest part", "busiest", "rows"),
    ("max send", "max_send", "rows"),
    ("average send", "avg_send", "mean"),
    ("max receive", "max_receive", "rows"),
    ("largest message", "max_pair", "rows"),
    ("send imbalance", "send_imbalance", "share"),
    ("receive imbalance", "recv_imbalance", "share"),
    ("cover row", "cover_volume.row", "rows"),
    ("cover minimum", "cover_volume.minimum", "rows"),
    ("  its busiest part", "covers.minimum.busiest", "rows"),
    ("edge cut (nonzeros)", "edge_cut", "rows"),
    ("nnz imbalance", "nnz_imbalance", "share"),
    ("vertex imbalance", "vertex_imbalance", "share"),
    ("seconds", "seconds", "number"),
    ("peak memory", "peak_rss_bytes", "bytes"),
    *(
        (line, f"{level}.{figure}", "rows")
        for name, level in _LEVELS.items()
        for line, figure in (
            (name, "total"),
            ("  busiest part", "busiest"),
            ("  busiest node", "busiest_node"),
        )
    ),
    ("vertex cut: parts a vertex", "vertex_cut.replication", "number"),
    ("  expand (rows)", "vertex_cut.expand.total", "rows"),
    ("  fold", "vertex_cut.fold.total", "rows"),
    ("  busiest part, together", "vertex_cut.together.busiest", "rows"),
    ("  send imbalance", "vertex_cut.together.send_imbalance", "share"),
    ("  nnz imbalance", "vertex_cut.nnz_imbalance", "share"),
    ("  vertex imbalance", "vertex_cut.vertex_imbalance", "share"),
)
_BYTES = (
    ("total bytes", "total_volume"),
    ("busiest part's bytes", "busiest"),
    ("max send bytes", "max_send"),
    ("max receive bytes", "max_recv"),
)


def _print_reports(reports: list[Report], features: int | None) -> None:
    rows = [("", [result["method"] for result in reports])]
    for name, where, form in _TABLE:
        values: list[Any] = list(reports)
        for key in where.split("."):
            values = [None if value is None else value.get(key) for value in values]
        if any(value is not None for value in values):
            rows.append((name, [_shown(value, form) for value in values]))
    if features is not None:
        for name, key in _BYTES:
            rows.append((name, [_shown(result[key] * 4 * features, "bytes") for result in reports]))
    first = reports[0]
    say(f"{first['vertices']:,} vertices, {first['edges']:,} nonzeros, {first['parts']} parts")
    name_width = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(reports))]
    for name, cells in rows:
        figures = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        say(f"{name.ljust(name_width)}  {figures}")
    for result in reports:
        method = result["method"]
        if not result.get("imbalance_met", True):
            bound = _shown(result["imbalance_asked"], "share")
            say(f"{method}: the asked imbalance of {bound} is not met")
        if result["empty_parts"]:
            say(f"{method}: {plural(result['empty_parts'], 'empty part')}")
        if result["vertex_imbalance"] > _UNEVEN and result["nnz_imbalance"] < _UNEVEN:
            say(
                f"{method}: parts are even in nonzeros; the largest one has "
                f"{1 + result['vertex_imbalance']:.1f} times the average number of vertices "
                "(--balance nnz,vertices evens both)"
            )


def _shown(value: Any, form: str) -> str:
    if value is None:
        return "–"
    if form != "bytes":
        return {
            "rows": f"{value:,}",
            "mean": f"{value:,.1f}",
            "number": f"{value:.2f}",
            "share": f"{100 * value:.1f} %",
        }[form]
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


if __name__ == "__main__":
    sys.exit(main())
