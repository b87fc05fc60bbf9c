"""Vertex cuts: which part multiplies each nonzero, who owns the vertices, and what that moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn import _native
from spgnn.errors import check_integer, check_number, memory_for
from spgnn.layout import Int32Array
from spgnn.partition.labels import check_edge_labels, check_labels
from spgnn.partition.problem import LARGEST_SEED, Adjacency, check_parts, check_threads, part_bounds
from spgnn.partition.volume import CoverVolume, Report, excess_of_maximum
from spgnn.progress import Progress
from spgnn.registry import LARGEST_IMBALANCE

# Rows and nonzeros together that are read at once; rows of one chunk are taken in random order.
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class VertexCut:
    """A part for every nonzero, `edges` in the matrix's order, and an owner for every vertex."""

    edges: Int32Array
    owners: Int32Array
    report: Report


def cut_vertices(
    A: Any,
    k: int,
    *,
    labels: npt.ArrayLike | None = None,
    edges: npt.ArrayLike | None = None,
    imbalance: float = 0.05,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress | None = None,
) -> VertexCut:
    """Give every nonzero of a square matrix to one of k parts, whatever the threads.

    With `edges` they are taken as they are; with `labels` alone nonzero (i, j) goes to the owner of
    i or j, whichever has fewer nonzeros (column j, row i); with neither by Libra's rule.

    Parameters
    ----------
    labels : integers in [0, k), [n], optional
        Owners of the vertices. By default each goes to a part that touches it, so that parts own
        equally many and send about equally.
    edges : integers in [0, k), [nnz], optional
        Part of each nonzero, in the order of the matrix; those of the diagonal are not looked at.
    imbalance : float
        Of Libra's nonzeros, and of owned vertices where owners are chosen.
    seed : int
        Of Libra: the order of rows in a chunk, and ties.

    Raises
    ------
    InputError
        If an argument is wrong.
    """
    adjacency = Adjacency.of(A)
    n, parts = adjacency.vertices, check_parts(k, adjacency.vertices)
    imbalance = check_number("imbalance", imbalance, 0, LARGEST_IMBALANCE)
    seed = check_integer("seed", seed, 0, LARGEST_SEED)
    count = check_threads(threads)
    owners = None if labels is None else check_labels(labels, n, parts)[0]
    indptr, indices = adjacency.indptr, adjacency.indices
    with memory_for(f"a vertex cut of {adjacency.describe(parts)}"):
        if edges is not None:
            assigned = check_edge_labels(edges, adjacency.edges, parts)
        elif owners is not None:
            assigned = _native.lower_degree_labels(indptr, indices, owners, count)
        else:
            assigned = _libra(adjacency, parts, imbalance, seed, progress)
        most = int(part_bounds(n, parts, imbalance))
        owners, nonzeros, touched, *sums = _native.count_cut(
            indptr, indices, assigned, owners, parts, most, count
        )
        for first in range(0, n, _CHUNK):  # the diagonal belongs to the owners
            ends = indptr[first : first + _CHUNK + 1]
            rows = np.repeat(np.arange(first, first + len(ends) - 1), np.diff(ends))
            chunk = slice(int(ends[0]), int(ends[-1]))
            places = np.flatnonzero(indices[chunk] == rows)
            assigned[chunk][places] = owners[rows[places]]
    expand, fold = CoverVolume(sums[0], sums[1], None), CoverVolume(sums[2], sums[3], None)
    both = CoverVolume(expand.send + fold.send, expand.receive + fold.receive, None)
    report: Report = {
        "replication": int(touched.sum()) / n if n else 0.0,
        "nonzeros": nonzeros.tolist(),
        "touched": touched.tolist(),
        "nnz_imbalance": excess_of_maximum(nonzeros),
        "vertex_imbalance": excess_of_maximum(np.bincount(owners, minlength=parts)),
        "expand": expand.summary(),
        "fold": fold.summary(),
        "together": both.summary(),
    }
    return VertexCut(assigned, owners, report)


def _libra(
    adjacency: Adjacency, parts: int, imbalance: float, seed: int, progress: Progress | None
) -> Int32Array:
    labels = np.empty(adjacency.edges, np.int32)
    most = int(part_bounds(adjacency.edges, parts, imbalance))
    libra = _native.Libra(adjacency.vertices, parts, most, seed)
    work = adjacency.indptr + np.arange(adjacency.vertices + 1)
    first = 0
    while first < adjacency.vertices:
        last = int(np.searchsorted(work, work[first] + _CHUNK, side="right")) - 1
        last = min(max(last, first + 1), adjacency.vertices)
        begin, end = int(adjacency.indptr[first]), int(adjacency.indptr[last])
        rows = adjacency.indptr[first : last + 1]
        libra.add(first, rows, adjacency.indices[begin:end], labels[begin:end])
        if progress is not None:
            progress("Libra", last, adjacency.vertices)
        first = last
    return labels
