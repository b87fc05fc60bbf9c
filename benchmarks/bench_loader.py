"""An epoch of mini-batches of GraphSAGE, sampled and trained, beside DGL's two loaders.

    SPGNN_DATA=DIR python benchmarks/bench_loader.py --peer PYTHON [--sets NAME,…]
        [--fanouts 15,10,5] [--features F] [--batches N] [--turns N] [--output FILE.md]

PYTHON is an interpreter that has DGL 2.1. All contestants live at the same time and take turns;
each trains as many batches of 1024 seeds, with Adam, on the same graph and features. "once" is our
loader as it is by default (a vertex is expanded once, as in PyG), "resampled" draws neighbours
anew in each layer, as DGL does. PyG's own loader needs pyg-lib or torch-sparse.

--ablation is Figure 2 of DistGNN-MB: "torch's update" has torch's products, bias, ReLU and dropout
after our aggregation, and a thread that samples beside training; "update" has ours, in one pass;
"update, sync" samples with all threads before each step. --model gat is that of its equation 2,
with four heads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import kernel_graphs
import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "experiments"))

from systems.relu_first import ReluFirstGAT

import spgnn
from spgnn import CSR, nn
from spgnn.data import Graph, load_dataset
from spgnn.graph import Aggregation

SETS = "reddit-sayit,uk-2007-05-100k,rmat-20-16,sbm-20-16"
PEERS = ("dgl", "graphbolt")
# Kinds of ours: whether neighbours are drawn anew, whether torch updates, batches made ahead.
KINDS = {"once": (False, False, 2), "resampled": (True, False, 2)}
ABLATION = {
    "torch's update": (True, True, 2),
    "update": (True, False, 2),
    "update, sync": (True, False, 0),
}
DROPOUT = 0.5
CLASSES, BATCH = 47, 1024
BAR = 1.5


class TorchUpdates(torch.nn.Module):
    """GraphSAGE with our means, and torch's operations one after the other."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.own = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in pairs)
        self.mean = torch.nn.ModuleList(torch.nn.Linear(*pair, bias=False) for pair in pairs)

    def forward(self, x: torch.Tensor, layers: Any, keys: Any) -> torch.Tensor:
        """Scores of the seeds."""
        for number, (block, own, mean) in enumerate(zip(layers, self.own, self.mean, strict=True)):
            means = block.aggregate(Aggregation(x, normalisation="row"))
            x = own(x[: len(means)]) + mean(means)
            if number < len(self.own) - 1:
                x = F.dropout(F.relu(x), DROPOUT, self.training)
        return x


class Ours:
    """Our loader and layers, in this process."""

    def __init__(
        self, graph: Graph, options: dict[str, Any], resample: bool, plain: bool, ahead: int
    ) -> None:
        self.loader = spgnn.NeighborLoader(
            graph,
            options["fanouts"],
            "train_mask",
            batch_size=BATCH,
            shuffle=True,
            resample=resample,
            prefetch=ahead,
        )
        widths = [graph.features, *options["hidden"], CLASSES]
        if options["model"] == "gat":
            self.model: Any = ReluFirstGAT.of(
                widths, heads=4, dropout=DROPOUT, attention_dropout=0.0
            )
        else:
            self.model = TorchUpdates(widths) if plain else nn.GraphSAGE.of(widths, dropout=DROPOUT)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.003)

    def epoch(self, what: str) -> tuple[float, int, int]:
        """Seconds, edges and vertices of one epoch."""
        started, edges, vertices = perf_counter(), 0, 0
        for batch in self.loader:
            if what == "train":
                out = self.model(batch.x, batch.layers, batch.keys)
                loss = F.cross_entropy(out, batch.y[: batch.batch_size])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            edges += batch.sampled_edges
            vertices += batch.num_nodes
        return perf_counter() - started, edges, vertices


