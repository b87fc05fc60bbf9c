"""Tables in memory and on a disk give the rows that were asked for, or say what is wrong."""

import os
import re
import signal
import warnings

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.loader import CachedRows, DiskRows, MemoryRows
from spgnn.loader.rows import Counts, StackedRows, finish_read, open_reader
from spgnn.testing import run_ranks
from tests.loader.graphs import some_ids, table, written

pytestmark = pytest.mark.usefixtures("way")  # everything by threads, and through io_uring
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "offset"), [(1, 0), (3, 128), (128, 4096), (129, 77), (1025, 1)])
def test_rows_of_a_file_are_those_of_the_table(tmp_path, dtype, width, offset, direct):
    x = table(1000, width, dtype)
    path = written(tmp_path / "x", x, offset)
    for gap in (0, 4096):
        rows = DiskRows.open(path, offset, 1000, width, dtype, direct=direct, gap=gap)
        for ids in (some_ids(1000, 300), torch.arange(1000), torch.arange(0), torch.tensor([999])):
            assert torch.equal(rows.gather(ids), x[ids])
            out = torch.empty(len(ids), width, dtype=dtype)
            assert rows.gather(ids, out) is out
            assert torch.equal(out, x[ids])
    assert torch.equal(MemoryRows(x).gather(some_ids(1000, 300)), x[some_ids(1000, 300)])


def test_an_npy_file_is_read_behind_its_header(tmp_path):
    x = table(500, 7, torch.float32)
    np.save(tmp_path / "x.npy", x.numpy())
    offset = (tmp_path / "x.npy").stat().st_size - x.numel() * 4
    rows = DiskRows.open(tmp_path / "x.npy", offset, 500, 7, torch.float32)
    ids = some_ids(500, 100)
    assert torch.equal(rows.gather(ids), x[ids])


@pytest.mark.parametrize("direct", [True, False])
def test_rows_longer_than_a_read(tmp_path, direct):
    width = 100_003  # 400 kB, more than is read at once, from an odd place on
    x = table(7, width, torch.float32)
    rows = DiskRows.open(written(tmp_path / "x", x, 13), 13, 7, width, torch.float32, direct=direct)
    ids = torch.tensor([3, 6, 0, 3])
    assert torch.equal(rows.gather(ids), x[ids])


def test_rows_are_begun_into_places_of_a_larger_table(tmp_path):
    x = table(100, 5, torch.float32)
    path = written(tmp_path / "x", x)
    ids, places = np.array([9, 2, 7]), np.array([4, 0, 1])
    expected = torch.full((6, 5), -1.0)
    expected[places] = x[ids]
    for rows in (DiskRows.open(path, 0, 100, 5, torch.float32), MemoryRows(x)):
        out = torch.full((6, 5), -1.0)
        pending = rows.begin(ids, out, places)
        pending.wait()
        pending.wait()
        assert torch.equal(out, expected)


