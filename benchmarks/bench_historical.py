"""DistGNN-MB's historical rows against exact fetching: test accuracy, bytes, hit rates, ages.

    python benchmarks/bench_historical.py [--ranks 4,8] [--graphs …] [--epochs N] [--seeds 3]
        [--plot FILE]

Batches of one process, as large as those of all ranks together, are the reference. Accuracy is that
of all test vertices with whole neighbourhoods, on the weights of the last epoch. Bytes are those
that all ranks together receive from all-to-alls in an epoch, on average over training, set-up of
the caches included; gradients are not counted, for they are the same in all ways. Exact fetching is
trained for `--exact-epochs`, for its bytes, which hardly change. SPGNN_DATA has the graphs.

`products-like@SCALE` is a random graph with nested communities that has the degrees, classes and
share of training vertices of ogbn-products, and SCALE times its size. The batches of each rank (the
paper's 1000), rows of caches and rows pushed are SCALE times what they are in the paper and in
`--historical`, so that a batch covers as much of a rank's part as it would at full size. Hit rates
are shown beside those of the paper's section 4.4, which are of Papers100M on 64 ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean, stdev
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "experiments"))

import systems  # noqa: F401
import torch
import torch.nn.functional as F

import spgnn
from spgnn.addons.batches import NeighborLoader
from spgnn.addons.diskbatches import average_gradients
from spgnn.addons.historical import History, hidden_widths
from spgnn.comm import connect
from spgnn.data.graph import Graph
from spgnn.data.load import load_dataset
from spgnn.data.normalise import row_normalise_features
from spgnn.data.splits import with_split
from spgnn.nn import GraphSAGE
from spgnn.partition.plot import check_plot
from spgnn.testing import run_ranks

# What each graph is trained with; nothing was tuned for historical rows.
GRAPHS: dict[str, dict[str, Any]] = {
    "products-like@0.01": {"epochs": 8, "fanouts": (15, 10, 5)},
    "coauthor-physics": {"epochs": 6},
    "amazon-computers": {"epochs": 25},
    "flickr-small": {"epochs": 10},
    "nell": {"epochs": 40, "fanouts": (10, 5), "batch": 256, "normalised": False},
}
HIT_RATES = 0.71, 0.47, 0.37  # section 4.4: Papers100M, 64 ranks, the settings of `paper`
PRODUCTS_BATCH = 1000  # of each rank


@dataclass(frozen=True)
class Way:
    """What is trained, and how its batches come about."""

    graph: str
    way: str
    history: History | None = None
    epochs: int = 20
    hidden: int = 64
    fanouts: tuple[int, ...] = (10, 5, 5)
    batch: int = 512  # of all ranks
    lr: float = 0.01
    dropout: float = 0.2
    normalised: bool = True
    seed: int = 0


def scale_of(graph: str) -> float | None:
    """Of a stand-in of products."""
    name, _, scale = graph.partition("@")
    return float(scale) if name == "products-like" else None


@lru_cache(1)
def load(name: str, normalised: bool) -> Graph:
    """One of GRAPHS; ranks are forked with it."""
    graph = with_split(load_dataset(name))
    if graph.x is not None and normalised and scale_of(name) is None:
        graph = replace(graph, x=row_normalise_features(graph.x))
    return graph


def train(rank: int, how: Way) -> dict[str, Any]:
    """On one rank: train, and say what it was like."""
    comm = connect()
    whole = load(how.graph, how.normalised) if rank == 0 else None
    graph = spgnn.distribute(whole, comm=comm, seed=0)
    widths = [graph.num_features, *[how.hidden] * (len(how.fanouts) - 1), graph.num_classes]
    model = GraphSAGE.of(widths, dropout=how.dropout, seed=how.seed)
    model.input_dropout = False
    options: dict[str, Any] = {"batch_size": -(-how.batch // comm.size), "shuffle": True}
    options |= {"seed": how.seed}
    before = comm.ledger.copy()
    options |= {"comm": comm, "mode": how.way, "superbatch": 4}
    if how.history is not None:
        options["mode"] = replace(how.history, widths=hidden_widths(model))
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
    strategy.close()
    moved = torch.tensor([comm.ledger.since(before).of("alltoall").received_bytes])
    comm.all_reduce(moved).wait()
    scores = spgnn.infer(model.eval(), graph).argmax(1)
    right = torch.stack([((scores == graph.y) & graph.test_mask).sum(), graph.test_mask.sum()])
    comm.all_reduce(right).wait()
    found = {"accuracy": float(right[0] / right[1]), "bytes": int(moved), "seconds": seconds}
    return found | (strategy.report().get("historical") or {})


def ways(graph: str, arguments: argparse.Namespace) -> Iterator[tuple[str, int, Way]]:
    """What is measured, with names and numbers of ranks."""
    base: dict[str, Any] = {"graph": graph, **GRAPHS.get(graph, {})}
    if arguments.epochs:
        base["epochs"] = arguments.epochs
    scale, batches = scale_of(graph), set()
    for ranks in map(int, arguments.ranks.split(",")):
        if scale is not None:
            base["batch"] = ranks * round(PRODUCTS_BATCH * scale)
        if base.get("batch") not in batches:
            batches.add(base.get("batch"))
            yield "one process", 1, Way(way="exact", **base)
        few = {**base, "epochs": min(base.get("epochs", 20), arguments.exact_epochs)}
        yield "exact", ranks, Way(way="exact", **few)
        if arguments.alone:
            yield "alone", ranks, Way(way="local", **base)
        for text in arguments.historical:
            dtype = getattr(torch, arguments.past)
            history = History.parse(text, arguments.misses, dtype)
            if scale is not None:
                sizes = (round(scale * number) for number in (history.size, history.push))
                history = replace(history, **dict(zip(("size", "push"), sizes, strict=True)))
            yield text, ranks, Way(way="historical", history=history, **base)


def shown(numbers: list[float | None], form: str) -> str:
    """A list of numbers, some of which are unknown."""
    return " ".join("–" if n is None else format(n, form) for n in numbers)


def plot(path: str, rates: dict[str, list[float | None]]) -> None:
    """Draw hit rates by layer."""
    suffix = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    axes = figure.subplots()
    width = 0.8 / len(rates)
    for number, (name, layers) in enumerate(rates.items()):
        places = [layer + (number - (len(rates) - 1) / 2) * width for layer in range(len(layers))]
        axes.bar(places, [100 * (rate or 0) for rate in layers], width, label=name)
    layers = range(max(map(len, rates.values())))
    axes.set_xticks(list(layers), [f"L{layer}" for layer in layers])
    axes.set(ylabel="hit rate, %", ylim=(0, 100))
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, format=suffix, dpi=150)


def main() -> None:
    """Measure and print one table a graph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--exact-epochs", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--historical", nargs="+", default=["paper", "1000000,32,1,500"])
    parser.add_argument("--past", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--misses", choices=("drop", "fetch"), default="drop")
    parser.add_argument("--plot", help="of hit rates by layer", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.plot:
        check_plot(arguments.plot)
    rates: dict[str, list[float | None]] = {"paper: Papers100M, 64 ranks": list(HIT_RATES)}
    for graph in arguments.graphs:
        names = "ranks", "way", "accuracy", "±", "MB an epoch", "of exact", "hits", "ages", "s"
        print(f"\n{graph}\n\n| {' | '.join(names)} |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        exact_bytes: dict[int, float] = {}
        load(graph, GRAPHS.get(graph, {}).get("normalised", True))
        for name, ranks, how in ways(graph, arguments):
            runs = []
            for seed in range(arguments.seeds):
                runs.append(run_ranks(train, ranks, replace(how, seed=seed))[0])
            nbytes = mean(run["bytes"] / how.epochs for run in runs)
            if how.way == "exact":
                exact_bytes[ranks] = nbytes
            accuracy = [100 * run["accuracy"] for run in runs]
            whole = how.way != "exact" or ranks == 1 or how.epochs > 1
            share = nbytes / exact_bytes[ranks] if exact_bytes.get(ranks) else 0
            hits = runs[0].get("hit_rate", [])
            if hits:
                rates[f"{graph}, {ranks} ranks, {name}"] = hits
            print(
                f"| {ranks} | {name} | {format(mean(accuracy), '.2f') if whole else '–'} "
                f"| {stdev(accuracy) if len(accuracy) > 1 and whole else 0:.2f} "
                f"| {nbytes / 1e6:.1f} | {share:.3f} | {shown(hits, '.2f')} "
                f"| {shown(runs[0].get('mean_age', []), '.1f')} "
                f"| {mean(run['seconds'] for run in runs):.1f} |",
                flush=True,
            )
    print(f"\nHits in DistGNN-MB, L0 L1 L2: {shown(list(HIT_RATES), '.2f')}")
    if arguments.plot:
        plot(arguments.plot, rates)


if __name__ == "__main__":
    main()
