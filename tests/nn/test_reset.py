"""Layers and models begin anew, and say what they are called with."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.comm import connect
from spgnn.data import Graph, from_scipy

LAYERS = [
    lambda: ours.GCNConv(4, 3),
    lambda: ours.SAGEConv(4, 3, project=True),
    lambda: ours.GINConv(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.PReLU()), 0.5, True),
    lambda: ours.GINEConv(nn.Linear(4, 3), eps=0.25, edge_dim=2),
    lambda: ours.GATConv(4, 3, heads=2, residual=True),
    lambda: ours.GATv2Conv(4, 3, heads=2, edge_dim=1),
    lambda: ours.GraphConv(4, 3),
    lambda: ours.TAGConv(4, 3),
    lambda: ours.GCN2Conv(4, 0.1),
    lambda: ours.GCN(4, 5, 3, 2, norm="batch", residual=True, act="prelu", jk="lstm"),
    lambda: ours.GCN(4, 5, 3, 2, norm=nn.LayerNorm(5)),
    lambda: ours.GIN(4, 5, 3, 2, norm="batch", train_eps=True),
    lambda: ours.GAT(4, 6, 3, 2, heads=2, norm="graph"),
]


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_parameters_begin_anew(number):
    check_anew(LAYERS[number]())


def check_anew(module: nn.Module) -> None:
    """As fold after fold of a cross-validation wants them: nothing of the last one is left."""
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(7)
    module.reset_parameters()
    for name, t in module.state_dict().items():
        assert not (t == 7).any(), name
        # Those of torch draw even what is no matrix.
        if t.dim() < 2 and not name.startswith(("nn.0.", "nn.bias", "jk.")):
            torch.testing.assert_close(t, before[name])
        if t.dim() >= 2:
            assert t.std() > 0, name


def test_what_has_no_width_yet_has_nothing_to_draw():
    graph = spgnn.distribute(path(), comm=connect())
    for module in (ours.GCN(-1, 5, 2, 3), ours.GATConv(-1, 3), ours.GCNConv(-1, 3)):
        module.reset_parameters()
        assert module(graph.x, graph=graph).shape == (3, 3)
    assert ours.SAGEConv(-1, 2)(H_local=graph.x, graph=graph).shape == (3, 2)


def path() -> Graph:
    """Three vertices in a row."""
    A = sp.csr_array(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    return from_scipy(A, x=torch.rand(3, 4))


@pytest.mark.parametrize("layer", [ours.GCNConv, ours.GATConv, ours.SAGEConv, ours.LGConv])
def test_a_tensor_is_no_graph(layer):
    graph = spgnn.distribute(path(), comm=connect())
    made = layer() if layer is ours.LGConv else layer(4, 2)
    for wrong in (graph.edge_index, graph.local_edge_index, None):
        with pytest.raises(InputError, match=r"called with x and the graph that spgnn\.distribute"):
            made(graph.x, wrong)
    with pytest.raises(InputError, match="edge_index is what layers of PyG take"):
        ours.GCN(4, 2, 2, dropout=0.5)(graph.x, graph.edge_index)
