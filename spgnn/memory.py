"""Memory and processors of this process: limits, memory in use, and memory that is reused."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spgnn.errors import InputError

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # of mallopt(3)
_SMALL, _LARGE, _LARGEST, _PAD, _NEVER = 1 << 17, 1 << 20, 1 << 30, 1 << 24, -1
_MAPPINGS = 1 << 16

_HUGE_PAGE, _COLLAPSE = 1 << 21, 25  # the latter of madvise(2), since Linux 6.1

# Keeping what is freed made a rank's peak up to 1.9 times as high (reddit-sayit on 2 ranks).
MOST_KEPT = 2
# Of a machine's memory, what its ranks may fill so. The rest is for its page cache and others.
PLENTY = 0.5

# Of both versions of control groups: where they are mounted, and which one this process is in.
_CONTROL_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def give_back_freed() -> None:
    """For set-up: freed blocks of 128 KiB or more, not of up to 32 MiB, return at once (glibc)."""
    # The others as they are by default, whatever `keep_freed` made of them.
    sizes = ((name, _SMALL) for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD, _TOP_PAD))
    _tune(*sizes, (_MMAP_MAX, _MAPPINGS))


class FreedMemory:
    """A policy for memory that an epoch frees and the next one allocates; of `ranks_here` ranks."""

    # Taken anew, it is a third of an epoch's time; reused, it has holes, up to twice the peak. One
    # process keeps it; ranks give it back in the first epoch, which shows what they need.

    def __init__(self, ranks: int, ranks_here: int) -> None:
        self._alone, self._ranks_here = ranks == 1, ranks_here
        self._is_known = self._alone

    def begin(self) -> None:
        """Set-up is over; an epoch comes next."""
        keep_freed() if self._alone else give_back_large()

    def after_epoch(self) -> None:
        """The first epoch shows how much memory there is to spare."""
        if not self._is_known:
            self._is_known = True
            if self._ranks_here * MOST_KEPT * peak_bytes() <= PLENTY * memory_limit():
                keep_freed()


def give_back_large() -> None:
    """Give back what set-up freed, and from now on blocks of 1 MiB or more."""
    give_back_holes()
    _tune((_MMAP_THRESHOLD, _LARGE))


def give_back_holes() -> None:
    """Give back memory that is free now; the policy for later stays as it was."""
    with suppress(OSError, AttributeError):
        _libc().malloc_trim(0)


def keep_freed() -> None:
    """Give back what was freed before, and from then on keep what is freed for reuse."""
    give_back_holes()
    if not _tune((_MMAP_THRESHOLD, _LARGEST)):
        _tune((_MMAP_MAX, 0))
    _tune((_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _PAD))


def _tune(*settings: tuple[int, int]) -> bool:
    """Set parameters of the C library's allocator; True if it took all of them, or has none."""
    with suppress(OSError, AttributeError):
        libc = _libc()
        return all([libc.mallopt(name, value) for name, value in settings])
    return True


@contextmanager
def freed_is_kept() -> Iterator[None]:
    """Measure as in epochs that have plenty of memory."""
    keep_freed()
    try:
        yield
    finally:
        give_back_freed()


def collapse_pages(address: int, nbytes: int) -> None:
    """Move memory that every epoch reads to huge pages, as many as fit; on Linux only."""
    begin = -(-address // _HUGE_PAGE) * _HUGE_PAGE
    length = (address + nbytes) // _HUGE_PAGE * _HUGE_PAGE - begin
    if length > 0 and sys.platform == "linux":
        with suppress(OSError, AttributeError):
            _libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), _COLLAPSE)


def memory_limit() -> int:
    """Bytes this process may ever use: of the machine, its control groups, its own limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):  # Some sandboxes do not tell.
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    for words in _group_settings("memory", "memory.max", "memory.limit_in_bytes"):
        with suppress(ValueError, IndexError):  # "max"
            limits.append(int(words[0]))
    return min(limits)


def check_memory(what: str, nbytes: int) -> None:
    """``InputError`` if at least `nbytes`, for `what`, could never fit into memory."""
    limit = memory_limit()
    if nbytes > limit:
        raise InputError(
            f"{what}: needs {nbytes / 2**30:.3g} GiB of memory at least; this process may use "
            f"{limit / 2**30:.3g}"
        )


def processors() -> int:
    """Processors this process may use: those it may run on, and its control groups' time."""
    count = os.cpu_count() or 1
    with suppress(OSError):  # Some sandboxes do not tell.
        count = len(os.sched_getaffinity(0))
    for words in _group_settings("cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        with suppress(ValueError):  # "max", or no period
            quota, period = map(int, words)
            if quota > 0 and period > 0:
                count = min(count, math.ceil(quota / period))
    return count


def resident_bytes() -> int:
    """Resident memory now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most resident memory this process has had."""
    return _status("VmHWM")


def _group_settings(controller: str, unified: str, *legacy: str) -> Iterator[list[str]]:
    """Words of a setting (version 2 or 1) of this process's control groups and those above."""
    for folder in _groups("", _CONTROL_GROUPS, _CONTROL_GROUPS / "unified"):
        with suppress(OSError):
            yield (folder / unified).read_text().split()
    names = (controller, f"{controller},{controller}acct", f"{controller}acct,{controller}")
    for folder in _groups(controller, *(_CONTROL_GROUPS / name for name in names)):
        with suppress(OSError):
            yield [word for name in legacy for word in (folder / name).read_text().split()]


def _groups(controller: str, *mounts: Path) -> Iterator[Path]:
    """Directories of this process's control group and those above it; some may not exist."""
    text = ""
    with suppress(OSError):
        text = _OWN_GROUPS.read_text(errors="surrogateescape")
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    paths = [path for _, names, path in lines if controller in names.split(",")]
    for mount in mounts:
        yield mount
        for path in paths:
            folder = mount
            for name in filter(None, path.split("/")):
                if name == "..":  # outside of this namespace
                    break
                folder /= name
                yield folder


def _libc() -> Any:
    return ctypes.CDLL(None)


def _status(field: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    # Without /proc: the most that it ever was.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
