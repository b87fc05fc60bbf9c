"""What every reader shares: its errors in one place, and the record that it ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from spgnn.data.graph import Graph
from spgnn.errors import InputError
from spgnn.sparse import CSR


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

    def position(self) -> int:
        """Where the file on disk has been read to: of a gzipped one, its compressed bytes."""
        position: int = getattr(self._file, "fileobj", self._file).tell()
        return position


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
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]
