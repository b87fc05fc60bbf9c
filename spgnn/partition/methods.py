"""The methods: each takes a Problem and returns labels, int32 [vertices]."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np

from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.partition import _partition
from spgnn.partition import gvb as multilevel
from spgnn.partition.adjacency import Adjacency, Int32Array, Int64Array
from spgnn.partition.gvb import Objective, Preset
from spgnn.progress import Progress, stage

PRESETS: tuple[Preset, ...] = get_args(Preset)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to be partitioned and all that was asked; checked by `partition`.

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


def metis(problem: Problem) -> Int32Array:
    """METIS, least edge cut."""
    return _metis(problem, volume=False)


def metis_volume(problem: Problem) -> Int32Array:
    """METIS, least total communication volume (k-way only, as METIS has it)."""
    return _metis(problem, volume=True)


def _metis(problem: Problem, volume: bool) -> Int32Array:
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
    hypergraph = library.Hypergraph(
        problem.adjacency.vertices,
        len(nets) - 1,
        nets.tolist(),
        pins.tolist(),
        problem.parts,
        [1] * (len(nets) - 1),
        _positive(problem.weight).tolist(),
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
        _positive(problem.weight).tolist(),
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
    kept = sizes > 1
    return np.concatenate(([0], np.cumsum(sizes[kept]))), pins[np.repeat(kept, sizes)]


def _positive(weights: Int64Array) -> Int64Array:
    """KaHyPar's tools want weights of at least 1; rows without nonzeros weigh 0 otherwise."""
    return np.maximum(weights, 1)


def gvb(problem: Problem) -> Int32Array:
    """Our multilevel partitioner: least total and maximum send volume together."""
    return multilevel.gvb(
        problem.adjacency.indptr,
        problem.adjacency.indices,
        problem.parts,
        weights=problem.weights,
        imbalance=problem.imbalance,
        seed=problem.seed,
        preset=problem.preset,
        objective=problem.objective,
        receive=problem.receive,
        initial=problem.initial,
        threads=problem.threads,
        progress=in_thousandths(problem.progress),
    )


def in_thousandths(progress: Progress | None) -> Callable[[str, float], None] | None:
    """What gvb calls with a fraction, for who wants to hear of steps."""
    if progress is None:
        return None
    return lambda stage, fraction: progress(stage, round(1000 * fraction), 1000)


def stream(problem: Problem) -> Int32Array:
    """Our semi-external partitioner, for graphs that do not fit in memory."""
    adjacency = problem.adjacency
    # On disk only what is stored can be read; in memory the needs of both sides are known.
    if adjacency.on_disk:
        indptr, indices = adjacency.indptr, adjacency.indices
    else:
        indptr, indices = adjacency.undirected
    cluster_passes, refine_passes, attempts = _STREAM_EFFORT[problem.preset]
    return _partition.stream_partition(
        indptr,
        indices,
        np.ascontiguousarray(problem.weight),
        problem.parts,
        problem.imbalance,
        problem.seed,
        cluster_passes,
        refine_passes,
        attempts,
        problem.initial,
        problem.threads,
        stage(problem.progress, "streaming"),
    )


# Passes that cluster, passes that refine, attempts at partitioning the clusters.
_STREAM_EFFORT = {"fast": (3, 2, 2), "default": (5, 5, 4), "strong": (10, 15, 16)}

METHODS: dict[str, Callable[[Problem], Int32Array]] = {
    "block": block,
    "random": random,
    "metis": metis,
    "metis-volume": metis_volume,
    "kahypar": kahypar,
    "mtkahypar": mtkahypar,
    "gvb": gvb,
    "stream": stream,
}


def _require(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"this method needs the package {package}: pip install 'spgnn[partition]'"
        ) from None
