"""Long stretches of files, past the system's page cache where it can be, and memory for them.

What goes through the page cache takes memory that nobody asked for, and pushes out what others
have there. Direct transfers need addresses, offsets and lengths that are multiples of a page; so a
stretch is read together with what shares its first and last page, and written from a buffer that is
padded to whole pages.

Page buffers are kept for the next one of about the same size: the system hands out each page filled
with zeros, on the first touch, which takes longer than a disk takes to fill it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.recycling import Keeper

PAGE = 4096
_LARGE = 1 << 21  # bytes of a large page
_FILLED = 0.9
Bytes = npt.NDArray[np.uint8]


def padded(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def mapped(nbytes: int) -> Tensor:
    """Zeroed bytes that go back to the system as soon as nobody has them, uint8."""
    # Shared ones, as Python maps them by default, never have large pages.
    pages = mmap.mmap(-1, max(nbytes, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


_keeper = Keeper(mapped, _FILLED)


def page_buffer(nbytes: int) -> Bytes:
    """So many bytes, uninitialised, whose address is a multiple of a page."""
    return _keeper.take(padded(nbytes))[:nbytes]


def keep_pages(most: int | None) -> None:
    """Set the most bytes of pages in use and kept; ``None``, the default, keeps one piece."""
    _keeper.bound(most)


def pages_held() -> int:
    """Bytes of pages that are in use or kept."""
    return _keeper.bytes_in_use + _keeper.nbytes


_LONGEST = 1 << 26  # bytes of one transfer


@dataclass
class Transfers:
    """Bytes that were read and written, and of whole pages those moved in and out."""

    read: int = 0
    written: int = 0
    moved_in: int = 0
    moved_out: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def count(self, **nbytes: int) -> None:
        with self._lock:
            for name, more in nbytes.items():
                setattr(self, name, getattr(self, name) + more)

    def copy(self) -> Transfers:
        """The counts as they are now."""
        return self.since(Transfers())

    def since(self, before: Transfers) -> Transfers:
        """Transfers after `before` was copied."""
        names = ("read", "written", "moved_in", "moved_out")
        return Transfers(*(getattr(self, name) - getattr(before, name) for name in names))


class DirectFile:
    """A file of long stretches, disjoint ones on several threads; InputError if not opened."""

    def __init__(self, path: str | Path, counts: Transfers, *, create: bool = False) -> None:
        self.path, self.counts = Path(path), counts
        flags = os.O_RDONLY
        if create:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        self._descriptor = -1
        try:
            try:
                self._descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
            except OSError:
                self._descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise self._wrong("opened", error) from None

    def read(self, offset: int, nbytes: int, buffer: Bytes | None = None) -> Bytes:
        """A stretch, in a `page_buffer` of ``nbytes + 2 * PAGE`` if given; InputError if short."""
        first = offset // PAGE * PAGE
        last = padded(offset + nbytes)
        whole = page_buffer(last - first) if buffer is None else buffer[: last - first]
        done = 0
        while done < offset + nbytes - first:
            view = memoryview(whole)[done : done + _LONGEST]  # type: ignore[arg-type]
            try:
                got = os.preadv(self._descriptor, [view], first + done)
            except OSError as error:
                raise self._wrong("read", error) from None
            if not got:
                size = os.fstat(self._descriptor).st_size
                raise InputError(f"{self.path}: ends after {size} bytes; needs {offset + nbytes}")
            done += got
        self.counts.count(read=nbytes, moved_in=last - first)
        return whole[offset - first : offset - first + nbytes]

    def write(self, offset: int, values: npt.NDArray[Any]) -> None:
        """Write bytes at a multiple of `PAGE`, zeros to the page's end; InputError if it fails."""
        assert offset % PAGE == 0
        plain = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        staged = page_buffer(min(padded(plain.nbytes), _LONGEST))
        for begin in range(0, plain.nbytes, _LONGEST):
            piece = plain[begin : begin + _LONGEST]
            staged[: piece.nbytes] = piece
            self.write_pages(offset + begin, staged, piece.nbytes)

    def write_pages(self, offset: int, pages: Bytes, nbytes: int) -> None:
        """The same of the first bytes of a `page_buffer`, from where they are."""
        length, done = padded(nbytes), 0
        pages[nbytes:length] = 0
        while done < length:
            view = memoryview(pages)[done : min(done + _LONGEST, length)]  # type: ignore[arg-type]
            try:
                done += os.pwritev(self._descriptor, [view], offset + done)
            except OSError as error:
                raise self._wrong("written", error) from None
        self.counts.count(written=nbytes, moved_out=length)

    def close(self) -> None:
        """Close it; what was begun must be done."""
        # Its number goes first: a signal's exception may come before the next line.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _wrong(self, what: str, error: OSError) -> InputError:
        return InputError(f"{self.path}: cannot be {what}: {error.strerror or error}")


@contextmanager
def nameless_file(folder: Path, counts: Transfers) -> Iterator[DirectFile]:
    """A file to write and read that has no name after the block; InputError if it fails."""
    try:
        handle, name = tempfile.mkstemp(prefix=".nameless-", dir=folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    try:
        os.close(handle)
        file = DirectFile(name, counts, create=True)
        yield file
        file.path = folder  # in messages
    finally:
        with suppress(OSError):
            os.unlink(name)


def as_bytes(values: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous tensor of any dtype."""
    # One number may be contiguous with any stride.
    flat = values.detach().reshape(-1).as_strided((values.numel(),), (1,))
    numbers: npt.NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return numbers
