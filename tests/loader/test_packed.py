"""Packed batches give the rows of their table, within the disk they may use, and leave nothing."""

import errno
import os
import shutil

import pytest
import torch

from spgnn.direct import PAGE
from spgnn.errors import InputError
from spgnn.loader import CachedRows, DiskRows, PackedRows
from spgnn.loader import packed as packed_module
from tests.loader.graphs import table, written
from tests.loader.test_cache import batches


def packed(rows, id_lists, directory, cap_bytes, *, memory_bytes=0):
    table = PackedRows(rows, directory, cap_bytes, memory_bytes=memory_bytes)
    table.pack(id_lists)
    return table


def of_blocks(nbytes, disk):
    """What is read of a disk for so many bytes from the beginning of a page on."""
    block = disk._reader.alignment
    return -(-nbytes // block) * block


@pytest.mark.parametrize("memory", [0, 40, 1000])
@pytest.mark.parametrize("cap", [0, 5000, 40_000, 10**9])
def test_rows_of_packed_batches(tmp_path, cap, memory):
    x = table(200, 33, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x, 8), 8, 200, 33, torch.float32)
    trace = batches(1, repeats=True)
    rows = packed(disk, trace[:40], tmp_path, cap, memory_bytes=memory * 132)
    assert os.listdir(tmp_path) == ["x"]
    assert rows.disk_bytes <= max(cap, PAGE)
    behind = disk.counts.record()
    for _ in range(2):
        for batch in reversed(trace):
            out = torch.empty(len(batch), 33)
            assert torch.equal(rows.gather(batch, out), x[batch])
    needed = 2 * sum(map(len, trace))
    assert rows.counts.rows_needed == needed == rows.counts.hits + rows.counts.rows_read
    assert (rows.counts.hits > 0) == (memory > 0)
    left = disk.counts.rows_read - behind["rows_read"]
    if cap == 10**9:
        assert left == 2 * sum(map(len, trace[40:]))
    elif cap == 0 and memory == 0:
        assert left == needed
    cached = CachedRows(rows, "none", 0)  # asks for rows in places
    assert torch.equal(cached.gather(trace[0]), x[trace[0]])
    assert torch.equal(cached.gather(trace[0].flip(0)), x[trace[0].flip(0)])


def test_a_batch_is_read_in_one_stretch(tmp_path):
    x = table(5000, 128, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x), 0, 5000, 128, torch.float32)
    batch = torch.arange(0, 5000, 50)
    rows = packed(disk, [batch], tmp_path, 10**9)
    rows.gather(batch)
    assert rows.counts.bytes_read == of_blocks(100 * 512, disk)
    assert rows.disk_bytes == PAGE + -(-100 * 512 // PAGE) * PAGE


def test_the_table_is_read_once_in_order_and_bytes_are_foreseen(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_module, "_PIECE", 100 * 512)
    x = table(1000, 128, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x), 0, 1000, 128, torch.float32)
    generator = torch.Generator().manual_seed(0)
    trace = [torch.randperm(1000, generator=generator)[:300] for _ in range(12)]
    rows = PackedRows(disk, tmp_path, 10**9)
    for again in (trace[:6], trace[6:], []):
        before = rows.packing.rows_read
        rows.pack(again)
        union = len(torch.cat([*again, torch.zeros(0, dtype=torch.int64)]).unique())
        assert rows.packing.rows_read - before == union
        for batch in trace:
            begun = rows.counts.bytes_read
            assert torch.equal(rows.gather(batch), x[batch])
            foreseen = rows.bytes_of(batch)
            packed_now = any(batch is one for one in again)
            assert (foreseen is not None) == packed_now
            if foreseen is not None:
                assert rows.counts.bytes_read - begun == foreseen == of_blocks(300 * 512, disk)
    assert os.listdir(tmp_path) == ["x"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    x = table(200, 33, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x), 0, 200, 33, torch.float32)
    trace = batches(1)
    write = os.pwritev

    def until_full(descriptor, buffers, offset):
        if offset > 3 * PAGE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, buffers, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", until_full)
        with pytest.raises(InputError, match="cannot be written: No space left on device"):
            packed(disk, trace, tmp_path, 10**9)
    assert os.listdir(tmp_path) == ["x"]
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage._replace(free=9000))
        with pytest.raises(
            InputError, match=r"packed batches need [0-9]+ bytes, but 9000 are free"
        ):
            packed(disk, trace, tmp_path, 10**9)
        assert packed(disk, trace, tmp_path, 9000).disk_bytes <= 9000
    with pytest.raises(InputError, match="no such directory"):
        packed(disk, trace, tmp_path / "none", 5)
    with pytest.raises(InputError, match="no row 200; it has rows 0 to 199"):
        packed(disk, [torch.tensor([200])], tmp_path, 5)
    with pytest.raises(InputError, match="cap_bytes must be an integer of at least 0"):
        packed(disk, trace, tmp_path, -1)
