"""Headers of .npy arrays, read and written without evaluating anything."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

HEADER_BYTES = 128  # of the headers written here, whatever they say
_MAGIC = b"\x93NUMPY"
_LONGEST = 10_000  # bytes of a header; NumPy's own limit
_MOST_DIMENSIONS = 8
_ENTRY = re.compile(
    r"'(descr|fortran_order|shape)' {0,4}: {0,4}('[^']{0,40}'|True|False|\([0-9, L]{0,400}\))"
)
_DTYPE = re.compile(r"[<>|=]?(?:b1|\?|[iu][1248]|f[248])")
_SIZE = re.compile(r" ?([0-9]{1,19})L? ?")


class NotNumbersError(ValueError):
    """The array is whole, but holds texts, objects or records."""


@dataclass(frozen=True)
class NpyHeader:
    """What stands before the numbers of an array.

    Parameters
    ----------
    dtype : numpy.dtype
        Booleans, integers or floating-point numbers, of either byte order.
    shape : tuple of int
    fortran_order : bool
    size : int
        Bytes of the header itself.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    size: int

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO) -> NpyHeader:
    """Read the header that an open file begins with (NumPy's format, versions 1 to 3).

    Raises
    ------
    ValueError
        Saying what is wrong; `NotNumbersError` if nothing else is.
    """
    beginning = _exactly(file, 8)
    if beginning[:6] != _MAGIC or beginning[6] not in (1, 2, 3):
        raise ValueError("no .npy array")
    layout = "<H" if beginning[6] == 1 else "<I"
    (length,) = struct.unpack(layout, _exactly(file, struct.calcsize(layout)))
    if length > _LONGEST:
        raise ValueError(f"a header of {length} bytes")
    text = _exactly(file, length).decode("latin1")
    entries = _ENTRY.findall(text)
    fields = dict(entries)
    complete = set(fields) == {"descr", "fortran_order", "shape"} and len(entries) == 3
    if not complete or _ENTRY.sub("", text).strip(" {},\n"):
        if "'descr': [" in text:
            raise NotNumbersError("holds records, not numbers")
        raise ValueError("its header is not NumPy's")
    if fields["fortran_order"] not in ("True", "False") or fields["descr"][0] != "'":
        raise ValueError("its header is not NumPy's")
    descr = fields["descr"].strip("'")
    if not _DTYPE.fullmatch(descr):
        raise NotNumbersError(f"holds '{descr}', not numbers")
    size = 8 + struct.calcsize(layout) + length
    shape = _shape(fields["shape"])
    return NpyHeader(np.dtype(descr), shape, fields["fortran_order"] == "True", size)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.strip("()").split(",")
    if not sizes[-1].strip():
        del sizes[-1]  # (), or the comma that ends (3,)
    found = [_SIZE.fullmatch(size) for size in sizes]
    if not text.startswith("(") or len(found) > _MOST_DIMENSIONS or None in found:
        raise ValueError("its header is not NumPy's")
    return tuple(int(match[1]) for match in found if match)


def header_bytes(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """The header of an array in C order; always `HEADER_BYTES` long, so it can be written over."""
    sizes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({sizes}), }}"
    room = HEADER_BYTES - 10
    return _MAGIC + b"\x01\x00" + struct.pack("<H", room) + text.ljust(room - 1).encode() + b"\n"


def _exactly(file: BinaryIO, size: int) -> bytes:
    read = file.read(size)
    if len(read) != size:
        raise ValueError("ends within its header")
    return read
