"""Examples of PyG, a line each: their layers and losses, and what changes on ranks.

torchrun --nproc-per-node 2 experiments/pyg/examples.py [NAME …]

prints how far outputs, losses and gradients are from those of PyG on one process, in float64 and in
parts of the largest number: with PyG's layers and, if there are, with those of spgnn.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric import nn as geometric
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_undirected

import spgnn
from experiments.graphs import BONDS, IN, with_graphs

N, W, H, C = 60, 8, 6, 4  # vertices; widths of features, hidden rows and classes
RELATIONS, GRAPHS = 3, 9


class Kit(dict[str, Any]):
    """Layers of PyG or of spgnn by name; norms over vertices are ours on ranks."""

    def __init__(self, layers: Any, norms: Any) -> None:
        super().__init__(BatchNorm=norms.BatchNorm)
        self._layers = layers

    def __missing__(self, name: str) -> Any:
        if len(name) > 1 and name[0].isupper() and hasattr(self._layers, name):
            return getattr(self._layers, name)
        if self._layers is spgnn.nn and name in ("HANConv", "HGTConv", "HeteroConv"):
            from spgnn.addons import hetero  # which is not needed for their list

            return getattr(hetero, name)
        raise KeyError(name)


PYG, ON_RANKS, OURS = Kit(geometric, geometric), Kit(geometric, spgnn.nn), Kit(spgnn.nn, spgnn.nn)
BY_ROW = nn.Linear | nn.Embedding | nn.LayerNorm | nn.Sequential | geometric.BatchNorm


class Layers(nn.Module):
    """Layers one after another, with tanh between them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any, *edges: Any, comm: Any = None) -> Any:
        start = x
        for i, layer in enumerate(self.layers):
            if isinstance(layer, spgnn.nn.BatchNorm):
                x = layer(x, comm)
            elif isinstance(layer, BY_ROW):
                x = layer(x)
            elif type(layer).__name__ == "GCN2Conv":
                x = layer(x, start, *edges)
            else:
                x = layer(x, *edges)
            x = x if i + 1 == len(self.layers) else x.tanh()
            start = x if i == 0 else start
        return x


def data(directed: bool = False) -> Data:
    """A small graph with all that an example looks at, in float64."""
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(0, N, (2, 240), generator=draw)
    ends = torch.unique(ends[:, ends[0] != ends[1]], dim=1)
    ends = ends if directed else to_undirected(ends)
    split = torch.rand(N, generator=draw)
    return Data(
        x=torch.randn(N, W, generator=draw).double(),
        edge_index=ends,
        edge_attr=torch.rand(ends.shape[1], 3, generator=draw).double(),
        edge_type=ends.sum(0) % RELATIONS,
        y=torch.randint(0, C, (N,), generator=draw),
        train_mask=split < 0.5,
        hint=split < 0.2,
        num_nodes=N,
    )


def weights() -> Data:
    """The same with weights that float32 holds, as matrices of spgnn round them to it."""
    whole = data()
    whole.edge_weight = whole.edge_attr[:, 0].float().double()
    return whole


def several() -> HeteroData:
    """Two types of vertices, and three relations, of which one has ratings."""
    draw, whole = torch.Generator().manual_seed(0), HeteroData()
    whole["movie"].x = torch.randn(N, W, generator=draw).double()
    whole["user"].x = torch.randn(40, 5, generator=draw).double()
    whole["movie"].y = torch.randint(0, C, (N,), generator=draw)
    whole["movie"].train_mask = torch.rand(N, generator=draw) < 0.5
    rates = torch.stack([torch.randint(0, n, (200,), generator=draw) for n in (40, N)])
    whole["user", "rates", "movie"].edge_index = rates
    whole["movie", "rev_rates", "user"].edge_index = rates.flip(0)
    whole["movie", "near", "movie"].edge_index = data().edge_index
    whole["user", "rates", "movie"].edge_attr = rates.sum(0) % 5.0
    return whole


def graphs() -> HeteroData:
    """Some graphs side by side; each is a vertex of its own with a class."""
    batch = data()
    batch.batch = torch.arange(N) * GRAPHS // N
    inside = batch.batch[batch.edge_index[0]] == batch.batch[batch.edge_index[1]]
    batch.edge_index, batch.num_graphs = batch.edge_index[:, inside], GRAPHS
    batch.y = torch.arange(GRAPHS) % C
    whole = with_graphs(batch)
    whole[BONDS].edge_attr = batch.edge_attr[inside]
    whole["graph"].train_mask = torch.arange(GRAPHS) < 7
    return whole


