"""Layers of attention against PyG's of the same name and weights, from state_dicts both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spgnn
from spgnn import DistMatrix, Mesh
from spgnn.comm import Communicator, connect
from spgnn.nn import GATConv, GATv2Conv
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

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


def distributed(comm: Communicator, **how: Any) -> tuple[DistMatrix, slice]:
    layout = uneven_layout(N, comm.size, seed=2)
    first, last = layout.range(comm.rank)
    block = block_row(ADJACENCY, first, last)
    return DistMatrix.build(block, layout, Mesh.grid(comm, 1), **how), slice(first, last)
