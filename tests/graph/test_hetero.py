"""Graphs of several vertex types: on any number of ranks as PyG on one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import GATConv, HeteroConv, HGTConv, RGCNConv, SAGEConv, to_hetero
from torch_geometric.nn.conv import GATv2Conv, GraphConv

import spgnn
from spgnn import InputError
from spgnn.testing import run_ranks
from tests.graph.schemas import SCHEMAS, hetero

WIDTH = 8
ours = spgnn.nn


class Layers(nn.Module):
    """Two layers of a kind and a linear one of the first type."""

    def __init__(self, first: nn.Module, second: nn.Module, aim: str, width: int = WIDTH) -> None:
        super().__init__()
        self.first, self.second, self.aim = first, second, aim
        self.out = nn.Linear(width, 4)

    def forward(self, x: dict[str, torch.Tensor], edges: Any) -> torch.Tensor:
        H = {name: F.elu(rows) for name, rows in self.first(x, edges).items()}
        return self.out(self.second({**x, **H}, edges)[self.aim])


def by_relation(
    data: Any,
    conv: Callable[[tuple[int, int], bool], nn.Module],
    kind: Any,
    aggr: str | None = "sum",
) -> list[nn.Module]:
    """Two layers of convolutions by relation, whose widths follow from which types are made."""
    widths = {name: data[name].x.shape[1] for name in data.node_types}
    made = {relation[2] for relation in data.edge_types}
    layers = []
    for _ in range(2):
        convs = {
            relation: conv((widths[relation[0]], widths[relation[2]]), relation[0] == relation[2])
            for relation in data.edge_types
        }
        layers.append(kind(convs, aggr=aggr))
        widths |= dict.fromkeys(made, WIDTH)
    return layers


def attending(kind: Any) -> Callable[..., nn.Module]:
    def conv(widths: tuple[int, int], same: bool) -> nn.Module:
        return kind(widths, WIDTH // 2, heads=2, add_self_loops=same)

    return conv


class Both:
    """A model of PyG's layers and the same of ours, with its parameters."""

    def __init__(self, schema: str, name: str) -> None:
        self.data = data = hetero(schema, width=WIDTH if name == "rgcn" else None)
        torch.manual_seed(0)
        aim = data.node_types[0]
        widths = {one: data[one].x.shape[1] for one in data.node_types}
        later = widths | dict.fromkeys({relation[2] for relation in data.edge_types}, WIDTH)
        second: list[nn.Module] = []
        match name:
            case "sage" | "graph" | "gat" | "gatv2":
                aggr = {"sage": "sum", "graph": "max"}.get(name, "mean")
                kinds = {
                    "sage": (SAGEConv, ours.SAGEConv),
                    "graph": (GraphConv, ours.GraphConv),
                    "gat": (GATConv, ours.GATConv),
                    "gatv2": (GATv2Conv, ours.GATv2Conv),
                }[name]
                makes = [
                    attending(kind)
                    if name.startswith("gat")
                    else (lambda widths, same, kind=kind: kind(widths, WIDTH))
                    for kind in kinds
                ]
                first = by_relation(data, makes[0], HeteroConv, aggr)
                second = by_relation(data, makes[1], ours.HeteroConv, aggr)
            case "hgt":
                meta = data.metadata()
                first = [HGTConv(w, WIDTH, meta, heads=2) for w in (widths, later)]
                second = [ours.HGTConv(w, WIDTH, meta, heads=2) for w in (widths, later)]
            case "rgcn":
                count = len(data.edge_types)
                how = [{"num_bases": 3}, {"aggr": "mean"}]
                first = [RGCNConv(WIDTH, WIDTH, count, **one) for one in how]
                second = [ours.RGCNConv(WIDTH, WIDTH, count, **one) for one in how]
        self.theirs = Layers(*first, aim).double()
        self.ours = Layers(*second, aim).double()
        self.ours.load_state_dict(self.theirs.state_dict())

    def train(self, run: Callable[[nn.Module], Any], model: nn.Module, epochs: int) -> list[float]:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(epochs):
            out, y, mask, mean = run(model)
            loss = mean(F.cross_entropy(out[mask], y[mask], reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


def reference(both: Both, epochs: int) -> list[float]:
    data, aim = both.data, both.data[both.data.node_types[0]]
    if isinstance(both.theirs.first, RGCNConv):
        whole = data.to_homogeneous(node_attrs=["x"], edge_attrs=[])
        first, second = both.theirs.first, both.theirs.second
        type_of = whole.edge_type

        def run(model: nn.Module) -> Any:
            H = F.elu(first(whole.x, whole.edge_index, type_of))
            H = second(H, whole.edge_index, type_of)
            return model.out(H[: len(aim.y)]), aim.y, aim.train_mask, torch.mean

        return both.train(run, both.theirs, epochs)

    def run(model: nn.Module) -> Any:
        return model(data.x_dict, data.edge_index_dict), aim.y, aim.train_mask, torch.mean

    return both.train(run, both.theirs, epochs)


MODELS = ["sage", "graph", "gat", "gatv2", "hgt", "rgcn"]


def histories(rank: int, schema: str, cover: str, epochs: int) -> dict[str, list[float]]:
    """Losses of PyG's modules and of ours on a graph over ranks."""
    found = {}
    for name in MODELS:
        both = Both(schema, name)
        graph = spgnn.distribute(both.data, cover=cover)
        aim = graph[graph.node_types[0]]
        mask = aim.train_mask
        runs = {"ours": (both.ours, lambda: graph)}
        if name not in ("hgt", "rgcn"):
            runs["pyg"] = (both.theirs, lambda: graph.edge_index_dict)
        if cover != "column":
            runs = {"ours": runs["ours"]} if name in ("sage", "graph", "rgcn") else {}
        for key, (model, edges) in runs.items():
            graph.synchronise(model)

            def run(model: nn.Module, edges: Any = edges) -> Any:
                return model(graph.x_dict, edges()), aim.y, mask, lambda t: aim.mean(t, mask)

            found[f"{key} {name}"] = both.train(run, model, epochs)
    return found


def check_histories(schema: str, ranks: int, epochs: int, cover: str = "column") -> None:
    expected = {name: reference(Both(schema, name), epochs) for name in MODELS}
    for found in run_ranks(histories, ranks, schema, cover, epochs):
        for name, losses in found.items():
            wanted = torch.tensor(expected[name.split()[1]], dtype=torch.float64)
            torch.testing.assert_close(
                torch.tensor(losses, dtype=torch.float64),
                wanted,
                rtol=1e-9,
                atol=1e-9,
                msg=lambda m, n=name: f"{n}: {m}",
            )


@pytest.mark.parametrize(("schema", "ranks"), [("papers", 1), ("fraud", 2)])
def test_losses_are_those_of_pyg_on_one_process(schema, ranks):
    check_histories(schema, ranks, 3)


@pytest.mark.slow
@pytest.mark.parametrize("cover", ["column", "row", "minimum"])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_losses_of_more_ranks(schema, ranks, cover):
    check_histories(schema, ranks, 10, cover)


def test_losses_under_covers():
    check_histories("papers", 2, 3, "minimum")
