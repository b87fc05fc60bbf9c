"""A cache gives the rows of the table behind it, whatever it keeps, and counts what it reads."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.store import POLICIES, CachedRows, DiskRows, MemoryRows, Policy, hits, optimal_hits

from .test_policy import skewed_trace
from .test_rows import table, written


def batches(seed, repeats=False):
    trace = [torch.from_numpy(batch) for batch in skewed_trace(seed)]
    if repeats:
        trace = [torch.cat((batch, batch[:5], batch[2:9])) for batch in trace]
    return [*trace[:20], torch.arange(0), *trace[20:]]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("slots", [0, 1, 50, 500])
def test_every_policy_gives_the_rows_and_reads_what_it_says(tmp_path, name, slots):
    x = table(200, 7, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x, 128), 128, 200, 7, torch.float32)
    policy = Policy(name, torch.arange(200).flip(0))
    trace = batches(1)
    for ahead in (0, 1, 4, 61):
        for behind in (disk, MemoryRows(x)):
            cache = CachedRows(behind, policy, slots * x[0].nbytes + 3)
            before = behind.counts.record()
            found = []
            for now, batch in enumerate(trace):
                if ahead and now % ahead == 0:
                    cache.prefetch(trace[now : now + ahead])
                had = cache.counts.hits
                out = torch.empty(len(batch), 7) if now % 3 == 0 else None
                rows = cache.gather(batch, out)
                assert torch.equal(rows, x[batch])
                assert out is None or rows is out
                found.append(cache.counts.hits - had)
            expected = hits(policy, trace, min(slots, 200), ahead or 1)
            assert found == expected
            counts, needed = cache.counts, sum(map(len, trace))
            assert (counts.rows_needed, counts.bytes_needed) == (needed, 28 * needed)
            read = needed - sum(expected) if behind is disk else 0
            assert counts.rows_read - before["rows_read"] == read


def test_a_superbatch_may_be_announced_before_the_last_one_is_used_up(tmp_path):
    x = table(200, 3, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x), 0, 200, 3, torch.float32)
    cache = CachedRows(disk, "belady", 50 * 12)
    trace = batches(3)
    cache.prefetch(trace[:10])
    for now, batch in enumerate(trace):
        if now % 10 == 7:
            cache.prefetch(trace[now + 3 : now + 13])
        assert torch.equal(cache.gather(batch), x[batch])
    # More is known than with one superbatch after another.
    assert cache.counts.hits >= sum(hits(Policy("belady"), trace, 50, 10))


@pytest.mark.parametrize("name", ["belady", "lru", "none"])
def test_rows_that_repeat_are_read_once(tmp_path, name):
    x = table(200, 3, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x), 0, 200, 3, torch.float32)
    cache = CachedRows(disk, name, 50 * 12)
    trace = batches(3, repeats=True)
    cache.prefetch(trace[:30])
    for batch in trace:
        assert torch.equal(cache.gather(batch), x[batch])
        out = torch.empty(len(batch), 3)
    expected = sum(hits(Policy(name), [batch.unique() for batch in trace], 50, 1))
    distinct = sum(len(batch.unique()) for batch in trace)
    if name != "belady":
        assert cache.counts.rows_read == distinct - expected
    assert cache.counts.hits == cache.counts.rows_needed - cache.counts.rows_read
    again = torch.tensor([5, 5, 9])
    assert torch.equal(cache.gather(again, out[:3]), x[again])


def test_a_cache_knows_the_bound():
    x = table(200, 3, torch.float32)
    cache = CachedRows(MemoryRows(x), "lru", 50 * 12, bound=True)
    trace = batches(3, repeats=True)
    for batch in trace:
        cache.gather(batch)
    assert cache.optimum.hits == optimal_hits([batch.unique() for batch in trace], 50)
    assert CachedRows(MemoryRows(x), "lru", 50 * 12).optimum is None


def test_caches_before_caches(tmp_path):
    x = table(200, 3, torch.bfloat16)
    disk = DiskRows.open(written(tmp_path / "x", x), 0, 200, 3, torch.bfloat16)
    below = CachedRows(disk, "lru", 100 * 6)
    above = CachedRows(below, Policy("degree", torch.arange(200)), 20 * 6)
    for batch in batches(4, repeats=True):
        assert torch.equal(above.gather(batch), x[batch])
    assert above.counts.rows_read == disk.counts.rows_read < below.counts.rows_needed


def test_what_was_announced_must_be_asked_for_or_called_off(tmp_path):
    x = table(200, 3, torch.float32)
    disk = DiskRows.open(written(tmp_path / "x", x), 0, 200, 3, torch.float32)
    cache = CachedRows(disk, "belady", 50 * 12)
    trace = batches(5)
    cache.prefetch(trace[:8])
    with pytest.raises(InputError, match="30 rows are asked for, but others were announced, 30 of"):
        cache.gather(trace[1])
    assert torch.equal(cache.gather(trace[0]), x[trace[0]])
    cache.forget()
    for batch in trace[9:]:
        assert torch.equal(cache.gather(batch), x[batch])
    with pytest.raises(InputError, match="no row 200; it has rows 0 to 199"):
        cache.prefetch([trace[0], torch.tensor([200])])
    with pytest.raises(InputError, match="capacity of a cache, in bytes, must be an integer"):
        CachedRows(disk, "lru", -1)
    assert torch.equal(cache.gather(trace[1]), x[trace[1]])


def test_after_a_read_error_the_cache_can_be_used(tmp_path):
    x = table(200, 300, torch.float32)
    path = written(tmp_path / "x", x)
    cache = CachedRows(DiskRows.open(path, 0, 200, 300, torch.float32), "lru", 90 * 1200)
    assert torch.equal(cache.gather(torch.arange(80)), x[:80])
    os.truncate(path, 100 * 1200)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: ends at byte 120000"):
        cache.gather(torch.arange(60, 180))
    path.unlink()
    # Nothing of what did not come is taken for a hit.
    had = cache.counts.hits
    with pytest.raises(InputError, match="cut off"):
        cache.gather(torch.tensor([150]))
    assert torch.equal(cache.gather(torch.arange(70)), x[:70])
    assert cache.counts.hits == had


def test_threads_share_a_cache(tmp_path):
    x = table(200, 3, torch.float32)
    cache = CachedRows(
        DiskRows.open(written(tmp_path / "x", x), 0, 200, 3, torch.float32), "sieve", 50 * 12
    )
    with ThreadPoolExecutor(4) as pool:
        trace = batches(6)
        for batch, rows in zip(trace, pool.map(cache.gather, trace), strict=True):
            assert torch.equal(rows, x[batch])
    assert cache.counts.rows_needed == sum(map(len, trace))
    assert np.isclose(cache.counts.hit_rate, cache.counts.hits / cache.counts.rows_needed)
