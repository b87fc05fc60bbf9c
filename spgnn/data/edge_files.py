"""Text files of edges: edge lists, Matrix Market, METIS; read once, a piece at a time."""

from __future__ import annotations

import csv
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from spgnn.data.graph import WEIGHT, Graph, fits_float32
from spgnn.data.reading import (
    Grammar,
    Head,
    Numbers,
    check_vertices,
    count,
    graph_of,
    open_bytes,
    read_head,
    read_numbers,
    refuse_first,
)
from spgnn.data.structure import csr_from_edges, pattern_of, with_entries, without_ones
from spgnn.errors import InputError, shortened
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import EXACT, exact_in_float32

Ends = npt.NDArray[Any]


@dataclass(frozen=True)
class Edges:
    """Some edges of a file, in its order.

    Attributes
    ----------
    source, target : integer [edges]
        As the file numbers vertices, but from 0.
    weights : float64 [edges], optional
        Finite, and what float32 can hold.
    """

    source: Ends
    target: Ends
    weights: npt.NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.source)


class EdgeFile(ABC):
    """What a file of edges says of itself, and its edges.

    Attributes
    ----------
    path : Path
    directed : bool
        Otherwise each edge is meant in both directions, and listed once, but for a `BothEndsFile`.
    integers : bool
        Whether weights are whole numbers, which stay exact or are refused.
    mixed : bool
        Once all pieces have been read: whether `check_mirrored` has anything to look for.
    """

    path: Path
    directed: bool
    integers: bool = False
    mixed: bool = False

    @abstractmethod
    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """All edges.

        Raises
        ------
        InputError
            Naming file and line.
        """

    @abstractmethod
    def vertices(self) -> int | None:
        """How many there are, once all pieces have been read; ``None`` if ends are names."""

    def decided(self) -> dict[str, str]:
        """What in the file decides direction, vertices and weights; all pieces have been read."""
        return {}

    def check_mirrored(self, rows: sp.csr_array, mirrored: sp.csr_array, first: int) -> None:
        """Refuse edges of an undirected graph that are listed from both their ends.

        Parameters
        ----------
        rows, mirrored : patterns
            As listed, and of the transpose; rows from `first` on.
        first : int

        Raises
        ------
        InputError
        """
        row, column = rows.multiply(mirrored).tocoo().coords
        off = np.flatnonzero(row + first != column)
        if len(off):
            i, j = int(row[off[0]]) + first + 1, int(column[off[0]]) + 1
            raise InputError(
                f"{self.path}: lists both entry ({i}, {j}) and ({j}, {i}); a symmetric file holds "
                "one of the two"
            )

    def named(self, names: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The names of all vertices, of those that occur, each once and rising."""
        return names


class BothEndsFile(EdgeFile):
    """A file that lists each undirected edge at both of its ends."""

    directed = False

    @abstractmethod
    def check_entries(self, entries: int) -> None:
        """Refuse another number of entries than the file says, after all of them were merged.

        Raises
        ------
        InputError
        """

    @abstractmethod
    def check_ends(self, rows: sp.csr_array, mirrored: sp.csr_array, first: int) -> None:
        """Refuse rows from `first` on that differ from what the other ends of their edges say.

        Raises
        ------
        InputError
        """


def read_edges(file: EdgeFile, progress: Progress | None = None) -> Graph:
    """The graph of a file of edges, in memory.

    Weights of an edge that occurs twice are summed; those that are then all 1 are dropped.

    Raises
    ------
    InputError
        Naming file and line.
    """
    none = np.empty(0, np.int32)
    read = [Edges(none, none, None), *file.pieces(progress)]
    source = np.concatenate([piece.source for piece in read])
    target = np.concatenate([piece.target for piece in read])
    listed = [piece.weights for piece in read if piece.weights is not None]
    weights = np.concatenate(listed) if listed else None
    del read, listed
    vertices, ids = file.vertices(), None
    if vertices is None:
        names = file.named(np.union1d(source, target).astype(np.int64))
        source, target = np.searchsorted(names, source), np.searchsorted(names, target)
        vertices, ids = len(names), torch.from_numpy(names)
    once = not file.directed and not isinstance(file, BothEndsFile)
    adjacency = csr_from_edges(source, target, vertices, weights, symmetric=once)
    if file.mixed:
        pattern = with_entries(csr_from_edges(source, target, vertices))
        file.check_mirrored(pattern, pattern.T.tocsr(), 0)
    if weights is not None:
        check_sums(file, with_entries(adjacency))
    if isinstance(file, BothEndsFile):
        file.check_entries(adjacency.nnz)
        A = adjacency.to_scipy()
        file.check_ends(A, A.T.tocsr(), 0)
    return graph_of(file.path, without_ones(adjacency), file.directed, vertex_ids=ids)


def check_sums(file: EdgeFile, rows: sp.csr_array, first: int = 0) -> None:
    """Refuse sums of whole numbers that float32 rounds, in rows from `first` on.

    Raises
    ------
    InputError
    """
    if not file.integers or rows.dtype == np.bool_:
        return
    exact = exact_in_float32(rows.data)
    if not exact.all():
        at = int(np.argmin(exact))
        row = first + int(np.searchsorted(rows.indptr, at, side="right")) - 1
        place = f"({row}, {int(rows.indices[at])})"
        raise InputError(f"{file.path}: entry {place} is {rows.data[at]:.0f}; it must be {EXACT}")


# Ids that leave more than this share of [0, largest] unused are names, not positions.
SPARSE_IDS = 16
WANTED = "an edge is 'source target [weight]'"
PLAIN = Grammar("ii", row=f"the first edge has 2 ({WANTED})", separators=' \t\r,;"', comments="#%/")
WEIGHTED = replace(PLAIN, head="iif", row=f"the first edge has 3 ({WANTED})")
_COMMENT = re.compile(r"[\s#%/]*")
# SNAP's words, at the beginning of a comment: elsewhere they may say anything.
_UNDIRECTED = re.compile(r"undirected graph\b", re.IGNORECASE)
_DIRECTED = re.compile(r"directed graph\b", re.IGNORECASE)
# KONECT's first line: symmetric, asymmetric or bipartite, and a kind of weights.
_KONECT = re.compile(r"%\s*(sym|asym|bip)\s+[a-z]+\s*$", re.MULTILINE)
# A number with whatever may group its digits.
_STATED = r"\b{}:\s*([0-9](?:[0-9 ,.'_\u00a0\u2009\u202f]*[0-9])?)"
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")
_SOURCES = {"source", "src", "from"}
_TARGETS = {"target", "tgt", "destination", "dest", "dst", "to"}
_WEIGHTS = {"weight", "weights"}


class EdgeList(EdgeFile):
    """Lines ``source target [weight]``: row = target, column = source.

    Comment lines begin with #, % or //; blanks, tabs, commas and semicolons separate, and fields
    may be quoted. A first line of words is a header. Ids are vertex numbers and stay what they are;
    only if fewer than one in 16 of [0, largest id] occurs, and no comment states as many, are they
    renumbered in rising order, and ``vertex_ids`` keeps the names. A comment ``Nodes: N`` (SNAP's
    word) is believed: vertices that no edge names come last. Weights of an edge that occurs twice
    are summed.

    Parameters
    ----------
    path : Path
    directed : bool, optional
        Otherwise undirected if a leading comment begins with ``Undirected graph`` (SNAP's words),
        or the first line is KONECT's ``% sym``. The edges of an undirected graph are stored in both
        directions.

    Raises
    ------
    InputError
        Naming file and line.
    """

    def __init__(self, path: Path, *, directed: bool | None = None) -> None:
        head = read_head(path, PLAIN)
        if not head.line:
            raise _no_edges(path)
        names = _headings(head.text)
        columns = len(names or head.fields)
        if columns not in (2, 3):
            raise InputError(f"{path}, line {head.line}: {columns} columns; {WANTED}")
        if names:
            _check_headings(path, head.line, names)
        self.path = path
        self._grammar = PLAIN if columns == 2 else WEIGHTED
        self._skip = head.line if names else 0
        self.integers = self._grammar is WEIGHTED  # until a fraction occurs
        self._weight_name = f" '{names[2]}'" if len(names) == 3 else ""
        self._stated_edges = _stated(path, head, "Edges")
        self._nodes = _stated(path, head, "Nodes") or 0
        self._said = _direction(path, head) if directed is None else "asked for"
        undirected = self._said in (_SAYS_UNDIRECTED, _KONECT_SYMMETRIC)
        self.directed = not undirected if directed is None else directed
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
                fraction = values != np.rint(values)
                refuse_first(path, exact_in_float32(values) | fraction, lines, values, EXACT)
                self.integers = self.integers and not bool(fraction.any())
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

    def decided(self) -> dict[str, str]:
        """What comments and columns say."""
        if self.vertices() is None:
            vertices = "ids are names, and renumbered: too few of their range occur"
        elif self._nodes > self._largest:
            vertices = f"a comment says 'Nodes: {self._nodes}'"
        else:
            vertices = f"ids reach {self._largest}"
        weights = f"third column{self._weight_name}, unless all are 1"
        return {
            "direction by": self._said,
            "vertices by": vertices,
            "weights by": weights if self._grammar is WEIGHTED else "there is no third column",
        }

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
    found = re.search(_STATED.format(what), head.comments)
    if found is None:
        return None
    text = found[1].replace(",", "") if _GROUPED.fullmatch(found[1]) else found[1]
    return count(path, head.line, text, what.lower())


_KONECT_SYMMETRIC = "line 1 says 'sym', as KONECT does"
_SAYS_UNDIRECTED = "a comment begins with 'Undirected graph'"


def _direction(path: Path, head: Head) -> str:
    """What of the leading comments decides whether the graph is directed."""
    if konect := _KONECT.match(head.comments):
        if konect[1] == "bip":
            raise InputError(
                f"{path}, line 1: '{konect[0].strip()}': the ids of a bipartite graph name other "
                "vertices in each column; number them apart"
            )
        return _KONECT_SYMMETRIC if konect[1] == "sym" else "line 1 says 'asym', as KONECT does"
    lines = [line[_COMMENT.match(line).end() :] for line in head.comments.split("\n")]  # type: ignore[union-attr]
    undirected, directed = (
        any(words.match(line) for line in lines) for words in (_UNDIRECTED, _DIRECTED)
    )
    if undirected and directed:
        raise InputError(f"{path}: its comments say both 'Directed graph' and 'Undirected graph'")
    if undirected:
        return _SAYS_UNDIRECTED
    if directed:
        return "a comment begins with 'Directed graph'"
    return "no comment begins with 'Undirected graph'"


def _headings(text: str) -> list[str]:
    """The names of columns that a line holds; none if it holds an edge."""
    separator = next((c for c in ",;\t" if c in text), " ")
    try:
        (names,) = csv.reader([text], delimiter=separator, skipinitialspace=True)
    except (csv.Error, ValueError):
        return []
    names = [name.strip() for name in names]
    if separator == " ":
        names = [name for name in names if name]
    return names if any(names) and all(_is_word(name) or not name for name in names) else []


def _is_word(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return name[:1].isalpha() or name[:1] == "_"
    return False


def _check_headings(path: Path, line: int, names: list[str]) -> None:
    """Refuse columns that have no names, or are named in another order."""
    first, second = (set(re.split(r"[\W\d_]+", name.lower())) for name in names[:2])
    turned = first & _TARGETS and second & _SOURCES
    if "" in names or turned or (first | second) & _WEIGHTS:
        shown = shortened(", ".join(names), 60)
        raise InputError(f"{path}, line {line}: the columns are '{shown}'; {WANTED}")


_LONGEST_BANNER = 1024  # bytes, as the format says of every line
BLANKS = " \t\r"
_INTEGERS = ("integer", "unsigned-integer")
SIZES = Grammar("iii", separators=BLANKS, comments="%")
_KINDS = {
    "pattern": "ii",
    "integer": "iii",
    "unsigned-integer": "iii",
    "real": "iif",
    "double": "iif",
}


@dataclass(frozen=True)
class _Banner:
    field: str
    symmetry: str

    @property
    def entries(self) -> Grammar:
        kinds = _KINDS[self.field]
        wanted = "row column" + (" value" if len(kinds) == 3 else "")
        row = f"an entry of a '{self.field}' matrix is '{wanted}'"
        return Grammar(kinds, row=row, separators=BLANKS, comments="")


@dataclass(frozen=True)
class _Sizes:
    vertices: int
    entries: int
    line: int


class MatrixMarket(EdgeFile):
    """A sparse square matrix as it stands: row = destination.

    What the format says (Boisvert, Pozo & Remington, NISTIR 5935) is read, SciPy's field
    ``unsigned-integer``, and a banner with one % in place of two (Network Repository).
    ``symmetric`` files are undirected graphs, ``general`` and ``skew-symmetric`` ones directed.
    Entries of a symmetric file may stand above the diagonal, too, if none is listed in both places.
    Entries that occur twice are summed; ``pattern`` files, and those whose entries are then all 1,
    have no weights.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputError
        Naming file and line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._banner = _read_banner(path)
        self._sizes = _read_sizes(path)
        self.directed = self._banner.symmetry != "symmetric"
        self.integers = self._banner.field in _INTEGERS

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """Entry (row, column) is the edge column → row."""
        path, banner, sizes = self.path, self._banner, self._sizes
        index_type = numpy_index_dtype(sizes.vertices)
        entries, skip = sizes.entries, sizes.line
        grammar = banner.entries
        found, below, above = 0, False, False
        for numbers in read_numbers(path, grammar, skip, progress):
            if found + len(numbers.lines) > entries:
                line = numbers.lines[entries - found]
                said = f"more entries than the {entries} of line {skip}"
                raise InputError(f"{path}, line {line}: {said}")
            found += len(numbers.lines)
            table = numbers.integers.reshape(-1, grammar.head.count("i"))
            _check_places(path, banner, sizes.vertices, table, numbers.lines)
            row, column = table[:, :2].T.astype(index_type) - 1
            weighted = len(grammar.head) == 3
            weights = _weights(path, banner, table, numbers) if weighted else None
            if banner.symmetry == "symmetric":
                below, above = (
                    below or bool((row > column).any()),
                    above or bool((row < column).any()),
                )
                self.mixed = below and above
            if banner.symmetry == "skew-symmetric":
                # Entry (j, i) is the negative of (i, j).
                assert weights is not None
                row, column = np.concatenate((row, column)), np.concatenate((column, row))
                weights = np.concatenate((weights, -weights))
            yield Edges(column, row, weights)
        if found < entries:
            raise InputError(
                f"{path}: truncated: line {skip} says {entries} entries, but {found} follow"
            )

    def vertices(self) -> int:
        """Rows of the matrix."""
        return self._sizes.vertices

    def decided(self) -> dict[str, str]:
        """As the banner says."""
        weights = "" if self._banner.field == "pattern" else ", unless all entries are 1"
        return {
            "direction by": f"line 1: '{self._banner.symmetry}'",
            "weights by": f"line 1: '{self._banner.field}'{weights}",
        }


def _read_banner(path: Path) -> _Banner:
    with open_bytes(path) as (file, _):
        words = file.readline(_LONGEST_BANNER).decode("utf-8", "replace").lower().split()
    if len(words) != 5 or words[0].lstrip("%") != "matrixmarket" or words[1] != "matrix":
        raise InputError(
            f"{path}, line 1: not a Matrix Market file; it begins with "
            "'%%MatrixMarket matrix coordinate FIELD SYMMETRY'"
        )
    _, _, layout, field, symmetry = (word[:40] for word in words)
    if layout != "coordinate":
        raise InputError(
            f"{path}, line 1: a '{layout}' matrix holds every entry, edge or not; a graph is "
            "stored as 'coordinate': scipy.io.mmwrite(path, scipy.sparse.coo_array(A))"
        )
    if field not in _KINDS:
        raise InputError(f"{path}, line 1: '{field}' entries; weights are pattern, integer or real")
    if symmetry not in ("general", "symmetric", "skew-symmetric"):
        known = "'general', 'symmetric' or 'skew-symmetric'"
        raise InputError(f"{path}, line 1: '{symmetry}'; a graph is {known}")
    if symmetry == "skew-symmetric" and field == "pattern":
        raise InputError(f"{path}, line 1: a 'pattern' has no sign, so it is not skew-symmetric")
    return _Banner(field, symmetry)


def _read_sizes(path: Path) -> _Sizes:
    head = read_head(path, SIZES, skip=1)
    line = head.line
    if len(head.fields) != 3:
        where = f", line {line}" if line else ": truncated"
        raise InputError(f"{path}{where}: there must be a line 'rows columns entries'")
    rows, columns, entries = (
        count(path, line, text, what)
        for text, what in zip(head.fields, ("rows", "columns", "entries"), strict=True)
    )
    if rows != columns:
        raise InputError(
            f"{path}, line {line}: the matrix is {rows} × {columns}; "
            "a graph needs as many rows as columns"
        )
    check_vertices(str(path), rows)
    return _Sizes(rows, entries, line)


def _check_places(
    path: Path,
    banner: _Banner,
    vertices: int,
    table: npt.NDArray[np.int64],
    lines: npt.NDArray[np.int64],
) -> None:
    for column, what in ((table[:, 0], "row"), (table[:, 1], "column")):
        inside = (column >= 1) & (column <= vertices)
        refuse_first(path, inside, lines, column, f"a {what} in [1, {vertices}]")
    if banner.symmetry == "skew-symmetric":
        rule = "a column before the row: a skew-symmetric file holds what is below the diagonal"
        refuse_first(path, table[:, 0] > table[:, 1], lines, table[:, 1], rule)


def _weights(
    path: Path, banner: _Banner, table: npt.NDArray[np.int64], numbers: Numbers
) -> npt.NDArray[np.float64]:
    lines = numbers.lines
    if banner.field in _INTEGERS:
        whole = table[:, 2]
        if banner.field == "unsigned-integer":
            refuse_first(path, whole >= 0, lines, whole, "an unsigned integer")
        refuse_first(path, exact_in_float32(whole), lines, whole, EXACT)
        return whole.astype(np.float64)
    weights = numbers.reals
    refuse_first(path, np.isfinite(weights), lines, weights, "a finite number")
    refuse_first(path, fits_float32(weights), lines, weights, WEIGHT)
    return weights


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
