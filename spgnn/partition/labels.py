"""Labels in memory and in files: METIS's format, part sizes, permutations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from spgnn.data.reading import check_regular
from spgnn.errors import InputError
from spgnn.files import AnyPath, write_pieces
from spgnn.partition import _partition
from spgnn.partition.adjacency import Int32Array, Int64Array
from spgnn.partition.arguments import check_parts, integers

# Files are written and formatted in pieces of this many numbers.
_PIECE = 1 << 20


def check_labels(labels: npt.ArrayLike, vertices: int, parts: int | None) -> tuple[Int32Array, int]:
    """Labels as int32 [vertices] and the number of parts (1 + the largest label if not given).

    Raises
    ------
    InputError
        If they are not integers, not one per vertex, or not in [0, parts).
    """
    array = integers(labels, "labels")
    if len(array) != vertices:
        raise InputError(f"{len(array)} labels for {vertices} vertices; there must be one for each")
    low, high = (int(array.min()), int(array.max())) if vertices else (0, 0)
    parts = check_parts(high + 1 if parts is None else parts, vertices)
    if low < 0 or high >= parts:
        bad = int(np.flatnonzero((array < 0) | (array >= parts))[0])
        raise InputError(f"label {array[bad]} of vertex {bad} is outside [0, {parts})")
    return np.ascontiguousarray(array, dtype=np.int32), parts


def part_sizes(labels: npt.ArrayLike, parts: int) -> Int64Array:
    """Vertices of each part, int64 [parts].

    Raises
    ------
    InputError
        If a label is no integer in [0, parts).
    """
    array = integers(labels, "labels")
    checked, parts = check_labels(array, len(array), parts)
    return np.bincount(checked, minlength=parts).astype(np.int64)


def permutation(labels: npt.ArrayLike) -> Int64Array:
    """Original vertex ids in order of their part, int64 [vertices]; the order inside a part stays.

    With ``order = permutation(labels)``, ``A[order][:, order]`` has contiguous block rows whose
    sizes are `part_sizes`.

    Raises
    ------
    InputError
        If they are not integers.
    """
    return np.argsort(integers(labels, "labels"), kind="stable").astype(np.int64)


def read_labels(path: AnyPath, vertices: int, parts: int) -> Int32Array:
    """Read one label a line (METIS's format).

    Raises
    ------
    InputError
        Naming file and line: not an integer, outside [0, parts), or a wrong number of lines.
    """
    parts = check_parts(parts, vertices)
    check_regular(path)
    try:
        text = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # the latter for names with a zero byte
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {said}") from None
    labels = np.empty(vertices, np.int32)
    try:
        _partition.parse_labels(text, parts, labels)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return labels


def write_labels(path: AnyPath, labels: npt.ArrayLike, what: str | None = None) -> None:
    """Write one integer a line; the file appears whole or not at all.

    Serves labels, part sizes and permutations alike.

    Parameters
    ----------
    path : path
    labels : integers in [-2³¹, 2³¹), [any]
    what : str, optional
        What an error calls the file (by default its path).

    Raises
    ------
    InputError
        If they are not such integers, or the file cannot be written.
    """
    array = integers(labels, "labels")
    limits = np.iinfo(np.int32)
    if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
        raise InputError("labels must fit 32 bits")
    pieces = (array[i : i + _PIECE] for i in range(0, len(array), _PIECE))
    write_pieces(
        path,
        (_partition.format_labels(piece.astype(np.int32, copy=False)) for piece in pieces),
        what,
    )
