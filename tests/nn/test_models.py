"""Models against PyG's of the same name: state_dicts both ways, histories on 1, 3 and 8 ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.comm import connect
from spgnn.graph.dry import recorded_products
from spgnn.graph.training import layer_plans, training_on
from spgnn.nn import Stack
from spgnn.testing import run_ranks

geometric = pytest.importorskip("torch_geometric.nn")
geometric_data = pytest.importorskip("torch_geometric.data")

N, EDGES, F_IN, HIDDEN, CLASSES, LAYERS, EPOCHS = 43, 210, 7, 6, 4, 3, 3


class Case(NamedTuple):
    """A model of PyG, and its options."""

    name: str
    options: Mapping[str, Any] = MappingProxyType({})


CASES = [
    Case("GCN"),
    Case("GCN", {"norm": "batch_norm", "jk": "cat", "act": "elu", "act_kwargs": {"alpha": 0.5}}),
    Case("GCN", {"norm": "GraphNorm", "act_first": True, "improved": False, "bias": False}),
    Case("GCN", {"norm": "PairNorm", "norm_kwargs": {"scale": 2.0}, "act": "PReLU"}),
    Case("GraphSAGE"),
    Case("GraphSAGE", {"norm": "LayerNorm", "jk": "max", "aggr": "max"}),
    Case("GraphSAGE", {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}, "jk": "last"}),
    Case("GraphSAGE", {"act": torch.tanh, "project": True, "aggr": "sum", "normalize": True}),
    Case("GIN"),
    Case("GIN", {"norm": "batch_norm", "jk": "lstm", "train_eps": True}),
    Case("GIN", {"norm": "graph_norm", "act": "leaky_relu", "act_first": True}),
    Case("GAT", {"heads": 3, "act": "elu"}),
    Case("GAT", {"heads": 2, "v2": True, "jk": "cat"}),
    Case("GAT", {"heads": 5, "concat": False, "residual": False, "add_self_loops": False}),
]


def graph_data() -> Any:
    """A directed graph with isolated vertices."""
    rng = np.random.default_rng(5)
    index = np.unique(rng.integers(0, N - 2, (2, EDGES)), axis=1)
    x = torch.from_numpy(rng.standard_normal((N, F_IN))).float()
    y = torch.from_numpy(rng.integers(0, CLASSES, N))
    chosen = torch.from_numpy(rng.random(N) < 0.5)
    return geometric_data.Data(x=x, edge_index=torch.from_numpy(index), y=y, train_mask=chosen)


def distributed() -> spgnn.graph.DistGraph:
    comm = connect()
    labels = np.random.default_rng(1).integers(0, comm.size, N)
    return spgnn.distribute(graph_data(), partition=labels, comm=comm)


def made(kinds: Any, case: Case, **more: Any) -> Any:
    options = {**case.options, **more}
    if kinds is geometric and options.get("norm") == "PairNorm":
        # By its name, PyG would take the width for the scale.
        options["norm"] = geometric.PairNorm(**options.pop("norm_kwargs"))
    return getattr(kinds, case.name)(F_IN, HIDDEN, LAYERS, CLASSES, **options)


def begun(case: Case) -> dict[str, Tensor]:
    """Parameters to begin with, by PyG's names."""
    torch.manual_seed(1)
    return made(geometric, case).state_dict()


def reference(case: Case) -> tuple[list[float], Tensor, dict[str, Tensor]]:
    """PyG's history on one process, its logits in evaluation, and what it has learned."""
    data, model = graph_data(), made(geometric, case)
    model.load_state_dict(begun(case))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        logits = model(data.x, data.edge_index)
        loss = F.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses, model(data.x, data.edge_index).detach(), model.state_dict()


