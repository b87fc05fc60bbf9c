"""Partitions to compare with: runs of vertices, random parts, and PaGraph's."""

from __future__ import annotations

import numpy as np

from spgnn.layout import Int32Array, RowLayout
from spgnn.partition.problem import Problem


def block(problem: Problem) -> Int32Array:
    """Runs of equally many consecutive vertices, or as many as the shares say."""
    return _with_fixed(problem, _runs(problem))


def random(problem: Problem) -> Int32Array:
    """Equally many vertices each, drawn at random, or as many as the shares say."""
    return _with_fixed(problem, np.random.default_rng(problem.seed).permutation(_runs(problem)))


def _even(vertices: int, parts: int) -> Int32Array:
    return np.repeat(np.arange(parts, dtype=np.int32), RowLayout.even(vertices, parts).sizes)


def _runs(problem: Problem) -> Int32Array:
    """Labels of the free vertices, rising: what fixed ones leave of each part's share."""
    n, parts, shares, fixed = (
        problem.adjacency.vertices,
        problem.parts,
        problem.shares,
        problem.fixed,
    )
    if fixed is not None:
        taken = np.bincount(fixed[fixed >= 0], minlength=parts)
        shares = np.maximum(n / problem.portions - taken, 0)
        n -= int(taken.sum())
    if shares is None:
        return _even(n, parts)
    sizes = RowLayout(np.array([0, n])).split(parts, shares=shares).sizes if n else 0
    return np.repeat(np.arange(parts, dtype=np.int32), sizes)


def _with_fixed(problem: Problem, free: Int32Array) -> Int32Array:
    if problem.fixed is None:
        return free
    labels = problem.fixed.copy()
    labels[labels < 0] = free
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
