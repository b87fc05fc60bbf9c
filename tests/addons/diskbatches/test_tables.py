"""Tables in memory, on a disk, packed and of neighbours give what was asked for, or say why not."""

import os
import re
import signal
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import CSR
from spgnn.addons.batches import Counts, DiskRows, MemoryRows, finish_read, open_reader
from spgnn.addons.diskbatches import DiskPattern, degrees_of
from spgnn.errors import InputError
from spgnn.testing import run_ranks
from tests.addons.batches.graphs import on_disk, some_ids, table, written

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64]
both_ways = pytest.mark.usefixtures("way")  # by threads, and through io_uring


@both_ways
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "offset"),
    # The last ones have rows longer than a read, 400 kB, from an odd place on.
    [(1000, 1, 0), (1000, 3, 128), (1000, 128, 4096), (1000, 129, 77), (7, 100_003, 13)],
)
def test_rows_of_a_file_are_those_of_the_table(tmp_path, dtype, rows, width, offset, direct):
    x = table(rows, width, dtype)
    path = written(tmp_path / "x", x, offset)
    tables = [
        DiskRows(path, offset, rows, width, dtype, direct=direct, gap=gap) for gap in (0, 4096)
    ]
    several = [some_ids(rows, 300 if rows > 7 else 4), torch.arange(rows), torch.arange(0)]
    for each in (*tables, MemoryRows(x)):
        for ids in several:
            assert torch.equal(each.gather(ids), x[ids])
            out = torch.empty(len(ids), width, dtype=dtype)
            assert each.gather(ids, out) is out
            assert torch.equal(out, x[ids])
        for found, ids in zip(each.gather_many(several), several, strict=True):
            assert torch.equal(found, x[ids])


@both_ways
def test_rows_are_begun_into_places_of_a_larger_table(tmp_path):
    x = table(100, 5, torch.float32)
    ids, places = np.array([9, 2, 7]), np.array([4, 0, 1])
    expected = torch.full((6, 5), -1.0)
    expected[places] = x[ids]
    for rows in (on_disk(tmp_path, x), MemoryRows(x)):
        out = torch.full((6, 5), -1.0)
        rows.begin(ids, out, places)()
        assert torch.equal(out, expected)


