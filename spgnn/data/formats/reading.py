"""What every reader shares: its errors in one place, and the record that it ends with."""

from __future__ import annotations

import os
import stat
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from spgnn.data.graph import Graph
from spgnn.errors import InputError
from spgnn.sparse import CSR

PACKED = (".gz", ".bz2", ".xz")  # suffixes of files that are unpacked while they are read


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is there but no regular file, before it is opened: a pipe has to be waited for.

    Raises
    ------
    InputError
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # who opens it says why it cannot be
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(
            f"{path}: is a pipe or a device; files are read more than once, so write it to one"
        )


@contextmanager
def reading(path: Path, what: str = "truncated or damaged") -> Iterator[None]:
    """Turn whatever a library raises in the block about the bytes of a file into an InputError.

    Readers of zip, gzip and .npy raise a dozen types for damaged bytes, undocumented ones among
    them; all mean the same. Only calls of such readers belong in the block.

    Raises
    ------
    InputError
    """
    try:
        yield
    except (InputError, MemoryError, Warning):
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        raise InputError(f"{path}: {what}: {str(error) or type(error).__name__}") from None


class GuardedFile:
    """A file whose failures to be read, however they show, are InputErrors that name it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        with reading(self._path):
            return self._file.read(size)

    def readline(self, most: int = -1) -> bytes:
        """Up to the end of the line, or `most` bytes of it; nothing at the end of the file."""
        with reading(self._path):
            return self._file.readline(most)

    def skip_mark(self) -> None:
        """Go past the mark that says that the text is UTF-8.

        Raises
        ------
        InputError
            If it says that the text is UTF-16.
        """
        with reading(self._path):
            mark = self._file.peek(len(BOM_UTF8))  # type: ignore[attr-defined]
            if mark.startswith(BOM_UTF8):
                self._file.read(len(BOM_UTF8))
        if mark.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise InputError(f"{self._path}: is text in UTF-16; save it as UTF-8")


def graph_of(path: Path, adjacency: CSR, directed: bool, **data: Any) -> Graph:
    """The record of what a file holds, with the file's name without its suffixes.

    Raises
    ------
    InputError
        What the record refuses, said of the file.
    """
    try:
        return Graph(name_in(path), adjacency, directed, **data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def name_in(path: Path) -> str:
    """A file's name without its suffixes."""
    return unpacked(path).rsplit(".", 1)[0]


def unpacked(path: Path) -> str:
    """The name of a file without the suffix that says how it is packed."""
    return path.stem if path.suffix.lower() in PACKED else path.name
