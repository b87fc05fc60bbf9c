"""Edge lists: one edge a line, as SNAP publishes them (.txt, .csv, .tsv, also gzipped)."""

from __future__ import annotations

import csv
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spgnn.data.formats.edge_file import EdgeFile, Edges
from spgnn.data.formats.text import Grammar, Head, count, read_head, read_numbers, refuse_first
from spgnn.data.memory import check_vertices
from spgnn.data.narrow import WEIGHT, fits_float32
from spgnn.errors import InputError, shortened
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import EXACT, exact_in_float32

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
