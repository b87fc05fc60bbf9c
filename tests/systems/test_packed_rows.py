"""Batches whose rows are packed give what was asked for, by long reads, or say why not."""

import errno
import os
import shutil

import pytest
import torch
from systems import packed_rows
from systems.packed_rows import PackedRows

import spgnn
from spgnn.addons.batches import DiskRows
from spgnn.addons.diskbatches import CachedRows
from spgnn.direct import PAGE
from spgnn.errors import InputError
from tests.addons.batches.graphs import batches, directed, on_disk, table


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
    disk, trace = on_disk(tmp_path, x, 8), batches(1, repeats=True)
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
    assert torch.equal(cached.gather(trace[0].flip(0)), x[trace[0].flip(0)])


def test_the_table_is_read_once_in_order_and_a_batch_in_one_stretch(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_rows, "_PIECE", 100 * 512)
    x = table(1000, 128, torch.float32)
    disk, generator = on_disk(tmp_path, x), torch.Generator().manual_seed(0)
    trace = [torch.randperm(1000, generator=generator)[:300] for _ in range(12)]
    rows = PackedRows(disk, tmp_path, 10**9)
    for chosen in (trace[:6], trace[6:], []):
        before = rows.packing.rows_read
        rows.pack(chosen)
        union = len(torch.cat([*chosen, torch.zeros(0, dtype=torch.int64)]).unique())
        assert rows.packing.rows_read - before == union
        assert rows.disk_bytes == PAGE + len(chosen) * -(-300 * 512 // PAGE) * PAGE
        for found, batch in zip(rows.gather_many(trace), trace, strict=True):
            assert torch.equal(found, x[batch])
        for batch in chosen:
            before = rows.counts.bytes_read
            rows.gather(batch)
            assert rows.counts.bytes_read - before == of_blocks(300 * 512, disk)
    assert os.listdir(tmp_path) == ["x"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    x = table(200, 33, torch.float32)
    disk, trace, write = on_disk(tmp_path, x), batches(1), os.pwritev

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
    for ids, directory, cap, words in (
        (trace, tmp_path / "none", 5, "no such directory"),
        ([torch.tensor([200])], tmp_path, 5, "no row 200; it has rows 0 to 199"),
        (trace, tmp_path, -1, "cap_bytes must be an integer of at least 0"),
    ):
        with pytest.raises(InputError, match=words):
            packed(disk, ids, directory, cap)


def test_epochs_are_packed_and_read_as_foreseen(tmp_path):
    x = torch.randn(60, 128)
    (tmp_path / "x").write_bytes(x.numpy().tobytes())
    disk = DiskRows(tmp_path / "x", 0, 60, 128, torch.float32)
    table = PackedRows(disk, tmp_path, 10**9, epochs=2)
    loader = spgnn.NeighborLoader((directed(), x), [3, 2], batch_size=7, shuffle=True, store=table)
    for epoch in range(4):
        batches, before = iter(loader), table.counts.bytes_read
        block = disk._reader.alignment
        foreseen = [-(-len(ids) * 512 // block) * block for ids in loader.trace(epoch)]
        for batch in batches:
            assert torch.equal(batch.x, x[batch.n_id])
        assert table.counts.bytes_read - before == sum(foreseen)
        assert table.packing.bytes_read == (1 + epoch // 2) * x.nbytes
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