def ids(on: Any) -> Tensor:
    return on.vertex_ids if hasattr(on, "comm") else torch.arange(N)


def labelled(on: Any) -> tuple[Tensor, Tensor]:
    """Pairs with a link and others, and which they are; a rank's share of them."""
    some = data().edge_index[:, :50]
    index, label = torch.cat((some, (some + 7) % N), 1), torch.arange(100) < 50
    return on.pairs(index, label.double()) if hasattr(on, "comm") else (index, label.double())


def mean(on: Any, rows: Tensor) -> Tensor:
    return on.mean(rows) if hasattr(on, "comm") else rows.mean()


def features(model: Any, on: Any, e: Any) -> Any:
    return model(on.x, e, comm=getattr(on, "comm", None))


def weighed(model: Any, on: Any, e: Any) -> Any:
    return model(on.x, *((on,) if e is on else (e, on.edge_weight)))


def attributed(model: Any, on: Any, e: Any) -> Any:
    return model(on.x, e, on.edge_attr)


def typed(model: Any, on: Any, e: Any) -> Any:
    return model(on.x, e, on.edge_type)


def numbered(model: Any, on: Any, e: Any) -> Any:
    return model(ids(on), e, on.edge_type)


def linked(model: Any, on: Any, e: Any, z: Any = None) -> Any:
    """Scores of pairs by the product of both rows."""
    z, (index, label) = model(on.x, e) if z is None else z, labelled(on)
    scores = (z[index[0]] * z[index[1]]).sum(1)
    return scores, F.binary_cross_entropy_with_logits(scores, label)


def variational(model: Any, on: Any, e: Any) -> Any:
    """A mean and a deviation of each vertex, and their divergence from a normal distribution."""
    h = model.layers[0](on.x, e).relu()
    mu, log = (layer(h, e) for layer in model.layers[1:])
    scores, loss = linked(model, on, e, mu + log.exp())
    return scores, loss - mean(on, (1 + 2 * log - mu.square() - (2 * log).exp()).sum(1)) / N


def taught(model: Any, on: Any, e: Any) -> Any:
    """What a perceptron makes, taught by a GNN; and both losses."""
    soft, out, mask = model.layers[0](on.x, e), model.layers[1](on.x), on.train_mask
    target = soft.detach().log_softmax(1)
    apart = F.kl_div(out.log_softmax(1), target, reduction="batchmean", log_target=True)
    return out, F.cross_entropy(soft[mask], on.y[mask]) + apart


def supervised(model: Any, on: Any, e: Any) -> Any:
    index, label = labelled(on)
    return model(on.x, e, index[:, label == 0])


def shown(model: Any, on: Any, e: Any) -> Any:
    """Some labels are features."""
    return Layers(*model.layers[1:])(model.layers[0](on.x, on.y, on.hint), e)


def propagated(model: Any, on: Any, e: Any) -> Any:
    out = model.layers[0](F.one_hot(on.y, C).double(), e, on.train_mask)
    return out, mean(on, out.square().sum(1))


def corrected(model: Any, on: Any, e: Any) -> Any:
    soft, mask, post = on.x[:, :C].softmax(1), on.train_mask, model.layers[0]
    out = post.correct(soft, on.y[mask][:, None], mask, e)
    out = post.smooth(out, on.y[mask][:, None], mask, e)
    return out, mean(on, out.square().sum(1))


def signed(model: Any, on: Any, e: Any) -> Any:
    """Both kinds of edges, and classes of pairs by both rows."""
    plus = on.edge_type > 0
    z, (index, label) = model(on.x, e[:, plus], e[:, ~plus]), labelled(on)
    out = torch.cat((z[index[0]], z[index[1]]), 1)
    return out.sum(1), F.cross_entropy(out, label.long())


def related(model: Any, on: Any, e: Any) -> Any:
    """Links of relations, by rows that are learnt of each vertex."""
    return linked(model, on, e, model.layers[1](model.layers[0](ids(on)), e, on.edge_type))


def embedded(model: Any, on: Any, e: Any) -> Any:
    return linked(model, on, e, model(ids(on), e))


def reversible(model: Any, on: Any, e: Any) -> Any:
    first, middle, last = model.layers
    return last(middle(first(on.x), e))


def in_types(model: Any, on: Any, e: Any) -> Any:
    x = dict(on.x_dict)
    for conv in model.layers:
        x = conv(x, on) if e is on else conv(x, on.edge_index_dict)
    return x["movie"]


