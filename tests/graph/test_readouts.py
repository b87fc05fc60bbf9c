"""What reads all vertices at once, inside a module: refused on ranks, and all else is not."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spgnn
from spgnn import InputError
from spgnn.graph.distgraph import DistGraph
from spgnn.testing import run_ranks

N = 20
WRONG = {
    "mean": lambda x: x - x.mean(0),
    "mean of all": lambda x: x - x.mean(),
    "mean of torch": lambda x: torch.mean(x, dim=-2),
    "softmax": lambda x: x.softmax(0),
    "softmax of F": lambda x: F.softmax(x, dim=0),
    "pool": lambda x: torch.zeros(2, 4).index_add(0, torch.arange(len(x)) % 2, x),
    "scatter": lambda x: torch.zeros(2, 4).scatter_add_(0, torch.zeros_like(x).long(), x),
    "covariance": lambda x: x @ (x.t() @ x),
    "pairs": lambda x: torch.softmax(x @ x.T, -1) @ x,
    "norm": lambda x: x / x.norm(),
    "standard deviation": lambda x: x / x.std(dim=0, keepdim=True),
    "masked": lambda x: x[x[:, 0] > 0].mean(0),
    "topk": lambda x: x.topk(1, dim=0)[0],
    "maximum": lambda x: x / x.max(),
    "sum in order": lambda x: x.cumsum(0),
    "heads": lambda x: x.view(len(x), 2, 2).mean(dim=(0, 1)),
    "turned": lambda x: x.T.mean(1),
    "normalize": lambda x: F.normalize(x, dim=0),
}
RIGHT = {
    "softmax": lambda x: x.softmax(1),
    "layers": lambda x: F.layer_norm(torch.stack([x, x, x]).mean(0), (4,)),
    "norm": lambda x: F.normalize(x) * x.norm(dim=-1, keepdim=True),
    "turned": lambda x: x.T.mean(0),
    "heads": lambda x: x.view(-1, 2, 2).mean(1) + x.view(-1, 2, 2).sum((1, 2))[:, None],
    "two": lambda x: torch.max(x, x * 2) + torch.ones(4, 4).mean(0),
    "numbers": lambda x: x[(x[:, 0] > 0).long().argsort()],
    "checks": lambda x: x if bool((x == x).all()) else x.new_ones(x.shape).sum(0),
    "new": lambda x: x + torch.ones_like(x).mean(),
    "topk": lambda x: x.topk(2)[0],
}


class Model(nn.Module):
    """A convolution by hand, and something after it; of (x, edges), or of a graph."""

    def __init__(self, after: Any, whole: bool) -> None:
        super().__init__()
        self.linear, self.after, self.whole = nn.Linear(3, 4), after, whole

    def forward(self, x: Any, edge_index: Tensor | None = None) -> Tensor:
        if self.whole:
            x, edge_index = x.x, x.edge_index
        source, target = edge_index
        h = self.linear(x)
        return self.after(h.new_zeros(h.shape).index_add(0, target, h[source]))


class OverRanks(nn.Module):
    """The mean of all vertices, as it should be asked for."""

    def __init__(self, graph: DistGraph) -> None:
        super().__init__()
        self.linear, self.graph = nn.Linear(3, 4), graph

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        return h - self.graph.mean(h)


class OfOurs(nn.Module):
    """Norms of spgnn take statistics over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = spgnn.nn.GCN(3, 4, 2, norm="batch")
        self.other = spgnn.nn.GCN(4, 4, 2, norm="graph")

    def forward(self, x: Tensor, graph: DistGraph) -> Tensor:
        return self.other(self.model(x, graph), graph)


def data() -> Any:
    torch.manual_seed(0)
    return SimpleNamespace(
        x=torch.rand(N, 3), edge_index=torch.randint(N, (2, 70)), num_nodes=N, y=torch.arange(N)
    )


def check(rank: int) -> None:
    graph = spgnn.distribute(data())
    for whole in (False, True):
        given = (graph,) if whole else (graph.x, graph.edge_index)
        for training in (True, False):
            for after in WRONG.values():
                model = graph.replicate(Model(after, whole)).train(training)
                for _ in range(2):
                    with pytest.raises(InputError, match=r"Model: .* over the vertices is over"):
                        model(*given)
            for after in RIGHT.values():
                graph.synchronise(Model(after, whole)).train(training)(*given)
    model = graph.replicate(Model(RIGHT["softmax"], False))
    model.after = WRONG["mean"]
    copy.deepcopy(model)(graph.x, graph.edge_index)  # a copy is on its own
    model.after = torch.relu
    pickle.loads(pickle.dumps(model))(graph.x, graph.edge_index)
    graph.replicate(OverRanks(graph))(graph.x)
    graph.replicate(OfOurs())(graph.x, graph)


