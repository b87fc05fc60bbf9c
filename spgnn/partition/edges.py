"""Vertex cuts: which part multiplies each nonzero, who owns the vertices, and what that moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError, check_integer, check_number, memory_for
from spgnn.partition import _partition
from spgnn.partition.adjacency import Adjacency, Int32Array, Int64Array
from spgnn.partition.arguments import (
    LARGEST_IMBALANCE,
    LARGEST_SEED,
    check_parts,
    check_threads,
    integers,
)
from spgnn.partition.labels import check_labels
from spgnn.partition.volume import CoverVolume, CutReport, excess_of_maximum
from spgnn.progress import Progress

# Rows and nonzeros together that are read at once; rows of one chunk are taken in random order.
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class VertexCut:
    """A part for every nonzero, and an owner for every vertex.

    Attributes
    ----------
    edges : int32 [nnz]
        Of each nonzero, in the order of the matrix; the diagonal belongs to the owner.
    owners : int32 [n]
    report : CutReport
    """

    edges: Int32Array
    owners: Int32Array
    report: CutReport


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
    """Give every nonzero of a square matrix to one of k parts.

    With `edges` they are taken as they are; with `labels` alone nonzero (i, j) goes to the owner of
    i or j, whichever has fewer nonzeros (column j, row i); with neither by Libra's rule.

    Parameters
    ----------
    A : SciPy sparse matrix, CSR block or graph on disk, [n, n]
    k : int
    labels : integers in [0, k), [n], optional
        Owners of the vertices. By default each goes to a part that touches it, so that parts own
        equally many and send about equally.
    edges : integers in [0, k), [nnz], optional
        Part of each nonzero, in the order of the matrix; those of the diagonal are not looked at.
    imbalance : float
        Libra: allowed excess of the nonzeros of a part over the average; and that of owned vertices
        where owners are chosen.
    seed : int
        Libra: of the order of rows in a chunk, and of ties.
    threads : int, optional
        The result does not depend on them.
    progress : callable (stage, done, all), optional

    Returns
    -------
    VertexCut

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
    what = f"a vertex cut of {n:,} vertices, {adjacency.edges:,} nonzeros, {parts:,} parts"
    with memory_for(what):
        if edges is not None:
            found = check_edges(edges, adjacency, parts)
        elif owners is not None:
            found = _partition.lower_degree_labels(
                adjacency.indptr, adjacency.indices, owners, count
            )
        else:
            found = _libra(adjacency, parts, imbalance, seed, progress)
        most = bound(n, parts, imbalance)
        owners, *figures = _partition.count_cut(
            adjacency.indptr, adjacency.indices, found, owners, parts, most, count
        )
        _settle_diagonal(adjacency, found, owners)
    return VertexCut(found, owners, _report(owners, parts, figures))


def check_edges(edges: npt.ArrayLike, adjacency: Adjacency, parts: int) -> Int32Array:
    """Edge labels as a copy, int32 [nnz].

    Raises
    ------
    InputError
        If they are not integers, not one per nonzero, or not in [0, parts).
    """
    array = integers(edges, "edge labels")
    if len(array) != adjacency.edges:
        raise InputError(
            f"{len(array)} edge labels for {adjacency.edges} nonzeros; there must be one for each"
        )
    if len(array) and not 0 <= int(array.min()) <= int(array.max()) < parts:
        bad = int(np.flatnonzero((array < 0) | (array >= parts))[0])
        raise InputError(f"edge label {array[bad]} of nonzero {bad} is outside [0, {parts})")
    return array.astype(np.int32)


def bound(total: int, parts: int, imbalance: float) -> int:
    """The most a part may hold, never less than its share rounded up."""
    share = math.floor(min(total * (1 + imbalance) / parts, 2.0**62))
    return max(share, -(-total // parts))


def _libra(
    adjacency: Adjacency, parts: int, imbalance: float, seed: int, progress: Progress | None
) -> Int32Array:
    labels = np.empty(adjacency.edges, np.int32)
    most = bound(adjacency.edges, parts, imbalance)
    libra = _partition.Libra(adjacency.vertices, parts, most, seed)
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


def _settle_diagonal(adjacency: Adjacency, edges: Int32Array, owners: Int32Array) -> None:
    """Label the diagonal with the owners, a few rows at a time."""
    for first in range(0, adjacency.vertices, _CHUNK):
        indptr = adjacency.indptr[first : first + _CHUNK + 1]
        rows = np.repeat(np.arange(first, first + len(indptr) - 1), np.diff(indptr))
        here = slice(int(indptr[0]), int(indptr[-1]))
        places = np.flatnonzero(adjacency.indices[here] == rows)
        edges[here][places] = owners[rows[places]]


def _report(owners: Int32Array, parts: int, figures: list[Int64Array]) -> CutReport:
    nonzeros, touched, expand_send, expand_receive, fold_send, fold_receive = figures
    sent, received = expand_send + fold_send, expand_receive + fold_receive
    return {
        "replication": int(touched.sum()) / len(owners) if len(owners) else 0.0,
        "nonzeros": nonzeros.tolist(),
        "touched": touched.tolist(),
        "nnz_imbalance": excess_of_maximum(nonzeros),
        "vertex_imbalance": excess_of_maximum(np.bincount(owners, minlength=parts)),
        "expand": CoverVolume(expand_send, expand_receive, None).summary(),
        "fold": CoverVolume(fold_send, fold_receive, None).summary(),
        "together": CoverVolume(sent, received, None).summary(),
    }
