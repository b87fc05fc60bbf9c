"""DistGNN-MB's historical rows against exact fetching: test accuracy, bytes, hit rates, ages.

    python benchmarks/bench_historical.py [--ranks 4,8] [--graphs …] [--epochs N] [--seeds 3]

Batches of one process are the reference. Accuracy is that of all test vertices with whole
neighbourhoods, on the weights of the last epoch. Bytes are those that all ranks together receive
from all-to-alls in an epoch, on average over training, set-up of the caches included; gradients are
not counted, for they are the same in all ways. `--exact-epochs N` trains with exact fetching no
longer than that: its bytes hardly change. Graphs are looked for in SPGNN_DATA.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch.nn.functional as F

import spgnn
from spgnn.comm import (
    connect,
)
from spgnn.data.load import load_dataset
from spgnn.data.normalise import row_normalise_features
from spgnn.data.splits import with_split
from spgnn.loader import (
    History,
    NeighborLoader,
)
from spgnn.loader.batch_training import average_gradients
from spgnn.loader.historical import hidden_widths
from spgnn.nn import (
    GraphSAGE,
)
from spgnn.testing import run_ranks

# What each graph is trained with; nothing was tuned for historical rows.
GRAPHS: dict[str, dict[str, Any]] = {
    "coauthor-physics": {"epochs": 6},
    "amazon-computers": {"epochs": 25},
    "flickr-small": {"epochs": 10},
    "nell": {"epochs": 40, "fanouts": (10, 5), "batch": 256, "normalised": False},
}


@dataclass(frozen=True)
class Way:
    """What is trained, and how its batches come about."""

    graph: str
    way: str
    history: History | None = None
    misses: str = "drop"
    past: str = "float32"
    epochs: int = 20
    hidden: int = 64
    fanouts: tuple[int, ...] = (10, 5, 5)
    batch: int = 512
    lr: float = 0.01
    dropout: float = 0.2
    normalised: bool = True
    seed: int = 0


def train(rank: int, how: Way) -> dict[str, Any]:
    """On one rank: train, and say what it was like."""
    comm = connect()
    whole = with_split(load_dataset(how.graph)) if rank == 0 else None
    if whole is not None and whole.x is not None and how.normalised:
        whole = replace(whole, x=row_normalise_features(whole.x))
    graph = spgnn.distribute(whole, comm=comm, seed=0)
    widths = [graph.num_features, *[how.hidden] * (len(how.fanouts) - 1), graph.num_classes]
    model = GraphSAGE.of(widths, dropout=how.dropout, seed=how.seed)
    model.input_dropout = False
    options: dict[str, Any] = {"batch_size": -(-how.batch // comm.size), "shuffle": True}
    options |= {"seed": how.seed}
    before = comm.ledger.copy()
    options |= {"comm": comm, "widths": hidden_widths(model), "mode": how.way, "superbatch": 4}
    if how.history is not None:
        options["mode"] = replace(how.history, misses=how.misses, dtype=getattr(torch, how.past))
    loader = NeighborLoader(graph.share, how.fanouts, "train_mask", **options)
    strategy: Any = loader.strategy
    optimizer = torch.optim.Adam(model.parameters(), lr=how.lr)
    started = time.perf_counter()
    for _ in range(how.epochs):
        for batch in loader:
            optimizer.zero_grad()
            if batch is not None:
                out = model(batch.x, batch.layers, batch.keys)
                if batch.batch_size:
                    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            average_gradients(model, comm, 0 if batch is None else batch.batch_size)
            optimizer.step()
    seconds = time.perf_counter() - started
    if how.way != "exact":
        strategy.drain()
    moved = torch.tensor([comm.ledger.since(before).of("alltoall").received_bytes])
    comm.all_reduce(moved).wait()
    scores = spgnn.infer(model.eval(), graph).argmax(1)
    right = torch.stack([((scores == graph.y) & graph.test_mask).sum(), graph.test_mask.sum()])
    comm.all_reduce(right).wait()
    found = {"accuracy": float(right[0] / right[1]), "bytes": int(moved), "seconds": seconds}
    return found | (strategy.report() if how.way != "exact" else {})


def ways(graph: str, arguments: argparse.Namespace) -> Iterator[tuple[str, int, Way]]:
    """What is measured, with names and numbers of ranks."""
    base: dict[str, Any] = {"graph": graph, **GRAPHS.get(graph, {})}
    if arguments.epochs:
        base["epochs"] = arguments.epochs
    yield "one process", 1, Way(way="exact", **base)
    for ranks in map(int, arguments.ranks.split(",")):
        few = {**base, "epochs": min(base.get("epochs", 20), arguments.exact_epochs)}
        yield "exact", ranks, Way(way="exact", **few)
        if arguments.alone:
            yield "alone", ranks, Way(way="local", **base)
        for text in arguments.historical:
            history = History.parse(text)
            for misses in arguments.misses.split(","):
                yield (
                    f"{text} {misses}",
                    ranks,
                    Way(
                        way="historical",
                        history=history,
                        misses=misses,
                        past=arguments.past,
                        **base,
                    ),
                )


def shown(numbers: list[float | None], form: str) -> str:
    """A list of numbers, some of which are unknown."""
    return " ".join("–" if n is None else format(n, form) for n in numbers)


def main() -> None:
    """Measure and print one table a graph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--exact-epochs", type=int, default=10_000)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--historical", nargs="+", default=["1000000,8,1,2000", "1000000,32,1,500"])
    parser.add_argument("--past", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--misses", default="drop")
    arguments = parser.parse_args()
    for graph in arguments.graphs:
        names = "ranks", "way", "accuracy", "±", "MB an epoch", "of exact", "hits", "ages", "s"
        print(f"\n{graph}\n\n| {' | '.join(names)} |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        exact_bytes: dict[int, float] = {}
        for name, ranks, how in ways(graph, arguments):
            runs = []
            for seed in range(arguments.seeds):
                runs.append(run_ranks(train, ranks, replace(how, seed=seed))[0])
            nbytes = mean(run["bytes"] / how.epochs for run in runs)
            if how.way == "exact":
                exact_bytes[ranks] = nbytes
            accuracy = [100 * run["accuracy"] for run in runs]
            share = nbytes / exact_bytes[ranks] if exact_bytes.get(ranks) else 0
            print(
                f"| {ranks} | {name} | {mean(accuracy):.2f} "
                f"| {stdev(accuracy) if len(accuracy) > 1 else 0:.2f} | {nbytes / 1e6:.1f} "
                f"| {share:.3f} | {shown(runs[0].get('hit_rate', []), '.2f')} "
                f"| {shown(runs[0].get('mean_age', []), '.1f')} "
                f"| {mean(run['seconds'] for run in runs):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
