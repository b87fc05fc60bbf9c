"""Graphs of several vertex types: on any number of ranks as PyG on one process."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as geometric
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GraphConv,
    HANConv,
    HeteroConv,
    HGTConv,
    RGCNConv,
    SAGEConv,
    to_hetero,
)

import spgnn
from spgnn import InputError
from spgnn.addons.hetero import RGCN
from spgnn.testing import run_ranks
from tests.addons.hetero.schemas import SCHEMAS, hetero

# PyG warns of types that no relation ends at.
pytestmark = pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")

WIDTH = 8
ours = spgnn.nn
Channels = tuple[int, int]
Cross = Callable[..., torch.Tensor]


class Layers(nn.Module):
    """Two layers of a kind and a linear one of the first type."""

    def __init__(self, first: nn.Module, second: nn.Module, aim: str) -> None:
        super().__init__()
        self.first, self.second, self.aim = first, second, aim
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x: dict[str, torch.Tensor], edges: Any) -> torch.Tensor:
        H = {name: F.elu(rows) for name, rows in self.first(x, edges).items() if rows is not None}
        return self.out(self.second({**x, **H}, edges)[self.aim])


class OneType(nn.Module):
    """A model of one vertex type, for `to_hetero`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = SAGEConv((-1, -1), WIDTH)
        self.second = GATConv((-1, -1), WIDTH, add_self_loops=False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Converted(nn.Module):
    """What PyG makes of it."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.inner, self.aim = to_hetero(OneType().double(), data.metadata()), data.node_types[0]
        with torch.no_grad():
            self(data.x_dict, data.edge_index_dict)

    def forward(self, x: dict[str, torch.Tensor], edges: Any) -> torch.Tensor:
        return self.inner(x, edges)[self.aim]


def sums(kind: Any, widths: Channels, same: bool) -> nn.Module:
    return kind(widths, WIDTH)


def attends(kind: Any, widths: Channels, same: bool) -> nn.Module:
    return kind(widths, WIDTH // 2, heads=2, add_self_loops=same)


# The layers of PyG and ours, how they are made, and how relations are grouped.
BY_RELATION: dict[str, tuple[Any, Any, Any, str]] = {
    "sage": (SAGEConv, ours.SAGEConv, sums, "sum"),
    "graph": (GraphConv, ours.GraphConv, sums, "max"),
    "gat": (GATConv, ours.GATConv, attends, "mean"),
    "gatv2": (GATv2Conv, ours.GATv2Conv, attends, "sum"),
}
MODELS = [*BY_RELATION, "hgt", "han", "rgcn", "to_hetero"]
COVERED = (*BY_RELATION, "rgcn")
How = dict[str, Any]
# Schemes in which each relation has a plan of its own; some do without attention.
SCHEMES: list[tuple[How, tuple[str, ...]]] = [
    ({"cover": "minimum"}, ("graph", "gatv2", "rgcn")),
    ({"node_size": 2, "cover": "minimum"}, ("sage",)),
    ({"relays": True, "cover": "row"}, ("sage",)),
    ({"algo": "1.5d", "c": 2}, ("gat",)),
    ({"algo": "feature", "c": 2, "cover": "minimum"}, ("rgcn",)),
    ({"algo": "vertex-cut"}, ("gat",)),
]


def pair(data: HeteroData, name: str) -> tuple[nn.Module, nn.Module | None]:
    """A model of PyG's layers and, with its parameters, one of ours."""
    torch.manual_seed(0)
    aim, relations, meta = data.node_types[0], data.edge_types, data.metadata()
    widths = {one: data[one].x.shape[1] for one in data.node_types}
    later = widths | dict.fromkeys({relation[2] for relation in relations}, WIDTH)
    kinds: list[list[nn.Module]] = [[], []]
    for number, at in enumerate((widths, later)):
        if name in BY_RELATION:
            theirs, mine, make, aggr = BY_RELATION[name]
            for layers, kind, wrap in ((0, theirs, HeteroConv), (1, mine, ours.HeteroConv)):
                convs = {r: make(kind, (at[r[0]], at[r[2]]), r[0] == r[2]) for r in relations}
                kinds[layers].append(wrap(convs, aggr=aggr))
        elif name == "rgcn":
            how: dict[str, Any] = [{"num_bases": 3}, {"num_blocks": 2}][number]
            for layers, kind in ((0, RGCNConv), (1, ours.RGCNConv)):
                kinds[layers].append(kind(WIDTH, WIDTH, len(relations), **how))
        elif name in ("hgt", "han"):
            both = (HGTConv, ours.HGTConv) if name == "hgt" else (HANConv, ours.HANConv)
            for layers, kind in enumerate(both):
                kinds[layers].append(kind(at, WIDTH, meta, heads=2))
        else:
            return Converted(data), None
    theirs, mine = (Layers(*layers, aim).double() for layers in kinds)
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


def trained(
    model: nn.Module, call: Callable[[], torch.Tensor], aim: Any, mean: Cross, epochs: int
) -> list[float]:
    """The losses of some epochs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, mask = [], aim.train_mask
    for _ in range(epochs):
        loss = mean(F.cross_entropy(call()[mask], aim.y[mask], reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def data_for(schema: str, name: str) -> HeteroData:
    return hetero(schema, width=WIDTH if name == "rgcn" else None)


def reference(schema: str, name: str, epochs: int) -> list[float]:
    """Losses of PyG on one process."""
    data = data_for(schema, name)
    model, _ = pair(data, name)
    aim = data[data.node_types[0]]
    if name != "rgcn":
        return trained(
            model, lambda: model(data.x_dict, data.edge_index_dict), aim, torch.mean, epochs
        )
    whole = data.to_homogeneous(node_attrs=["x"], edge_attrs=[])
    edges = whole.edge_index, whole.edge_type

    def call() -> torch.Tensor:
        H = model.second(F.elu(model.first(whole.x, *edges)), *edges)
        return model.out(H[: len(aim.y)])

    return trained(model, call, aim, torch.mean, epochs)


def on_ranks(
    rank: int, schema: str, how: How, epochs: int, names: Sequence[str] = MODELS
) -> dict[str, list[float]]:
    """Losses of PyG's modules, and of ours."""
    found = {}
    for name in names:
        data = data_for(schema, name)
        theirs, mine = pair(data, name)
        graph = spgnn.distribute(data, **how)
        aim = graph[graph.node_types[0]]
        mean = partial(aim.mean, mask=aim.train_mask)
        if mine is not None:
            graph.synchronise(mine)
            call = partial(mine, graph.x_dict, graph)
            found[f"ours {name}"] = trained(mine, call, aim, mean, epochs)
        if (name in BY_RELATION and not graph.covered) or name == "to_hetero":
            graph.synchronise(theirs)
            call = partial(theirs, graph.x_dict, graph.edge_index_dict)
            found[f"pyg {name}"] = trained(theirs, call, aim, mean, epochs)
    return found


def check_losses(
    schema: str, ranks: int, epochs: int, schemes: Sequence[tuple[How, Sequence[str]]]
) -> None:
    tried = sorted({name for _, names in schemes for name in names})
    expected = {name: reference(schema, name, epochs) for name in tried}

    def all_schemes(rank: int) -> list[dict[str, list[float]]]:
        return [on_ranks(rank, schema, how, epochs, names) for how, names in schemes]

    for each in run_ranks(all_schemes, ranks):
        for found, (how, names) in zip(each, schemes, strict=True):
            wrong = {
                name: (how, losses, expected[name.split()[1]])
                for name, losses in found.items()
                if losses != pytest.approx(expected[name.split()[1]], rel=1e-9)
            }
            assert len(found) >= len(names)
            assert not wrong


@pytest.mark.parametrize(("schema", "ranks"), [("papers", 1), ("fraud", 2)])
def test_losses_are_those_of_pyg_on_one_process(schema, ranks):
    check_losses(schema, ranks, 3, [({}, MODELS)])


def test_losses_of_schemes():
    check_losses("papers", 4, 2, SCHEMES)


@pytest.mark.slow
@pytest.mark.parametrize("cover", ["column", "row", "minimum"])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_losses_of_more_ranks(schema, ranks, cover):
    check_losses(schema, ranks, 10, [({"cover": cover}, MODELS if cover == "column" else COVERED)])


def by_trainer(rank: int, path: str) -> dict[str, list[dict[str, Any]]]:
    """Histories of some models, one of which goes on from a checkpoint."""
    found = {}
    for name in ("sage", "hgt", "to_hetero"):
        data = data_for("papers", name)
        theirs, mine = pair(data, name)
        model, graph = mine or theirs, spgnn.distribute(data)
        how: dict[str, Any] = {"lr": 0.01, "checkpoint": f"{path}/{name}-{graph.comm.size}"}
        if name == "sage":
            spgnn.Trainer(copy.deepcopy(model), graph, **how).fit(2)
            how["resume"] = True
        if mine is None:  # as it is called anyway
            how["forward"] = lambda model, graph: model(graph.x_dict, graph.edge_index_dict)
        history = found[name] = spgnn.Trainer(model, graph, target="paper", **how).fit(3)
        papers = graph["paper"]
        with torch.no_grad():
            out = model(graph.x_dict, graph.edge_index_dict if mine is None else graph)
            right = papers.mean((out.argmax(1) == papers.y).float(), papers.train_mask)
        assert float(right) == pytest.approx(history[-1]["train_acc"])
    return found


def test_a_trainer_trains_as_pyg_on_one_process(tmp_path):
    for ranks in (1, 2):
        for found in run_ranks(by_trainer, ranks, str(tmp_path)):
            for name, history in found.items():
                losses = [epoch["loss"] for epoch in history]
                assert losses == pytest.approx(reference("papers", name, 3), rel=1e-6), name


# Layers on features of edges, of two types; parallel edges have features of their own.
WITH_EDGES: dict[str, Callable[[Any, Channels], nn.Module]] = {
    "gat": lambda kind, pair: kind.GATConv(pair, 4, heads=2, edge_dim=3, add_self_loops=False),
    "gatv2": lambda kind, pair: kind.GATv2Conv(pair, 4, edge_dim=3, add_self_loops=False),
    "transformer": lambda kind, pair: kind.TransformerConv(pair, 4, heads=2, edge_dim=3, beta=True),
    "nn": lambda kind, pair: kind.NNConv(pair, 4, nn.Linear(3, 4 * pair[0])),
    "cg": lambda kind, pair: kind.CGConv(pair, 3, batch_norm=True),
}
# On a relation within one type, with several self-loops of a vertex, and parallel edges.
WITHIN: dict[str, Callable[[Any], nn.Module]] = {
    "gat": lambda kind: kind.GATConv(17, 4),
    "gat of edges": lambda kind: kind.GATConv(17, 4, edge_dim=3),
    "gcn": lambda kind: kind.GCNConv(17, 4),
    "gine": lambda kind: kind.GINEConv(nn.Linear(17, 4), edge_dim=3),
}


def with_edges(rank: int, cover: str) -> dict[str, list[torch.Tensor]]:
    """Rows and gradients of layers of a relation: PyG's on one process, and ours. Collective."""
    data, found = hetero("papers"), {}
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    for relation in (cites, writes):
        data[relation].edge_index[:, ::7] = torch.tensor([[3], [3]])
    graph = spgnn.distribute(data, cover=cover)
    ids = graph["paper"].vertex_ids
    layers = {f"between {name}": (writes, make, ((5, 17),)) for name, make in WITH_EDGES.items()}
    layers |= {f"within {name}": (cites, make, ()) for name, make in WITHIN.items()}
    for name, (relation, make, given) in layers.items():
        torch.manual_seed(1)
        theirs = HeteroConv({relation: make(geometric, *given)}).double()
        mine = ours.HeteroConv({relation: make(ours, *given)}).double()
        mine.load_state_dict(theirs.state_dict())
        plain = name in ("within gat", "within gcn")
        if graph.covered and not plain:
            continue
        more = {} if plain else {"edge_attr_dict": {relation: data[relation].edge_attr}}
        x = {key: rows.clone().requires_grad_() for key, rows in data.x_dict.items()}
        right = theirs(x, data.edge_index_dict, **more)["paper"]
        right.square().sum().backward()
        own = {key: rows.clone().requires_grad_() for key, rows in graph.x_dict.items()}
        rows = mine(own, graph)["paper"]
        rows.square().sum().backward()
        source = relation[0]
        found[name] = [
            rows.detach() - right[ids].detach(),
            own[source].grad - x[source].grad[graph[source].vertex_ids],
        ]
    return found


@pytest.mark.parametrize(("ranks", "cover"), [(3, "column"), (3, "minimum")])
def test_features_of_edges_of_relations(ranks, cover):
    for found in run_ranks(with_edges, ranks, cover):
        for name, apart in found.items():
            for one in apart:
                assert torch.allclose(one, torch.zeros_like(one), atol=1e-11), name


def moved_by(graph: Any, work: Callable[[], Any]) -> int:
    """Bytes that this rank sends in an exchange of rows."""
    before = graph.comm.ledger.copy()
    work()
    return graph.comm.ledger.since(before).of("alltoall").sent_bytes


def counted(rank: int) -> tuple[list[int], list[int], list[int]]:
    """Bytes of two epochs: of several types, as planned, and of one type as wide as the widest."""
    data = hetero("fraud")
    types, relations = data.node_types, data.edge_types
    for name in types:
        data[name].x = data[name].x.float()
    labels = {name: torch.arange(len(data[name].x)) % 4 for name in types}
    wide = max(rows.shape[1] for rows in data.x_dict.values())
    graph = spgnn.distribute(data, partition=labels)
    for name in types:
        data[name].x = F.pad(data[name].x, (0, wide - data[name].x.shape[1]))
    whole = data.to_homogeneous(node_attrs=["x"], edge_attrs=[])
    one = spgnn.distribute(whole, partition=torch.cat(list(labels.values())))
    layers = [
        ours.HeteroConv({r: ours.SAGEConv((-1, -1), WIDTH) for r in relations}) for _ in range(2)
    ]
    plain = [ours.RGCNConv(width, WIDTH, len(relations)) for width in (wide, WIDTH)]

    def epoch() -> None:
        x = graph.x_dict
        H = {**x, **layers[0](x, graph)}
        sum(rows.sum() for rows in layers[1](H, graph).values()).backward()

    def plain_epoch() -> None:
        H = plain[0](one.x, one, one.edge_type)
        plain[1](H, one, one.edge_type).sum().backward()

    rows = {name: graph[name].A.volume for name in types}
    made = {relation[2] for relation in relations}
    first = sum(rows[name].send * graph[name].num_features for name in types)
    hidden = sum((rows[name].send + rows[name].receive) * WIDTH for name in made)
    planned = [4 * (first + hidden), 4 * hidden]  # features travel once and for all
    found = [moved_by(graph, epoch) for _ in range(2)]
    moved_by(one, plain_epoch)
    return found, planned, [moved_by(one, plain_epoch) for _ in range(2)]


def test_a_row_travels_once_and_is_not_padded():
    totals = []
    for found, planned, padded in run_ranks(counted, 4):
        assert found == planned
        totals.append([*found, *padded])
    first, later, *padded = map(sum, zip(*totals, strict=True))
    assert first < 0.75 * padded[0]
    assert later < 0.5 * padded[1]


def changed(**what: Any) -> HeteroData:
    """A good graph with something wrong."""
    data = hetero("papers")
    for name, value in what.items():
        match name:
            case "ghost":
                _ = data["ghost"].keys()
            case "nowhere":
                data["paper", "in", "nowhere"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
            case "mask":
                data["paper"].train_mask = value
            case "x":
                data["author"].x = value
            case "y":
                data["paper"].y = value
            case "edges":
                data["author", "writes", "paper"].edge_index = value
            case "weights":
                data["author", "writes", "paper"].edge_weight = value
    return data


ends = torch.zeros(2, 5, dtype=torch.int64)
BAD_DATA: list[tuple[Callable[[], Any], dict[str, Any], str]] = [
    (HeteroData, {}, "this HeteroData has no vertices"),
    (lambda: changed(ghost=True), {}, "vertex type 'ghost' has neither x nor num_nodes"),
    (lambda: changed(nowhere=True), {}, "names a missing vertex type, nowhere: choose one"),
    (lambda: changed(mask=torch.ones(60)), {}, "vertex type 'paper': train_mask must be bool"),
    (lambda: changed(mask=torch.ones(3, dtype=torch.bool)), {}, "3 rows for 60 vertices"),
    (lambda: changed(x=torch.full((41, 2), torch.nan)), {}, "vertex type 'author': "),
    (lambda: changed(y=[0] * 60), {}, "vertex type 'paper': y is a list; give a tensor"),
    (lambda: changed(edges=ends + 41), {}, r"edge_index\[0, 0\], a source, is 41; 'author' has"),
    (lambda: changed(edges=ends - 1), {}, r"relation 'author writes paper': .* source, is -1"),
    (lambda: changed(edges=ends.float()), {}, "edge_index must be integers"),
    (lambda: changed(edges=ends[0]), {}, "edge_index must be integers"),
    (lambda: changed(weights=torch.ones(3)), {}, "edge_weight must have a row for each of the 120"),
    (changed, {"partition": "gbv"}, "partition gbv: choose one of"),
    (changed, {"partition": {"paper": [0] * 60}}, "give a dictionary of labels, paper, author"),
    (changed, {"algo": "1.5d", "c": 3}, "must divide the number of ranks"),
    (changed, {"plan": "auto", "memory": "1GiB"}, "memory= is for graphs of one vertex type"),
    (changed, {"plan": "auto", "partition": {"paper": [0]}}, "makes partitions by itself"),
    (changed, {"symmetrise": True}, "symmetrise= is for graphs of one vertex type"),
]


def said_by(call: Callable[[], Any]) -> str:
    try:
        return f"no error, but {call()}"
    except (InputError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


def refuses_data(rank: int) -> list[tuple[str, str]]:
    return [
        (said_by(partial(spgnn.distribute, make() if rank == 0 else None, **options)), words)
        for make, options, words in BAD_DATA
    ]


def refuses_use(rank: int) -> list[tuple[str, str]]:
    graph = spgnn.distribute(hetero("papers"))
    covered = spgnn.distribute(hetero("papers"), cover="minimum")
    x, (writes, cites) = graph.x_dict, (("author", "writes", "paper"), ("paper", "cites", "paper"))
    sage = ours.SAGEConv((-1, -1), WIDTH)
    meta = graph.metadata()

    def by(conv: nn.Module, relation: Any = writes, **rows: Any) -> Callable[[], Any]:
        return lambda: ours.HeteroConv({relation: conv})({**x, **rows}, graph)

    def two(widths: dict[Any, int]) -> nn.Module:
        convs = {name: ours.SAGEConv((-1, -1), width) for name, width in widths.items()}
        return ours.HeteroConv(convs).double()

    edges = graph["author", "writes", "paper"].edge_index
    venue, targets = graph["venue"], graph.relation(writes).local_edge_index[1]
    cases = [
        (lambda: graph["papers"], "no vertex type 'papers' in the graph.*did you mean 'paper'"),
        (
            lambda: graph["author", "wrote", "paper"],
            "no relation 'author wrote paper' in the graph",
        ),
        (by(sage, ("author", "wrote", "paper")), "no relation 'author wrote paper' in the graph"),
        (by(sage, author=None), "x_dict must have rows .* of vertex type 'author', got none"),
        (by(SAGEConv(3, 3)), "layers are those of spgnn.nn, got SAGEConv"),
        (by(ours.GATConv(3, 3)), "GATConv needs add_self_loops=False between types"),
        (by(ours.GATConv(3, 3, dropout=0.5), cites), "dropout of edges or messages is not supp"),
        (by(ours.TransformerConv(5, 3, dropout=0.5)), "dropout of edges or messages is not supp"),
        (by(ours.APPNP(2, 0.1, dropout=0.5), cites), "dropout of edges or messages is not supp"),
        (by(ours.GCNConv(5, 3).double()), r'matrix\("sym"\): relation .* has no self-loops'),
        (by(ours.GINConv(nn.ReLU()).double()), "takes the rows of targets from those of sources"),
        (by(ours.SAGEConv(7, 3)), "writes paper: the layer takes 7 columns of 'author', x has"),
        (by(ours.SAGEConv((5, 7), 3)), "paper: the layer takes 7 columns of 'paper', x has"),
        (lambda: two({writes: 3, cites: 4})(x, graph), r"end at 'paper' make \[3, 4\] columns"),
        (lambda: ours.HeteroConv({}), "give a convolution for at least one relation"),
        (lambda: ours.HGTConv(-1, 7, meta, heads=2), "2 heads must divide out_channels=7"),
        (lambda: ours.HGTConv({}, 8, meta), "in_channels has no width of vertex type 'paper'"),
        (lambda: ours.HGTConv(4, 8, meta).double()(x, graph), "rows of 'paper' have 17 columns"),
        (lambda: ours.HGTConv(-1, 8, meta)(x, graph.edge_index_dict), "is called with x_dict and"),
        (lambda: ours.RGCNConv(4, 8, 5).double()(x, graph), r"rows \[own rows, 4\], as one graph"),
        (lambda: ours.RGCNConv(4, 8, 2).double()(x, graph), "num_relations is 2, the graph has 5"),
        (lambda: covered.edge_index_dict, "need whole rows of all sources"),
        (lambda: ours.HGTConv(-1, 8, meta).double()(x, covered), "only sums and means|whole rows"),
        (lambda: spgnn.Trainer(sage, graph, target="papers"), "no vertex type 'papers'"),
        (lambda: spgnn.Trainer(sage, graph, target="venue"), "venue has no labels"),
        (
            lambda: spgnn.Trainer(ours.HeteroConv({writes[::-1]: sage}), graph),
            "no relation 'paper writes author'",
        ),
        (lambda: spgnn.Trainer(sage, hetero("papers")), "distribute made, got HeteroData"),
        (lambda: spgnn.NeighborLoader(graph, [2]), "vertices or a mask"),
        (lambda: spgnn.LinkNeighborLoader(graph, [2]), "takes graphs of one vertex type"),
        (lambda: spgnn.distribute(graph), "a HeteroDistGraph is distributed already"),
        (lambda: spgnn.infer(sage, graph, layer=1), "layer= is for graphs of one vertex type"),
        (lambda: spgnn.infer(sage, graph, since=1), "since= is for graphs of one vertex type"),
        (lambda: spgnn.Embeddings(sage, graph), "are of graphs of one vertex type; infer"),
        (lambda: HANConv(-1, 8, meta).double()(x, graph.edge_index_dict), "looks at all vertices"),
        (lambda: HGTConv(-1, 8, meta).double()(x, graph.edge_index_dict), "of a distributed graph"),
        (lambda: edges[0].ne(targets), "ne of the sources of a distributed graph"),  # of two types
        (lambda: venue.y, "AttributeError: vertices of type 'venue' have no 'y'"),
    ]
    return [(said_by(call), words) for call, words in cases]


def test_what_cannot_be_is_refused_on_all_ranks():
    for refuses in (refuses_data, refuses_use):
        for said in run_ranks(refuses, 2):
            assert [(one, words) for one, words in said if not re.search(words, one)] == []


def lonely() -> HeteroData:
    """Fewer vertices than ranks, a type without any, one without edges, one without features."""
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(2, 3).double(), torch.randn(1, 2).double()
    data["none"].x = torch.zeros(0, 4).double()
    data["apart"].num_nodes = 3
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 1], [0, 0, 0]])
    data["b", "to", "a"].edge_index = torch.tensor([[0], [1]])
    data["none", "to", "a"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    data["a", "to", "b"].edge_attr = torch.tensor([[1.0], [2.0], [3.0]]).double()
    data["a"].tag = torch.arange(2)
    return data


def on_few(rank: int, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    data = lonely()
    pairs = {r: (data[r[0]].x.shape[1], data[r[2]].x.shape[1]) for r in data.edge_types}
    convs = {r: SAGEConv(widths, 2).double() for r, widths in pairs.items()}
    convs["a", "to", "b"] = GATConv((3, 2), 2, edge_dim=1, add_self_loops=False).double()
    theirs = HeteroConv(convs)
    mine = ours.HeteroConv({r: ours.SAGEConv(widths, 2) for r, widths in pairs.items()}).double()
    graph = spgnn.distribute(data, model=theirs)
    graph.synchronise(mine)
    assert sorted(graph.edge_attr_dict) == [("a", "to", "b")]
    assert graph["apart"].num_nodes == 3
    assert sum(graph.x_dict["none"].shape) == 4
    expected = theirs(data.x_dict, data.edge_index_dict, edge_attr_dict=data.edge_attr_dict)
    found = theirs(graph.x_dict, graph.edge_index_dict, edge_attr_dict=graph.edge_attr_dict)
    for name, rows in found.items():
        ids = graph[name].vertex_ids
        torch.testing.assert_close(rows, expected[name][ids], rtol=1e-12, atol=1e-12)
        whole = graph[name].gather(rows.detach())
        if rank == 0:
            torch.testing.assert_close(whole, expected[name].detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(graph[name].scatter(whole), rows.detach())
    assert torch.equal(graph["a"].tag, graph["a"].vertex_ids)
    # Second derivatives, of the sum over all ranks.
    x = {name: rows.clone().requires_grad_() for name, rows in graph.x_dict.items()}
    out = mine(x, graph)
    total = sum(graph[name].sum(rows.square().sum(1)) for name, rows in out.items())
    first = torch.autograd.grad(total, x["a"], create_graph=True)[0]
    second = torch.autograd.grad(graph["a"].sum(first.square().sum(1)), x["a"])[0]
    embedded = spgnn.infer(mine, graph)
    assert [*embedded] == [*out]
    scale = graph.comm.size
    return [int(rank), graph["a"].vertex_ids, first.detach() / scale, second / scale**3]


def test_more_ranks_than_vertices_and_empty_types():
    (alone,) = run_ranks(on_few, 1, 0)
    for _, ids, *derivatives in run_ranks(on_few, 4, 0):
        for found, expected in zip(derivatives, alone[2:], strict=True):
            torch.testing.assert_close(found, expected[ids], rtol=1e-9, atol=1e-12)


def finds_fraud(rank: int) -> float:
    from experiments.fraud import main

    return main()


@pytest.mark.slow
def test_fraud_is_found():
    accuracies = run_ranks(finds_fraud, 2)
    assert accuracies[0] == accuracies[1]
    assert 0.93 < accuracies[0] < 0.97


def fetched_again(rank: int) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
    """Halos, what they are of in rows of the source, and the bytes that they moved. Collective."""
    papers = spgnn.distribute(hetero("papers"))["paper"]
    ids, x, found = papers.halo(papers.vertex_ids), papers.x, []

    def fetch(rows: torch.Tensor) -> torch.Tensor:
        halo: list[torch.Tensor] = []
        moved = moved_by(papers, lambda: halo.append(papers.halo(rows)))
        found.append((halo[0].detach().clone(), ids, moved))
        return halo[0]

    fetch(x)
    fetch(x)
    fetch(x.mul_(2))
    rows = x.clone()
    learns = [fetch(rows).requires_grad, fetch(rows.requires_grad_()).requires_grad]
    learnt = nn.Parameter(x.clone())
    fetch(learnt)
    learnt.data.mul_(3)  # which torch does not note
    fetch(learnt)
    return [*found, learns]


def test_rows_are_fetched_again_where_they_changed():
    whole = hetero("papers")["paper"].x
    for *found, learns in run_ranks(fetched_again, 2):
        for (halo, ids, _), factor in zip(found, (1, 1, 2, 2, 2, 2, 6), strict=True):
            assert torch.equal(halo, whole[ids] * factor)
        assert [moved > 0 for *_, moved in found] == [True, False, True, True, True, True, True]
        assert learns == [False, True]


def narrowing(rank: int) -> tuple[int, int, float]:
    """Bytes of an epoch of layers from 6 to 2 and 1 columns, as planned; its loss. Collective."""
    data = hetero("fraud")
    torch.manual_seed(0)
    types, relations = data.node_types, data.edge_types
    graph = spgnn.distribute(data, partition={name: _parted(data[name].x) for name in types})
    layers = [
        {r: ours.SAGEConv((data[r[0]].x.shape[1], data[r[2]].x.shape[1]), 6) for r in relations},
        {r: ours.SAGEConv((6, 6), 2) for r in relations},
    ]
    model = nn.ModuleList(ours.HeteroConv(convs) for convs in layers).double()
    rgcn = ours.RGCNConv(6, 1, len(relations)).double()
    rows, losses, moved = {}, [], []
    for name in types:
        send, receive = graph[name].A.volume.send, graph[name].A.volume.receive
        starts = sum(relation[0] == name for relation in relations)
        # Rows that travel whole for one layer are at hand for the other.
        rows[name] = (send + receive) * (6 if 2 * starts >= 6 else 2 * starts + starts)

    def epoch() -> None:
        H = {name: t.relu() for name, t in model[0](graph.x_dict, graph).items()}
        out = model[1](H, graph), rgcn(H, graph)
        loss = sum(graph[n].sum(t.square().sum(1)) for one in out for n, t in one.items())
        loss.backward()
        losses.append(float(loss.detach()))

    for _ in range(2):
        moved.append(moved_by(graph, epoch))
    return moved[1], 8 * sum(rows.values()), losses[1]


def _parted(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x)) % spgnn.connect().size


def test_the_narrower_side_travels():
    ((_, _, alone),) = run_ranks(narrowing, 1)
    for found, planned, loss in run_ranks(narrowing, 3):
        assert found == planned
        assert loss == pytest.approx(alone, rel=1e-9)


def coded(rank: int, path: str) -> dict[str, Any]:
    """What moves under codecs, and what they leave. Collective."""
    found: dict[str, Any] = {}
    data = data_for("papers", "sage")
    labels = {name: _parted(x) for name, x in data.x_dict.items()}
    for kind, codec, cover in (
        ("exact", {}, "column"),
        ("bits", {"bits": 4, "feedback": True}, "column"),
        ("sums", {"bits": 8, "delay": 1, "sampling": 0.9}, "minimum"),
    ):

        def train(epochs: int, graph: Any, model: Any, **how: Any) -> Any:
            trainer = spgnn.Trainer(model, graph, lr=0.01, **how)
            return [epoch["loss"] for epoch in trainer.fit(epochs)], trainer.measured.sent_bytes

        graphs = [
            spgnn.distribute(data, codec=codec, partition=labels, cover=cover) for _ in range(3)
        ]
        models = [pair(data, "sage")[1] for _ in range(3)]
        found[kind], found[f"{kind} moved"] = train(3, graphs[0], models[0])
        found[f"{kind} counted"] = graphs[0].codec_traffic().sent_bytes
        found[f"{kind} errors"] = graphs[0].codec_errors()
        found[f"{kind} inferred"] = spgnn.infer(models[2], graphs[0])
        how = {"checkpoint": f"{path}/{kind}"}
        train(2, graphs[1], models[1], **how)
        found[f"{kind} resumed"], _ = train(3, graphs[2], models[1], resume=True, **how)
    return found


def test_codecs_of_several_types(tmp_path):
    for found in run_ranks(coded, 2, str(tmp_path)):
        assert found["exact resumed"] == found["exact"]
        for kind in ("bits", "sums"):
            right = found["exact inferred"]
            torch.testing.assert_close(found[f"{kind} inferred"], right, rtol=1e-10, atol=1e-12)
            assert found[f"{kind} resumed"] == found[kind]
            assert found[kind] == pytest.approx(found["exact"], rel=0.1)
            assert found[kind] != pytest.approx(found["exact"], rel=1e-6)
            assert found[f"{kind} counted"] == found[f"{kind} moved"][2]
        assert found["bits counted"] < found["exact moved"][0]
        assert any(name.startswith("author writes paper row ") for name in found["sums errors"])
        assert {"paper", "author"} < set(found["bits errors"])
        for errors in found["bits errors"].values():
            assert all(0 < one["error"] < 0.2 for one in errors)


def check_names(rank: int) -> None:
    """A user's names next to the graph's own, and what is said of the whole."""
    data = HeteroData()
    data.name, data.classes, data.scale = "set", ["u", "v"], torch.ones(1, 4)
    data.table = torch.ones(7, 3)
    data["b"].x = torch.arange(6.0)[:, None]
    data["b"].vertex_ids, data["b"].layout, data["b"].kind = (
        torch.arange(6).flip(0),
        data["b"].x,
        "k",
    )
    data["b"].train_idx = torch.tensor([4, 1])
    data["c"].x, data["c"].some_index = torch.ones(2, 3), torch.ones(2, 9).long()
    relation = "b", "r", "b"
    data[relation].edge_index = torch.tensor([[0, 1], [1, 2]])
    data[relation].edge_label_index, data[relation].edge_label = (
        torch.ones(2, 5).long(),
        torch.ones(5),
    )
    data[relation].table, data[relation].note = torch.ones(2, 5), 3
    graph = spgnn.distribute(data if rank == 0 else None)
    b = graph["b"]
    every = b.gather(b.x)
    assert every is None or torch.equal(every, data["b"].x)
    assert torch.equal(b["vertex_ids"], 5 - b.vertex_ids)
    assert torch.equal(b["layout"], b.x)
    assert torch.equal(b.train_mask, torch.isin(b.vertex_ids, torch.tensor([1, 4])))
    assert torch.equal(
        b.vertex_ids[b.train_idx].sort().values, b.vertex_ids[b.train_mask].sort()[0]
    )
    assert (graph.name, graph["classes"], b.kind) == ("set", ["u", "v"], "k")
    assert torch.equal(graph.scale, data.scale)
    assert graph[relation].note == 3
    assert graph[relation].table.shape[1:] == (5,)
    assert "some" not in graph
    assert {"x", "classes", "table", "vertex_ids"} <= set(graph.keys())
    assert graph.num_node_features == {"b": 1, "c": 3}
    assert graph.num_nodes_dict == {"b": 6, "c": 2}
    for get in (
        lambda: graph.table,
        lambda: graph[relation].edge_label_index,
        lambda: graph["c"].some_index,
    ):
        with pytest.raises(AttributeError, match="has no row for each vertex or each edge"):
            get()


def test_names_of_users_do_not_replace_those_of_the_graph():
    run_ranks(check_names, 3)


def check_types_of_one_rank(rank: int) -> None:
    index = torch.tensor([[0, 1, 2, 3, 1, 2], [1, 0, 3, 2, 2, 1]])
    graph = spgnn.distribute(Data(x=torch.rand(4, 2), edge_index=index), partition=[0, 0, 1, 1])
    types = torch.full((graph.local_edge_index.shape[1],), 7 if rank == 1 else 0)
    with pytest.raises(InputError, match="edge_type runs from 7"):
        spgnn.nn.RGCNConv(2, 2, 2)(graph.x, graph, types)
    assert graph.comm.agree(1, "sum") == 2


def test_types_that_one_rank_refuses_all_do():
    run_ranks(check_types_of_one_rank, 2)


def planned(rank: int, halo: bool) -> tuple[dict[str, Any], int, int, float]:
    """A plan of two layers of 8 columns, and what an epoch of these sends. Collective."""
    data = hetero("papers")
    graph = spgnn.distribute(data, plan="auto", halo=halo, hidden_channels=8, num_layers=2)
    model = RGCN(graph, 8, 2, 4)
    moved = []
    for _ in range(2):
        result: list[torch.Tensor] = []

        def epoch(result: list[torch.Tensor] = result) -> None:
            x = {name: rows.float() for name, rows in graph.x_dict.items()}
            result.append(graph["paper"].sum(model(x, graph).square().sum(1)))
            result[0].backward()

        moved.append(moved_by(graph, epoch))
    return graph.plan, moved[1], int(graph.covered), float(result[0].detach())


def test_plans_of_several_types_are_exact():
    best, losses = [], []
    for halo in (True, False):
        ranks = run_ranks(planned, 3, halo)
        plan = ranks[0][0]
        sent = [moved for _, moved, *_ in ranks]
        assert (sum(sent), max(sent)) == (plan["bytes"], plan["max_send_bytes"])
        assert {one["cover"] for one in plan["tried"]} >= {plan["cover"]}
        assert ranks[0][2] == (plan["cover"] != "column")
        assert all(one[0] == plan for one in ranks)
        best.append(max(plan["max_send_bytes"], plan["max_recv_bytes"]))
        for one in plan["tried"]:
            assert best[-1] <= max(one["max_send_bytes"], one["max_recv_bytes"])
        losses.append(ranks[0][3])
    assert best[1] <= best[0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