def rated(model: Any, on: Any, e: Any) -> Any:
    """Ratings of pairs of users and movies by rows of both."""
    z = model.layers[0](on.x_dict, on.edge_index_dict)
    pairs = on["user", "rates", "movie"]
    scores = (z["user"][pairs.edge_index[0]] * z["movie"][pairs.edge_index[1]]).sum(1)
    return scores, F.mse_loss(scores, pairs.edge_attr)


def whole(model: Any, on: Any, e: Any) -> Any:
    return model.layers[0](on)


class Dna(nn.Module):
    """Layers that attend to all before them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(geometric.DNAConv(W, 2, 2) for _ in range(2))

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        x = x[:, None]
        for conv in self.convs:
            x = torch.cat((x, conv(x, edges).relu()[:, None]), 1)
        return x[:, -1]


class GeniePath(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.lstm = conv, nn.LSTM(C, C, bias=False)

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        state = x.new_zeros(1, len(x), C)
        return self.lstm(self.conv(x, edges).tanh()[None], (state, state))[0][0]


class Classifier(nn.Module):
    """Layers within each graph, and a readout to the graph's own vertex."""

    def __init__(self, readout: str, *layers: nn.Module, attr: bool = False) -> None:
        super().__init__()
        self.inner, self.attr = Layers(*layers), attr
        self.readout, self.out = geometric.SimpleConv(readout), nn.Linear(H, C)

    def forward(self, on: Any) -> Tensor:
        edges = (on[BONDS].edge_index, on[BONDS].edge_attr)[: 1 + self.attr]
        x = self.inner(on["vertex"].x, *edges, comm=getattr(on, "comm", None))
        return self.out(self.readout((x, x.new_empty(len(on["graph"].y), 0)), on[IN].edge_index))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (geometric.SAGEConv((-1, -1), n) for n in (H, C))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def to_hetero() -> nn.Module:
    return geometric.to_hetero(Two(), several().metadata())


def of_types(conv: Any, heads: int) -> nn.Module:
    return conv({"movie": W, "user": 5}, H, several().metadata(), heads)


def sages(conv: Any, width: int) -> dict[Any, nn.Module]:
    return {relation: conv((-1, -1), width) for relation in several().edge_types}


def mlp(width: int, out: int = H) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, out))


def rgat(width: int, out: int) -> nn.Module:
    conv = geometric.RGATConv(width, out, RELATIONS)
    for weight in (conv.l1, conv.b1, conv.l2, conv.b2):  # PyG does not initialise them
        nn.init.constant_(weight, 0.5)
    return conv


def pna() -> nn.Module:
    degrees = torch.bincount(torch.bincount(graphs()[BONDS].edge_index[1], minlength=N))
    scalers = ["identity", "amplification", "attenuation"]
    return geometric.PNAConv(W, H, ["mean", "min", "max", "std"], scalers, degrees, 3)


def deep() -> nn.Module:
    conv = geometric.GENConv(W, W, "softmax", learn_t=True, norm="layer", edge_dim=3)
    return geometric.DeepGCNLayer(conv, nn.LayerNorm(W), nn.ReLU())


@dataclass(frozen=True)
class Example:
    """One program; `layers` are made one after another.

    `call(model, on, edges)` gives rows of vertices, or scores of pairs and a loss; `edges` is
    ``on.edge_index``, or the graph for layers of spgnn. `variants` has False for PyG's layers and
    True for ours.
    """

    name: str
    layers: str
    call: Callable[[Any, Any, Any], Any] = features
    needs: str = ""
    data: Callable[[], Any] = data
    target: str = ""
    variants: tuple[bool, ...] = (False,)

    def model(self, kit: Kit) -> nn.Module:
        return Layers(*(eval(one, globals(), kit) for one in self.layers.split(" | ")))

    def answer(self, model: nn.Module, on: Any, edges: Any) -> tuple[Tensor, Tensor]:
        """What the program makes, and its loss."""
        result = self.call(model, on, edges)
        if isinstance(result, tuple):
            return result
        rows = on[self.target] if self.target else on
        mask = rows.train_mask
        return result, F.cross_entropy(result[mask], rows.y[mask])


NORM, PAIRS, EMBEDDED = "`spgnn.nn.BatchNorm`", "`graph.pairs`", "`Embedding` of `vertex_ids`"
BATCH, SAMPLED, READ = "a `Batch` as `data`", "no sampling, or ours", "`with_graphs`, `SimpleConv`"


