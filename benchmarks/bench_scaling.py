"""Real ranks of one machine: 1 and 2 by the clock, more by the CPU seconds that they take.

    SPGNN_DATA=DIR python benchmarks/bench_scaling.py [--sets NAME,…] [--ranks N,…] [--hidden N]
        [--epochs N] [--only clock|work] [--output FILE.md]

More ranks than cores cannot be timed by the clock. CPU seconds of all ranks together, over those of
one rank, say what a scheme adds: packing, smaller products, and whatever a rank burns while it
waits. What they leave out are links.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.frontend.from_config import training_graph
from spgnn.memory import FreedMemory
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.measure import CATEGORIES, CLOCKED_EVERY
from spgnn.train.run import task_of

SCHEMES: dict[str, dict[str, Any]] = {
    "1D": {},
    "1D, nodes of 4": {"hierarchy": "4"},
    "1.5D, c = 2": {"algo": "1.5d", "c": 2},
    "1.5D, c = 4": {"algo": "1.5d", "c": 4},
    "2D": {"algo": "2d"},
}
PAIRS = 5


def epochs_of(
    rank: int, config: TrainConfig, epochs: int, clock: Callable[[], float]
) -> tuple[float, list[float], int]:
    """Median seconds of an epoch by that clock, its parts, and bytes this rank sends in one."""
    comm = connect()
    comm.ledger.clock = clock
    trainer = Trainer(task_of(config, training_graph(config, comm)), options=config.training)
    freed = FreedMemory(comm.size, comm.ranks_here)
    freed.begin()
    measured = trainer.measured
    for epoch in range(max(epochs, CLOCKED_EVERY + 2)):
        measured.epoch(lambda epoch=epoch: trainer.train_epoch(epoch))
        freed.after_epoch()
    # Parts come from epochs whose operators are clocked, which take a little longer.
    parts = measured.mean_breakdown()
    seconds = median(measured.seconds[2:])
    return seconds, [seconds * part / sum(parts) for part in parts], measured.sent_bytes[-1]


def config_of(path: Path, hidden: int, how: dict[str, Any]) -> TrainConfig:
    made_up = {"random_features": 128, "random_classes": 16, "symmetrise": True}
    return TrainConfig.of(dataset=path, hidden=hidden, prune=False, **made_up, **how)


def by_the_clock(path: Path, hidden: int, epochs: int) -> Iterator[str]:
    """One rank and two, of one thread each, in turns."""
    config, found = config_of(path, hidden, {}), []
    for _ in range(PAIRS):
        one, two = (
            max(seconds for seconds, *_ in run_ranks(epochs_of, p, config, epochs, perf_counter))
            for p in (1, 2)
        )
        found.append((one, two))
    ratios = sorted(one / two for one, two in found)
    one, two = (median(column) * 1e3 for column in zip(*found, strict=True))
    yield (
        f"| {path.stem} | {one:.1f} | {two:.1f} | **{median(ratios):.2f}** ({ratios[0]:.2f} to "
        f"{ratios[-1]:.2f}) |"
    )


def by_work(path: Path, hidden: int, epochs: int, ranks: list[int]) -> Iterator[str]:
    """CPU seconds and bytes of every scheme that fits a number of ranks."""
    alone: float | None = None
    for count in [1, *ranks]:
        for name, how in SCHEMES.items():
            if count == 1 and how:
                continue
            config = config_of(path, hidden, how)
            try:
                config.check(count)
            except InputError:
                continue
            if name == "1D, nodes of 4" and count < 8:
                continue
            ended = run_ranks(epochs_of, count, config, epochs, process_time)
            seconds = [spent for spent, _, _ in ended]
            alone = alone or seconds[0]
            parts = [fmean(column) * 1e3 for column in zip(*(p for _, p, _ in ended), strict=True)]
            sent = [nbytes for _, _, nbytes in ended]
            shown = " | ".join(f"{part:.2f}" for part in parts)
            yield (
                f"| {path.stem} | {count} | {name} | {fmean(seconds) * 1e3:.2f} | "
                f"{max(seconds) * 1e3:.2f} | **{alone / sum(seconds):.2f}** | "
                f"{sum(sent) / 1e6:.2f} | {max(sent) / 1e6:.3f} | {shown} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default="amazon-computers,coauthor-physics", metavar="NAME,…")
    parser.add_argument("--ranks", default="2,4,8,16,32,64", metavar="N,…")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=21)
    parser.add_argument("--only", choices=("clock", "work"))
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    paths = [Path(os.environ["SPGNN_DATA"], f"{name}.npz") for name in options.sets.split(",")]
    ranks = [int(count) for count in options.ranks.split(",")]
    lines = [
        f"`python benchmarks/bench_scaling.py --sets {options.sets} --ranks {options.ranks}`, "
        f"torch {torch.__version__}, Python {platform.python_version()}; GCN of 3 layers, "
        f"{options.hidden} hidden, one thread a rank, gvb."
    ]

    def add(*more: str) -> None:
        lines.extend(more)
        print("\n".join(more), flush=True)

    if options.only != "work":
        add("", "| graph | ms, P = 1 | ms, P = 2 | one over two |", "|---|---:|---:|---:|")
        for path in paths:
            add(*by_the_clock(path, options.hidden, options.epochs))
    if options.only != "clock":
        kinds = " | ".join(CATEGORIES)
        add(
            "",
            "| graph | P | scheme | CPU ms a rank | most | efficiency | MB sent | most by a rank | "
            f"{kinds} |",
            f"|---|---:|---|{'---:|' * (5 + len(CATEGORIES))}",
        )
        for path in paths:
            for line in by_work(path, options.hidden, options.epochs, ranks):
                add(line)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
