"""Edge lists: one edge a line, as SNAP publishes them (.txt, .csv, .tsv, also gzipped)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spgnn.data.formats.edge_file import EdgeFile, Edges
from spgnn.data.formats.text import Grammar, Head, count, read_head, read_numbers, refuse_first
from spgnn.data.memory import check_vertices
from spgnn.data.narrow import WEIGHT, fits_float32
from spgnn.errors import InputError
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress

# Ids that leave more than this share of [0, largest] unused are names, not positions.
SPARSE_IDS = 16
HEADING = re.compile(r"[A-Za-z_][\w.:-]*")
WANTED = "an edge is 'source target [weight]'"
PLAIN = Grammar("ii", row=f"the first edge has 2 ({WANTED})")
WEIGHTED = Grammar("iif", row=f"the first edge has 3 ({WANTED})")


class EdgeList(EdgeFile):
    """Lines ``source target [weight]``: row = target, column = source.

    Comment lines begin with # or %; blanks, tabs, commas and semicolons separate. A first line
    of words is a header. Ids are vertex numbers and stay what they are; only if fewer
    than one in 16 of [0, largest id] occurs, and no comment states as many, are they renumbered in
    rising order, and ``vertex_ids`` keeps the names. A comment ``Nodes: N`` (SNAP's word) is
    believed: vertices that no edge names come last. Weights of an edge that occurs twice are
    summed.

    Parameters
    ----------
    path : Path
    directed : bool, optional
        Otherwise undirected if a leading comment says ``Undirected graph`` (SNAP's words). The
        edges of an undirected graph are stored in both directions.

    Raises
    ------
    InputError
        Naming file and line.
    """

    def __init__(self, path: Path, *, directed: bool | None = None) -> None:
        head = read_head(path, PLAIN)
        if not head.line:
            raise _no_edges(path)
        columns = len(head.fields)
        if columns not in (2, 3):
            raise InputError(f"{path}, line {head.line}: {columns} columns; {WANTED}")
        self.path = path
        self._grammar = PLAIN if columns == 2 else WEIGHTED
        header = all(HEADING.fullmatch(field) for field in head.fields)
        self._skip = head.line if header else 0
        self._stated_edges = _stated(path, head, "Edges")
        self._nodes = _stated(path, head, "Nodes") or 0
        if directed is None:
            directed = not re.search(r"\bundirected\b", head.comments, re.IGNORECASE)
        self.directed = directed
        self._edges, self._largest = 0, -1

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """All edges."""
        path, weighted = self.path, self._grammar is WEIGHTED
        for numbers in read_numbers(path, self._grammar, self._skip, progress):
            ends, lines = numbers.integers.reshape(-1, 2), numbers.lines
            worst = ends.min(axis=1)
            refuse_first(path, worst >= 0, lines, worst, "a vertex id, an integer of at least 0")
            if weighted:
                values = numbers.reals
                refuse_first(path, np.isfinite(values), lines, values, "a finite weight")
                refuse_first(path, fits_float32(values), lines, values, WEIGHT)
            largest = int(ends.max(initial=0))
            self._edges, self._largest = self._edges + len(ends), max(self._largest, largest)
            source, target = ends.T.astype(numpy_index_dtype(largest + 1))
            yield Edges(source, target, numbers.reals if weighted else None)
        if not self._edges:
            raise _no_edges(path)
        if self._stated_edges is not None and self._edges < self._stated_edges:
            raise InputError(
                f"{path}: truncated: its header says {self._stated_edges} edges, but it holds "
                f"{self._edges}"
            )

    def vertices(self) -> int | None:
        """As stated, or as many as ids reach; ``None`` if so few of these occur that they name."""
        reached = self._largest + 1
        if reached > self._nodes and self._largest >= 2 * self._edges * SPARSE_IDS:
            return None
        vertices = max(self._nodes, reached)
        check_vertices(str(self.path), vertices)
        return vertices

    def named(self, names: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """With those that are stated but do not occur, at the end."""
        logging.getLogger(__name__).warning(
            "%s: ids reach %d but only %d occur; vertices are numbered in rising order of id",
            self.path,
            self._largest,
            len(names),
        )
        check_vertices(str(self.path), max(self._nodes, len(names)))
        unnamed = self._largest + 1 + np.arange(max(self._nodes - len(names), 0))
        return np.concatenate((names, unnamed))


def _no_edges(path: Path) -> InputError:
    return InputError(f"{path}: holds no edges; one line 'source target [weight]' each")


def _stated(path: Path, head: Head, what: str) -> int | None:
    """How many edges or nodes the leading comments say there are."""
    found = re.search(rf"\b{what}:\s*([0-9]+)", head.comments)
    return None if found is None else count(path, head.line, found[1], what.lower())
