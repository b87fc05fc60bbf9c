"""Fetch a file once: checked against its published digest, written aside, then renamed."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from spgnn.errors import InputError

PIECE = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
Progress = Callable[[str, int, int], None]


def fetch(url: str, target: Path, digest: str | None, progress: Progress | None = None) -> Path:
    """Download a file unless it is there already.

    Parameters
    ----------
    url : str
    target : Path
        Where it goes. A file that is there is trusted: it was checked when it was written.
    digest : str or None
        ``sha256:HEX``, or ``git:HEX``, the id git gives to a file's content. ``None`` where nobody
        has published one; then only the length is checked.
    progress : called with (file name, bytes so far, bytes in all), optional

    Raises
    ------
    InputError
        If there is no network, the file is not what it should be, or the disk is full. Nothing is
        left behind.
    """
    if target.exists():
        return target
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _stream(url, aside, progress)
        _verify(url, aside, digest)
        os.replace(aside, target)
    except (urllib.error.URLError, HTTPException, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise InputError(
            f"{url}: cannot be fetched ({reason}); without a network, put the file at {target}"
        ) from None
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    return target


def _stream(url: str, aside: Path, progress: Progress | None) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response, open(aside, "wb") as file:
        expected = int(response.headers.get("Content-Length") or 0)
        done = 0
        while piece := response.read(PIECE):
            file.write(piece)
            done += len(piece)
            if progress is not None:
                progress(url.rsplit("/", 1)[-1], done, max(expected, done))
    if expected and done != expected:
        raise InputError(f"{url}: the connection ended after {done} of {expected} bytes; try again")


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
