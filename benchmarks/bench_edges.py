"""The generalised SpMM of edges against PyG's message passing: seconds and peak memory of a step.

    python benchmarks/bench_edges.py [--vertices 100000] [--degree 16] [--width 64] [--threads 2]

A step is forward and backward in features and numbers of edges. Both take turns; medians of paired
runs. Memory is the peak of the process above what operands and their gradients take, measured in
a process of its own for each.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from spgnn.kernels import edge_spmm
from spgnn.pattern import Pattern

CASES = [
    *((op, reduce, "full") for op in ("mul", "div", "add_relu") for reduce in ("sum", "max")),
    ("add", "sum", "full"),
    ("sub", "min", "full"),
    ("copy", "mean", "full"),
    ("mul", "sum", "number"),
    ("mul", "max", "number"),
]


class Theirs(MessagePassing):
    """op and reduction, message by message."""

    def __init__(self, op: str, reduce: str) -> None:
        super().__init__(aggr=reduce)
        self.op = op

    def forward(self, x: Tensor, edge_index: Tensor, e: Tensor) -> Tensor:
        out: Tensor = self.propagate(edge_index, x=x, e=e if e.dim() == 2 else e[:, None])
        return out

    def message(self, x_j: Tensor, e: Tensor) -> Tensor:
        """One row for each edge."""
        match self.op:
            case "mul":
                return x_j * e
            case "div":
                return x_j / e
            case "add":
                return x_j + e
            case "sub":
                return x_j - e
            case "copy":
                return e
        return torch.relu(x_j + e)


class Steps:
    """Operands, and a step of either."""

    def __init__(self, options: argparse.Namespace, op: str, reduce: str, shape: str) -> None:
        generator = torch.Generator().manual_seed(0)
        n, degree, width = options.vertices, options.degree, options.width
        self.op, self.reduce = op, reduce
        indptr = torch.arange(n + 1) * degree
        indices = torch.randint(n, (n * degree,), generator=generator, dtype=torch.int32)
        self.pattern = Pattern(indptr, indices, (n, n))
        _ = self.pattern.T, self.pattern.order
        rows = torch.arange(n).repeat_interleave(degree)
        self.edge_index = torch.stack((indices.long(), rows))
        self.x = torch.randn(n, width, generator=generator).requires_grad_()
        sizes = (width,) if shape == "full" else ()
        e = torch.randn(n * degree, *sizes, generator=generator)
        self.e = torch.where(e < 0, e - 1, e + 1).requires_grad_()  # far from 0, for div
        self.layer = Theirs(op, reduce)

    def run(self, which: str) -> list[Tensor | None]:
        """Forward and backward; gradients."""
        if which == "spgnn":
            x = None if self.op == "copy" else self.x
            out = edge_spmm(self.pattern, x, self.e, self.op, self.reduce)  # type: ignore[arg-type]
        else:
            out = self.layer(self.x, self.edge_index, self.e)
        out.sum().backward()
        gradients = [self.x.grad, self.e.grad]
        self.x.grad = self.e.grad = None
        return gradients

    @property
    def gradient_bytes(self) -> int:
        """Of both operands, which every implementation makes."""
        return (self.x.nbytes if self.op != "copy" else 0) + self.e.nbytes


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak_of(steps: Steps, which: str) -> int:
    """Most bytes that a step adds to what is there before it, less the gradients' own."""
    gc.collect()
    before, highest, ended = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not ended.is_set():
            highest = max(highest, resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    steps.run(which)
    ended.set()
    watcher.join()
    return max(highest - before - steps.gradient_bytes, 0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vertices", type=int, default=100_000)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", nargs=4, metavar=("OP", "REDUCE", "SHAPE", "WHICH"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        *case, which = options.peak
        print(peak_of(Steps(options, *case), which))
        return
    print("| op | reduce | values | PyG s | spgnn s | times | PyG MB | spgnn MB | of it |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        steps, seconds = Steps(options, *case), {"pyg": list[float](), "spgnn": list[float]()}
        for mine, right in zip(steps.run("spgnn"), steps.run("pyg"), strict=True):
            if mine is not None and right is not None:
                torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-3)
        for repeat in range(options.repeats):
            for which in ("pyg", "spgnn") if repeat % 2 else ("spgnn", "pyg"):
                begin = time.perf_counter()
                steps.run(which)
                seconds[which].append(time.perf_counter() - begin)
        del steps
        sizes = [f"--{key}={getattr(options, key)}" for key in ("vertices", "degree", "width")]
        peaks = {}
        for which in ("pyg", "spgnn"):
            command = [sys.executable, __file__, *sizes, f"--threads={options.threads}", "--peak"]
            found = subprocess.run([*command, *case, which], check=True, capture_output=True)
            peaks[which] = int(found.stdout) / 1e6
        pairs = zip(seconds["pyg"], seconds["spgnn"], strict=True)
        times = statistics.median(theirs / ours for theirs, ours in pairs)
        medians = [statistics.median(seconds[which]) for which in ("pyg", "spgnn")]
        memory = f"{peaks['pyg']:.0f} | {peaks['spgnn']:.0f}"
        share = f"{peaks['spgnn'] / max(peaks['pyg'], 1):.2f}"
        numbers = f"{medians[0]:.3f} | {medians[1]:.3f} | {times:.1f} | {memory} | {share}"
        print(f"| {' | '.join(case)} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
