"""Stale embeddings: caches and pushes against brute force, batches that nothing old is in."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from spgnn import InputError
from spgnn.addons.batches import Boundary, Draw, NeighborLoader
from spgnn.addons.historical import History, hidden_widths
from spgnn.addons.historical.stale import EmbeddingCache, Push, StaleCounts, turns_by_degree
from spgnn.comm import connect
from spgnn.nn import GCN, GIN, GraphSAGE
from spgnn.testing import run_ranks
from tests.addons.batches.graphs import CLASSES, F_IN, N
from tests.addons.batches.test_ranks import distributed as given_on
from tests.addons.batches.test_ranks import loader_of
from tests.matrices import block_row, random_matrix, uneven_layout

MODELS = {"gcn": GCN, "sage": GraphSAGE, "gin": GIN}
ALL = [-1, -1, -1]
ROOM = History(size=N, life=99, delay=1, push=N, widths=[6])


def distributed(rank: int, parts: int, **options):
    given = given_on(rank, parts, **options)
    return given, given.comm


def check_frozen(rank: int, parts: int) -> None:
    """A model that does not change makes the same rows again, so what is old is right."""
    for name, misses, weighted, sparse, delay, pushed, room in (
        ("gcn", "drop", False, False, 1, False, N),
        ("sage", "drop", True, True, 2, False, N),
        ("gin", "fetch", False, False, 3, False, N),
        ("gcn", "fetch", True, True, 1, False, N),
        ("gcn", "fetch", True, False, 1, False, 4),  # columns are made and cached in any order
        ("sage", "drop", False, False, 2, True, N),
        ("gcn", "fetch", True, False, 1, True, N),
    ):
        given, _ = distributed(rank, parts, weighted=weighted, sparse=sparse)
        model = MODELS[name].of([F_IN, 6, 5, CLASSES], seed=2).eval()
        everyone = torch.ones(given.own_rows, dtype=torch.bool)
        history = History(room, 3, delay, N, misses, features=pushed, widths=[6, 5])
        loader = loader_of(given, ALL, everyone, mode=history, batch_size=N)
        strategy = loader.strategy
        with torch.no_grad():
            exact, needed = model(given.x, given), 0
            for _ in range(1 + (3 if pushed else 2) * delay):
                (batch,) = loader_made = list(_called(model, loader))
                assert len(loader_made) == 1
                needed += batch[2]
        counts, halo = loader.counts, len(strategy.ranks.boundary.halo)
        assert counts.rows_needed == needed
        assert sparse or counts.bytes_needed == needed * F_IN * given.x.itemsize
        if misses == "drop":  # features of the halo came once, or were pushed while they lived
            assert counts.rows_read == (1 + 2 * delay if pushed else 1) * halo
            assert sparse or counts.bytes_read == counts.rows_read * F_IN * given.x.itemsize
        else:
            assert counts.rows_read <= (1 + 2 * delay) * halo + needed
        torch.testing.assert_close(batch[1], exact[batch[0]], rtol=1e-4, atol=1e-5)
        rates = loader.strategy.report()["historical"]["hit_rate"]
        assert all(rate is None or rate <= 1 for rate in rates)
        if parts > 1:
            # Fetched ones never age.
            assert 0 < rates[0] < 1 if pushed or room < N else rates[0] == 1.0
        loader.strategy.close()


def _called(model, loader):
    for batch in loader:
        yield batch.input_id, model(batch.x, batch.layers, batch.keys), batch.x.shape[0]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_past_of_a_frozen_model_is_exact(parts):
    run_ranks(check_frozen, parts, parts)


def check_fetched(rank: int) -> None:
    """Without room for the past, what is fetched is the exact sample."""
    given, _ = distributed(rank, 3)
    fanouts = [3, 2, 2]
    exact = NeighborLoader(given, fanouts, "train_mask", batch_size=4).strategy
    nothing = History(0, 9, 1, N, "fetch", widths=[6, 5])
    loader = NeighborLoader(given, fanouts, "train_mask", mode=nothing)
    past, own = loader.strategy, loader.strategy._inputs[:3] + exact.ranks.boundary.first
    past.begin(0)
    draw = Draw(5, 1, rank)
    hops = past.sample(own, draw, 0)
    ((sample, _),) = exact.sampler.sample([own], [draw])
    for hop, other in zip(hops, reversed(sample.hops), strict=True):
        assert torch.equal(hop.nodes, sample.nodes[: other.sources])
        assert torch.equal(hop.hop.indptr, other.indptr)
        assert torch.equal(hop.hop.indices, other.indices)
        assert (hop.num_required, len(hop.slots), hop.order) == (other.sources, 0, None)
    past.end(0)
    loader.strategy.close()


def test_what_is_fetched_is_the_exact_sample():
    run_ranks(check_fetched, 3)


def check_constants(rank: int) -> None:
    """What is historical gets no gradient, and what was made here does."""
    given, _ = distributed(rank, 2)
    loader = NeighborLoader(given, [-1, -1], "train_mask", mode=ROOM, batch_size=7)
    model = GraphSAGE.of([F_IN, 6, CLASSES], seed=1)
    for _ in range(2):
        for batch in loader:
            hidden: list[Tensor] = []
            block = batch.layers[1]
            arrive = block.complete

            def noted(made, arrive=arrive, hidden=hidden):
                hidden.append(made)
                return arrive(made)

            block.complete = noted
            model(batch.x, batch.layers).sum().backward()
            assert hidden[0].requires_grad
            assert batch.y.shape == (batch.num_nodes,)
            with pytest.raises(InputError, match="has layers, and no edge_index"):
                _ = batch.edge_index
    assert loader.strategy.report()["historical"]["hit_rate"][1] > 0
    loader.strategy.close()


def test_history_is_constant():
    run_ranks(check_constants, 2)


def check_refused(rank: int) -> None:
    given, _ = distributed(rank, 2)
    for options, words in (
        ({"mode": ROOM}, "3 hops need 2 widths, got 1"),
        ({"mode": History(rank, 1, 1, 1, widths=[6, 5])}, "do not agree on history"),
        ({"mode": replace(ROOM, widths=[6, 5]), "input_nodes": "trian_mask"}, "no such mask"),
    ):
        with pytest.raises(InputError, match=words):
            NeighborLoader(given, ALL, **options)
    sparse, _ = distributed(rank, 2, sparse=True)
    with pytest.raises(InputError, match="features are pushed if dense"):
        NeighborLoader(sparse, [2, 2], mode=replace(History.parse("paper"), widths=[6]))


def test_what_cannot_be_is_refused():
    run_ranks(check_refused, 2)
    assert History.parse("100, 8,1,20") == History(100, 8, 1, 20)
    assert History.parse("paper") == History(1_000_000, 2, 1, 2000, features=True)
    assert hidden_widths(GCN.of([3, 4, 5, 2])) == [4, 5]
    A, layout, comm = random_matrix(8, 0.2, 0, weighted=False), uneven_layout(8, 1, 0), connect()
    boundary = Boundary.build(block_row(A, 0, 8), layout, comm)
    ids = torch.arange(8)
    late = {"delay": 0, "most": 1, "ids": ids, "degrees": ids, "comm": comm}
    texts = ("1,2,3", "a,2,3,4", "1,2,0,4", "1,2,3,-4", "", "papers", "paper,features")
    texts += ("1,2,3,4,feature", "1,2,3,4,5", "1,2,3,features")
    cache = EmbeddingCache(3, 2, 2, 5)
    for call, words in (
        *((lambda text=text: History.parse(text), "--historical") for text in texts),
        (lambda: History(1, 1, 1, 1, "fetched"), "misses"),
        (lambda: hidden_widths(GCN.of([3, 4, 2], jk="cat")), "jumping"),
        (lambda: EmbeddingCache(3, 2, -1, 5), "capacity"),
        (lambda: EmbeddingCache(3, 2, 1, -5), "life"),
        (lambda: cache.put(ids[:2], torch.ones(2, 3), 0), r"rows: must be \[2, 2\], got \[2, 3\]"),
        (lambda: cache.put(ids[2:4], torch.ones(2, 2), 0), "outside the halo"),
        (lambda: cache.find(torch.tensor([-1]), 0), "outside the halo"),
        (lambda: Push(boundary, [1], torch.float32, **late), "delay"),
    ):
        with pytest.raises(InputError, match=words):
            call()


def check_ahead(rank: int) -> None:
    """What a thread makes ahead is what is made in turn."""
    given, _ = distributed(rank, 2)
    everyone = torch.ones(given.own_rows, dtype=torch.bool)
    options = {"input_nodes": everyone, "batch_size": 5, "shuffle": True, "seed": 3}
    one, other = (
        NeighborLoader(given, [3, 2], mode="local", prefetch=ahead, **options) for ahead in (0, 3)
    )
    next(iter(other))  # whoever leaves early ends the thread
    other.epoch = 0
    for _ in range(2):
        for batch, same in zip(one, other, strict=True):
            assert batch.place == same.place
            assert torch.equal(batch.n_id, same.n_id)
            assert torch.equal(batch.x, same.x)
            assert torch.equal(batch.y, same.y)
            for block, twin in zip(batch.layers, same.layers, strict=True):
                assert torch.equal(block.pattern.indptr, twin.pattern.indptr)
                assert torch.equal(block.pattern.indices, twin.pattern.indices)
    assert one.sampled.edges <= other.sampled.edges


def test_local_batches_may_be_made_ahead():
    run_ranks(check_ahead, 2)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(st.data())
def test_a_cache_is_a_list_of_rows_by_age(data):
    """Searches, stores, evictions and ages, against a dict in the order of the last writes."""
    vertices = data.draw(st.integers(1, 12))
    capacity, life = data.draw(st.integers(0, 14)), data.draw(st.integers(0, 4))
    cache = EmbeddingCache(vertices, 3, capacity, life)
    written: dict[int, tuple[int, list[float]]] = {}
    counted = StaleCounts()
    some = st.lists(st.integers(0, vertices - 1), max_size=20)
    for now in range(data.draw(st.integers(0, 8))):
        listed = data.draw(some)
        rows = torch.rand(len(listed), 3)
        cache.put(torch.tensor(listed, dtype=torch.int64), rows, now)
        for vertex, row in zip(listed, rows.tolist(), strict=True):
            written.pop(vertex, None)
            written[vertex] = (now, row)
            if len(written) > min(capacity, vertices):
                del written[next(iter(written))]
        sought, later = data.draw(some), now + data.draw(st.integers(0, 5))
        fresh = {v: row for v, (made, row) in written.items() if later - made <= life}
        slots = cache.find(torch.tensor(sought, dtype=torch.int64), later)
        assert (slots >= 0).tolist() == [v in fresh for v in sought]
        assert cache.rows(slots[slots >= 0]).tolist() == [fresh[v] for v in sought if v in fresh]
        counted.requested += len(sought)
        counted.hits += sum(v in fresh for v in sought)
        counted.ages += sum(later - written[v][0] for v in sought if v in fresh)
        assert (cache.hits, len(cache)) == (counted, len(written))


def test_threads_change_no_cache():
    """Also where a vertex comes twice in one store, and more come than there are slots."""
    generator = torch.Generator().manual_seed(0)
    caches = [EmbeddingCache(9000, 40, 3000, 2, torch.bfloat16) for _ in range(2)]
    before = torch.get_num_threads()
    try:
        for now in range(4):
            vertices = torch.randint(9000, (5000,), generator=generator)
            rows = torch.rand(5000, 40, generator=generator)
            sought = torch.randint(9000, (50_000,), generator=generator)
            found = []
            for cache, threads in zip(caches, (1, 3), strict=True):
                torch.set_num_threads(threads)
                cache.put(vertices, rows, now)
                slots = cache.find(sought, now)
                found.append((slots, cache.rows(slots[slots >= 0])))
            for one, other in zip(*found, strict=True):
                assert torch.equal(one, other)
            last = {int(v): i for i, v in enumerate(vertices.tolist())}
            slots, kept = found[0]
            positions = [last[int(v)] for v in sought[slots >= 0]]
            if now == 0:
                assert torch.equal(kept, rows[positions].bfloat16())
    finally:
        torch.set_num_threads(before)
    assert caches[0].hits == caches[1].hits


def test_a_sample_is_biased_by_degree():
    """Each draw takes a vertex that is left in proportion to its degree, 0 counting as 1."""
    degrees, most, steps = [1, 2, 5, 9], 2, 20_000
    ids, expected = np.array([3, 8, 11, 40]), np.zeros(4)
    for first, second in permutations(range(4), 2):
        share = degrees[first] / 17 * degrees[second] / (17 - degrees[first])
        expected[[first, second]] += share
    drawn = np.zeros(4)
    for step in range(steps):
        turns = turns_by_degree(ids, np.array(degrees), 7, step)
        drawn[turns.topk(most, largest=False).indices.numpy()] += 1
    assert np.abs(drawn / steps - expected).max() < 5 * 0.5 / steps**0.5
    again = [turns_by_degree(ids, np.array(degrees), seed, 4) for seed in (7, 7, 8)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


VERTICES, ITERATIONS = 60, 7
WIDTHS = (3, 5)


def drawn(rank: int, iteration: int, own: int) -> np.ndarray:
    """Own rows that a rank makes in an iteration; sometimes none."""
    rng = np.random.default_rng(100 * rank + iteration)
    return rng.permutation(own)[: rng.integers(0, own + 1) if own else 0]


def contents(rows: np.ndarray, iteration: int, layer: int) -> torch.Tensor:
    return torch.from_numpy(
        (rows[:, None] + 1000.0 * iteration + 0.25 * layer + np.zeros(WIDTHS[layer])).astype(
            np.float32
        )
    )


def expected(A, layout, rank, degrees, ids, most, pause) -> dict[tuple[int, int], list[int]]:
    """(layer, iteration) to the rows of others that a rank gets of them, by brute force."""
    first, last = layout.range(rank)
    columns = np.unique(A[first:last].indices)
    found: dict[tuple[int, int], list[int]] = {}
    for layer in range(2):
        sent: dict[int, int] = {}
        for iteration in range(ITERATIONS):
            got = found[layer, iteration] = []
            for peer in range(layout.parts):
                low, high = layout.range(peer)
                if peer == rank or low == high:
                    continue
                made = low + drawn(peer, iteration + 50 * layer, high - low)
                wanted = [v for v in made if v in columns]
                wanted = [v for v in wanted if iteration - sent.get(v, -99) >= pause]
                step = 2 * iteration + layer
                turns = turns_by_degree(ids, np.maximum(degrees, 1), 5, step)
                wanted.sort(key=lambda v, turns=turns: float(turns[v]))
                got += wanted[:most]
                sent |= dict.fromkeys(wanted[:most], iteration)
    return found


def check_push(rank: int, parts: int, delay: int, most: int, pause: int) -> None:
    comm = connect()
    A = random_matrix(VERTICES, 0.05, 3, weighted=False)
    layout = uneven_layout(VERTICES, parts, 2)
    first, last = layout.range(rank)
    boundary = Boundary.build(block_row(A, first, last), layout, comm)
    degrees, ids = np.diff(A.indptr), np.random.default_rng(1).permutation(VERTICES)
    before = comm.ledger.copy()
    push = Push(
        boundary,
        WIDTHS,
        torch.float32,
        delay=delay,
        most=most,
        ids=torch.from_numpy(ids[first:last]),
        degrees=torch.from_numpy(degrees[first:last]),
        comm=comm,
        pause=pause,
        seed=5,
    )
    coming = expected(A, layout, rank, degrees, ids, most, pause)
    for now in range(ITERATIONS):
        seen = {}
        for layer, made, halo, rows in push.arrived(now):
            assert made == now - delay
            seen[layer] = made
            rows_of = boundary.halo[halo].numpy()
            assert sorted(rows_of.tolist()) == sorted(coming[layer, made])
            assert torch.equal(rows, contents(rows_of, made, layer))
        assert len(seen) == (2 if now >= delay else 0)
        made_now = [drawn(rank, now + 50 * layer, last - first) for layer in range(2)]
        push.begin(
            now,
            [
                (torch.from_numpy(rows), contents(first + rows, now, layer))
                for layer, rows in enumerate(made_now)
            ],
        )
    push.drain()
    moved = comm.ledger.since(before).of("alltoall")
    assert (push.sent_bytes, push.received_bytes) == (moved.sent_bytes, moved.received_bytes)
    with pytest.raises(InputError, match="widths"):
        push.begin(99, [(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))])


def check_pushes(rank: int, parts: int) -> None:
    for delay, most, pause in ((1, VERTICES, 1), (2, 3, 1), (3, VERTICES, 3), (1, 2, 2), (5, 0, 1)):
        check_push(rank, parts, delay, most, pause)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_rows_arrive_in_time_and_in_full(parts):
    run_ranks(check_pushes, parts, parts)
