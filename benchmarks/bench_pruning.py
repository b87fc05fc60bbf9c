"""Shares of the last two products that pruning leaves, with few labelled vertices: counted.

    SPGNN_DATA=DIR python benchmarks/bench_pruning.py [--sets NAME,…] [--labelled SHARE]
        [--ranks P,…] [--output FILE.md]
    SPGNN_DATA=DIR python benchmarks/bench_pruning.py --seconds

No ranks are run: bytes are those of the plans of all ranks, which training counts at its transport.
With --seconds, epochs of attention on one rank with pruning and without, in turns, by the clock.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from spgnn.addons.plan.counts import MatrixCounts, Product
from spgnn.addons.plan.graphs import Dataset
from spgnn.addons.plan.ranks import VirtualRanks
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.frontend.from_config import training_graph
from spgnn.partition import partition
from spgnn.train import Trainer
from spgnn.train.run import task_of

LAYERS, WIDTH = 3, 16


def dataset_of(name: str, share: float) -> Dataset:
    """A set with a share of its vertices for training; 0 for those that it has itself."""
    source = open_source(str(Path(os.environ["SPGNN_DATA"], f"{name}.npz")))
    config = TrainConfig.of(symmetrise=True, random_features=WIDTH, random_classes=WIDTH)
    found = Dataset.of(source, config)
    if not share:
        return found
    order = torch.randperm(found.vertices, generator=torch.Generator().manual_seed(0))
    labelled = torch.zeros(found.vertices, dtype=torch.bool)
    labelled[order[: max(1, int(share * found.vertices))]] = True
    return replace(found, labelled=labelled)


def work(matrix: MatrixCounts) -> int:
    """Nonzeros that all ranks multiply."""
    return sum(int(entries.sum()) for entries in matrix.nonzeros.values())


def sent(matrix: MatrixCounts) -> int:
    """Bytes of a product of all ranks."""
    return int(matrix.moved(Product(0, WIDTH))[0].sum())


def line(name: str, dataset: Dataset, ranks: int, cover: str) -> str:
    """Shares of what the whole matrix takes, of the last layer and the one before."""
    labels, _ = partition(dataset.looped, ranks, preset="fast")
    config = TrainConfig.of(cover=cover, layers=LAYERS)
    counted = VirtualRanks(dataset, labels, config, ranks, ranks).counted(config)
    whole, last = counted.whole, counted.of(LAYERS - 1)
    before = counted.of(LAYERS - 2)
    share = float(dataset.labelled.float().mean())
    figures = " | ".join(
        f"{part(matrix) / max(1, part(whole)):.4f}"
        for matrix in (last, before)
        for part in (work, sent)
    )
    return (
        f"| {name} | {int(dataset.labelled.sum())} ({share:.2%}) | {ranks} | {cover} | {figures} |"
    )


def epochs(name: str, model: str, rounds: int = 7, warm_up: int = 3) -> str:
    """Seconds of an epoch with pruning over those without, a tenth of the vertices labelled."""
    file = Path(os.environ["SPGNN_DATA"], f"{name}.npz")
    path = str(file) if file.exists() else name
    comm, trainers = connect(), {}
    for prune in (True, False):
        config = TrainConfig.of(
            dataset=path, model=model, prune=prune, layers=LAYERS, heads=8, hidden=64,
            random_features=64, random_classes=8, random_labels=0.1, partition="block",
        )  # fmt: skip
        task = task_of(config, training_graph(config, comm))
        trainers[prune] = Trainer(task, options=config.training)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for epoch in range(warm_up + rounds):
        for prune, trainer in trainers.items():
            began = time.perf_counter()
            float(trainer.train_epoch(epoch))
            seconds[prune].append(time.perf_counter() - began)
    pruned, whole = (seconds[prune][warm_up:] for prune in (True, False))
    ratios = [a / b for a, b in zip(pruned, whole, strict=True)]
    return (
        f"| {name} | {model} | {1e3 * median(pruned):.1f} | {1e3 * median(whole):.1f} | "
        f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = "amazon-computers,coauthor-physics,uk-2007-05-100k,reddit-sayit"
    parser.add_argument("--sets", default=default, metavar="NAME,…")
    parser.add_argument("--labelled", type=float, default=0.01, help="0: the set's own vertices")
    parser.add_argument("--ranks", default="4,8", metavar="P,…")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    parser.add_argument("--seconds", action="store_true", help="time epochs of attention")
    options = parser.parse_args()
    if options.seconds:
        for name in ("coauthor-physics", "wave", "rmat-14-16"):
            for model in ("gat", "gatv2"):
                print(epochs(name, model), flush=True)
        return
    torch.set_num_threads(1)
    lines = [
        "# Pruning",
        "",
        f"`python benchmarks/bench_pruning.py --sets {options.sets} --labelled {options.labelled} "
        f"--ranks {options.ranks}`: {LAYERS} layers, random training vertices, 1D, fast partitions "
        "by `gvb`. Shares of what a product with the whole matrix takes, all ranks together: "
        "nonzeros multiplied and bytes sent, of the last product and the one before.",
        "",
        "| graph | training vertices | P | cover | work, last | bytes, last | work, before "
        "| bytes, before |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for name in options.sets.split(","):
        dataset = dataset_of(name, options.labelled)
        for ranks in map(int, options.ranks.split(",")):
            for cover in ("column", "minimum"):
                lines.append(line(name, dataset, ranks, cover))
                print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
