"""Graphs and calls that strangers bring: no edges, a slope of zero, float64, norms made before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.comm import connect
from spgnn.testing import run_ranks

geometric = pytest.importorskip("torch_geometric.nn")
geometric_data = pytest.importorskip("torch_geometric.data")
GATS = ("GATConv", "GATv2Conv")


def data(**more: Any) -> Any:
    """Three vertices in a ring, and three that nothing leads to."""
    index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    return geometric_data.Data(x=x, edge_index=index, num_nodes=6, **more)


def same(name: str, given: Any, edges: Any = None, dtype: torch.dtype = torch.float32) -> None:
    """A layer is PyG's, forward and backward; one rank has no edges. Collective."""
    options, comm = given, connect()
    torch.manual_seed(0)
    theirs = getattr(geometric, name)(4, 3, **options).to(dtype)
    layer = getattr(ours, name)(4, 3, **options).to(dtype)
    layer.load_state_dict(theirs.state_dict())
    whole = data() if edges is None else data(edge_attr=edges)
    labels = [0, 0, 0, *[comm.size - 1] * 3]
    graph = spgnn.distribute(whole, partition=labels, comm=comm).to(dtype)
    X, x = (t.detach().to(dtype).requires_grad_() for t in (whole.x, graph.x))
    expected = theirs(X, whole.edge_index, *([] if edges is None else [edges.to(dtype)]))
    found = layer(x, graph, *([] if edges is None else [graph.edge_attr.to(dtype)]))
    torch.testing.assert_close(found, expected[graph.vertex_ids])
    expected.square().sum().backward()
    found.square().sum().backward()
    # Sums of products that may cancel are as near as what is summed.
    near = 1e-5 if dtype == torch.float32 else 1e-7
    largest = float(X.grad.abs().max())
    torch.testing.assert_close(
        x.grad, X.grad[graph.vertex_ids], rtol=near, atol=near * max(largest, 1)
    )


def check_layers(rank: int) -> None:
    for name in ("GATConv", "GATv2Conv"):
        for slope in (0.0, 0.2):
            for loops in (False, True):
                same(name, {"negative_slope": slope, "add_self_loops": loops, "heads": 2})
        same(name, {"edge_dim": 2, "fill_value": "mean"}, torch.rand(3, 2))
    for name in ("GCNConv", "SAGEConv", "GraphConv", "GATConv"):
        same(name, {}, dtype=torch.float64)
    same("GCNConv", {"add_self_loops": False}, dtype=torch.float64)


@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_on_vertices_without_edges(ranks):
    run_ranks(check_layers, ranks)


def check_second_derivatives(rank: int) -> torch.Tensor:
    """Of a maximum, where one rank has no vertices: it takes part in what is collective."""
    comm = connect()
    labels = [number % min(comm.size, 2) for number in range(6)]
    graph = spgnn.distribute(data(), partition=labels, comm=comm).to(torch.float64)
    torch.manual_seed(0)
    layer = ours.GraphConv(4, 7, aggr="max", bias=False).double()
    x = graph.x.requires_grad_()
    (first,) = torch.autograd.grad(layer(x, graph).tanh().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * torch.arange(4)).sum(), x)
    whole = torch.zeros(6, 4, dtype=torch.float64)
    whole[graph.vertex_ids] = second
    comm.all_reduce(whole).wait()
    return whole


def test_second_derivatives_where_a_rank_has_no_vertices():
    (alone,), found = (run_ranks(check_second_derivatives, ranks) for ranks in (1, 3))
    for whole in found:
        torch.testing.assert_close(whole, alone)


def test_a_graph_is_float32_or_float64():
    graph = spgnn.distribute(data(edge_weight=torch.rand(3)), comm=connect())
    layer = ours.GCNConv(4, 2, add_self_loops=False)
    narrow = layer(graph.x, graph)
    wide = layer.double()(graph.to(torch.float64).x, graph)
    assert graph.edge_weight.dtype == wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), narrow)
    torch.testing.assert_close(layer.float()(graph.to(torch.float32).x, graph), narrow)
    with pytest.raises(InputError, match="a graph is float32 or float64, got"):
        graph.to(torch.bfloat16)


def test_a_norm_made_before_stays_out_of_gin():
    """As in PyG, whose perceptrons know norms by name alone."""
    for norm in (nn.LayerNorm(5), "layer_norm"):
        theirs = geometric.GIN(4, 5, 2, 3, norm=norm)
        own = ours.GIN(4, 5, 2, 3, norm=norm)
        own.load_state_dict(theirs.state_dict())
        assert own.state_dict().keys() == theirs.state_dict().keys()


