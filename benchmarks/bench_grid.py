"""What an epoch costs all ranks together in 1.5D, over 1D: CPU seconds and bytes.

    SPGNN_DATA=DIR python benchmarks/bench_grid.py [--sets NAME,…] [--epochs N] [--output FILE.md]

Both trainers live in the same ranks and take turns. What counts is where 1.5D moves no more bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from pathlib import Path
from statistics import median
from time import process_time

import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.memory import give_back_freed
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.vertices import NodeClassification

TURNS = 7
BAR = 1.15


def trainers(path: Path, partition: str) -> list[Trainer]:
    """In 1D, and in 1.5D with c = 2."""
    comm, common = connect(), {"dataset": path, "partition": partition, "symmetrise": True}
    give_back_freed()
    made = []
    for how in ({}, {"algo": "1.5d", "c": 2}):
        config = TrainConfig.of(
            **common,
            **how,
            cover="column",
            random_features=128,
            random_classes=16,
            hidden=16,
            feature_norm="none",
            prune=False,
        )
        task = NodeClassification(config, training_graph(config, comm))
        made.append(Trainer(task, options=config.training))
    return made


def both(rank: int, path: Path, partition: str, epochs: int) -> list[tuple[list[float], float]]:
    """Of each trainer, CPU seconds an epoch in each turn, and bytes this rank sends in one."""
    comm = connect()
    seconds: list[list[float]] = [[], []]
    sent = [0.0, 0.0]
    contestants = trainers(path, partition)
    for turn in range(TURNS + 1):
        for number, trainer in enumerate(contestants):
            comm.barrier()
            before, start = comm.ledger.copy(), process_time()
            for epoch in range(epochs):
                trainer.train_epoch(epoch)
            comm.barrier()
            if turn:  # the first one only warms up
                seconds[number].append((process_time() - start) / epochs)
            moved = comm.ledger.since(before).operations
            sent[number] = moved["alltoall"].sent_bytes / epochs
    return list(zip(seconds, sent, strict=True))


def compare(path: Path, ranks: int, partition: str, epochs: int) -> str:
    """One line of the table."""
    found = run_ranks(both, ranks, path, partition, epochs)
    cpu = [[sum(turn) for turn in zip(*(r[k][0] for r in found), strict=True)] for k in (0, 1)]
    sent = [sum(r[k][1] for r in found) for k in (0, 1)]
    ratios = sorted(b / a for a, b in zip(*cpu, strict=True))
    return (
        f"| {path.stem} | {ranks} | {partition} | {median(cpu[0]) * 1e3:.1f} | "
        f"{median(cpu[1]) * 1e3:.1f} | {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
        f"| {sent[0] / 1e6:.2f} | {sent[1] / 1e6:.2f} | {sent[1] / max(sent[0], 1):.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = "amazon-computers,coauthor-physics,reddit-sayit"
    parser.add_argument("--sets", default=default, metavar="NAME,…")
    parser.add_argument("--epochs", type=int, default=10, help="in a turn")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        "# 1.5D over 1D",
        "",
        f"`python benchmarks/bench_grid.py --sets {options.sets} --epochs {options.epochs}` at "
        f"{commit}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores. GCN 128-16-16-16 (or a set's own features), gloo, column covers, "
        f"c = 2. CPU milliseconds an epoch, all ranks together: medians of {TURNS} turns, and "
        f"their ratio turn by turn (bar: {BAR} where 1.5D moves no more bytes). Megabytes an epoch "
        "in exchanges and folds.",
        "",
        "| graph | P | partition | 1D CPU ms | 1.5D CPU ms | ratio | 1D MB | 1.5D MB | ratio |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in options.sets.split(","):
        path = Path(os.environ["SPGNN_DATA"]) / f"{name}.npz"
        for ranks in (4, 8):
            for partition in ("gvb", "random"):
                lines.append(compare(path, ranks, partition, options.epochs))
                print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