def test_blocks_that_are_read_are_counted(tmp_path):
    x = table(1000, 128, torch.float32)  # 512 bytes a row
    path = written(tmp_path / "x", x)
    ids = torch.tensor([10, 500, 11, 13])
    rows = DiskRows.open(path, 0, 1000, 128, torch.float32, gap=0)
    block = rows._reader.alignment
    rows.gather(ids)
    touched = {i * 512 // block for i in ids.tolist()}
    expected = len(touched) * block if rows.direct else 4 * 512
    assert rows.counts == Counts(4, 4, 4 * 512, expected, 0)
    assert rows.counts.hit_rate == 0
    assert rows.counts.record()["bytes_read"] == expected
    if block == 512:  # a gap of one row is read, one of many is not
        wide = DiskRows.open(path, 0, 1000, 128, torch.float32, gap=512)
        wide.gather(ids)
        assert wide.counts.bytes_read == 5 * 512


def test_a_dropped_read_leaves_no_one_writing(tmp_path):
    x = table(20_000, 64, torch.float32)
    rows = DiskRows.open(written(tmp_path / "x", x), 0, 20_000, 64, torch.float32)
    for _ in range(20):
        rows.begin(np.arange(20_000), torch.empty(20_000, 64))  # freed at once
    assert torch.equal(rows.gather(torch.arange(20_000)), x)


def test_reading_goes_on_in_forked_ranks(tmp_path):
    x = table(1000, 16, torch.float32)
    rows = DiskRows.open(written(tmp_path / "x", x), 0, 1000, 16, torch.float32)
    rows.gather(torch.arange(1000))

    def body(rank):
        return torch.equal(rows.gather(torch.arange(rank, 1000)), x[rank:])

    assert run_ranks(body, 2) == [True, True]


@pytest.mark.parametrize("waits", [True, False])
def test_what_is_being_read_when_a_process_is_forked(tmp_path, waits):
    # The fork has none of the threads that read for its parent.
    x = table(40_000, 128, torch.float32)
    rows = DiskRows.open(written(tmp_path / "x", x), 0, 40_000, 128, torch.float32, gap=0)
    ids = np.arange(0, 40_000, 2)
    expected, out = x.numpy()[ids], torch.zeros(len(ids), 128)
    pending = [rows.begin(ids, out)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(100)  # ends it, if it hangs
        if waits:
            pending[0].wait()
        pending.clear()
        os._exit(0 if not waits or np.array_equal(out.numpy(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    pending[0].wait()
    assert np.array_equal(out.numpy(), expected)


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_that_is_cut_off(tmp_path, direct):
    x = table(1000, 100, torch.float32)
    path = written(tmp_path / "x", x)
    name = re.escape(str(path))
    with pytest.raises(InputError, match=f"{name}: 400000 bytes, but 1001 rows of 400 bytes"):
        DiskRows.open(path, 0, 1001, 100, torch.float32, direct=direct)
    rows = DiskRows.open(path, 0, 1000, 100, torch.float32, direct=direct)
    os.truncate(path, 300_001)
    assert torch.equal(rows.gather(torch.arange(750)), x[:750])
    with pytest.raises(InputError, match=f"{name}: ends at byte 300001, before byte [0-9]+ that"):
        rows.gather(torch.arange(1000))
    assert torch.equal(rows.gather(torch.arange(750)), x[:750])  # and can still be used


def test_an_error_of_the_disk_is_one_line(tmp_path):
    # What no process has mapped answers EIO, as a broken disk does.
    rows = DiskRows(("/broken/x.npy", open_reader("/proc/self/mem")), 0, (1000, 4), torch.float32)
    with pytest.raises(
        InputError, match=r"/broken/x.npy: cannot be read at byte [0-9]+: Input/out"
    ):
        rows.gather(torch.arange(0, 1000, 7))
    ticket = open_reader(tmp_path).read_rows(
        np.arange(3), np.arange(3), np.empty(12, np.uint8), 0, 4, 0
    )
    with pytest.raises(InputError, match="x: cannot be read at byte 0: Is a directory"):
        finish_read(ticket, "x")


def test_what_cannot_be_asked_for(tmp_path):
    x = table(10, 2, torch.float32)
    path = written(tmp_path / "x", x)
    disk = DiskRows.open(path, 0, 10, 2, torch.float32)
    for rows, name in ((disk, re.escape(str(path))), (MemoryRows(x), "table of 10 rows")):
        for wrong in (-1, 10):
            with pytest.raises(InputError, match=f"{name}: no row {wrong}; it has rows 0 to 9"):
                rows.gather(torch.tensor([3, wrong]))
        with pytest.raises(InputError, match="row ids must be int64"):
            rows.gather(torch.tensor([3], dtype=torch.int32))
        with pytest.raises(InputError, match=r"out must be a contiguous torch.float32 \[1, 2\]"):
            rows.gather(torch.tensor([3]), torch.empty(1, 3))
    with pytest.raises(InputError, match="no such file"):
        DiskRows.open(tmp_path / "y", 0, 1, 1, torch.float32)
    with pytest.raises(InputError, match=r"rows of torch\.int32 cannot be read; only float32"):
        DiskRows.open(path, 0, 1, 1, torch.int32)
    with pytest.raises(InputError, match="offset must be an integer of at least 0"):
        DiskRows.open(path, -1, 1, 1, torch.float32)
    with pytest.raises(InputError, match="a table of rows must be"):
        MemoryRows(torch.zeros(3))


def test_tables_one_after_another(tmp_path):
    x = table(300, 5, torch.float32)
    first = DiskRows.open(written(tmp_path / "x", x, 128), 128, 120, 5, torch.float32)
    rows = StackedRows([first, MemoryRows(x[120:120]), MemoryRows(x[120:])])
    for ids in (some_ids(300, 100), torch.arange(0), torch.arange(130, 300)):
        assert torch.equal(rows.gather(ids), x[ids])
        assert torch.equal(CachedRows(rows, "lru", 50 * 20).gather(ids), x[ids])
    assert rows.counts.rows_needed == 270
    own = some_ids(300, 100)[some_ids(300, 100) < 120]  # a cache asks for each of them once
    assert rows.counts.rows_read == first.counts.rows_read == len(own) + len(own.unique())
    assert str(rows) == f"{tmp_path / 'x'}, table of 0 rows, table of 180 rows"
    with pytest.raises(InputError, match="no row 300; it has rows 0 to 299"):
        rows.gather(torch.tensor([300]))
    with pytest.raises(InputError, match=r"one width and dtype, got torch.float32 \[·, 5\] and t"):
        StackedRows([first, MemoryRows(x[:, :3])])
    with pytest.raises(InputError, match="one width and dtype, got none"):
        StackedRows([])
