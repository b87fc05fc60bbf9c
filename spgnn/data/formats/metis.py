"""METIS graph files (.graph, also gzipped)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.data.formats.reading import graph_of
from spgnn.data.formats.text import (
    Grammar,
    Numbers,
    count,
    joined,
    read_head,
    read_numbers,
)
from spgnn.data.graph import Graph
from spgnn.data.narrow import WEIGHT, fits_float32
from spgnn.data.structure import from_entries
from spgnn.errors import InputError, shortened
from spgnn.progress import Progress

HEADER = Grammar("", cycle="i", separators=" \t\r", comments="%")
_MOST_CONSTRAINTS = 1000  # numbers a vertex has; more are a damaged header


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
    head = read_head(path, HEADER)
    if not head.line:
        raise InputError(f"{path}: empty; a METIS graph begins with 'vertices edges'")
    vertices, edges, skipped, weighted = _header(path, head.fields, head.line)
    grammar = Grammar(
        "i" * skipped,
        "if" if weighted else "i",
        row=f"the fmt in line {head.line} asks for {skipped} of the vertex, then "
        f"{1 + weighted} per edge",
        separators=HEADER.separators,
        comments=HEADER.comments,
        blank_rows=True,
    )
    numbers = _fit(path, joined(read_numbers(path, grammar, head.line, progress)), vertices)
    A = _adjacency(path, numbers, vertices, skipped, weighted)
    if A.nnz != 2 * edges:
        raise InputError(
            f"{path}, line {head.line}: the header says {edges} edges, "
            f"but the lines list {A.nnz} neighbours, not twice as many"
        )
    _check_symmetric(path, A, numbers.lines)
    if weighted and bool((A.data == 1).all()):
        weighted = False
    return graph_of(path, from_entries(A, weighted=weighted), directed=False)


def _header(path: Path, fields: list[str], line: int) -> tuple[int, int, int, bool]:
    """Vertices, edges, numbers that precede the edges of a line, whether edges have weights."""
    wanted = (
        f"{path}, line {line}: the header of a METIS graph is 'vertices edges [fmt [constraints]]'"
    )
    if not 2 <= len(fields) <= 4 or not all(f.isascii() and f.isdecimal() for f in fields):
        raise InputError(f"{wanted}, got '{shortened(' '.join(fields), 60)}'")
    flags = fields[2].rjust(3, "0") if len(fields) > 2 else "000"
    if len(flags) != 3 or set(flags) - set("01"):
        shown = shortened(fields[2], 40)
        raise InputError(f"{wanted}; fmt is up to three digits 0 or 1, got '{shown}'")
    sizes, weights, edge_weights = (flag == "1" for flag in flags)
    constraints = count(path, line, fields[3], "constraints") if len(fields) == 4 else 1
    if constraints > _MOST_CONSTRAINTS:
        raise InputError(f"{wanted}; {constraints} constraints are more than {_MOST_CONSTRAINTS}")
    vertices = count(path, line, fields[0], "vertices")
    edges = count(path, line, fields[1], "edges")
    return vertices, edges, int(sizes) + constraints * int(weights), edge_weights


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
    return Numbers(numbers.integers, numbers.reals, counts, lines)


def _adjacency(
    path: Path, numbers: Numbers, vertices: int, skipped: int, weighted: bool
) -> sp.csr_array:
    if skipped and not numbers.counts.all():
        line = numbers.lines[np.argmin(numbers.counts)]
        raise InputError(f"{path}, line {line}: empty, but the fmt asks for {skipped} numbers")
    integers = (numbers.counts - skipped) // (1 + weighted) + skipped  # of each line
    neighbours = numbers.integers
    if skipped:
        begins = np.cumsum(integers) - integers
        place = np.arange(len(neighbours)) - np.repeat(begins, integers)
        neighbours = neighbours[place >= skipped]
    indptr = np.concatenate(([0], np.cumsum(integers - skipped)))

    def check(good: Any, values: npt.NDArray[Any], rule: str) -> None:
        if not good.all():
            at = int(np.argmin(good))
            line = numbers.lines[np.searchsorted(indptr, at, side="right") - 1]
            raise InputError(f"{path}, line {line}: {values[at]:g} is not {rule}")

    inside = (neighbours >= 1) & (neighbours <= vertices)
    check(inside, neighbours, f"a vertex in [1, {vertices}]")
    data: npt.NDArray[Any] = np.ones(len(neighbours), np.bool_)
    if weighted:
        data = numbers.reals
        check(np.isfinite(data), data, "a finite weight")
        check(fits_float32(data), data, WEIGHT)
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
