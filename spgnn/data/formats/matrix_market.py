"""Matrix Market files (.mtx, also gzipped)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spgnn.data.formats.edge_file import EdgeFile, Edges
from spgnn.data.formats.text import (
    Grammar,
    Numbers,
    count,
    open_bytes,
    read_head,
    read_numbers,
    refuse_first,
)
from spgnn.data.memory import check_vertices
from spgnn.data.narrow import WEIGHT, fits_float32
from spgnn.errors import InputError
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import EXACT, exact_in_float32

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
