"""SpMM on the CPU against torch.sparse, SciPy and DGL.

All contestants take turns, round after round, so that whatever else the machine does hits them
alike, and a call that was preempted is repeated. Medians over the rounds are compared and their
spread is kept. Against others, whose calls allocate their result, spgnn allocates its own too;
against itself it writes to `out`. What a second thread gains is taken between calls that follow
themselves, since in turns it would depend on what the contestant before leaves in the caches. Of
calls that follow themselves, as many are timed at once as a millisecond has.

The bars are products over the faster of torch.sparse and MKL with its structure kept (the wheel
``mkl``; see mkl_product.py), with and without values, on one thread and on all, in warm caches
(every call follows itself) and in cold ones (after other memory of twice the last cache). Results
are merged into the JSON file, so a long table can be measured in several runs, and shown as
Markdown.

    SPGNN_DATA=... python benchmarks/bench_kernels.py --json kernels.json --markdown kernels.md

DGL 2.1.0 needs an environment of its own (torch 2.2.1, numpy < 2): pass its interpreter with
``--dgl``. It runs in a second process that takes its turn like the others.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kernel_graphs
import kernel_report
import mkl_product
import numpy as np
import scipy
import scipy.sparse as sp
import torch
from rich.console import Console

from spgnn import _native
from spgnn.kernels import spmm
from spgnn.sparse import CSR

log = Console(stderr=True)
ANSWER = "answer: "  # of dgl_worker.py


class Contestant(NamedTuple):
    """What is timed, on how many threads of torch, and what runs untimed before it."""

    call: Callable[[], Any]
    threads: int
    before: Callable[[], Any] | None = None


class DglProcess:
    """DGL in its own environment, called over a pipe.

    DGL prints lines of its own where it is imported for the first time; answers have a prefix.
    """

    def __init__(self, interpreter: str, matrix: sp.csr_array, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "graph.npz"
        np.savez(path, indptr=matrix.indptr.astype(np.int64), indices=matrix.indices)
        command = [interpreter, str(Path(__file__).with_name("dgl_worker.py")), path, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask("ready")

    def seconds(self, operation: str, width: int) -> float:
        """Time of one product, measured inside DGL's process."""
        return float(self._ask(f"{operation} {width}"))

    def _ask(self, question: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        print(question, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER)
            log.print(f"DGL: {line.rstrip()}", markup=False)
        raise SystemExit("the DGL process ended; see its message above")

    def close(self) -> None:
        """End the process and remove its copy of the graph."""
        self._process.communicate()
        self._folder.cleanup()


def contestants(
    matrix: sp.csr_array, width: int, threads: int, quick: bool
) -> dict[str, Contestant]:
    """What is timed for one graph and one width, each a call without arguments."""
    n, cols = matrix.shape
    A = CSR.from_scipy(matrix)
    normalised = A.with_scales(torch.rand(n), torch.rand(cols))
    weighted = CSR.of(A.indptr, A.indices, A.shape, torch.rand(A.nnz))
    X, Y = torch.randn(cols, width), torch.zeros(n, width)
    X16, Y16 = X.bfloat16(), Y.bfloat16()

    def product() -> None:
        spmm(A, X, out=Y)

    calls: dict[str, Callable[[], Any]] = {
        "spgnn": product,
        "spgnn allocating": lambda: spmm(A, X),
        "spgnn normalised": lambda: spmm(normalised, X, out=Y),
        "spgnn values allocating": lambda: spmm(weighted, X),
        "spgnn accumulate": lambda: spmm(A, X, out=Y, accumulate=True),
        "spgnn bfloat16": lambda: spmm(A, X16, out=Y16),
    }
    if not quick:
        calls |= others(matrix, A, X)
    entrants = {name: Contestant(call, threads) for name, call in calls.items()}
    entrants["spgnn again, 1 thread"] = Contestant(product, 1, product)
    entrants["spgnn again"] = Contestant(product, threads, product)
    return entrants


def against_the_best(matrix: sp.csr_array, width: int, threads: int) -> dict[str, Contestant]:
    """The contestants of the bars, measured apart: clearing caches would slow whoever is next."""
    A = CSR.from_scipy(matrix)
    X, Y = torch.randn(A.shape[1], width), torch.zeros(A.shape[0], width)
    weighted = CSR.of(A.indptr, A.indices, A.shape, torch.rand(A.nnz))
    entrants = {}
    for count in sorted({1, threads}):
        on = kernel_report.on_threads(count)
        calls = best_calls("", A, X, Y, count) | best_calls(" values", weighted, X, Y, count)
        for name, call in calls.items():
            entrants[f"{name} warm{on}"] = Contestant(call, count, call)
            entrants[f"{name} cold{on}"] = Contestant(call, count, clear_caches)
    return entrants


def best_calls(
    name: str, A: CSR, X: torch.Tensor, Y: torch.Tensor, threads: int
) -> dict[str, Callable[[], Any]]:
    """The product, and that of the others by the same matrix."""
    values = torch.ones(A.nnz) if A.values is None else A.values
    arrays = A.indptr.int(), A.indices, values
    S = torch.sparse_csr_tensor(*arrays, A.shape, check_invariants=False)
    calls: dict[str, Callable[[], Any]] = {
        f"spgnn{name}": lambda: spmm(A, X, out=Y),
        f"torch.sparse{name}": lambda: torch.sparse.mm(S, X),
    }
    mkl = mkl_product.library()
    if mkl:
        mkl.MKL_Set_Num_Threads(threads)  # of those it sees here it keeps the number
        M = mkl_product.MklMatrix(mkl, arrays, A.shape, X.shape[1])
        calls[f"mkl{name}"] = lambda: mkl_call(M, threads, X, Y)
    return calls


def mkl_call(M: mkl_product.MklMatrix, threads: int, X: torch.Tensor, Y: torch.Tensor) -> None:
    M.set_threads(threads)
    M.product(X, Y)


@functools.cache
def other_memory() -> torch.Tensor:
    """Twice as large as the last cache."""
    known = "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names
    nbytes = os.sysconf("SC_LEVEL3_CACHE_SIZE") if known else 0
    return torch.empty(2 * max(nbytes, 2**25), dtype=torch.uint8)


def clear_caches() -> None:
    """Fill them with other memory, on every core that takes part."""
    other_memory().fill_(1)


def others(matrix: sp.csr_array, A: CSR, X: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """The same product by libraries that can be called from here."""
    calls: dict[str, Callable[[], Any]] = {}
    ones = torch.ones(A.nnz)
    for bits, indptr, indices in (
        (32, A.indptr.int(), A.indices),
        (64, A.indptr, A.indices.long()),
    ):
        M = torch.sparse_csr_tensor(indptr, indices, ones, A.shape, check_invariants=False)
        calls[f"torch.sparse int{bits}"] = lambda M=M: torch.sparse.mm(M, X)
    if X.shape[1] <= 64:
        S, X_numpy = matrix.astype(np.float32), X.numpy()
        calls["scipy"] = lambda: S @ X_numpy
    return calls


def undisturbed(contestant: Contestant) -> float:
    """Seconds of a call during which the system took no core away, if a few tries find one.

    Two threads wait for each other, so a single preemption costs a call a whole time slice. The
    kernel counts preemptions per process (involuntary context switches).
    """
    best = np.inf
    torch.set_num_threads(contestant.threads)
    calls = 1
    if contestant.before is contestant.call:
        started = time.perf_counter()
        contestant.call()
        calls += int(1e-3 / (time.perf_counter() - started))
    for _ in range(6):
        if contestant.before:
            contestant.before()
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        started = time.perf_counter()
        for _ in range(calls):
            contestant.call()
        seconds = (time.perf_counter() - started) / calls
        best = min(best, seconds)
        if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == switches:
            return seconds
        if seconds > 0.5:
            break
    return best


def measure(
    entrants: dict[str, Contestant], rounds: int, dgl: DglProcess | None, width: int
) -> dict[str, Any]:
    """Median, smallest and largest seconds of each, taken in turns after one warm-up."""
    samples: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for name, contestant in entrants.items():
            samples.setdefault(name, []).append(undisturbed(contestant))
        for operation in ("copy_u_sum", "u_mul_e_sum") if dgl else ():
            assert dgl
            samples.setdefault(f"dgl {operation}", []).append(dgl.seconds(operation, width))
            time.sleep(0.02)  # its threads spin for a while, on cores that others need
        log.print(f"  f = {width}: round {turn} of {rounds}", end="\r")
    return {
        name: {"median": float(np.median(s[1:])), "min": min(s[1:]), "max": max(s[1:])}
        for name, s in samples.items()
    }


def triad_bandwidth() -> float:
    """Bytes per second of y += 3 x on 256 MiB arrays, best of ten."""
    count = 2**26
    x, y = torch.ones(count), torch.ones(count)
    seconds = []
    for _ in range(10):
        started = time.perf_counter()
        y.add_(x, alpha=3)
        seconds.append(time.perf_counter() - started)
    return 3 * 4 * count / min(seconds)


def machine(threads: int) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = [line.split(":")[1].strip() for line in cpuinfo.splitlines() if "model name" in line]
    return {
        "cpu": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "instruction_set": _native.instruction_set(),
        "triad_bytes_per_second": triad_bandwidth(),
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "scipy": scipy.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=[*kernel_graphs.names()])
    parser.add_argument("--widths", nargs="+", type=int, default=[16, 64, 128, 300])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dgl", help="Python interpreter of an environment with DGL 2.1.0")
    parser.add_argument("--quick", action="store_true", help="spgnn only")
    parser.add_argument("--json", type=Path, default=Path("kernels.json"))
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report = json.loads(arguments.json.read_text()) if arguments.json.exists() else {"graphs": {}}
    report["machine"] = machine(arguments.threads)
    for name in arguments.graphs:
        matrix = kernel_graphs.load(name, arguments.widths[0])
        log.print(f"{name}: {matrix.shape[0]} vertices, {matrix.nnz} nonzeros")
        entry = report["graphs"].setdefault(name, {"widths": {}})
        entry.update(vertices=matrix.shape[0], nonzeros=matrix.nnz)
        square = matrix.shape[0] == matrix.shape[1]
        dgl = None
        if arguments.dgl and square:
            dgl = DglProcess(arguments.dgl, matrix, arguments.threads)
        for width in arguments.widths:
            if name in kernel_graphs.HALF_ROWS:
                matrix = kernel_graphs.load(name, width)
            entrants = contestants(matrix, width, arguments.threads, arguments.quick)
            case = measure(entrants, arguments.rounds, dgl, width)
            if not arguments.quick:
                best = against_the_best(matrix, width, arguments.threads)
                case |= measure(best, arguments.rounds, None, width)
            entry["widths"][str(width)] = case
            kernel_report.write(arguments.json, json.dumps(report, indent=1))
            log.print(f"  {width} columns: measured, saved to {arguments.json}")
        if dgl:
            dgl.close()
    table = kernel_report.markdown(report)
    print(table)
    if arguments.markdown:
        kernel_report.write(arguments.markdown, table)


if __name__ == "__main__":
    main()
