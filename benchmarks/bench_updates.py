"""Updates a second of a graph that changes, with exact inference after each batch.

    python benchmarks/bench_updates.py [--vertices N] [--edges E] [--undirected]
        [--batches 1,10,1000] [--seconds S] [--nproc P] [--threads T]
        [--model sage|gcn|gat] [--output FILE.md]

Half of a batch are edges of the graph that are dropped, half random new ones. By default the graph
has the size of ogbn-arxiv, and as there in-degrees are skewed; with ``--undirected`` both are, and
a change in one direction is one in both. Batches alternate with whole inference on the new
graph, which says by how much the rows differ.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import spgnn
from spgnn.data.generators import block_model
from spgnn.nn import GAT, GCN, GraphSAGE, Stack
from spgnn.testing import run_ranks

WIDTH, CLASSES, LAYERS = 128, 40, 3
MODELS: dict[str, tuple[type[Stack], dict[str, Any]]] = {
    "sage": (GraphSAGE, {}),
    "gcn": (GCN, {}),
    "gat": (GAT, {"heads": 4}),
}


class Edges:
    """The edges of a graph, as numbers, from which batches are drawn."""

    def __init__(self, vertices: int, edges: int, undirected: bool) -> None:
        self.n, self.undirected = vertices, undirected
        self.rng = np.random.default_rng(0)
        if undirected:
            A = block_model(vertices, edges, features=1, classes=CLASSES).adjacency.to_scipy()
            target, source = A.nonzero()
        else:
            cumulative = np.cumsum(self.rng.pareto(1.5, vertices).clip(0, 1e4) + 0.3)
            drawn = self.rng.random(edges) * cumulative[-1]
            target = np.searchsorted(cumulative, drawn).astype(np.int64)
            source = self.rng.integers(0, vertices, edges)
        self.keys = np.unique(source.astype(np.int64) * vertices + target)
        self.known = set(self.keys.tolist())

    def matrix(self) -> sp.csr_array:
        """The adjacency."""
        source, target = np.divmod(self.keys, self.n)
        ones = np.ones(len(self.keys), np.bool_)
        return sp.csr_array((ones, (target, source)), shape=(self.n, self.n))

    def batch(self, size: int, drops: int) -> tuple[np.ndarray, np.ndarray]:
        """Edges [2, e] that are added, and dropped; these edges change with them."""
        add, drop = set[int](), set[int]()
        while len(drop) < drops:
            place = int(self.rng.integers(len(self.keys)))
            key = int(self.keys[place])
            both = {key, self.reverse(key)} if self.undirected else {key}
            if both <= self.known and not both & drop:
                drop |= both
        while len(add) < size - drops:
            key = int(self.rng.integers(self.n)) * self.n + int(self.rng.integers(self.n))
            both = {key, self.reverse(key)} if self.undirected else {key}
            if not both & self.known:
                add |= both
        self.known -= drop
        self.known |= add
        return self.ends(add), self.ends(drop)

    def reverse(self, key: int) -> int:
        """The edge in the other direction."""
        source, target = divmod(key, self.n)
        return target * self.n + source

    def ends(self, keys: set[int]) -> np.ndarray:
        """Sources and targets."""
        return np.stack(np.divmod(np.array(sorted(keys), np.int64), self.n))


def measured(rank: int, options: argparse.Namespace) -> list[str]:
    """The lines of the table."""
    edges = Edges(options.vertices, options.edges, options.undirected)
    x = torch.randn(edges.n, WIDTH, generator=torch.Generator().manual_seed(0))
    graph = spgnn.distribute(edges.matrix() if rank == 0 else None, x=x if rank == 0 else None)
    cls, more = MODELS[options.model]
    model = cls(WIDTH, WIDTH, LAYERS, CLASSES, **more).eval()
    began = perf_counter()
    served = spgnn.Embeddings(model, graph)
    lines = [f"| start | | | {perf_counter() - began:.3f} | | |"]
    for size in map(int, options.batches.split(",")):
        updating, inferring, changed = list[float](), list[float](), list[int]()
        began = perf_counter()
        while (perf_counter() - began < options.seconds) or len(updating) < 3:
            add, drop = edges.batch(size, (size + len(updating) % 2) // 2)
            mine = slice(rank, None, options.nproc)
            graph.comm.barrier()
            start = perf_counter()
            graph.update(add[:, mine], drop[:, mine])
            middle = perf_counter()
            spgnn.infer(model, graph, since=served)
            updating.append(middle - start)
            inferring.append(perf_counter() - middle)
            changed.append(graph.comm.agree(len(served.changed), "sum"))
            if graph.comm.agree(int(perf_counter() - began > options.seconds)):
                break
        start = perf_counter()
        whole = spgnn.infer(model, graph)
        whole_seconds = perf_counter() - start
        error = float((whole - served.outputs).abs().max())
        seconds = median(updating) + median(inferring)
        lines.append(
            f"| {size} | {size / seconds:.0f} | {1e3 * median(updating):.2f} | "
            f"{1e3 * median(inferring):.2f} | {median(changed):.0f} | {error:.1e} | "
            f"{1e3 * whole_seconds:.0f} |"
        )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vertices", type=int, default=169_343)
    parser.add_argument("--edges", type=int, default=1_200_000)
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--batches", default="1,10,1000")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, default="sage")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    threads = max(1, options.threads // options.nproc)
    lines = run_ranks(measured, options.nproc, options, threads=threads)[0]
    head = "| batch | updates/s | update ms | infer ms | changed rows | error | whole ms |"
    text = "\n".join([head, "|---|---|---|---|---|---|---|", *lines])
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
