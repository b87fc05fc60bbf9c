"""Features: two layers each, of ours and of PyG's with the same parameters, and their graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from spgnn import InputError
from spgnn import nn as ours
from spgnn.graph import Aggregation, EdgeOperand
from spgnn.nn import Convolution, Stack

N, WIDTH, HIDDEN, CLASSES, EDGE_DIM, RELATIONS = 40, 6, 8, 4, 3, 3
Room = Any  # `spgnn.nn` or `torch_geometric.nn`


@cache
def record(kind: str = "plain") -> Any:
    """A directed graph with a vertex alone, labels and masks; do not write to it."""
    draw = torch.Generator().manual_seed(5)
    ends = torch.randint(0, N - 1, (2, 4 * N), generator=draw)
    ends = ends[:, ends[0] != ends[1]].unique(dim=1)
    if kind == "repeated":
        ends = torch.cat((ends, ends[:, :9], torch.arange(0, 12, 3).repeat(2, 2)), dim=1)
    edges = ends.shape[1]
    y = torch.randint(0, CLASSES, (N,), generator=draw)
    data = Data(x=torch.randn(N, WIDTH, generator=draw), edge_index=ends, y=y, num_nodes=N)
    for number, name in enumerate(("train", "val", "test")):
        data[f"{name}_mask"] = torch.arange(N) % 3 == number
    if kind == "edges":
        data.edge_attr = torch.rand(edges, EDGE_DIM, generator=draw) + 0.5
    if kind == "types":
        data.edge_type = torch.randint(0, RELATIONS, (edges,), generator=draw)
    if kind == "weighted":
        data.edge_weight = torch.rand(edges, generator=draw) + 0.5
    if kind == "labels":
        data.y = torch.randint(0, 2, (N, CLASSES), generator=draw).to(torch.int8)
    return data


@dataclass(frozen=True)
class Feature:
    """What a layer can do; `layer` makes one of a room, of widths.

    Of the training command's matrix: `normalisation`, `loops`, `attends`, as a `Stack` says it.
    """

    name: str
    layer: Callable[[Room, int, int], nn.Module]
    graph: str = "plain"
    normalisation: str = "none"
    loops: bool = False
    attends: bool = False
    norm: str | None = None
    once: bool = True  # aggregates once, so that blocks of a batch are enough
    foreign: bool = False  # modules of PyG on ranks
    aggregate: str = "mean"  # as a flag of the command
    looks_at_all: bool = False  # vertices of a batch depend on each other
    codec: str = ""  # as the argument of `distribute`, and how near its results are
    near: float = 0.0

    @property
    def of_batch(self) -> bool:
        """True if a batch is no part of the graph, but a graph of its own."""
        return self.looks_at_all or self.norm is not None

    @property
    def model_name(self) -> str:
        """As it is registered for the command."""
        return "support-" + self.name.lower().replace(" ", "-")

    @property
    def kind(self) -> type:
        """The class of the layers."""
        return type(self.layer(ours, WIDTH, HIDDEN))

    @property
    def takes(self) -> str:
        return {"edges": "edge_attr", "types": "edge_type"}.get(self.graph, "")

    def model(self) -> nn.Module:
        """Of ours, in float64."""
        model = (
            self.reference()
            if self.foreign
            else self.stack()(WIDTH, HIDDEN, 2, CLASSES, act="tanh")
        )
        return stirred(model.double())

    def reference(self) -> nn.Module:
        return stirred(Reference(self).double())

    @cache  # noqa: B019  (there is a table of them)
    def stack(self) -> type[Stack]:
        """As a program registers it."""
        feature = self

        class Layers(Stack):
            convolution: Any = feature.kind
            normalisation, loops, attends = feature.normalisation, feature.loops, feature.attends  # type: ignore[assignment]
            needs_edges = feature.graph == "edges"

            def __init__(self, *widths: Any, **options: Any) -> None:
                super().__init__(*widths, **{"norm": feature.norm} | options)

            def init_conv(
                self,
                f_in: int,
                f_out: int,
                *,
                last: bool,
                edge_dim: int = 0,
                aggr: str = "",
                **options: Any,
            ) -> Any:
                return feature.layer(ours, f_in, f_out)

        return Layers


class Reference(nn.Module):
    """The same on one process, by PyG."""

    def __init__(self, feature: Feature) -> None:
        super().__init__()
        self.takes = feature.takes
        widths = (WIDTH, HIDDEN), (HIDDEN, CLASSES)
        self.convs = nn.ModuleList(feature.layer(pyg, *each) for each in widths)
        self.norms = nn.ModuleList()
        if feature.norm is not None:
            self.norms.append(norm_of(feature.norm))

    def forward(self, x: Tensor, edge_index: Tensor, *of_edges: Tensor) -> Tensor:
        x = self.convs[0](x, edge_index, *of_edges)
        x = torch.tanh(self.norms[0](x) if len(self.norms) else x)
        return self.convs[1](x, edge_index, *of_edges)


def norm_of(name: str) -> nn.Module:
    kinds = {"batch": pyg.BatchNorm, "graph": pyg.GraphNorm, "layer": pyg.LayerNorm}
    return pyg.PairNorm() if name == "pair" else kinds[name](HIDDEN)


def stirred(module: nn.Module) -> nn.Module:
    """The same with parameters that no seed gives, alike for alike names."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, tensor in sorted(module.named_parameters()):
            tensor.copy_(torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype) / 2)
    return module


