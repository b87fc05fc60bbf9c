"""Fetch a file once: checked against its published digest, written aside, then renamed."""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from spgnn.errors import InputError
from spgnn.files import written_aside
from spgnn.progress import Progress

PIECE = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


def fetch(url: str, target: Path, digest: str | None, progress: Progress | None = None) -> Path:
    """Download a file unless it is there already.

    Parameters
    ----------
    url : str
    target : Path
        Where it goes; directories that do not exist are made. A file that is there is trusted: it
        was checked when it was written.
    digest : str or None
        ``sha256:HEX``, or ``git:HEX``, the id git gives to a file's content. ``None`` where nobody
        has published one; then only the length is checked.
    progress : called with (file name, bytes so far, bytes in all), optional

    Raises
    ------
    InputError
        If there is no network, the file is not what it should be, or the disk is full. Nothing is
        left behind, no directory either.
    """
    if target.exists():
        return target
    with _made(target.parent), written_aside(target) as file:
        _stream(url, target, file, progress)
        file.flush()
        _verify(url, Path(file.name), digest)
    return target


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    """A directory that exists; if the block fails, those that were made for it are gone again."""
    missing = [p for p in (directory, *directory.parents) if not os.path.exists(p)]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        _remove(missing)
        raise InputError(f"{directory}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        _remove(missing)
        raise


def _remove(directories: list[Path]) -> None:
    with suppress(OSError):  # another process may have put something there
        for directory in directories:
            directory.rmdir()


def _stream(url: str, target: Path, file: BinaryIO, progress: Progress | None) -> None:
    done = expected = 0
    for piece, expected in _received(url, target):
        file.write(piece)
        done += len(piece)
        if progress is not None:
            progress(url.rsplit("/", 1)[-1], done, max(expected, done))
    if expected and done != expected:
        raise InputError(f"{url}: the connection ended after {done} of {expected} bytes; try again")


def _received(url: str, target: Path) -> Iterator[tuple[bytes, int]]:
    """The bytes piece by piece, each with the length that was announced (0: none was)."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            expected = int(response.headers.get("Content-Length") or 0)
            while piece := response.read(PIECE):
                yield piece, expected
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InputError(
            f"{url}: cannot be fetched ({reason}); without a network, put the file at {target}"
        ) from None


def _verify(url: str, path: Path, digest: str | None) -> None:
    if digest is None:
        return
    kind, _, wanted = digest.partition(":")
    if kind == "git":
        # git hashes a file's content behind a header that names its kind and length.
        hasher = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    else:
        hasher = hashlib.new(kind)
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            hasher.update(piece)
    if hasher.hexdigest() != wanted:
        raise InputError(
            f"{url}: not the published file: {kind} is {hasher.hexdigest()}, expected {wanted}"
        )
