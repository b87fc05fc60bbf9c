"""Memory of this process: what it uses, and what is kept of what is freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # of mallopt(3)
_SMALL, _LARGE, _LARGEST, _PAD, _NEVER = 1 << 17, 1 << 20, 1 << 30, 1 << 24, -1


def give_back_freed() -> None:
    """For set-up: let every freed block of 128 KiB or more return to the system at once.

    Left alone, glibc raises this limit to the largest block ever freed, up to 32 MiB, and keeps
    what building the matrix took beside what training needs: 20 MB a rank on a graph of 25 M
    nonzeros in 8 parts, a third of its data. Elsewhere than on glibc this does nothing.
    """
    with suppress(OSError, AttributeError):
        _libc().mallopt(_MMAP_THRESHOLD, _SMALL)


def begin_epochs() -> None:
    """For ranks of a job: give back what set-up freed, and from now on blocks of 1 MiB or more.

    Smaller ones stay for the next epoch, which would have to fault them in.
    """
    with suppress(OSError, AttributeError):
        libc = _libc()
        libc.malloc_trim(0)
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)


def keep_freed() -> None:
    """For one process: give back what set-up freed, and from then on keep what is freed for reuse.

    An epoch frees what the next one allocates. Taken from the system anew, each page of it costs a
    fault and is filled with zeros: half of an epoch's time on one process. The price are holes:
    with 8 ranks on ribosome-4v5a a rank's peak was 1.6 times what it needs. So jobs of many ranks,
    which share a machine's memory, do without. An older glibc refuses to raise the limit beyond
    32 MiB; there, no block is ever taken from the system by itself.
    """
    with suppress(OSError, AttributeError):
        libc = _libc()
        libc.malloc_trim(0)
        if not libc.mallopt(_MMAP_THRESHOLD, _LARGEST):
            libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)
        libc.mallopt(_TOP_PAD, _PAD)


def resident_bytes() -> int:
    """Resident memory now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most resident memory this process has had."""
    return _status("VmHWM")


def _libc() -> Any:
    return ctypes.CDLL(None)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0
