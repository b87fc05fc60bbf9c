"""Text files of edges: edge lists, Matrix Market, METIS; read once, a piece at a time."""

from __future__ import annotations

import csv
import logging
import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
import torch

from spgnn.addons.io.columns import is_row_number, words_around
from spgnn.addons.io.text import (
    Grammar,
    Head,
    check_vertices,
    count,
    open_bytes,
    read_head,
    read_numbers,
    refuse_first,
)
from spgnn.data import (
    WEIGHT,
    Graph,
    GraphFile,
    GraphSource,
    MemorySource,
    added,
    fits_float32,
    from_entries,
    without_ones,
)
from spgnn.errors import InputError, shortened
from spgnn.files import AnyPath, errors_of, name_in, reading
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import EXACT, exact_in_float32

if TYPE_CHECKING:
    from spgnn.addons.io.parquet import VertexTable

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
_LOGGER = logging.getLogger(__name__)


class Edges(NamedTuple):
    """Some edges of a file, in its order: vertices from 0, and float64 weights that fit float32."""

    source: Array
    target: Array
    weights: Float64 | None
    features: npt.NDArray[np.float32] | None = None


class EdgeFile(GraphFile):
    """A file of edges."""

    path: Path
    directed: bool
    both_ends: bool = False  # each edge of an undirected graph is listed at both, not once
    integers: bool = False  # weights are whole numbers, which stay exact or are refused
    # Once all pieces have been read: whether `check_mirrored` has anything to look for, and the
    # vertices that their numbers mean, if others.
    check_symmetry: bool = False
    ranks: Int64 | None = None
    vertex_table: VertexTable | None = None  # features, labels and masks that come with the edges

    def source(self, progress: Progress | None = None) -> GraphSource:
        return MemorySource(read_edges(self, progress), self.decided(), self.write_ids)

    @abstractmethod
    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """All edges; what is wrong is said of a line."""

    @abstractmethod
    def vertices(self) -> int | None:
        """Number of vertices, once all pieces have been read; ``None`` if ids are names."""

    def decided(self) -> dict[str, str]:
        """Reasons for direction, vertices and weights; all pieces have been read."""
        return {}

    def named(self, names: Int64) -> Int64:
        """The names of all vertices, given those that occur, each once and rising."""
        return names

    def write_ids(self, path: AnyPath) -> None:
        """Write the ids of all vertices to a Parquet file, if they are strings."""

    def check_entries(self, entries: int) -> None:
        """Refuse another number of different entries than the file states."""

    def check_mirrored(
        self, rows: scipy.sparse.csr_array, mirrored: scipy.sparse.csr_array, first: int
    ) -> None:
        """Compare rows from `first` on with those of the transpose: no edge is listed twice."""
        row, column = _pattern(rows).multiply(_pattern(mirrored)).tocoo().coords
        off = np.flatnonzero(row + first != column)
        if len(off):
            i, j = int(row[off[0]]) + first + 1, int(column[off[0]]) + 1
            raise InputError(
                f"{self.path}: lists both entry ({i}, {j}) and ({j}, {i}); a symmetric file holds "
                "one of the two"
            )

    def combined(
        self, rows: scipy.sparse.csr_array, mirrored: scipy.sparse.csr_array | None, first: int = 0
    ) -> scipy.sparse.csr_array:
        """Rows of the graph from `first` on: those of the listed entries and of their transpose."""
        if mirrored is not None:
            if self.check_symmetry:
                self.check_mirrored(rows, mirrored, first)
            rows = rows if self.both_ends else added(rows, mirrored)
        if self.integers and rows.dtype != np.bool_:
            exact = exact_in_float32(rows.data)
            if not exact.all():
                at = int(np.argmin(exact))
                row = first + int(np.searchsorted(rows.indptr, at, side="right")) - 1
                entry = f"entry ({row}, {int(rows.indices[at])}) is {rows.data[at]:.0f}"
                raise InputError(f"{self.path}: {entry}; it must be {EXACT}")
        return rows


