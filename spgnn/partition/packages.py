"""Partitioners of other projects: METIS, KaHyPar, Mt-KaHyPar, KaMinPar."""

from __future__ import annotations

import importlib
import tempfile
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from spgnn.errors import InputError
from spgnn.layout import Int32Array, Int64Array
from spgnn.partition.ours import block
from spgnn.partition.problem import Adjacency, Problem

PACKAGES = {
    "metis": "pymetis",
    "metis-volume": "pymetis",
    "kahypar": "kahypar",
    "mtkahypar": "mtkahypar",
    "mtkahypar-deterministic": "mtkahypar",
    "kaminpar": "kaminpar",
}


def imported(package: str) -> ModuleType:
    """A package of those that methods need; ``InputError`` if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"this method needs the package {package}: pip install 'spgnn[partition]'"
        ) from None


def metis(problem: Problem, *, volume: bool = False) -> Int32Array:
    """METIS: least edge cut, or least total volume (k-way only, as METIS has it)."""
    pymetis = imported("pymetis")
    indptr, indices = problem.adjacency.undirected
    # METIS counts the allowed imbalance in thousandths and takes 1 at least.
    options = pymetis.Options(ufactor=max(1, round(problem.imbalance * 1000)), seed=problem.seed)
    if volume:
        options.objtype = int(pymetis.ObjType.VOL)
    index = pymetis.zero_copy_dtype()
    if len(indices) > np.iinfo(index).max:
        raise InputError(f"this METIS counts in {index} and cannot take {len(indices):,} nonzeros")
    _, labels = pymetis.part_graph(
        problem.parts,
        adjacency=pymetis.CSRAdjacency(indptr.astype(index), indices.astype(index)),
        vweights=problem.small_weight.astype(index),
        # METIS reads float32, and refuses a share of 0.
        tpwgts=None if problem.shares is None else (1 / problem.portions).clip(1e-30).tolist(),
        recursive=False if volume else None,
        options=options,
    )
    return np.asarray(labels, dtype=np.int32)


metis_volume = partial(metis, volume=True)


def kahypar(problem: Problem) -> Int32Array:
    """KaHyPar, least total volume (km1) of the column-net hypergraph; sequential."""
    library = imported("kahypar")
    nets, pins = _cut_nets(problem.adjacency)
    if len(pins) == 0:  # KaHyPar crashes without nets
        return block(problem)
    # Rows without nonzeros weigh 0, and KaHyPar wants weights of at least 1, as does Mt-KaHyPar.
    weight = np.maximum(problem.small_weight, 1)
    hypergraph = library.Hypergraph(
        problem.adjacency.vertices,
        len(nets) - 1,
        nets.tolist(),
        pins.tolist(),
        problem.parts,
        [1] * (len(nets) - 1),
        weight.tolist(),
    )
    context = library.Context()
    context.loadINIconfiguration(str(Path(__file__).with_name("kahypar_km1.ini")))
    context.setK(problem.parts)
    context.setEpsilon(problem.imbalance)
    context.setSeed(problem.seed)
    if problem.shares is not None:
        context.setCustomTargetBlockWeights(problem.bounds(weight))
    for v, part in enumerate([] if problem.fixed is None else problem.fixed.tolist()):
        if part >= 0:
            hypergraph.fixNodeToBlock(v, part)
    context.suppressOutput(True)
    library.partition(hypergraph, context)
    blocks = (hypergraph.blockID(v) for v in range(problem.adjacency.vertices))
    return np.fromiter(blocks, np.int32, problem.adjacency.vertices)


def mtkahypar(problem: Problem, *, deterministic: bool = False) -> Int32Array:
    """Mt-KaHyPar, least total volume (km1); `strong` is its quality preset, with flows."""
    library = imported("mtkahypar")
    nets, pins = _cut_nets(problem.adjacency)
    if len(pins) == 0:
        return block(problem)
    initializer = _mtkahypar_threads(problem.threads)
    name = "QUALITY" if problem.preset == "strong" else "" if deterministic else "DEFAULT"
    name = "_".join(filter(None, ("DETERMINISTIC" if deterministic else "", name)))
    context = initializer.context_from_preset(getattr(library.PresetType, name))
    weight = np.maximum(problem.small_weight, 1)
    context.set_partitioning_parameters(problem.parts, problem.imbalance, library.Objective.KM1)
    if problem.shares is not None:
        context.set_individual_target_block_weights(problem.bounds(weight))
    context.logging = False
    library.set_seed(problem.seed)
    hypergraph = initializer.create_hypergraph(
        context,
        problem.adjacency.vertices,
        len(nets) - 1,
        [net.tolist() for net in np.split(pins, nets[1:-1])],
        weight.tolist(),
        [1] * (len(nets) - 1),
    )
    if problem.fixed is not None:
        hypergraph.add_fixed_vertices(problem.fixed.tolist(), problem.parts)
    return np.asarray(hypergraph.partition(context).get_partition(), dtype=np.int32)


mtkahypar_deterministic = partial(mtkahypar, deterministic=True)


def kaminpar(problem: Problem) -> Int32Array:
    """KaMinPar: least edge cut, in parallel, in little memory."""
    library = imported("kaminpar")
    indptr, indices = problem.adjacency.undirected
    # It takes graphs from files: ParHIP's, all numbers of 64 bits, with weights of vertices alone.
    head = np.array([1, len(indptr) - 1, len(indices)], np.uint64)
    begins = 8 * (len(head) + len(indptr) + indptr.astype(np.uint64))
    with tempfile.NamedTemporaryFile(suffix=".parhip") as file:
        weight = np.maximum(problem.small_weight, 1)
        for array in (head, begins, indices.astype(np.uint64), weight):
            file.write(array.data)
        file.flush()
        graph = library.load_graph(file.name, library.GraphFileFormat.PARHIP)
    library.reseed(problem.seed % 2**31)
    context = library.context_by_name(problem.preset)
    solver = library.KaMinPar(problem.threads, context)
    # An imbalance of 0 would mean none given to it.
    labels = solver.compute_partition(graph, problem.bounds(weight))
    return np.asarray(labels, dtype=np.int32)


@cache
def _mtkahypar_threads(threads: int) -> Any:
    return imported("mtkahypar").initialize(threads, False)


def _cut_nets(adjacency: Adjacency) -> tuple[Int64Array, Int32Array]:
    """The column nets that can be cut: those with two pins or more."""
    begin, pins = adjacency.column_nets
    sizes = np.diff(begin)
    keep = sizes > 1
    return np.concatenate(([0], np.cumsum(sizes[keep]))), pins[np.repeat(keep, sizes)]
