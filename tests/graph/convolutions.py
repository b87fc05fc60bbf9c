"""Every convolution of torch_geometric.nn.conv: how it is made and called, or why it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as geometric
from torch_geometric.data import Data

IN, OUT, N, EDGES = 6, 4, 60, 320
RELATIONS = 3


def data() -> Data:
    """A directed graph with self-loops, repeated edges, an isolated vertex, and all there is.

    Sorted by destination, as an LSTM over the neighbours wants it, and by nothing else.
    """
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, N - 1, (2, EDGES), generator=draw)
    ends = torch.cat((ends, ends[:, :7], torch.arange(5).repeat(2, 1)), dim=1)
    ends = ends[:, ends[1].argsort(stable=True)]
    return Data(
        x=torch.randn(N, IN, generator=draw),
        edge_index=ends,
        edge_attr=torch.rand(ends.shape[1], 4, generator=draw),
        train_mask=torch.rand(N, generator=draw) < 0.5,
        pos=torch.randn(N, 3, generator=draw),
        normal=torch.nn.functional.normalize(torch.randn(N, 3, generator=draw)),
        kind=torch.randint(0, 2, (N,), generator=draw),
        num_nodes=N,
    )


@dataclass(frozen=True)
class Given:
    """What a convolution is called with: of one process, through the halo, or with one x."""

    x: Any
    edge_index: Tensor
    edge_attr: Tensor
    pos: Any
    normal: Any
    kind: Tensor

    @property
    def edge_weight(self) -> Tensor:
        return self.edge_attr[:, 1]

    @property
    def edge_type(self) -> Tensor:
        return (self.edge_attr[:, 0] * RELATIONS).long()

    @property
    def pseudo(self) -> Tensor:
        return self.edge_attr[:, 2:]


@dataclass(frozen=True)
class Convolution:
    """One way to use a class of PyG.

    ``pair`` and ``alone`` say why it cannot be called with (sources, destinations), or with one x.
    """

    name: str
    make: Callable[[], nn.Module] | None = None
    call: Callable[[Any, Given], Tensor] = lambda conv, on: conv(on.x, on.edge_index)
    pair: str = ""
    alone: str = ""
    note: str = ""

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]


def mlp(f_in: int, f_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(f_in, 8), nn.Tanh(), nn.Linear(8, f_out))


ONE_X = "takes one x"
NEEDS_KNN = "looks for neighbours among all vertices, by their features"
CUGRAPH = "needs cugraph, and its own form of a graph"
BATCH = "its default norm is a batch norm, which sees one rank's vertices: take another"
HYPER = "rows of its index are vertices and hyperedges; hyperedges have no owner here"


def with_weight(conv: Any, on: Given) -> Tensor:
    return conv(on.x, on.edge_index, on.edge_weight)


def with_attr(conv: Any, on: Given) -> Tensor:
    return conv(on.x, on.edge_index, on.edge_attr)


def with_type(conv: Any, on: Given) -> Tensor:
    return conv(on.x, on.edge_index, on.edge_type)


def with_pos(conv: Any, on: Given) -> Tensor:
    return conv(on.x, on.pos, on.edge_index)


def degrees() -> Tensor:
    """How many vertices have which in-degree, as PNA wants it: of the whole graph."""
    return torch.bincount(torch.bincount(data().edge_index[1], minlength=N))


AGGREGATIONS = (
    "mean", "sum", "max", "min", "mul", "median", "var", "std", "softmax", "powermean", "lstm",
    ["mean", "max", "std"],
)  # fmt: skip


def sage(aggr: Any) -> nn.Module:
    return geometric.SAGEConv(IN, OUT, aggr=aggr)


def sage_of(aggregation: Callable[[], nn.Module]) -> nn.Module:
    return geometric.SAGEConv(IN, OUT, aggr=aggregation())


def rgat(**options: Any) -> nn.Module:
    conv = geometric.RGATConv(IN, OUT, RELATIONS, **options)
    for parameter in (conv.l1, conv.b1, conv.l2, conv.b2):
        # Some are not initialised by PyG 2.8: whatever was in memory.
        nn.init.constant_(parameter, 0.5)
    return conv


def hetero() -> nn.Module:
    relation = "v", "to", "v"
    return geometric.HeteroConv({relation: geometric.GraphConv(IN, OUT)})


def call_hetero(conv: Any, on: Given) -> Tensor:
    return conv({"v": on.x}, {("v", "to", "v"): on.edge_index})["v"]


def call_dna(conv: Any, on: Given) -> Tensor:
    return conv(torch.stack((on.x, on.x.square()), dim=1), on.edge_index)


def call_supergat(conv: Any, on: Given) -> Tensor:
    return conv(on.x, on.edge_index, neg_edge_index=on.edge_index)


def both_signs(conv: Any, on: Given) -> Tensor:
    keep = on.edge_weight < 0.5
    return conv(on.x, on.edge_index[:, keep], on.edge_index[:, ~keep])


def both_signs_again(conv: Any, on: Given) -> Tensor:
    first, second = conv
    keep = on.edge_weight < 0.5
    edges = on.edge_index[:, keep], on.edge_index[:, ~keep]
    return second(torch.tanh(first(on.x, *edges)), *edges)


def convolutions() -> Iterator[Convolution]:
    """All of them, some in several forms."""
    C, g = Convolution, geometric
    for aggr in AGGREGATIONS:
        name = aggr if isinstance(aggr, str) else "+".join(aggr)
        yield C(f"SAGEConv {name}", partial(sage, aggr))
    yield C(
        "SAGEConv project, normalize", lambda: g.SAGEConv(IN, OUT, project=True, normalize=True)
    )
    for aggregation in (
        partial(g.aggr.AttentionalAggregation, mlp(IN, 1)),
        partial(g.aggr.DegreeScalerAggregation, "mean", "linear", degrees()),
        partial(g.aggr.GraphMultisetTransformer, IN, 2),
        partial(g.aggr.SetTransformerAggregation, IN, heads=2),
        partial(g.aggr.QuantileAggregation, 0.3),
        partial(g.aggr.LCMAggregation, IN, IN),
        partial(g.aggr.PatchTransformerAggregation, IN, IN, 3, 8, 1, 2),
    ):
        yield C(f"SAGEConv {aggregation.func.__name__}", partial(sage_of, aggregation))
    yield C("SimpleConv", lambda: g.SimpleConv("mean", combine_root="cat"), with_weight)
    yield C("GraphConv", lambda: g.GraphConv(IN, OUT), with_weight)
    yield C("ResGatedGraphConv", lambda: g.ResGatedGraphConv(IN, OUT, edge_dim=4), with_attr)
    yield C("GATConv", lambda: g.GATConv(IN, OUT, heads=2, edge_dim=4), with_attr)
    yield C("GATConv residual", lambda: g.GATConv(IN, OUT, heads=2, concat=False, residual=True))
    yield C("GATv2Conv", lambda: g.GATv2Conv(IN, OUT, heads=2, edge_dim=4), with_attr)
    yield C(
        "GATv2Conv share_weights",
        lambda: g.GATv2Conv(IN, OUT, share_weights=True, add_self_loops=False),
    )
    yield C("TransformerConv", lambda: g.TransformerConv(IN, OUT, 2, edge_dim=4), with_attr)
    yield C("TransformerConv beta", lambda: g.TransformerConv(IN, OUT, 2, beta=True))
    yield C("GINConv", lambda: g.GINConv(mlp(IN, OUT), train_eps=True))
    yield C("GINEConv", lambda: g.GINEConv(mlp(IN, OUT), edge_dim=4), with_attr)
    yield C("MFConv", lambda: g.MFConv(IN, OUT, max_degree=8))
    yield C("RGCNConv", lambda: g.RGCNConv(IN, OUT, RELATIONS, num_bases=2), with_type)
    yield C("RGCNConv blocks", lambda: g.RGCNConv(IN, OUT, RELATIONS, num_blocks=2), with_type)
    yield C("FastRGCNConv", lambda: g.FastRGCNConv(IN, OUT, RELATIONS), with_type)
    yield C("SignedConv", lambda: g.SignedConv(IN, OUT, first_aggr=True), both_signs)
    yield C("PointNetConv", lambda: g.PointNetConv(mlp(IN + 3, 8), mlp(8, OUT)), with_pos)
    yield C(
        "GMMConv", lambda: g.GMMConv(IN, OUT, 2, 3), lambda c, on: c(on.x, on.edge_index, on.pseudo)
    )
    yield C(
        "GMMConv separate_gaussians",
        lambda: g.GMMConv(IN, OUT, 2, 3, separate_gaussians=True),
        lambda c, on: c(on.x, on.edge_index, on.pseudo),
    )
    yield C(
        "SplineConv",
        pair="needs torch-spline-conv or pyg-lib",
        alone="needs torch-spline-conv or pyg-lib",
    )
    yield C("NNConv", lambda: g.NNConv(IN, OUT, mlp(4, IN * OUT), aggr="mean"), with_attr)
    yield C("CGConv", lambda: g.CGConv(IN, 4), with_attr)
    yield C("EdgeConv", lambda: g.EdgeConv(mlp(2 * IN, OUT)))
    yield C(
        "PPFConv",
        lambda: g.PPFConv(mlp(IN + 4, 8), mlp(8, OUT)),
        lambda c, on: c(on.x, on.pos, on.normal, on.edge_index),
    )
    yield C("FeaStConv", lambda: g.FeaStConv(IN, OUT, heads=2))
    yield C(
        "PointTransformerConv",
        lambda: g.PointTransformerConv(IN, OUT, mlp(3, OUT), mlp(OUT, OUT)),
        with_pos,
    )
    yield C("LEConv", lambda: g.LEConv(IN, OUT), with_weight)
    yield C(
        "GENConv",
        lambda: g.GENConv(IN, OUT, learn_t=True, edge_dim=4, norm="layer"),
        with_attr,
        note=BATCH,
    )
    yield C(
        "GENConv powermean",
        lambda: g.GENConv(IN, OUT, aggr="powermean", learn_p=True, msg_norm=True, norm="layer"),
    )
    yield C("WLConvContinuous", g.WLConvContinuous, with_weight)
    yield C("FiLMConv", lambda: g.FiLMConv(IN, OUT, RELATIONS), with_type)
    yield C("GeneralConv", lambda: g.GeneralConv(IN, OUT, 4, heads=2, attention=True), with_attr)
    yield C(
        "GeneralConv dot_product",
        lambda: g.GeneralConv(IN, OUT, attention=True, attention_type="dot_product"),
    )
    yield from one_x()
    yield from impossible()


def one_x() -> Iterator[Convolution]:
    """What PyG has for one x alone."""
    C, g = partial(Convolution, pair=ONE_X), geometric
    yield C("GCNConv", lambda: g.GCNConv(IN, OUT), with_weight)
    yield C("GCNConv improved, cached", lambda: g.GCNConv(IN, OUT, improved=True, cached=True))
    yield C("GCNConv normalize=False", lambda: g.GCNConv(IN, OUT, normalize=False), with_weight)
    yield C("ChebConv", lambda: g.ChebConv(IN, OUT, 3))
    yield C(
        "ChebConv lambda_max",
        lambda: g.ChebConv(IN, OUT, 3, normalization=None),
        lambda conv, on: conv(on.x, on.edge_index, on.edge_weight, lambda_max=torch.tensor(40.0)),
        note="without normalization it needs `lambda_max`: it takes the largest weight of a rank",
    )
    yield C("ChebConv rw", lambda: g.ChebConv(IN, OUT, 3, normalization="rw"), with_weight)
    yield C("GatedGraphConv", lambda: g.GatedGraphConv(8, 3), with_weight)
    yield C("AGNNConv", g.AGNNConv)
    yield C("TAGConv", lambda: g.TAGConv(IN, OUT), with_weight)
    yield C("ARMAConv", lambda: g.ARMAConv(IN, OUT, 2, 3), with_weight)
    yield C("SGConv", lambda: g.SGConv(IN, OUT, K=3))
    yield C("SSGConv", lambda: g.SSGConv(IN, OUT, 0.1, K=3))
    yield C(
        "APPNP",
        lambda: g.Sequential("x, e, w", [(g.APPNP(4, 0.1), "x, e, w -> x"), nn.Linear(IN, OUT)]),
        with_weight,
    )
    yield C(
        "RGATConv",
        lambda: rgat(heads=2, edge_dim=4),
        lambda c, on: c(on.x, on.edge_index, on.edge_type, on.edge_attr),
    )
    yield C(
        "RGATConv within-relation, f-scaled",
        lambda: rgat(attention_mechanism="within-relation", mod="f-scaled"),
        with_type,
    )
    yield C(
        "SignedConv twice",
        lambda: nn.ModuleList((g.SignedConv(IN, OUT, True), g.SignedConv(OUT, OUT, False))),
        both_signs_again,
    )
    yield C("DNAConv", lambda: g.DNAConv(IN, heads=2), call_dna)
    yield C(
        "PNAConv",
        lambda: g.PNAConv(
            IN, OUT, ["mean", "min", "max", "std"],
            ["identity", "amplification", "attenuation"], degrees(), edge_dim=4,
        ),
        with_attr,
    )  # fmt: skip
    yield C("ClusterGCNConv", lambda: g.ClusterGCNConv(IN, OUT, diag_lambda=0.3))
    yield C(
        "GCN2Conv", lambda: g.GCN2Conv(IN, 0.1, 0.5, 2), lambda c, on: c(on.x, on.x, on.edge_index)
    )
    yield C(
        "SuperGATConv",
        lambda: g.SuperGATConv(IN, OUT, heads=2),
        call_supergat,
        note="in training, `neg_edge_index` has to be given: it draws from all pairs",
    )
    yield C("FAConv", lambda: g.FAConv(IN), lambda c, on: c(on.x, on.x.square(), on.edge_index))
    yield C("EGConv", lambda: g.EGConv(IN, 8, ["symnorm", "max", "var"], num_heads=4))
    yield C("PDNConv", lambda: g.PDNConv(IN, OUT, 4, 8), with_attr)
    yield C(
        "HEATConv",
        lambda: g.HEATConv(IN, OUT, 2, RELATIONS, 3, 4, 5, heads=2),
        lambda c, on: c(on.x, on.edge_index, on.kind, on.edge_type, on.edge_attr),
    )
    yield C("LGConv", lambda: g.Sequential("x, e", [(g.LGConv(), "x, e -> x"), nn.Linear(IN, OUT)]))
    yield C(
        "PointGNNConv", lambda: g.PointGNNConv(mlp(IN, 3), mlp(IN + 3, 8), mlp(8, IN)), with_pos
    )
    yield C("AntiSymmetricConv", lambda: g.AntiSymmetricConv(IN, num_iters=3))
    yield C("DirGNNConv", lambda: g.DirGNNConv(g.GraphConv(IN, OUT)))
    yield C("DirGNNConv SAGEConv mean", lambda: g.DirGNNConv(g.SAGEConv(IN, OUT)))
    yield C("MixHopConv", lambda: g.MixHopConv(IN, OUT, [0, 1, 3]), with_weight)
    yield C("HeteroConv", hetero, call_hetero)


def impossible() -> Iterator[Convolution]:
    """What cannot work, and why."""
    for name, why in {
        "CuGraphSAGEConv": CUGRAPH,
        "CuGraphGATConv": CUGRAPH,
        "CuGraphRGCNConv": CUGRAPH,
        "FusedGATConv": "needs dgNN, a GPU, and its own form of a graph",
        "GravNetConv": NEEDS_KNN,
        "DynamicEdgeConv": NEEDS_KNN,
        "XConv": NEEDS_KNN,
        "HypergraphConv": HYPER,
        "HGTConv": "numbers the vertices of all types anew, by adding offsets to edge_index",
        "WLConv": "numbers colours in the order it meets them, which ranks do not share",
        "HANConv": "weighs relations by a mean over all vertices, of which a rank has some",
        "GPSConv": "attends to all vertices at once, of which a rank has some",
        "PANConv": "needs torch-sparse, and its own form of a graph",
        "MeshCNNConv": "rows are edges of a mesh, four neighbours each in a fixed order",
    }.items():
        yield Convolution(name, pair=why, alone=why)