def _pattern(A: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """True wherever A has an entry, if only a 0."""
    return scipy.sparse.csr_array((np.ones(A.nnz, np.bool_), A.indices, A.indptr), shape=A.shape)


def read_edges(file: EdgeFile, progress: Progress | None = None) -> Graph:
    """The graph of a file of edges, in memory."""
    none = np.empty(0, np.int32)
    pieces = [Edges(none, none, None), *file.pieces(progress)]
    source, target = (np.concatenate([piece[end] for piece in pieces]) for end in (0, 1))
    listed = [piece.weights for piece in pieces if piece.weights is not None]
    weighted = bool(listed)
    weights = np.concatenate(listed) if weighted else np.ones(len(source), np.bool_)
    features = [piece.features for piece in pieces if piece.features is not None]
    del pieces, listed
    vertices, ids = file.vertices(), None
    if vertices is None:
        names = file.named(np.union1d(source, target).astype(np.int64))
        source, target = np.searchsorted(names, source), np.searchsorted(names, target)
        vertices, ids = len(names), torch.from_numpy(names)
    if file.ranks is not None:
        source, target = file.ranks[source], file.ranks[target]
    data: dict[str, Any] = {}
    if features:
        order = order_of_entries(file.path, target, source)
        data["edge_attr"] = torch.from_numpy(np.concatenate(features)[order])
    if file.vertex_table is not None:
        ids = file.vertex_table.vertex_ids
        data |= file.vertex_table.rows(slice(0, vertices)).take(slice(None))
    shape, mirrored = (vertices, vertices), None
    rows = scipy.sparse.coo_array((weights, (target, source)), shape=shape).tocsr()
    if not file.directed:
        keep = slice(None) if file.both_ends else source != target
        entries = (weights[keep], (source[keep], target[keep]))
        mirrored = scipy.sparse.coo_array(entries, shape=shape).tocsr()
    adjacency = from_entries(file.combined(rows, mirrored), weighted=weighted)
    file.check_entries(adjacency.nnz)
    with errors_of(file.path):
        name = name_in(file.path)
        return Graph(name, without_ones(adjacency), file.directed, vertex_ids=ids, **data)


def order_of_entries(path: Path, rows: Array, columns: Array) -> Int64:
    """The order that sorts entries with features, of which none may occur twice."""
    order: Int64 = np.lexsort((columns, rows))
    row, column = rows[order], columns[order]
    twice = np.flatnonzero((row[1:] == row[:-1]) & (column[1:] == column[:-1]))
    if len(twice):
        edge = f"{column[twice[0]]} to {row[twice[0]]}"
        raise InputError(
            f"{path}: two edges from vertex {edge}; an edge with features occurs once: combine them"
        )
    return order


def _check_weights(path: Path, lines: Int64, weights: Float64, *, declared_real: bool) -> None:
    """Finite, in the range of float32, and exact if it is a whole number in a list of any."""
    refuse_first(path, np.isfinite(weights), lines, weights, "a finite number")
    refuse_first(path, fits_float32(weights), lines, weights, WEIGHT)
    if not declared_real:
        exact = exact_in_float32(weights) | (weights != np.rint(weights))
        refuse_first(path, exact, lines, weights, EXACT)


# Edge lists -------------------------------------------------------------------------------------

SPARSE_IDS = 16  # ids that leave more than this share of [0, largest] unused are names
_WANTED = "an edge is 'source target [weight]'"
_PLAIN = Grammar(
    "dd",
    row=f"the first edge has 2 ({_WANTED})",
    integer="is not an integer; one header line may come first; tables (.parquet) take text ids",
    separators=' \t\r,;"',
    comments="#%/",
)
_WEIGHTED = replace(_PLAIN, head="ddf", row=f"the first edge has 3 ({_WANTED})")
_COMMENT = re.compile(r"[\s#%/]*")
# KONECT's first line: symmetric, asymmetric or bipartite, and a kind of weights.
_KONECT = re.compile(r"%\s*(sym|asym|bip)\s+[a-z]+\s*$", re.MULTILINE)
# A number with whatever may group its digits.
_STATED = r"\b{}:\s*([0-9](?:[0-9 ,.'_\u00a0\u2009\u202f]*[0-9])?)"
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+")


class EdgeList(EdgeFile):
    """Lines ``source target [weight]``: row = target, column = source."""

    def __init__(self, path: Path) -> None:
        head = read_head(path, _PLAIN)
        if not head.line:
            raise InputError(f"{path}: holds no edges; {_WANTED}")
        names = _headings(head.text)
        columns = len(names or head.fields)
        if columns not in (2, 3):
            raise InputError(f"{path}, line {head.line}: {columns} columns; {_WANTED}")
        if names:
            roles = ("source", "target", "weight", "time")
            other = (
                any(words_around(role, name) is not None for role in roles if role != own)
                and words_around(own, name) is None
                for own, name in zip(roles[:3], names, strict=False)
            )
            if any(other) or any(map(is_row_number, names)):
                shown = shortened(", ".join(names), 60)
                raise InputError(f"{path}, line {head.line}: the columns are '{shown}'; {_WANTED}")
            third = shortened(names[2], 40) if columns == 3 else "weight"
            if words_around("weight", third) is None and third.lower() not in ("w", "value"):
                remedy = "an edge's weight follows its ends: name it 'weight', or drop the column"
                raise InputError(f"{path}, line {head.line}: column 3 is '{third}'; {remedy}")
        self.path = path
        self._grammar = _PLAIN if columns == 2 else _WEIGHTED
        self._skip = head.line if names else 0
        first = read_head(path, _PLAIN, self._skip) if names else head
        between = set(re.sub(r"[ \t]*([,;])[ \t]*", r"\1", first.text).replace("\t", " "))
        if len(between & {",", ";", " "}) > 1:
            shown = shortened(first.text, 40)
            raise InputError(f"{path}, line {first.line}: '{shown}' mixes separators; use one kind")
        self.integers = columns == 3  # until a fraction occurs
        self._weight_name = f" '{names[2]}'" if len(names) == 3 else ""
        self._stated_edges = _stated(path, head, "Edges")
        self._nodes = _stated(path, head, "Nodes") or 0
        self.directed, self._said = _direction(path, head)
        self._edges, self._largest = 0, -1

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        path, weighted = self.path, self._grammar is _WEIGHTED
        for numbers in read_numbers(path, self._grammar, self._skip, progress):
            ends, lines = numbers.integers.reshape(-1, 2), numbers.lines
            worst = ends.min(axis=1)
            refuse_first(path, worst >= 0, lines, worst, "a vertex id, an integer of at least 0")
            weights = numbers.reals if weighted else None
            if weights is not None:
                _check_weights(path, lines, weights, declared_real=False)
                self.integers = self.integers and bool((weights == np.rint(weights)).all())
            largest = int(ends.max(initial=0))
            self._edges, self._largest = self._edges + len(ends), max(self._largest, largest)
            source, target = ends.T.astype(numpy_index_dtype(largest + 1))
            yield Edges(source, target, weights)
        if not self._edges:
            raise InputError(f"{path}: holds no edges; {_WANTED}")
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
        check_vertices(self.path, vertices)
        return vertices

    def decided(self) -> dict[str, str]:
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
            "weights by": weights if self._grammar is _WEIGHTED else "there is no third column",
        }

    def named(self, names: Int64) -> Int64:
        """Vertices that are stated but do not occur come last."""
        few = f"ids reach {self._largest} but only {len(names)} occur"
        _LOGGER.warning("%s: %s; vertices are numbered in rising order of id", self.path, few)
        check_vertices(self.path, max(self._nodes, len(names)))
        missing = max(self._nodes - len(names), 0)
        if missing > np.iinfo(np.int64).max - self._largest:
            none = f"no larger ones are left for the {missing} vertices that no edge names"
            raise InputError(f"{self.path}: ids reach {self._largest}; {none}")
        unnamed = np.arange(missing, dtype=np.int64) + 1
        return np.concatenate((names, self._largest + unnamed if missing else unnamed))


