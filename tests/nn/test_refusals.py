"""Options that no layer, norm or model can have: each is refused in one line where it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spgnn import InputError
from spgnn import nn as ours
from spgnn.comm import connect

geometric = pytest.importorskip("torch_geometric.nn")

X, ALONE = torch.ones(2, 5), torch.tensor([[0], [1]])
PARTS: list[tuple[Callable[[], object], str]] = [
    (lambda: ours.GCNConv(0, 3), "in_channels must be a positive integer, or -1"),
    (lambda: ours.GCNConv((3, 4), 3), r"in_channels must be a positive.*got \(3, 4\)"),
    (lambda: ours.SAGEConv(3, 3, aggr="median"), "aggr median: choose one of mean, sum, add"),
    (lambda: ours.SAGEConv(-1, 3, project=True), "project=True needs in_channels"),
    (lambda: ours.GCNConv(3, 3, flow="target_to_source"), "flow='target_to_source' is not"),
    (lambda: ours.GINConv(3, 4), "nn must be a torch.nn.Module"),
    (lambda: ours.GINEConv(nn.Tanh(), edge_dim=3), "edge_dim needs an nn that begins"),
    (lambda: ours.NNConv(3, 4, nn.Linear(2, 11)), r"nn must end with a linear layer to 3 · 4"),
    (lambda: ours.TransformerConv(3, 4, dropout=1), "dropout of 1 leaves nothing"),
    (lambda: ours.InteractionNetwork(4, aggr="mul"), "InteractionNetwork aggr mul: choose"),
    (lambda: ours.GCN2Conv(3, 0.1, theta=1.0), "theta and layer go together"),
    (lambda: ours.SGConv(3, 3, K=0), "SGConv K must be an integer of at least 1"),
    (lambda: ours.GATConv(7, 4, fill_value="median"), "fill_value"),
    (lambda: ours.GATConv(7, 4, heads=0), "heads must be a positive integer"),
    (lambda: ours.GATConv(4, 3, negative_slope=-0.1), "negative_slope"),
    (lambda: ours.GATConv(3, 4, message_dropout=1.0), "message_dropout of 1 leaves nothing"),
    (lambda: ours.GATv2Conv(7, 4, slope=0.1), "no option slope"),
    (lambda: ours.GAT(7, 9, 2, 4, heads=2), "a multiple of it, got 9"),
    (lambda: ours.GAT(7, 8, 2, 4, share_weights=True), "GAT"),
    (
        lambda: ours.BatchNorm(3, track_running_stats=False, allow_single_element=True),
        "needs track",
    ),
    (lambda: ours.GCNConv(7, 3)(X, ALONE), "GCNConv: the layer takes 7 columns, x has 5"),
    (lambda: ours.GCNConv(7, 3)(X[:, 0], ALONE), r"features must be \[rows, f\], got \[2\]"),
    (lambda: ours.SAGEConv((7, 5), 3)(X, ALONE), "SAGEConv: the layer takes 7 columns, x has 5"),
    (lambda: ours.GATConv(3, 4)(X, ALONE), "GATConv: the layer takes 3 columns, x has 5"),
    (lambda: ours.GINConv(nn.Linear(3, 4))(X, ALONE), "GINConv: the layer takes 3 columns, x has"),
    (lambda: ours.GIN(3, 4, 2, 4)(X, connect()), "GINConv: the layer takes 3 columns, x has 5"),
    (lambda: ours.GraphNorm(3)(X, ALONE), "GraphNorm: the layer takes 3 columns, x has 5"),
    (lambda: ours.LayerNorm(3, mode="edge"), "mode edge: choose one of graph, node"),
]
MODELS: list[tuple[dict[str, Any], str]] = [
    ({"norm": "bach"}, "norm bach: choose one of none, batch.*did you mean 'batch'"),
    ({"norm": "batch", "norm_kwargs": {"epsilon": 1}}, "norm BatchNorm: .*epsilon"),
    ({"norm": nn.BatchNorm1d}, "torch's BatchNorm1d takes statistics over the rows of one"),
    ({"norm": geometric.GraphNorm(6)}, "torch_geometric's GraphNorm takes statistics"),
    ({"act": "rely"}, "act rely: choose one of.*did you mean 'relu'"),
    ({"act": "elu", "act_kwargs": {"beta": 1}}, "act elu: .*beta"),
    ({"jk": "concat"}, "jk concat: choose one of none, last, cat, max, lstm"),
    ({"dropout": 1.5}, "dropout must be a number in"),
    ({"flow": "target_to_source"}, "GCNConv: flow='target_to_source' is not supported"),
    ({"ad_self_loops": False}, "no option ad_self_loops; did you mean 'add_self_loops'"),
    ({"add_self_loops": True, "normalize": False}, "add_self_loops=True needs normalize=True"),
    ({"num_layers": 0}, "num_layers must be an integer of at least 1"),
    ({"hidden_channels": 0}, "hidden_channels must be an integer of at least 1"),
    ({"hidden_channels": [4, 5], "jk": "max"}, "num_layers=3 does not fit"),
    ({"hidden_channels": [4, 5, 4], "jk": "max"}, "jk=max needs layers of one width"),
]


@pytest.mark.parametrize(("call", "message"), PARTS)
def test_what_layers_and_norms_refuse(call, message):
    with pytest.raises(InputError, match=message) as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("options", "message"), MODELS)
def test_what_models_refuse(options, message):
    with pytest.raises(InputError, match=message) as refused:
        ours.GCN(7, out_channels=4, **{"hidden_channels": 6, "num_layers": 3} | options)
    assert "\n" not in str(refused.value)
