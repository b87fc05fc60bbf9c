"""Graphs that change: what an update makes is what distributing the new graph makes."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import spgnn
from spgnn import InputError, nn
from spgnn.addons.dynamic import embeddings
from spgnn.addons.dynamic.field import field_of
from spgnn.addons.transformers import SGFormer
from spgnn.comm import connect
from spgnn.data import from_scipy
from spgnn.data.npz import write_npz
from spgnn.nn import GAT, GCN, GIN, GraphSAGE
from spgnn.testing import run_ranks
from tests.data.test_edge_attr import some_graph
from tests.docs.pages import ROOT

N, FEATURES, CLASSES = 60, 7, 4
Edge = tuple[int, int]


class Changing:
    """A graph as a set of edges and arrays, and updates drawn for it: what ranks should have."""

    def __init__(self, seed: int, *, weighted: bool = False, vertices: int = N) -> None:
        self.rng, self.n, self.weighted = np.random.default_rng(seed), vertices, weighted
        dense = self.rng.random((vertices, vertices)) < 0.05
        dense[3], dense[11], dense[:, 11] = True, False, False  # a hub, and a vertex alone
        self.x = self.rng.standard_normal((vertices, FEATURES)).astype(np.float32)
        self.y = self.rng.integers(0, CLASSES, vertices)
        self.weights = {(int(s), int(t)): self.weight() for t, s in np.argwhere(dense)}

    def weight(self) -> float:
        return float(np.float32(self.rng.random() + 0.1)) if self.weighted else 1.0

    def matrix(self) -> sp.csr_array:
        source, target = np.array(sorted(self.weights)).reshape(-1, 2).T
        values = [self.weights[edge] for edge in sorted(self.weights)]
        A = sp.csr_array((np.float32(values), (target, source)), shape=(self.n, self.n))
        return A if self.weighted else A.astype(bool)

    def graph(self, **options: object) -> spgnn.DistGraph:
        return spgnn.distribute(self.matrix(), x=self.x.copy(), y=self.y.copy(), **options)

    def batch(self, size: int, rows: int) -> dict:
        """An update of so many edges and rows of features, which the graph takes as well."""
        there = sorted(self.weights)
        drop = [there[i] for i in self.rng.choice(len(there), min(size, len(there)), replace=False)]
        add: list[Edge] = []
        while len(add) < size:
            edge = (int(self.rng.integers(self.n)), int(self.rng.integers(self.n)))
            if edge not in self.weights and edge not in add:
                add.append(edge)
        weights = [self.weight() for _ in add]
        ids = self.rng.choice(self.n, rows, replace=False)
        new = self.rng.standard_normal((rows, FEATURES)).astype(np.float32)
        for edge in drop:
            del self.weights[edge]
        self.weights |= dict(zip(add, weights, strict=True))
        self.x[ids] = new
        return {"add": add, "drop": drop, "weights": weights, "ids": ids, "rows": new}

    def grow(self, count: int) -> np.ndarray:
        """New vertices, with edges to and from others and each other in the next batch."""
        new = np.arange(self.n, self.n + count)
        rows = self.rng.standard_normal((count, FEATURES)).astype(np.float32)
        self.x, self.n = np.concatenate((self.x, rows)), self.n + count
        self.y = np.append(self.y, self.rng.integers(0, CLASSES, count))
        return new

    def share(self, batch: dict, rank: int, ranks: int) -> dict:
        """What a rank passes of an update: any of it."""
        mine = slice(rank, None, ranks)
        given = {
            "add_edges": torch.tensor(batch["add"][mine]).reshape(-1, 2).T,
            "drop_edges": np.array(batch["drop"][mine], np.int64).reshape(-1, 2).T,
            "x": (batch["ids"][mine], torch.from_numpy(batch["rows"][mine])),
        }
        if self.weighted:
            given["edge_weight"] = torch.tensor(batch["weights"][mine])
        return given


def models() -> dict[str, tuple[type, dict]]:
    by_row = {"norm": "layer", "norm_kwargs": {"mode": "node"}}
    return {
        "sage": (GraphSAGE, {}),
        "sage-max": (GraphSAGE, {"aggr": "max", "residual": True}),
        "sage-project": (GraphSAGE, {"project": True, "normalize": True}),
        "gcn": (GCN, {"jk": "cat", "norm": "batch"}),
        "gcn-improved": (GCN, {"improved": True, "jk": "lstm"}),
        "gcn-no-loops": (GCN, {"add_self_loops": False, "act": "elu"} | by_row),
        "gin": (GIN, {"act": "tanh"}),
        "gat": (GAT, {"heads": 2, "residual": True}),
        "gatv2": (GAT, {"heads": 2, "v2": True, "add_self_loops": False}),
    }


def trained_like(kind: str) -> torch.nn.Module:
    """A model whose biases and running moments are no zeros and ones."""
    cls, options = models()[kind]
    torch.manual_seed(0)
    model = cls(FEATURES, 8, 3, CLASSES, **options)
    for t in [*model.parameters(), *model.buffers()]:
        if t.dim() == 1 and t.is_floating_point():
            torch.nn.init.uniform_(t, 0.2, 0.8)
    return model


def test_what_an_update_reaches_is_what_the_new_graph_makes():
    """Every kind of layer, several updates between two calls, and parameters that change."""
    ranks = 3

    def body(rank: int) -> dict:
        ours = Changing(1, weighted=True)
        graph = ours.graph(partition="random")
        kinds = {name: trained_like(name) for name in models()}
        served = {name: spgnn.Embeddings(model, graph) for name, model in kinds.items()}
        found = {}
        for step, size in enumerate((1, 4, 9)):
            for _ in range(1 + step % 2):
                given = ours.share(ours.batch(size, step), rank, ranks)
                version = graph.update(**given)
            if step == 2:
                with torch.no_grad():
                    next(kinds["sage"].parameters()).mul_(2)
            new = ours.graph(partition="random")
            assert new.num_edges == graph.num_edges == len(ours.weights)
            for name, model in kinds.items():
                before = graph.gather(served[name].outputs.clone())
                rows = graph.gather(spgnn.infer(model, graph, since=served[name]))
                assert served[name].version == version
                changed = torch.zeros(graph.own_rows, dtype=torch.bool)
                changed[served[name].changed] = True
                wanted = new.gather(spgnn.infer(model, new))
                whole = graph.gather(spgnn.infer(model, graph))
                found[name, step] = before, rows, wanted, whole, graph.gather(changed)
        return found

    for (name, step), rows in run_ranks(body, ranks)[0].items():
        before, kept, new, whole, changed = rows
        torch.testing.assert_close(kept, new, rtol=1e-5, atol=1e-5, msg=f"{name} {step}")
        torch.testing.assert_close(whole, new, rtol=1e-5, atol=1e-5)
        # With other parameters, everything is computed.
        wanted = torch.full_like(changed, True) if (name, step) == ("sage", 2) else before != kept
        assert torch.equal(changed, wanted.reshape(N, -1).any(1)), name


@pytest.mark.parametrize("options", [{}, {"algo": "1.5d", "c": 2}, {"cover": "minimum"}], ids=str)
def test_training_goes_on_with_the_new_graph(options):
    """Matrices, halos and edge_index are of the new graph; a step that had begun, of the old."""
    ranks = 4 if options.get("c") else 2

    def body(rank: int) -> dict:
        ours = Changing(2)
        graph = ours.graph(partition="random", **options)
        model = trained_like("gcn").train()
        old = ours.graph(partition="random", **options)

        def step(on: spgnn.DistGraph, meanwhile=lambda: None) -> torch.Tensor:
            out = model(on.x, on)
            loss = on.mean(out.square()).sum()
            meanwhile()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            total = torch.cat([g.flatten() for g in grads])
            connect().all_reduce(total).wait()
            return total / ranks

        given = ours.share(ours.batch(5, 0), rank, ranks)
        del given["x"]
        begun = step(graph, lambda: graph.update(**given))
        new = ours.graph(partition="random", **options)
        H = torch.randn(graph.own_rows, 3, generator=torch.Generator().manual_seed(rank))
        volumes = [A.volume for A in (graph.matrix("sym"), new.matrix("sym"))]
        assert volumes[0] == volumes[1]
        sent = []
        for on in (graph, new):
            comm = connect()
            A, before = on.matrix("row"), comm.ledger.copy()
            _ = A @ H
            sent.append({n: t.sent_bytes for n, t in comm.ledger.since(before).operations.items()})
        assert sent[0] == sent[1]
        return {
            "begun": (begun, step(old)),
            "next": (step(graph), step(new)),
            "product": (graph.matrix("row") @ H, new.matrix("row") @ H),
        }

    for name, (ours, theirs) in run_ranks(body, ranks)[0].items():
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)


def test_rows_travel_where_they_changed():
    """Bytes of a call are those of each layer's changed rows, to each rank that needs them."""
    ranks = 3

    def body(rank: int) -> tuple:
        ours, comm = Changing(3), connect()
        graph = ours.graph(partition="random")
        model = trained_like("sage")
        served = spgnn.Embeddings(model, graph)
        spgnn.infer(model, graph, since=served)  # nothing changed
        before = [graph.x.clone(), *(layer.clone() for layer in served.layers)]
        edges = np.array(sorted(ours.weights))
        given = ours.share(ours.batch(2, 1), rank, ranks)
        start = comm.ledger.copy()
        graph.update(**given)
        middle = comm.ledger.copy()
        spgnn.infer(model, graph, since=served)
        counted = comm.ledger.since(middle).of("alltoall").sent_bytes
        assert middle.since(start).of("alltoall").sent_bytes < 3000
        changed = [
            graph.gather((old != new).any(1))
            for old, new in zip(before, [graph.x, *served.layers], strict=True)
        ]
        owner = graph.gather(torch.full((graph.own_rows,), rank))
        return counted, changed, owner, edges, np.array(sorted(ours.weights))

    results = run_ranks(body, ranks)
    _, changed, owner, old, new = results[0]
    holders = [{(int(s), int(owner[t])) for s, t in edges if owner[s] != owner[t]}
               for edges in (old, new)]  # fmt: skip
    widths = [8, 8, CLASSES]  # of H W, which travels
    for rank, (counted, *_) in enumerate(results):
        planned = 0
        for rows, width in zip(changed, widths, strict=False):
            sent = {(s, r) for s, r in holders[1] if rows[s] or (s, r) not in holders[0]}
            planned += sum(8 + 4 * width for s, _ in sent if owner[s] == rank)
        assert counted == planned + len(widths) * (ranks - 1) * 8  # and how many rows