def test_what_reads_all_vertices_is_refused():
    run_ranks(check, 3)


def check_unknown(rank: int) -> None:
    """Modules that no graph was given are known by their names, where they look rows up."""
    geometric = pytest.importorskip("torch_geometric.nn")
    whole = data()
    whole.train_mask = torch.arange(N) % 2 == 0
    graph = spgnn.distribute(whole)
    y, mask = graph.y % 3, graph.train_mask
    soft = graph.x.softmax(1)
    for scales in (True, False):
        module = geometric.CorrectAndSmooth(3, 0.8, 3, 0.8, autoscale=scales)
        module.smooth(soft, y[mask], mask, graph.edge_index)
        if scales:
            with pytest.raises(InputError, match=r"CorrectAndSmooth.* looks at all vertices"):
                module.correct(soft, y[mask], mask, graph.edge_index)
        else:
            found = graph.gather(module.correct(soft, y[mask], mask, graph.edge_index))
            if found is not None:
                known = whole.train_mask
                expected = module.correct(
                    whole.x.softmax(1), (whole.y % 3)[known], known, whole.edge_index
                )
                torch.testing.assert_close(found, expected)
    infomax = geometric.DeepGraphInfomax(
        4, geometric.GCNConv(3, 4), lambda z, *_: z.mean(0), lambda x, edges: (x, edges)
    )
    with pytest.raises(InputError, match=r"DeepGraphInfomax.* looks at all vertices"):
        infomax(graph.x, graph.edge_index)


@pytest.mark.filterwarnings("ignore")
def test_modules_of_pyg_that_no_graph_was_given():
    run_ranks(check_unknown, 3)


class Part(torch.nn.Module):
    """A convolution, and a part of any kind after it."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        geometric = pytest.importorskip("torch_geometric.nn")
        self.conv, self.part = geometric.GCNConv(3, 3), part

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.part(self.conv(x, edge_index))


class Sums(torch.nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def check_kinds(rank: int) -> None:
    """Scripted, traced and other modules work, or are refused with their cause."""
    g = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    graph = spgnn.distribute(data())
    x, edges = graph.x, graph.edge_index

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    for part in (
        torch.jit.script(mlp()),
        torch.jit.trace(mlp(), torch.ones(2, 3)),
        torch.fx.symbolic_trace(mlp()),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}),
    ):
        model = graph.synchronise(Part(part))
        graph.mean(model(x, edges).square().sum(1)).backward()
    model, script = graph.synchronise(Part(mlp())), torch.jit.script(Sums())
    lists = torch.zeros(edges.shape[1], dtype=torch.long)
    for act, message in (
        (lambda: graph.synchronise(torch.jit.script(mlp())), "the model is scripted"),
        (lambda: script(x, edges), "a scripted or traced module sees edge_index"),
        (lambda: graph.synchronise(lambda x: x), r"must be a torch\.nn\.Module, got function"),
        (lambda: graph.synchronise(torch.nn.Linear), r"must be a torch\.nn\.Module, got type"),
        (lambda: graph.synchronise(torch.nn.Linear(1, 1, device="meta")), "is on device meta"),
        (
            lambda: graph.synchronise(Part(torch.jit.script(torch.nn.BatchNorm1d(3)))),
            r"part \(BatchNorm1d\) looks at all vertices",
        ),
        (lambda: torch.jit.trace(model, (x, edges)), "torch.jit.trace, and SummaryWriter"),
        (lambda: graph.replicate(g.TopKPooling(3)), "TopKPooling.* leave pools out"),
        (lambda: graph.replicate(g.GPSConv(3, None, heads=1)), "GPSConv.* attention over neigh"),
        (lambda: graph.replicate(g.LINKX(N, 3, 3, 3, 1)), "LINKX.* a row for each vertex number"),
        (lambda: g.SuperGATConv(3, 3)(x, edges), "in SuperGATConv .* graph.pairs"),
        (lambda: g.FastRGCNConv(N, 3, 1)(None, edges, lists), "FastRGCNConv .* graph.vertex_ids"),
    ):
        with pytest.raises(InputError, match=message):
            act()
    negatives = torch.randint(0, N, (2, 9), generator=torch.Generator().manual_seed(1))
    attends = g.SuperGATConv(3, 3, dropout=0.0)
    expected = attends(data().x, data().edge_index, neg_edge_index=negatives)
    mine = attends(x, edges, neg_edge_index=graph.pairs(negatives))
    torch.testing.assert_close(mine, expected[graph.vertex_ids])


@pytest.mark.filterwarnings("ignore")
def test_modules_of_every_kind_work_or_are_refused_with_their_cause():
    run_ranks(check_kinds, 3)
