"""PyG's modules on ranks without edges, or whose first vertex has no neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as g
from torch_geometric.data import Data
from torch_geometric.utils import degree

import spgnn
from spgnn.testing import run_ranks

N, F = 12, 4
AGGREGATIONS: tuple[Any, ...] = (
    "median",
    ["median", "softmax"],
    lambda: g.aggr.QuantileAggregation([0.2, 0.9], fill_value=0.5),
    lambda: g.aggr.SortAggregation(2),
    lambda: g.aggr.SetTransformerAggregation(F),
    lambda: g.aggr.GraphMultisetTransformer(F, 2),
    lambda: g.aggr.LCMAggregation(F, F),
)
# Three ranks: the first has edges, of the second only the last vertex, the third none at all.
LABELS = np.repeat([0, 1, 2], 4)
EDGES = torch.tensor([[0, 5, 9, 1, 2, 8, 3, 10, 0], [0, 0, 0, 1, 2, 2, 7, 7, 7]])


def data() -> Data:
    draw = torch.Generator().manual_seed(0)
    return Data(x=torch.randn(N, F, generator=draw), edge_index=EDGES)


def model_of(aggregation) -> nn.Module:
    torch.manual_seed(0)
    conv = g.SimpleConv(aggregation() if callable(aggregation) else aggregation)
    width = conv((data().x, data().x), EDGES).flatten(1).shape[1]
    return nn.ModuleList((conv, nn.Linear(width, 3)))


def outputs(model: nn.Module, x, edge_index) -> torch.Tensor:
    conv, linear = model
    return linear(conv((x, x), edge_index).flatten(1))


def on_ranks(rank: int) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    graph = spgnn.distribute(data(), partition=LABELS)
    found = []
    for aggregation in AGGREGATIONS:
        model = graph.replicate(model_of(aggregation))
        out = outputs(model, graph.x, graph.edge_index)
        graph.mean(out.square()).sum().backward()
        graph.average_gradients(model)
        rows = graph.gather(out.detach())
        gradients = [p.grad.numpy() for p in model.parameters()]
        found.append((None if rows is None else rows.numpy(), gradients))
    return found


@pytest.mark.filterwarnings("ignore")
def test_aggregations_need_no_neighbours():
    """PyG's quantiles fail where the first vertex has none, others where nobody has."""
    ranks = run_ranks(on_ranks, 3)
    for k, aggregation in enumerate(AGGREGATIONS):
        model = model_of(aggregation)
        out = outputs(model, data().x, EDGES)
        out.square().mean(0).sum().backward()
        np.testing.assert_allclose(ranks[0][k][0], out.detach(), rtol=1e-4, atol=1e-6)
        for own in ranks:
            for gradient, p in zip(own[k][1], model.parameters(), strict=True):
                np.testing.assert_allclose(gradient, p.grad, rtol=1e-4, atol=1e-6)


def sums_at_sources(x: torch.Tensor, edges: Any) -> list[torch.Tensor]:
    """What convolutions and scripts do with the sources of edges."""
    source, target = edges
    wide = source[:, None].expand(-1, 2)
    empty = source[:, None].expand(-1, F)[:, :0]
    return [
        degree(source, len(x)),
        degree(source, len(x), dtype=torch.long),
        torch.zeros(len(x), F).scatter_add(0, source[:, None].expand(-1, F), x[target]),
        torch.zeros(len(x), F).scatter_add(0, wide, x[target]),  # the first columns alone
        torch.ones(len(x), F).index_add(0, source, x[target], alpha=0.5),
        torch.ones(len(x), 0).scatter_add(0, empty, x[target][:, :0]),
    ]


CONVOLUTIONS = {
    "ChebConv": lambda: g.ChebConv(F, 3, 3),
    "ChebConv rw": lambda: g.ChebConv(F, 3, 3, normalization="rw"),
    "GCNConv": lambda: g.GCNConv(F, 3),
    "ARMAConv": lambda: g.ARMAConv(F, 3),
    "GATConv": lambda: g.GATConv(F, 3),
    "TAGConv": lambda: g.TAGConv(F, 3),
}
# Ranks without in-edges, without any edge, without vertices; and graphs without edges.
WHERE = {
    "no in-edges": (EDGES, LABELS),
    "no edges": (EDGES[:, :6], np.repeat([0, 0, 1], 4)),
    "no vertices": (EDGES, np.repeat([0, 2], 6)),
    "empty": (EDGES[:, :0], LABELS),
}


def check_sums(rank: int) -> None:
    x = data().x
    for edges, labels in WHERE.values():
        whole = Data(x=x, edge_index=edges)
        graph = spgnn.distribute(whole if rank == 0 else None, partition=labels)
        ids = graph.vertex_ids
        found = sums_at_sources(graph.x, graph.edge_index)
        expected = sums_at_sources(x, edges)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other[ids])
        source = graph.edge_index[0]
        narrow = graph.x.gather(0, source[:, None].expand(-1, 2))
        assert torch.equal(narrow, graph.x[source][:, :2])
        for make in CONVOLUTIONS.values():
            torch.manual_seed(0)
            model = graph.replicate(make())
            out = model(graph.x, graph.edge_index)
            torch.manual_seed(0)
            alone = make()
            torch.testing.assert_close(out, alone(x, edges)[ids], rtol=1e-4, atol=1e-5)
            graph.mean(out.square()).sum().backward()
            graph.average_gradients(model)
            alone(x, edges).square().mean(0).sum().backward()
            for p, q in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
        if edges.numel():
            with pytest.raises(spgnn.InputError, match="of negative weights, takes the largest"):
                graph.replicate(g.ChebConv(F, 3, 2))(
                    graph.x, graph.edge_index, -torch.ones(graph.local_edge_index.shape[1])
                )


@pytest.mark.filterwarnings("ignore")
def test_sums_at_sources_where_there_are_none():
    run_ranks(check_sums, 3)