def _stated(path: Path, head: Head, what: str) -> int | None:
    """The number of edges or nodes in the leading comments."""
    match = re.search(_STATED.format(what), head.comments)
    if match is None:
        return None
    text = match[1].replace(",", "") if _GROUPED.fullmatch(match[1]) else match[1]
    return count(path, head.line, text, what.lower())


def _direction(path: Path, head: Head) -> tuple[bool, str]:
    """True if the graph is directed, and the reason."""
    if konect := _KONECT.match(head.comments):
        if konect[1] == "bip":
            raise InputError(
                f"{path}, line 1: '{konect[0].strip()}': the ids of a bipartite graph name other "
                "vertices in each column; number them apart"
            )
        return konect[1] == "asym", f"line 1 says '{konect[1]}', as KONECT does"
    # SNAP's words, at the beginning of a comment: elsewhere they may say anything.
    lines = [_COMMENT.sub("", line, count=1).lower() for line in head.comments.split("\n")]
    undirected, directed = (
        any(re.match(rf"{word} graph\b", line) for line in lines)
        for word in ("undirected", "directed")
    )
    if undirected and directed:
        raise InputError(f"{path}: its comments say both 'Directed graph' and 'Undirected graph'")
    if directed:
        return True, "a comment begins with 'Directed graph'"
    article = "a" if undirected else "no"
    return not undirected, f"{article} comment begins with 'Undirected graph'"


