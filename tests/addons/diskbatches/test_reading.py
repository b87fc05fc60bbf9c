"""io_uring and threads read the same; where the kernel refuses io_uring, threads take over."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn._native import ring_refusal
from spgnn.addons.batches import DiskRows
from tests.comm.jobs import Forked

needs_ring = pytest.mark.skipif(bool(ring_refusal()), reason=ring_refusal() or "-")
SETUP, ENTER = 425, 426  # the system calls of io_uring, on every machine but an Alpha
SECCOMP = {"x86_64": 317, "aarch64": 277}.get(os.uname().machine)
ROWS, WIDTH = 3000, 33


def rings() -> int:
    """Of this process."""
    links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("io_uring" in str(link) for link in links)


def refuse(*calls: int) -> None:
    """From now on these system calls of all threads of this process answer EPERM."""
    load, jump, leave = 0x20, 0x15, 0x06
    code = [(load, 0, 0, 0)]
    code += [(jump, len(calls) - i, 0, call) for i, call in enumerate(calls)]
    code += [(leave, 0, 0, 0x7FFF0000), (leave, 0, 0, 0x00050000 | errno.EPERM)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    given = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    assert libc.syscall(SECCOMP, 1, 1, given) == 0, os.strerror(ctypes.get_errno())


def table(directory: Path) -> tuple[Path, torch.Tensor]:
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    path = directory / "x"
    path.write_bytes(x.numpy().tobytes())
    return path, x


def opened(path: Path, depth: int = 32, *, direct: bool = True) -> DiskRows:
    return DiskRows(path, 0, ROWS, WIDTH, torch.float32, gap=0, depth=depth, direct=direct)


def reads_directly(path: Path) -> bool:
    """Whether the file system that it lies on can pass its cache by."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        return os.preadv(descriptor, [mmap.mmap(-1, 4096)], 0) > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)


def gathers(rows: DiskRows, x: torch.Tensor) -> bool:
    ids = torch.randperm(ROWS)
    return torch.equal(rows.gather(ids), x[ids])


def in_a_fork(body, directory: Path) -> None:
    """It has neither threads nor rings of its parent."""
    ended = Forked(body, directory).wait()
    assert ended.status == 0, ended


@needs_ring
@pytest.mark.parametrize(
    ("direct", "asked", "number"),
    [
        (True, "0", 0),
        (True, "1", 1),
        (True, None, 1),
        (False, "0", 0),
        (False, "1", 1),
        (False, None, 0),  # the page cache is copied from by several threads
    ],
)
def test_who_reads(direct, asked, number, tmp_path, monkeypatch):
    path, x = table(tmp_path)
    if direct and not reads_directly(path):
        pytest.skip("the file system reads through its cache only")
    monkeypatch.delenv("SPGNN_IO_URING", raising=False)
    if asked is not None:
        monkeypatch.setenv("SPGNN_IO_URING", asked)

    def body() -> int:
        before = rings()
        rows = opened(path, direct=direct)
        assert rows.direct == direct
        assert gathers(rows, x)
        assert rings() - before == number
        return 0

    in_a_fork(body, tmp_path)


@needs_ring
@pytest.mark.skipif(SECCOMP is None, reason="the number of seccomp is not known here")
def test_a_kernel_that_refuses(tmp_path):
    path, x = table(tmp_path)

    def body() -> int:
        before = rings()
        refuse(SETUP)
        assert ring_refusal() == "the kernel refuses io_uring: Operation not permitted"
        assert gathers(opened(path), x)
        assert rings() == before
        return 0

    in_a_fork(body, tmp_path)


@needs_ring
@pytest.mark.skipif(SECCOMP is None, reason="the number of seccomp is not known here")
@pytest.mark.parametrize("calls", [(SETUP,), (ENTER,), (SETUP, ENTER)])
def test_a_kernel_that_comes_to_refuse(calls, tmp_path):
    path, x = table(tmp_path)

    def body() -> int:
        rows = opened(path)
        assert gathers(rows, x)
        pending, out = [], [torch.zeros(ROWS, WIDTH) for _ in range(20)]
        for number, to in enumerate(out):
            pending.append(rows.begin(np.arange(ROWS), to))
            if number == 10:
                refuse(*calls)
        for one in pending:
            one()
        assert all(torch.equal(to, x) for to in out)
        assert gathers(opened(path, depth=300), x)  # a deeper queue needs another ring
        return 0

    in_a_fork(body, tmp_path)
