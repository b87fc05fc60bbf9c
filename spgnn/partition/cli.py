"""What the command does: read a graph, partition it, report, write."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.data.load import load_dataset
from spgnn.data.shards import open_shards
from spgnn.errors import InputError
from spgnn.partition import METHODS, OBJECTIVES, PRESETS, count_volumes, partition, report
from spgnn.partition.labels import (
    part_sizes,
    permutation,
    read_labels,
    write_atomically,
    write_labels,
)
from spgnn.partition.pattern import Int32Array
from spgnn.partition.plot import check_plot, plot_volumes
from spgnn.partition.table import ProgressLine, print_reports
from spgnn.partition.volume import Report


@dataclass(frozen=True)
class Input:
    """The graph as the command needs it."""

    matrix: Any
    train_mask: npt.NDArray[np.bool_] | None


def run(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and do what they say; raises InputError for anything wrong with them."""
    options = _parser().parse_args(arguments)
    _check_targets(options)
    with ProgressLine() as progress:
        progress("reading", 0, 1)
        graph = _read(options.graph)
        if options.labels is not None:
            labels = read_labels(options.labels, _vertices(graph), options.parts)
            reports = [
                report(
                    graph.matrix, labels, options.parts, minimum=options.minimum, progress=progress
                )
            ]
        else:
            labels, reports = _partition_all(options, graph, progress)
        volumes = None
        if options.plot is not None:
            volumes = count_volumes(graph.matrix, labels, options.parts, minimum=options.minimum)
    print_reports(reports, options.features)
    if volumes is not None:
        plot_volumes(volumes, options.plot, f"{Path(options.graph).name}, {reports[0]['method']}")
    _write(options, labels, reports)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spgnn-partition",
        description="Partition a graph and report exactly what its training would move.",
    )
    add = parser.add_argument
    add(
        "graph",
        metavar="GRAPH",
        help=".mtx, .txt, .csv, .graph, .npz (text also .gz), or a directory with a graph on disk",
    )
    add("--parts", type=int, required=True, metavar="K", help="number of parts")
    add("--method", default="gvb", choices=METHODS, help="default: gvb")
    add(
        "--objective",
        default="column",
        choices=OBJECTIVES,
        help="what gvb minimises: rows moved when columns pay, or under minimum covers",
    )
    add("--imbalance", type=float, default=0.05, metavar="E", help="default: 0.05")
    add("--seed", type=int, default=0)
    add("--preset", default="default", choices=PRESETS)
    add("--balance", default="nnz", metavar="LIST", help="of nnz, vertices, train; default: nnz")
    add("--receive", action="store_true", help="gvb: minimise the maximum receive volume too")
    add("--refine-from", metavar="FILE", help="start from these labels (gvb, stream)")
    add("--labels", metavar="FILE", help="only report on these labels")
    add("--compare", metavar="M,M,…", help="further methods for the table")
    add("--features", type=int, metavar="F", help="report bytes too, for rows of F float32 numbers")
    add(
        "--minimum",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="count minimum covers (default: unless the graph is on disk)",
    )
    add("--threads", type=int, metavar="T", help="default: all cores")
    add("--output", metavar="FILE", help="write the labels, one a line (METIS's format)")
    add("--sizes", metavar="FILE", help="write the number of vertices of each part")
    add(
        "--permutation", metavar="FILE", help="write the original vertex ids in order of their part"
    )
    add("--json", metavar="FILE", help="write the report")
    add("--plot", metavar="FILE", help="draw send and receive volumes and the block heat map")
    return parser  # fmt: skip


def _check_targets(options: argparse.Namespace) -> None:
    """Refuse what would fail only after the long work."""
    for name in ("output", "sizes", "permutation", "json", "plot"):
        target = getattr(options, name)
        if target is None:
            continue
        if Path(target).is_dir():
            raise InputError(f"--{name} {target}: is a directory")
        if not os.access(Path(target).absolute().parent, os.W_OK):
            raise InputError(f"--{name} {target}: its directory does not exist or is not writable")
    for name in _compared(options):
        if name not in METHODS:
            raise InputError(
                f"--compare: unknown method '{name}'; choose from {', '.join(METHODS)}"
            )
    if options.threads is not None and options.threads < 1:
        raise InputError(f"--threads must be at least 1, got {options.threads}")
    if options.features is not None and options.features < 1:
        raise InputError(f"--features must be at least 1, got {options.features}")
    if options.plot is not None:
        check_plot(options.plot)


def _compared(options: argparse.Namespace) -> list[str]:
    return [name for name in (options.compare or "").split(",") if name]


def _read(path: str) -> Input:
    if Path(path).is_dir():
        return Input(open_shards(path).pattern(), None)
    graph = load_dataset(path)
    mask = None if graph.train_mask is None else graph.select_split(0).train_mask
    return Input(graph.adjacency, None if mask is None else mask.numpy())


def _vertices(graph: Input) -> int:
    return int(graph.matrix.shape[0])


def _partition_all(
    options: argparse.Namespace, graph: Input, progress: ProgressLine
) -> tuple[Int32Array, list[Report]]:
    """Labels of the chosen method, and the reports of it and of those compared with it."""
    initial = None
    if options.refine_from is not None:
        initial = read_labels(options.refine_from, _vertices(graph), options.parts)

    def run_method(name: str) -> tuple[Int32Array, Report]:
        ours = name == options.method
        return partition(
            graph.matrix,
            options.parts,
            name,
            objective=options.objective if ours or name == "gvb" else "column",
            imbalance=options.imbalance,
            seed=options.seed,
            preset=options.preset,
            receive=options.receive and (ours or name == "gvb"),
            balance=options.balance.split(",") if ours else ("nnz",),
            train_mask=graph.train_mask,
            initial=initial if ours else None,
            minimum=options.minimum,
            threads=options.threads,
            progress=progress,
        )

    labels, first = run_method(options.method)
    others = [run_method(name)[1] for name in _compared(options) if name != options.method]
    return labels, [first, *others]


def _write(options: argparse.Namespace, labels: Int32Array, reports: list[Report]) -> None:
    if options.output is not None:
        write_labels(options.output, labels)
    if options.sizes is not None:
        write_labels(options.sizes, part_sizes(labels, options.parts))
    if options.permutation is not None:
        write_labels(options.permutation, permutation(labels))
    if options.json is not None:
        record: dict[str, Any] = dict(reports[0])
        record["graph"] = options.graph
        if options.features is not None:
            record["bytes"] = _bytes(reports[0], options.features)
        if len(reports) > 1:
            record["compared"] = reports[1:]
        write_atomically(options.json, [json.dumps(record, indent=2).encode() + b"\n"])
    written = [
        getattr(options, name) for name in ("output", "sizes", "permutation", "json", "plot")
    ]
    for path in filter(None, written):
        print(f"wrote {path}", file=sys.stderr)


def _bytes(result: Report, features: int) -> dict[str, int]:
    """Volumes in bytes, for rows of float32."""
    row = 4 * features
    return {
        "features": features,
        "total": result["total_volume"] * row,
        "max_send": result["max_send"] * row,
        "max_recv": result["max_recv"] * row,
    }
