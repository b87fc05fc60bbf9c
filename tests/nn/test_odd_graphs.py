"""Graphs and calls that strangers bring: no edges, a slope of zero, float64, norms made before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.nn.test_layers import Case, check_case, doubled

geometric = pytest.importorskip("torch_geometric.nn")
geometric_data = pytest.importorskip("torch_geometric.data")
GATS = ("GATConv", "GATv2Conv")


def data(**more: Any) -> Any:
    """Three vertices in a ring, and three that nothing leads to."""
    index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    return geometric_data.Data(x=x, edge_index=index, num_nodes=6, **more)


SLOPES = [
    Case(name, (4, 3), {"negative_slope": slope, "add_self_loops": loops, "heads": 2})
    for name in GATS
    for slope in (0.0, 0.2)
    for loops in (False, True)
]
SLOPES += [Case(name, (4, 3)) for name in ("GCNConv", "SAGEConv", "GraphConv", "GATConv")]
SLOPES += [Case("GCNConv", (4, 3), {"add_self_loops": False})]
SLOPES += [Case(name, (4, 3), {"edge_dim": 2, "fill_value": "mean"}, "attr") for name in GATS]


def check_layers(rank: int) -> None:
    """A layer is PyG's, forward and backward; one rank has no edges. Collective."""
    comm = connect()
    for edges in ("", "attr"):
        whole = data(edge_attr=torch.rand(3, 2, generator=torch.Generator().manual_seed(1)))
        labels = [0, 0, 0, *[comm.size - 1] * 3]
        graph = spgnn.distribute(whole, partition=labels, comm=comm).to(torch.float64)
        for case in SLOPES:
            if case.edges == edges:
                check_case(comm, case, graph, whole.apply(doubled))


@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_on_vertices_without_edges(ranks):
    run_ranks(check_layers, ranks)


@given(
    n=st.integers(1, 12),
    edges=st.integers(0, 40),
    widths=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    layer=st.sampled_from(
        [
            ("GCNConv", {}),
            ("GCNConv", {"add_self_loops": False}),
            ("SAGEConv", {}),
            ("SAGEConv", {"aggr": "max"}),
            ("SAGEConv", {"aggr": "sum", "project": True}),
            ("GraphConv", {"aggr": "max"}),
            ("SGConv", {"K": 2}),
            ("TAGConv", {"K": 1}),
        ]
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_layers_of_any_shape(n, edges, widths, layer, seed):
    rng = np.random.default_rng(seed)
    index = np.unique(rng.integers(0, n, (2, edges)), axis=1).astype(np.int64)
    x = torch.from_numpy(rng.standard_normal((n, widths[0])))
    whole = geometric_data.Data(x=x, edge_index=torch.from_numpy(index), num_nodes=n)
    graph = spgnn.distribute(whole, partition="block", comm=connect()).to(torch.float64)
    check_case(graph.comm, Case(layer[0], widths, layer[1]), graph, whole)


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
        sums = [one for one in ONCE if one not in WHOLE]
        weighted = [one for one in sums if one[0] not in ("SAGEConv", "GraphConv")]
        tried = [({}, sums if way else ONCE), ({"edge_weight": ()}, weighted)]
        if not way:
            tried.append(({"edge_attr": (3,)}, WITH_FEATURES))
        for known, layers in tried:
            torch.manual_seed(2)
            whole = repeated(**known)
            graph = spgnn.distribute(whole, comm=comm, **way).to(torch.float64)
            for name, options in layers:
                edges = "weights" if "edge_weight" in known and name not in GATS else ""
                sizes, width = (4,) if name == "CGConv" else (4, 3), {}
                if "edge_attr" in known:
                    edges, width = "attr", {"dim" if name == "CGConv" else "edge_dim": 3}
                case = Case(name, sizes, options | width, edges)
                check_case(comm, case, graph, whole.apply(doubled))


def test_repeated_edges_count_as_often_as_they_occur():
    """Other schemes have them in tests/support."""
    run_ranks(check_repeated, 3, [{}, {"cover": "minimum"}])