class Growing(Changing):
    """A graph whose vertices come too, and that knows more of them and of its edges."""

    def __init__(
        self, seed: int, *, listed: bool, weighted: bool, vertices: int = 30, share: float = 1
    ) -> None:
        super().__init__(seed, weighted=weighted, vertices=vertices)
        self.weights = {e: w for e, w in self.weights.items() if self.rng.random() < share}
        self.listed, self.mask = listed, self.rng.random(vertices) < 0.5
        self.pos = self.rng.random((vertices, 3)).astype(np.float32)
        self.of_edges = {edge: self.rng.random(2).tolist() for edge in self.weights}

    def distributed(self, **options: object) -> spgnn.DistGraph:
        if not self.listed:
            return self.graph(train_mask=self.mask.copy(), **options)
        Data = pytest.importorskip("torch_geometric").data.Data
        edges = sorted(self.weights)
        data = Data(
            x=torch.from_numpy(self.x.copy()), y=torch.from_numpy(self.y.copy()),
            train_mask=torch.from_numpy(self.mask.copy()), pos=torch.from_numpy(self.pos.copy()),
            edge_index=torch.tensor(edges).T,
            edge_attr=torch.tensor([self.of_edges[edge] for edge in edges]),
        )  # fmt: skip
        return spgnn.distribute(data, **options)

    def step(self, rank: int, ranks: int) -> dict:
        """An update with a few new vertices: some without edges, one in the training mask."""
        new = self.grow(int(self.rng.integers(0, 4)))
        marked = self.rng.random(len(new)) < 0.5
        self.mask = np.append(self.mask, marked)
        self.pos = np.append(self.pos, self.rng.random((len(new), 3)).astype(np.float32), 0)
        batch = self.batch(6, 2)
        for vertex in new[1:]:  # to and from others and each other
            for edge in ((int(vertex), 3), (int(vertex), int(new[0])), (5, int(vertex))):
                if edge not in self.weights:
                    batch["add"].append(edge)
                    batch["weights"].append(self.weight())
                    self.weights[edge] = batch["weights"][-1]
        self.of_edges |= {edge: self.rng.random(2).tolist() for edge in batch["add"]}
        ids = np.setdiff1d(new, batch["ids"])
        batch["rows"] = np.concatenate((batch["rows"], self.x[ids]))
        batch["ids"] = np.concatenate((batch["ids"], ids))
        given, mine = self.share(batch, rank, ranks), new[::-1][rank::ranks].copy()
        given |= {"add_nodes": mine, "y": (mine, torch.from_numpy(self.y[mine]))}
        marked_here = new[marked][rank::ranks]
        given["train_mask"] = marked_here, torch.ones(len(marked_here), dtype=torch.bool)
        if self.listed:
            added = [self.of_edges[edge] for edge in batch["add"][rank::ranks]]
            given["pos"] = mine, torch.from_numpy(self.pos[mine])
            given["edge_attr"] = torch.tensor(added).reshape(-1, 2)
        return given