def _headings(text: str) -> list[str]:
    """The names of columns that a line holds; none if it holds an edge."""

    def is_word(name: str) -> bool:
        try:
            float(name)
        except ValueError:
            return name[:1].isalpha() or name[:1] == "_"
        return False

    separator = next((c for c in ",;\t" if c in text), " ")
    try:
        (names,) = csv.reader([text], delimiter=separator, skipinitialspace=True)
    except (csv.Error, ValueError):
        return []
    names = [name.strip() for name in names]
    if separator == " ":
        names = [name for name in names if name]
    return names if any(names) and all(is_word(name) or not name for name in names) else []


# Matrix Market ----------------------------------------------------------------------------------

_LONGEST_BANNER = 1024  # bytes, as the format says of every line
_BLANKS = " \t\r"
_INTEGERS = ("integer", "unsigned-integer")
_KINDS = {"pattern": "ii", "real": "iif", "double": "iif"} | dict.fromkeys(_INTEGERS, "iii")


class MatrixMarket(EdgeFile):
    """A sparse square matrix as it stands: row = destination."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._field, self._symmetry = _read_banner(path)
        self.directed = self._symmetry != "symmetric"
        self.integers = self._field in _INTEGERS
        head = read_head(path, Grammar("iii", separators=_BLANKS, comments="%"), skip=1)
        if len(head.fields) != 3:
            where = f", line {head.line}" if head.line else ": truncated"
            raise InputError(f"{path}{where}: there must be a line 'rows columns entries'")
        self._line = head.line
        self._rows, columns, self._entries = (
            count(path, head.line, text, what)
            for text, what in zip(head.fields, ("rows", "columns", "entries"), strict=True)
        )
        if self._rows != columns:
            raise InputError(
                f"{path}, line {head.line}: the matrix is {self._rows} × {columns}; "
                "a graph needs as many rows as columns"
            )
        check_vertices(path, self._rows)

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """Entry (row, column) is the edge column → row."""
        path, n, entries = self.path, self._rows, self._entries
        kinds, skew = _KINDS[self._field], self._symmetry == "skew-symmetric"
        layout = "row column" + (" value" if len(kinds) == 3 else "")
        row_rule = f"an entry of a '{self._field}' matrix is '{layout}'"
        grammar = Grammar(kinds, row=row_rule, separators=_BLANKS, comments="")
        total, below, above = 0, False, False
        for numbers in read_numbers(path, grammar, self._line, progress):
            lines = numbers.lines
            if total + len(lines) > entries:
                message = f"more entries than the {entries} of line {self._line}"
                raise InputError(f"{path}, line {lines[entries - total]}: {message}")
            total += len(lines)
            table = numbers.integers.reshape(-1, kinds.count("i"))
            for column, what in ((table[:, 0], "row"), (table[:, 1], "column")):
                inside = (column >= 1) & (column <= n)
                refuse_first(path, inside, lines, column, f"a {what} in [1, {n}]")
            if skew:
                rule = (
                    "a column before the row: a skew-symmetric file holds what is below the "
                    "diagonal"
                )
                refuse_first(path, table[:, 0] > table[:, 1], lines, table[:, 1], rule)
            row, column = table[:, :2].T.astype(numpy_index_dtype(n)) - 1
            weights = None
            if self.integers:
                whole = table[:, 2]
                if self._field == "unsigned-integer":
                    refuse_first(path, whole >= 0, lines, whole, "an unsigned integer")
                refuse_first(path, exact_in_float32(whole), lines, whole, EXACT)
                weights = whole.astype(np.float64)
            elif len(kinds) == 3:
                weights = numbers.reals
                _check_weights(path, lines, weights, declared_real=True)
            if not self.directed:
                below = below or bool((row > column).any())
                above = above or bool((row < column).any())
                self.check_symmetry = below and above
            if skew:  # entry (j, i) is the negative of (i, j)
                assert weights is not None
                row, column = np.concatenate((row, column)), np.concatenate((column, row))
                weights = np.concatenate((weights, -weights))
            yield Edges(column, row, weights)
        if total < entries:
            raise InputError(
                f"{path}: truncated: line {self._line} says {entries} entries, but {total} follow"
            )

    def vertices(self) -> int:
        return self._rows

    def decided(self) -> dict[str, str]:
        weights = "" if self._field == "pattern" else ", unless all entries are 1"
        return {
            "direction by": f"line 1: '{self._symmetry}'",
            "weights by": f"line 1: '{self._field}'{weights}",
        }


def _read_banner(path: Path) -> tuple[str, str]:
    """Field and symmetry of a file."""
    with open_bytes(path) as (file, _), reading(path):
        words = file.readline(_LONGEST_BANNER).decode("utf-8", "replace").lower().split()
    line = f"{path}, line 1:"
    if len(words) != 5 or words[0].lstrip("%") != "matrixmarket" or words[1] != "matrix":
        raise InputError(
            f"{line} not a Matrix Market file; it begins with "
            "'%%MatrixMarket matrix coordinate FIELD SYMMETRY'"
        )
    _, _, layout, field, symmetry = (word[:40] for word in words)
    if layout != "coordinate":
        raise InputError(
            f"{line} a '{layout}' matrix holds every entry, edge or not; a graph is "
            "stored as 'coordinate': scipy.io.mmwrite(path, scipy.sparse.coo_array(A))"
        )
    if field not in _KINDS:
        raise InputError(f"{line} '{field}' entries; weights are pattern, integer or real")
    if symmetry not in ("general", "symmetric", "skew-symmetric"):
        choices = "'general', 'symmetric' or 'skew-symmetric'"
        raise InputError(f"{line} '{symmetry}'; a graph is {choices}")
    if symmetry == "skew-symmetric" and field == "pattern":
        raise InputError(f"{line} a 'pattern' has no sign, so it is not skew-symmetric")
    return field, symmetry


# METIS ------------------------------------------------------------------------------------------

_HEADER = Grammar("", cycle="i", separators=_BLANKS, comments="%")
_MOST_CONSTRAINTS = 1000  # numbers a vertex has; more are a damaged header


class MetisGraph(EdgeFile):
    """A graph in METIS's format (METIS 5 manual, section 4.1.1)."""

    directed = False
    both_ends = True
    check_symmetry = True

    def __init__(self, path: Path) -> None:
        head = read_head(path, _HEADER)
        if not head.line:
            raise InputError(f"{path}: empty; a METIS graph begins with 'vertices edges'")
        self.path, self._line = path, head.line
        fields, where = head.fields, f"{path}, line {head.line}:"
        expected = f"{where} the header of a METIS graph is 'vertices edges [fmt [constraints]]'"
        if not 2 <= len(fields) <= 4 or not all(f.isascii() and f.isdecimal() for f in fields):
            raise InputError(f"{expected}, got '{shortened(' '.join(fields), 60)}'")
        flags = fields[2].rjust(3, "0") if len(fields) > 2 else "000"
        if len(flags) != 3 or set(flags) - set("01"):
            shown = shortened(fields[2], 40)
            raise InputError(f"{expected}; fmt is up to three digits 0 or 1, got '{shown}'")
        # gpmetis takes 0 for 1.
        constraints = max(count(path, head.line, (*fields, "1", "1")[3], "constraints"), 1)
        if constraints > _MOST_CONSTRAINTS:
            raise InputError(
                f"{expected}; {constraints} constraints are more than {_MOST_CONSTRAINTS}"
            )
        self._vertices = count(path, head.line, fields[0], "vertices")
        self._edges = count(path, head.line, fields[1], "edges")
        # Numbers of a vertex, which precede its edges.
        self._skipped = int(flags[0]) + constraints * int(flags[1])
        self._weighted = flags[2] == "1"
        self._lines: list[Int64] = []
        if self._skipped:
            _LOGGER.warning("%s: not read: %s", path, self.decided()["not read"])

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """Each edge twice: neighbour → vertex of the line."""
        path, n, skipped, weighted = self.path, self._vertices, self._skipped, self._weighted
        rule = (
            f"the fmt in line {self._line} asks for {skipped} of the vertex, then "
            f"{1 + weighted} per edge"
        )
        grammar = replace(
            _HEADER, head="i" * skipped, cycle="if" if weighted else "i", row=rule, blank_rows=True
        )
        rows = 0
        for numbers in read_numbers(path, grammar, self._line, progress):
            # One line a vertex; there may be blank ones at the end.
            counts, lines, left = numbers.counts, numbers.lines, n - rows
            if counts[left:].any():
                line = lines[left:][counts[left:] > 0][0]
                raise InputError(f"{path}, line {line}: more lines than the header's {n} vertices")
            counts, lines = counts[:left], lines[:left]
            if skipped and not counts.all():
                message = f"empty, but the fmt asks for {skipped} numbers"
                raise InputError(f"{path}, line {lines[np.argmin(counts)]}: {message}")
            degrees, neighbours = (counts - skipped) // (1 + weighted), numbers.integers
            if skipped:
                integers = degrees + skipped
                begins = np.cumsum(integers) - integers
                place = np.arange(len(neighbours)) - np.repeat(begins, integers)
                neighbours = neighbours[place >= skipped]
            line_of_edge = np.repeat(lines, degrees)
            inside = (neighbours >= 1) & (neighbours <= n)
            refuse_first(path, inside, line_of_edge, neighbours, f"a vertex in [1, {n}]")
            if weighted:
                _check_weights(path, line_of_edge, numbers.reals, declared_real=False)
            index_type = numpy_index_dtype(n)
            source = neighbours.astype(index_type) - 1
            ids = np.arange(rows, rows + len(degrees), dtype=index_type)
            target = np.repeat(ids, degrees)
            loops = np.flatnonzero(source == target)
            if len(loops):
                raise InputError(
                    f"{path}, line {line_of_edge[loops[0]]}: vertex {target[loops[0]] + 1} is its "
                    "own neighbour; a METIS graph has no self-loops"
                )
            yield Edges(source, target, numbers.reals if weighted else None)
            self._lines.append(lines)
            rows += len(degrees)
        if rows < n:
            raise InputError(
                f"{path}: truncated: the header says {n} vertices, but only {rows} follow"
            )

    def vertices(self) -> int:
        return self._vertices

    def decided(self) -> dict[str, str]:
        weights = "each neighbour has one" if self._weighted else "neighbours have none"
        reasons = {
            "direction by": "a METIS graph is undirected",
            "weights by": f"line {self._line}: {weights}",
        }
        if self._skipped:
            reasons["not read"] = f"weights and sizes of vertices, {self._skipped} each"
        return reasons

    def check_entries(self, entries: int) -> None:
        if entries != 2 * self._edges:
            raise InputError(
                f"{self.path}, line {self._line}: the header says {self._edges} edges, "
                f"but the lines list {entries} neighbours, not twice as many"
            )

    def check_mirrored(
        self, rows: scipy.sparse.csr_array, mirrored: scipy.sparse.csr_array, first: int
    ) -> None:
        """An edge is the same at both ends."""
        # SciPy takes an entry that is 0 for none.
        difference = (_pattern(mirrored) != _pattern(rows)).tocoo()
        if not difference.nnz:
            difference = (mirrored != rows).tocoo()
        if difference.nnz:
            u, v = first + int(difference.row[0]), int(difference.col[0])
            line = np.concatenate(self._lines)[u]
            raise InputError(
                f"{self.path}, line {line}: the edge between vertices {u + 1} and {v + 1} is not "
                "the same at both ends; a METIS graph is undirected"
            )
