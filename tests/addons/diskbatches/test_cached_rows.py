"""Caches: each rule against a plain model, Belady's against all choices; rows of other ranks."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from spgnn.addons.batches import DiskRows, MemoryRows, RemoteRows
from spgnn.addons.diskbatches import CachedRows
from spgnn.addons.diskbatches.cached_rows import POLICIES, hits
from spgnn.comm import SoloCommunicator, connect
from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.testing import run_ranks
from tests.addons.batches.graphs import batches, on_disk, skewed_trace, table, written


class EveryChoice:
    """The fewest reads, over all ways to choose what is kept after each batch."""

    def __init__(self, rows, slots):
        self.kept = np.array([s for s in range(1 << rows) if s.bit_count() <= slots])
        self.count = np.array([s.bit_count() for s in range(1 << rows)])

    def most_hits(self, trace):
        reads = np.where(self.kept == 0, 0, 10**6)  # the cache is empty at first
        for batch in trace:
            needed = int(sum(1 << int(row) for row in batch))
            served = reads + self.count[needed & ~self.kept]
            # From what was kept to what is: any of the old and of the batch's rows.
            possible = (self.kept[None, :] & ~(self.kept[:, None] | needed)) == 0
            reads = np.where(possible, served[:, None], 10**6).min(axis=0)
        return sum(map(len, trace)) - int(reads.min())


def test_belady_is_the_best_of_all_choices_on_1000_traces():
    rng = np.random.default_rng(3)
    oracles = {
        (rows, slots): EveryChoice(rows, slots) for rows in range(1, 8) for slots in range(5)
    }
    total = 0
    for _ in range(1000):
        rows, slots = int(rng.integers(1, 8)), int(rng.integers(0, 5))
        sizes = rng.integers(0, min(rows, 5) + 1, int(rng.integers(1, 10)))
        trace = [rng.permutation(rows)[:size].astype(np.int64) for size in sizes]
        best = oracles[rows, slots].most_hits(trace)
        assert sum(hits("belady", trace, slots)) == best
        total += best
    assert total > 3000


def plain_lru(trace, slots):
    kept, found = OrderedDict(), []
    for batch in trace:
        hit = [row for row in batch if row in kept]
        for row in hit:
            kept.move_to_end(row)
        for row in batch:
            if row not in hit:
                kept[row] = True
                if len(kept) > slots:
                    kept.popitem(last=False)
        found.append(len(hit))
    return found


def plain_degree(trace, slots, scores):
    kept, read, found = set(scores.topk(slots).indices.tolist()), set(), []
    for batch in trace:
        found.append(len(kept & read & set(batch.tolist())))
        read |= set(batch.tolist())
    return found


def plain_belady(steps, slots, scores):
    """Hits of (batch, what is known to follow); what nothing known needs goes by its score."""
    kept, found = set(), []
    for batch, known in steps:
        found.append(len(kept & set(batch)))

        def value(row, known=known):
            uses = [t for t, coming in enumerate(known) if row in coming]
            return (-min(uses), 0.0) if uses else (-np.inf, float(scores[row]))

        kept = set(sorted(kept | set(batch), key=value, reverse=True)[:slots])
    return found


@pytest.mark.parametrize("slots", [1, 20, 100])
def test_rules_are_those_of_plain_models(slots):
    # Scores make Belady's choice unique but for rows that are needed in the same batch, whose
    # exchange changes no hits.
    scores = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float()
    for seed in range(2):
        trace = skewed_trace(seed)
        assert hits("lru", trace, slots) == plain_lru(trace, slots)
        assert hits("degree", trace, slots, scores=scores) == plain_degree(trace, slots, scores)
        plain = [batch.tolist() for batch in trace]
        for ahead in (1, 4, 60):
            steps = [
                (batch, plain[now + 1 : (now // ahead + 1) * ahead])
                for now, batch in enumerate(plain)
            ]
            found = hits("belady", trace, slots, ahead=ahead, scores=scores)
            assert found == plain_belady(steps, slots, scores)


def test_what_is_refused():
    rows = MemoryRows(torch.zeros(4, 1))
    for call, words in (
        (lambda: CachedRows(rows, "lfu", 8), "cache policy lfu: choose one of belady, degree"),
        (lambda: CachedRows(rows, "degree", 8), "cache policy degree needs scores, one a row"),
        (lambda: CachedRows(rows, "degree", 8, scores=torch.ones(3)), r"scores \[3\] of 4 rows"),
        (lambda: CachedRows(rows, "lru", -1), "capacity of a cache, in bytes, must be an integer"),
        (lambda: hits("lru", [], -1), "slots must be an integer of at least 0"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    assert hits("lru", [], 3) == []


def superbatches(rows, trace, ahead):
    """The rows of a trace, so many batches at a time; one by one for 0."""
    if not ahead:
        yield from map(rows.gather, trace)
    for first in range(0, len(trace) if ahead else 0, max(ahead, 1)):
        yield from rows.gather_many(trace[first : first + ahead])


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("slots", [0, 1, 50, 500])
def test_every_policy_gives_the_rows_and_reads_what_it_says(tmp_path, name, slots):
    x, scores = table(200, 7, torch.float32), torch.arange(200).flip(0)
    disk, trace = on_disk(tmp_path, x, 128), batches(1)
    for ahead in (0, 1, 4, 61):
        for behind in (disk, MemoryRows(x)):
            cache = CachedRows(behind, name, slots * x[0].nbytes + 3, scores=scores)
            before, found = behind.counts.record(), []
            for rows, batch in zip(superbatches(cache, trace, ahead), trace, strict=True):
                assert torch.equal(rows, x[batch])
                found.append(cache.counts.hits - sum(found))
            expected = hits(name, trace, min(slots, 200), ahead=ahead or 1, scores=scores)
            assert found == expected
            counts, needed = cache.counts, sum(map(len, trace))
            assert (counts.rows_needed, counts.bytes_needed) == (needed, 28 * needed)
            assert np.isclose(counts.hit_rate, counts.hits / needed)
            read = needed - sum(expected) if behind is disk else 0
            assert counts.rows_read - before["rows_read"] == read


@pytest.mark.parametrize("name", ["belady", "lru", "none"])
def test_rows_that_repeat_are_read_once(tmp_path, name):
    x = table(200, 3, torch.float32)
    cache, trace = CachedRows(on_disk(tmp_path, x), name, 50 * 12), batches(3, repeats=True)
    for rows, batch in zip(superbatches(cache, trace, 30), trace, strict=True):
        assert torch.equal(rows, x[batch])
    distinct = [batch.unique() for batch in trace]
    if name != "belady":
        read = sum(map(len, distinct)) - sum(hits(name, distinct, 50, ahead=1))
        assert cache.counts.rows_read == read
    assert cache.counts.hits == cache.counts.rows_needed - cache.counts.rows_read
    for ids in (torch.tensor([5, 5, 9]), torch.tensor([9, 5, 6])):
        out = torch.empty(3, 3)
        assert cache.gather(ids, out) is out
        assert torch.equal(out, x[ids])


def test_caches_before_caches(tmp_path):
    x = table(200, 3, torch.bfloat16)
    disk = on_disk(tmp_path, x)
    below = CachedRows(disk, "lru", 100 * 6)
    above = CachedRows(below, "degree", 20 * 6, scores=torch.arange(200))
    for batch in batches(4, repeats=True):
        assert torch.equal(above.gather(batch), x[batch])
    assert above.counts.rows_read == disk.counts.rows_read < below.counts.rows_needed


def test_batches_that_are_left_empty_the_cache_and_keep_others_out(tmp_path):
    x = table(200, 3, torch.float32)
    cache, trace = CachedRows(on_disk(tmp_path, x), "belady", 50 * 12), batches(5)
    rows = cache.gather_many(trace[:8])
    assert torch.equal(next(rows), x[trace[0]])
    for other in (lambda: cache.gather(trace[1]), lambda: next(cache.gather_many(trace[:2]))):
        with pytest.raises(InputError, match="batches of another iterator are under way"):
            other()
    assert torch.equal(next(rows), x[trace[1]])
    rows.close()
    had = cache.counts.hits
    assert torch.equal(cache.gather(trace[1]), x[trace[1]])
    assert cache.counts.hits == had
    with pytest.raises(InputError, match="no row 200; it has rows 0 to 199"):
        next(cache.gather_many([trace[0], torch.tensor([200])]))
    for batch in trace[9:]:
        assert torch.equal(cache.gather(batch), x[batch])


def test_after_a_read_error_the_cache_can_be_used(tmp_path):
    x = table(200, 300, torch.float32)
    cache, path = CachedRows(on_disk(tmp_path, x), "lru", 90 * 1200), tmp_path / "x"
    assert torch.equal(cache.gather(torch.arange(80)), x[:80])
    os.truncate(path, 100 * 1200)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}: ends at byte 120000"):
        cache.gather(torch.arange(60, 180))
    # Nothing of what did not come is taken for a hit.
    had = cache.counts.hits
    with pytest.raises(InputError, match="cut off"):
        cache.gather(torch.tensor([150]))
    assert torch.equal(cache.gather(torch.arange(70)), x[:70])
    assert cache.counts.hits == had


def test_threads_share_a_cache(tmp_path):
    x = table(200, 3, torch.float32)
    cache, trace = CachedRows(on_disk(tmp_path, x), "lru", 50 * 12), batches(6)
    with ThreadPoolExecutor(4) as pool:
        for batch, rows in zip(trace, pool.map(cache.gather, trace), strict=True):
            assert torch.equal(rows, x[batch])
    assert cache.counts.rows_needed == sum(map(len, trace))


# Rows of other ranks: they come once for several batches, and their bytes are the ledger's.

OFFSETS = {1: [0, 200], 2: [0, 130, 200], 3: [0, 90, 90, 200]}  # one rank has no rows


def trace_of(rank, count=8):
    trace = [torch.from_numpy(batch) for batch in skewed_trace(rank, batches=count)]
    trace[2] = torch.arange(0)
    trace[3] = torch.cat((trace[3], trace[3][:4]))
    return trace


def remote_rows(path, size, rank):
    x = table(200, 5, torch.float32)
    first, last = OFFSETS[size][rank], OFFSETS[size][rank + 1]
    own = DiskRows(path, 20 * first, last - first, 5, torch.float32)
    return x, RemoteRows(
        own if rank else MemoryRows(x[first:last]), RowLayout(OFFSETS[size]), connect("gloo", "cpu")
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_and_bytes_of_other_ranks(tmp_path, size):
    path = written(tmp_path / "x", table(200, 5, torch.float32))

    def body(rank):
        x, rows = remote_rows(path, size, rank)
        comm, trace = connect("gloo", "cpu"), trace_of(rank)
        first, last = OFFSETS[size][rank], OFFSETS[size][rank + 1]
        for ahead in (0, 1, 3, 8):
            before, counts = comm.ledger.copy(), rows.counts.record()
            for found, batch in zip(superbatches(rows, trace, ahead), trace, strict=True):
                assert torch.equal(found, x[batch])
            moved, each = 0, max(ahead, 1)
            for start in range(0, len(trace), each):
                union = torch.cat(trace[start : start + each]).unique()
                moved += int(((union < first) | (union >= last)).sum())
            assert rows.counts.rows_read - counts["rows_read"] == moved
            assert rows.counts.bytes_read - counts["bytes_read"] == 20 * moved
            # A count of 8 bytes for each peer, 4 for each row that is asked for, and the rows.
            added, exchanges = comm.ledger.since(before).of("alltoall"), -(-len(trace) // each)
            totals = torch.tensor([added.sent_bytes, added.received_bytes, moved])
            comm.all_reduce(totals, "sum").wait()
            expected = 8 * (size - 1) * size * exchanges + 24 * int(totals[2])
            assert totals[:2].tolist() == [expected] * 2

    run_ranks(body, size)


@pytest.mark.parametrize("name", ["degree", "belady", "lru"])
def test_a_cache_before_other_ranks(tmp_path, name):
    path = written(tmp_path / "x", table(200, 5, torch.float32))
    scores = torch.arange(200).flip(0)

    def body(rank):
        for ahead in (0, 3):
            x, rows = remote_rows(path, 2, rank)
            cache, trace = CachedRows(rows, name, 50 * 20, scores=scores), trace_of(rank)
            for found, batch in zip(superbatches(cache, trace, ahead), trace, strict=True):
                assert torch.equal(found, x[batch])
            once = [batch.unique() if now == 3 else batch for now, batch in enumerate(trace)]
            most = sum(hits(name, once, 50, ahead=ahead or 1, scores=scores))
            repeated = cache.counts.rows_needed - sum(map(len, once))
            assert cache.counts.hits == repeated + most
            some = cache.gather_many(trace[:3])
            next(some)
            some.close()
            assert torch.equal(cache.gather(trace[5]), x[trace[5]])

    run_ranks(body, 2)


def test_ranks_that_disagree():
    def body(rank):
        comm, mine = connect("gloo", "cpu"), MemoryRows(torch.zeros(3 + rank, 2))

        def gather(offsets, count):
            rows = RemoteRows(mine, RowLayout(np.array(offsets)), comm)
            list(rows.gather_many([torch.arange(2)] * count))

        for offsets, count, words in (
            ([0, 3, 6], 1, "fits of rows of all ranks"),
            ([0, 3 + rank, 7 + rank], 1, "offsets of rows of all ranks"),
            ([0, 3, 7], 1 + rank, "batches of rows that are fetched together"),
        ):
            with pytest.raises(InputError, match=f"ranks do not agree on {words}"):
                gather(offsets, count)

    run_ranks(body, 2)
    with pytest.raises(InputError, match="4 rows on rank 0 of 1, but the layout has 2 parts of"):
        RemoteRows(MemoryRows(torch.zeros(4, 2)), RowLayout([0, 2, 4]), SoloCommunicator())
