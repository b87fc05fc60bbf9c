"""Our own partitioners, gvb in memory and stream from a disk; and partitions to compare with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spgnn import _native
from spgnn.errors import InputError, check_integer
from spgnn.layout import Int32Array, Int64Array, RowLayout
from spgnn.partition.places import kinds_of
from spgnn.partition.problem import Problem, check_columns, part_bounds, without_duplicates
from spgnn.partition.volume import part_weights
from spgnn.progress import stage
from spgnn.registry import Preset

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


def block(problem: Problem) -> Int32Array:
    """Runs of equally many consecutive vertices, or of as much weight, or as the shares say."""
    return _cut(problem, lambda free: free)


def random(problem: Problem) -> Int32Array:
    """The same of vertices in random order."""
    rng = np.random.default_rng(problem.seed)
    return _cut(problem, lambda free: free[np.argsort(rng.permutation(len(free)))])


def _cut(problem: Problem, order: Callable[[Int64Array], Int64Array]) -> Int32Array:
    """Runs of the free vertices in an order: what fixed ones leave of each part's share."""
    n, parts, shares = problem.adjacency.vertices, problem.parts, problem.shares
    # With a part for each vertex there is nothing to weigh.
    weight = problem.weight if problem.weighted and parts < n else None
    labels = np.full(n, -1, np.int32) if problem.fixed is None else problem.fixed.copy()
    free = order(np.flatnonzero(labels < 0))
    if problem.fixed is not None:
        taken = part_weights(np.ones(n) if weight is None else weight, labels + 1, parts + 1)
        shares = np.maximum(taken.sum() / problem.portions - taken[1:], 0)
        shares = shares if shares.any() else problem.shares
    rows = RowLayout.even(len(free), parts)
    if len(free) and (weight is not None or shares is not None):
        rows = RowLayout(np.array([0, len(free)])).split(
            parts, None if weight is None else weight[free], shares
        )
    labels[free] = np.repeat(np.arange(parts, dtype=np.int32), rows.sizes)
    return labels


def pagraph(problem: Problem) -> Int32Array:
    """PaGraph's (Lin et al., SoCC 2020): training vertices where their neighbours are."""
    adjacency, k, targets = problem.adjacency, problem.parts, problem.targets
    indptr, indices, n = adjacency.indptr, adjacency.indices, adjacency.vertices
    labels = np.full(n, -1, np.int32)
    holds = np.zeros((k, n), np.bool_)
    trained, sizes = np.zeros(k, np.int64), np.zeros(k, np.int64)
    for turn, v in enumerate(targets):
        if problem.progress is not None and turn % 256 == 0:
            problem.progress("placing training vertices", turn, len(targets))
        reached = frontier = np.array([v])
        for _ in range(problem.hops):
            lengths = indptr[frontier + 1] - indptr[frontier]
            first = indptr[frontier] - np.cumsum(lengths) + lengths
            columns = indices[np.repeat(first, lengths) + np.arange(lengths.sum())]
            frontier = np.setdiff1d(columns.astype(np.int64), reached)
            reached = np.concatenate((reached, frontier))
        near = labels[reached]
        common = np.bincount(near[near >= 0], minlength=k)
        score = common * (len(targets) / k - trained) / np.maximum(sizes, 1)
        best = np.flatnonzero(score == score.max())
        part = best[trained[best].argmin()]
        labels[v] = part
        trained[part] += 1
        sizes[part] += np.count_nonzero(~holds[part, reached])
        holds[part, reached] = True
    rng, rest = np.random.default_rng(problem.seed), np.flatnonzero(labels < 0)
    largest = np.zeros(len(rest))
    for part in range(k):
        draw = rng.random(len(rest)) * holds[part, rest]
        labels[rest[draw > largest]] = part
        largest = np.maximum(largest, draw)
    rest = np.flatnonzero(labels < 0)
    missing = np.maximum(-(-n // k) - np.bincount(labels[labels >= 0], minlength=k), 0)
    labels[rest] = np.repeat(np.arange(k, dtype=np.int32), missing)[: len(rest)]
    return labels