def examples() -> Iterator[Example]:
    """All that are equal."""
    one, ours = Example, partial(Example, variants=(False, True))
    yield one("agnn", "nn.Linear(W, H) | AGNNConv(False) | AGNNConv() | nn.Linear(H, C)")
    yield one("arma", "ARMAConv(W, H, 3, 2, True) | ARMAConv(H, C, 3, 2, True)")
    yield ours("autoencoder", "GCNConv(W, H) | GCNConv(H, C) | GCNConv(H, C)", variational,
               f"{PAIRS}, `binary_cross_entropy_with_logits` of `decoder(…, sigmoid=False)` for "
               "`recon_loss`; `graph.mean` for `kl_loss`")  # fmt: skip
    yield one("correct_and_smooth", "CorrectAndSmooth(5, 0.9, 5, 0.8, False, 20.0)", corrected,
              "`edge_index` for `adj_t`")  # fmt: skip
    yield one("dir_gnn", "DirGNNConv(GCNConv(W, H), 1, False) | DirGNNConv(SAGEConv(H, C))",
              data=lambda: data(True))  # fmt: skip
    yield one("dna", "nn.Linear(W, W) | Dna() | nn.Linear(W, C)")
    yield one("egc", "Classifier('mean', EGConv(W, 8, ['symnorm'], 4, 4), nn.Linear(8, H))", whole,
              READ, graphs, "graph")  # fmt: skip
    yield one("film", "FiLMConv(W, H) | BatchNorm(H) | FiLMConv(H, C)", needs=f"{BATCH}; {NORM}")
    yield ours("gat", "GATConv(W, H, 2) | GATConv(2 * H, C, concat=False)")
    yield ours("gcn", "GCNConv(W, H) | GCNConv(H, C)", weighed, data=weights)
    yield ours("gcn2_cora", "nn.Linear(W, H) | GCN2Conv(H, 0.1, 0.5, 1) | nn.Linear(H, C)", weighed,
               "`edge_index, edge_weight` for `adj_t`", weights)  # fmt: skip
    yield ours("gcn2_ppi", "nn.Linear(W, H) | GCN2Conv(H, 0.5, 1.0, 1, False) | nn.Linear(H, C)",
               needs=BATCH)  # fmt: skip
    yield ours("geniepath", "GeniePath(GATConv(W, C))", needs=BATCH)
    yield ours("glnn", "GCN(W, H, 2, C) | mlp(W, C)", taught, "`synchronise` both")
    yield ours("graph_sage_unsup", "GraphSAGE(W, H, 2, C)", linked, f"{SAMPLED}; {PAIRS}")
    yield ours("graph_saint", "GraphConv(W, H) | GraphConv(H, C)", weighed, SAMPLED, weights)
    yield ours("graphland", "GCNConv(W, H) | nn.Linear(H, C)")
    yield Example("hetero/han_imdb", "of_types(HANConv, 2)", in_types, "`HANConv` of ours", several,
                  "movie", (True,))  # fmt: skip
    yield Example("hetero/hgt_dblp", "of_types(HGTConv, 2)", in_types, "`HGTConv` of ours", several,
                  "movie", (True,))  # fmt: skip
    yield ours("hetero/hetero_conv_dblp", "HeteroConv(sages(SAGEConv, H)) | "
               "HeteroConv(sages(SAGEConv, C))", in_types, "", several, "movie")  # fmt: skip
    yield one("hetero/hetero_link_pred", "to_hetero()", rated, "pairs as edges of a relation",
              several, "movie")  # fmt: skip
    yield one("hetero/to_hetero_mag", "to_hetero()", in_types, SAMPLED, several, "movie")
    yield one("label_prop", "LabelPropagation(3, 0.9)", propagated,
              "`edge_index` for `adj_t`; `one_hot` labels")  # fmt: skip
    yield ours("lightgcn", "nn.Embedding(N, H) | LGConv() | LGConv()", embedded,
               f"{EMBEDDED}; {PAIRS}; or [recommend](recommend.md)")  # fmt: skip
    yield ours("link_pred", "GCNConv(W, H) | GCNConv(H, C)", linked, PAIRS)
    yield one("mixhop", "MixHopConv(W, H, [0, 1, 2]) | BatchNorm(3 * H) | nn.Linear(3 * H, C)",
              needs=NORM)  # fmt: skip
    yield one("mutag_gin", "Classifier('sum', GINConv(mlp(W)), BatchNorm(H))", whole,
              f"{READ}; {NORM}", graphs, "graph")  # fmt: skip
    yield one("ogbn_proteins_deepgcn", "nn.Linear(W, W) | deep() | nn.Linear(W, C)", attributed,
              SAMPLED)  # fmt: skip
    yield ours("ogbn_train", "GAT(W, H, 2, C)", needs=SAMPLED)
    yield one("pmlp", "PMLP(W, H, C, 2, 0.0, norm=False)")
    yield one("pna", "Classifier('sum', pna(), attr=True)", whole, READ, graphs, "graph")
    yield ours("ppi", "GATConv(W, H, 2, residual=True) | GATConv(2 * H, C, residual=True)",
               needs=BATCH)  # fmt: skip
    yield one("rect", "RECT_L(W, H, normalize=False)", weighed, "", weights)
    yield ours("reddit", "SAGEConv(W, H) | SAGEConv(H, C)", needs=SAMPLED)
    yield one("rev_gnn", "nn.Linear(W, W) | GroupAddRev(SAGEConv(4, 4), num_groups=2) | "
              "nn.Linear(W, C)", reversible, SAMPLED)  # fmt: skip
    yield one("rgat", "rgat(W, H) | rgat(H, C)", typed)
    yield one("rgcn", "RGCNConv(N, H, RELATIONS, 2) | RGCNConv(H, C, RELATIONS, 2)", numbered,
              "`vertex_ids` for `None`; no `FastRGCNConv`")  # fmt: skip
    yield ours("rgcn_link_pred", "nn.Embedding(N, H) | RGCNConv(H, C, RELATIONS, num_blocks=2)",
               related, f"{EMBEDDED}; {PAIRS}")  # fmt: skip
    yield ours("sgc", "SGConv(W, C, 2)")
    yield one("signed_gcn", "SignedConv(W, H, True) | SignedConv(H, C, False)", signed,
              f"{PAIRS}, and a loss of them")  # fmt: skip
    yield one("super_gat", "SuperGATConv(W, C, 2, False, attention_type='MX')", supervised,
              f"{PAIRS} as `neg_edge_index`; not the loss of its attention")  # fmt: skip
    yield ours("tagcn", "TAGConv(W, H) | TAGConv(H, C)")
    yield ours("unimp_arxiv", "geometric.MaskLabel(C, W) | TransformerConv(W, H, 2, beta=True) | "
               "nn.LayerNorm(2 * H) | TransformerConv(2 * H, C, beta=True)", shown)  # fmt: skip
    yield one("upfd", "Classifier('max', GCNConv(W, H))", whole, READ, graphs, "graph")