def train(model: nn.Module, graph: Any, epochs: int = EPOCHS) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        logits = model(graph.x, graph)
        each = F.cross_entropy(logits, graph.y, reduction="none")
        loss = graph.mean(each, graph.train_mask)
        loss.backward()
        graph.average_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def check(rank: int, expected: list[tuple[list[float], Tensor, dict[str, Tensor]]]) -> int:
    """Histories, logits and state_dicts; of every second model at 8 ranks. Collective."""
    graph = distributed()
    chosen = list(zip(CASES, expected, strict=True))[:: 1 + graph.comm.size // 8]
    for case, (losses, logits, learned) in chosen:
        model = made(ours, case)
        model.load_state_dict(begun(case))
        assert set(model.state_dict()) == set(learned), case
        np.testing.assert_allclose(train(model, graph), losses, rtol=1e-4, err_msg=str(case))
        model.eval()
        found = model(graph.x, graph)
        scale = float(logits.abs().max())
        torch.testing.assert_close(found, logits[graph.vertex_ids], rtol=1e-4, atol=1e-4 * scale)
        theirs = made(geometric, case)
        theirs.load_state_dict(model.state_dict())
    return len(chosen)


@pytest.mark.parametrize(
    ("ranks", "models"), [(1, 14), (3, 14), pytest.param(8, 7, marks=pytest.mark.slow)]
)
def test_models_are_those_of_pyg(ranks, models):
    expected = [reference(case) for case in CASES]
    assert run_ranks(check, ranks, expected) == [models] * ranks


def check_dropout(rank: int) -> list[list[float]]:
    """Histories with dropout, keyed by the graph; nothing is dropped in evaluation. Collective."""
    graph, found = distributed(), []
    for case in CASES:
        residual = {} if case.name == "GAT" else {"residual": True}
        model = made(ours, case, dropout=0.4, **residual, seed=2)
        model.eval()
        before = model(graph.x, graph).detach()
        assert torch.equal(before, model(graph.x, graph))
        model.train()
        found.append(train(model, graph, 3))
        if connect().size == 1:
            again = made(ours, case, dropout=0.4, **residual, seed=2)
            assert found[-1] == train(again, graph, 3), case
    return found


def test_dropout_is_the_same_on_any_number_of_ranks():
    one, *others = run_ranks(check_dropout, 1) + run_ranks(check_dropout, 3)
    for other in others:
        np.testing.assert_allclose(other, one, rtol=1e-4)
    # Masks change from call to call.
    assert all(len(set(losses)) == 3 for losses in one)


@pytest.mark.parametrize("kind", [ours.GCN, ours.GraphSAGE, ours.GIN, ours.GAT, ours.GATv2])
def test_weights_are_those_of_the_seed(kind):
    one, other = kind(9, 8, 2, 5, seed=1), kind(9, 8, 2, 5, seed=2)
    torch.rand(3)
    again = kind(9, 8, 2, 5, seed=1)
    for a, b, c in zip(one.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        if a.dim() < 2:
            assert not a.any()
            continue
        assert not torch.equal(a, c)
        if a.dim() == 2:
            bound = (6 / sum(a.shape)) ** 0.5
            assert 0.8 * bound < float(a.detach().abs().max()) <= bound
    assert kind.size([9, 8, 5]) == sum(p.numel() for p in one.parameters())


def test_heads_of_attention():
    for kind in (ours.GAT, ours.GATv2):
        layers = kind(9, 8, 3, 5, heads=4, out_heads=1).convolutions
        assert [layer.heads for layer in layers] == [4, 4, 1]
        assert [layer.number for layer in layers] == [0, 1, 2]


def check_lazy(rank: int) -> list[list[float]]:
    """in_channels of −1: the same weights as if they had been given, on every rank. Collective."""
    graph = distributed()
    comm = graph.comm
    for kind in (ours.GCN, ours.GraphSAGE, ours.GIN):
        later = kind(-1, HIDDEN, LAYERS, CLASSES, seed=3, residual=True)
        at_once = kind(F_IN, HIDDEN, LAYERS, CLASSES, seed=3, residual=True)
        torch.testing.assert_close(later(graph.x, graph), at_once(graph.x, graph), rtol=0, atol=0)
        assert later.in_channels == F_IN
        loaded = kind(-1, HIDDEN, LAYERS, CLASSES, seed=9, residual=True)
        loaded.load_state_dict(at_once.state_dict())
        torch.testing.assert_close(loaded(graph.x, graph), at_once(graph.x, graph), rtol=0, atol=0)
    torch.manual_seed(comm.rank)
    layers = [
        ours.GCNConv(-1, 3),
        ours.SAGEConv(-1, 3, aggr="max"),
        ours.GraphConv(-1, 3),
        ours.SGConv(-1, 3),
        ours.TAGConv(-1, 3),
    ]
    check_found_when_pruned(graph, layers[:-1])  # several products of one matrix need all rows
    for layer in layers:
        layer(graph.x, graph)
        comm.check_agreement("the layer", **{k: p.detach() for k, p in layer.named_parameters()})
        theirs = getattr(geometric, type(layer).__name__)(-1, 3)
        theirs.load_state_dict(layer.state_dict())
    return []


def check_found_when_pruned(graph: Any, layers: list[nn.Module]) -> None:
    """Some rows of two layers, and nobody knows their widths; equal to those of all. Collective."""
    wanted = torch.arange(graph.own_rows) == 0
    how: dict[str, Any] = {"labelled": wanted, "recompute_halo": False, "propagated": False}
    A, plans = graph.matrix("none"), layer_plans(graph, "none", layers=2, **how)
    training = training_on(graph, A, graph.x, plans)
    X, pruned = training.X, training.layers
    assert any(layer.row_columns is not None for layer in pruned)
    pairs = [ours.SAGEConv((-1, -1), 3), ours.GATConv((-1, -1), 3), ours.GATv2Conv((-1, -1), 3)]
    alone = [ours.GATConv(-1, 3, residual=True), ours.GATv2Conv(-1, 3, share_weights=True)]
    models = [ours.GCN, ours.GraphSAGE, ours.GIN, ours.GAT, ours.GATv2]
    for one in (*layers, *pairs, *alone, *(kind(-1, HIDDEN, 2, 4) for kind in models)):
        layer, on = copy.deepcopy(one), pruned if isinstance(one, Stack) else pruned[0]
        found = layer(X, on)
        last = pruned[-1 if on is pruned else 0]
        rows = last.own(last.vertex_ids)
        place = (graph.vertex_ids == rows[:, None]).int().argmax(1)
        torch.testing.assert_close(found, layer(graph.x, A)[place])
        if on is pruned:
            assert recorded_products(one, X, pruned)


def test_widths_that_are_found_later():
    run_ranks(check_lazy, 3)


def test_dropout_needs_to_know_its_vertices():
    graph = distributed()
    model = ours.GCN(F_IN, HIDDEN, 2, CLASSES, dropout=0.5)
    with pytest.raises(InputError, match="keys=DropoutKeys"):
        model(graph.x, graph.matrix("sym"))
    model.eval()
    assert torch.equal(model(graph.x, graph.matrix("sym")), model(graph.x, graph))


def test_what_setting_up_has_to_know():
    def of(kind: type[Stack], **options: Any) -> Stack:
        return kind(F_IN, HIDDEN, 2, CLASSES, **options)

    assert of(ours.GCN, norm="batch").needs_all_rows
    assert of(ours.GIN, norm="pair").needs_all_rows
    assert not of(ours.GCN, norm="layer", norm_kwargs={"mode": "node"}).needs_all_rows
    assert of(ours.GraphSAGE).keeps_features
    assert not of(ours.GCN).keeps_features
    assert of(ours.GCN, residual=True).keeps_features
    assert of(ours.GraphSAGE).accepts_propagated
    assert not of(ours.GraphSAGE, aggr="max").accepts_propagated
    model = of(ours.GIN, norm="batch", jk="cat", residual=True)
    by_layer = model.parameters_by_layer()
    assert [p for layer in by_layer for p in layer] != []
    assert {id(p) for layer in by_layer for p in layer} == {id(p) for p in model.parameters()}
    assert ours.GIN.size([F_IN, HIDDEN, CLASSES], norm="batch") == sum(
        p.numel() for p in of(ours.GIN, norm="batch").parameters()
    )
