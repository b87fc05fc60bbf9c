"""Batches of every sampler: what layers make of them, and what is in them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import spgnn
from spgnn import CSR
from spgnn import nn as ours
from spgnn.data import Graph
from spgnn.loader import ClusterSampler, SaintSampler
from tests.loader.graphs import CLASSES, F_IN, N, directed

X = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(0))


def graph(*, weighted: bool = False) -> Graph:
    A = CSR.from_scipy(directed(weighted=weighted))
    return Graph("small", A, True, x=X, y=torch.arange(N) % CLASSES)


WHOLE: list[dict[str, Any]] = [
    {"sampler": "neighbor", "resample": True},
    {"sampler": "neighbor", "disjoint": True},
    {"sampler": "neighbor", "subgraph_type": "induced"},
    {"sampler": "labor"},
    {"sampler": "ladies"},
    {"sampler": "fastgcn"},
    {"sampler": "neighbor", "weight_attr": "edge_weight"},
]


@pytest.mark.parametrize("options", WHOLE, ids=str)
@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GIN"])
def test_whole_neighbourhoods_of_every_sampler(kind, options):
    record = graph(weighted="weight_attr" in options)
    model = getattr(ours, kind)(F_IN, 6, 2, CLASSES)
    wanted = model(X, spgnn.distribute(record))
    for batch in spgnn.NeighborLoader(record, [-1, -1], batch_size=13, shuffle=True, **options):
        made = model(batch.x, batch.layers)
        rows = batch.n_id[: batch.batch_size]
        torch.testing.assert_close(made, wanted[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sampler", ["labor", "ladies", "fastgcn"])
def test_factors_of_samplers_count(sampler):
    """A sum over what was drawn is that of the factors the sampler gave."""
    loader = spgnn.NeighborLoader(graph(), [3], batch_size=20, sampler=sampler, edge_ids=True)
    layer, mean = ours.GraphConv(F_IN, 3, bias=False), ours.SAGEConv(F_IN, 3, root_weight=False)
    with torch.no_grad():
        layer.lin_root.weight.zero_()
    for batch in loader:
        (block,) = batch.layers
        assert block.factors is not None
        A = torch.zeros(block.rows, block.columns)
        column, row = block.local_edge_index
        A.index_put_((row, column), block.factors, accumulate=True)
        wanted = layer.lin_rel(A @ batch.x)
        torch.testing.assert_close(layer(batch.x, [block][0]), wanted, rtol=1e-5, atol=1e-5)
        drawn = A.sum(1, keepdim=True)
        wanted = mean.lin_l(torch.where(drawn > 0, A @ batch.x / drawn.clamp(min=1e-9), 0))
        torch.testing.assert_close(mean(batch.x, block), wanted, rtol=1e-5, atol=1e-5)


def test_subgraphs_as_batches():
    record = graph()
    labels = torch.arange(N) % 5
    cluster = ClusterSampler(record.adjacency, labels, layers=2)
    saint = SaintSampler(record.adjacency, "walk", 6, layers=2)
    model = ours.GraphSAGE(F_IN, 6, 2, CLASSES)
    clusters = spgnn.NeighborLoader(record, [], torch.arange(5), sampler=cluster, batch_size=2)
    seen = []
    for batch in clusters:
        assert batch.batch_size == batch.num_nodes
        assert model(batch.x, batch.layers).shape == (batch.num_nodes, CLASSES)
        assert set(labels[batch.n_id].tolist()) == set(batch.input_id.tolist())
        seen.append(batch.n_id)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(N))
    for batch in spgnn.NeighborLoader(record, [], batch_size=20, sampler=saint):
        assert model(batch.x, batch.layers).shape == (batch.num_nodes, CLASSES)


def test_batches_go_when_they_are_forgotten():
    """Not when the collector of cycles runs."""
    loader = spgnn.NeighborLoader(graph(), [3, 2], batch_size=9, num_workers=0)
    model = ours.GraphSAGE(F_IN, 6, 2, CLASSES)
    gc.collect()
    gc.disable()
    try:
        batch = loader.sample(0, 0)
        blocks = [weakref.ref(block.pattern) for block in batch.layers]
        model(batch.x, batch.layers, batch.keys).sum().backward()
        del batch
        assert all(block() is None for block in blocks)
    finally:
        gc.enable()
