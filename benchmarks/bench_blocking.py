"""SpMM with blocks of source vertices, and other orders of its loops: DistGNN's ablation.

    python benchmarks/bench_blocking.py [--graphs G …] [--width F] [--threads N] [--plot FILE]

Z = A X is made in the same C++ in all rows of the table, which differ in the order of the work:

rows        rows in equal numbers for each thread, every row as it is (the baseline)
tasks       tasks of equal work that threads take as they are free: what spgnn does
blocks of B bytes
            columns of A in blocks, so that a block of X fits into B bytes; Z is added up
panels of F columns of X in panels, so that all rows of a panel are near each other

Rounds alternate; the table has medians of seconds and of the ratio to *tasks* in the same round.
A graph ``random-N-D`` has N vertices and D nonzeros a row, reddit's shape; others are data sets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.data import load_dataset
from spgnn.kernels import spmm
from spgnn.sparse import CSR

GRAPHS = ["random-20000-500", "random-100000-100", "amazon-computers"]
BLOCKS = (1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 22)
PANELS = (16, 32, 64)
Way = Callable[[Tensor, Tensor], object]


def matrix_of(name: str) -> sp.csr_array:
    """A random matrix of one shape, or the adjacency of a data set."""
    kind, _, shape = name.partition("-")
    if kind != "random":
        return load_dataset(name).adjacency.to_scipy().astype(np.float32)
    n, degree = map(int, shape.split("-"))
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, n, (n, degree), dtype=np.int32), axis=1)
    indptr = np.arange(n + 1, dtype=np.int64) * degree
    return sp.csr_array((np.ones(n * degree, np.float32), columns.ravel(), indptr), (n, n))


def in_blocks(A: sp.csr_array, rows: int) -> Way:
    """Blocks of columns, added up in their order."""
    by_column = A.tocsc()
    pieces = []
    for begin in range(0, A.shape[1], rows):
        piece = by_column[:, begin : begin + rows].tocsr()
        piece.sort_indices()
        pieces.append((CSR.from_scipy(piece), slice(begin, begin + rows)))

    def multiply(X: Tensor, out: Tensor) -> None:
        for number, (block, columns) in enumerate(pieces):
            spmm(block, X[columns], out=out, accumulate=number > 0)

    return multiply


def by_rows(A: sp.csr_array, threads: int) -> Way:
    """As many rows for each thread."""
    cuts = np.arange(threads + 1) * A.shape[0] // threads
    pieces = [(CSR.from_scipy(A[a:b]), slice(a, b)) for a, b in pairwise(cuts)]
    pool = ThreadPoolExecutor(threads)

    def multiply(X: Tensor, out: Tensor) -> None:
        torch.set_num_threads(1)
        list(pool.map(lambda piece: spmm(piece[0], X, out=out[piece[1]]), pieces))
        torch.set_num_threads(threads)

    return multiply


def in_panels(A: CSR, width: int) -> Way:
    """Panels of columns of X, one after the other."""

    def multiply(X: Tensor, out: Tensor) -> None:
        for begin in range(0, X.shape[1], width):
            spmm(A, X[:, begin : begin + width], out=out[:, begin : begin + width])

    return multiply


def measured(A: sp.csr_array, width: int, threads: int, rounds: int) -> dict[str, np.ndarray]:
    """Seconds of each way in each round."""
    whole, row_bytes = CSR.from_scipy(A), 4 * width
    ways: dict[str, Way] = {
        "rows": by_rows(A, threads),
        "tasks": lambda X, out: spmm(whole, X, out=out),
    }
    for nbytes in BLOCKS:
        if 2 * nbytes <= A.shape[1] * row_bytes:
            ways[f"blocks of {nbytes >> 10} KiB"] = in_blocks(A, nbytes // row_bytes)
    for panel in PANELS:
        if panel < width:
            ways[f"panels of {panel}"] = in_panels(whole, panel)
    X, out = torch.randn(A.shape[1], width), torch.empty(A.shape[0], width)
    expected = spmm(whole, X)
    seconds = dict[str, list[float]]()
    for _ in range(rounds + 1):
        for name, multiply in ways.items():
            out.zero_()
            begin = perf_counter()
            multiply(X, out)
            seconds.setdefault(name, []).append(perf_counter() - begin)
            torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3)
    return {name: np.array(each[1:]) for name, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw seconds over the ways")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for name in options.graphs:
        print(f"\n{name}, {options.width} columns, {options.threads} threads", flush=True)
        results[name] = measured(matrix_of(name), options.width, options.threads, options.rounds)
        print("| order | seconds | over tasks |\n|---|---|---|")
        for way, seconds in results[name].items():
            ratio = np.median(seconds / results[name]["tasks"])
            print(f"| {way} | {np.median(seconds):.4f} | {ratio:.2f} |", flush=True)
    if options.plot:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3 * len(results)), layout="constrained")
        for name, axis in zip(results, figure.subplots(len(results), squeeze=False), strict=True):
            ways = results[name]
            axis[0].barh(list(ways), [np.median(seconds) for seconds in ways.values()])
            axis[0].set(title=name, xlabel="seconds")
            axis[0].invert_yaxis()
        figure.savefig(options.plot)


if __name__ == "__main__":
    main()
