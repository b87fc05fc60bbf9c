"""Epochs on a graph of the shape of ogbn-mag: spgnn against PyG on one process, in turn.

python benchmarks/bench_hetero.py [--vertices 1000000] [--models sage,gat,hgt,rgcn] [--ranks 1,2]

Vertices and edges are those of ogbn-mag in proportion, with reversed relations, and communities, so
that a partition finds something. Both get as many threads in all as there are processors; the
models have the same parameters, and losses are compared. PyG keeps some tens of bytes an edge and
column: HGT and GAT of a million vertices want more than 32 GB, and 100,000 show the same.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import HeteroData

import spgnn
from spgnn.testing import run_ranks

# Of a thousand vertices; and the width of their features.
TYPES = {"paper": (380, 128), "author": (585, 32), "institution": (4, 16), "field": (31, 64)}
# Edges of a thousand vertices, each way.
RELATIONS = {
    ("author", "writes", "paper"): 3690,
    ("paper", "cites", "paper"): 2790,
    ("author", "affiliated", "institution"): 540,
    ("paper", "has_topic", "field"): 3880,
}
HIDDEN, CLASSES, COMMUNITIES = 64, 16, 64


def mag(vertices: int, seed: int = 0) -> HeteroData:
    """A graph of that many vertices; 9 of 10 edges stay in a community."""
    drawn, data = torch.Generator().manual_seed(seed), HeteroData()
    sizes = {name: max(vertices * share // 1000, 1) for name, (share, _) in TYPES.items()}
    for name, (_, width) in TYPES.items():
        data[name].x = torch.randn(sizes[name], width, generator=drawn)
    for (source, name, target), share in RELATIONS.items():
        edges = vertices * share // 1000
        start = torch.randint(sizes[source], (edges,), generator=drawn)
        any_end = torch.randint(sizes[target], (edges,), generator=drawn)
        pick = torch.rand(edges, generator=drawn)
        near = (start * sizes[target] // sizes[source] + pick * sizes[target] / COMMUNITIES).long()
        stays = torch.rand(edges, generator=drawn) < 0.9
        end = torch.where(stays, near % sizes[target], any_end)
        data[source, name, target].edge_index = torch.stack((start, end))
        data[target, f"rev_{name}", source].edge_index = torch.stack((end, start))
    papers = data["paper"]
    papers.y = torch.arange(len(papers.x)) * CLASSES // len(papers.x)
    papers.train_mask = torch.rand(len(papers.x), generator=drawn) < 0.6
    return data


class Model(nn.Module):
    """Encoders of each type, two layers, and a linear one of papers."""

    def __init__(self, kind: str, library: Any, meta: Any) -> None:
        super().__init__()
        # Without encoders where layers take widths of their own.
        same = kind == "rgcn"
        self.encoders = nn.ModuleDict(
            {name: nn.Linear(width, HIDDEN) for name, (_, width) in TYPES.items()} if same else {}
        )
        widths = {name: HIDDEN if same else width for name, (_, width) in TYPES.items()}
        self.layers = nn.ModuleList()
        for at in (widths, dict.fromkeys(widths, HIDDEN)):
            if kind == "hgt":
                self.layers.append(library.HGTConv(at, HIDDEN, meta, heads=4))
            elif kind == "rgcn":
                self.layers.append(library.RGCNConv(HIDDEN, HIDDEN, len(meta[1])))
            else:
                self.layers.append(
                    library.HeteroConv({r: self._conv(kind, library, at, r) for r in meta[1]})
                )
        self.out = nn.Linear(HIDDEN, CLASSES)

    @staticmethod
    def _conv(kind: str, library: Any, at: dict[str, int], relation: Any) -> nn.Module:
        pair = at[relation[0]], at[relation[2]]
        if kind == "gat":
            return library.GATConv(pair, HIDDEN // 4, heads=4, add_self_loops=False)
        return library.SAGEConv(pair, HIDDEN)

    def encoded(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: self.encoders[name](rows) if self.encoders else rows for name, rows in x.items()
        }

    def forward(self, x: dict[str, torch.Tensor], edges: Any) -> torch.Tensor:
        x = self.encoded(x)
        for layer in self.layers:
            x = {name: rows.relu() for name, rows in layer(x, edges).items()}
        return self.out(x["paper"])

    def on_one_type(self, x: dict[str, torch.Tensor], edges: Any) -> torch.Tensor:
        """PyG's RGCN takes the graph as one of a single type."""
        H = torch.cat([rows for rows in self.encoded(x).values()])
        for layer in self.layers:
            H = layer(H, *edges).relu()
        return self.out(H[: len(x["paper"])])


def epochs(rank: int, kind: str, data: HeteroData, ranks: int, count: int) -> list[Any]:
    """Seconds and losses of some epochs: of spgnn on ranks, or with 0 ranks of PyG."""
    torch.manual_seed(0)
    model = Model(kind, pyg, data.metadata())
    if ranks:
        state = model.state_dict()
        model = Model(kind, spgnn.nn, data.metadata())
        model.load_state_dict(state)
        graph: Any = spgnn.distribute(data, model=model)
        papers, call = graph["paper"], lambda: model(graph.x_dict, graph)
    else:
        papers, call = data["paper"], lambda: model(data.x_dict, data.edge_index_dict)
        if kind == "rgcn":
            whole = data.to_homogeneous(node_attrs=[], edge_attrs=[])
            edges = whole.edge_index, whole.edge_type
            call = lambda: model.on_one_type(data.x_dict, edges)  # noqa: E731
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    mask, found = papers.train_mask, []
    for _ in range(count + 1):
        begin = time.perf_counter()
        out = call()
        loss = F.cross_entropy(out[mask], papers.y[mask], reduction="none")
        loss = papers.mean(loss, mask) if ranks else loss.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((time.perf_counter() - begin, float(loss.detach())))
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vertices", type=int, default=1_000_000)
    parser.add_argument("--models", default="sage,gat,hgt,rgcn")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # threads do not survive a fork
    data, cores = mag(options.vertices), os.cpu_count() or 1
    edges = sum(index.shape[1] for index in data.edge_index_dict.values())
    print(f"{data.num_nodes:,} vertices, {edges:,} edges, {cores} threads in all")
    print(f"{'model':6} {'ranks':>5} {'PyG s':>8} {'spgnn s':>8} {'times':>6} {'loss apart':>11}")
    for kind in options.models.split(","):
        for ranks in map(int, options.ranks.split(",")):
            seconds: dict[int, list[float]] = {0: [], ranks: []}
            losses: dict[int, list[float]] = {}
            for _ in range(options.rounds):
                for which in (0, ranks):
                    run = epochs, max(which, 1), kind, data, which, options.epochs
                    try:
                        found = run_ranks(*run, threads=cores // max(which, 1))[0]
                    except RuntimeError:  # out of memory: the launcher says so
                        found = [(float("nan"), float("nan"))] * 2
                    seconds[which] += [one[0] for one in found[1:]]
                    losses[which] = [one[1] for one in found]
            theirs, ours = median(seconds[0]), median(seconds[ranks])
            apart = max(abs(a - b) for a, b in zip(losses[0], losses[ranks], strict=False))
            row = f"{kind:6} {ranks:5} {theirs:8.3f} {ours:8.3f} {theirs / ours:6.2f} {apart:11.1e}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
