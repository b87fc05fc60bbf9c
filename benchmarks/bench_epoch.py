"""A training epoch on one process against DGL and PyG, in turns.

    SPGNN_DATA=DIR python benchmarks/bench_epoch.py --dgl PYTHON --pyg PYTHON [--model gat]
    SPGNN_DATA=DIR python benchmarks/bench_epoch.py --threads 1 2

Three layers on dense random features, full graph, Adam; gat has eight heads, whose widths are an
eighth of the hidden one, and gin has two linear layers in each of its own. Every contestant has a
process of its own, in the environment whose interpreter is named, and they take turns epoch by
epoch; the others wait for their next request. A ratio is that of two epochs in the same round.
DGL 2.1.0 and PyG with a CSR tensor get the normalised graph with self-loops ready-made, as their
users would. With several numbers of threads, spgnn on each of them is compared with spgnn on the
last. Of the eight graphs, four are files and four are made anew.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import torch
from partition_graphs import geometric, grid

from spgnn.data import Graph, from_scipy, load_dataset

MADE: dict[str, Callable[[], Graph]] = {  # R-MAT graphs and meshes of space
    "rmat-14-16": lambda: load_dataset("rmat-14-16"),
    "rmat-16-16": lambda: load_dataset("rmat-16-16"),
    "grid-3d": lambda: from_scipy(grid(60, 3)),
    "geometric-3d": lambda: from_scipy(geometric(np.random.default_rng(0), 100_000, 15, 3)),
}
GRAPHS = ("coauthor-physics", "reddit-sayit", "wave", "uk-2007-05-100k", *MADE)
FEATURES, CLASSES = 128, 16
WARM_UP = 5


class Contestant:
    """A worker process that trains one epoch when asked."""

    def __init__(self, kind: str, interpreter: str, *given: object) -> None:
        worker = Path(__file__).with_name("epoch_worker.py")
        self._process = subprocess.Popen(
            [interpreter, str(worker), kind, *map(str, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def epoch(self) -> tuple[float, float, int, int]:
        """Seconds, loss, page faults, and bytes of memory that training has taken so far."""
        assert self._process.stdin
        print("epoch", file=self._process.stdin, flush=True)
        seconds, loss, faults, grown = self._answer()
        time.sleep(0.02)  # OpenMP threads spin for a while, on cores that others need
        return float(seconds), float(loss), int(faults), int(grown)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> list[str]:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("RESULT"):
                return line.split()[1:]
        raise SystemExit("a contestant ended; see its message above")


def prepare(name: str, folder: Path) -> Path:
    """The graph, undirected, with random features, classes and training vertices."""
    if name in MADE:
        graph = MADE[name]().symmetrised()
    else:
        graph = load_dataset(str(Path(os.environ["SPGNN_DATA"]) / f"{name}.npz")).symmetrised()
    rng = np.random.default_rng(0)
    n, A = graph.vertices, graph.adjacency
    path = folder / f"{name}.npz"
    np.savez(
        path,
        indptr=A.indptr.numpy(),
        indices=A.indices.numpy(),
        shape=np.array(A.shape),
        directed=np.array(False),
        x=rng.standard_normal((n, FEATURES)).astype(np.float32),
        y=rng.integers(0, CLASSES, n),
        train_mask=rng.random(n) < 0.6,
    )
    return path


def measure(
    contestants: dict[str, Contestant], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[int]], dict[str, int]]:
    """Seconds and page faults of each contestant in each round; the most memory of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    faults: dict[str, list[int]] = {name: [] for name in contestants}
    memory: dict[str, int] = {}
    for turn in range(WARM_UP + rounds):
        for name, contestant in contestants.items():
            taken, loss, faulted, memory[name] = contestant.epoch()
            assert np.isfinite(loss)
            if turn >= WARM_UP:
                seconds[name].append(taken)
                faults[name].append(faulted)
    return seconds, faults, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dgl", metavar="PYTHON", help="of an environment with DGL 2.1.0")
    parser.add_argument("--pyg", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--model", choices=("gcn", "sage", "gin", "gat"), default="gcn")
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--hidden", nargs="+", type=int, default=[16, 128])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument(
        "--cpu", action="store_true", help="seconds of all threads, for a machine that is shared"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    *fewer, threads = options.threads
    others = {f"threads {n}": ("spgnn", sys.executable, n) for n in fewer}
    if not fewer:
        peers = {"dgl": options.dgl, "pyg": options.pyg}
        others = {name: (name, python, threads) for name, python in peers.items() if python}
    lines = [
        "| graph | hidden | spgnn ms | page faults | MiB | "
        + " | ".join(f"{n} ms | {n} / spgnn | {n} MiB" for n in others)
        + " |",
        "|---|---:|---:|---:|---:|" + "---:|---:|---:|" * len(others),
    ]
    ratios: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.graphs:
            path = prepare(name, Path(folder))
            for hidden in options.hidden:
                cpu = ["cpu"] * options.cpu
                contestants = {
                    title: Contestant(kind, python, options.model, path, hidden, count, *cpu)
                    for title, (kind, python, count) in {
                        "spgnn": ("spgnn", sys.executable, threads),
                        **others,
                    }.items()
                }
                seconds, faults, memory = measure(contestants, options.rounds)
                for contestant in contestants.values():
                    contestant.close()
                row = f"| {name} | {hidden} | {median(seconds['spgnn']) * 1e3:.1f} |"
                row += f" {median(faults['spgnn']):.0f} | {memory['spgnn'] / 2**20:.0f} |"
                for other in others:
                    pairs = [b / a for a, b in zip(seconds["spgnn"], seconds[other], strict=True)]
                    ratios.setdefault((other, hidden), []).append(median(pairs))
                    row += f" {median(seconds[other]) * 1e3:.1f} | {median(pairs):.2f} "
                    row += f"({min(pairs):.2f} to {max(pairs):.2f}) |"
                    row += f" {memory[other] / 2**20:.0f} |"
                lines.append(row)
                print(row, flush=True)
    lines += [
        "",
        "| against | hidden | geometric mean | median | least |",
        "|---|---:|---:|---:|---:|",
    ]
    for (other, hidden), found in ratios.items():
        summary = geometric_mean(found), median(found), min(found)
        lines.append(f"| {other} | {hidden} | " + " | ".join(f"{s:.2f}" for s in summary) + " |")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines += [
        "",
        f"Model {options.model}. Memory is the peak beyond what was held before the first epoch.",
        f"Commit {commit}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{threads} threads, medians of {options.rounds} rounds"
        + (", CPU seconds." if options.cpu else "."),
    ]
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
