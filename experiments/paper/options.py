"""The command line: what all tables and figures take, and what they are made of."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from paper.graphs import DATASETS, DEFAULT_SCALES, PaperGraph, real_graph, stand_in_of
from paper.times import Model
from paper.volumes import METHODS
from spgnn.errors import InputError, check_choice
from spgnn.options import Record, flag, positional, read_options
from spgnn.partition.methods import PRESETS
from spgnn.plan import Machine, read_machine
from spgnn.plan.graphs import Partitions, cache_directory
from spgnn.progress import Progress

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
    imbalance: Annotated[float, flag("of the partition", high=1000)] = 0.05
    seed: Annotated[int, flag("of the partition")] = 0
    cache: Annotated[str | None, flag("where partitions are kept", "DIR")] = None
    data_dir: Annotated[str | None, flag("where named sets live", "DIR")] = None
    methods: Annotated[str, flag("table2: of the partitioner", "METHOD,…")] = ",".join(METHODS)
    width: Annotated[int, flag("table2: of H, for megabytes", low=1)] = 300
    published: Annotated[str | None, flag("table2: CSV of the paper's own rows", "FILE")] = None
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
