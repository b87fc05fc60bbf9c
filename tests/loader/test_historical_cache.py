"""The cache of historical rows against a dictionary that is searched for the oldest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.loader.stale import EmbeddingCache


class Slow:
    """Vertex to (turn, iteration, row); the least (turn, position in its put) is evicted."""

    def __init__(self, capacity: int, life: int) -> None:
        self.capacity, self.life, self.turn = capacity, life, 0
        self.kept: dict[int, tuple[tuple[int, int], int, list[float]]] = {}

    def put(self, vertices: list[int], rows: list[list[float]], made: int) -> None:
        self.turn += 1
        taken = list(zip(vertices, rows, strict=True))[: self.capacity]
        for vertex, _ in taken:
            if vertex in self.kept:
                self.kept[vertex] = ((self.turn, 0), *self.kept[vertex][1:])
        for place, (vertex, row) in enumerate(taken):
            if vertex not in self.kept and len(self.kept) == self.capacity:
                del self.kept[min(self.kept, key=lambda v: self.kept[v][0])]
            self.kept[vertex] = ((self.turn, place), made, row)

    def find(self, vertex: int, now: int) -> list[float] | None:
        if vertex not in self.kept:
            return None
        _, made, row = self.kept[vertex]
        return row if now - made <= self.life else None


@pytest.mark.parametrize("seed", range(40))
def test_the_oldest_rows_are_evicted_first(seed):
    rng = np.random.default_rng(seed)
    vertices, capacity, life = 30, int(rng.integers(0, 34)), int(rng.integers(0, 9))
    cache = EmbeddingCache(vertices, 2, capacity, life)
    slow = Slow(min(capacity, vertices), life)
    asked = found = ages = 0
    for now in range(60):
        given = rng.permutation(vertices)[: rng.integers(0, 20)]
        rows = rng.random((len(given), 2), np.float32)
        cache.put(torch.from_numpy(given), torch.from_numpy(rows), now)
        slow.put(given.tolist(), rows.tolist(), now)
        wanted = torch.from_numpy(rng.integers(0, vertices, 12))
        slots = cache.find(wanted, now + 2)
        expected = [slow.find(vertex, now + 2) for vertex in wanted.tolist()]
        assert (slots >= 0).tolist() == [row is not None for row in expected]
        held = cache.rows(slots[slots >= 0]).tolist()
        assert held == [row for row in expected if row is not None]
        asked += len(wanted)
        found += len(held)
        kept = [vertex for vertex in wanted.tolist() if slow.find(vertex, now + 2)]
        ages += sum(now + 2 - slow.kept[vertex][1] for vertex in kept)
        assert len(cache) == len(slow.kept)
    assert vars(cache.hits) == {"requested": asked, "found": found, "ages": ages}


def test_a_cache_without_room_finds_nothing():
    cache = EmbeddingCache(3, 2, 0, 5)
    cache.put(torch.tensor([1]), torch.ones(1, 2), 0)
    assert cache.find(torch.tensor([1, 2]), 0).tolist() == [-1, -1]
    assert vars(cache.hits) == {"requested": 2, "found": 0, "ages": 0}


def test_sizes_that_cannot_be():
    with pytest.raises(InputError, match="capacity"):
        EmbeddingCache(3, 2, -1, 5)
    with pytest.raises(InputError, match="life"):
        EmbeddingCache(3, 2, 1, -5)
