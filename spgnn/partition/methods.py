"""The methods: each takes a Problem and returns labels, int32 [vertices]."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn import _native
from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.partition import gvb as multilevel
from spgnn.partition.adjacency import Adjacency, Int32Array, Int64Array
from spgnn.partition.gvb import Objective, Preset
from spgnn.progress import Progress, stage

PRESETS: tuple[Preset, ...] = get_args(Preset)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to be partitioned, and the options; checked by `partition`.

    `weights` is int64 [vertices, constraints]: what each part's share of must be balanced.
    """

    adjacency: Adjacency
    parts: int
    weights: Int64Array
    imbalance: float
    seed: int
    preset: Preset
    objective: Objective
    receive: bool
    initial: Int32Array | None
    threads: int
    progress: Progress | None

    @property
    def weight(self) -> Int64Array:
        """The only balanced weight, int64 [vertices]."""
        if self.weights.shape[1] != 1:
            raise InputError("this method balances one weight only; use method gvb for more")
        return self.weights[:, 0]


def block(problem: Problem) -> Int32Array:
    """Runs of equally many consecutive vertices."""
    layout = RowLayout.even(problem.adjacency.vertices, problem.parts)
    return np.repeat(np.arange(problem.parts, dtype=np.int32), layout.sizes)


def random(problem: Problem) -> Int32Array:
    """Equally many vertices each, drawn at random."""
    return np.random.default_rng(problem.seed).permutation(block(problem))


def metis(problem: Problem, *, volume: bool = False) -> Int32Array:
    """METIS: least edge cut, or least total volume (k-way only, as METIS has it)."""
    pymetis = _require("pymetis")
    indptr, indices = problem.adjacency.undirected
    # METIS counts the allowed imbalance in thousandths and takes 1 at least.
    options = pymetis.Options(ufactor=max(1, round(problem.imbalance * 1000)), seed=problem.seed)
    if volume:
        options.objtype = int(pymetis.ObjType.VOL)
    index = pymetis.zero_copy_dtype()
    most = max(len(indices), int(problem.weight.sum()))
    if most > np.iinfo(index).max:
        raise InputError(f"this METIS counts in {index} and cannot take {most:,} nonzeros")
    _, labels = pymetis.part_graph(
        problem.parts,
        adjacency=pymetis.CSRAdjacency(indptr.astype(index), indices.astype(index)),
        vweights=problem.weight.astype(index),
        recursive=False if volume else None,
        options=options,
    )
    return np.asarray(labels, dtype=np.int32)


def kahypar(problem: Problem) -> Int32Array:
    """KaHyPar, least total volume (km1) of the column-net hypergraph; sequential."""
    library = _require("kahypar")
    nets, pins = _cut_nets(problem.adjacency)
    if len(pins) == 0:  # KaHyPar crashes without nets
        return block(problem)
    # Rows without nonzeros weigh 0, and KaHyPar wants weights of at least 1, as does Mt-KaHyPar.
    hypergraph = library.Hypergraph(
        problem.adjacency.vertices,
        len(nets) - 1,
        nets.tolist(),
        pins.tolist(),
        problem.parts,
        [1] * (len(nets) - 1),
        np.maximum(problem.weight, 1).tolist(),
    )
    context = library.Context()
    context.loadINIconfiguration(str(Path(__file__).with_name("kahypar_km1.ini")))
    context.setK(problem.parts)
    context.setEpsilon(problem.imbalance)
    context.setSeed(problem.seed)
    context.suppressOutput(True)
    library.partition(hypergraph, context)
    blocks = (hypergraph.blockID(v) for v in range(problem.adjacency.vertices))
    return np.fromiter(blocks, np.int32, problem.adjacency.vertices)


def mtkahypar(problem: Problem) -> Int32Array:
    """Mt-KaHyPar, least total volume (km1); `strong` is its quality preset, with flows."""
    library = _require("mtkahypar")
    nets, pins = _cut_nets(problem.adjacency)
    if len(pins) == 0:
        return block(problem)
    initializer = _mtkahypar_threads(problem.threads)
    preset = (
        library.PresetType.QUALITY if problem.preset == "strong" else library.PresetType.DEFAULT
    )
    context = initializer.context_from_preset(preset)
    context.set_partitioning_parameters(problem.parts, problem.imbalance, library.Objective.KM1)
    context.logging = False
    library.set_seed(problem.seed)
    hypergraph = initializer.create_hypergraph(
        context,
        problem.adjacency.vertices,
        len(nets) - 1,
        [net.tolist() for net in np.split(pins, nets[1:-1])],
        np.maximum(problem.weight, 1).tolist(),
        [1] * (len(nets) - 1),
    )
    return np.asarray(hypergraph.partition(context).get_partition(), dtype=np.int32)


@cache
def _mtkahypar_threads(threads: int) -> Any:
    return _require("mtkahypar").initialize(threads, False)


def _cut_nets(adjacency: Adjacency) -> tuple[Int64Array, Int32Array]:
    """The column nets that can be cut: those with two pins or more."""
    begin, pins = adjacency.column_nets
    sizes = np.diff(begin)
    keep = sizes > 1
    return np.concatenate(([0], np.cumsum(sizes[keep]))), pins[np.repeat(keep, sizes)]


def gvb(problem: Problem) -> Int32Array:
    """Our multilevel partitioner: least total and maximum send volume together."""
    indptr, indices = problem.adjacency.indptr, problem.adjacency.indices
    return _gvb(problem, indptr, indices, problem.imbalance)


