"""Labels of vertices and of nonzeros: checked, counted, read, written."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn import _native
from spgnn.data.arrays import header_bytes, read_header
from spgnn.errors import InputError, shortened
from spgnn.files import AnyPath, check_regular, errors_of, reading, write_file
from spgnn.layout import Float64Array, Int32Array, Int64Array
from spgnn.partition.problem import check_parts, integers, numbers

_PIECE = 1 << 20  # numbers that are formatted and written at once
_LEAST_SHARE = 1e-100  # of the largest
_EDGE_DTYPES = tuple(map(np.dtype, ("|u1", "<i2", "<i4")))


def check_labels(labels: npt.ArrayLike, vertices: int, parts: int | None) -> tuple[Int32Array, int]:
    """Labels as int32 [vertices] and the number of parts (1 + the largest label if not given).

    Raises
    ------
    InputError
        If they are not integers, not one per vertex, or not in [0, parts).
    """
    array = integers(labels, "labels")
    if parts is None and len(array) == vertices:
        parts = int(array.max()) + 1 if vertices else 1
        if vertices and array.min() > 0:
            begin = f"labels begin at {array.min()}, and parts at 0"
            raise InputError(f"{begin}: subtract as much, or give the number of parts")
    parts = check_parts(1 if parts is None else parts, vertices)
    _check_range(array, vertices, parts, "label", "vertex")
    return np.ascontiguousarray(array, dtype=np.int32), parts


def check_fixed(fixed: npt.ArrayLike, vertices: int, parts: int) -> Int32Array | None:
    """The part that each vertex must be in, −1 for any; None if all are free."""
    array = integers(fixed, "fixed")
    _check_range(array, vertices, parts, "fixed label", "vertex", lowest=-1)
    return array.astype(np.int32) if (array >= 0).any() else None


def check_shares(shares: npt.ArrayLike, parts: int, name: str = "shares") -> Float64Array | None:
    """Shares of the work, float64 [parts], of the largest; None if equal, InputError if unfit."""
    array = numbers(shares, name, parts, "parts")
    if not array.all():
        raise InputError(f"the share of part {array.argmin()} is 0; leave empty parts out")
    relative = np.maximum(array.astype(np.float64) / float(array.max()), _LEAST_SHARE)
    return None if (relative == 1).all() else relative


def check_edge_labels(labels: npt.ArrayLike, edges: int, parts: int) -> Int32Array:
    """Labels of nonzeros as a copy, int32 [nnz]."""
    array = integers(labels, "edge labels")
    _check_range(array, edges, parts, "edge label", "nonzero")
    return array.astype(np.int32)


def _check_range(
    array: npt.NDArray[Any], count: int, parts: int, label: str, one: str, lowest: int = 0
) -> None:
    several = "vertices" if one == "vertex" else f"{one}s"
    if len(array) != count:
        raise InputError(f"{len(array)} {label}s for {count} {several}; there must be one for each")
    bad = np.flatnonzero((array < lowest) | (array >= parts))
    if len(bad):
        outside = f"is outside [{lowest}, {parts})"
        raise InputError(f"{label} {array[bad[0]]} of {one} {bad[0]} {outside}")


def part_sizes(labels: npt.ArrayLike, parts: int) -> Int64Array:
    array = integers(labels, "labels")
    checked, parts = check_labels(array, len(array), parts)
    return np.bincount(checked, minlength=parts).astype(np.int64)


def permutation(labels: npt.ArrayLike) -> Int64Array:
    """Original vertex ids in order of their part, int64 [vertices]; the order inside a part stays.

    With ``order = permutation(labels)``, ``A[order][:, order]`` has contiguous block rows.

    Raises
    ------
    InputError
        If they are not integers.
    """
    return np.argsort(integers(labels, "labels"), kind="stable").astype(np.int64)


def read_labels(path: AnyPath, vertices: int, parts: int, *, lowest: int = 0) -> Int32Array:
    """Read one label a line (METIS's format), int32 [vertices].

    With a `lowest` of −1 that is hMETIS's file of fixed vertices, where −1 is a free one.

    Raises
    ------
    InputError
        Naming file and line: not an integer, outside [lowest, parts), or a wrong number of lines.
    """
    parts = check_parts(parts, vertices)
    text = _read_bytes(path)
    labels = np.empty(vertices, np.int32)
    try:
        _native.parse_labels(text, lowest, parts, labels)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return labels


def read_shares(path: AnyPath, parts: int) -> Float64Array:
    """Read the share of each part, one positive number a line; InputError names file and line."""
    shares = []
    for line, field in enumerate(_read_bytes(path).decode("latin-1").rstrip().split("\n"), 1):
        try:
            share = float(field)
        except ValueError:
            share = math.nan
        if not 0 < share < math.inf:
            raise InputError(
                f"{path}: line {line}: {shortened(repr(field), 40)} is no positive number"
            )
        shares.append(share)
    if len(shares) != parts:
        raise InputError(f"{path}: {len(shares)} shares for {parts} parts; one a line for each")
    return np.array(shares)


def _read_bytes(path: AnyPath) -> bytes:
    check_regular(path)
    with reading(Path(path), "cannot be read"):
        return Path(path).read_bytes()


def write_labels(path: AnyPath, labels: npt.ArrayLike, what: str | None = None) -> None:
    """Write one integer of 32 bits a line; the file appears whole or not at all.

    Serves labels, part sizes and permutations alike. An error calls the file `what`, by default its
    path.

    Raises
    ------
    InputError
        If they are not such integers, or the file cannot be written.
    """
    array = integers(labels, "labels")
    limits = np.iinfo(np.int32)
    if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
        raise InputError("labels must fit 32 bits")
    pieces = (array[i : i + _PIECE].astype(np.int32) for i in range(0, len(array), _PIECE))
    write_file(path, map(_native.format_labels, pieces), what)


def read_edge_labels(path: AnyPath, edges: int, parts: int) -> Int32Array:
    """Read the part of each nonzero from a .npy vector of integers; InputError names the file."""
    named = Path(path)
    check_regular(named)
    with reading(named), named.open("rb") as file, errors_of(path):
        header = read_header(file)
        if header.dtype not in _EDGE_DTYPES or len(header.shape) != 1:
            raise InputError(
                f"holds {header.dtype.str} {list(header.shape)}; edge labels are a vector of "
                "uint8, int16 or int32, little endian"
            )
        if named.stat().st_size != header.size + header.nbytes:
            raise InputError("truncated or damaged: not as long as its header says")
        return check_edge_labels(np.fromfile(file, header.dtype), edges, parts)


def write_edge_labels(
    path: AnyPath, labels: npt.ArrayLike, parts: int, what: str | None = None
) -> None:
    """Write the part of each nonzero in the narrowest dtype that holds any; errors say `what`."""
    array = integers(labels, "edge labels")
    dtype = next(dtype for dtype in _EDGE_DTYPES if parts - 1 <= np.iinfo(dtype).max)
    starts = range(0, len(array), _PIECE)
    pieces = (array[i : i + _PIECE].astype(dtype).tobytes() for i in starts)
    write_file(path, chain([header_bytes(dtype, array.shape)], pieces), what)
