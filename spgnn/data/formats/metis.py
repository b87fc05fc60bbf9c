"""METIS graph files (.graph, also gzipped)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.data.formats.edge_file import BothEndsFile, Edges
from spgnn.data.formats.text import (
    Grammar,
    Numbers,
    count,
    read_head,
    read_numbers,
    refuse_first,
)
from spgnn.data.narrow import WEIGHT, fits_float32
from spgnn.data.structure import pattern_of
from spgnn.errors import InputError, shortened
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import EXACT, exact_in_float32

HEADER = Grammar("", cycle="i", separators=" \t\r", comments="%")
_MOST_CONSTRAINTS = 1000  # numbers a vertex has; more are a damaged header


class MetisGraph(BothEndsFile):
    """A graph in METIS's format (METIS 5 manual, section 4.1.1).

    The header is ``vertices edges [fmt [constraints]]``; line i then lists the neighbours of
    vertex i, counted from 1, each edge at both its ends. Edge weights become the graph's weights;
    vertex sizes and weights are not read, which is logged. Lines that begin with % are comments.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputError
        Naming file and line.
    """

    def __init__(self, path: Path) -> None:
        head = read_head(path, HEADER)
        if not head.line:
            raise InputError(f"{path}: empty; a METIS graph begins with 'vertices edges'")
        header = _header(path, head.fields, head.line)
        self.path, self._line = path, head.line
        self._vertices, self._edges, self._skipped, self._weighted = header
        self._lines: list[npt.NDArray[np.int64]] = []
        if self._skipped:
            logging.getLogger(__name__).warning(
                "%s: not read: %s", path, self.decided()["not read"]
            )

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """Each edge twice: neighbour → vertex of the line."""
        path, weighted = self.path, self._weighted
        grammar = Grammar(
            "i" * self._skipped,
            "if" if weighted else "i",
            row=f"the fmt in line {self._line} asks for {self._skipped} of the vertex, then "
            f"{1 + weighted} per edge",
            separators=HEADER.separators,
            comments=HEADER.comments,
            blank_rows=True,
        )
        index_type = numpy_index_dtype(self._vertices)
        rows = 0
        for read in read_numbers(path, grammar, self._line, progress):
            numbers = self._fit(read, rows)
            degrees, neighbours = self._neighbours(numbers)
            ids = np.arange(rows, rows + len(degrees), dtype=index_type)
            self._check(numbers, degrees, neighbours)
            source, target = neighbours.astype(index_type) - 1, np.repeat(ids, degrees)
            loops = np.flatnonzero(source == target)
            if len(loops):
                vertex = int(target[loops[0]])
                raise InputError(
                    f"{path}, line {numbers.lines[vertex - rows]}: vertex {vertex + 1} is its own "
                    "neighbour; a METIS graph has no self-loops"
                )
            yield Edges(source, target, numbers.reals if weighted else None)
            self._lines.append(numbers.lines)
            rows += len(degrees)
        if rows < self._vertices:
            raise InputError(
                f"{path}: truncated: the header says {self._vertices} vertices, but only {rows} "
                "follow"
            )

    def vertices(self) -> int:
        """As the header says."""
        return self._vertices

    def decided(self) -> dict[str, str]:
        """As the format and the header's fmt say."""
        weights = "each neighbour has one" if self._weighted else "neighbours have none"
        found = {
            "direction by": "a METIS graph is undirected",
            "weights by": f"line {self._line}: {weights}",
        }
        if self._skipped:
            found["not read"] = f"weights and sizes of vertices, {self._skipped} each"
        return found

    def check_entries(self, entries: int) -> None:
        """Two of each edge."""
        if entries != 2 * self._edges:
            raise InputError(
                f"{self.path}, line {self._line}: the header says {self._edges} edges, "
                f"but the lines list {entries} neighbours, not twice as many"
            )

    def check_ends(self, rows: sp.csr_array, mirrored: sp.csr_array, first: int) -> None:
        """The same at both."""
        # SciPy takes an entry that is 0 for none.
        difference = (pattern_of(mirrored) != pattern_of(rows)).tocoo()
        if not difference.nnz:
            difference = (mirrored != rows).tocoo()
        if difference.nnz:
            u, v = first + int(difference.row[0]), int(difference.col[0])
            line = np.concatenate(self._lines)[u]
            raise InputError(
                f"{self.path}, line {line}: the edge between vertices {u + 1} and {v + 1} is not "
                "the same at both ends; a METIS graph is undirected"
            )

    def _fit(self, numbers: Numbers, before: int) -> Numbers:
        """One line a vertex, after so many: there may be blank ones at the end."""
        counts, lines, left = numbers.counts, numbers.lines, self._vertices - before
        if counts[left:].any():
            line = lines[left:][counts[left:] > 0][0]
            said = f"more lines than the header's {self._vertices} vertices"
            raise InputError(f"{self.path}, line {line}: {said}")
        counts, lines = counts[:left], lines[:left]
        if self._skipped and not counts.all():
            said = f"empty, but the fmt asks for {self._skipped} numbers"
            raise InputError(f"{self.path}, line {lines[np.argmin(counts)]}: {said}")
        return Numbers(numbers.integers, numbers.reals, counts, lines)

    def _neighbours(self, numbers: Numbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """How many each line lists, and all of them."""
        skipped, neighbours = self._skipped, numbers.integers
        degrees = (numbers.counts - skipped) // (1 + self._weighted)
        if skipped:
            integers = degrees + skipped
            begins = np.cumsum(integers) - integers
            place = np.arange(len(neighbours)) - np.repeat(begins, integers)
            neighbours = neighbours[place >= skipped]
        return degrees, neighbours

    def _check(
        self,
        numbers: Numbers,
        degrees: npt.NDArray[np.int64],
        neighbours: npt.NDArray[np.int64],
    ) -> None:
        lines = np.repeat(numbers.lines, degrees)
        inside = (neighbours >= 1) & (neighbours <= self._vertices)
        rule = f"a vertex in [1, {self._vertices}]"
        refuse_first(self.path, inside, lines, neighbours, rule)
        if self._weighted:
            weights = numbers.reals
            refuse_first(self.path, np.isfinite(weights), lines, weights, "a finite weight")
            refuse_first(self.path, fits_float32(weights), lines, weights, WEIGHT)
            exact = exact_in_float32(weights) | (weights != np.rint(weights))
            refuse_first(self.path, exact, lines, weights, EXACT)


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
    # gpmetis takes 0 for 1.
    constraints = max(count(path, line, fields[3], "constraints"), 1) if len(fields) == 4 else 1
    if constraints > _MOST_CONSTRAINTS:
        raise InputError(f"{wanted}; {constraints} constraints are more than {_MOST_CONSTRAINTS}")
    vertices = count(path, line, fields[0], "vertices")
    edges = count(path, line, fields[1], "edges")
    return vertices, edges, int(sizes) + constraints * int(weights), edge_weights
