"""The command ``spgnn``: look at graphs, fetch them, cut them into shards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spgnn.data.graph import Graph
from spgnn.data.load import DOWNLOADS, data_directory, download, load_dataset
from spgnn.data.normalise import is_bag_of_words
from spgnn.data.progress import terminal_progress
from spgnn.data.shards import write_shards
from spgnn.errors import InputError
from spgnn.sparse import CSR


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; bad input is one line on stderr and exit status 2."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spgnn", description=__doc__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="print what a graph holds")
    _add_graph(info)
    info.set_defaults(run=_info)

    fetch = commands.add_parser("download", help="fetch a public data set and keep it as .npz")
    fetch.add_argument("name", metavar="NAME", help=", ".join(DOWNLOADS))
    _add_data_dir(fetch)
    fetch.set_defaults(run=_download)

    shard = commands.add_parser(
        "shard", help="partition a graph and write each part into a folder of its own"
    )
    _add_graph(shard)
    shard.add_argument("--parts", type=int, required=True, metavar="K")
    shard.add_argument(
        "--partition",
        default="block",
        metavar="METHOD_OR_FILE",
        help="a method of spgnn-partition, or a file with one label a line (default: block)",
    )
    shard.add_argument("--imbalance", type=float, default=0.05)
    shard.add_argument("--seed", type=int, default=0, help="of the method and the generator")
    shard.add_argument(
        "--split", type=int, metavar="N", help="keep only this column of masks with several"
    )
    shard.add_argument(
        "--symmetrise", action="store_true", help="store every edge in both directions"
    )
    shard.add_argument("--output", required=True, metavar="DIR", help="must not exist")
    shard.set_defaults(run=_shard)
    return parser


def _add_graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="GRAPH", help="a file or a data set's name")
    _add_data_dir(parser)


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where named sets live (default: $SPGNN_DATA or ~/.cache/spgnn)",
    )


def _info(options: argparse.Namespace) -> None:
    with terminal_progress() as progress:
        graph = load_dataset(options.graph, options.data_dir, progress=progress)
    degrees = graph.adjacency.row_lengths.numpy()
    kind = f"{'directed' if graph.directed else 'undirected'}, " + (
        "weighted" if graph.weighted else "unweighted"
    )
    rows = {
        "name": graph.name,
        "vertices": f"{graph.vertices:,}",
        "stored edges": f"{graph.edges:,} ({kind})",
        "row lengths": f"at most {degrees.max(initial=0):,}, {np.mean(degrees == 0):.1%} empty",
        "features": _describe_features(graph),
        "labels": "none"
        if graph.y is None
        else f"{graph.classes} classes, {int((graph.y >= 0).sum()):,} vertices labelled",
        "split": _describe_split(graph),
    }
    for key, value in rows.items():
        print(f"{key:>12}  {value}")


def _describe_features(graph: Graph) -> str:
    if graph.x is None:
        return "none"
    kind = "sparse" if isinstance(graph.x, CSR) else "dense"
    words = ", bag of words" if is_bag_of_words(graph.x) else ""
    return f"{graph.features} ({kind}{words})"


def _describe_split(graph: Graph) -> str:
    if graph.train_mask is None:
        return "none"
    first = graph.select_split()
    masks = (first.train_mask, first.val_mask, first.test_mask)
    sizes = " / ".join("–" if m is None else f"{int(m.sum()):,}" for m in masks)
    return sizes + (f", the first of {graph.splits}" if graph.splits > 1 else "")


def _download(options: argparse.Namespace) -> None:
    with terminal_progress() as progress:
        graph = download(options.name, options.data_dir, progress)
    print(data_directory(options.data_dir) / f"{graph.name}.npz")


def _shard(options: argparse.Namespace) -> None:
    if options.parts < 1:
        raise InputError(f"--parts must be at least 1, got {options.parts}")
    if Path(options.output).exists():
        raise InputError(f"{options.output}: exists already; remove it or name another one")
    with terminal_progress() as progress:
        graph = load_dataset(options.graph, options.data_dir, options.seed, progress)
        if options.symmetrise and graph.directed:
            graph = graph.symmetrised()
        if options.split is not None:
            graph = graph.select_split(options.split)
        labels = _labels(graph, options)
        write_shards(graph, labels, options.parts, options.output, progress)
    print(f"{options.output}: {graph.vertices:,} vertices in {options.parts} parts")


def _labels(graph: Graph, options: argparse.Namespace) -> npt.NDArray[np.int32] | None:
    """The part of each vertex, from a file or a method."""
    if options.partition == "block":
        return None
    # Imported here: partitioners are compiled, and needed by this one command.
    from spgnn.partition import METHODS, partition, read_labels  # noqa: PLC0415

    if options.partition in METHODS:
        labels, _ = partition(
            graph.adjacency,
            options.parts,
            method=options.partition,
            imbalance=options.imbalance,
            seed=options.seed,
        )
        return labels
    if not Path(options.partition).exists():
        known = ", ".join(METHODS)
        raise InputError(f"--partition {options.partition}: neither a file nor one of {known}")
    return read_labels(options.partition, graph.vertices, options.parts)


if __name__ == "__main__":
    sys.exit(main())
