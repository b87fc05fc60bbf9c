"""What the command does: read a graph, partition it, report, write."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.command import Parser, at_least, real
from spgnn.data.load import load_dataset
from spgnn.data.shards import open_shards
from spgnn.errors import InputError, check_choice, memory_for
from spgnn.partition import (
    BALANCES,
    METHODS,
    OBJECTIVES,
    PRESETS,
    VertexCut,
    count_volumes,
    cut_vertices,
    partition,
    report,
)
from spgnn.partition.adjacency import Int32Array
from spgnn.partition.arguments import (
    LARGEST_IMBALANCE,
    LARGEST_SEED,
    MOST_THREADS,
    check_nodes,
    check_parts,
)
from spgnn.partition.edge_files import read_edges
from spgnn.partition.labels import read_labels
from spgnn.partition.outputs import OUTPUTS, check_outputs, write_outputs
from spgnn.partition.table import print_reports
from spgnn.partition.volume import Report
from spgnn.progress import ProgressBar

# The method that gives parts to nonzeros, and then to vertices.
LIBRA = "libra"


@dataclass(frozen=True)
class Input:
    """The graph as the command needs it."""

    matrix: Any
    train_mask: npt.NDArray[np.bool_] | None

    @property
    def vertices(self) -> int:
        """Number of rows."""
        return int(self.matrix.shape[0])


def command(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and do what they say.

    Raises
    ------
    InputError
        For anything wrong with them; what cannot be written in the end is said after the table.
    """
    options = _parser().parse_args(arguments)
    _check_names(options)
    check_outputs(options)
    with ProgressBar() as progress:
        progress("reading", 0, 1)
        with memory_for(f"reading {options.graph}"):
            graph = _read(options.graph)
        check_parts(options.parts, graph.vertices, "--parts")
        labels, reports, edges = _results(options, graph, progress)
        volumes = None
        if options.plot is not None:
            volumes = count_volumes(graph.matrix, labels, options.parts, minimum=False)
    try:
        write_outputs(options, labels, reports, volumes, edges)
    finally:
        print_reports(reports, options.features)


def _parser() -> Parser:
    parser = Parser(
        prog="spgnn-partition",
        description="Partition a graph and report exactly what its training would move.",
    )
    add = parser.add_argument
    add(
        "graph",
        metavar="GRAPH",
        help=".mtx, .txt, .csv, .graph, .npz (text also .gz), or a directory with a graph on disk",
    )
    add("--parts", type=at_least(1), required=True, metavar="K", help="number of parts")
    add(
        "--method",
        default="gvb",
        choices=[*METHODS, LIBRA],
        help="default: gvb; libra is a vertex cut, which gives parts to nonzeros",
    )
    add(
        "--objective",
        default="column",
        choices=OBJECTIVES,
        help="what gvb minimises: rows moved when columns pay, or under minimum covers",
    )
    add(
        "--imbalance",
        type=real(0, LARGEST_IMBALANCE),
        default=0.05,
        metavar="E",
        help="default: 0.05",
    )
    add("--seed", type=at_least(0, LARGEST_SEED), default=0)
    add("--preset", default="default", choices=PRESETS)
    add("--balance", default="nnz", metavar="LIST", help="of nnz, vertices, train; default: nnz")
    add("--receive", action="store_true", help="gvb: minimise the maximum receive volume too")
    add("--nodes", type=at_least(1), metavar="N", help="gvb: K/N parts for each of N nodes")
    add("--refine-from", metavar="FILE", help="start from these labels (gvb, stream)")
    add("--labels", metavar="FILE", help="only report on these labels")
    add("--edge-labels", metavar="FILE", help="only report on this vertex cut (.npy)")
    add("--compare", metavar="M,M,…", help="further methods for the table")
    add(
        "--features",
        type=at_least(1),
        metavar="F",
        help="report bytes too, for rows of F float32 numbers",
    )
    add(
        "--minimum",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="count minimum covers (default: unless the graph is on disk)",
    )
    add("--threads", type=at_least(1, MOST_THREADS), metavar="T", help="default: all cores")
    for flag, written in OUTPUTS.items():
        add(flag, metavar="FILE", help=written)
    return parser


