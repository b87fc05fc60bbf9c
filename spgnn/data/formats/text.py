"""Files of numbers, read in large pieces: NumPy parses, Python only looks for the line at fault."""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from spgnn.data.download import Progress
from spgnn.errors import InputError

PIECE = 1 << 25  # bytes of text parsed at once; the arrays made of it take about ten times that
COMMENT = re.compile(rb"(?m)^[#%].*$")
SEPARATORS = bytes.maketrans(b",;\t\r", b"    ")


@dataclass(frozen=True)
class Numbers:
    """The numbers of some lines; comment lines are left out, blank lines are not.

    Parameters
    ----------
    values : int64 or float64 [sum of counts]
    counts : int64 [lines]
        Numbers on each line.
    lines : int64 [lines]
        Line numbers in the file, from 1.
    """

    values: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Head:
    """The comments a file begins with, and its first line of data with its number (0: none)."""

    comments: str
    fields: list[str]
    line: int


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file, through gzip if its name ends in .gz; failures become InputErrors."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield cast(BinaryIO, file)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: truncated or unreadable: {reason}") from None


def read_head(path: Path) -> Head:
    """Look at the beginning of a file."""
    comments: list[str] = []
    with open_bytes(path) as file:
        for number, raw in enumerate(file, start=1):
            text = raw.translate(SEPARATORS).decode("utf-8", "replace").strip()
            if raw[:1] in b"#%":
                comments.append(text)
            elif text:
                return Head("\n".join(comments), text.split(), number)
    return Head("\n".join(comments), [], 0)


def read_numbers(
    path: Path, dtype: npt.DTypeLike, skip: int = 0, progress: Progress | None = None
) -> Iterator[Numbers]:
    """Parse a file piece by piece.

    Numbers are separated by blanks, tabs, commas or semicolons; lines that begin with # or % are
    comments.

    Parameters
    ----------
    path : Path
    dtype : int64 or float64
    skip : int
        Lines at the beginning that are not read.
    progress : called with (what, bytes read, bytes of the file), optional

    Raises
    ------
    InputError
        Naming file and line of the first thing that is no number of this type.
    """
    size = path.stat().st_size if path.exists() else 0
    with open_bytes(path) as file:
        for numbers in parse_stream(file, str(path), dtype, skip):
            if progress is not None:
                # Of a gzipped file, where its compressed bytes have been read to.
                progress(f"reading {path.name}", getattr(file, "fileobj", file).tell(), size)
            yield numbers


def parse_stream(
    file: BinaryIO, name: str, dtype: npt.DTypeLike, skip: int = 0
) -> Iterator[Numbers]:
    """As `read_numbers`, from an open file that errors call ``name``."""
    for _ in range(skip):
        file.readline()
    first_line = skip + 1
    while piece := file.read(PIECE):
        piece += file.readline()
        if not piece.endswith(b"\n"):
            piece += b"\n"
        parsed = _parse(name, piece, np.dtype(dtype), first_line)
        first_line += piece.count(b"\n")
        yield parsed


def _parse(name: str, piece: bytes, dtype: np.dtype[Any], first_line: int) -> Numbers:
    original = piece
    kept = None
    if b"#" in piece or b"%" in piece:
        ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n"))
        begins = np.frombuffer(piece, np.uint8)[np.concatenate(([0], ends[:-1] + 1))]
        kept = (begins != ord("#")) & (begins != ord("%"))
        piece = COMMENT.sub(b"", piece)
    piece = piece.translate(SEPARATORS)
    counts = _numbers_per_line(np.frombuffer(piece, np.uint8))
    values = _numbers(piece, dtype) if counts.any() else np.empty(0, dtype)
    if len(values) != counts.sum():
        raise _culprit(name, original, dtype, first_line)
    lines = np.arange(first_line, first_line + len(counts))
    if kept is None:
        return Numbers(values, counts, lines)
    return Numbers(values, counts[kept], lines[kept])


def _numbers(text: bytes, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The numbers of a text up to the first thing that is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return np.fromstring(text, dtype=dtype, sep=" ")
        except ValueError:  # what NumPy announces to do in place of warning
            return np.empty(0, dtype)


def _numbers_per_line(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    inside = text > ord(" ")
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    ends = np.flatnonzero(text == ord("\n"))
    return np.diff(np.searchsorted(np.flatnonzero(begins), ends), prepend=0)


def _culprit(name: str, piece: bytes, dtype: np.dtype[Any], first_line: int) -> InputError:
    kind, what = (int, "an integer") if dtype.kind == "i" else (float, "a number")
    for number, raw in enumerate(piece.split(b"\n"), start=first_line):
        if raw[:1] in (b"#", b"%"):
            continue
        for field in raw.translate(SEPARATORS).decode("utf-8", "replace").split():
            try:
                kind(field)
            except ValueError:
                return InputError(f"{name}, line {number}: '{field[:40]}' is not {what}")
    return InputError(f"{name}, lines from {first_line}: something here is not {what}")