class Operand(Convolution):
    """Neighbours combined with a number of each edge, and reduced."""

    uses_edges = True

    def __init__(self, f_in: int, f_out: int, op: str, reduce: str) -> None:
        super().__init__()
        self.op, self.reduce, self.lin = op, reduce, biased(ours.Linear(f_in, f_out))

    def aggregation(self, H: Any, graph: Any, edge_attr: Any, keys: Any) -> Aggregation:
        attr = graph.local_edges.attr if edge_attr is None else edge_attr
        if attr is None:
            raise InputError("Operand needs features of edges")
        values = attr[:, :1].to(H.dtype)
        return Aggregation(self.lin(H), reduce=self.reduce, edge=EdgeOperand(self.op, values))  # type: ignore[arg-type]


class DenseOperand(nn.Module):
    """The same of one process."""

    def __init__(self, f_in: int, f_out: int, op: str, reduce: str) -> None:
        super().__init__()
        self.op, self.reduce, self.lin = op, reduce, nn.Linear(f_in, f_out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        sources, targets = edge_index
        rows = getattr(torch, self.op)(self.lin(x)[sources], edge_attr[:, :1])
        return pyg.aggr.MultiAggregation([self.reduce])(rows, targets, dim_size=len(x))


def operand(op: str, reduce: str) -> Callable[[Room, int, int], nn.Module]:
    def layer(room: Room, f_in: int, f_out: int) -> nn.Module:
        return (Operand if room is ours else DenseOperand)(f_in, f_out, op, reduce)

    return layer


class After(Convolution):
    """A linear map, and a layer that keeps widths, which is called with its input as well."""

    def __init__(self, layer: nn.Module, f_in: int, f_out: int, twice: bool = False) -> None:
        super().__init__()
        self.lin, self.layer, self.twice = ours.Linear(f_in, f_out), layer, twice

    def forward(self, H: Tensor, graph: Any) -> Tensor:
        H = self.lin(H)
        return self.layer(*[H] * (1 + self.twice), graph)


class DenseAfter(nn.Module):
    """The same of one process."""

    def __init__(self, layer: nn.Module, f_in: int, f_out: int, twice: bool = False) -> None:
        super().__init__()
        self.lin, self.layer, self.twice = nn.Linear(f_in, f_out), layer, twice

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin(x)
        return self.layer(*[x] * (1 + self.twice), edge_index)


def after(kind: str, *arguments: Any, twice: bool = False) -> Callable[[Room, int, int], nn.Module]:
    def layer(room: Room, f_in: int, f_out: int) -> nn.Module:
        inner = getattr(room, kind)(*[f_out] * twice, *arguments)
        return (After if room is ours else DenseAfter)(inner, f_in, f_out, twice)

    return layer


def gps(room: Room, f_in: int, f_out: int) -> nn.Module:
    inner = room.GPSConv(f_out, room.GCNConv(f_out, f_out), heads=2, norm=None)
    return (After if room is ours else DenseAfter)(inner, f_in, f_out)


def conv(kind: str, **options: Any) -> Callable[[Room, int, int], nn.Module]:
    return lambda room, f_in, f_out: getattr(room, kind)(f_in, f_out, **options)


def biased(linear: nn.Linear) -> nn.Linear:
    """With biases that nobody draws, and that differ: rows of zeros are no ties."""
    nn.init.constant_(linear.bias, 0.1)
    with torch.no_grad():
        linear.bias.add_(torch.arange(linear.out_features) / 50)
    return linear


def perceptron(f_in: int, f_out: int) -> nn.Module:
    return nn.Sequential(biased(nn.Linear(f_in, 5)), nn.Tanh(), biased(nn.Linear(5, f_out)))


def gin(room: Room, f_in: int, f_out: int) -> nn.Module:
    return room.GINConv(perceptron(f_in, f_out), train_eps=True)


def gine(room: Room, f_in: int, f_out: int) -> nn.Module:
    return room.GINEConv(perceptron(f_in, f_out), edge_dim=EDGE_DIM)


def nnconv(room: Room, f_in: int, f_out: int) -> nn.Module:
    return room.NNConv(f_in, f_out, perceptron(EDGE_DIM, f_in * f_out), aggr="mean")


def heads(kind: str, **options: Any) -> Callable[[Room, int, int], nn.Module]:
    return lambda room, f_in, f_out: getattr(room, kind)(f_in, f_out // 2, heads=2, **options)


F = Feature
ATTENDS: Any = {"loops": True, "attends": True}
FEATURES = [
    F("GCN", conv("GCNConv"), normalisation="sym", loops=True),
    F("GCN, weighted edges", conv("GCNConv"), "weighted", "sym", True),
    F("GCN, A + 2 I", conv("GCNConv", improved=True), "weighted"),
    F("GCN without loops", conv("GCNConv", add_self_loops=False), normalisation="sym"),
    F("GraphConv: A as it is", conv("GraphConv")),
    F("SAGE, mean", conv("SAGEConv"), normalisation="row"),
    F("SAGE, max", conv("SAGEConv", aggr="max"), aggregate="max"),
    F("SAGE, min", conv("SAGEConv", aggr="min"), aggregate="min"),
    F("SAGE, std", conv("SAGEConv", aggr="std"), aggregate="std"),
    F("GIN", gin),
    F("GAT", heads("GATConv"), **ATTENDS),
    F("GATv2", heads("GATv2Conv"), **ATTENDS),
    F("Transformer attention", heads("TransformerConv"), attends=True),
    F("GAT, features of edges", heads("GATConv", edge_dim=EDGE_DIM), "edges", **ATTENDS),
    F("GATv2, features of edges", heads("GATv2Conv", edge_dim=EDGE_DIM), "edges", **ATTENDS),
    F(
        "Transformer, features of edges",
        heads("TransformerConv", edge_dim=EDGE_DIM),
        "edges",
        attends=True,
    ),
    F("edge operands: mul, sum", operand("mul", "sum"), "edges"),
    F("edge operands: add, max", operand("add", "max"), "edges"),
    F("edge operands: sub, mean", operand("sub", "mean"), "edges"),
    F("edge operands: div, min", operand("div", "min"), "edges"),
    F("GINE", gine, "edges"),
    F("NNConv", nnconv, "edges"),
    F("RGCN", conv("RGCNConv", num_relations=RELATIONS, num_bases=2), "types"),
    *(
        F(f"{kind} norm", conv("GCNConv"), normalisation="sym", loops=True, norm=kind)
        for kind in ("batch", "graph", "layer", "pair")
    ),
    F("GCN, repeated edges and loops", conv("GCNConv"), "repeated", "sym", True),
    F("SAGE max, repeated edges and loops", conv("SAGEConv", aggr="max"), "repeated"),
    F("GAT, repeated edges and loops", heads("GATConv"), "repeated", **ATTENDS),
    F("SGC", conv("SGConv", K=2), normalisation="sym", loops=True, once=False),
    F("TAG", conv("TAGConv", K=2), normalisation="sym", once=False),
    F("APPNP", after("APPNP", 3, 0.1), normalisation="sym", loops=True, once=False),
    F(
        "GCNII",
        after("GCN2Conv", 0.1, 0.5, 1, twice=True),
        normalisation="sym",
        loops=True,
        once=False,
    ),
    F("LightGCN's layer", after("LGConv"), normalisation="sym", once=False),
    F(
        "GPS: attention to all vertices",
        gps,
        normalisation="sym",
        loops=True,
        once=False,
        looks_at_all=True,
    ),
    F("8 bits", conv("GCNConv"), normalisation="sym", loops=True, codec="bits=8", near=0.03),
    F("late rows", conv("GCNConv"), normalisation="sym", loops=True, codec="delay=1", near=1e-10),
    F(
        "sampled rows",
        conv("GCNConv"),
        normalisation="sym",
        loops=True,
        codec="sampling=0.999999",
        near=1e-4,
    ),
    F("attention, 8 bits", heads("GATConv"), codec="bits=8", near=0.03, **ATTENDS),
    F("several labels", conv("GCNConv"), "labels", "sym", True),
    F("PyG's GCNConv", conv("GCNConv"), foreign=True, once=False),
    F("PyG's GATConv", heads("GATConv"), foreign=True, once=False),
    F(
        "PyG's PNA-like SAGEConv",
        conv("SAGEConv", aggr=["mean", "max", "std"]),
        foreign=True,
        once=False,
    ),
]