@both_ways
def test_blocks_that_are_read_are_counted(tmp_path):
    x = table(1000, 128, torch.float32)  # 512 bytes a row
    path, ids = written(tmp_path / "x", x), torch.tensor([10, 500, 11, 13])
    rows = DiskRows(path, 0, 1000, 128, torch.float32, gap=0)
    block = rows._reader.alignment
    rows.gather(ids)
    touched = {i * 512 // block for i in ids.tolist()}
    expected = len(touched) * block if rows.direct else 4 * 512
    reads = sum(number - 1 not in touched for number in touched)
    assert rows.counts == Counts(4, 4, 4 * 512, expected, reads, 0)
    assert rows.counts.hit_rate == 0
    assert rows.counts.record()["bytes_read"] == expected
    if block == 512:  # a gap of one row is read, one of many is not
        wide = DiskRows(path, 0, 1000, 128, torch.float32, gap=512)
        wide.gather(ids)
        assert wide.counts.bytes_read == 5 * 512


@both_ways
def test_a_dropped_read_leaves_no_one_writing(tmp_path):
    x = table(20_000, 64, torch.float32)
    rows = on_disk(tmp_path, x)
    for _ in range(20):
        rows.begin(np.arange(20_000), torch.empty(20_000, 64))  # freed at once
    assert torch.equal(rows.gather(torch.arange(20_000)), x)


@both_ways
@pytest.mark.parametrize("waits", [True, False])
def test_what_is_being_read_when_a_process_is_forked(tmp_path, waits):
    # The fork has none of the threads that read for its parent.
    x = table(40_000, 128, torch.float32)
    rows = DiskRows(written(tmp_path / "x", x), 0, 40_000, 128, torch.float32, gap=0)
    ids = np.arange(0, 40_000, 2)
    expected, out = x.numpy()[ids], torch.zeros(len(ids), 128)
    pending = [rows.begin(ids, out)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(100)  # ends it, if it hangs
        if waits:
            pending[0]()
        pending.clear()
        os._exit(0 if not waits or np.array_equal(out.numpy(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    pending[0]()
    assert np.array_equal(out.numpy(), expected)
    assert run_ranks(lambda rank: torch.equal(rows.gather(torch.arange(9)), x[:9]), 2) == [True] * 2


@both_ways
@pytest.mark.parametrize("direct", [True, False])
def test_a_file_that_is_cut_off(tmp_path, direct):
    x = table(1000, 100, torch.float32)
    path = written(tmp_path / "x", x)
    name = re.escape(str(path))
    with pytest.raises(InputError, match=f"{name}: 400000 bytes, but 1001 rows of 400 bytes"):
        DiskRows(path, 0, 1001, 100, torch.float32, direct=direct)
    rows = DiskRows(path, 0, 1000, 100, torch.float32, direct=direct)
    os.truncate(path, 300_001)
    with pytest.raises(InputError, match=f"{name}: ends at byte 300001, before byte [0-9]+ that"):
        rows.gather(torch.arange(1000))
    assert torch.equal(rows.gather(torch.arange(750)), x[:750])  # and can still be used


@both_ways
def test_an_error_of_the_disk_is_one_line(tmp_path):
    # What no process has mapped answers EIO, as a broken disk does.
    ticket = open_reader("/proc/self/mem").read_rows(
        np.arange(0, 1000, 7), np.arange(143), np.empty(143 * 16, np.uint8), 0, 16, 0
    )
    with pytest.raises(InputError, match=r"/x: cannot be read at byte [0-9]+: Input/output error"):
        finish_read(ticket, "/x")
    ticket = open_reader(tmp_path).read_rows(
        np.arange(3), np.arange(3), np.empty(12, np.uint8), 0, 4, 0
    )
    with pytest.raises(InputError, match="x: cannot be read at byte 0: Is a directory"):
        finish_read(ticket, "x")


def test_what_cannot_be_asked_for(tmp_path):
    x = table(10, 2, torch.float32)
    path, disk = tmp_path / "x", on_disk(tmp_path, x)
    for rows, name in ((disk, re.escape(str(path))), (MemoryRows(x), "table of 10 rows")):
        for wrong in (-1, 10):
            with pytest.raises(InputError, match=f"{name}: no row {wrong}; it has rows 0 to 9"):
                rows.gather(torch.tensor([3, wrong]))
        with pytest.raises(InputError, match="row ids must be int64"):
            rows.gather(torch.tensor([3], dtype=torch.int32))
        with pytest.raises(InputError, match=r"out must be a contiguous torch.float32 \[1, 2\]"):
            rows.gather(torch.tensor([3]), torch.empty(1, 3))
    for call, words in (
        (lambda: DiskRows(tmp_path / "y", 0, 1, 1, torch.float32), "no such file"),
        (lambda: DiskRows(path, 0, 1, 1, torch.int32), "torch.int32 cannot be read; only float32"),
        (lambda: DiskRows(path, -1, 1, 1, torch.float32), "offset must be an integer of at least"),
        (lambda: MemoryRows(torch.zeros(3)), "a table of rows must be"),
    ):
        with pytest.raises(InputError, match=words):
            call()


# Neighbours on a disk.


def neighbours(seed=0, n=300):
    rng = np.random.default_rng(seed)
    dense = rng.random((n, n)) < rng.random(n) ** 4
    dense[5] = dense[17] = False
    dense[7] = rng.random(n) < 0.9
    return CSR.from_scipy(sp.csr_array(dense.astype(np.float32)))


def pattern_of(tmp_path, A, dtype=torch.int32, offset=128, direct=True):
    path = written(tmp_path / "indices", A.indices.to(dtype), offset)
    return DiskPattern(path, offset, A.indptr, A.shape[1], dtype=dtype, direct=direct)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("policy", "share"), [(None, 0), ("lru", 0.3), ("degree", 0.3), ("lru", 2)]
)
def test_rows_of_a_pattern(tmp_path, dtype, policy, share, direct):
    A = neighbours()
    disk = pattern_of(tmp_path, A, dtype, offset=129, direct=direct)
    if policy is not None:
        scores = degrees_of(disk) if policy == "degree" else None
        disk = disk.cached(policy, int(share * A.nnz * dtype.itemsize), scores)
    for ids in (some_ids(300, 100), torch.arange(300), torch.arange(0), torch.tensor([5, 7, 7])):
        indptr, columns = disk.rows(ids)
        assert torch.equal(indptr.diff(), A.row_lengths[ids])
        stretches = [A.indices[A.indptr[i] : A.indptr[i + 1]] for i in ids.tolist()]
        assert torch.equal(columns, torch.cat([*stretches, A.indices[:0]]).to(dtype))
    counts = disk.counts
    assert counts.rows_needed == counts.hits + counts.rows_read
    assert (counts.hits > 0) == (share > 0)
    assert torch.equal(disk.indices[3:200], A.indices[3:200].to(dtype))
    assert len(disk.indices[7:7]) == 0
    assert torch.equal(degrees_of(disk), degrees_of(A))


def test_blocks_are_what_is_read_and_what_rows_are_worth(tmp_path):
    A, scores = neighbours(), torch.rand(300, dtype=torch.float64)
    disk = pattern_of(tmp_path, A, direct=False)
    full = (128 + 4 * A.nnz) // 512  # the last block, which is not full, is in memory
    worth, touched = torch.zeros(full + 1, dtype=torch.float64), []
    for i in range(300):
        first, last = (128 + 4 * int(end) for end in A.indptr[i : i + 2])
        touched.append(set(range(first // 512, -(-last // 512))) if last > first else set())
        worth[list(touched[-1])] += scores[i]
    assert torch.allclose(disk.block_scores(scores), worth[:full])
    ids = some_ids(300, 40)
    disk.rows(ids)
    needed = set().union(*(touched[i] for i in ids.tolist())) - {full}
    assert disk.counts.rows_needed == disk.counts.rows_read == len(needed)
    assert disk.counts.bytes_needed == disk.counts.bytes_read == 512 * len(needed)
    cached = disk.cached("degree", 10**9, scores)
    for _ in range(3):
        cached.rows(ids)
    assert cached.counts.hits == 2 * len(needed)


def test_what_is_wrong_with_a_pattern(tmp_path):
    A = neighbours()
    disk, path = pattern_of(tmp_path, A), tmp_path / "indices"
    name, indptr = re.escape(str(path)), A.indptr
    narrow = DiskPattern(path, 128, indptr, 250)
    for call, words in (
        (lambda: disk.rows(torch.tensor([300])), f"{name}: no row 300; it has rows 0 to 299"),
        (lambda: disk.cached("degree", 5, torch.ones(3)), r"scores of rows must be \[300\], got"),
        (lambda: DiskPattern(path, 128, indptr, 300, block_bytes=12), "a multiple of 8, got 12"),
        (lambda: DiskPattern(path, 128, indptr * 2, 300), "from byte 128 on need [0-9]+; it was c"),
        (lambda: DiskPattern(path, 128, indptr.flip(0), 300), "indptr must rise from 0"),
        (lambda: DiskPattern(path, 128, indptr, 300, dtype=torch.half), "must be int32 or int64"),
        (lambda: DiskPattern(tmp_path / "none", 128, indptr, 300), "no such file"),
        (lambda: narrow.rows(torch.arange(300)), "damaged: names column 299, of 0 to 249"),
        (lambda: narrow.indices[:], "damaged: names column 299, of 0 to 249"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    os.truncate(path, 1000)
    with pytest.raises(InputError, match=f"{name}: ends at byte 1000, before byte"):
        disk.rows(torch.arange(300))
