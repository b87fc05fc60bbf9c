"""The command ``spgnn``: look at graphs, fetch them, cut them into shards, plan training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spgnn.command import Parser, at_least, counted, nbytes, real, run, say
from spgnn.data.graph import MASKS, GraphBlock, LabelKind, label_kind, labelled
from spgnn.data.load import DOWNLOADS, data_directory, download, open_source
from spgnn.data.shards import ShardDirectory, check_parts, write_shards
from spgnn.data.source import GraphMeta, GraphSource, MemorySource
from spgnn.data.through_disk import open_through_disk
from spgnn.errors import InputError, meant, shortened
from spgnn.files import check_new_directory, scratch_directory
from spgnn.inference.cli import add_infer
from spgnn.plan.cli import add_machine, add_plan
from spgnn.progress import ProgressBar


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; bad input is one line on stderr and exit status 2."""

    def body() -> int | None:
        options = _parser().parse_args(arguments)
        status: int | None = options.run(options)
        return status

    return run(body)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="spgnn", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    info = commands.add_parser("info", help="print what a graph holds", allow_abbrev=False)
    _add_graph(info)
    info.add_argument(
        "--check", action="store_true", help="compare every byte of a graph directory"
    )
    info.set_defaults(run=_info)

    fetch = commands.add_parser(
        "download", help="fetch a public data set and keep it as .npz", allow_abbrev=False
    )
    fetch.add_argument("name", metavar="NAME", help=", ".join(DOWNLOADS))
    _add_data_dir(fetch)
    fetch.set_defaults(run=_download)

    shard = commands.add_parser(
        "shard",
        help="partition a graph and write each part into a folder of its own",
        allow_abbrev=False,
    )
    _add_graph(shard)
    shard.add_argument("--parts", type=at_least(1), required=True, metavar="K")
    shard.add_argument(
        "--partition",
        default="block",
        metavar="METHOD_OR_FILE",
        help="a method of spgnn-partition, or a file with one label a line (default: block)",
    )
    shard.add_argument("--imbalance", type=real(0), default=0.05)
    shard.add_argument("--seed", type=at_least(0), default=0, help="of the method")
    shard.add_argument(
        "--split", type=at_least(0), metavar="N", help="keep only this column of masks with several"
    )
    shard.add_argument(
        "--symmetrise", action="store_true", help="store every edge in both directions"
    )
    shard.add_argument(
        "--memory",
        type=nbytes,
        metavar="BYTES",
        help="what to do with so much: edges and compressed features go by way of the disk of "
        "--output (default: what is read is in memory)",
    )
    shard.add_argument("--output", required=True, metavar="DIR", help="must not exist")
    shard.set_defaults(run=_shard)
    add_machine(commands)
    add_plan(commands)
    add_infer(commands)
    return parser


def _add_graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="GRAPH", help="a file, a directory or a data set's name")
    _add_data_dir(parser)


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where named sets live (default: $SPGNN_DATA or ~/.cache/spgnn)",
    )


def _info(options: argparse.Namespace) -> None:
    with ProgressBar() as progress:
        source = open_source(options.graph, options.data_dir, progress=progress)
        if options.check and isinstance(source, ShardDirectory):
            source.check(progress)
        meta, counts = source.meta, _Counts()
        for block in _blocks(source):
            counts.add(block)
    kind = f"{'directed' if meta.directed else 'undirected'}, " + (
        "weighted" if meta.weighted else "unweighted"
    )
    empty = counts.empty_rows / max(meta.vertices, 1)
    rows = {
        "name": meta.name,
        "vertices": f"{meta.vertices:,}" + (f" in {meta.parts} parts" if meta.parts > 1 else ""),
        "stored edges": f"{meta.edges:,} ({kind})",
        **source.decided,
        "row lengths": f"at most {counts.longest_row:,}, {empty:.1%} empty",
        "features": _describe_features(meta),
        "labels": counts.describe_labels(meta),
        "split": counts.describe_split(meta.splits),
    }
    for key, value in rows.items():
        say(f"{key:>12}  {value}")


def _blocks(source: GraphSource) -> Iterator[GraphBlock]:
    """All rows, those of a directory mapped part by part."""
    if isinstance(source, ShardDirectory):
        yield from (source.block(part) for part in range(source.meta.parts))
    else:
        yield source.graph().block(0, source.meta.vertices)


