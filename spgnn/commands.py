"""Commands of ``spgnn`` that are small: info, shard, weights, plot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from spgnn import data
from spgnn.command import plural, say
from spgnn.errors import InputError, check_method
from spgnn.files import check_new_directory, check_writable, scratch_directory
from spgnn.options import Record, command_of, flag, positional
from spgnn.progress import ProgressBar
from spgnn.registry import LARGEST_IMBALANCE, OPENERS

if TYPE_CHECKING:  # imported where it is used: --help waits for none of it
    from spgnn.data.graph import LabelKind
    from spgnn.layout import Int32Array


@dataclass(frozen=True)
class Info(Record):
    """Print what a graph holds."""

    graph: Annotated[str, positional("a file, a directory or a data set's name")]
    data_dir: Annotated[str | None, flag("where named sets live", "DIR")] = None
    check: Annotated[bool, flag("compare every byte of a graph directory")] = False


@dataclass(frozen=True)
class Shard(Record):
    """Partition a graph and write each part into a folder of its own."""

    graph: Annotated[str, positional("a file, a directory or a data set's name")]
    parts: Annotated[int, flag("number of parts", "K", low=1)]
    output: Annotated[str, flag("must not exist", "DIR")]
    data_dir: Annotated[str | None, flag("where named sets live", "DIR")] = None
    partition: Annotated[
        str, flag("a method of spgnn-partition, or a file with one label a line", "METHOD_OR_FILE")
    ] = "block"
    imbalance: Annotated[float, flag("of the parts", high=LARGEST_IMBALANCE)] = 0.05
    seed: Annotated[int, flag("of the method")] = 0
    split: Annotated[int | None, flag("keep only this column of masks with several", "N")] = None
    symmetrise: Annotated[bool, flag("store every edge in both directions")] = False
    memory: Annotated[
        int | None,
        flag(
            "what to do with so much: edges and compressed features go by way of the disk of "
            "--output; default: what is read is in memory",
            "BYTES",
            in_bytes=True,
        ),
    ] = None


@dataclass(frozen=True)
class Weights(Record):
    """Write the weights of a checkpoint, or of a file of torch, as plain safetensors."""

    weights: Annotated[str, positional("a directory of --checkpoint, or a file of weights")]
    output: Annotated[str, flag("a name that ends in .safetensors", "FILE")]


@dataclass(frozen=True)
class Plot(Record):
    """Draw the losses and scores of a training report against its epochs."""

    report: Annotated[str, positional("a file of training's --json")]
    output: Annotated[str, flag("a picture: .png, .svg, .pdf", "FILE")]


def _info(options: Info) -> None:
    typed = OPENERS["several types"](options.graph) if "several types" in OPENERS else None
    for key, value in () if typed is None else typed.described.items():
        say(f"{key}: {value}")
    if typed is None:
        _info_of_one(options)


def _info_of_one(options: Info) -> None:
    from spgnn.data.graph import label_kind

    longest = empty = with_label = 0
    of_labels, chosen = "classes", Counter[str]()
    with ProgressBar() as progress:
        source = data.open_source(options.graph, options.data_dir, progress=progress)
        if options.check and isinstance(source, data.ShardDirectory):
            source.check(progress)
        meta = source.meta
        for block in _blocks(source):
            lengths = block.adjacency.row_lengths.numpy()
            longest = max(longest, int(lengths.max(initial=0)))
            empty += int((lengths == 0).sum())
            if block.y is not None:
                with_label += int(data.labelled(block.y).sum())
                of_labels = _OF_LABELS[label_kind(block.y)]
            first = block.select_split() if block.splits else None
            masks = {name: getattr(first, name, None) for name in data.MASKS}
            chosen.update({name: int(m.sum()) for name, m in masks.items() if m is not None})
    kind = "directed" if meta.directed else "undirected"
    words = ", bag of words" if meta.bag_of_words else ""
    features = f"{meta.features} ({'sparse' if meta.sparse_features else 'dense'}{words})"
    split = " / ".join(f"{chosen[n]:,}" if n in chosen else "none" for n in data.MASKS)
    split += f", the first of {meta.splits}" if meta.splits > 1 else ""
    labels = f"{meta.classes} {of_labels}, {with_label:,} vertices labelled"
    rows = {
        "name": meta.name,
        "vertices": f"{meta.vertices:,}" + (f" in {meta.parts} parts" if meta.parts > 1 else ""),
        "stored edges": f"{meta.edges:,} ({kind}, {'' if meta.weighted else 'un'}weighted)",
        **source.decided,
        "row lengths": f"at most {longest:,}, {empty / max(meta.vertices, 1):.1%} empty",
        "features": features if meta.features else "none",
        "labels": labels if meta.labelled else "none",
        "split": split if meta.splits else "none",
    }
    for key, value in rows.items():
        say(f"{key:>12}  {value}")


def _blocks(source: data.GraphSource) -> Iterator[data.GraphBlock]:
    """All rows, those of a directory mapped part by part."""
    if isinstance(source, data.ShardDirectory):
        yield from (source.block(part) for part in range(source.meta.parts))
    else:
        yield source.graph().block(0, source.meta.vertices)


_OF_LABELS: dict[LabelKind, str] = {
    "classes": "classes",
    "several": "labels a vertex",
    "numbers": "numbers a vertex",
}


def _shard(options: Shard) -> None:
    from spgnn.data.shards import check_parts

    check_new_directory(options.output, "--output")
    uncut = None
    with ProgressBar() as progress, ExitStack() as stack:
        if options.memory is None:
            source = data.open_source(options.graph, options.data_dir, progress=progress)
        else:
            beside = Path(options.output).absolute().parent
            scratch = scratch_directory(beside, f"--output {options.output}")
            uncut = stack.enter_context(scratch) / "uncut"
            source = OPENERS.need("through disk", "--memory", "io")(
                options.graph,
                options.data_dir,
                directory=uncut,
                memory=options.memory,
                symmetrise=options.symmetrise,
                progress=progress,
            )
        parts = options.parts
        check_parts(parts, source.meta.vertices, "--parts")
        if uncut is None and options.symmetrise and source.meta.directed:
            graph = source.graph().symmetrised()
            source = data.MemorySource(graph, write_ids=source.write_ids)
        whole = parts == 1 and options.partition == "block" and options.split is None
        if uncut is not None and whole and uncut.exists():
            uncut.rename(options.output)
        else:
            labels = _labels(source, options)
            data.write_shards(source, labels, parts, options.output, progress, split=options.split)
    say(f"{options.output}: {source.meta.vertices:,} vertices in {plural(parts, 'part')}")


def _labels(source: data.GraphSource, options: Shard) -> Int32Array | None:
    """The part of each vertex, from a file or a method."""
    if options.partition == "block":
        return None
    from spgnn.partition import METHODS, partition, read_labels

    if options.partition in METHODS:
        labels, _ = partition(
            source.pattern() if isinstance(source, data.ShardDirectory) else source.structure(),
            options.parts,
            options.partition,
            imbalance=options.imbalance,
            seed=options.seed,
        )
        return labels
    check_method(options.partition, METHODS)
    return read_labels(options.partition, source.meta.vertices, options.parts)


def _weights(options: Weights) -> None:
    from spgnn.inference.weights import read_state, write_state
    from spgnn.train.checkpoint import SUFFIX

    if not options.output.endswith(SUFFIX):
        raise InputError(f"--output {options.output}: its name must end in {SUFFIX}")
    check_writable(options.output, "--output")
    state, _ = read_state(options.weights)
    write_state(state, options.output, f"--output {options.output}")
    say(f"{options.output}: {plural(len(state), 'array')}")


def _plot(options: Plot) -> None:
    from spgnn.partition.plot import check_plot
    from spgnn.train.report import plot_history

    check_plot(options.output, "--output")
    check_writable(options.output, "--output")
    try:
        with open(options.report, "rb") as file:
            report = json.load(file)
        history = [{"epoch": int(r["epoch"]), **r} for r in report["history"]]
    except OSError as error:
        raise InputError(f"{options.report}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{options.report}: no report of training's --json") from None
    plot_history({"history": history}, options.output, Path(options.report).stem)


run_info = command_of(Info, _info)
run_shard = command_of(Shard, _shard)
run_weights = command_of(Weights, _weights)
run_plot = command_of(Plot, _plot)
