"""Layers and norms of any shape: no vertices but one, no edges, widths of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spgnn
from spgnn import nn as ours
from spgnn.comm import connect

geometric = pytest.importorskip("torch_geometric.nn")
geometric_data = pytest.importorskip("torch_geometric.data")

LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("GCNConv", {}),
    ("GCNConv", {"add_self_loops": False}),
    ("SAGEConv", {}),
    ("SAGEConv", {"aggr": "max"}),
    ("SAGEConv", {"aggr": "sum", "project": True}),
    ("GraphConv", {"aggr": "max"}),
    ("SGConv", {"K": 2}),
    ("TAGConv", {"K": 1}),
]


@given(
    n=st.integers(1, 12),
    edges=st.integers(0, 40),
    f_in=st.integers(1, 9),
    f_out=st.integers(1, 9),
    layer=st.sampled_from(LAYERS),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_layers_of_any_shape(n, edges, f_in, f_out, layer, seed):
    check_layer(n, edges, f_in, f_out, layer, seed)


def check_layer(
    n: int, edges: int, f_in: int, f_out: int, layer: tuple[str, dict[str, Any]], seed: int
) -> None:
    """A layer against PyG's, and finite gradients."""
    rng = np.random.default_rng(seed)
    name, options = layer
    index = np.unique(rng.integers(0, n, (2, edges)), axis=1).astype(np.int64)
    kinds = torch.from_numpy(rng.integers(0, 3, index.shape[1]))
    x = torch.from_numpy(rng.standard_normal((n, f_in))).float()
    data = geometric_data.Data(x=x, edge_index=torch.from_numpy(index), edge_attr=kinds)
    graph = spgnn.distribute(data, partition="block", comm=connect())
    theirs = getattr(geometric, name)(f_in, f_out, **options)
    own = getattr(ours, name)(f_in, f_out, **options)
    own.load_state_dict(theirs.state_dict())
    relational = name == "RGCNConv"
    more = [graph.edge_attr] if relational else []
    expected = theirs(x, data.edge_index, *([kinds] if relational else []))
    local = graph.x.clone().requires_grad_()
    z = own(local, graph, *more)
    torch.testing.assert_close(z, expected[graph.vertex_ids], rtol=1e-4, atol=1e-5)
    z.sum().backward()
    assert local.grad is not None
    assert local.grad.isfinite().all()


@given(
    n=st.integers(2, 30),
    width=st.integers(1, 20),
    name=st.sampled_from(["BatchNorm", "LayerNorm", "GraphNorm", "PairNorm"]),
    far=st.sampled_from([0.0, 1e3]),
)
@settings(max_examples=60)
def test_norms_of_any_shape(n, width, name, far):
    rng = np.random.default_rng(n + width)
    x = torch.from_numpy(rng.standard_normal((n, width)) + far)
    given = () if name == "PairNorm" else (width,)
    z = getattr(ours, name)(*given).double()(x, connect())
    torch.testing.assert_close(
        z, getattr(geometric, name)(*given).double()(x), rtol=1e-6, atol=1e-6
    )
