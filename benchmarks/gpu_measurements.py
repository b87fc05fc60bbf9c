"""What the GPU suite measures: the graphs, the products, and a clock for device work."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from unittest import mock

import gpu_cusparse
import gpu_graphs
import kernel_graphs
import torch
from gpu_report import CACHED, CACHED_BFLOAT16, DGL, KINDS, Spread, speedups
from torch import Tensor

from spgnn import CSR, kernels
from spgnn.addons.cuda import device
from spgnn.addons.cuda import operations as host
from spgnn.addons.cuda.tiling import TILE_ITEMS, tile_items
from spgnn.data import load_dataset
from spgnn.data.normalise import add_self_loops
from spgnn.kernels import torch_kernels

TOLERANCE = 1e-5  # of the sum of absolute terms, float32
FLUSH_BYTES = 2**28  # several times any L2
WARM_UP = 2
SHORT_SLEEP, LONG_SLEEP = 2**20, 2**26  # cycles: half a millisecond, and some 35 of them

Calls = dict[str, Callable[[], Any]]
Clock = Callable[[Callable[[], Any]], float]  # seconds of one call


class DeviceClock:
    """Time of a call on the device, from cold caches and without the host's launch latency.

    The device sleeps before each call, for so long that the host is done with all its launches
    when the call's first one starts; a call that itself waits for the device never is.
    """

    def __init__(self) -> None:
        self._flushed = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def __call__(self, call: Callable[[], Any]) -> float:
        """Seconds."""
        cycles = SHORT_SLEEP
        while True:
            self._flushed.zero_()
            torch.cuda._sleep(cycles)
            self._start.record()
            call()
            self._end.record()
            was_late = self._start.query()
            self._end.synchronize()
            if not was_late or cycles >= LONG_SLEEP:
                return self._start.elapsed_time(self._end) * 1e-3
            cycles *= 4


def measure(calls: Calls, clock: Clock, rounds: int) -> dict[str, Spread]:
    """Time all calls in turns, each round starting with another one."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names * WARM_UP:  # compiles, plans, fills allocators
        calls[name]()
    for k in range(rounds):
        first = k % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(clock(calls[name]))
    return {name: Spread.of(t) for name, t in times.items()}


def graph_names() -> list[str]:
    """Those drawn here, and the real ones that lie where SPGNN_DATA says."""
    known = kernel_graphs.names()
    return [*gpu_graphs.GRAPHS, *(name for name in known if name in kernel_graphs.REAL)]


def load_graph(name: str, where: str) -> CSR:
    """An undirected 0/1 adjacency with self-loops.

    ``name`` is one of `graph_names` or whatever `spgnn.data.load_dataset` takes.
    """
    if name in gpu_graphs.GRAPHS:
        return gpu_graphs.make(name, where)
    if name in graph_names():
        return CSR.from_scipy(kernel_graphs.load(name, width=0)).to(where)
    A = load_dataset(name).symmetrised().adjacency
    return add_self_loops(CSR.of(A.indptr, A.indices, A.shape)).to(where)


@dataclass(frozen=True, eq=False)
class Blocks:
    """One adjacency in all the forms that are compared."""

    plain: CSR
    weighted: CSR
    scaled: CSR
    torch: Tensor


def scaled_block(A: CSR) -> CSR:
    """The same, symmetrically normalised."""
    scale = A.indptr.diff().clamp(min=1).float().rsqrt()
    return A.with_scales(scale, scale)


def make_blocks(A: CSR) -> Blocks:
    """From a symmetric 0/1 block."""
    weighted = CSR.of(A.indptr, A.indices, A.shape, torch.ones(A.nnz, device=A.device))
    return Blocks(A, weighted, scaled_block(A), torch_kernels.as_torch(A, torch.float32))


