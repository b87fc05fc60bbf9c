"""Tables in memory and on a disk, and the memory that they free."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.addons.outofcore import tables
from spgnn.addons.outofcore.tables import DiskTable, FreedPages, MappedRows, Table
from spgnn.direct import PAGE, DirectFile, Transfers, as_bytes, keep_pages, page_buffer, pages_held
from spgnn.errors import InputError


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bfloat16])
def test_bytes_of_one_number_of_any_stride(dtype):
    """A matrix of which one nonzero is in a chunk."""
    one = torch.tensor(3, dtype=dtype).expand(1)
    assert one.stride() == (0,)
    assert np.array_equal(as_bytes(one), as_bytes(torch.tensor([3], dtype=dtype)))
    assert not len(as_bytes(torch.empty(0, dtype=dtype)))


def disk_table(path, bounds, width, panel, dtype=torch.float32):
    return DiskTable(bounds, width, dtype, panel=panel, path=path, counts=Transfers())


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_table_on_a_disk_is_one_in_memory(data, tmp_path_factory):
    """Chunks, panels and all columns, written and read in any order, whatever is under way."""
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    width, panel = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    bounds = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    memory = Table(bounds, width, torch.float32)
    disk = disk_table(tmp_path_factory.mktemp("t") / "table", bounds, width, panel)
    for part, rows in enumerate(lengths):
        for table in (memory, disk):
            table.write(part, torch.full((rows, width), float(part)))
    for step in range(data.draw(st.integers(0, 25))):
        part = data.draw(st.integers(0, len(lengths) - 1))
        first = data.draw(st.sampled_from(range(0, width, panel)))
        last = min(first + panel, width)
        values = torch.arange(lengths[part] * width).view(-1, width).float() + 1000 * step
        rows = torch.arange(0, lengths[part], 2)
        actions = {
            "write": (part, values),
            "write_some": (part, rows, values[rows]),
            "write_panel": (part, first, values[:, first:last]),
            "read": (part,),
            "panel": (first, last),
        }
        name = data.draw(st.sampled_from(tuple(actions)))
        both = [getattr(table, name)(*actions[name]) for table in (memory, disk)]
        assert both[0] is both[1] is None or torch.equal(*both)
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


def test_rows_that_are_not_written_are_zero_in_memory_that_was_used_before():
    for value in (1.0, 2.0):
        table = Table([0, 1 << 16], 16, torch.float32)
        table.write(0, torch.full((1 << 16, 16), value))
        table.release()
    table = Table([0, 1 << 16], 16, torch.float32)
    table.write_some(0, torch.tensor([5]), torch.ones(1, 16))
    assert float(table.read(0).sum()) == 16


def in_files():
    """Bytes of files, of the disk or of memory, that this process has mapped and touched."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return sum(1024 * int(status[name].split()[0]) for name in ("RssFile", "RssShmem"))


def test_rows_in_a_file_take_no_memory(tmp_path, monkeypatch):
    before = in_files()
    mapped = MappedRows(tmp_path / "outputs", (1 << 16, 128), torch.float32)
    rows = torch.rand(1 << 16, 128)
    mapped.rows[:] = rows
    assert in_files() - before > rows.nbytes // 2
    mapped.give_back()
    assert in_files() - before < rows.nbytes // 4
    assert torch.equal(mapped.rows, rows)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # What finds no space when it is touched would end the process by a signal.
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"more: cannot be written: No space left"):
        MappedRows(tmp_path / "more", (3, 4), torch.float32)


@pytest.mark.parametrize(
    ("resident", "pages", "gives"),
    [
        (None, 0, False),
        (1000, 0, False),  # 700 + 200 + 100
        (999, 0, True),
        (999, 1, False),  # a page that is kept is among those that are resident
    ],
)
def test_holes_are_given_back_where_the_next_pass_may_not_fit(monkeypatch, resident, pages, gives):
    given_back = []
    monkeypatch.setattr(tables, "resident_bytes", lambda: 700)
    monkeypatch.setattr(tables, "pages_held", lambda: pages)
    monkeypatch.setattr(tables, "give_back_holes", lambda: given_back.append(True))
    FreedPages(pages=200, chunk=100, resident=resident).make_room()
    assert bool(given_back) == gives


def test_pages_are_kept_up_to_their_share():
    keep_pages(None)
    used = pages_held()
    FreedPages(pages=used + 64 * PAGE, chunk=0, resident=None).keep()
    buffers = [page_buffer(16 * PAGE) for _ in range(8)]
    assert pages_held() >= used + 128 * PAGE
    del buffers
    assert pages_held() <= used + 64 * PAGE
    keep_pages(None)
    assert pages_held() <= used + 16 * PAGE
