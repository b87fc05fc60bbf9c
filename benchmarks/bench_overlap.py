"""Whether an exchange goes on while a rank multiplies.

Under any launcher:

    mpiexec -n 2 python benchmarks/bench_overlap.py --backend mpi
    torchrun --nproc-per-node 2 benchmarks/bench_overlap.py

Every rank sends each other rank the same number of rows and multiplies a random matrix that takes
about as long. In turns, medians over the repetitions, the slowest rank counts: the exchange alone,
the product alone, one after the other, and the product between begin and wait. The last column is
what remained to wait for after the product, as a share of the exchange alone: near 0 if the
exchange went on, near 1 if it stood still. (On one machine the bytes are moved by the processors
that multiply, so the sum of both times may be all there is to have.)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch

from spgnn import CSR, kernels
from spgnn.comm import Communicator, connect, guarded
from spgnn.comm.traffic import RowCounts

WIDTH = 64
ROW_BYTES = 4 * WIDTH


class Exchange:
    """Everyone sends everyone else `rows` rows."""

    def __init__(self, comm: Communicator, rows: int) -> None:
        each = [0 if peer == comm.rank else rows for peer in range(comm.size)]
        self._counts = RowCounts(each, each, rows)
        self._send = torch.ones(self._counts.sent, WIDTH)
        self._received = torch.empty_like(self._send)
        self._comm = comm

    def around(self, work: Callable[[], object] | None = None) -> float:
        """Seconds spent in wait, with some work between begin and wait."""
        pending = self._comm.alltoallv(self._send, self._received, self._counts)
        if work is not None:
            work()
        start = time.perf_counter()
        pending.wait()
        return time.perf_counter() - start


def matrix(nonzeros: int) -> CSR:
    rng = np.random.default_rng(0)
    n = 4096
    rows, columns = rng.integers(0, n, (2, nonzeros))
    return CSR.from_scipy(sp.csr_array((np.ones(nonzeros, np.float32), (rows, columns)), (n, n)))


def slowest(comm: Communicator, seconds: list[float]) -> float:
    """The median of the slowest rank, in milliseconds."""
    worst = torch.tensor([float(np.median(seconds))])
    comm.all_reduce(worst, "max").wait()
    return float(worst) * 1e3


def timed(comm: Communicator, body: Callable[[], object]) -> float:
    comm.barrier()
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def measure(comm: Communicator, rows: int, repetitions: int) -> None:
    exchange = Exchange(comm, rows)
    alone = slowest(comm, [timed(comm, exchange.around) for _ in range(5)])
    H = torch.ones(4096, WIDTH)
    trial = matrix(100_000)
    kernels.spmm(trial, H)
    product = slowest(comm, [timed(comm, lambda: kernels.spmm(trial, H)) for _ in range(5)])
    A = matrix(max(1000, int(100_000 * alone / product)))

    def multiply() -> object:
        return kernels.spmm(A, H)

    waits: list[float] = []
    ways: dict[str, Callable[[], object]] = {
        "exchange": exchange.around,
        "product": multiply,
        "in turn": lambda: (exchange.around(), multiply()),
        "overlapped": lambda: waits.append(exchange.around(multiply)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, body in ways.items():
            seconds[name].append(timed(comm, body))
    median = {name: slowest(comm, found) for name, found in seconds.items()}
    left = slowest(comm, waits) / median["exchange"]
    if comm.rank == 0:
        cells = [f"{ROW_BYTES * rows / 2**20:8.2f}", *(f"{ms:9.2f}" for ms in median.values())]
        print(f"| {' | '.join(cells)} | {left:10.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--repetitions", type=int, default=31)
    parser.add_argument("--mebibytes", type=float, nargs="+", default=[0.06, 0.5, 4, 32])
    options = parser.parse_args()
    torch.set_num_threads(1)
    comm = connect(options.backend)
    with guarded(comm):
        if comm.rank == 0:
            print(f"{type(comm).__name__}, {comm.size} ranks; milliseconds")
            print("| MiB a peer |  exchange |   product |   in turn | overlapped | left to wait |")
            print("|---|---|---|---|---|---|")
        for size in options.mebibytes:
            measure(comm, max(1, int(size * 2**20 / ROW_BYTES)), options.repetitions)


if __name__ == "__main__":
    main()
