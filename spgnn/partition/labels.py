"""Labels in memory and in files: METIS's format, part sizes, permutations."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError
from spgnn.partition import _partition
from spgnn.partition.pattern import Int32Array, Int64Array

# Files are written and formatted in pieces of this many numbers.
_PIECE = 1 << 20


def check_labels(labels: npt.ArrayLike, vertices: int, parts: int | None) -> tuple[Int32Array, int]:
    """Labels as int32 [vertices] and the number of parts (1 + the largest label if not given).

    Raises
    ------
    InputError
        If they are not integers, not one per vertex, or not in [0, parts).
    """
    array = np.asarray(labels)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"labels must be a vector of integers, got {array.dtype} {list(array.shape)}"
        )
    if len(array) != vertices:
        raise InputError(f"{len(array)} labels for {vertices} vertices; there must be one for each")
    low, high = (int(array.min()), int(array.max())) if vertices else (0, 0)
    if parts is None:
        parts = high + 1
    _check_parts(parts)
    if low < 0 or high >= parts:
        bad = int(np.flatnonzero((array < 0) | (array >= parts))[0])
        raise InputError(f"label {array[bad]} of vertex {bad} is outside [0, {parts})")
    return np.ascontiguousarray(array, dtype=np.int32), parts


def _check_parts(parts: int) -> None:
    if parts < 1 or parts >= 2**31:
        raise InputError(f"the number of parts must be in [1, 2³¹), got {parts}")


def part_sizes(labels: npt.ArrayLike, parts: int) -> Int64Array:
    """Vertices of each part, int64 [parts]."""
    return np.bincount(np.asarray(labels), minlength=parts).astype(np.int64)


def permutation(labels: npt.ArrayLike) -> Int64Array:
    """Original vertex ids in order of their part, int64 [vertices]; the order inside a part stays.

    With ``order = permutation(labels)``, ``A[order][:, order]`` has contiguous block rows whose
    sizes are `part_sizes`.
    """
    return np.argsort(np.asarray(labels), kind="stable").astype(np.int64)


def read_labels(path: str | os.PathLike[str], vertices: int, parts: int) -> Int32Array:
    """Read one label a line (METIS's format).

    Raises
    ------
    InputError
        Naming file and line: not an integer, outside [0, parts), or a wrong number of lines.
    """
    _check_parts(parts)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    labels = np.empty(vertices, np.int32)
    try:
        _partition.parse_labels(text, parts, labels)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return labels


def write_labels(path: str | os.PathLike[str], labels: npt.ArrayLike) -> None:
    """Write one integer a line; the file appears whole or not at all.

    Serves labels, part sizes and permutations alike.
    """
    array = np.asarray(labels)
    pieces = (array[i : i + _PIECE] for i in range(0, len(array), _PIECE))
    write_atomically(
        path, (_partition.format_labels(piece.astype(np.int32, copy=False)) for piece in pieces)
    )


def write_atomically(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Write the pieces beside `path`, then rename: nothing half-written is ever seen.

    Raises
    ------
    InputError
        If the file cannot be written (no such directory, full disk, …).
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(pieces)
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