def difference(one: Example, ours: bool) -> float:
    """The largest difference of outputs, loss and gradients, in parts of the largest of each."""
    on = one.data()
    graph = spgnn.distribute(on, imbalance=0.5)
    if not one.target:
        graph.to(torch.float64)
    model, other = one.model(PYG), one.model(OURS if ours else ON_RANKS)
    places = getattr(on, "edge_index", None), graph if ours else getattr(graph, "edge_index", None)
    with torch.no_grad():  # weights whose width is not known before
        one.answer(model, on, places[0])
        one.answer(other, graph, places[1])
    other.load_state_dict(model.state_dict())
    graph.synchronise(other)
    expected, loss = one.answer(model, on, places[0])
    rows, same = one.answer(other, graph, places[1])
    if loss.requires_grad:
        loss.backward()
        same.backward()
    own = graph[one.target] if one.target else graph
    rows = own.all_gather(rows.detach())
    if len(rows) == own.num_nodes:
        expected = expected[own.all_gather(own.vertex_ids)]
    else:  # of pairs, which are in the order of ranks
        expected, rows = expected.sort()[0], rows.sort()[0]
    compared, weights = [(expected, rows), (loss, same)], dict(other.named_parameters())
    for name, p in model.named_parameters():
        if p.grad is not None:
            compared.append((p.grad, weights[name].grad if weights[name].grad is not None else 0))
    apart = [(a - b).abs().max() / a.abs().max().clamp(min=1e-3) for a, b in compared]
    return float(max(apart))


def differences(names: list[str]) -> Iterator[tuple[str, list[float]]]:
    """Of each program: with PyG's layers, and with ours."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    for one in examples():
        if not names or one.name in names:
            yield one.name, [difference(one, ours) for ours in one.variants]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of examples; else all")
    names = parser.parse_args().names
    torch.set_default_dtype(torch.float64)
    for name, values in differences(names):
        if spgnn.connect().is_main:
            print(f"{name:25}", *(f"{value:.0e}" for value in values), flush=True)
