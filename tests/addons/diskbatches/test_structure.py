"""Batches of a graph whose structure lies on a disk are those of the graph in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import spgnn
from spgnn import InputError
from spgnn.addons.batches import LinkNeighborLoader
from spgnn.addons.diskbatches import DiskPattern, degrees_of, disk_pattern
from spgnn.data import open_shards, write_shards
from spgnn.data.generators import block_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "graph"
    graph = block_model(300, 2400, classes=3, homophily=0.7, features=5, seed=1)
    moved = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    write_shards(replace(graph, vertex_ids=moved), None, 1, path)
    return path


def on_disk(directory, **options: Any) -> DiskPattern:
    shards = open_shards(directory)
    indptr = torch.from_numpy(shards.pattern().indptr.copy())
    return DiskPattern(*shards.place(0, "indices"), indptr, len(indptr) - 1, **options)


def loader(directory, **options: Any) -> spgnn.NeighborLoader:
    return spgnn.NeighborLoader(str(directory), [4, 3, 2], **{"batch_size": 32, **options})


@pytest.mark.parametrize("policy", [None, "none", "degree", "lru", "belady"])
def test_batches_are_those_in_memory(directory, policy, monkeypatch):
    monkeypatch.setattr(disk_pattern, "ENTRIES", 150)
    options = (
        {"shuffle": True, "num_workers": 3, "edge_ids": True},
        {"resample": True, "superbatch": 3},
        {"replace": True, "num_workers": 0, "edge_ids": True},
        {"sampler": "labor", "shuffle": True, "edge_ids": True},
    )
    check_same(directory, policy, options)


def check_same(directory, policy, cases):
    for options in cases:
        pattern = on_disk(directory)
        if policy is not None:
            pattern = pattern.cached(
                policy, 2000, degrees_of(pattern) if policy == "degree" else None
            )
        wanted, found = (
            loader(directory, **options),
            loader(directory, structure=pattern, **options),
        )
        for one, other in zip(wanted, found, strict=True):
            assert torch.equal(one.n_id, other.n_id)
            assert torch.equal(one.edge_index, other.edge_index)
            assert torch.equal(one.x, other.x)
            if "edge_ids" in options:
                assert torch.equal(one.e_id, other.e_id)
            for block, same in zip(one.layers, other.layers, strict=True):
                assert torch.equal(block.degrees.edges, same.degrees.edges)
                assert torch.equal(block.degrees.weight, same.degrees.weight)
        counts = pattern.counts
        assert 0 < counts.rows_read <= counts.rows_needed - counts.hits
        assert (counts.hits > 0) == (policy not in (None, "none"))


def test_edges_on_a_disk_are_numbered_as_the_data_lists_them(directory):
    geometric = pytest.importorskip("torch_geometric.data")
    pattern = loader(directory).graph.structure
    rows = torch.arange(300).repeat_interleave(pattern.row_lengths)
    index = torch.stack((pattern.indices.long(), rows))
    index = index[:, torch.randperm(pattern.nnz, generator=torch.Generator().manual_seed(0))]
    data = geometric.Data(x=torch.rand(300, 2), edge_index=index)
    for batch in spgnn.NeighborLoader(data, [3, 2], batch_size=50, structure=on_disk(directory)):
        assert torch.equal(batch.n_id[batch.edge_index], index[:, batch.e_id])


def test_what_needs_the_structure_in_memory(directory):
    pattern = on_disk(directory)
    for options, said in (
        ({"disjoint": True}, "disjoint needs the structure in memory"),
        ({"subgraph_type": "induced"}, "subgraph_type needs the structure in memory"),
    ):
        with pytest.raises(InputError, match=said):
            loader(directory, structure=pattern, **options)
    with pytest.raises(InputError, match=r"structure has 300 rows of [0-9]+ entries, sbm"):
        spgnn.NeighborLoader("sbm", [2], structure=pattern)
    source = loader(directory, structure=pattern).graph
    with pytest.raises(InputError, match="its structure lies on a disk; this needs it in memory"):
        LinkNeighborLoader(source, [2])
