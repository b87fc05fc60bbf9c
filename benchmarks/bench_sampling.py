"""Samplers against DGL's, in turns.

    SPGNN_DATA=DIR python benchmarks/bench_sampling.py --dgl PYTHON [--graphs rmat sbm …]

Batches of 1024 seeds, the same for all. Every contestant has a process of its own, in the
environment whose interpreter is named, and they take turns, some batches each; the others wait. In
a round every contestant samples in every way once, so that all ways meet the same minutes.
GraphBolt draws and compacts hop by hop on its graph of int32 indices; ``dgl`` is
``dgl.dataloading.NeighborSampler.sample_blocks``, which is dgl.sampling and its blocks. No data
pipe is timed. Ours gives every vertex of the outer hops anew neighbours, as theirs do. A ratio is
that of edges per second in the same round, against the better of the two in that round; the time of
a weighted edge over that of a uniform one is that of our rates in the same round.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import torch

from spgnn.data import load_dataset
from spgnn.data.generators import block_model, rmat

GRAPHS = ("rmat", "sbm", "reddit-sayit", "uk-2007-05-100k")
FANOUTS = ("15,10,5", "10,10,10")
HOW = ("uniform", "weighted", "replace", "labor")


class Contestant:
    """A worker process that samples some batches when asked."""

    def __init__(self, kind: str, interpreter: str, path: Path, threads: int) -> None:
        worker = Path(__file__).with_name("sampling_worker.py")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [interpreter, str(worker), kind, str(path), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._answer()

    def sample(self, what: str, first: int, count: int) -> tuple[float, int, int]:
        """Seconds of so many batches, their edges and their vertices."""
        assert self._process.stdin
        print(what, first, count, file=self._process.stdin, flush=True)
        seconds, edges, nodes = self._answer()
        time.sleep(0.02)  # OpenMP threads spin for a while, on cores that others need
        return float(seconds), int(edges), int(nodes)

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
    """The graph, undirected, with random weights of its edges."""
    if name == "rmat":
        graph = rmat(20, 16, seed=1)
    elif name == "sbm":
        graph = block_model(2**20, 2**25, classes=256, homophily=0.8, features=0, seed=1)
    else:
        graph = load_dataset(str(Path(os.environ["SPGNN_DATA"]) / f"{name}.npz"))
    A = graph.symmetrised().adjacency
    path = folder / f"{name}.npz"
    weights = np.random.default_rng(0).random(A.nnz, dtype=np.float32) + np.float32(0.01)
    np.savez(path, indptr=A.indptr.numpy(), indices=A.indices.numpy(), weights=weights)
    return path


# Million edges per second of each contestant in each round.
Rates = dict[str, list[float]]


def measure(
    contestants: dict[str, Contestant], whats: list[str], rounds: int, batches: int
) -> tuple[dict[str, Rates], dict[str, float]]:
    """Rates of each of ``whats``, and how many edges a batch of ours has."""
    rates: dict[str, Rates] = {what: {name: [] for name in contestants} for what in whats}
    edges: dict[str, float] = {}
    for turn in range(-1, rounds):  # the first one warms up
        for what in whats:
            for name, contestant in contestants.items():
                seconds, drawn, _ = contestant.sample(what, (turn + 1) * batches, batches)
                if name == "spgnn":
                    edges[what] = drawn / batches
                if turn >= 0:
                    rates[what][name].append(drawn / seconds / 1e6)
    return rates, edges


def row(name: str, what: str, rates: Rates, edges: float, slower: list[float]) -> str:
    """A line of the table; ``slower`` are times of an edge over those of a uniform one."""
    cells = [name, what.replace(" ", " | "), f"{edges:.0f}"]
    cells += [f"{median(found):.1f}" for found in rates.values()]
    pairs = against_best(rates)
    cells.append(f"{median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})" if pairs else "")
    cells.append(f"{median(slower):.2f}" if slower else "")
    return f"| {' | '.join(cells)} |"


def against_best(rates: Rates) -> list[float]:
    """Our rate over the best other one, round by round."""
    others = [found for name, found in rates.items() if name != "spgnn"]
    return [
        a / max(rest) for a, rest in zip(rates["spgnn"], zip(*others, strict=True), strict=False)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dgl", metavar="PYTHON", help="of an environment with DGL 2.1.0")
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--fanouts", nargs="+", default=FANOUTS)
    parser.add_argument("--how", nargs="+", choices=HOW, default=["uniform", "weighted"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=20, help="of each contestant in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    kinds = {"spgnn": sys.executable}
    if options.dgl:
        kinds |= {"graphbolt": options.dgl, "dgl": options.dgl}
    names = " | ".join(f"{kind} M edges/s" for kind in kinds)
    lines = [
        f"| graph | fan-outs | draws | edges a batch | {names} | ours over the better "
        "| time over uniform |",
        "|---|---|---|---:|" + "---:|" * (len(kinds) + 2),
    ]
    print("\n".join(lines), flush=True)
    ratios: dict[str, list[float]] = {}
    slower: list[float] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for name in options.graphs:
            path = prepare(name, Path(folder))
            contestants = {
                kind: Contestant(kind, python, path, options.threads)
                for kind, python in kinds.items()
            }
            path.unlink()
            for fanouts in options.fanouts:
                whats = [f"{fanouts} {how}" for how in options.how]
                rates, edges = measure(contestants, whats, options.rounds, options.batches)
                plain = rates.get(f"{fanouts} uniform", {}).get("spgnn", [])
                for how, what in zip(options.how, whats, strict=True):
                    if pairs := against_best(rates[what]):
                        ratios.setdefault(how, []).append(median(pairs))
                    times: list[float] = []
                    if how == "weighted" and plain:
                        ours = rates[what]["spgnn"]
                        times = [a / b for a, b in zip(plain, ours, strict=True)]
                        slower.append(median(times))
                    lines.append(row(name, what, rates[what], edges[what], times))
                    print(lines[-1], flush=True)
            for contestant in contestants.values():
                contestant.close()
    if ratios:
        lines += ["", "| draws | geometric mean | least |", "|---|---:|---:|"]
    for how, found in ratios.items():
        lines.append(f"| {how} | {geometric_mean(found):.2f} | {min(found):.2f} |")
    if slower:
        lines += ["", f"Weighted takes at most {max(slower):.2f} of uniform's time an edge."]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines += [
        "",
        f"Commit {commit}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{options.threads} threads, medians of {options.rounds} rounds of {options.batches} "
        "batches.",
    ]
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
