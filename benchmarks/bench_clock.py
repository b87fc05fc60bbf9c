"""What measuring costs: epochs of a training run against a bare loop without any clock.

    SPGNN_DATA=DIR python benchmarks/bench_clock.py [--sets NAME,…] [--pairs N] [--output FILE.md]

One process, one model: stretches of both kinds take turns, so that whatever else the machine does
meets both. Of a training run those epochs count that its report counts.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.memory import give_back_freed, keep_freed
from spgnn.train import Trainer
from spgnn.train.measure import CLOCKED_EVERY, Measurements, timed
from spgnn.train.vertices import NodeClassification

CPU = torch.device("cpu")
STRETCH = 2 * CLOCKED_EVERY + 1  # epochs: two of them are clocked, one is the first
BAR = 1.02


def trainer_of(name: str, hidden: int) -> Trainer:
    comm = connect()
    config = TrainConfig.of(
        dataset=Path(os.environ["SPGNN_DATA"]) / f"{name}.npz",
        symmetrise=True,
        random_features=128,
        random_classes=16,
        hidden=hidden,
        partition="block",
        prune=False,
    )
    give_back_freed()
    task = NodeClassification(config, training_graph(config, comm))
    keep_freed()
    return Trainer(task, options=config.training)


def measured(trainer: Trainer) -> float:
    """Median epoch as a training run reports it."""
    stretch = Measurements(trainer.comm.ledger, CPU)
    for epoch in range(STRETCH):
        stretch.epoch(lambda epoch=epoch: trainer.train_epoch(epoch))
    return median(timed(stretch.seconds))


def bare(trainer: Trainer) -> float:
    """Median epoch of a loop that does nothing else; the first does not count either."""
    seconds = []
    for epoch in range(STRETCH):
        start = perf_counter()
        float(trainer.train_epoch(epoch))
        seconds.append(perf_counter() - start)
    return median(seconds[1:])


def compare(name: str, hidden: int, pairs: int) -> str:
    """One line of the table."""
    trainer = trainer_of(name, hidden)
    bare(trainer)
    both = []
    for pair in range(pairs):
        kinds = [measured, bare]
        found = {kind: kind(trainer) for kind in (kinds if pair % 2 else reversed(kinds))}
        both.append((found[measured], found[bare]))
    ratios = sorted(a / b for a, b in both)
    ours, other = (median(column) * 1e3 for column in zip(*both, strict=True))
    return (
        f"| {name} | {hidden} | {ours:.3f} | {other:.3f} | {median(ratios):.3f} "
        f"({ratios[0]:.3f} to {ratios[-1]:.3f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default="cora,coauthor-physics,reddit-sayit", metavar="NAME,…")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    lines = [
        "# Measuring",
        "",
        f"`python benchmarks/bench_clock.py --sets {options.sets} --pairs {options.pairs}`, torch "
        f"{torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} "
        f"threads. Medians of {options.pairs} alternating stretches of {STRETCH} epochs, and their "
        f"ratio pair by pair (bar: at most {BAR}).",
        "",
        "| graph | hidden | ms an epoch, training run | ms, bare loop | ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in options.sets.split(","):
        for hidden in (16, 128):
            lines.append(compare(name, hidden, options.pairs))
            print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
