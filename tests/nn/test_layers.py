"""Every layer against PyG's of the same name: state_dicts both ways, outputs, all gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spgnn
from spgnn import CSR, InputError
from spgnn import nn as ours
from spgnn.comm import Communicator, connect
from spgnn.graph import Propagated, propagate_
from spgnn.graph.distgraph import DistGraph
from spgnn.kernels.torch_kernels import dropout_mask
from spgnn.nn import DropoutKeys
from spgnn.testing import run_ranks

geometric = pytest.importorskip("torch_geometric.nn")
geometric_data = pytest.importorskip("torch_geometric.data")

N, EDGES, F_IN, RELATIONS = 41, 170, 6, 4


class Case(NamedTuple):
    """A layer of PyG, and what to make and call it with."""

    name: str
    given: tuple[Any, ...]
    options: Mapping[str, Any] = MappingProxyType({})
    # Of the graph: 'weights', 'types' or 'attr'.
    edges: str = ""


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(F_IN, 5), nn.Tanh(), nn.Linear(5, 3))


def matrices() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3 * F_IN))


CASES = [
    Case("GCNConv", (F_IN, 3)),
    Case("GCNConv", (F_IN, 9), {"bias": False}, "weights"),
    Case("GCNConv", (F_IN, 3), {"improved": True, "cached": True}),
    Case("GCNConv", (F_IN, 9), {"improved": True}, "weights"),
    Case("GCNConv", (F_IN, 3), {"add_self_loops": False}),
    Case("GCNConv", (F_IN, 3), {"normalize": False}, "weights"),
    *(
        Case("SAGEConv", (F_IN, width), {"aggr": aggr})
        for aggr in ("mean", "sum", "add", "max", "min", "std")
        for width in (3, 9)
    ),
    Case("SAGEConv", (F_IN, 3), {"normalize": True, "root_weight": False, "bias": False}),
    Case("SAGEConv", (F_IN, 3), {"project": True}),
    Case("SAGEConv", (F_IN, 9), {"project": True, "aggr": "max"}),
    Case("GINConv", (perceptron,), {"eps": 0.3, "train_eps": True}),
    Case("GINConv", (nn.Tanh,), {"eps": 0.3}),
    Case("GINEConv", (perceptron,), {"edge_dim": 2, "train_eps": True}, "attr"),
    *(
        Case("NNConv", (F_IN, 3, matrices), options, "attr")
        for options in ({}, {"aggr": "mean", "root_weight": False, "bias": False})
    ),
    Case("NNConv", (F_IN, 3, lambda: nn.Linear(2, 3 * F_IN, bias=False)), {}, "attr"),
    *(
        Case("CGConv", (F_IN,), options, "attr" if "dim" in options else "")
        for options in (
            {},
            {"dim": 2, "batch_norm": True},
            {"dim": 2, "aggr": "max", "bias": False},
        )
    ),
    *(
        Case("TransformerConv", (F_IN, width), options, "attr" if "edge_dim" in options else "")
        for width in (2, 9)
        for options in (
            {"heads": 2},
            {"heads": 2, "edge_dim": 2, "beta": True},
            {"heads": 3, "edge_dim": 2, "concat": False, "bias": False},
            {"edge_dim": 2},
        )
    ),
    Case("GraphConv", (F_IN, 3), {}, "weights"),
    Case("GraphConv", (F_IN, 9), {"aggr": "mean"}),
    Case("GraphConv", (F_IN, 9), {"aggr": "max", "bias": False}),
    Case("SGConv", (F_IN, 3), {"K": 2}),
    Case("SGConv", (F_IN, 9), {"K": 3, "add_self_loops": False, "bias": False}, "weights"),
    Case("APPNP", (3, 0.1)),
    Case("APPNP", (2, 0.2), {"add_self_loops": False}),
    Case("LGConv", ()),
    Case("TAGConv", (F_IN, 3)),
    Case("TAGConv", (F_IN, 9), {"K": 2, "bias": False}),
    Case("TAGConv", (F_IN, 3), {"normalize": False, "K": 2}, "weights"),
    Case("GCN2Conv", (F_IN, 0.1, 0.5, 2)),
    Case("GCN2Conv", (F_IN, 0.1), {"shared_weights": False}, "weights"),
    *(
        Case(name, (F_IN, 4), options, "attr" if "edge_dim" in options else "")
        for name in ("GATConv", "GATv2Conv")
        for options in (
            {},
            {"heads": 3, "residual": True},
            {"heads": 2, "concat": False, "negative_slope": 0.1},
            {"heads": 4, "add_self_loops": False, "bias": False},
            {"heads": 2, "edge_dim": 2, "residual": True},
            {"edge_dim": 2, "fill_value": 0.7, "concat": False},
            {"heads": 2, "edge_dim": 2, "fill_value": "max"},
            {"edge_dim": 2, "fill_value": "mul", "bias": False},
            {"heads": 2, "edge_dim": 2, "add_self_loops": False},
        )
    ),
]
# Kinds that take sparse features, and A·X where their aggregation is a sum; and that sum's matrix.
STORED = {"GCNConv": "sym", "SGConv": "sym", "SAGEConv": "row"}
STORED |= dict.fromkeys(("GraphConv", "TAGConv", "GINConv"), "none")


def graph_data(edges: str, width: int) -> Any:
    """A directed graph with loops, repeated edges of several types, and isolated vertices."""
    rng = np.random.default_rng(5)
    index = rng.integers(0, N - 3, (2, EDGES))
    if edges != "types":
        index = np.unique(index, axis=1)
    count = index.shape[1]
    more: dict[str, Tensor] = {}
    if edges == "weights":
        more["edge_weight"] = torch.from_numpy(rng.uniform(0.1, 2, count)).float()
    if edges == "types":
        more["edge_attr"] = torch.from_numpy(rng.integers(0, RELATIONS, count))
    if edges == "attr":
        more["edge_attr"] = torch.from_numpy(rng.standard_normal((count, 2))).float()
    x = torch.from_numpy(rng.standard_normal((N, width))).float()
    return geometric_data.Data(x=x, edge_index=torch.from_numpy(index), **more)


def distributed(data: Any, comm: Communicator) -> DistGraph:
    """Cut at random."""
    labels = np.random.default_rng(1).integers(0, comm.size, N)
    return spgnn.distribute(data, partition=labels, comm=comm)


def made(kind: Callable[..., nn.Module], case: Case) -> nn.Module:
    given = [part() if callable(part) else part for part in case.given]
    return kind(*given, **case.options)


def weights(layer: nn.Module) -> dict[str, Tensor]:
    """Any, by name."""
    rng = np.random.default_rng(6)
    return {
        name: torch.from_numpy(rng.standard_normal(tuple(tensor.shape)))
        for name, tensor in sorted(layer.state_dict().items())
    }


def close(found: Tensor, expected: Tensor, why: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=why)


def storages(case: Case, layer: nn.Module, graph: DistGraph) -> dict[str, Any]:
    """The rows of x as this layer takes them."""
    found: dict[str, Any] = {"dense": graph.x.clone().requires_grad_()}
    sums = case.options.get("aggr", "mean") not in ("max", "min", "std") and case.given != (
        nn.Tanh,
    )
    if case.edges or case.name not in STORED or not sums or case.options.get("improved"):
        return found
    found["sparse"] = CSR.from_scipy(sp.csr_array(graph.x.numpy()))
    means = {"sum": "none", "add": "none", "mean": "row"}
    kind = means.get(case.options.get("aggr", ""), STORED[case.name])
    kind = "plain" if "add_self_loops" in case.options else kind
    kind = "none" if case.options.get("normalize") is False else kind
    if layer.accepts_propagated:
        found["A·X"] = propagate_(graph.matrix(kind), graph.x.clone(), 2, keep=True)
    return found


def check_case(comm: Communicator, case: Case, graph: DistGraph, data: Any) -> None:
    theirs = made(getattr(geometric, case.name), case).double()
    layer = made(getattr(ours, case.name), case).double()
    theirs.load_state_dict(weights(theirs))
    layer.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(layer.state_dict())
    X = data.x.clone().requires_grad_()
    edge = data.edge_weight if case.edges == "weights" else data.edge_attr
    between = [edge] if case.edges else []
    if case.options.get("improved") and not case.edges:
        # Without weights PyG's layer adds one loop, whatever it is told.
        between = [torch.ones(data.edge_index.shape[1]).double()]
    more = [doubled(graph.edge_attr)] if case.edges in ("types", "attr") else []
    initial = case.name == "GCN2Conv"
    expected = theirs(*([X, X * 2] if initial else [X]), data.edge_index, *between)
    factors = torch.from_numpy(np.random.default_rng(8).standard_normal(expected.shape))
    (expected * factors).sum().backward()
    ids = graph.vertex_ids
    for storage, x in storages(case, layer, graph).items():
        why = f"{case} {storage}"
        layer.zero_grad()
        z = layer(*([x, x * 2] if initial else [x]), graph, *more)
        close(z, expected[ids], why)
        (z * factors[ids]).sum().backward()
        if storage == "dense":
            close(x.grad, X.grad[ids], why)
        learned = dict(layer.named_parameters())
        assert learned.keys() == dict(theirs.named_parameters()).keys()
        for name, p in theirs.named_parameters():
            q = learned[name]
            gradient = torch.zeros_like(q) if q.grad is None else q.grad.clone()
            comm.all_reduce(gradient).wait()
            close(gradient, p.grad, f"{why} {name}")


def doubled(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


def check(rank: int, cases: Sequence[Case] = tuple(CASES)) -> int:
    comm = connect()
    graphs: dict[tuple[str, int], tuple[Any, DistGraph]] = {}
    for case in cases:
        width = 8 if case.given[:1] == (8,) else F_IN
        key = case.edges, width
        if key not in graphs:
            data = graph_data(*key)
            graph = distributed(data, comm).to(torch.float64)
            graphs[key] = data.apply(doubled), graph
        data, graph = graphs[key]
        check_case(comm, case, graph, data)
    return len(cases)


@pytest.mark.parametrize("ranks", [1, 3])
def test_layers_are_those_of_pyg(ranks):
    assert run_ranks(check, ranks) == [len(CASES)] * ranks


def transformer() -> nn.Module:
    torch.manual_seed(3)
    return ours.TransformerConv(F_IN, 4, heads=2, dropout=0.5)


def check_edges_dropped(rank: int) -> Tensor:
    """Layers whose edges are dropped by their vertices: z of all vertices, by id. Collective."""
    comm = connect()
    data = graph_data("", F_IN)
    graph = distributed(data, comm)
    keys = DropoutKeys(graph.vertex_ids, 1, 2)
    z = ours.APPNP(2, 0.1, dropout=0.5)(graph.x, graph, keys=keys)
    whole = torch.zeros(N, F_IN + 8)
    whole[graph.vertex_ids] = torch.cat((z, transformer()(graph.x, graph, keys=keys)), 1).detach()
    comm.all_reduce(whole).wait()
    return whole


def test_edges_are_dropped_by_their_vertices():
    one, *others = run_ranks(check_edges_dropped, 1) + run_ranks(check_edges_dropped, 3)
    for other in others:
        torch.testing.assert_close(other, one)
    gcn_norm = pytest.importorskip("torch_geometric.nn.conv.gcn_conv").gcn_norm
    data, A = graph_data("", F_IN), torch.zeros(N, N)
    index, weight = gcn_norm(data.edge_index, None, N)
    A[index[1], index[0]] = weight
    z = data.x
    for step in range(2):
        key = DropoutKeys(torch.arange(N), 1, 2).key(2**15 + step)
        kept = dropout_mask(torch.arange(N), N, key, 0.5)
        z = 0.9 * (A * kept * 2) @ z + 0.1 * data.x
    torch.testing.assert_close(one[:, :F_IN], z, rtol=1e-5, atol=1e-5)
    attends = transformer()
    q, k, v = (
        part(data.x).view(N, 2, 4)
        for part in (attends.lin_query, attends.lin_key, attends.lin_value)
    )
    scores = torch.full((N, N, 2), -torch.inf)
    source, target = data.edge_index
    scores[target, source] = torch.einsum("ehc,ehc->eh", q[target], k[source]) / 2
    kept = dropout_mask(torch.arange(N), 2 * N, DropoutKeys(source, 1, 2).key(2**15), 0.5)
    alpha = torch.nan_to_num(scores.softmax(1)) * kept.view(N, N, 2) * 2
    right = torch.einsum("ijh,jhc->ihc", alpha, v).flatten(1) + attends.lin_skip(data.x)
    torch.testing.assert_close(one[:, F_IN:], right, rtol=1e-5, atol=1e-5)
    layer = ours.APPNP(2, 0.1, dropout=0.5)
    graph = distributed(data, connect())
    for drops in (layer, attends):
        with pytest.raises(InputError, match="needs keys=DropoutKeys"):
            drops(graph.x, graph)
    torch.testing.assert_close(layer.eval()(graph.x, graph), ours.APPNP(2, 0.1)(graph.x, graph))


def test_features_that_a_layer_cannot_take():
    graph = distributed(graph_data("", F_IN), connect())
    propagated = propagate_(graph.matrix("none"), graph.x.clone(), keep=True)
    for layer in (ours.TAGConv(F_IN, 3), ours.SAGEConv(F_IN, 3, project=True)):
        with pytest.raises(InputError, match=r"needs? X, and not A·X"):
            layer(propagated, graph)
    with pytest.raises(InputError, match="need X as well as A·X"):
        ours.GraphSAGE(F_IN, 2, 1)(Propagated(graph.x), graph)
    with pytest.raises(InputError, match="takes no features of edges"):
        ours.GCNConv(F_IN, 3)(graph.x, graph, graph.x[:, 0])


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.edges in ("", "types") and case.name != "GCN2Conv"],
    ids=lambda case: f"{case.name}{dict(case.options)}",
)
def test_layers_can_be_checkpointed(case):
    check_checkpointed(case)


def check_checkpointed(case: Case) -> None:
    """Recomputed in backward, in both ways of torch's, with the same gradients."""
    width = 8 if case.given[:1] == (8,) else F_IN
    graph = distributed(graph_data(case.edges, width), connect())
    layer = made(getattr(ours, case.name), case)
    more = [graph.edge_attr] if case.edges == "types" else []
    found = []
    for reentrant in (None, False, True):
        x = graph.x.clone().requires_grad_()
        if reentrant is None:
            z = layer(x, graph, *more)
        else:
            z = checkpoint(layer, x, graph, *more, use_reentrant=reentrant)
        z.square().sum().backward()
        found.append([z.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())])
        layer.zero_grad()
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("reentrant", [False, True])
def test_models_can_be_checkpointed(reentrant):
    """What a model drops is dropped again when it is recomputed, without keys as well."""
    graph = distributed(graph_data("", F_IN), connect())
    found = []
    for whole in (True, False):
        model = ours.GraphSAGE(F_IN, 5, 3, 4, dropout=0.5, norm="layer", jk="max", seed=1)
        for _ in range(2):
            x = graph.x.clone().requires_grad_()
            z = checkpoint(model, x, graph, use_reentrant=reentrant) if whole else model(x, graph)
            z.square().sum().backward()
            found.append([z.detach(), x.grad, *(p.grad.clone() for p in model.parameters())])
    for one, other in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b)
    twice = checkpoint(model, x, graph, use_reentrant=reentrant)
    twice = twice + checkpoint(model, x, graph, use_reentrant=reentrant)
    with pytest.raises(InputError, match="called several times a step needs keys"):
        twice.sum().backward()


def test_what_layers_refuse_of_a_graph():
    graph = distributed(graph_data("types", F_IN), connect())
    with pytest.raises(InputError, match=r"edges have \[1\] features, vertices \[6\]"):
        ours.GINEConv(nn.Tanh())(graph.x, graph, graph.edge_attr[:, None].float())
    weighted = distributed(graph_data("weights", F_IN), connect())
    with pytest.raises(InputError, match="aggr mean of weighted edges is not supported"):
        ours.GraphConv(F_IN, 3, aggr="mean")(weighted.x, weighted)


def check_local_norms(rank: int) -> str:
    """Somebody else's batch norm inside GIN."""
    graph = distributed(graph_data("", F_IN), connect())
    layer = ours.GINConv(nn.Sequential(nn.Linear(F_IN, 3), nn.BatchNorm1d(3), nn.ReLU()))
    try:
        layer(graph.x, graph)
    except InputError as error:
        return str(error)
    return ""


def test_norms_of_one_rank_are_refused_where_there_are_more():
    assert run_ranks(check_local_norms, 1) == [""]
    assert all("spgnn.nn has BatchNorm" in said for said in run_ranks(check_local_norms, 2))