def _gvb(
    problem: Problem, indptr: Int64Array, indices: Int32Array, imbalance: npt.ArrayLike
) -> Int32Array:
    progress = problem.progress

    def in_thousandths(stage: str, fraction: float) -> None:
        assert progress is not None
        progress(stage, round(1000 * fraction), 1000)

    return multilevel.gvb(
        indptr,
        indices,
        problem.parts,
        weights=problem.weights,
        imbalance=imbalance,
        seed=problem.seed,
        preset=problem.preset,
        objective=problem.objective,
        receive=problem.receive,
        initial=problem.initial,
        threads=problem.threads,
        progress=None if progress is None else in_thousandths,
    )


def stream(problem: Problem) -> Int32Array:
    """Our semi-external partitioner, for graphs that do not fit in memory."""
    adjacency = problem.adjacency
    # On disk only what is stored can be read; in memory the needs of both sides are known.
    if adjacency.on_disk:
        indptr, indices = adjacency.indptr, adjacency.indices
    else:
        indptr, indices = adjacency.undirected
    # Passes that cluster, passes that refine, attempts at partitioning the clusters.
    effort = {"fast": (3, 2, 2), "default": (5, 5, 4), "strong": (10, 15, 16)}[problem.preset]
    return _native.stream_partition(
        indptr,
        indices,
        np.ascontiguousarray(problem.weight),
        problem.parts,
        problem.imbalance,
        problem.seed,
        *effort,
        problem.initial,
        problem.threads,
        stage(problem.progress, "streaming"),
    )


# How far a rank may exceed its share of the rows that its node sends to others. A tenth costs 1 to
# 5 % of the total, three tenths 1 to 3 %; either takes up to a fifth off the busiest rank.
SEND_SLACK = 0.2


def two_level(problem: Problem, nodes: int) -> Int32Array:
    """Labels in which the parts of one node are neighbours: gvb into nodes, then each node by gvb.

    Inside a node, the rows of other nodes count too: each is one more vertex without weight, which
    goes where it is needed most; so the volume is what a row costs that arrives at one rank of the
    node and is passed to the others. A second balance shares out the rows that go to other nodes.

    ``nodes`` divides the number of parts, is at least 2 and less than the number of parts.
    """
    adjacency, size = problem.adjacency, problem.parts // nodes
    # Half of the imbalance, as a factor, for nodes; ranks get what their node has left of it.
    slack = np.full(problem.weights.shape[1], np.sqrt(1 + problem.imbalance) - 1)
    top = replace(problem, parts=nodes)
    node_of = _gvb(top, adjacency.indptr, adjacency.indices, slack)
    leaving = _needed_elsewhere(adjacency, node_of, nodes)
    ones = np.broadcast_to(np.True_, adjacency.edges)
    shape = (adjacency.vertices, adjacency.vertices)
    A = sp.csr_array((ones, adjacency.indices, adjacency.indptr), shape=shape)
    labels = np.empty(adjacency.vertices, np.int32)
    most = problem.weights.sum(axis=0) * (1 + problem.imbalance) / problem.parts
    for node in range(nodes):
        members = np.flatnonzero(node_of == node)
        weights = np.column_stack((problem.weights[members], leaving[members]))
        inner = replace(problem, parts=size, weights=weights)
        labels[members] = node * size + _inside_node(inner, A[members], members, most)
    return labels


def _inside_node(
    problem: Problem, rows: sp.csr_array, members: Int64Array, most: npt.NDArray[np.float64]
) -> Int32Array:
    """The rank in its node of each member, given their rows of the matrix; `most` a rank's load."""
    size, weights = problem.parts, problem.weights
    if len(members) <= size or rows.nnz == 0:
        return np.repeat(np.arange(size, dtype=np.int32), RowLayout.even(len(members), size).sizes)
    others = np.setdiff1d(rows.indices, members)
    number = np.empty(rows.shape[1], np.int32)
    number[members] = np.arange(len(members))
    number[others] = len(members) + np.arange(len(others))
    indptr = np.concatenate((rows.indptr, np.full(len(others), rows.nnz)))
    share = np.maximum(weights[:, :-1].sum(axis=0) / size, 1e-9)
    slack = np.append(np.maximum(most / share - 1, 0), SEND_SLACK)
    padded = np.concatenate((weights, np.zeros((len(others), weights.shape[1]), np.int64)))
    labels = _gvb(replace(problem, weights=padded), indptr, number[rows.indices], slack)
    return labels[: len(members)]


def _needed_elsewhere(adjacency: Adjacency, node_of: Int32Array, nodes: int) -> Int64Array:
    """Number of other nodes that need each row, int64 [n]."""
    row_node = np.repeat(node_of, adjacency.row_lengths)
    away = np.flatnonzero(row_node != node_of[adjacency.indices])
    columns = adjacency.indices[away].astype(np.int64)
    pairs = np.unique(columns * nodes + row_node[away])
    return np.bincount(pairs // nodes, minlength=adjacency.vertices).astype(np.int64)


def _require(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"this method needs the package {package}: pip install 'spgnn[partition]'"
        ) from None


METHODS: dict[str, Callable[[Problem], Int32Array]] = {
    "block": block,
    "random": random,
    "metis": metis,
    "metis-volume": partial(metis, volume=True),
    "kahypar": kahypar,
    "mtkahypar": mtkahypar,
    "gvb": gvb,
    "stream": stream,
}
