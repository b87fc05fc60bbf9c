"""Is anything slower than it was? Twelve cells of this tree against another release, in turns.

    python benchmarks/speed_gate.py --against PYTHON [--rounds 7] [--tolerance 0.05]

PYTHON is the interpreter of an environment where the other release is installed. Each cell is
timed in a process of either, the two in turns, by the CPU seconds of one thread, so other work on
the machine matters little. A cell fails if the median of its ratios, and three quarters of them,
exceed the tolerance; the exit status is then 1. Graphs are made up: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

LEAST = 0.1  # seconds of a measurement


def cells() -> dict[str, Callable[[], object]]:
    """What is timed: kernels, epochs, a partition, a sampler."""
    import torch
    import torch.nn.functional as F

    import spgnn
    from spgnn.addons.batches import Draw, NeighborSampler
    from spgnn.data import load_dataset
    from spgnn.kernels import attention, quantise_rows, spmm
    from spgnn.partition import partition

    torch.set_num_threads(1)
    torch.manual_seed(0)
    adjacency = load_dataset("rmat-14-12").adjacency
    n = adjacency.shape[0]
    A = adjacency.with_values(torch.rand(adjacency.nnz))
    X = {width: torch.rand(n, width) for width in (16, 64)}
    scores = torch.rand(n, 8)
    rows, ids = torch.rand(n, 64, requires_grad=True), torch.arange(n)
    sampler = NeighborSampler(adjacency, [10, 10])

    def attend() -> None:
        attention(A.pattern, scores, scores, rows, slope=0.2).sum().backward()

    timed: dict[str, Callable[[], object]] = {
        "spmm, 16 columns": lambda: spmm(A, X[16]),
        "spmm, 64 columns": lambda: spmm(A, X[64]),
        "spmm, its transpose": lambda: spmm(A.T, X[64]),
        "maximum of neighbours": lambda: spmm(adjacency, X[64], reduce="max"),
        "attention and its gradient": attend,
        "rows in 4 bits": lambda: quantise_rows(X[64], 4, ids, key=7),
        "partition into 16": lambda: partition(adjacency, 16, preset="fast"),
        "sampled neighbours": lambda: sampler.sample(ids[:4096], Draw(seed=0)),
    }
    graph: Any = spgnn.distribute("sbm", partition="block")
    labels = graph.y[graph.train_mask]
    for kind in ("GCN", "GraphSAGE", "GIN", "GAT"):
        model = getattr(spgnn.nn, kind)(graph.num_features, 64, 2, graph.num_classes, dropout=0.5)
        optimizer = torch.optim.Adam(model.parameters())

        def epoch(model: Any = model, optimizer: Any = optimizer) -> None:
            loss = F.cross_entropy(model(graph.x, graph)[graph.train_mask], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        timed[f"epoch of {kind}"] = epoch
    return timed


def work() -> None:
    """Time what is asked for, a cell a line, until the input ends."""
    timed = cells()
    print("READY", *timed, sep="\t", flush=True)
    for line in sys.stdin:
        run, times = timed[line.strip()], 0
        run()
        began = time.process_time()
        while (spent := time.process_time() - began) < LEAST:
            run()
            times += 1
        print("SECONDS", spent / times, sep="\t", flush=True)


class Contestant:
    """A process of one release, which times cells when it is asked to."""

    def __init__(self, python: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [python, __file__, "--work"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.cells = self.answer("READY")

    def answer(self, word: str) -> list[str]:
        """The next line that begins with the word, without it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, *others = line.rstrip("\n").split("\t")
            if first == word:
                return others
        raise SystemExit("a process ended; its error is above")

    def seconds(self, cell: str) -> float:
        """CPU seconds of one run of the cell."""
        assert self.process.stdin is not None
        print(cell, file=self.process.stdin, flush=True)
        return float(self.answer("SECONDS")[0])


def main() -> int:
    """Compare, print a table and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return 0
    if options.against is None:
        parser.error("--against PYTHON: give the interpreter of the other release")
    ours, theirs = Contestant(sys.executable), Contestant(options.against)
    ratios: dict[str, list[float]] = {cell: [] for cell in ours.cells if cell in theirs.cells}
    for _ in range(options.rounds):
        for cell, so_far in ratios.items():
            before = theirs.seconds(cell)
            so_far.append(ours.seconds(cell) / before)
    print("| cell | seconds, ours over theirs | middle half | |\n|---|---:|---:|---|")
    slower = 0
    for cell, values in ratios.items():
        low, _, high = quantiles(values, n=4)
        fails = min(median(values), low) > 1 + options.tolerance
        slower += fails
        print(f"| {cell} | {median(values):.3f} | {low:.3f} to {high:.3f} | {'slower' * fails} |")
    if options.json is not None:
        Path(options.json).write_text(json.dumps(ratios))
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
