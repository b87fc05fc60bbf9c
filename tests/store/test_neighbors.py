"""Rows of a pattern on a disk are those of the pattern, kept in memory or not."""

import os

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.store import DiskPattern, uses

from .test_rows import some_ids, written
from .test_visits import csr


def pattern_of(seed=0, n=300):
    rng = np.random.default_rng(seed)
    dense = rng.random((n, n)) < rng.random(n) ** 4
    dense[5] = dense[17] = False
    dense[7] = rng.random(n) < 0.9
    return csr(dense)


def opened(tmp_path, A, dtype=torch.int32, offset=128, direct=True):
    path = written(tmp_path / "indices", A.indices.to(dtype), offset)
    return DiskPattern.open(path, offset, A.indptr, A.shape[1], dtype=dtype, direct=direct)


def rows_of(A, ids):
    stretches = [A.indices[A.indptr[i] : A.indptr[i + 1]] for i in ids.tolist()]
    lengths = torch.tensor([0, *(len(stretch) for stretch in stretches)])
    return lengths.cumsum(0), torch.cat([*stretches, A.indices[:0]])


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("share", [0, 0.3, 2])
def test_rows_and_single_neighbors(tmp_path, dtype, share, direct):
    A = pattern_of()
    disk = opened(tmp_path, A, dtype, offset=129, direct=direct)
    capacity = int(share * A.nnz * dtype.itemsize)
    disk.keep(uses(A), capacity)
    before = disk.counts.record()
    for ids in (some_ids(300, 100), torch.arange(300), torch.arange(0), torch.tensor([5, 7, 7])):
        indptr, columns = disk.rows(ids)
        expected = rows_of(A, ids)
        assert torch.equal(indptr, expected[0])
        assert torch.equal(columns, expected[1].to(dtype))
        some = ids[A.row_lengths[ids] > 0]
        numbers = some_ids(10**6, len(some)) % A.row_lengths[some]
        found = disk.neighbors(some, numbers)
        assert torch.equal(found, A.indices[A.indptr[some] + numbers].to(dtype))
    counts = disk.counts
    asked = counts.rows_needed - before["rows_needed"]
    assert asked == counts.hits + counts.rows_read - before["rows_read"]
    assert (counts.hits > 0) == (share > 0)
    assert (counts.bytes_read > before["bytes_read"]) == (share < 2)


def test_rows_of_most_uses_a_byte_are_kept(tmp_path):
    A = pattern_of()
    disk = opened(tmp_path, A)
    capacity = A.nnz
    disk.keep(uses(A), capacity)
    worth = uses(A) / A.row_lengths.clamp(min=1)
    left, kept = capacity, set()
    for row in torch.argsort(-worth, stable=True).tolist():
        left -= 4 * int(A.row_lengths[row])
        if left < 0:
            break
        if A.row_lengths[row]:
            kept.add(row)
    for row in range(300):
        had = disk.counts.hits
        disk.rows(torch.tensor([row]))
        assert disk.counts.hits - had == (row in kept)


def test_what_is_wrong_with_a_pattern(tmp_path):
    A = pattern_of()
    disk = opened(tmp_path, A)
    path = tmp_path / "indices"
    with pytest.raises(InputError, match=f"{path}: no row 300; it has rows 0 to 299"):
        disk.rows(torch.tensor([300]))
    with pytest.raises(InputError, match=f"{path}: row 5 has no entry 0"):
        disk.neighbors(torch.tensor([7, 5]), torch.tensor([0, 0]))
    with pytest.raises(InputError, match=r"uses must be \[300\], got \[3\]"):
        disk.keep(torch.ones(3), 5)
    with pytest.raises(
        InputError, match=r"column numbers from byte 128 on need [0-9]+; it was cut"
    ):
        DiskPattern.open(path, 128, A.indptr * 2, 300)
    with pytest.raises(InputError, match="indptr must rise from 0"):
        DiskPattern.open(path, 128, A.indptr.flip(0), 300)
    with pytest.raises(InputError, match=r"must be int32 or int64, not torch.float32"):
        DiskPattern.open(path, 128, A.indptr, 300, dtype=torch.float32)
    with pytest.raises(InputError, match="no such file"):
        DiskPattern.open(tmp_path / "none", 128, A.indptr, 300)
    narrow = DiskPattern.open(path, 128, A.indptr, 250)
    for wrong in (lambda: narrow.rows(torch.arange(300)), lambda: narrow.keep(uses(A), 10**6)):
        with pytest.raises(InputError, match="damaged: names column 299, but there are columns 0"):
            wrong()
    os.truncate(path, 1000)
    with pytest.raises(InputError, match=f"{path}: ends at byte 1000, before byte"):
        disk.rows(torch.arange(300))