class Peer:
    """A loader of DGL, in a process of its own."""

    def __init__(self, python: str, folder: str, contestant: str, options: dict[str, Any]) -> None:
        worker = Path(__file__).with_name("loader_worker.py")
        command = [python, str(worker), folder, contestant, json.dumps(options)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask("ready")

    def epoch(self, what: str) -> tuple[float, int, int]:
        """As ours."""
        seconds, edges, vertices = self._ask(what).split()
        return float(seconds), int(edges), int(vertices)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        for answer in self._process.stdout:
            if answer.startswith("answer: "):
                return answer.removeprefix("answer: ").strip()
        raise SystemExit("a peer has ended")


def compare(name: str, options: argparse.Namespace) -> list[str]:
    """Lines of the table for one graph."""
    if "-like" in name:
        A = load_dataset(name).adjacency.to_scipy().astype(bool)
        A = sp.csr_array(A + sp.eye_array(A.shape[0], dtype=bool))
    else:
        A = kernel_graphs.load(name, 0)
    n, rng = A.shape[0], np.random.default_rng(0)
    seeds = np.sort(rng.choice(n, min(n, options.batches * BATCH), replace=False))
    x = rng.standard_normal((n, options.features), dtype=np.float32)
    y = rng.integers(0, CLASSES, n)
    given = {
        "fanouts": [int(k) for k in options.fanouts.split(",")],
        "batch_size": BATCH,
        "hidden": [256, 256],
        "classes": CLASSES,
        "threads": options.threads,
        "model": options.model,
    }
    mask = torch.zeros(n, dtype=torch.bool)
    mask[torch.from_numpy(seeds)] = True
    contestants: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        arrays = {"x": x, "y": y, "seeds": seeds}
        arrays |= {"indptr": A.indptr.astype(np.int64), "indices": A.indices.astype(np.int32)}
        for each, array in arrays.items():
            np.save(f"{folder}/{each}.npy", array)
        peers = PEERS[: 1 if options.ablation else None]
        for peer in peers if options.peer else ():
            contestants[peer] = Peer(options.peer, folder, peer, given)
    graph = Graph(
        name,
        CSR.from_scipy(A),
        False,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        train_mask=mask,
    )
    kinds = ABLATION if options.ablation else KINDS
    if options.model == "gat":
        kinds = {kind: how for kind, how in kinds.items() if not how[1]}
    for kind, how in kinds.items():
        contestants[kind] = Ours(graph, given, *how)
    lines = []
    for what in ("train",) if options.ablation else ("train", "sample"):
        found: dict[str, list[tuple[float, int, int]]] = {kind: [] for kind in contestants}
        for turn in range(options.turns + 1):
            for kind, contestant in contestants.items():
                told = contestant.epoch(what)
                if turn:  # the first one only warms up
                    found[kind].append(told)
        lines += table(name, what, found)
        print(*lines[-len(found) :], sep="\n", flush=True)
    for contestant in contestants.values():
        if isinstance(contestant, Peer):
            contestant.close()
    return lines


def table(name: str, what: str, found: dict[str, list[tuple[float, int, int]]]) -> list[str]:
    """A line for each contestant."""
    peers = [told for kind, told in found.items() if kind in PEERS]
    lines = []
    for kind, told in found.items():
        seconds = [each[0] for each in told]
        best = [min(each[0] for each in turn) for turn in zip(*peers, strict=True)] or seconds
        ratios = sorted(b / s for b, s in zip(best, seconds, strict=True))
        rate = median(each[1] / each[0] for each in told) / 1e6
        lines.append(
            f"| {name} | {what} | {kind} | {median(seconds):.3f} | {told[0][1] / 1e6:.2f} | "
            f"{told[0][2] / 1e6:.3f} | {rate:.1f} | "
            f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peer", metavar="PYTHON", help="with DGL 2.1; without, ours alone")
    parser.add_argument("--model", default="sage", choices=("sage", "gat"))
    parser.add_argument("--ablation", action="store_true", help="Figure 2 of DistGNN-MB")
    parser.add_argument("--sets", default=SETS, metavar="NAME,…")
    parser.add_argument("--fanouts", default="15,10,5")
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--batches", type=int, default=20, help="of 1024 seeds, an epoch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--scratch", metavar="DIR", help="for the arrays that peers read")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        "# An epoch of mini-batches",
        "",
        f"`python benchmarks/bench_loader.py {' '.join(sys.argv[1:])}` at {commit}, torch "
        f"{torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores. "
        f"{options.model} {options.features}-256-256-{CLASSES}, Adam; medians of {options.turns} "
        "turns. "
        f"Ratio: the best peer's seconds over these, turn by turn (bar: {BAR}).",
        "",
        "sample: without training. Edges are those of all layers.",
        "",
        "| graph | what | loader | seconds | M edges | M vertices | M edges/s | ratio |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for name in options.sets.split(","):
        lines += compare(name, options)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
