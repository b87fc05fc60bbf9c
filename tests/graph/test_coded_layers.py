"""Layers on codecs: attention, and gradients of several losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import spgnn
from spgnn.graph.distgraph import DistGraph
from spgnn.testing import run_ranks
from tests.graph.coded import CODECS, WIDTH, graph_on


def check_attention(rank: int) -> None:
    """Layers of ours have codecs in training, and only there."""
    for name in ("bits", "delay", "sampling", "never"):
        codec = {"sampling": 0.5} if name == "sampling" else CODECS[name]
        torch.manual_seed(0)
        layer, plain = spgnn.nn.GATConv(WIDTH, 2, heads=2), graph_on(None)
        graph = graph_on(codec)
        expected = layer(plain.x, plain)
        with torch.no_grad():  # what is built once is built now
            assert torch.equal(layer(graph.x, graph), expected)
        for _ in range(3):
            graph.next_epoch()
            before = graph.comm.ledger.copy()
            found = layer(graph.x, graph)
            found.square().sum().backward()
            moved, said = graph.comm.ledger.since(before).of("alltoall"), graph.codec_traffic()
            assert moved.sent_bytes == said.sent_bytes, name
            assert not torch.equal(found, expected)
        with graph.exact():
            found = layer(graph.x, graph)
        assert torch.equal(found, expected)
        layer.zero_grad()
        found.sum().backward()
        made = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        expected.sum().backward()
        assert all(map(torch.equal, made, (p.grad for p in layer.parameters())))
        with torch.no_grad():
            assert torch.equal(layer(graph.x, graph), expected)
        check_goes_on(graph, graph_on(codec), layer)


def check_goes_on(graph: DistGraph, other: DistGraph, layer: nn.Module) -> None:
    """Attention over a graph with the state of another is what it is over that one."""
    other.load_codec_state(graph.codec_state())
    found = []
    for each in (graph, other):
        each.next_epoch()
        found.append(layer(each.x, each))
        found[-1].square().sum().backward()
        each.codec_state()
    assert torch.equal(*found)


def test_attention_is_has_a_codec_in_training():
    run_ranks(check_attention, 2)


def check_several_backwards(rank: int) -> None:
    """Gradients of other losses, and of gradients, leave rows alone that are late for this one."""
    check_alone({"delay": 1}, spgnn.nn.SAGEConv)
    check_alone({"delay": 2, "bins": 2, "smoothing": 0.5}, spgnn.nn.GATConv)


def check_alone(codec: dict[str, Any], make: Any) -> None:
    found = []
    for busy in (False, True):
        torch.manual_seed(0)
        layer, graph = make(WIDTH, 4), graph_on(codec)
        x = graph.x.clone().requires_grad_()
        with torch.no_grad():  # what is built once is built now
            layer(x, graph)
        for epoch in range(5):
            graph.next_epoch()
            before = graph.comm.ledger.copy()
            out = layer((1 + epoch) * x, graph)
            loss = (out * torch.arange(1.0, 5.0)).square().sum()
            (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
            if busy and epoch in (1, 2):
                torch.autograd.grad(-7 * loss, x, retain_graph=True)
                if make is spgnn.nn.SAGEConv:
                    (inner,) = torch.autograd.grad(loss, x, create_graph=True)
                    torch.autograd.grad(inner.square().sum(), x)
            moved, said = graph.comm.ledger.since(before).of("alltoall"), graph.codec_traffic()
            assert moved.sent_bytes == said.sent_bytes
            found.append((loss.detach(), gradient))
        graph.codec_state()
    for alone, busy in zip(found[:5], found[5:], strict=True):
        assert all(map(torch.equal, alone, busy))


def test_late_rows_belong_to_one_backward():
    run_ranks(check_several_backwards, 2)
