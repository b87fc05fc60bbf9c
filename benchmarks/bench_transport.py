"""Shared memory against sockets: calls, and epochs, of forked ranks of this machine.

    SPGNN_DATA=DIR python benchmarks/bench_transport.py --output transport.md

Each cell is a job of its own; the backends take turns, and a ratio is that of two jobs of the same
round: median, least and most. A call is timed from its begin to its end on the slowest rank, the
median of many. Epochs are the median of a training run.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch

from spgnn.comm import Communicator, connect
from spgnn.comm.traffic import RowCounts
from spgnn.config import TrainConfig
from spgnn.testing import run_ranks
from spgnn.train import train

ROOT = Path(__file__).parents[1]
BACKENDS = ("gloo", "shm")
SIZES = (1 << 12, 1 << 18, 1 << 22)
WIDTH = 64  # bytes of a row
SECONDS, LEAST = 0.3, 10


def calls(rank: int) -> dict[str, float]:
    """Seconds of all-to-alls of so many bytes sent by each rank, and of all-reduces."""
    comm, found = connect(), {}
    for nbytes in SIZES:
        share = max(1, nbytes // WIDTH // (comm.size - 1))
        rows = [share * (peer != comm.rank) for peer in range(comm.size)]
        counts = RowCounts(rows, rows, share)
        send = torch.ones(counts.sent, WIDTH // 4)
        received = torch.empty_like(send)
        exchange = lambda s=send, r=received, c=counts: comm.alltoallv(s, r, c).wait()  # noqa: E731
        found[f"all-to-all, {shown(nbytes)}"] = slowest(comm, exchange)
        buffer = torch.ones(nbytes // 4)
        found[f"all-reduce, {shown(nbytes)}"] = slowest(
            comm, lambda b=buffer: comm.all_reduce(b).wait()
        )
    return found


def slowest(comm: Communicator, body: Callable[[], object]) -> float:
    """The median on the slowest rank."""
    start = time.perf_counter()
    body()
    times = comm.agree(max(LEAST, min(1000, int(SECONDS / (time.perf_counter() - start)))), "max")
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        body()
        seconds.append(time.perf_counter() - start)
    worst = torch.tensor([median(seconds)], dtype=torch.float64)
    comm.all_reduce(worst, "max").wait()
    return float(worst)


def epoch(rank: int, graph: str, epochs: int) -> float:
    """The median seconds of a training epoch."""
    file = Path(os.environ.get("SPGNN_DATA", "."), f"{graph}.npz")
    dataset = str(file) if file.exists() else graph
    flags = {"random_features": 128, "random_classes": 16, "hidden": 64, "eval_every": 10**6}
    config = TrainConfig.of(dataset=dataset, epochs=epochs, **flags)
    report = train(config, connect())
    return float(report["epoch_seconds"]["median"])


def shown(nbytes: int) -> str:
    """In KiB or MiB."""
    return f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"


def main() -> None:
    """Print a table; write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    graphs = ("cora", "coauthor-physics", "reddit-sayit")
    parser.add_argument("--graphs", nargs="*", default=graphs)
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4, 8))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    lines = ["| P | what | gloo ms | shm ms | gloo / shm |", "|---:|---|---:|---:|---:|"]
    for ranks in options.ranks:
        found: dict[str, dict[str, list[float]]] = {}
        for number in range(options.rounds):
            for backend in BACKENDS[:: -1 if number % 2 else 1]:
                timed = run_ranks(calls, ranks, backend=backend)[0]
                for graph in options.graphs:
                    timed[f"epoch, {graph}"] = run_ranks(
                        epoch, ranks, graph, options.epochs, backend=backend
                    )[0]
                for what, seconds in timed.items():
                    found.setdefault(what, {}).setdefault(backend, []).append(seconds)
        for what, seconds in found.items():
            gloo, shm = (seconds[backend] for backend in BACKENDS)
            ratios = sorted(a / b for a, b in zip(gloo, shm, strict=True))
            lines.append(
                f"| {ranks} | {what} | {1e3 * median(gloo):.3f} | {1e3 * median(shm):.3f} | "
                f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
            )
            print(lines[-1], flush=True)
    done = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(done, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    lines += ["", f"{options.rounds} rounds; GCN of 3 layers, hidden width 64; commit "]
    lines[-1] += f"{commit.strip()}, torch {torch.__version__}, Python {platform.python_version()}."
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
