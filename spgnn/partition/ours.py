"""Our own partitioners: gvb, multilevel and in memory; stream, by passes over the graph."""

from __future__ import annotations

import numpy as np

from spgnn import _native
from spgnn.errors import InputError, check_integer
from spgnn.layout import Int32Array
from spgnn.partition.adjacency import check_columns, part_bounds, without_duplicates
from spgnn.partition.places import kinds_of
from spgnn.partition.problem import Preset, Problem
from spgnn.progress import stage

MAX_PARTS = 1 << 20
# What is not named has the default of Options in cut_partition.hpp.
_EFFORT: dict[Preset, dict[str, float | list[int]]] = {
    "fast": {
        "starts": 1,
        "cycles": 0,
        "peak_rounds": 3,
        "search_passes": 0,
        "search_budget": 1,
        "greedy_rounds": 2,
        "cut_rounds": 3,
        "bisection": [2, 2, 40],  # tries, passes, patience
        "alpha_fine": 0.9,  # no V-cycle for the maximum follows
    },
    "default": {},
    "strong": {
        "starts": 8,
        "cycles": 2,
        "search_passes": 5,
        "coarse_search_passes": 5,
        "search_budget": 40,
        "patience": 200,
        "greedy_rounds": 6,
    },
}


def gvb(problem: Problem) -> Int32Array:
    """Our multilevel partitioner: least total and maximum volume together."""
    # A net per column v: v and the rows with a nonzero there. First partitions minimise a weighted
    # cut (Karypis & Kumar 1998) or bisect the nets, and are combined in V-cycles (Andre, Schlag &
    # Schulz 2018); refinement prices volumes above the average (Acer, Selvitopi, Aykanat 2016).
    indptr, indices = problem.adjacency.indptr, problem.adjacency.indices
    n = len(indptr) - 1
    if n >= 2**31 - 1:
        raise InputError(f"gvb takes fewer than 2^31 - 1 vertices, got {n}; use method stream")
    check_columns(indices, n)
    if not _native.is_canonical(indptr, indices):
        begin, columns = without_duplicates(indptr, indices)
        indptr, indices = begin.astype(np.int64), columns.astype(np.int32, copy=False)
    limits = part_bounds(problem.weights.sum(axis=0), problem.portions[:, None], problem.imbalance)
    options = _native.GvbOptions()
    options.parts = check_integer("parts of gvb", problem.parts, 1, MAX_PARTS)
    options.max_weight, options.kinds = (
        limits.ravel().tolist(),
        kinds_of(problem.parts, problem.shares, problem.fixed).tolist(),
    )
    options.seed, options.receive = problem.seed, problem.objective != "send"
    options.threads = problem.threads
    options.node_size, options.outside = problem.node_size, problem.outside
    for name, value in _EFFORT[problem.preset].items():
        setattr(options, name, value)
    # A row heavier than any part may be fills one alone; the others keep the bound.
    capped = np.minimum(problem.weights, limits.max(axis=0)).ravel()
    progress = problem.progress

    def in_thousandths(what: str, share: float) -> None:
        assert progress is not None
        progress(what, round(1000 * share), 1000)

    return np.asarray(
        _native.gvb_partition(
            indptr,
            indices,
            capped,
            options,
            problem.objective == "cover",
            problem.fixed,
            problem.initial,
            None if progress is None else in_thousandths,
        )
    )


def stream(problem: Problem) -> Int32Array:
    """Our semi-external partitioner, for graphs that do not fit in memory."""
    adjacency = problem.adjacency
    rows = columns = (adjacency.indptr, adjacency.indices)
    # On disk only rows can be read in order: there the matrix is taken to be symmetric.
    if not adjacency.on_disk:
        undirected = _native.symmetrize(*rows)
        row_of = np.repeat(np.arange(adjacency.vertices, dtype=np.int32), adjacency.row_lengths)
        symmetric = len(undirected[1]) == np.count_nonzero(adjacency.indices != row_of)
        del row_of
        if symmetric:
            rows = columns = undirected
        else:
            del undirected
            columns = _native.column_nets(*rows)
    # Passes that cluster, passes that refine.
    effort = {"fast": (3, 2), "default": (5, 5), "strong": (10, 15)}[problem.preset]
    return _native.stream_partition(
        *rows,
        *columns,
        np.ascontiguousarray(problem.weight),
        problem.bounds(problem.weight),
        problem.fixed,
        problem.objective != "send",
        problem.seed,
        *effort,
        problem.initial,
        problem.threads,
        stage(problem.progress, "streaming"),
    )
