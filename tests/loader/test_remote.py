"""Rows of other ranks come once for several batches, and their bytes are those of the ledger."""

import numpy as np
import pytest
import torch

from spgnn.comm import connect
from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.loader import CachedRows, DiskRows, MemoryRows, RemoteRows
from spgnn.loader.cache import hits
from spgnn.testing import run_ranks
from tests.loader.graphs import skewed_trace, table, written

OFFSETS = {1: [0, 200], 2: [0, 130, 200], 3: [0, 90, 90, 200]}  # one rank has no rows


def trace_of(rank, batches=8):
    trace = [torch.from_numpy(batch) for batch in skewed_trace(rank, batches=batches)]
    trace[2] = torch.arange(0)
    trace[3] = torch.cat((trace[3], trace[3][:4]))
    return trace


def remote_rows(path, size, rank):
    x = table(200, 5, torch.float32)
    first, last = OFFSETS[size][rank], OFFSETS[size][rank + 1]
    own = DiskRows.open(path, 20 * first, last - first, 5, torch.float32)
    return x, RemoteRows(
        own if rank else MemoryRows(x[first:last]), RowLayout(OFFSETS[size]), connect("gloo", "cpu")
    )


def moved(batches, size, rank):
    """Rows of the union of some batches that other ranks have."""
    rows = torch.cat(batches).unique()
    first, last = OFFSETS[size][rank], OFFSETS[size][rank + 1]
    return int(((rows < first) | (rows >= last)).sum())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_and_bytes(tmp_path, size):
    path = written(tmp_path / "x", table(200, 5, torch.float32))

    def body(rank):
        x, rows = remote_rows(path, size, rank)
        comm, trace = connect("gloo", "cpu"), trace_of(rank)
        wrong = []
        for ahead in (0, 1, 3, 8):
            before, counts = comm.ledger.copy(), rows.counts.record()
            exchanged = 0
            for now, batch in enumerate(trace):
                if ahead and now % ahead == 0:
                    rows.prefetch(trace[now : now + ahead])
                if now % max(ahead, 1) == 0:
                    exchanged += moved(trace[now : now + max(ahead, 1)], size, rank)
                if not torch.equal(rows.gather(batch), x[batch]):
                    wrong.append((ahead, now))
            added = comm.ledger.since(before).of("alltoall")
            exchanges = -(-len(trace) // max(ahead, 1))
            asked = torch.tensor([exchanged])
            comm.all_reduce(asked, "sum").wait()
            read = rows.counts.rows_read - counts["rows_read"]
            if read != exchanged or rows.counts.bytes_read - counts["bytes_read"] != 20 * read:
                wrong.append((ahead, "rows", read, exchanged))
            # A count of 8 bytes for each peer, 4 for each row that is asked for, and the rows.
            totals = torch.tensor([added.sent_bytes, added.received_bytes])
            comm.all_reduce(totals, "sum").wait()
            expected = 8 * (size - 1) * size * exchanges + 24 * int(asked)
            if totals.tolist() != [expected] * 2:
                wrong.append((ahead, "bytes", totals.tolist(), expected))
            mine = 8 * (size - 1) * exchanges + 4 * exchanged
            if added.sent_bytes < mine or (size == 1 and added.sent_bytes):
                wrong.append((ahead, "sent", added.sent_bytes, mine))
        return wrong

    assert run_ranks(body, size) == [[]] * size


@pytest.mark.parametrize("name", ["degree", "belady", "lru"])
def test_a_cache_before_other_ranks(tmp_path, name):
    path = written(tmp_path / "x", table(200, 5, torch.float32))
    scores = torch.arange(200).flip(0)

    def body(rank):
        wrong = []
        for ahead in (0, 3):
            x, rows = remote_rows(path, 2, rank)
            cache, trace = CachedRows(rows, name, 50 * 20, scores=scores), trace_of(rank)
            for now, batch in enumerate(trace):
                if ahead and now % ahead == 0:
                    cache.prefetch(trace[now : now + ahead])
                if not torch.equal(cache.gather(batch), x[batch]):
                    wrong.append((ahead, now))
            once = [batch.unique() if now == 3 else batch for now, batch in enumerate(trace)]
            missed = sum(map(len, once)) - sum(
                hits(name, once, 50, ahead=ahead or 1, scores=scores)
            )
            if cache.counts.hits != cache.counts.rows_needed - missed:
                wrong.append((ahead, cache.counts.hits))
            cache.prefetch(trace[:3])
            cache.gather(trace[0])
            cache.forget()
            if not torch.equal(cache.gather(trace[5]), x[trace[5]]):
                wrong.append("forgotten")
        return wrong

    assert run_ranks(body, 2) == [[], []]


def test_ranks_that_disagree(tmp_path):
    def body(rank):
        comm, said = connect("gloo", "cpu"), []

        def attempt(action):
            try:
                action()
            except InputError as error:
                said.append(str(error))

        mine = MemoryRows(torch.zeros(3 + rank, 2))
        attempt(lambda: RemoteRows(mine, RowLayout(np.array([0, 3, 6])), comm))
        attempt(lambda: RemoteRows(mine, RowLayout(np.array([0, 3 + rank, 7 + rank])), comm))
        rows = RemoteRows(mine, RowLayout(np.array([0, 3, 7])), comm)
        attempt(lambda: rows.prefetch([torch.arange(2)] * (1 + rank)))
        rows.prefetch([torch.arange(2)])
        attempt(lambda: rows.gather(torch.arange(3)))
        rows.gather(torch.arange(2))
        return said

    first, second = run_ranks(body, 2)
    assert first == second
    assert "ranks do not agree on fits of rows of all ranks" in first[0]
    assert "ranks do not agree on offsets of rows of all ranks" in first[1]
    assert "ranks do not agree on batches of rows that are prefetched" in first[2]
    assert "3 rows are asked for, but others were announced, 2 of them" in first[3]
    alone = run_ranks(lone, 1)
    assert alone == ["4 rows on rank 0 of 1, but the layout has 2 parts of [2, 2] rows"]


def lone(rank):
    try:
        RemoteRows(
            MemoryRows(torch.zeros(4, 2)), RowLayout(np.array([0, 2, 4])), connect("gloo", "cpu")
        )
    except InputError as error:
        return str(error)
    return rank
