"""The bytes of tensors."""

from __future__ import annotations

import errno
import os
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.chunked.table import DiskTable, MemoryTable, as_bytes
from spgnn.direct import DirectFile, Transfers
from spgnn.errors import InputError


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bfloat16])
def test_bytes_of_one_number_of_any_stride(dtype):
    """A matrix of which one nonzero is in a part."""
    one = torch.tensor(3, dtype=dtype).expand(1)
    assert one.stride() == (0,)
    assert np.array_equal(as_bytes(one), as_bytes(torch.tensor([3], dtype=dtype)))
    assert not len(as_bytes(torch.empty(0, dtype=dtype)))


def disk_table(path, bounds, width, panel, dtype=torch.float32):
    return DiskTable(bounds, width, dtype, panel=panel, path=path, counts=Transfers())


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_table_on_a_disk_is_one_in_memory(data, tmp_path_factory):
    """Parts, panels and all columns, written and read in any order, whatever is under way."""
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    width, panel = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    bounds = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    memory = MemoryTable(bounds, width, torch.float32)
    disk = disk_table(tmp_path_factory.mktemp("t") / "table", bounds, width, panel)
    for part, rows in enumerate(lengths):
        for table in (memory, disk):
            table.write(part, torch.full((rows, width), float(part)))
    for step in range(data.draw(st.integers(0, 25))):
        part = data.draw(st.integers(0, len(lengths) - 1))
        first = data.draw(st.sampled_from(range(0, width, panel)))
        last = min(first + panel, width)
        what = data.draw(st.sampled_from(("write", "some", "panel", "read", "all")))
        values = torch.arange(lengths[part] * width).view(-1, width).float() + 1000 * step
        if what == "write":
            memory.write(part, values)
            disk.write(part, values)
        elif what == "some":
            rows = torch.arange(0, lengths[part], 2)
            memory.write_some(part, rows, values[rows])
            disk.write_some(part, rows, values[rows])
        elif what == "panel":
            memory.write_panel(part, first, values[:, first:last])
            disk.write_panel(part, first, values[:, first:last])
        elif what == "read":
            assert torch.equal(disk.read(part), memory.read(part))
        else:
            assert torch.equal(disk.panel(first, last), memory.panel(first, last))
    for part in range(len(lengths)):
        assert torch.equal(disk.read(part), memory.read(part))
    memory.release()
    disk.release()


def test_what_is_written_slowly_is_read_as_it_was_written(tmp_path, monkeypatch):
    real, begun = DirectFile.write_pages, threading.Event()

    def slowly(*arguments):
        begun.wait(timeout=60)
        real(*arguments)

    monkeypatch.setattr(DirectFile, "write_pages", slowly)
    table = disk_table(tmp_path / "table", [0, 3, 6], 4, 4)
    for part in (0, 1):
        table.write(part, torch.full((3, 4), 1.0 + part))
    begun.set()
    assert torch.equal(table.panel(0, 4)[:, 0], torch.tensor([1.0, 1, 1, 2, 2, 2]))
    table.release()


def test_a_disk_that_is_full_is_said_by_whoever_reads(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    table = disk_table(tmp_path / "table", [0, 3], 4, 4)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        table.write(0, torch.zeros(3, 4))
        with pytest.raises(InputError, match=r"table: cannot be written: No space left"):
            table.read(0)
        table.release()


def test_rows_that_are_not_written_are_zero_in_memory_that_was_used_before():
    for value in (1.0, 2.0):
        table = MemoryTable([0, 1 << 16], 16, torch.float32)
        table.write(0, torch.full((1 << 16, 16), value))
        table.release()
    table = MemoryTable([0, 1 << 16], 16, torch.float32)
    table.write_some(0, torch.tensor([5]), torch.ones(1, 16))
    assert float(table.read(0).sum()) == 16
