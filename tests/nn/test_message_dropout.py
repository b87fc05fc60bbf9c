"""Dropout of what attention weighs, apart from what it scores, against a dense matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spgnn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.kernels.torch_kernels import dropout_keeps
from spgnn.nn import GAT, DropoutKeys, GATConv, GATv2Conv
from spgnn.nn.gat import MESSAGES
from spgnn.testing import run_ranks

from .test_gat import ADJACENCY, N, data, features

P, SLOPE, HEADS, WIDTH = 0.4, 0.2, 3, 4
KEYS = DropoutKeys(torch.arange(N), 5, 6)
KINDS = {"GATConv": GATConv, "GATv2Conv": GATv2Conv}
WITH_LOOPS = torch.from_numpy((ADJACENCY.toarray() != 0) | (torch.eye(N).numpy() != 0))


def made(kind: str) -> Any:
    layer = KINDS[kind](7, WIDTH, HEADS, message_dropout=P).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-1, 1, generator=generator)
    return layer


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


def check(rank: int, kind: str, cover: str) -> None:
    comm = connect()
    graph = spgnn.distribute(data(0), comm=comm, partition="random", seed=1, cover=cover)
    own, layer, reference = graph.vertex_ids, made(kind), made(kind)
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


@pytest.mark.parametrize(("ranks", "cover"), [(1, "column"), (3, "minimum"), (8, "column")])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_of_whole_rows_and_messages_dropped(kind, ranks, cover):
    pytest.importorskip("torch_geometric")
    run_ranks(check, ranks, kind, cover)


@pytest.mark.parametrize("kind", KINDS)
def test_of_nothing_it_changes_nothing(kind):
    graph, given = spgnn.distribute(data(3)), {"edge_dim": 3, "heads": 2, "residual": True}
    layer = KINDS[kind](7, 4, message_dropout=1e-12, **given).double()
    found = layer(features(7), graph, keys=KEYS)
    torch.testing.assert_close(found, layer(features(7), graph), rtol=1e-9, atol=1e-9)


def test_models_take_it_and_refuse_what_cannot_be():
    model = GAT(7, 6, 2, 3, heads=2, message_dropout=0.5).double()
    assert [layer.message_dropout for layer in model.convolutions] == [0.5, 0.5]
    graph = spgnn.distribute(data(0))
    one, other = model(features(7), graph), model(features(7), graph)
    assert not torch.equal(one, other)  # in training, with dropout of nothing else
    model.eval()
    assert torch.equal(model(features(7), graph), model(features(7), graph))
    with pytest.raises(InputError, match="GATConv: dropout of all messages leaves nothing"):
        GATConv(3, 4, message_dropout=1.0)
    with pytest.raises(InputError, match="message_dropout"):
        GATv2Conv(3, 4, message_dropout=-0.1)


def test_a_rank_may_make_no_rows():
    """Of heads side by side the columns of each are known even then."""
    layer = GATConv(3, 4, heads=2, message_dropout=0.5)
    assert layer.by_head(torch.empty(0, 10)).shape == (0, 2, 5)