def test_a_slope_below_zero_is_refused_at_once():
    with pytest.raises(InputError, match="negative_slope"):
        ours.GATConv(4, 3, negative_slope=-0.1)


WHOLE = [  # rows have to travel
    *(("SAGEConv", {"aggr": aggr}) for aggr in ("max", "min", "std")),
    ("TransformerConv", {"heads": 2}),
]
ONCE = [
    *WHOLE,
    *(("SAGEConv", {"aggr": aggr}) for aggr in ("mean", "sum")),
    ("GraphConv", {"aggr": "add"}),
    ("GCNConv", {}),
    ("GCNConv", {"normalize": False}),
    ("SGConv", {"K": 2}),
    ("TAGConv", {"K": 2}),
    *((name, {"heads": 2, "add_self_loops": loops}) for name in GATS for loops in (True, False)),
]
WITH_FEATURES = [
    *((name, {"fill_value": fill}) for name in GATS for fill in ("mean", "add", "max", 0.5)),
    *((name, {"add_self_loops": False}) for name in GATS),
    ("TransformerConv", {"heads": 2}),
    *(("CGConv", {"aggr": aggr}) for aggr in ("add", "mean", "max")),
]


def repeated(**more: Any) -> Any:
    """Twelve vertices, edges and self-loops that occur once to five times, in no order."""
    draw = torch.Generator().manual_seed(1)
    ends = torch.randint(0, 11, (2, 40), generator=draw)
    ends = torch.cat((ends, ends[:, :15], ends[:, :4], torch.tensor([3, 3, 5, 0]).repeat(2, 1)), 1)
    ends = ends[:, torch.randperm(ends.shape[1], generator=draw)]
    known = {name: torch.rand(ends.shape[1], *shape) for name, shape in more.items()}
    x = torch.randn(12, 4, generator=draw, dtype=torch.float64)
    return geometric_data.Data(x=x, edge_index=ends, num_nodes=12, **known)


def check_repeated(rank: int, ways: list[dict[str, Any]]) -> None:
    """Each edge counts in every layer, weighted or not, forward and backward. Collective."""
    comm = connect()
    for way in ways:
        sums = [(name, options) for name, options in ONCE if (name, options) not in WHOLE]
        weighted = [one for one in sums if one[0] not in ("SAGEConv", "GraphConv")]
        tried = [({}, sums if way else ONCE), ({"edge_weight": ()}, weighted)]
        if not way:
            tried.append(({"edge_attr": (3,)}, WITH_FEATURES))
        for known, layers in tried:
            torch.manual_seed(2)
            data = repeated(**known)
            graph = spgnn.distribute(data, comm=comm, **way).to(torch.float64)
            for name, options in layers:
                check_one_repeated(name, options, data, graph)


def check_one_repeated(name: str, options: dict[str, Any], data: Any, graph: Any) -> None:
    comm, attr = graph.comm, data.edge_attr
    width = {} if attr is None else {"dim" if name == "CGConv" else "edge_dim": 3}
    torch.manual_seed(0)
    sizes = (4,) if name == "CGConv" else (4, 3)
    theirs = getattr(geometric, name)(*sizes, **options, **width).double()
    layer = getattr(ours, name)(*sizes, **options, **width).double()
    layer.load_state_dict(theirs.state_dict())
    ids = graph.vertex_ids
    X, x = (t.detach().clone().requires_grad_() for t in (data.x, graph.x))
    weights = () if data.edge_weight is None or name in GATS else (data.edge_weight.double(),)
    expected = theirs(X, data.edge_index, *(weights if attr is None else (attr.double(),)))
    found = layer(x, graph, *(() if attr is None else (graph.edge_attr.double(),)))
    expected.tanh().sum().backward()
    found.tanh().sum().backward()
    gradients = {key: p.grad for key, p in layer.named_parameters()}
    pairs = [(found, expected[ids]), (x.grad, X.grad[ids])]
    for key, parameter in theirs.named_parameters():
        comm.all_reduce(gradients[key]).wait()
        pairs.append((gradients[key], parameter.grad))
    for ours_, theirs_ in pairs:
        torch.testing.assert_close(
            ours_, theirs_, rtol=1e-6, atol=1e-6, msg=lambda text: f"{name} {options}: {text}"
        )


def test_repeated_edges_count_as_often_as_they_occur():
    check_repeated(0, [{}])
    ways = [{}, {"cover": "row"}, {"cover": "minimum"}, {"algo": "vertex-cut"}]
    run_ranks(check_repeated, 3, ways)
    run_ranks(check_repeated, 4, [{"algo": "1.5d", "c": 2, "cover": "minimum"}, {"algo": "2d"}])
