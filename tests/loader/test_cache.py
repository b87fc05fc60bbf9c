"""Caches: each rule against a plain model, Belady's against all choices; and their rows."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.loader import CachedRows, DiskRows, MemoryRows
from spgnn.loader.cache import POLICIES, cache_table, hits
from tests.loader.graphs import skewed_trace, table, written


def most_hits(trace, slots):
    return sum(hits("belady", trace, slots))


def random_trace(rng, rows, batches, largest):
    sizes = rng.integers(0, largest + 1, batches)
    return [rng.permutation(rows)[:size].astype(np.int64) for size in sizes]


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
    some = 0
    for _ in range(1000):
        rows, slots = int(rng.integers(1, 8)), int(rng.integers(0, 5))
        trace = random_trace(rng, rows, int(rng.integers(1, 10)), min(rows, 5))
        best = oracles[rows, slots].most_hits(trace)
        assert most_hits(trace, slots) == best
        some += best
    assert some > 3000


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


@pytest.mark.parametrize("slots", [1, 7, 40, 300])
def test_lru_is_that_of_a_plain_model(slots):
    for seed in range(3):
        trace = skewed_trace(seed)
        found = hits("lru", trace, slots)
        assert found == plain_lru(trace, slots)
        assert slots == 1 or sum(found) > 0


def test_degree_keeps_the_highest_scores_once_read():
    trace = skewed_trace(1)
    scores = torch.rand(200, generator=torch.Generator().manual_seed(0))
    kept = set(scores.topk(50).indices.tolist())
    read, expected = set(), []
    for batch in trace:
        expected.append(len(kept & read & set(batch.tolist())))
        read |= set(batch.tolist())
    assert hits("degree", trace, 50, scores=scores) == expected


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


@pytest.mark.parametrize("ahead", [1, 4, 60])
@pytest.mark.parametrize("slots", [1, 20, 100])
def test_belady_knows_what_was_announced_and_no_more(slots, ahead):
    scores = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float()
    for seed in range(2):
        trace = skewed_trace(seed)
        # Scores make the choice unique but for rows that are needed in the same batch, whose
        # exchange changes no hits.
        found = hits("belady", trace, slots, ahead=ahead, scores=scores)
        plain = [batch.tolist() for batch in trace]
        steps = [
            (batch, plain[now + 1 : (now // ahead + 1) * ahead]) for now, batch in enumerate(plain)
        ]
        assert found == plain_belady(steps, slots, scores)
        assert sum(found) <= most_hits(trace, slots)


@pytest.mark.parametrize("slots", [0, 10, 50, 200])
def test_no_rule_beats_the_bound(slots):
    trace = skewed_trace(5)
    degrees = torch.from_numpy(np.bincount(np.concatenate(trace), minlength=200))
    best = most_hits(trace, slots)
    for name in POLICIES:
        found = sum(hits(name, trace, slots, ahead=10, scores=degrees))
        assert found <= best
        assert (found == 0) == (slots == 0 or name == "none")


def test_announced_batches_can_be_called_off():
    scores = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float()
    belady = cache_table("belady", 200, 3, scores)
    for batch in ([0, 1, 2, 3, 4], [3], [1, 7], [0, 9]):
        belady.announce(np.array(batch))
    belady.plan()  # keeps 0, 1 and 3
    assert belady.announced == 3
    belady.forget()
    assert belady.announced == 0
    # From now on nothing is known, and all go by their scores.
    trace = [[0, 1, 2, 3, 4], *(batch.tolist() for batch in skewed_trace(2))]
    found = []
    for batch in trace:
        belady.announce(np.array(batch))
        found.append((belady.plan()[0] >= 0).sum())
    assert found[0] == 3
    assert found == plain_belady([(batch, []) for batch in [[0, 1, 3], *trace]], 3, scores)[1:]


def test_what_is_refused():
    rows = MemoryRows(torch.zeros(4, 1))
    for name, scores, words in (
        ("lfu", None, "cache policy lfu: choose one of belady, degree"),
        ("degree", None, "cache policy degree needs scores, one a row"),
        ("degree", torch.ones(3), r"scores \[3\] for a table of 4 rows"),
    ):
        with pytest.raises(InputError, match=words):
            CachedRows(rows, name, 8, scores=scores)
    with pytest.raises(InputError, match="capacity of a cache, in bytes, must be an integer"):
        CachedRows(rows, "lru", -1)
    with pytest.raises(InputError, match="slots must be an integer of at least 0"):
        hits("lru", [], -1)
    assert hits("lru", [], 3) == []


def batches(seed, repeats=False):
    trace = [torch.from_numpy(batch) for batch in skewed_trace(seed)]
    if repeats:
        trace = [torch.cat((batch, batch[:5], batch[2:9])) for batch in trace]
    return [*trace[:20], torch.arange(0), *trace[20:]]


def on_disk(tmp_path, x, offset=0):
    path = written(tmp_path / "x", x, offset)
    return DiskRows.open(path, offset, *x.shape, x.dtype)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("slots", [0, 1, 50, 500])
def test_every_policy_gives_the_rows_and_reads_what_it_says(tmp_path, name, slots):
    x, scores = table(200, 7, torch.float32), torch.arange(200).flip(0)
    disk, trace = on_disk(tmp_path, x, 128), batches(1)
    for ahead in (0, 1, 4, 61):
        for behind in (disk, MemoryRows(x)):
            cache = CachedRows(behind, name, slots * x[0].nbytes + 3, scores=scores)
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
            expected = hits(name, trace, min(slots, 200), ahead=ahead or 1, scores=scores)
            assert found == expected
            counts, needed = cache.counts, sum(map(len, trace))
            assert (counts.rows_needed, counts.bytes_needed) == (needed, 28 * needed)
            read = needed - sum(expected) if behind is disk else 0
            assert counts.rows_read - before["rows_read"] == read


def test_a_superbatch_may_be_announced_before_the_last_one_is_used_up(tmp_path):
    x = table(200, 3, torch.float32)
    cache, trace = CachedRows(on_disk(tmp_path, x), "belady", 50 * 12), batches(3)
    cache.prefetch(trace[:10])
    for now, batch in enumerate(trace):
        if now % 10 == 7:
            cache.prefetch(trace[now + 3 : now + 13])
        assert torch.equal(cache.gather(batch), x[batch])
    # More is known than with one superbatch after another.
    assert cache.counts.hits >= sum(hits("belady", trace, 50, ahead=10))


@pytest.mark.parametrize("name", ["belady", "lru", "none"])
def test_rows_that_repeat_are_read_once(tmp_path, name):
    x = table(200, 3, torch.float32)
    cache, trace = CachedRows(on_disk(tmp_path, x), name, 50 * 12), batches(3, repeats=True)
    cache.prefetch(trace[:30])
    for batch in trace:
        assert torch.equal(cache.gather(batch), x[batch])
    distinct = [batch.unique() for batch in trace]
    if name != "belady":
        read = sum(map(len, distinct)) - sum(hits(name, distinct, 50, ahead=1))
        assert cache.counts.rows_read == read
    assert cache.counts.hits == cache.counts.rows_needed - cache.counts.rows_read
    again, out = torch.tensor([5, 5, 9]), torch.empty(3, 3)
    assert torch.equal(cache.gather(again, out), x[again])


def test_caches_before_caches(tmp_path):
    x = table(200, 3, torch.bfloat16)
    disk = on_disk(tmp_path, x)
    below = CachedRows(disk, "lru", 100 * 6)
    above = CachedRows(below, "degree", 20 * 6, scores=torch.arange(200))
    for batch in batches(4, repeats=True):
        assert torch.equal(above.gather(batch), x[batch])
    assert above.counts.rows_read == disk.counts.rows_read < below.counts.rows_needed


def test_announced_batches_must_be_asked_for_or_called_off(tmp_path):
    x = table(200, 3, torch.float32)
    cache, trace = CachedRows(on_disk(tmp_path, x), "belady", 50 * 12), batches(5)
    cache.prefetch(trace[:8])
    with pytest.raises(InputError, match="30 rows are asked for, but others were announced, 30 of"):
        cache.gather(trace[1])
    assert torch.equal(cache.gather(trace[0]), x[trace[0]])
    cache.forget()
    for batch in trace[9:]:
        assert torch.equal(cache.gather(batch), x[batch])
    with pytest.raises(InputError, match="no row 200; it has rows 0 to 199"):
        cache.prefetch([trace[0], torch.tensor([200])])
    assert torch.equal(cache.gather(trace[1]), x[trace[1]])


def test_after_a_read_error_the_cache_can_be_used(tmp_path):
    x = table(200, 300, torch.float32)
    cache, path = CachedRows(on_disk(tmp_path, x), "lru", 90 * 1200), tmp_path / "x"
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
    cache, trace = CachedRows(on_disk(tmp_path, x), "lru", 50 * 12), batches(6)
    with ThreadPoolExecutor(4) as pool:
        for batch, rows in zip(trace, pool.map(cache.gather, trace), strict=True):
            assert torch.equal(rows, x[batch])
    assert cache.counts.rows_needed == sum(map(len, trace))
    assert np.isclose(cache.counts.hit_rate, cache.counts.hits / cache.counts.rows_needed)
