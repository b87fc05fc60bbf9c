"""Arrays in .npy files that remember what was written: made piece by piece, mapped when opened.

A record of dtype, shape and two digests goes with each: of all its bytes, and of a sample of them.
Opening an array of at most `CHECKED_WHOLE` bytes compares the first, opening a larger one the
second; so a damaged array, or one copied over another, is found without reading gigabytes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.data.formats.npy import HEADER_BYTES, header_bytes
from spgnn.data.formats.reading import check_regular, reading
from spgnn.data.meta import is_count
from spgnn.errors import InputError
from spgnn.files import digest, hasher_of_digest

Array = npt.NDArray[Any]
CHECKED_WHOLE = 1 << 26  # bytes
_PIECE = 1 << 24  # bytes that are hashed or written at once
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14
_DTYPES = ("<i8", "<i4", "<f4", "|b1", "|i1")
_MOST_DIMENSIONS = 2


@dataclass(frozen=True)
class ArrayRecord:
    """What is known of an array that was written."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    sample: str

    @classmethod
    def of(cls, name: str, entry: Any) -> ArrayRecord:
        """The record that an entry of a JSON object describes.

        Raises
        ------
        InputError
            If it describes none.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(entry, dict) or set(entry) != names:
            raise InputError(f"'{name}' must have {', '.join(sorted(names))}")
        shape = entry["shape"]
        right = isinstance(shape, list) and 1 <= len(shape) <= _MOST_DIMENSIONS
        if not right or not all(map(is_count, shape)) or entry["dtype"] not in _DTYPES:
            raise InputError(f"'{name}' must be a vector or table of {', '.join(_DTYPES)}")
        return cls(**entry | {"shape": tuple(shape)})

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class ArrayWriter:
    """A vector or table of unknown length, written row by row.

    Parameters
    ----------
    path : Path
    like : array
        Its dtype and the shape of its rows are the file's.
    """

    def __init__(self, path: Path, like: Array) -> None:
        self._path, self._dtype, self._row = path, like.dtype, like.shape[1:]
        self._file = path.open("wb")
        self._file.write(header_bytes(self._dtype, (0, *self._row)))
        self._hasher = hasher_of_digest()
        self._rows = 0

    def append(self, rows: Array) -> None:
        """Write some more rows."""
        assert rows.dtype == self._dtype
        assert rows.shape[1:] == self._row
        for piece in _pieces(rows):
            self._file.write(piece)
            self._hasher.update(piece)
        self._rows += len(rows)

    def finish(self) -> ArrayRecord:
        """Complete the file, and say what is in it."""
        shape = (self._rows, *self._row)
        self._file.seek(0)
        self._file.write(header_bytes(self._dtype, shape))
        self._file.close()
        written = _map(self._path, self._dtype, shape, writable=False)
        return ArrayRecord(self._dtype.str, shape, self._hasher.hexdigest(), _sample(written))

    def close(self) -> None:
        """Close the file, complete or not."""
        self._file.close()


def open_array(path: Path, record: ArrayRecord, *, writable: bool, check: bool = True) -> Array:
    """Map an array.

    Parameters
    ----------
    path : Path
    record : ArrayRecord
    writable : bool
        Map it privately, so that written pages never reach the file. Otherwise it is read-only.
    check : bool
        Compare a digest: of all bytes up to `CHECKED_WHOLE`, of a sample above.

    Raises
    ------
    InputError
        If it is missing, truncated, damaged or of another kind.
    """
    header = header_bytes(np.dtype(record.dtype), record.shape)
    check_regular(path)
    with reading(path, "truncated or not an array"):
        size = os.path.getsize(path)
        with path.open("rb") as file:
            same = file.read(HEADER_BYTES) == header
        if size != HEADER_BYTES + record.nbytes:
            raise ValueError(f"{size} bytes, but must have {HEADER_BYTES + record.nbytes}")
        if not same:
            raise ValueError("its header does not say what part.json says")
        array = _map(path, np.dtype(record.dtype), record.shape, writable=writable)
    if check:
        small = record.nbytes <= CHECKED_WHOLE
        if (_digest(array) != record.digest) if small else (_sample(array) != record.sample):
            raise _damaged(path)
    return array


def check_array(path: Path, record: ArrayRecord) -> None:
    """Compare all bytes of an array with its digest.

    Raises
    ------
    InputError
        If they are not those that were written.
    """
    if _digest(open_array(path, record, writable=False, check=False)) != record.digest:
        raise _damaged(path)


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, writable: bool) -> Array:
    if 0 in shape:
        return np.empty(shape, dtype)  # an empty stretch of a file cannot be mapped
    return np.asarray(np.memmap(path, dtype, "c" if writable else "r", HEADER_BYTES, shape))


def _pieces(array: Array) -> Iterator[memoryview]:
    """The bytes of an array in C order, a bounded number at a time."""
    rows = max(1, _PIECE // max(array[:1].nbytes, 1))
    for first in range(0, len(array), rows):
        yield _bytes(np.ascontiguousarray(array[first : first + rows]))


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _digest(array: Array) -> str:
    hasher = hasher_of_digest()
    for piece in _pieces(array):
        hasher.update(piece)
    return hasher.hexdigest()


def _sample(array: Array) -> str:
    """The digest of pieces that lie evenly over the array's bytes, first and last among them."""
    view = _bytes(array)
    if len(view) <= _SAMPLES * _SAMPLE_BYTES:
        return digest(view)
    last = len(view) - _SAMPLE_BYTES
    begins = (last * i // (_SAMPLES - 1) for i in range(_SAMPLES))
    return digest(*(view[begin : begin + _SAMPLE_BYTES] for begin in begins))


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: damaged: its numbers are not those that were written")
