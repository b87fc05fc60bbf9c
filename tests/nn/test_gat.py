"""Layers of attention against PyG's of the same name and weights, from state_dicts both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

import spgnn
from spgnn import CSR, DistMatrix, InputError, Mesh, RowLayout
from spgnn.comm import SoloCommunicator, connect
from spgnn.exchange import Algorithm, Plan, Stage, build
from spgnn.graph import LayerGraph
from spgnn.nn import GAT, DropoutKeys, GATConv, GATv2, GATv2Conv, Propagated
from spgnn.testing import run_ranks
from tests.matrices import random_matrix, uneven_layout

N = 31
ADJACENCY = random_matrix(N, 0.12, 4, weighted=False)
OURS = {"GATConv": GATConv, "GATv2Conv": GATv2Conv}
# Options of both layers, and of GATv2 alone.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"heads": 3, "residual": True},
    {"heads": 2, "concat": False, "negative_slope": 0.1},
    {"heads": 4, "add_self_loops": False, "bias": False},
    {"heads": 2, "edge_dim": 5, "residual": True},
    {"edge_dim": 1, "fill_value": 0.7, "concat": False},
    {"heads": 2, "edge_dim": 3, "fill_value": "max"},
    {"edge_dim": 2, "fill_value": "mul", "bias": False},
    {"heads": 2, "edge_dim": 3, "add_self_loops": False},
]


def edges() -> Tensor:
    """Sources and destinations: rows of the matrix are destinations."""
    rows, columns = ADJACENCY.nonzero()
    return torch.from_numpy(np.stack((columns, rows)).astype(np.int64))


def features(width: int) -> Tensor:
    """Some of them zero, so that they may be stored sparse."""
    rng = np.random.default_rng(width)
    return torch.from_numpy(rng.standard_normal((N, width)) * (rng.random((N, width)) < 0.5))


def edge_features(width: int) -> Tensor:
    rng = np.random.default_rng(9)
    return torch.from_numpy(rng.standard_normal((ADJACENCY.nnz, width)))


def theirs(kind: str, **options: Any) -> nn.Module:
    geometric = pytest.importorskip("torch_geometric.nn")
    layer = getattr(geometric, kind)(7, 4, **options).double()
    rng = np.random.default_rng(6)
    with torch.no_grad():
        for _, tensor in sorted(layer.named_parameters()):
            tensor.copy_(torch.from_numpy(rng.standard_normal(tuple(tensor.shape))))
    return layer


def ours(kind: str, reference: nn.Module, **options: Any) -> nn.Module:
    layer = OURS[kind](7, 4, **options).double()
    layer.load_state_dict(reference.state_dict())
    # And back: nothing is left over.
    assert list(sorted(layer.state_dict())) == list(sorted(reference.state_dict()))
    reference.load_state_dict(layer.state_dict())
    return layer


def graded(layer: nn.Module, Z: Tensor, rows: Tensor | slice) -> dict[str, Tensor]:
    """Gradients of a weighted sum of Z."""
    factors = torch.from_numpy(np.random.default_rng(8).standard_normal((N, Z.shape[1])))
    (Z * factors[rows]).sum().backward()
    return {name: p.grad for name, p in layer.named_parameters()}


def data(width: int) -> Any:
    pyg = pytest.importorskip("torch_geometric.data")
    found = pyg.Data(x=features(7), edge_index=edges())
    if width:
        found.edge_attr = edge_features(width)
    return found


def check_graph(rank: int, kind: str) -> int:
    """Every option, on a graph that was distributed; outputs and all gradients."""
    comm = connect()
    for options in OPTIONS:
        width = options.get("edge_dim", 0)
        graph = spgnn.distribute(data(width), comm=comm, partition="random", seed=1)
        reference = theirs(kind, **options)
        layer = ours(kind, reference, **options)
        x = features(7).requires_grad_()
        attr = edge_features(width) if width else None
        Z = reference(x, edges(), attr)
        expected = graded(reference, Z, slice(None))
        own = graph.vertex_ids
        H = features(7)[own].requires_grad_()
        Z_local = layer(H, graph, graph.edge_attr if width else None)
        found = graded(layer, Z_local, own)

        def close(one: Tensor, other: Tensor, what: str, options: Any = options) -> None:
            torch.testing.assert_close(
                one, other, rtol=1e-6, atol=1e-6, msg=lambda m: f"{m} {options} {what}"
            )

        close(Z_local.detach(), Z.detach()[own], "rows")
        close(H.grad, x.grad[own], "dH")
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            total = gradient.clone()
            comm.all_reduce(total).wait()
            close(total, expected[name], name)
    return len(OPTIONS)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", OURS)
def test_layer_is_that_of_pyg(kind, ranks):
    theirs(kind)
    assert run_ranks(check_graph, ranks, kind) == [len(OPTIONS)] * ranks


def alone() -> DistMatrix:
    """The whole matrix on one rank."""
    plan = Plan((Stage(CSR.from_scipy(ADJACENCY)),))
    return DistMatrix(plan, RowLayout.even(N, 1), Mesh.grid(SoloCommunicator()))


def check_model(rank: int, options: dict[str, Any]) -> None:
    """A model of PyG's by its state_dict: the same classes' scores on every rank."""
    geometric = pytest.importorskip("torch_geometric.nn")
    comm = connect()
    width = options.get("edge_dim", 0)
    torch.manual_seed(3)
    reference = geometric.GAT(7, 12, 3, 5, dropout=0.5, **options).double().eval()
    model = GAT(7, 12, 3, 5, dropout=0.5, **options).double().eval()
    model.load_state_dict(reference.state_dict())
    reference.load_state_dict(model.state_dict())
    graph = spgnn.distribute(data(width), comm=comm, partition="random", seed=1)
    expected = reference(features(7), edges(), edge_attr=edge_features(width) if width else None)
    found = model(features(7)[graph.vertex_ids], graph)
    torch.testing.assert_close(found, expected[graph.vertex_ids], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"heads": 4, "act": "elu"},
        {"heads": 3, "v2": True, "jk": "cat", "edge_dim": 2},
        {"heads": 5, "concat": False, "residual": False, "add_self_loops": False},
    ],
)
def test_model_is_that_of_pyg(options, ranks):
    run_ranks(check_model, ranks, options)


def check_storage(rank: int, kind: str) -> int:
    """Sparse features, and rows of their own, are what the dense whole is."""
    comm = connect()
    layout = uneven_layout(N, comm.size, seed=2)
    own = np.arange(*layout.range(comm.rank))
    chosen = np.random.default_rng(3).random(N) < 0.6
    wanted = own[chosen[own]]
    mesh = Mesh.grid(comm, 1)
    scheme = Algorithm(cover="minimum").scheme(CSR.from_scipy(ADJACENCY[wanted]), layout, comm.rank)
    A = DistMatrix(build(scheme, mesh).ready(), layout, mesh)
    vertices = torch.from_numpy(own) + 100
    reach = LayerGraph(A, vertices, torch.from_numpy(wanted - layout.range(comm.rank)[0]))
    options = {"heads": 2, "residual": True, "dropout": 0.4}
    reference = ours(kind, theirs(kind, add_self_loops=False, **options), **options)
    whole = alone()
    keys = DropoutKeys(torch.arange(N) + 100, 5, 6)
    expected = reference(features(7), whole, keys=keys)
    gradients = graded(reference, expected[torch.from_numpy(chosen)], torch.from_numpy(chosen))
    local = features(7)[own]
    for H in (local, CSR.from_scipy(sp.csr_array(local.numpy()))):
        layer = ours(kind, theirs(kind, **options), **options)
        Z = layer(H, reach, keys=keys)
        torch.testing.assert_close(Z, expected[wanted], rtol=1e-9, atol=1e-9)
        for name, gradient in graded(layer, Z, torch.from_numpy(wanted)).items():
            total = gradient.clone()
            comm.all_reduce(total).wait()
            torch.testing.assert_close(total, gradients[name], rtol=1e-9, atol=1e-9, msg=name)
    return len(wanted)


@pytest.mark.parametrize("kind", OURS)
def test_rows_of_their_own_and_sparse_features(kind):
    theirs(kind)
    assert (
        sum(run_ranks(check_storage, 3, kind)) == (np.random.default_rng(3).random(N) < 0.6).sum()
    )


@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_weights_are_those_of_the_seed(kind):
    one, other = kind(9, 8, 2, 5, heads=4, seed=1), kind(9, 8, 2, 5, heads=4, seed=2)
    torch.rand(3)
    again = kind(9, 8, 2, 5, heads=4, seed=1)
    for a, b, c in zip(one.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        if a.dim() > 1:
            assert not torch.equal(a, c)
    assert kind.size([9, 8, 5], heads=4) == sum(p.numel() for p in one.parameters())
    assert [layer.number for layer in one.convolutions] == [0, 1]
    heads = [layer.heads for layer in kind(9, 8, 3, 5, heads=4, out_heads=1).convolutions]
    assert heads == [4, 4, 1]


def test_what_cannot_be_is_said():
    A, H = alone(), features(7)
    with pytest.raises(InputError, match="weighs features themselves"):
        GATConv(7, 4).double()(Propagated(H), A)
    with pytest.raises(InputError, match="GATConv with edge_dim=3 needs edge_attr"):
        GATConv(7, 4, edge_dim=3).double()(H, A)
    with pytest.raises(InputError, match="edge_dim=None needs no edge_attr"):
        GATv2Conv(7, 4).double()(H, A, edge_features(3))
    with pytest.raises(InputError, match="edges, there are edge features of 5"):
        GATConv(7, 4, edge_dim=3).double()(H, A, edge_features(3)[:5])
    with pytest.raises(InputError, match="multiple"):
        GAT(7, 9, 2, 4, heads=2)
    with pytest.raises(InputError, match="fill_value"):
        GATConv(7, 4, fill_value="median")
    with pytest.raises(InputError, match="heads"):
        GATConv(7, 4, heads=0)
    with pytest.raises(InputError, match="dropout"):
        GATConv(7, 4, dropout=1.0)
    with pytest.raises(InputError, match="no option slope"):
        GATv2Conv(7, 4, slope=0.1)
    with pytest.raises(InputError, match="GAT"):
        GAT(7, 8, 2, 4, share_weights=True)


def test_widths_are_found_at_the_first_call():
    lazy, A = GATConv(-1, 4, heads=2, residual=True), alone()
    assert lazy.double()(features(7), A).shape == (N, 8)
    assert lazy.lin.weight.shape == lazy.res.weight.shape == (8, 7)
    # The matrix of a model on a bare matrix is taken as it is: loops are its own business.
    edges_given = GATConv(7, 4, edge_dim=2).double()
    made = edges_given(features(7), A, edge_features(2))
    assert made.shape == (N, 4)
