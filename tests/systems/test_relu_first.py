"""The GAT of DistGNN-MB: its formula on dense matrices, under each cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from systems.relu_first import ReluFirstConv
from torch import Tensor, nn

import spgnn
from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.nn.test_gat import HEADS, SLOPE, WIDTH, WITH_LOOPS, N, data, features


def layer(concat: bool) -> Any:
    made = ReluFirstConv(7, WIDTH, HEADS, concat).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.uniform_(-1, 1, generator=generator)
    return made


def dense(layer: Any, H: Tensor) -> Tensor:
    """The rows of all vertices and heads, [n, heads, width]."""
    Z = (H @ layer.lin.weight.T + layer.inner_bias).relu().view(N, HEADS, WIDTH)
    d, s = ((Z * attention).sum(2) for attention in (layer.att_dst, layer.att_src))
    scores = nn.functional.leaky_relu(d[:, None] + s, SLOPE)
    alpha = scores.masked_fill(~WITH_LOOPS[:, :, None], -torch.inf).softmax(1)
    return torch.einsum("ijh,jhf->ihf", alpha, Z)


def check(rank: int, cover: str) -> None:
    comm = connect()
    graph = spgnn.distribute(data(0), comm=comm, partition="random", seed=1, cover=cover)
    own, near = graph.vertex_ids, {"rtol": 1e-9, "atol": 1e-9}
    for concat in (True, False):
        ours, theirs = layer(concat), layer(concat)
        rows = dense(theirs, features(7))
        expected = rows.flatten(1) if concat else rows.mean(1)
        factors = torch.rand(expected.shape, generator=torch.Generator().manual_seed(2)).double()
        (expected * factors).sum().backward()
        Z = ours(features(7)[own], graph)
        (Z * factors[own]).sum().backward()
        torch.testing.assert_close(Z.detach(), expected.detach()[own], **near)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            total = one.grad.clone()
            comm.all_reduce(total).wait()
            torch.testing.assert_close(total, other.grad, **near)


@pytest.mark.parametrize(("ranks", "cover"), [(1, "column"), (3, "minimum"), (3, "column")])
def test_the_layer_is_its_formula(ranks, cover):
    pytest.importorskip("torch_geometric")
    run_ranks(check, ranks, cover)
