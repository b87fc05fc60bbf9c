"""A training epoch in bfloat16 against the same in float32, in turns, in one process.

    SPGNN_DATA=DIR python benchmarks/bench_precision.py [--graphs NAME …] [--output FILE.md]

Three layers on 128 dense random features, full graph, Adam. A ratio is that
of two epochs of the same round.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from bench_epoch import prepare

from spgnn.comm import Communicator, connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.memory import keep_freed
from spgnn.train import Trainer
from spgnn.train.vertices import NodeClassification

WARM_UP = 3


def trainer_of(path: Path, model: str, hidden: int, dtype: str, comm: Communicator) -> Trainer:
    config = TrainConfig.of(dataset=path, model=model, hidden=hidden, dtype=dtype, prune=False)
    task = NodeClassification(config, training_graph(config, comm))
    return Trainer(task, options=config.training)


def measure(trainers: dict[str, Trainer], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each in each round."""
    taken: dict[str, list[float]] = {dtype: [] for dtype in trainers}
    for turn in range(WARM_UP + rounds):
        for dtype, trainer in trainers.items():
            started = time.perf_counter()
            assert float(trainer.train_epoch(turn)) > 0
            if turn >= WARM_UP:
                taken[dtype].append(1e3 * (time.perf_counter() - started))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", nargs="+", default=["coauthor-physics", "reddit-sayit"])
    parser.add_argument("--models", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    comm = connect()
    keep_freed()
    lines = [
        "| graph | model | hidden | float32 ms | bfloat16 ms | bfloat16 / float32 |",
        "|---|---|---:|---:|---:|---:|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name in options.graphs:
            path = prepare(name, Path(folder))
            for model in options.models:
                for hidden in options.hidden:
                    taken = measure(
                        {
                            dtype: trainer_of(path, model, hidden, dtype, comm)
                            for dtype in ("float32", "bfloat16")
                        },
                        options.rounds,
                    )
                    wide, narrow = taken["float32"], taken["bfloat16"]
                    pairs = [b / a for a, b in zip(wide, narrow, strict=True)]
                    lines.append(
                        f"| {name} | {model} | {hidden} | {median(wide):.1f} | "
                        f"{median(narrow):.1f} | {median(pairs):.2f} "
                        f"({min(pairs):.2f} to {max(pairs):.2f}) |"
                    )
                    print(lines[-1], flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines += [
        "",
        f"Commit {commit}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{options.threads} threads, medians of {options.rounds} rounds.",
    ]
    print("\n".join(lines[-2:]))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
