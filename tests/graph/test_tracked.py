"""Ways to say which sources, and to hand edges on, that scripts have."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spgnn
from spgnn import InputError
from spgnn.testing import run_ranks
from tests.graph.pyg_like import N, multigraph


class Mean(nn.Module):
    """A layer as one writes it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x, edge_index):
        col, row = edge_index[1], edge_index[0]
        out = x.new_zeros(x.shape).index_add(0, col, x[row])
        return self.lin(out)


class Centred(nn.Module):
    """Takes a mean of all that it sees."""

    def forward(self, x, edge_index):
        return x - x.mean(0)


def data():
    found = multigraph(weighted=False, repeated=False, attr=False)
    found.x = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
    return found


def model() -> nn.Module:
    torch.manual_seed(2)
    return Mean()


def check_idioms(rank: int) -> None:
    graph = spgnn.distribute(data(), partition="random")
    whole, edges = graph.halo(graph.x), graph.edge_index
    sources = graph.local_edge_index[0]
    assert int(sources.max()) >= graph.own_rows
    kept = torch.arange(len(sources)) % 3 == 0
    assert torch.equal(graph.x[edges[0, kept]], whole[sources[kept]])
    assert torch.equal(graph.x[edges[0, 1:7]], whole[sources[1:7]])
    assert torch.equal(edges[1, kept], graph.local_edge_index[1, kept])
    turned = edges[[1, 0]]
    assert torch.equal(graph.x[turned[1, kept]], whole[sources[kept]])
    assert torch.equal(turned[0], graph.local_edge_index[1])


def test_parts_of_the_sources_are_sources():
    run_ranks(check_idioms, 2)


def gradients(x, edge_index, loss_of, average, reentrant: bool) -> list[torch.Tensor]:
    network = model()
    x = x.clone().requires_grad_()
    loss_of(checkpoint(network, x, edge_index, use_reentrant=reentrant).square()).sum().backward()
    average(network)
    return [p.grad for p in network.parameters()]


def check_checkpoints(rank: int, reentrant: bool) -> None:
    whole = data()
    expected = gradients(whole.x, whole.edge_index, lambda t: t.mean(0), lambda m: None, reentrant)
    graph = spgnn.distribute(whole)
    found = gradients(graph.x, graph.edge_index, graph.mean, graph.average_gradients, reentrant)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_modules_take_edges(reentrant):
    run_ranks(check_checkpoints, 2, reentrant)


def check_halves(rank: int) -> None:
    graph = spgnn.distribute(data())
    H = graph.x.half()
    assert torch.equal(graph.halo(H), graph.halo(H.float()).half())
    network = model().half()
    out = network(H.requires_grad_(), graph.edge_index)
    graph.mean(out.float().square()).sum().backward()
    expected = graph.halo_sum(torch.ones(graph.halo_rows, 2))
    assert torch.equal(graph.halo_sum(torch.ones(graph.halo_rows, 2).half()), expected.half())
    assert H.grad.dtype == torch.float16


def test_float16_is_exchanged():
    run_ranks(check_halves, 2)


def check_compiled(rank: int) -> None:
    graph = spgnn.distribute(data())
    compiled = torch.compile(model(), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="with fullgraph=True compile modules that do not see it"):
        compiled(graph.x, graph.edge_index)
    torch.compiler.reset()
    ours = spgnn.nn.GCN(graph.num_features, 4, num_layers=1)  # whose matrix is built while traced
    traced = torch.compile(ours, backend="eager", fullgraph=True)(graph.x, graph)
    torch.testing.assert_close(traced, ours(graph.x, graph))
    for hooked in (False, True):
        results = []
        for network in (model(), torch.compile(model(), backend="eager")):
            if hooked:
                graph.replicate(network)
            for _ in range(3):  # the first is watched
                network.zero_grad()
                out = network(graph.x, graph.edge_index)
                out.square().sum().backward()
            results.append([out.detach(), *(p.grad for p in network.parameters())])
        assert all(map(torch.equal, *results))
    with pytest.raises(InputError, match="over the vertices is over those of one rank"):
        graph.replicate(torch.compile(Centred(), backend="eager"))(graph.x, graph.edge_index)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch hides, but not from us
def test_compiled_modules_of_others():
    """On one process they are traced; on several, functions that see them are not."""
    graph = spgnn.distribute(data())
    compiled = torch.compile(model(), backend="eager", fullgraph=True)
    expected = model()(graph.x, graph.edge_index)
    torch.testing.assert_close(compiled(graph.x, graph.edge_index), expected)
    run_ranks(check_compiled, 2)