def _check_names(options: argparse.Namespace) -> None:
    for name in options.balance.split(","):
        check_choice("--balance", name, BALANCES)
    if options.compare is not None:
        for name in options.compare.split(","):
            check_choice("--compare", name, METHODS)
    if options.labels is not None and options.refine_from is not None:
        raise InputError("--labels only reports on labels, --refine-from refines them: give one")
    if options.edge_labels is not None and options.refine_from is not None:
        raise InputError("--edge-labels only reports on a vertex cut; leave out --refine-from")
    asked = options.refine_from or options.receive or options.objective != "column"
    if options.method == LIBRA and (asked or options.balance != "nnz"):
        raise InputError(
            "--method libra balances nonzeros; it takes no --refine-from, --receive, --objective "
            "or --balance"
        )
    if options.nodes is not None:
        check_nodes(options.nodes, options.parts, "--nodes")


def _read(path: str) -> Input:
    if os.path.isdir(path):
        return Input(open_shards(path).pattern(), None)
    graph = load_dataset(path)
    mask = None if graph.train_mask is None else graph.select_split(0).train_mask
    return Input(graph.adjacency, None if mask is None else mask.numpy())


def _results(
    options: argparse.Namespace, graph: Input, progress: ProgressBar
) -> tuple[Int32Array, list[Report], Int32Array | None]:
    """Labels, the reports of them and of what is compared, and edge labels if they matter."""
    compared = [] if options.compare is None else options.compare.split(",")
    cut = None
    if options.labels is not None:
        labels = read_labels(options.labels, graph.vertices, options.parts)
        first = _known(options, graph, labels, progress)
    elif options.method == LIBRA or options.edge_labels is not None:
        started = time.perf_counter()
        cut = _cut(options, graph, None, progress)
        seconds = time.perf_counter() - started
        labels, first = cut.owners, _known(options, graph, cut.owners, progress)
        if options.edge_labels is None:
            first["method"], first["seconds"] = LIBRA, seconds
    else:
        labels, first = _run_method(options, graph, options.method, progress, chosen=True)
        compared = [name for name in compared if name != options.method]
    if cut is None and (options.edges is not None or options.edge_labels is not None):
        cut = _cut(options, graph, labels, progress)
    if cut is not None:
        first["vertex_cut"] = cut.report
    others = (_run_method(options, graph, name, progress, chosen=False) for name in compared)
    reports = [first, *(result for _, result in others)]
    return labels, reports, None if cut is None else cut.edges


def _run_method(
    options: argparse.Namespace, graph: Input, name: str, progress: ProgressBar, *, chosen: bool
) -> tuple[Int32Array, Report]:
    """What a method finds: the chosen one, or one to compare it with."""
    ours, initial = chosen or name == "gvb", None
    if chosen and options.refine_from is not None:
        initial = read_labels(options.refine_from, graph.vertices, options.parts)
    return partition(
        graph.matrix,
        options.parts,
        name,
        objective=options.objective if ours else "column",
        imbalance=options.imbalance,
        seed=options.seed,
        preset=options.preset,
        receive=options.receive and ours,
        balance=options.balance.split(",") if chosen else ("nnz",),
        train_mask=graph.train_mask,
        initial=initial,
        nodes=options.nodes if ours else None,
        minimum=options.minimum,
        threads=options.threads,
        progress=progress,
    )


def _known(
    options: argparse.Namespace, graph: Input, labels: Int32Array, progress: ProgressBar
) -> Report:
    """The report of labels that no method of `partition` found."""
    return report(
        graph.matrix,
        labels,
        options.parts,
        nodes=options.nodes,
        minimum=options.minimum,
        threads=options.threads,
        progress=progress,
    )


def _cut(
    options: argparse.Namespace, graph: Input, labels: Int32Array | None, progress: ProgressBar
) -> VertexCut:
    """The vertex cut that was given, or made."""
    edges = None
    if options.edge_labels is not None:
        nonzeros = len(graph.matrix.indices)
        edges = read_edges(options.edge_labels, nonzeros, options.parts)
    return cut_vertices(
        graph.matrix,
        options.parts,
        labels=labels,
        edges=edges,
        imbalance=options.imbalance,
        seed=options.seed,
        threads=options.threads,
        progress=progress,
    )
