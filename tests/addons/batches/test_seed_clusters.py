"""Seeds cluster by cluster: every seed once an epoch, and hits of caches counted one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spgnn import InputError
from spgnn.addons.batches import MemoryRows, NeighborLoader
from spgnn.addons.diskbatches import CachedRows
from spgnn.addons.diskbatches.cached_rows import hits
from spgnn.addons.diskbatches.minibatch import train
from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.comm import SoloCommunicator
from spgnn.data import write_shards
from spgnn.data.generators import block_model

CLUSTERS, SLOTS = 12, 60
GRAPH = block_model(600, 4800, classes=CLUSTERS, homophily=0.97, features=5, seed=2)


def loader(policy: str, clusters: torch.Tensor | None, **options) -> NeighborLoader:
    scores = torch.bincount(GRAPH.adjacency.indices.long(), minlength=600)
    cache = CachedRows(MemoryRows(GRAPH.x), policy, SLOTS * 4 * 5, scores=scores)
    seeds = torch.arange(600)[::2]
    return NeighborLoader(
        GRAPH,
        [4, 3],
        seeds,
        batch_size=10,
        shuffle=True,
        store=cache,
        seed_clusters=clusters,
        **options,
    )


@pytest.mark.parametrize("policy", ["lru", "degree"])
def test_hits_are_those_of_each_batch_and_more_than_in_random_order(policy):
    """The graph's classes are its clusters; a cache holds a tenth of the rows."""
    rates = []
    scores = torch.bincount(GRAPH.adjacency.indices.long(), minlength=600)
    for clusters in (None, GRAPH.y[::2]):
        made = loader(policy, clusters)
        trace = [ids for epoch in range(2) for ids in made.trace(epoch)]
        for _ in range(2):
            list(made)
        counts = made.graph.x.counts
        assert counts.hits == sum(hits(policy, trace, SLOTS, ahead=1, scores=scores))
        assert counts.rows_needed == sum(map(len, trace))
        rates.append((counts.rows_needed - counts.hits, counts.hit_rate))
    # Seeds of a cluster share neighbours; which of them a fixed cache has does not depend on that.
    assert rates[1][0] < 0.9 * rates[0][0]
    if policy == "lru":
        assert rates[1][1] > 1.5 * rates[0][1]


def test_clusters_follow_each_other_in_another_order_each_epoch():
    clusters = torch.arange(300) % 7
    made = loader("lru", clusters)
    firsts = []
    for epoch in range(2):
        order = made.order(epoch)
        assert torch.equal(order.sort().values, torch.arange(300))
        runs = clusters[order].unique_consecutive()
        assert len(runs) == 7
        firsts.append((runs.tolist(), order.tolist()))
    assert firsts[0][0] != firsts[1][0]
    assert torch.equal(loader("lru", clusters, seed=3).order(0).sort().values, torch.arange(300))


def test_the_command_finds_clusters(tmp_path):
    write_shards(GRAPH, None, 1, tmp_path / "graph")
    common = {"dataset": str(tmp_path / "graph"), "num_neighbors": "4,3", "batch_size": 10}
    common |= {"hidden": 8, "epochs": 2, "store": "disk", "cache": 4 * 5 * SLOTS}
    reports = [
        train(MiniBatchConfig.of(**common, cache_policy="lru", seed_clusters=n), SoloCommunicator())
        for n in (0, CLUSTERS)
    ]
    random, ordered = (report["features"] for report in reports)
    assert ordered["hit_rate"] > 1.3 * random["hit_rate"]
    assert reports[1]["history"][-1]["loss"] < reports[1]["history"][0]["loss"]


def test_what_is_refused(tmp_path: Path):
    for clusters, words in (
        (torch.arange(3), r"seed_clusters must be integers \[300\]"),
        (torch.rand(300), r"seed_clusters must be integers \[300\]"),
    ):
        with pytest.raises(InputError, match=words):
            loader("lru", clusters)
    with pytest.raises(InputError, match="needs shuffle=True"):
        NeighborLoader(GRAPH, [2], seed_clusters=GRAPH.y)
    for flags, words in (
        ({"distributed": "exact"}, "seed-clusters 4 needs --distributed none, not exact"),
        ({"task": "links"}, "seed-clusters 4 needs --task vertices"),
        ({"structure": "disk"}, "seed-clusters 4 needs storage.structure memory"),
    ):
        with pytest.raises(InputError, match=words):
            MiniBatchConfig.of(seed_clusters=4, **flags).check(1)
