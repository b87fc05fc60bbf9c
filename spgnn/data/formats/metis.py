"""METIS graph files (.graph, also gzipped)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.data.download import Progress
from spgnn.data.edge_list import graph_name
from spgnn.data.graph import Graph
from spgnn.data.structure import from_entries
from spgnn.data.text import Numbers, read_head, read_numbers
from spgnn.errors import InputError


def read_metis(path: Path, progress: Progress | None = None) -> Graph:
    """Read a graph in METIS's format (METIS 5 manual, section 4.1.1).

    The header is ``vertices edges [fmt [constraints]]``; line i then lists the neighbours of
    vertex i, counted from 1, each edge at both its ends. Edge weights become the graph's weights;
    vertex sizes and weights are skipped. Lines that begin with % are comments.

    Raises
    ------
    InputError
        Naming file and line.
    """
    head = read_head(path)
    if not head.line:
        raise InputError(f"{path}: empty; a METIS graph begins with 'vertices edges'")
    vertices, edges, skipped, weighted = _header(path, head.fields, head.line)
    dtype = np.float64 if weighted else np.int64
    pieces = list(read_numbers(path, dtype, head.line, progress))
    numbers = Numbers(
        np.concatenate([p.values for p in pieces] or [np.empty(0, np.int64)]),
        np.concatenate([p.counts for p in pieces] or [np.empty(0, np.int64)]),
        np.concatenate([p.lines for p in pieces] or [np.empty(0, np.int64)]),
    )
    del pieces
    numbers = _fit(path, numbers, vertices)
    A = _adjacency(path, numbers, vertices, skipped, weighted)
    if A.nnz != 2 * edges:
        raise InputError(
            f"{path}, line {head.line}: the header says {edges} edges, "
            f"but the lines list {A.nnz} neighbours, not twice as many"
        )
    _check_symmetric(path, A, numbers.lines)
    if weighted and bool((A.data == 1).all()):
        weighted = False
    return Graph(graph_name(path), from_entries(A, weighted=weighted), directed=False)


def _header(path: Path, fields: list[str], line: int) -> tuple[int, int, int, bool]:
    """Vertices, edges, numbers that precede the edges of a line, whether edges have weights."""
    wanted = (
        f"{path}, line {line}: the header of a METIS graph is 'vertices edges [fmt [constraints]]'"
    )
    if not 2 <= len(fields) <= 4 or not all(field.isdecimal() for field in fields):
        raise InputError(f"{wanted}, got '{' '.join(fields)[:60]}'")
    flags = fields[2].rjust(3, "0") if len(fields) > 2 else "000"
    if len(flags) != 3 or set(flags) - set("01"):
        raise InputError(f"{wanted}; fmt is up to three digits 0 or 1, got '{fields[2]}'")
    sizes, weights, edge_weights = (flag == "1" for flag in flags)
    constraints = int(fields[3]) if len(fields) == 4 else 1
    return int(fields[0]), int(fields[1]), int(sizes) + constraints * int(weights), edge_weights


def _fit(path: Path, numbers: Numbers, vertices: int) -> Numbers:
    """One line per vertex: blank lines at the end may be missing or too many."""
    counts, lines = numbers.counts, numbers.lines
    if len(counts) > vertices and not counts[vertices:].any():
        counts, lines = counts[:vertices], lines[:vertices]
    if len(counts) > vertices:
        line = lines[vertices:][counts[vertices:] > 0][0]
        raise InputError(f"{path}, line {line}: more lines than the header's {vertices} vertices")
    if len(counts) < vertices:
        raise InputError(
            f"{path}: truncated: the header says {vertices} vertices, but only {len(counts)} follow"
        )
    return Numbers(numbers.values, counts, lines)


def _adjacency(
    path: Path, numbers: Numbers, vertices: int, skipped: int, weighted: bool
) -> sp.csr_array:
    counts = numbers.counts - skipped
    stride = 1 + weighted
    wrong = (counts < 0) | (counts % stride != 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InputError(
            f"{path}, line {numbers.lines[at]}: {numbers.counts[at]} numbers do not fit the fmt of "
            f"the header ({skipped} of the vertex, then {stride} per edge)"
        )
    values: npt.NDArray[Any] = numbers.values
    if skipped:
        begins = np.cumsum(numbers.counts) - numbers.counts
        place = np.arange(len(values)) - np.repeat(begins, numbers.counts)
        values = values[place >= skipped]
    indptr = np.concatenate(([0], np.cumsum(counts // stride)))
    neighbours = values[::stride]
    inside = (neighbours >= 1) & (neighbours <= vertices) & (neighbours % 1 == 0)
    data = values[1::2].astype(np.float32) if weighted else np.ones(len(values), np.bool_)
    for good, numbers_at, what in (
        (inside, neighbours, f"a vertex in [1, {vertices}]"),
        (np.isfinite(data), data, "a finite weight"),
    ):
        if not good.all():
            at = int(np.argmin(good))
            line = numbers.lines[np.searchsorted(indptr, at, side="right") - 1]
            raise InputError(f"{path}, line {line}: {numbers_at[at]:g} is not {what}")
    index_type = np.int64 if max(vertices, len(neighbours)) >= 2**31 else np.int32
    indices = neighbours.astype(index_type) - 1
    A = sp.csr_array((data, indices, indptr.astype(index_type)), shape=(vertices, vertices))
    A.sum_duplicates()
    return A


def _check_symmetric(path: Path, A: sp.csr_array, lines: npt.NDArray[np.int64]) -> None:
    difference = (A.T.tocsr() != A).tocoo()
    if difference.nnz:
        u, v = int(difference.row[0]), int(difference.col[0])
        raise InputError(
            f"{path}, line {lines[u]}: the edge between vertices {u + 1} and {v + 1} is not the "
            "same at both ends; a METIS graph is undirected"
        )
