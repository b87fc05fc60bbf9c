"""What groups of peers cost in time, over rows that all come at once.

    SPGNN_DATA=DIR python benchmarks/bench_peers.py [--sets NAME,…] [--ranks P,…] [--share SHARE]
        [--partitions METHOD,…] [--epochs N] [--output FILE.md]

Both trainers live in the same ranks and take turns. The budget is a share of the largest halo.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.memory import give_back_freed
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.vertices import NodeClassification

TURNS = 9
WIDTH = 16
BAR = 1.3


class Spent(NamedTuple):
    """On one rank."""

    seconds: list[float]
    cpu_seconds: list[float]
    received_bytes: int  # rows that are held
    sent_bytes: float  # an epoch


def trainer(config: TrainConfig) -> tuple[Trainer, NodeClassification]:
    """Of one configuration. Collective."""
    comm = connect()
    task = NodeClassification(config, training_graph(config, comm))
    return Trainer(task, options=config.training), task


def both(rank: int, path: Path, partition: str, share: float, epochs: int) -> list[Spent]:
    """All at once, and in groups, on this rank."""
    comm = connect()
    give_back_freed()
    config = TrainConfig.of(
        dataset=path,
        partition=partition,
        cover="column",
        symmetrise=True,
        random_features=128,
        random_classes=WIDTH,
        hidden=WIDTH,
        feature_norm="none",
        prune=False,
    )
    overlapped, task = trainer(config)
    halo = comm.agree(task.data.A.volume.receive) * WIDTH * 4
    grouped, in_groups = trainer(config.but(schedule="peers", buffer=int(share * halo)))
    found = []
    contestants = (overlapped, task), (grouped, in_groups)
    seconds: list[list[float]] = [[], []]
    cpu: list[list[float]] = [[], []]
    sent = [0.0, 0.0]
    for turn in range(TURNS + 1):
        for number, (each, _) in enumerate(contestants):
            comm.barrier()
            before, start, used = comm.ledger.copy(), perf_counter(), process_time()
            for epoch in range(epochs):
                each.train_epoch(epoch)
            comm.barrier()
            if turn:  # the first one only warms up
                seconds[number].append((perf_counter() - start) / epochs)
                cpu[number].append((process_time() - used) / epochs)
            sent[number] = comm.ledger.since(before).operations["alltoall"].sent_bytes / epochs
    for number, (_, its) in enumerate(contestants):
        held = its.data.A.executor.workspace.held("receive")
        found.append(Spent(seconds[number], cpu[number], held, sent[number]))
    return found


def compare(path: Path, ranks: int, partition: str, share: float, epochs: int) -> str:
    """One line of the table."""
    found = run_ranks(both, ranks, path, partition, share, epochs)
    assert all(a.sent_bytes == b.sent_bytes for a, b in found)
    wall = [
        [max(turn) for turn in zip(*(r[k].seconds for r in found), strict=True)] for k in (0, 1)
    ]
    cpu = [
        [sum(turn) for turn in zip(*(r[k].cpu_seconds for r in found), strict=True)] for k in (0, 1)
    ]
    held = [max(r[k].received_bytes for r in found) for k in (0, 1)]
    ratios = sorted(b / a for a, b in zip(*wall, strict=True))
    of_cpu = median(b / a for a, b in zip(*cpu, strict=True))
    return (
        f"| {path.stem} | {ranks} | {partition} | {held[0] / 1e6:.2f} | {held[1] / 1e6:.2f} | "
        f"{median(wall[0]) * 1e3:.1f} | {median(wall[1]) * 1e3:.1f} | "
        f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {of_cpu:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = "amazon-computers,coauthor-physics,reddit-sayit"
    parser.add_argument("--sets", default=default, metavar="NAME,…")
    parser.add_argument("--ranks", default="4,8", metavar="P,…")
    parser.add_argument("--partitions", default="gvb,random", metavar="METHOD,…")
    parser.add_argument("--share", type=float, default=0.25, help="of the largest halo")
    parser.add_argument("--epochs", type=int, default=10, help="in a turn")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        "# Groups of peers over all at once",
        "",
        f"`python benchmarks/bench_peers.py --sets {options.sets} --ranks {options.ranks} "
        f"--partitions {options.partitions} --share {options.share} --epochs {options.epochs}` at "
        f"{commit}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores. GCN 128-16-16-16 (or a set's own features), backend auto, 1D, "
        f"column covers. Medians of {TURNS} turns, and the ratio turn by turn (bar: {BAR}); the "
        "same bytes travel. Held: received rows of the rank that holds most.",
        "",
        "| graph | P | partition | held MB | in groups | epoch ms | in groups | ratio | of CPU |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in options.sets.split(","):
        path = Path(os.environ["SPGNN_DATA"]) / f"{name}.npz"
        for ranks in map(int, options.ranks.split(",")):
            for partition in options.partitions.split(","):
                lines.append(compare(path, ranks, partition, options.share, options.epochs))
                print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
