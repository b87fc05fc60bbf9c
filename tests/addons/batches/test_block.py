"""Layers on the blocks of a batch: of whole neighbourhoods, what they make of the whole graph."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import spgnn
from spgnn import CSR, InputError
from spgnn import nn as ours
from spgnn.addons.batches.sampled_graph import sampled_graph
from spgnn.data import Graph
from spgnn.exchange import Step
from spgnn.graph.block import Block, Degrees, block_pattern
from spgnn.graph.protocol import RECIPES, Aggregation
from tests.addons.batches.graphs import CLASSES, F_IN, N, attributes, directed

SEEDS = torch.tensor([7, 5, 31, 0, 58, 12])
LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], bool]] = [
    ("GCNConv", (F_IN, 3), {}, False),
    ("GCNConv", (F_IN, 30), {"bias": False}, True),
    ("GCNConv", (F_IN, 3), {"improved": True}, True),
    ("GCNConv", (F_IN, 3), {"add_self_loops": False}, True),
    ("GCNConv", (F_IN, 3), {"normalize": False}, True),
    *(("SAGEConv", (F_IN, 3), {"aggr": aggr}, False) for aggr in ("mean", "sum", "max", "min")),
    ("SAGEConv", (F_IN, 30), {"normalize": True, "project": True}, True),
    ("SAGEConv", (F_IN, 3), {"root_weight": False}, False),
    *(("GraphConv", (F_IN, 3), {"aggr": aggr}, aggr == "add") for aggr in ("add", "mean", "max")),
    ("GATConv", (F_IN, 3), {"heads": 2}, False),
    ("GATConv", (F_IN, 3), {"heads": 2, "add_self_loops": False, "residual": True}, True),
    ("GATConv", (F_IN, 3), {"heads": 2, "concat": False, "edge_dim": 3}, False),
    ("GATv2Conv", (F_IN, 3), {"heads": 2}, False),
    ("GATv2Conv", (F_IN, 3), {"share_weights": True, "edge_dim": 3}, True),
    ("SGConv", (F_IN, 3), {"K": 1}, True),
    ("TAGConv", (F_IN, 3), {"K": 1}, True),
    ("LGConv", (), {}, True),
    ("APPNP", (), {"K": 1, "alpha": 0.2}, False),
]


def name_of(case: tuple[Any, ...]) -> str:
    name, _, options, weighted = case
    return f"{name} {options} {'weighted' if weighted else ''}"


def graph_of(A: CSR, x: Tensor) -> spgnn.DistGraph:
    return spgnn.distribute(A.to_scipy().astype(bool) if A.values is None else A.to_scipy(), x=x)


def whole_blocks(A: CSR, hops: int, **options: Any) -> tuple[Tensor, list[Block]]:
    """Vertices and blocks of the whole neighbourhoods of SEEDS, the outermost hop first."""
    graph = sampled_graph(Graph("small", A, True))
    graph.edges.update(edge_attr=attributes(A), edge_type=torch.arange(A.nnz) % 3)
    (batch,) = spgnn.NeighborLoader(graph, [-1] * hops, SEEDS, batch_size=N, **options)
    return batch.n_id, batch.layers


def gradients(out: Tensor, *wanted: Tensor) -> list[Tensor]:
    G = torch.sin(torch.arange(float(out.numel()))).view_as(out)
    return list(torch.autograd.grad(out, wanted, G))


@pytest.mark.parametrize("case", LAYERS, ids=name_of)
def test_layer_on_a_whole_neighbourhood_is_that_on_the_graph(case):
    name, given, options, weighted = case
    A = CSR.from_scipy(directed(weighted=weighted))
    torch.manual_seed(0)
    x = torch.randn(N, F_IN, requires_grad=True)
    layer = getattr(ours, name)(*given, **options)
    whole = graph_of(A, x.detach())
    nodes, (block,) = whole_blocks(A, 1)
    keys: dict[str, Any] = {}
    if options.get("edge_dim"):
        keys = {"edge_attr": attributes(A)}
    wanted = layer(x, whole, **keys)[SEEDS]
    made = layer(x[nodes], block)
    parameters = [x, *layer.parameters()]
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(
        gradients(made, *parameters), gradients(wanted, *parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_matrices_of_every_kind_are_those_of_the_graph(weighted):
    A = CSR.from_scipy(directed(weighted=weighted))
    x = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(0))
    whole, (nodes, (block,)) = graph_of(A, x), whole_blocks(A, 1)
    for kind in RECIPES:
        wanted = (whole.matrix(kind) @ x)[SEEDS]
        made = block.matrix(kind).forward(x[nodes], Step())
        torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-5, msg=kind)
    for graph in (whole, block):
        with pytest.raises(InputError, match="matrix rows: choose one of"):
            graph.matrix("rows")


def test_layers_that_look_at_edges():
    A = CSR.from_scipy(directed())
    x = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    inner = torch.nn.Sequential(torch.nn.Linear(F_IN, 5), torch.nn.Linear(5, 3))
    nodes, (block,) = whole_blocks(A, 1)
    whole = graph_of(A, x)
    layer = ours.GINEConv(inner, edge_dim=3)
    wanted = layer(x, whole, attributes(A))[SEEDS]
    torch.testing.assert_close(layer(x[nodes], block), wanted, rtol=1e-5, atol=1e-5)
    relational = ours.RGCNConv(F_IN, 3, 3, num_bases=2)
    wanted = relational(x, whole, torch.arange(A.nnz) % 3)[SEEDS]
    torch.testing.assert_close(relational(x[nodes], block), wanted, rtol=1e-5, atol=1e-5)


def test_rows_of_which_edges_were_left_out_stand_for_all():
    A = CSR.from_scipy(directed(loops=False))
    row = int(A.row_lengths.argmax())
    begin, end = int(A.indptr[row]), int(A.indptr[row + 1])
    drawn = A.indices[begin : begin + 2].long()
    nodes = torch.tensor([row, *drawn])
    degree = A.row_lengths[nodes]
    known = Degrees(degree, degree.float())
    pattern = block_pattern(torch.tensor([0, 2]), torch.tensor([1, 2]), 3)
    block, H = Block(pattern, nodes, degrees=lambda: known), torch.tensor([[1.0], [10.0], [100.0]])
    d = (degree + 1).double()
    assert block.matrix("none").forward(H, Step()).item() == (end - begin) / 2 * 110
    assert block.matrix("row").forward(H, Step()).item() == 55
    mean = (1 + (end - begin) / 2 * 110) / d[0].item()
    assert block.matrix("mean").forward(H, Step()).item() == pytest.approx(mean)
    wanted = 1 / d[0] + (end - begin) / 2 * (10 / (d[0] * d[1]).sqrt() + 100 / (d[0] * d[2]).sqrt())
    assert block.matrix("sym").forward(H, Step()).item() == pytest.approx(wanted.item())
    weighted = Block(pattern, nodes, factors=torch.tensor([2.0, 3.0]), degrees=lambda: known)
    assert weighted.matrix("none").forward(H, Step()).item() == 320
    assert weighted.matrix("row").forward(H, Step()).item() == 64


@pytest.mark.parametrize("gradient", [False, True])
def test_cheaper_order_of_a_block(gradient):
    few = Block(block_pattern(torch.tensor([0, 40]), torch.arange(40), 41), torch.arange(41))
    for widths, first in (((8, 8), False), ((4000, 1), True)):
        H, W = torch.ones(41, widths[0], requires_grad=gradient), torch.ones(widths[1], widths[0])
        assert few.operand(Aggregation(H, W))[1] is first


def test_several_hops_of_one_block_are_refused():
    nodes, (block,) = whole_blocks(CSR.from_scipy(directed()), 1)
    x = torch.randn(len(nodes), F_IN)
    for layer in (ours.SGConv(F_IN, 3, K=2), ours.APPNP(2, 0.1), ours.TAGConv(F_IN, 3)):
        with pytest.raises(InputError, match="several hops"):
            layer(x, block)
    with pytest.raises(InputError, match="2 layers needs as many graphs, got 1"):
        ours.GCN(F_IN, 8, 2, 3)(x, [block])


def test_gradient_of_attention_outlives_its_block():
    A = CSR.from_scipy(directed())
    layer = ours.GATConv(F_IN, 3, heads=2)
    found = []
    for forgotten in (False, True):
        nodes, blocks = whole_blocks(A, 1)
        x = torch.ones(len(nodes), F_IN, requires_grad=True)
        out = layer(x, blocks[0])
        if forgotten:
            blocks.clear()
        found.append(gradients(out, x)[0])
    torch.testing.assert_close(*found, rtol=0, atol=0)


# Blocks of every sampler.

X = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(0))


def record(*, weighted: bool = False) -> Graph:
    A = CSR.from_scipy(directed(weighted=weighted))
    return Graph("small", A, True, x=X, y=torch.arange(N) % CLASSES)


WHOLE: list[dict[str, Any]] = [
    {"sampler": "neighbor", "resample": True},
    {"sampler": "neighbor", "disjoint": True},
    {"sampler": "neighbor", "subgraph_type": "induced"},
    {"sampler": "labor"},
    {"sampler": "neighbor", "weight_attr": "edge_weight"},
]


@pytest.mark.parametrize("options", WHOLE, ids=str)
@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GIN"])
def test_whole_neighbourhoods_of_every_sampler(kind, options):
    check_whole(kind, options)


def check_whole(kind: str, options: dict[str, Any]) -> None:
    graph = record(weighted="weight_attr" in options)
    model = getattr(ours, kind)(F_IN, 6, 2, CLASSES)
    wanted = model(X, spgnn.distribute(graph))
    for batch in spgnn.NeighborLoader(graph, [-1, -1], batch_size=13, shuffle=True, **options):
        made = model(batch.x, batch.layers)
        rows = batch.n_id[: batch.batch_size]
        torch.testing.assert_close(made, wanted[rows], rtol=1e-5, atol=1e-5)


def test_factors_of_samplers_count():
    check_factors("labor")


def check_factors(sampler: str) -> None:
    """A sum over what was drawn is that of the factors the sampler gave."""
    loader = spgnn.NeighborLoader(record(), [3], batch_size=20, sampler=sampler, edge_ids=True)
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


def test_batches_go_when_they_are_forgotten():
    """Not when the collector of cycles runs."""
    loader = spgnn.NeighborLoader(record(), [3, 2], batch_size=9, num_workers=0)
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