def check_growth(rank: int, ranks: int, seed: int, **options: object) -> None:
    """After each update everything is that of the new graph, distributed with the same owners."""
    ours = Growing(seed, listed=bool(seed % 2), weighted=seed % 4 == 2)
    graph, c = ours.distributed(partition="random", **options), options.get("c", 1)
    names = ("gcn", "sage-project", *(("gat",) if "algo" not in options else ()))
    kinds = {name: trained_like(name) for name in names}
    served = {name: spgnn.Embeddings(model, graph) for name, model in kinds.items()}
    before, ones = graph.A, torch.ones(graph.own_rows, 1)
    degrees, old, has_halo = before @ ones, graph.x, c == 1 and "cover" not in options
    for _ in range(3):
        graph.update(**ours.step(rank, ranks))
        ids = graph.all_gather(graph.vertex_ids)
        owners = graph.all_gather(torch.full((graph.own_rows,), rank))[ids.argsort()]
        new = ours.distributed(partition=(owners // c).numpy(), **options)
        assert graph.meta == new.meta
        rows, theirs = (
            {name: g[name] for name in new.keys() if "edge" not in name}  # noqa: SIM118
            | {f"matrix {kind}": g.matrix(kind) @ g.x for kind in ("none", "sym")}
            for g in (graph, new)
        )
        for name, value in rows.items():
            mine, other = graph.gather(value), new.gather(theirs[name])
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5, msg=f"{seed} {name}")
        scattered = graph.scatter(torch.from_numpy(ours.x) if rank == 0 else None)
        assert torch.equal(scattered, graph.x)
        if has_halo:  # the same rows in the same places
            pairs = [(graph.vertex_ids, new.vertex_ids)]
            for name in ("indptr", "indices", "values"):
                pairs.append([getattr(g.share.adjacency, name) for g in (graph, new)])
            mine, other = (
                {"edges": g.local_edge_index.T} | g.edge_attributes for g in (graph, new)
            )
            # Of a list of edges, new ones come after the others of their target.
            a, b = (torch.from_numpy(np.lexsort(e["edges"].numpy().T)) for e in (mine, other))
            pairs += [(mine[name][a], other[name][b]) for name in other]
            assert all(a is b or torch.equal(a, b) for a, b in pairs)
        for name, model in kinds.items():
            kept = graph.gather(spgnn.infer(model, graph, since=served[name]))
            whole = new.gather(spgnn.infer(model, new))
            torch.testing.assert_close(kept, whole, rtol=1e-5, atol=1e-5, msg=name)
    assert torch.equal(before @ ones, degrees)
    assert len(old) == len(ones)


@pytest.mark.parametrize("ranks", [1, 4])
def test_new_vertices_are_as_if_they_had_been_there(ranks):
    """With edges to and from them in the same update; P = 4 with replicas and by rows as well."""

    def body(rank: int) -> None:
        for seed in range(4 if ranks < 4 else 2):
            check_growth(rank, ranks, seed)
        if ranks == 4:
            check_growth(rank, ranks, 6, algo="1.5d", c=2)
            check_growth(rank, ranks, 8, cover="minimum")
            check_growth(rank, ranks, 4, algo="feature", c=2)

    run_ranks(body, ranks)


class Chain(torch.nn.Module):
    """Layers one after the other, which a model of its own calls, with what else they look at."""

    def __init__(self, *layers: torch.nn.Module, looks: str = "") -> None:
        super().__init__()
        self.layers, self.looks = torch.nn.ModuleList(layers), looks

    def forward(self, x: torch.Tensor, graph: spgnn.DistGraph) -> torch.Tensor:
        if self.looks == "pos":
            x = torch.cat((x, graph.pos), 1)
        first = x
        for layer in self.layers:
            pyg = not nn.takes_graph(layer)
            more = (graph.edge_attr,) if self.looks == "edge_attr" else ()
            if isinstance(layer, nn.GCN2Conv):
                x = layer(x, first, graph)
            else:
                x = layer(x, graph.edge_index if pyg else graph, *more).tanh()
        return x


class OnEdges(torch.nn.Module):
    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv(x, edge_index)


def any_models() -> dict[str, tuple[int | None, torch.nn.Module]]:
    """Models that do not aggregate once a layer, and how many edges away each looks."""
    pyg, linear = pytest.importorskip("torch_geometric").nn, torch.nn.Linear
    torch.manual_seed(0)
    hooked = GraphSAGE(FEATURES, 8, 2, CLASSES)
    hooked.convs[0].register_forward_hook(lambda *given: None)
    return {
        "sgc": (2, Chain(nn.SGConv(FEATURES, CLASSES, K=2))),
        "appnp": (3, Chain(GIN(FEATURES, 5, 1), nn.APPNP(2, 0.1))),
        "tag": (2, Chain(nn.TAGConv(FEATURES, CLASSES, K=2))),
        "gcnii": (2, Chain(nn.GCN2Conv(FEATURES, 0.1), nn.GCN2Conv(FEATURES, 0.1))),
        "lightgcn": (3, Chain(nn.LGConv(), nn.LGConv(), nn.LGConv())),
        "gine": (2, nn.GINE(FEATURES, 8, 2, CLASSES, edge_dim=2)),
        "gat": (2, GAT(FEATURES, 8, 2, CLASSES, edge_dim=2)),
        "transformer": (1, Chain(nn.TransformerConv(FEATURES, 4, edge_dim=2))),
        "pos": (1, Chain(nn.SAGEConv(FEATURES + 3, CLASSES), looks="pos")),
        "hooked": (2, hooked),
        "pyg": (2, pyg.GraphSAGE(FEATURES, 8, 2, CLASSES)),
        "pyg-gcn": (2, OnEdges(pyg.GCN(FEATURES, 8, 2, CLASSES))),
        "pyg-nn": (1, Chain(pyg.NNConv(FEATURES, 3, linear(2, 3 * FEATURES)), looks="edge_attr")),
        "alone": (0, Chain(Chain())),
        # What goes against the edges, or to all vertices.
        "pyg-both": (None, OnEdges(pyg.DirGNNConv(pyg.SAGEConv(FEATURES, 4)))),
        "norm": (None, GCN(FEATURES, 8, 2, CLASSES, norm="graph")),
        "sgformer": (None, SGFormer(FEATURES, 8, CLASSES)),
    }


@pytest.mark.parametrize("ranks", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_models_of_any_kind_follow(ranks, monkeypatch):
    """With features of edges, new vertices, other attributes; on the graph that rows depend on."""
    fields = []
    monkeypatch.setattr(
        embeddings, "field_of", lambda *a: fields.append(field_of(*a)) or fields[-1]
    )

    def body(rank: int) -> None:
        ours = Growing(3, listed=True, weighted=False, vertices=1000, share=0.02)
        graph, models = ours.distributed(partition="random"), any_models()
        served = {name: spgnn.Embeddings(model, graph) for name, (_, model) in models.items()}
        for step in range(2):
            old = {name: graph.gather(one.outputs.clone()) for name, one in served.items()}
            graph.update(**ours.step(rank, ranks))
            if step == 1:  # nothing but another attribute
                ours.pos[5] = 9
                pos = torch.from_numpy(ours.pos[5:6])
                graph.update(pos=([5], pos) if rank == ranks - 1 else None)
            new = ours.distributed(partition="random")
            for name, (hops, model) in models.items():
                fields.clear()
                rows = graph.gather(spgnn.infer(model, graph, since=served[name]))
                whole = new.gather(spgnn.infer(model, new))
                torch.testing.assert_close(rows, whole, rtol=1e-5, atol=1e-5, msg=f"{name} {step}")
                changed = torch.zeros(graph.own_rows, dtype=torch.bool)
                changed[served[name].changed] = True
                changed = graph.gather(changed)
                if rank == 0:
                    both = old[name], torch.full((ours.n - len(old[name]), rows.shape[1]), np.nan)
                    assert torch.equal(changed, (torch.cat(both) != rows).any(1)), name
                assert len(fields) == (hops is not None)
                assert not fields or fields[0] is not None, name
                assert served[name]._hops == hops, name
                spgnn.infer(model, graph, since=served[name])
                assert not len(served[name].changed)

    run_ranks(body, ranks)


def test_features_of_edges_from_a_file():
    """They stand beside the adjacency, and are listed with the edges from the first update on."""
    graph, model = spgnn.distribute(some_graph()), nn.GINE(1, 8, 2, CLASSES, edge_dim=2)
    before, served = graph.edge_index, spgnn.Embeddings(model, graph)
    assert torch.equal(before, graph.edge_index)
    drop = graph.local_edge_index[:, :2]
    graph.update(drop_edges=graph.vertex_ids[drop])
    ends = graph.x[graph.local_edge_index.flip(0), 0].T
    assert torch.equal(graph.edge_attr, ends)
    graph.update(graph.vertex_ids[drop], edge_attr=graph.x[drop.flip(0), 0].T)
    kept, new = (
        spgnn.infer(model, graph, since=served),
        spgnn.infer(model, spgnn.distribute(some_graph())),
    )
    torch.testing.assert_close(kept, new, rtol=1e-5, atol=1e-5)


NEW = {"add_nodes": [60], "x": ([60], torch.zeros(1, 7)), "y": ([60], torch.tensor([0]))}
BAD = [
    ({"add_edges": [[1], [11]]}, {"add_edges": [[1], [11]]}, "edge 1 → 11 is given twice"),
    ({"add_edges": [[1], [11]]}, {"drop_edges": [[1], [11]]}, "edge 1 → 11 is added and dropped"),
    ({"drop_edges": [[11], [11]]}, {}, "edge 11 → 11 is not there to be dropped"),
    ({"add_edges": [[4], [3]]}, {}, "edge 4 → 3 is there already"),
    ({"add_edges": [[0], [-1]]}, {}, "vertex -1 is outside [0, 60)"),
    ({}, {"drop_edges": [[60], [0]]}, "vertex 60 is outside [0, 60)"),
    (
        {},
        {"add_edges": [[0.5], [1.0]]},
        "add_edges must be integers [2, edges], got float32 [2, 1]",
    ),
    ({"add_edges": [[0, 1]]}, {}, "add_edges must be integers [2, edges], got int64 [1, 2]"),
    ({"drop_edges": object()}, {}, "drop_edges must be integers [2, edges], numbers of vertices"),
    ({"x": (["d"], torch.zeros(1, 7))}, {}, "ids of x must be integers [vertices], numbers of"),
    ({"x": ([1], [["d"]])}, {}, "rows of x must be numbers, got list"),
    ({"edge_weight": [1.0]}, {}, "the graph has no edge_weight: choose one of add_edges, drop_"),
    ({"add_edge": [[1], [11]]}, {}, "has no add_edge: choose one of add_edges, drop_edges, add_"),
    ({}, {"add_edge": [[1], [11]]}, "add_nodes, x, y; did you mean 'add_edges'?"),
    ({"x": ([1], torch.zeros(1, 5))}, {}, "x must be float32 [1, 7], one row an id, got float32"),
    ({"x": ([1], torch.zeros(2, 7))}, {}, "x must be float32 [1, 7]"),
    ({"x": ([1], torch.zeros(1, 7).double())}, {}, "one row an id, got float64 [1, 7]"),
    ({"x": ([1], torch.full((1, 7), np.nan))}, {}, "x must be finite"),
    ({"x": torch.zeros(1, 7)}, {}, "x must be (ids, rows), got float32 [1, 7]"),
    ({"x": ([1, 1], torch.zeros(2, 7))}, {}, "x of vertex 1 is given"),
    ({"y": ([1], torch.tensor([4]))}, {}, "y is 4, the graph has 4 classes"),
    ({"add_nodes": [61]}, {}, "new vertices are called 60 to 60, each once, got 61"),
    ({"add_nodes": [60]}, {"add_nodes": [60]}, "called 60 to 61, each once, got 60"),
    ({"add_nodes": [60]}, {}, "x of the new vertex 60 is missing"),
    ({"add_nodes": [60]}, {"add_edges": [[61], [0]]}, "vertex 61 is outside [0, 61)"),
    (NEW, {"drop_edges": [[60], [0]]}, "edge 60 → 0 is not there to be dropped"),
    (NEW, {"drop_edges": [[0], [60]]}, "edge 0 → 60 is not there to be dropped"),
    (NEW | {"add_edges": [[60], [60]]}, {"add_edges": [[60], [60]]}, "60 → 60 is given twice"),
    (NEW, {"x": ([60], torch.zeros(1, 7))}, "x of vertex 60 is given twice"),
]


def test_bad_updates_are_one_line_on_every_rank_and_change_nothing():
    def body(rank: int) -> list[str]:
        ours = Changing(4)
        graph = ours.graph(partition="random")
        model = trained_like("sage")
        served = spgnn.Embeddings(model, graph)
        before, lines = served.outputs.clone(), []
        for first, second, _ in BAD:
            given = second if rank else first
            with pytest.raises(InputError) as error:
                graph.update(**given)
            lines.append(str(error.value))
        assert graph.version == 0
        assert torch.equal(spgnn.infer(model, graph, since=served), before)
        assert not len(served.changed)
        assert graph.num_edges == len(ours.weights)
        return lines

    for lines in run_ranks(body, 2):
        for (*_, words), line in zip(BAD, lines, strict=True):
            assert words in line
            assert "\n" not in line


def test_edges_with_features_and_an_edge_index_of_before():
    """Other people's layers see the new edges with what is known of them; the old, the old ones."""
    torch_geometric = pytest.importorskip("torch_geometric")
    conv = torch_geometric.nn.GATv2Conv(FEATURES, 5, edge_dim=2, add_self_loops=False)

    def body(rank: int) -> list:
        ours = Changing(5)
        rng = np.random.default_rng(5)
        features = {edge: rng.random(2).tolist() for edge in sorted(ours.weights)}

        def distributed() -> spgnn.DistGraph:
            listed = sorted(features)
            data = torch_geometric.data.Data(
                x=torch.from_numpy(ours.x.copy()),
                edge_index=torch.tensor(listed).T,
                edge_attr=torch.tensor([features[edge] for edge in listed]),
            )
            return spgnn.distribute(data, partition="random")

        def run(graph: spgnn.DistGraph, index: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return graph.gather(conv(graph.x, index, attr))

        graph, found = distributed(), []
        before, attr = graph.edge_index, graph.edge_attr
        first = run(graph, before, attr)
        for _ in range(2):
            batch = ours.batch(4, 0)
            features |= {edge: rng.random(2).tolist() for edge in batch["add"]}
            given = ours.share(batch, rank, 2)
            given["edge_attr"] = torch.tensor([features[edge] for edge in batch["add"][rank::2]])
            for edge in batch["drop"]:
                del features[edge]
            graph.update(**given)
            new = distributed()
            found.append((run(graph, before, attr), first))
            wanted = run(new, new.edge_index, new.edge_attr)
            found.append((run(graph, graph.edge_index, graph.edge_attr), wanted))
        with pytest.raises(InputError, match="edge_attr of new edges is missing"):
            graph.update([[0], [11]])
        return found

    for mine, theirs in run_ranks(body, 2)[0]:
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranks", "steps", "size"),
    [(1, 60, 2), *(pytest.param(*case, marks=SLOW) for case in ((8, 1000, 2), (1, 1000, 500)))],
)
def test_rounding_does_not_add_up(ranks, steps, size):
    """Up to 10^6 updates, after which lists are packed, and columns that come and go among them."""

    def body(rank: int) -> dict:
        ours = Changing(14, weighted=True, vertices=24 if size < 100 else 200)
        graph = ours.graph(partition="random")
        kinds = {name: trained_like(name) for name in ("sage", "gcn", "gat", "sage-max")}
        served = {name: spgnn.Embeddings(model, graph) for name, model in kinds.items()}
        for step in range(steps):
            most = len(ours.weights) // 2 if step % (steps // 20) == 0 else size
            graph.update(**ours.share(ours.batch(most, step % 2), rank, ranks))
            for name, model in kinds.items():
                spgnn.infer(model, graph, since=served[name])
        new = ours.graph(partition="random")
        assert torch.equal(new.share.adjacency.indices, graph.share.adjacency.indices)
        return {
            name: (graph.gather(served[name].outputs), new.gather(spgnn.infer(model, new)))
            for name, model in kinds.items()
        }

    for kept, new in run_ranks(body, ranks)[0].values():
        torch.testing.assert_close(kept, new, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("ranks", "vertices"), [(1, 1), (4, 3)])
def test_ranks_without_vertices(ranks, vertices):
    def body(rank: int) -> tuple:
        ours = Changing(6, vertices=12)
        ours.n, ours.x, ours.y = vertices, ours.x[:vertices], ours.y[:vertices]
        ours.weights = {}
        graph = ours.graph(partition="block")
        model = trained_like("gat")
        served = spgnn.Embeddings(model, graph)
        edges = [(s, t) for s in range(vertices) for t in range(vertices)]
        for edge in edges:
            graph.update([[edge[0]], [edge[1]]] if rank == 0 else [])
        spgnn.infer(model, graph, since=served)
        graph.update(drop_edges=torch.tensor(edges[::2]).T if rank == 0 else None)
        kept = graph.gather(spgnn.infer(model, graph, since=served))
        ours.weights = dict.fromkeys(edges[1::2], 1.0)
        new = ours.graph(partition="block")
        return kept, new.gather(spgnn.infer(model, new))

    kept, new = run_ranks(body, ranks)[0]
    torch.testing.assert_close(kept, new, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_updated_says_why():
    ours = Changing(7)
    graph, model = ours.graph(), trained_like("sage")
    served = spgnn.Embeddings(model, graph)
    coded = ours.graph(codec={"bits": 8})
    freed = ours.graph()
    freed.release()
    repeated, several = spgnn.distribute(Repeated()), trained_like("gcn")
    pyg = pytest.importorskip("torch_geometric").nn
    cached = OnEdges(pyg.GCNConv(FEATURES, CLASSES, cached=True))
    for call, words in [
        (coded.update, "has a codec"),
        (freed.update, "has let go of its adjacency"),
        (repeated.update, "has repeated edges"),
        (lambda: spgnn.Embeddings(len, graph), "give a torch.nn.Module, not builtin_function"),
        (lambda: spgnn.Embeddings(GCN(-1, 8, 2, CLASSES), graph), "does not know its widths"),
        (lambda: spgnn.Embeddings(cached, graph), "stays with the edges of its first call"),
        (lambda: spgnn.Embeddings(model, graph.A), "not a DistMatrix"),
        (lambda: spgnn.infer(model, graph, since=3), "since must be spgnn.Embeddings"),
        (lambda: spgnn.infer(several, graph, since=served), "since is of another model or graph"),
        (lambda: spgnn.infer(model, graph, layer=1, since=served), "give neither x nor layer"),
    ]:
        with pytest.raises(InputError, match=words):
            call()


class Repeated:
    """Data as PyG's, of which one edge is there twice."""

    edge_index = torch.tensor([[0, 0, 1], [1, 1, 0]])
    x, num_nodes = torch.zeros(2, 1), 2


def test_everything_is_computed_where_others_wrote():
    """Features that somebody writes to or replaces, another dtype, autocast."""
    ours = Changing(12)
    graph, model = ours.graph(), trained_like("gcn")
    served = spgnn.Embeddings(model, graph)

    def check(tolerance: float = 1e-5) -> None:
        kept, whole = spgnn.infer(model, graph, since=served), spgnn.infer(model, graph)
        assert kept.dtype == whole.dtype
        torch.testing.assert_close(kept, whole, rtol=tolerance, atol=tolerance)

    graph.x[3] = 7
    graph.update(x=([4], torch.ones(1, FEATURES)))
    check()
    graph.update([[3], [11]])
    graph.x = graph.x * 2
    check()
    model.double()
    graph.to(torch.float64)
    check(1e-12)
    graph.update(drop_edges=[[3], [11]])
    check(1e-12)
    model.float()
    graph.to(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        check(3e-2)
    check()


def test_calls_that_not_all_ranks_make():
    def body(rank: int) -> list[str]:
        graph, model = Changing(13).graph(partition="random"), trained_like("sage")
        served = spgnn.Embeddings(model, graph)
        lines = []
        for calls in (
            (graph.update, lambda: spgnn.infer(model, graph)),
            (lambda: spgnn.infer(model, graph, since=served), lambda: spgnn.infer(model, graph)),
            (lambda: graph.update([[0], [99]]), graph.update),
        ):
            with pytest.raises(InputError) as error:
                calls[rank]()
            lines.append(str(error.value))
        return lines

    for update, since, vertex in run_ranks(body, 2):
        assert "ranks do not agree on which check comes next: graph.update on rank 0" in update
        assert "ranks do not agree on since of infer" in since
        assert "vertex 99 is outside [0, 60)" in vertex


def test_a_step_that_needs_rows_of_before_is_refused_by_autograd():
    ours = Changing(8)
    graph, model = ours.graph(), trained_like("sage")
    graph.update(x=([0], torch.zeros(1, FEATURES)))  # the graph's own from now on
    loss = model(graph.x, graph).square().mean()
    graph.update(x=([1], torch.zeros(1, FEATURES)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_service_prints_what_changed(tmp_path, monkeypatch):
    """The example: updates line by line, lines that cannot be, and the new classes."""
    serve = SimpleNamespace(**runpy.run_path(str(ROOT / "experiments" / "serve.py")))
    ours = Changing(10)
    ours.y[:CLASSES] = range(CLASSES)
    write_npz(from_scipy(ours.matrix(), x=ours.x, y=ours.y), tmp_path / "graph.npz")
    model = GraphSAGE.of([FEATURES, 8, CLASSES])
    torch.save(model.state_dict(), tmp_path / "model.pt")
    edge = next(iter(ours.weights))
    lines = [
        f"drop {edge[0]} {edge[1]}", "add 5 11", "x 3 1 2 3 4 5 6 7", "",
        "add 5 11", "", "", "add 5", "",
        "x 3 0 0 0 0 0 0 0", "drop 5 11",
    ]  # fmt: skip
    options = argparse.Namespace(
        graph=str(tmp_path / "graph.npz"), weights=str(tmp_path / "model.pt"), model="sage",
        hidden=8, layers=2, classes=None, partition="random",
    )  # fmt: skip

    def body(rank: int) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            serve.serve(options, spgnn.connect())
        return printed.getvalue()

    def classes() -> torch.Tensor:
        graph = ours.graph()
        return spgnn.infer(model, graph).argmax(1)

    start = classes()
    del ours.weights[edge]
    ours.weights[5, 11] = 1.0
    ours.x[3] = np.arange(1, 8)
    middle = classes()
    del ours.weights[5, 11]
    ours.x[3] = 0
    end = classes()

    def wanted(version: int, old: torch.Tensor, new: torch.Tensor) -> dict:
        other = (old != new).nonzero()[:, 0].tolist()
        return {"version": version, "classes": {str(v): int(new[v]) for v in other}}

    printed, nothing = run_ranks(body, 2)
    first, there, unknown, last = map(json.loads, printed.splitlines())
    assert (first, last) == (wanted(1, start, middle), wanted(2, middle, end))
    assert there == {"error": "update: edge 5 → 11 is there already"}
    assert "write add SOURCE TARGET" in unknown["error"]
    assert nothing == ""


def test_a_trainer_follows_and_a_loader_says_that_it_does_not():
    def body(rank: int) -> list:
        ours = Changing(11)
        graph = ours.graph(partition="random")
        model = trained_like("sage")

        def trainer(on: spgnn.DistGraph) -> spgnn.Trainer:
            return spgnn.Trainer(model, on, loss="softmax")

        loader = spgnn.NeighborLoader(graph, num_neighbors=[2], batch_size=8)
        training = trainer(graph)
        training.fit(epochs=1)
        given = ours.share(ours.batch(3, 2), rank, 2)
        ours.y[:9] = (ours.y[:9] + 1) % CLASSES
        given["y"] = torch.arange(9), torch.from_numpy(ours.y[:9])
        graph.update(**given if rank else {**given, "y": None})
        runs = training, trainer(ours.graph(partition="random"))
        model.eval()
        with torch.no_grad():
            scores = [run.task.scores() for run in runs]
        with pytest.raises(InputError, match="make a new loader"):
            next(iter(loader))
        return scores

    mine, new = run_ranks(body, 2)[0]
    assert mine == pytest.approx(new, rel=1e-5)


def check_plans_of_before(rank: int) -> None:
    changing = Changing(4, weighted=True)
    graph, by_rows = (
        changing.graph(cover=cover, partition="random") for cover in ("auto", "column")
    )
    x, dense = torch.from_numpy(changing.x), torch.from_numpy(changing.matrix().toarray())
    before, batch = graph.A, changing.batch(3, 0)  # its halo is not built yet
    for one in (graph, by_rows):
        one.update(**changing.share(batch, rank, 4))
    ids = graph.vertex_ids
    rows = torch.from_numpy(before.local_matrix().to_scipy().toarray())
    for product in (before @ x[ids], rows @ before.halo(x[ids])):
        torch.testing.assert_close(product, (dense @ x)[ids], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(graph.A @ x[ids], by_rows.A @ x[ids], rtol=1e-4, atol=1e-5)
    assert torch.equal(graph.local_edge_index, by_rows.local_edge_index)


def test_a_matrix_of_before_keeps_its_plans():
    run_ranks(check_plans_of_before, 4)


def of_default_device(rank: int, device: str) -> list[float]:
    graph, model = Changing(2).graph(), trained_like("sage")
    torch.set_default_device(device)
    loader = spgnn.NeighborLoader(graph, num_neighbors=[3, 3], batch_size=8)
    sizes = sum(batch.batch_size for batch in loader if batch is not None)
    graph.update()
    outputs = spgnn.Embeddings(model, graph).outputs
    assert torch.get_default_device().type == device
    return [graph.comm.agree(sizes, "sum"), float(graph.sum(outputs.sum()))]


def test_the_default_device_of_a_program_is_its_own():
    on_cpu, on_meta = (run_ranks(of_default_device, 2, device) for device in ("cpu", "meta"))
    assert on_cpu == on_meta
