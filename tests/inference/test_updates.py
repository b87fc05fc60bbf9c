"""Graphs that change: what an update makes is what distributing the new graph makes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import spgnn
from spgnn.comm import (
    connect,
)
from spgnn.nn import GAT, GCN, GIN, GraphSAGE
from spgnn.testing import run_ranks

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


@pytest.mark.parametrize(("ranks", "weighted"), [(1, False), (3, False), (2, True)])
def test_what_an_update_reaches_is_what_the_new_graph_makes(ranks, weighted):
    """Every kind of layer, several updates between two calls, and parameters that change."""

    def body(rank: int) -> dict:
        ours = Changing(1, weighted=weighted)
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
