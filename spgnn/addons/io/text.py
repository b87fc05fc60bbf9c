"""Text of numbers, parsed strictly, piece by piece."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from spgnn._native import parse_lines
from spgnn.errors import InputError, shortened
from spgnn.files import PACKED, check_regular, check_unpacked, reading
from spgnn.memory import check_memory, memory_limit
from spgnn.progress import Progress

PIECE = 1 << 25  # bytes of text parsed at once; the arrays made of it take up to eight times that
_LONGEST_HEAD = 1 << 20  # bytes of a line at a file's beginning, and of the comments there
_OPEN: dict[str, Callable[..., Any]] = dict(
    zip(PACKED, (gzip.open, bz2.open, lzma.open), strict=True)
)
# Far larger text than its file is refused, unless it is small: it takes ten times its size.
_MOST_TEXT, _SMALL_TEXT = 100, 1 << 23  # times the size of the file; bytes
_PARSED = 32  # times a line that is parsed in memory
_SHOWN = 40
_LONGEST_COUNT = 18  # digits: fits int64
_FAULTS = {
    "spelling": "has a zero or a sign before it: ids are numbers, and 007 would be 7",
    "missing": "follows an empty field",
    "large": "is not an integer of 64 bits",
    "number": "is not a number",
    "range": "is too large or too small for a floating-point number",
}


@dataclass(frozen=True)
class Grammar:
    """The fields of a line: ``i`` an integer, ``d`` an id, ``f`` a real number."""

    head: str  # kinds of the first fields
    cycle: str = ""  # kinds that repeat up to the end of the line
    row: str = ""  # what a line is, for the message that one has the wrong number of fields
    integer: str = "is not an integer"  # what is said of another field in its place
    separators: str = " \t\r,;"  # with a double quote among them, one may stand around a field
    comments: str = "#%"  # lines that begin with one of these are skipped; a slash is doubled
    blank_rows: bool = False  # whether a line without fields is a row, or nothing

    def is_comment(self, line: bytes) -> bool:
        first = line.lstrip(self.separators.encode())[:2].decode("latin1")
        return first[:1] != "" and first[0] in self.comments and (first[0] != "/" or first == "//")


class NoNumbers(InputError):
    """A line that has other fields than its grammar."""


class Numbers(NamedTuple):
    """The numbers of some rows, and of each row its number of fields and of its line."""

    integers: npt.NDArray[np.int64]
    reals: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]


class Head(NamedTuple):
    """The comments a file begins with, and its first line of data with its number (0: none)."""

    comments: str
    text: str
    fields: list[str]
    line: int


class _Unpacked(io.RawIOBase):
    """The content of a packed file; far more than the file's size is refused."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file, self._path = file, path
        self._left = max(_MOST_TEXT * size, _SMALL_TEXT)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._left -= count
        if self._left < 0:
            raise InputError(
                f"{self._path}: unpacks to more than {_MOST_TEXT} times its size; if that is "
                "right, unpack it first"
            )
        return count


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a text file, unpacked as its name says, behind the mark of UTF-8 if there is one.

    With it comes the file on the disk.
    """
    check_regular(path)
    with reading(path):
        packed = path.open("rb")
    with packed:
        unpack = _OPEN.get(path.suffix.lower())
        with reading(path):
            file = packed
            if unpack is not None:
                content = _Unpacked(unpack(packed), path, os.fstat(packed.fileno()).st_size)
                file = io.BufferedReader(content, 1 << 17)
            mark = file.peek(len(BOM_UTF8))
            if mark.startswith(BOM_UTF8):
                file.read(len(BOM_UTF8))
        if mark.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise InputError(f"{path}: is text in UTF-16; save it as UTF-8")
        yield file, packed


def read_head(path: Path, grammar: Grammar, skip: int = 0) -> Head:
    """Look at the beginning of a file, after `skip` lines."""
    comments: list[str] = []
    room = _LONGEST_HEAD
    separators = str.maketrans(dict.fromkeys(grammar.separators, " "))
    with open_bytes(path) as (file, _), reading(path):
        lines = iter(lambda: file.readline(_LONGEST_HEAD), b"")
        for number, raw in enumerate(lines, start=1):
            if number <= skip:
                continue
            text = raw.decode("utf-8", "replace").strip()
            if "\r" in text:
                raise InputError(
                    f"{path}, line {number}: lines end with CR alone; write LF or CRLF"
                )
            fields = text.translate(separators).split()
            if grammar.is_comment(raw):
                room -= len(text)
                if room > 0:
                    comments.append(text)
            elif fields:
                return Head("\n".join(comments), text, fields, number)
    return Head("\n".join(comments), "", [], 0)


def read_numbers(
    path: Path, grammar: Grammar, skip: int = 0, progress: Progress | None = None
) -> Iterator[Numbers]:
    """Parse a file piece by piece."""
    with open_bytes(path) as (file, packed):
        size = os.fstat(packed.fileno()).st_size
        for numbers in parse_stream(file, path, grammar, skip):
            if progress is not None:
                progress(f"reading {path.name}", packed.tell(), size)
            yield numbers


def parse_stream(file: BinaryIO, path: Path, grammar: Grammar, skip: int = 0) -> Iterator[Numbers]:
    """As `read_numbers`, from an open file that errors call ``path``."""
    with reading(path):
        for _ in range(skip):
            file.readline()
    first_line = skip + 1
    longest = max(memory_limit() // _PARSED, PIECE)
    while True:
        with reading(path):
            piece = file.read(PIECE)
            end = file.readline(longest)
        if not piece:
            return
        if len(end) == longest and end[-1:] != b"\n":
            raise InputError(f"{path}: has a line of more than {longest} bytes")
        piece += end
        integers, reals, counts, lines, (fault, line, begin, stop, fields) = parse_lines(
            piece,
            first_line,
            grammar.head,
            grammar.cycle,
            grammar.separators,
            grammar.comments,
            grammar.blank_rows,
        )
        if fault == "count":
            raise NoNumbers(f"{path}, line {line}: {fields} columns; {grammar.row}")
        if fault:
            shown = shortened(piece[begin:stop].decode("utf-8", "replace"), _SHOWN)
            rule = grammar.integer if fault == "integer" else _FAULTS[fault]
            raise NoNumbers(f"{path}, line {line}: '{shown}' {rule}")
        yield Numbers(integers, reals, counts, lines)
        first_line += piece.count(b"\n")


def refuse_first(
    path: Path, good: Any, lines: npt.NDArray[np.int64], values: npt.NDArray[Any], rule: str
) -> None:
    """Refuse the first of some values, one a row, that is not good."""
    if not good.all():
        at = int(np.argmin(good))
        value = values[at]
        shown = f"{value:g}" if values.dtype.kind == "f" else str(value)
        raise InputError(f"{path}, line {lines[at]}: {shown} is not {rule}")


def count(path: Path, line: int, text: str, what: str) -> int:
    """A number of things, as headers of files state it."""
    if text.isascii() and text.isdecimal() and len(text.lstrip("0")) <= _LONGEST_COUNT:
        return int(text)
    shown = shortened(text, _SHOWN)
    raise InputError(f"{path}, line {line}: '{shown}' is not a number of {what}")


def check_vertices(path: Path, vertices: int) -> None:
    """Refuse a stated number of vertices whose row offsets alone are far too large."""
    check_memory(f"{path}: {vertices} vertices", 16 * vertices)
    if os.path.isfile(path):
        remedy = "write it by scipy.sparse.save_npz"
        check_unpacked(f"{path}: {vertices} vertices", 16 * vertices, os.path.getsize(path), remedy)
