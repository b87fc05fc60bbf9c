"""Rows of a pattern on a disk are those of the pattern, kept in memory or not."""

import os
import re

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import CSR
from spgnn.errors import InputError
from spgnn.loader import DiskPattern, degrees_of
from tests.loader.graphs import some_ids, written


def pattern_of(seed=0, n=300):
    rng = np.random.default_rng(seed)
    dense = rng.random((n, n)) < rng.random(n) ** 4
    dense[5] = dense[17] = False
    dense[7] = rng.random(n) < 0.9
    return CSR.from_scipy(sp.csr_array(dense.astype(np.float32)))


def opened(tmp_path, A, dtype=torch.int32, offset=128, direct=True):
    path = written(tmp_path / "indices", A.indices.to(dtype), offset)
    return DiskPattern.open(path, offset, A.indptr, A.shape[1], dtype=dtype, direct=direct)


def rows_of(A, ids):
    stretches = [A.indices[A.indptr[i] : A.indptr[i + 1]] for i in ids.tolist()]
    lengths = torch.tensor([0, *(len(stretch) for stretch in stretches)])
    return lengths.cumsum(0), torch.cat([*stretches, A.indices[:0]])


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("policy", "share"), [(None, 0), ("lru", 0.3), ("degree", 0.3), ("lru", 2)]
)
def test_rows(tmp_path, dtype, policy, share, direct):
    A = pattern_of()
    disk = opened(tmp_path, A, dtype, offset=129, direct=direct)
    if policy is not None:
        scores = degrees_of(disk) if policy == "degree" else None
        disk = disk.cached(policy, int(share * A.nnz * dtype.itemsize), scores)
    for ids in (some_ids(300, 100), torch.arange(300), torch.arange(0), torch.tensor([5, 7, 7])):
        indptr, columns = disk.rows(ids)
        expected = rows_of(A, ids)
        assert torch.equal(indptr, expected[0])
        assert torch.equal(columns, expected[1].to(dtype))
    counts = disk.counts
    # The last block is in memory: once in each of four calls at most.
    assert 0 <= counts.rows_needed - counts.hits - counts.rows_read <= 4
    assert (counts.hits > 0) == (share > 0)
    assert torch.equal(disk.indices[3:200], A.indices[3:200].to(dtype))
    assert len(disk.indices[7:7]) == 0
    assert torch.equal(degrees_of(disk), degrees_of(A))


def test_blocks_are_what_is_read_and_what_rows_are_worth(tmp_path):
    A = pattern_of()
    disk = opened(tmp_path, A, direct=False)
    scores = torch.rand(300, dtype=torch.float64)
    worth = torch.zeros(-(-(128 + 4 * A.nnz) // 512), dtype=torch.float64)
    touched = [
        set(range((128 + 4 * int(A.indptr[i])) // 512, -(-(128 + 4 * int(A.indptr[i + 1])) // 512)))
        if A.row_lengths[i]
        else set()
        for i in range(300)
    ]
    for i, blocks in enumerate(touched):
        for block in blocks:
            worth[block] += scores[i]
    assert torch.allclose(disk.block_scores(scores), worth)
    ids = some_ids(300, 40)
    disk.rows(ids)
    needed = set().union(*(touched[i] for i in ids.tolist()))
    assert disk.counts.rows_needed == len(needed)
    assert disk.counts.bytes_needed == 512 * len(needed)
    # The last block, which is not full, is in memory.
    last = len(worth) - 1
    assert disk.counts.bytes_read == 512 * len(needed - {last})
    cached = disk.cached("degree", 10**9, scores)
    for _ in range(3):
        cached.rows(ids)
    assert cached.counts.hits == 2 * len(needed)


def test_what_is_wrong_with_a_pattern(tmp_path):
    A = pattern_of()
    disk = opened(tmp_path, A)
    path = tmp_path / "indices"
    name = re.escape(str(path))
    with pytest.raises(InputError, match=f"{name}: no row 300; it has rows 0 to 299"):
        disk.rows(torch.tensor([300]))
    with pytest.raises(InputError, match=r"scores of rows must be \[300\], got \[3\]"):
        disk.cached("degree", 5, torch.ones(3))
    with pytest.raises(InputError, match="block_bytes must be a multiple of 8, got 12"):
        DiskPattern.open(path, 128, A.indptr, 300, block_bytes=12)
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
    for wrong in (lambda: narrow.rows(torch.arange(300)), lambda: narrow.indices[:]):
        with pytest.raises(InputError, match="damaged: names column 299, but there are columns 0"):
            wrong()
    os.truncate(path, 1000)
    with pytest.raises(InputError, match=f"{name}: ends at byte 1000, before byte"):
        disk.rows(torch.arange(300))
