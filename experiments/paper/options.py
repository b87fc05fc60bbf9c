"""The command line: what all tables and figures take, and what they are made of."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from paper.graphs import DATASETS, DEFAULT_SCALES, PaperGraph, real_graph, stand_in_of
from paper.times import Model
from spgnn.command import at_least, real
from spgnn.errors import meant, shortened
from spgnn.partition.methods import PRESETS
from spgnn.plan import Machine, read_machine
from spgnn.plan.partitions import Partitions, cache_directory
from spgnn.progress import Progress

MACHINE = Path(__file__).parents[1] / "machines" / "perlmutter_a100.json"
MOST_RANKS = 4096


def add_options(parser: argparse.ArgumentParser) -> None:
    """What all commands take."""
    add = parser.add_argument
    add("--output", default="icpp24", metavar="DIR", help="default: %(default)s")
    add("--datasets", type=names(DATASETS), metavar="NAME,…", help=f"of {', '.join(DATASETS)}")
    add("--dataset", metavar="FILE", help="a real graph instead: a file or a set's name")
    add("--scale", type=real(0), metavar="S", help="of the stand-ins; the defaults take minutes")
    add("--full", action="store_true", help="stand-ins as large as the originals")
    add("--ranks", type=rank_list, metavar="P,…", help="numbers of ranks")
    add("--preset", choices=PRESETS, default="fast", help="of gvb (default: %(default)s)")
    add("--imbalance", type=real(0, 1000), default=0.05, metavar="E")
    add("--seed", type=at_least(0), default=0)
    add("--cache", metavar="DIR", help="where partitions are kept")
    add("--data-dir", metavar="DIR", help="where named sets live")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """What figures of seconds take besides."""
    add = parser.add_argument
    add("--machine", default=str(MACHINE), metavar="FILE", help="default: Perlmutter's A100 nodes")
    add("--layers", type=at_least(1, 1000), default=3, metavar="L")
    add("--hidden", type=at_least(1), default=16, metavar="F")


class names:
    """The type of a flag: some of the names there are, each once."""

    def __init__(self, choices: Sequence[str]) -> None:
        self.choices = choices

    def __call__(self, text: str) -> list[str]:
        """The names, or argparse's own error (it would hide what an InputError says)."""
        for name in text.split(","):
            if name not in self.choices:
                said = f"choose of {', '.join(self.choices)}{meant(name, self.choices)}"
                raise argparse.ArgumentTypeError(f"'{shortened(name, 40)}': {said}")
        return list(dict.fromkeys(text.split(",")))


def rank_list(text: str) -> list[int]:
    """The type of a flag: numbers of ranks, rising."""
    one = at_least(2, MOST_RANKS)
    return sorted({one(part) for part in text.split(",")})


def graphs(options: argparse.Namespace, datasets: Iterable[str]) -> Iterator[PaperGraph]:
    """The real graph that is asked for, or the stand-ins, one after the other.

    Raises
    ------
    InputError
    """
    if options.dataset is not None:
        yield real_graph(options.dataset, options.data_dir)
        return
    for name in options.datasets or datasets:
        scale = 1.0 if options.full else options.scale or DEFAULT_SCALES[name]
        yield stand_in_of(name, scale)


def partitions_of(
    graph: PaperGraph, options: argparse.Namespace, progress: Progress | None
) -> Partitions:
    """Partitions of a graph, made once and kept."""
    return Partitions(
        graph.subject,
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
    """What a graph is, in one line that hides nothing."""
    subject = graph.subject
    if graph.factor == 1:
        return f"{graph.dataset}: {subject.vertices:,} vertices, {subject.structure.nnz:,} nonzeros"
    return (
        f"{graph.dataset}: counted on {subject.name} ({subject.vertices:,} vertices, "
        f"{subject.structure.nnz:,} nonzeros), rows and nonzeros times {graph.factor:,.6g}"
    )
