"""Attention on rows of their own, of sparse features, and with messages that are dropped."""

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
from spgnn.graph import LayerGraph, Propagated
from spgnn.kernels.torch_kernels import dropout_keeps
from spgnn.nn import GAT, DropoutKeys, GATConv, GATv2Conv
from spgnn.nn.gat import MESSAGES
from spgnn.testing import run_ranks
from tests.matrices import random_matrix, uneven_layout

N = 31
ADJACENCY = random_matrix(N, 0.12, 4, weighted=False)
OURS = {"GATConv": GATConv, "GATv2Conv": GATv2Conv}


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


def made(kind: str, **options: Any) -> nn.Module:
    """A layer whose parameters are all drawn."""
    layer = OURS[kind](7, 4, **options).double()
    rng = np.random.default_rng(6)
    with torch.no_grad():
        for _, tensor in sorted(layer.named_parameters()):
            tensor.copy_(torch.from_numpy(rng.standard_normal(tuple(tensor.shape))))
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


def alone() -> DistMatrix:
    """The whole matrix on one rank."""
    plan = Plan((Stage(CSR.from_scipy(ADJACENCY)),))
    return DistMatrix(plan, RowLayout.even(N, 1), Mesh.grid(SoloCommunicator()))


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
    reference = made(kind, **options)
    whole = alone()
    keys = DropoutKeys(torch.arange(N) + 100, 5, 6)
    expected = reference(features(7), whole, keys=keys)
    gradients = graded(reference, expected[torch.from_numpy(chosen)], torch.from_numpy(chosen))
    local = features(7)[own]
    for H in (local, CSR.from_scipy(sp.csr_array(local.numpy()))):
        layer = made(kind, **options)
        Z = layer(H, reach, keys=keys)
        torch.testing.assert_close(Z, expected[wanted], rtol=1e-9, atol=1e-9)
        for name, gradient in graded(layer, Z, torch.from_numpy(wanted)).items():
            total = gradient.clone()
            comm.all_reduce(total).wait()
            torch.testing.assert_close(total, gradients[name], rtol=1e-9, atol=1e-9, msg=name)
    return len(wanted)


@pytest.mark.parametrize("kind", OURS)
def test_rows_of_their_own_and_sparse_features(kind):
    assert (
        sum(run_ranks(check_storage, 3, kind)) == (np.random.default_rng(3).random(N) < 0.6).sum()
    )


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


def test_widths_are_found_at_the_first_call():
    lazy, A = GATConv(-1, 4, heads=2, residual=True), alone()
    assert lazy.double()(features(7), A).shape == (N, 8)
    assert lazy.lin.weight.shape == lazy.res.weight.shape == (8, 7)
    # The matrix of a model on a bare matrix is taken as it is: loops are its own business.
    edges_given = GATConv(7, 4, edge_dim=2).double()
    made = edges_given(features(7), A, edge_features(2))
    assert made.shape == (N, 4)


P, SLOPE, HEADS, WIDTH = 0.4, 0.2, 3, 4
KEYS = DropoutKeys(torch.arange(N), 5, 6)
WITH_LOOPS = torch.from_numpy((ADJACENCY.toarray() != 0) | (torch.eye(N).numpy() != 0))


def dense(layer: Any, H: Tensor) -> Tensor:
    """What the layer makes of all vertices."""
    parameters = dict(layer.named_parameters())
    if isinstance(layer, GATConv):
        Z = (H @ parameters["lin.weight"].T).view(N, HEADS, WIDTH)
        d, s = ((Z * parameters[name]).sum(2) for name in ("att_dst", "att_src"))
        scores = nn.functional.leaky_relu(d[:, None] + s, SLOPE)
    else:
        Z = layer.lin_l(H).view(N, HEADS, WIDTH)
        both = layer.lin_r(H).view(N, 1, HEADS, WIDTH) + Z
        scores = (nn.functional.leaky_relu(both, SLOPE) * parameters["att"]).sum(3)
    alpha = scores.masked_fill(~WITH_LOOPS[:, :, None], -torch.inf).softmax(1)
    columns = torch.arange(HEADS * WIDTH)
    kept = dropout_keeps(torch.arange(N)[:, None], columns, KEYS.key(layer.number | MESSAGES), P)
    M = Z * kept.view(Z.shape) / (1 - P)
    return torch.einsum("ijh,jhf->ihf", alpha, M).flatten(1) + layer.bias


def check_messages(rank: int, kind: str, cover: str) -> None:
    comm = connect()
    graph = spgnn.distribute(data(0), comm=comm, partition="random", seed=1, cover=cover)
    layer, reference = (made(kind, heads=HEADS, message_dropout=P) for _ in range(2))
    own = graph.vertex_ids
    factors = torch.rand(N, HEADS * WIDTH, generator=torch.Generator().manual_seed(2)).double()
    x, H = features(7).requires_grad_(), features(7)[own].requires_grad_()
    expected = dense(reference, x)
    (expected * factors).sum().backward()
    Z = layer(H, graph, keys=DropoutKeys(own, 5, 6))
    (Z * factors[own]).sum().backward()
    near = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(Z.detach(), expected.detach()[own], **near)
    torch.testing.assert_close(H.grad, x.grad[own], **near)
    right = dict(reference.named_parameters())
    for name, parameter in layer.named_parameters():
        total = parameter.grad.clone()
        comm.all_reduce(total).wait()
        torch.testing.assert_close(total, right[name].grad, **near, msg=name)
    whole = layer(H, graph)  # nothing is dropped
    layer.message_dropout = 0.0
    torch.testing.assert_close(layer(H, graph, keys=DropoutKeys(own, 5, 6)), whole, **near)


@pytest.mark.parametrize(("ranks", "cover"), [(1, "column"), (3, "minimum"), (3, "column")])
@pytest.mark.parametrize("kind", OURS)
def test_scores_are_of_whole_rows_and_messages_dropped(kind, ranks, cover):
    pytest.importorskip("torch_geometric")
    run_ranks(check_messages, ranks, kind, cover)


@pytest.mark.parametrize("kind", OURS)
def test_of_nothing_it_changes_nothing(kind):
    graph, given = spgnn.distribute(data(3)), {"edge_dim": 3, "heads": 2, "residual": True}
    layer = OURS[kind](7, 4, message_dropout=1e-12, **given).double()
    found = layer(features(7), graph, keys=KEYS)
    torch.testing.assert_close(found, layer(features(7), graph), rtol=1e-9, atol=1e-9)


def test_models_take_it():
    model = GAT(7, 6, 2, 3, heads=2, message_dropout=0.5).double()
    assert [layer.message_dropout for layer in model.convolutions] == [0.5, 0.5]
    graph = spgnn.distribute(data(0))
    one, other = model(features(7), graph), model(features(7), graph)
    assert not torch.equal(one, other)  # in training, with dropout of nothing else
    model.eval()
    assert torch.equal(model(features(7), graph), model(features(7), graph))


def test_a_rank_may_make_no_rows():
    """Of heads side by side the columns of each are known even then."""
    layer = GATConv(3, 4, heads=2, message_dropout=0.5)
    assert layer.by_head(torch.empty(0, 10)).shape == (0, 2, 5)