def spmm_case(blocks: Blocks, columns: int, clock: Clock, rounds: int) -> dict[str, Any]:
    """One line of the table: every way to multiply, and whether the results are right."""
    A = blocks.plain
    rows, cols = A.shape
    X = torch.randn(cols, columns, device=A.device)
    narrow, total = X.bfloat16(), torch.zeros(rows, columns, device=A.device)
    cached = {
        f"{library} {algorithm}": product
        for library, operand in ((CACHED, X), (CACHED_BFLOAT16, narrow))
        for algorithm, product in gpu_cusparse.products(A, operand).items()
    }
    right = is_correct(blocks, X) and are_near(cached, blocks.torch, X)
    times = measure(
        {
            "torch": partial(torch.sparse.mm, blocks.torch, X),
            **cached,
            **dgl_product(A, X),
            "0/1": partial(kernels.spmm, A, X),
            "values": partial(kernels.spmm, blocks.weighted, X),
            "scaled": partial(kernels.spmm, blocks.scaled, X),
            "Y +=": partial(kernels.spmm, A, X, total, accumulate=True),
            "bfloat16": partial(kernels.spmm, A, narrow),
        },
        clock,
        rounds,
    )
    for product in cached.values():
        product.close()
    compulsory = {kind: (rows + cols) * columns * 4 + A.nnz * 4 + (rows + 1) * 8 for kind in KINDS}
    compulsory["values"] += A.nnz * 4
    compulsory["scaled"] += (rows + cols) * 4
    compulsory["Y +="] += rows * columns * 4
    compulsory["bfloat16"] -= (rows + cols) * columns * 2
    return {
        "columns": columns,
        "rows": rows,
        "nnz": A.nnz,
        "seconds": {name: asdict(t) for name, t in times.items()},
        "speedup": speedups(times),
        "compulsory_bytes": compulsory,
        "gathered_bytes": A.nnz * columns * 4,
        "correct": right,
    }


def dgl_product(A: CSR, X: Tensor) -> Calls:
    """DGL's, where it is installed and fits this torch."""
    try:
        dgl = importlib.import_module("dgl")
        graph = dgl.graph(("csc", (A.indptr, A.indices.long(), A.indices[:0].long())))
        return {DGL: partial(dgl.ops.copy_u_sum, graph.int().formats("csc"), X)}
    except (ImportError, OSError, RuntimeError):
        return {}


def is_correct(blocks: Blocks, X: Tensor) -> bool:
    """Our products against torch's, whole arrays, relative to the terms of each sum."""
    expected, magnitude = blocks.torch @ X, blocks.torch @ X.abs()
    scale = blocks.scaled.row_scale
    assert scale is not None
    spread = scale[:, None]
    scaled, scaled_magnitude = (spread * (blocks.torch @ (spread * Z)) for Z in (X, X.abs()))
    narrow = X.bfloat16()
    rounded = kernels.spmm(blocks.plain, narrow).float(), blocks.torch @ narrow.float()
    return all(
        (
            is_near(kernels.spmm(blocks.plain, X), expected, magnitude),
            is_near(kernels.spmm(blocks.weighted, X), expected, magnitude),
            is_near(kernels.spmm(blocks.scaled, X), scaled, scaled_magnitude),
            is_near(*rounded, magnitude, 2**-8),
        )
    )


def are_near(cached: dict[str, gpu_cusparse.Product], A: Tensor, X: Tensor) -> bool:
    """Whether cuSPARSE has been called rightly: the baseline computes the same product."""
    expected, magnitude = A @ X, A @ X.abs()
    tolerance = {torch.float32: TOLERANCE, torch.bfloat16: 2**-6}
    found = [product() for product in cached.values()]
    return all(is_near(Y.float(), expected, magnitude, tolerance[Y.dtype]) for Y in found)


def is_near(
    found: Tensor, expected: Tensor, magnitude: Tensor, tolerance: float = TOLERANCE
) -> bool:
    """Whole arrays, relative to the sum of absolute terms; what is no number is not near."""
    return bool(((found - expected).abs() <= tolerance * magnitude).all())


def tile_sweep(A: CSR, columns: int, clock: Clock, rounds: int) -> dict[str, Any]:
    """Median seconds for each size of tile, and the one that the rule in tiling.py takes."""
    X = torch.randn(A.shape[1], columns, device=A.device)
    calls: Calls = {}
    for items in TILE_ITEMS:
        block = CSR.of(A.indptr.clone(), A.indices, A.shape)  # a new tensor: a new tiling
        with mock.patch.object(host, "tile_items", return_value=items):
            kernels.spmm(block, X)
        calls[str(items)] = partial(kernels.spmm, block, X)
    times = measure(calls, clock, rounds)
    return {
        "columns": columns,
        "seconds": {name: t.median for name, t in times.items()},
        "rule": tile_items(A.nnz + A.shape[0], device.properties(A.device).multi_processor_count),
    }


def bandwidth(clock: Clock, rounds: int, where: str, elements: int) -> dict[str, float]:
    """Bytes per second of a device copy and of the stream triad, bytes read plus written."""
    a, b, c = (torch.randn(elements, device=where) for _ in range(3))
    calls: Calls = {"copy": partial(a.copy_, b), "triad": partial(torch.add, b, c, alpha=3, out=a)}
    times = measure(calls, clock, rounds)
    moved = {"copy": 8 * elements, "triad": 12 * elements}
    return {name: moved[name] / t.median for name, t in times.items()}
