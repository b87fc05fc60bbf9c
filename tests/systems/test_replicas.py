"""Replicated neighbourhoods: batches of the whole graph, and no message but the gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import spgnn
from spgnn.addons.batches import NeighborLoader
from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.addons.batches.graphs import N
from tests.addons.batches.test_ranks import FANOUTS, assert_same, graph, loader_of


def reached(A: Any, seeds: np.ndarray, hops: int) -> np.ndarray:
    within = np.zeros(A.shape[0])
    within[seeds] = 1
    for _ in range(hops):
        within = (within + A.T @ within > 0).astype(float)
    return np.flatnonzero(within)


def check(rank: int, parts: int) -> None:
    comm, labels = connect(), np.random.default_rng(0).integers(0, min(parts, 3), N)
    for sampler, weighted in (("neighbor", False), ("labor", True), ("ladies", True)):
        whole = graph(weighted=weighted, sparse=weighted)
        given = spgnn.distribute(whole if rank == 0 else None, partition=labels, comm=comm)
        options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "sampler": sampler}
        loader = loader_of(given, FANOUTS, "train_mask", mode="replicated", **options)
        seeds = np.flatnonzero(whole.train_mask.numpy() & (labels == rank))
        one = NeighborLoader(whole, FANOUTS, torch.from_numpy(seeds), **options)
        before = comm.ledger.copy()
        for _ in range(2):
            mine, wanted = list(loader), list(one)
            assert len(mine) == len(wanted) <= loader.steps
            for batch, other in zip(mine, wanted, strict=True):
                place = other.place
                iteration = place.epoch * loader.steps + place.number
                assert batch.place == replace(place, iteration=iteration)
                # Places of seeds are those among a rank's own vertices, by part.
                batch.input_id = other.input_id
                assert_same(batch, other)
        assert comm.ledger.since(before).operations == {}
        assert loader.counts.rows_read == 0

        pattern = whole.adjacency.to_scipy().astype(bool).astype(float)
        sizes = [
            len(reached(pattern, np.flatnonzero(whole.train_mask.numpy() & (labels == r)), 2))
            for r in range(parts)
        ]
        assert loader.strategy.replicas["vertices"] == sizes
        assert loader.strategy.replicas["factor"] == sum(sizes) / N
        assert loader.strategy.replicas["bytes"] > 0
        assert (loader.strategy.replicas["received_bytes"] > 0) == (parts > 1)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_batches_are_those_of_the_whole_graph(parts):
    run_ranks(check, parts, parts)