_OF_LABELS: dict[LabelKind, str] = {
    "classes": "classes",
    "several": "labels a vertex",
    "numbers": "numbers a vertex",
}


class _Counts:
    """What is counted in the rows of a graph."""

    def __init__(self) -> None:
        self.longest_row = self.empty_rows = self.labelled = 0
        self._of_labels = "classes"
        self._chosen: dict[str, int] = {}

    def add(self, block: GraphBlock) -> None:
        """Count some rows."""
        lengths = block.adjacency.row_lengths.numpy()
        self.longest_row = max(self.longest_row, int(lengths.max(initial=0)))
        self.empty_rows += int((lengths == 0).sum())
        if block.y is not None:
            self.labelled += int(labelled(block.y).sum())
            self._of_labels = _OF_LABELS[label_kind(block.y)]
        if block.splits:
            first = block.select_split()
            for name in MASKS:
                mask = getattr(first, name)
                if mask is not None:
                    self._chosen[name] = self._chosen.get(name, 0) + int(mask.sum())

    def describe_labels(self, meta: GraphMeta) -> str:
        """Their kind, and of how many vertices they are known."""
        if not meta.labelled:
            return "none"
        return f"{meta.classes} {self._of_labels}, {self.labelled:,} vertices labelled"

    def describe_split(self, splits: int) -> str:
        """Sizes of the first split."""
        if not splits:
            return "none"
        sizes = (self._chosen.get(name) for name in MASKS)
        text = " / ".join("none" if size is None else f"{size:,}" for size in sizes)
        return text + (f", the first of {splits}" if splits > 1 else "")


def _describe_features(meta: GraphMeta) -> str:
    if not meta.features:
        return "none"
    kind = "sparse" if meta.sparse_features else "dense"
    return f"{meta.features} ({kind}{', bag of words' if meta.bag_of_words else ''})"


def _download(options: argparse.Namespace) -> None:
    with ProgressBar() as progress:
        graph = download(options.name, options.data_dir, progress)
    say(str(data_directory(options.data_dir) / f"{graph.name}.npz"))


def _shard(options: argparse.Namespace) -> None:
    check_new_directory(options.output, "--output")
    with ProgressBar() as progress:
        if options.memory is None:
            source = open_source(options.graph, options.data_dir, progress=progress)
            check_parts(options.parts, source.meta.vertices, "--parts")
            if options.symmetrise and source.meta.directed:
                source = MemorySource(source.graph().symmetrised())
            _cut(source, options, progress)
            return
        beside = Path(options.output).absolute().parent
        with scratch_directory(beside, f"--output {options.output}") as scratch:
            uncut = scratch / "uncut"
            source = open_through_disk(
                options.graph,
                options.data_dir,
                directory=uncut,
                memory=options.memory,
                symmetrise=options.symmetrise,
                progress=progress,
            )
            check_parts(options.parts, source.meta.vertices, "--parts")
            whole = options.parts == 1 and options.partition == "block" and options.split is None
            if whole and uncut.exists():
                uncut.rename(options.output)
                _say_cut(source, options)
            else:
                _cut(source, options, progress)


def _cut(source: GraphSource, options: argparse.Namespace, progress: ProgressBar) -> None:
    labels = _labels(source, options)
    write_shards(source, labels, options.parts, options.output, progress, split=options.split)
    _say_cut(source, options)


def _say_cut(source: GraphSource, options: argparse.Namespace) -> None:
    say(f"{options.output}: {source.meta.vertices:,} vertices in {counted(options.parts, 'part')}")


def _labels(source: GraphSource, options: argparse.Namespace) -> npt.NDArray[np.int32] | None:
    """The part of each vertex, from a file or a method."""
    if options.partition == "block":
        return None
    # Imported here: partitioners are compiled, and needed by this one command.
    from spgnn.partition import METHODS, partition, read_labels

    if options.partition in METHODS:
        pattern = source.pattern() if isinstance(source, ShardDirectory) else source.structure()
        labels, _ = partition(
            pattern,
            options.parts,
            method=options.partition,
            imbalance=options.imbalance,
            seed=options.seed,
        )
        return labels
    if not os.path.exists(options.partition):
        known = ", ".join(METHODS)
        raise InputError(
            f"--partition {shortened(options.partition, 60)}: neither a file nor one of {known}"
            f"{meant(options.partition, METHODS)}"
        )
    return read_labels(options.partition, source.meta.vertices, options.parts)


if __name__ == "__main__":
    sys.exit(main())
