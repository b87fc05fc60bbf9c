"""Measure a machine, alone or as the ranks of a job: rates of kernels, links, and fixed costs."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.addons.plan.counts import Product
from spgnn.addons.plan.epoch import trace
from spgnn.attention import EdgeBlock, Scores, Whole
from spgnn.autograd import product
from spgnn.comm import Communicator, RowCounts
from spgnn.config import TrainConfig
from spgnn.data import Graph, scatter
from spgnn.frontend import training_graph
from spgnn.kernels import (
    AttentionDropout,
    cross_entropy_sum,
    finish,
    head_products,
    times_transposed,
    transposed_times,
)
from spgnn.machine import (
    Conditions,
    EdgeRates,
    Edges,
    Gather,
    Gemm,
    Level,
    Levels,
    Link,
    Machine,
    Overhead,
    Spmm,
    Streams,
)
from spgnn.memory import freed_is_kept, memory_limit, processors
from spgnn.pattern import Pattern
from spgnn.sparse import CSR
from spgnn.train import Trainer, task_of

# Every figure is repeated for about so long, but so often at least and at most.
SECONDS, _LEAST, _MOST = 0.04, 5, 200
_MIB = 1 << 20
# Of products, gathers and dense products. Operands of 16 MiB come from memory.
_WIDTHS, _OPERAND_BYTES, _ROWS = (4, 16, 64, 256), (1 << 18, 1 << 21, 1 << 25), 1 << 12
# Of attention and of the largest neighbours; rows at least, or calls would be all that is measured.
EDGES = ("gat", "gatv2", "largest")
_EDGE_WIDTHS, _EDGE_OPERAND_BYTES, _EDGE_ROWS = (8, 64, 256), (1 << 18, 1 << 21), 1 << 11
_HEADS, _DROPPED = 8, 0.5
# Bytes of a short and of a long message.
_SMALL, _LARGE = 1 << 6, _MIB
# What one rank alone is given: it moves nothing, and nobody asks.
_UNMEASURED = Link(1e-5, 1e-5, 1e9)
# A job that has hardly any data: its model; vertices of each rank, enough for the kernels that real
# ones are given; and few, where fixed costs are measured.
_MODEL = TrainConfig.of(layers=3, hidden=16, dropout=0.5, input_dropout=False)
_FEATURES, _CLASSES, _JOB_ROWS, _FEW_ROWS = 64, 16, 2048, 32

Bodies = Callable[[CSR, int, int, float], Sequence[Callable[[], object]]]
"""Work on a matrix, with rows of some width, heads and a rate of dropout: forward, backward."""


def measure(
    comm: Communicator,
    name: str | None = None,
    *,
    seconds: float = SECONDS,
    edges: Collection[str] = (),
) -> Machine:
    """Measure kernels and links, on all ranks at the same time; the same on all. Collective."""
    clock, device = Clock(comm, seconds), comm.device
    runtime = clock.median(float(runtime_bytes(comm)))
    hashed = hashlib.blake2b(socket.gethostname().encode(), digest_size=7).digest()
    nodes = [int(node) for node in clock.of_all(torch.tensor([int.from_bytes(hashed, "big")]))]
    here = max(nodes.count(node) for node in set(nodes))
    with nullcontext() if comm.job.is_guest else freed_is_kept():
        tables = _spmm(clock), _gather(clock), _gemm(clock), _streams(clock)
        inside, between = groups_by_node(nodes)
        if len(inside) == 1:
            levels = Levels(_level(clock))
        else:
            groups = [Clock(comm.subgroup(each), seconds) for each in (inside, between)]
            levels = Levels(*map(_level, groups))
        overhead, overlap = _overhead(clock, levels.inside), _overlap(clock)
        rates = {kind: _edges(clock, kind) for kind in EDGES if kind in edges}
    cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if cuda else memory_limit()
    return Machine(
        name or socket.gethostname() or platform.machine(),
        torch.cuda.device_count() if cuda else processors(),
        here,
        float(memory if cuda else memory // here),
        Conditions(here, 1 if cuda else torch.get_num_threads()),
        levels,
        overlap,
        *tables,
        replace(overhead, memory=runtime),
        f"measured on {comm.size} ranks, {device.type}, torch {torch.__version__}",
        edges=Edges(**rates),
    )


class Clock:
    """Times what all ranks of a communicator do at the same time."""

    def __init__(self, comm: Communicator, seconds: float = SECONDS) -> None:
        self.comm, self.device, self.budget = comm, comm.device, seconds

    def __call__(self, body: Callable[[], object]) -> float:
        """Seconds of `body`: the mean of repetitions, then the median over ranks. Collective."""

        def seconds(times: int) -> float:
            start = perf_counter()
            for _ in range(times):
                body()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return (perf_counter() - start) / times

        body()
        # As often on every rank, or collectives would not meet.
        slowest = self.comm.agree(int(seconds(1) * 1e9)) / 1e9
        times = round(min(_MOST, max(_LEAST, self.budget / max(slowest, 1e-9))))
        return self.median(seconds(times))

    def median(self, value: float) -> float:
        """The median over ranks. Collective."""
        return float(self.of_all(torch.tensor([value], dtype=torch.float64)).median())

    def of_all(self, value: Tensor) -> Tensor:
        """A number of every rank. Collective."""
        every = value.new_empty(self.comm.size)
        self.comm.all_gather(value, every, [1] * self.comm.size)
        return every

    def ones(self, rows: int, width: int) -> Tensor:
        """A dense matrix."""
        return torch.ones(rows, width, device=self.device)


def groups_by_node(nodes: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Ranks of the same node; and the first ranks of all nodes, the second ones, and so on."""
    every = {node: [rank for rank, one in enumerate(nodes) if one == node] for node in nodes}
    inside = list(every.values())
    places = range(max(map(len, inside)))
    return inside, [[ranks[n] for ranks in inside if n < len(ranks)] for n in places]


def _level(clock: Clock) -> Level:
    """Both collectives, on every group at the same time. A group of one rank measures nothing."""
    comm, peers = clock.comm, clock.comm.size - 1
    if not peers:
        return Level(_UNMEASURED, _UNMEASURED)

    def exchange(nbytes: int, clock: Clock = clock) -> float:
        send, received, counts = _messages(clock, nbytes // 64)
        return clock(lambda: clock.comm.alltoallv(send, received, counts).wait())

    def reduce(nbytes: int) -> float:
        buffer = torch.ones(nbytes // 4, device=clock.device)
        return clock(lambda: comm.all_reduce(buffer).wait())

    def bandwidth(small: float, large: float, nbytes: int) -> float:
        # A long message takes longer than a short one, whatever a noisy machine says.
        return nbytes / max(large - small, 0.1 * large)

    share = _LARGE // peers // 64 * 64
    small, large = exchange(_SMALL), exchange(share)
    # Two groups of unlike size tell what a message costs from what a call costs; of two ranks
    # nobody knows which it is.
    pairs = [list(range(first, min(first + 2, comm.size))) for first in range(0, comm.size, 2)]
    message = small / 2
    if peers > 1:
        of_two = exchange(_SMALL, Clock(comm.subgroup(pairs), clock.budget))
        message = max(0.0, small - of_two) / (peers - 1)
    call, rate = max(0.0, small - peers * message), bandwidth(small, large, peers * share)
    steps, moved = 2 * peers.bit_length(), 2 * peers * _LARGE // comm.size
    least, most = reduce(_SMALL), reduce(_LARGE)
    reducing = Link(0.0, least / steps, bandwidth(least, most, moved))
    return Level(Link(call, message, rate), reducing)


def _messages(clock: Clock, rows: int) -> tuple[Tensor, Tensor, RowCounts]:
    """Rows of 64 bytes, so many for everyone else, and a buffer for those that arrive."""
    size, me = clock.comm.size, clock.comm.rank
    each = [rows * (rank != me) for rank in range(size)]
    send = clock.ones(sum(each), 16)
    return send, torch.empty_like(send), RowCounts(each, each, rows)


def _overlap(clock: Clock) -> float:
    """Share of the shorter of an exchange and a product that is hidden when both run at once."""
    comm = clock.comm
    if comm.size == 1:
        return 0.0
    send, received, counts = _messages(clock, 2 * _LARGE // comm.size // 64)
    A = random_matrix(1 << 15, 32).to(clock.device)
    H, out = clock.ones(A.shape[1], 16), clock.ones(A.shape[0], 16)

    def multiply(times: int) -> None:
        for _ in range(times):
            kernels.spmm(A, H, out=out)

    def both(times: int) -> None:
        handle = comm.alltoallv(send, received, counts)
        multiply(times)
        handle.wait()

    moving, one = clock(lambda: both(0)), clock(lambda: multiply(1))
    times = max(1, min(100, round(moving / one)))
    computing, together = clock(lambda: multiply(times)), clock(lambda: both(times))
    hidden = (moving + computing - together) / min(moving, computing)
    return min(1.0, max(0.0, hidden))


def _spmm(clock: Clock) -> Spmm:
    """Products with random columns, of operands that fit into caches and of one that does not."""

    def bodies(A: CSR, width: int, heads: int, rate: float) -> list[Callable[[], object]]:
        H, out = clock.ones(A.shape[1], width), clock.ones(A.shape[0], width)
        return [lambda: kernels.spmm(A, H, out=out)]

    how: Any = {"degrees": (4, 32), "rows": _ROWS, "least": 0.2}
    costs = [
        [_row_and_nonzero(clock, bodies, size, width, **how)[0] for width in _WIDTHS]
        for size in _OPERAND_BYTES
    ]
    return _table(costs, _OPERAND_BYTES, _WIDTHS, costs[0])


def _table(
    costs: Sequence[Sequence[tuple[float, float]]],
    sizes: Sequence[int],
    widths: Sequence[int],
    of_rows: Sequence[tuple[float, float]],
) -> Spmm:
    nonzeros = tuple(tuple(nonzero for _, nonzero in row) for row in costs)
    of_width = tuple(map(float, sizes)), tuple(map(float, widths))
    return Spmm(*of_width, nonzeros, tuple(row for row, _ in of_rows))


def _row_and_nonzero(
    clock: Clock,
    bodies: Bodies,
    size: int,
    width: int,
    degrees: tuple[int, int],
    *,
    rows: int,
    least: float,
    heads: int = 1,
    rate: float = 0.0,
) -> list[tuple[float, float]]:
    """Seconds of a row and of a nonzero in each body, from matrices with few and with many."""
    seconds = []
    for degree in degrees:
        A = random_matrix(size // (4 * width), degree, rows).to(clock.device)
        seconds.append([clock(body) / rows for body in bodies(A, width, heads, rate)])
    few, many = degrees
    costs = []
    for shorter, longer in zip(*seconds, strict=True):
        nonzero = max((longer - shorter) / (many - few), least * longer / many)
        costs.append((max(shorter - few * nonzero, 0.05 * shorter), nonzero))
    return costs


def _gather(clock: Clock) -> Gather:
    """Copies of random rows of an operand that fits into no cache."""
    seconds = []
    for width in _WIDTHS:
        H, out = clock.ones(_OPERAND_BYTES[-1] // (4 * width), width), clock.ones(_ROWS, width)
        rows = _draws(_ROWS, H.shape[0]).to(clock.device)
        seconds.append(clock(partial(kernels.gather_rows, H, rows, out=out)) / _ROWS)
    return Gather(tuple(map(float, _WIDTHS)), tuple(seconds))


def _gemm(clock: Clock) -> Gemm:
    """Tall matrices times square ones, and the gradient of the square one."""
    rates = []
    for width in _WIDTHS:
        rows = 16 * _MIB // width // 4
        H, W, out = clock.ones(rows, width), clock.ones(width, width), clock.ones(rows, width)

        def both(H: Tensor = H, W: Tensor = W, out: Tensor = out) -> None:
            times_transposed(H, W)
            transposed_times(out, H)

        rates.append(4 * rows * width * width / clock(both))
    return Gemm(tuple(map(float, _WIDTHS)), tuple(rates))


def _streams(clock: Clock) -> Streams:
    """ReLU's gradient, dropout, and the cross-entropy of 32 classes with its gradient."""
    width = 32
    rows = 16 * _MIB // (4 * width)
    H, G = clock.ones(rows, width), clock.ones(rows, width)
    ids = torch.arange(rows, device=clock.device)
    one, target = float(H.nbytes), ids % width
    scores = H.clone().requires_grad_()

    def loss() -> None:
        scores.grad = None
        cross_entropy_sum(scores, target).backward()

    return Streams(
        3 * one / clock(lambda: torch.ops.aten.threshold_backward(G, H, 0)),
        2 * one / clock(lambda: kernels.dropout_rows(H, ids, 1, 0.5)),
        3 * one / clock(loss),
    )


def _edges(clock: Clock, kind: str) -> EdgeRates:
    """Attention or largest neighbours on random matrices that fit into a cache, or do not."""

    def attention(A: CSR, width: int, heads: int, rate: float) -> Sequence[Callable[[], object]]:
        """As :class:`spgnn.attention.passes.Pass` weighs a block."""
        joint, device = kind == "gatv2", clock.device
        a = torch.full((heads, width // heads), 0.1, device=device)
        scores = Scores(a, 0.2, joint=joint)
        destinations = clock.ones(A.shape[0], width if joint else heads)
        Z = clock.ones(A.shape[1], width)
        ids = [torch.arange(length, device=device) for length in A.shape]
        dropout = AttentionDropout(1, rate, *ids) if rate else None
        block = EdgeBlock(A.pattern, destinations, Z, dropout=dropout)

        def forward() -> tuple[Tensor, Tensor]:
            return finish(scores.attend(block, None, gradients=True), Z.dtype)

        out, lse = forward()
        G = torch.ones_like(out)

        def backward() -> object:
            return scores.gradient(block, Whole(G, lse, head_products(G, out, heads)))

        return forward, backward

    def largest(A: CSR, width: int, heads: int, rate: float) -> Sequence[Callable[[], object]]:
        H, bare = clock.ones(A.shape[1], width).requires_grad_(), CSR(A.pattern)
        Z, G = kernels.spmm(bare, H, reduce="max"), clock.ones(A.shape[0], width)
        forward = partial(kernels.spmm, bare, H.detach(), reduce="max")
        return forward, lambda: torch.autograd.grad(Z, H, G, retain_graph=True)

    def costs(
        size: int, width: int, heads: int = 1, rate: float = 0.0
    ) -> list[tuple[float, float]]:
        bodies: Bodies = largest if kind == "largest" else attention
        rows, how = max(_EDGE_ROWS, size // (4 * width)), {"heads": heads, "rate": rate}
        return _row_and_nonzero(clock, bodies, size, width, (4, 16), rows=rows, least=0.05, **how)  # type: ignore[arg-type]

    every = [[costs(size, width) for width in _EDGE_WIDTHS] for size in _EDGE_OPERAND_BYTES]
    case = _EDGE_OPERAND_BYTES[-1], _EDGE_WIDTHS[1]
    many, dropped = costs(*case, heads=_HEADS), costs(*case, rate=_DROPPED)
    fields = dict[str, Any]()
    for way, name in enumerate(("forward", "backward")):
        of_way = [[each[way] for each in row] for row in every]
        fields[name] = _table(of_way, _EDGE_OPERAND_BYTES, _EDGE_WIDTHS, of_way[-1])
        (row, nonzero), (more_row, more) = every[-1][1][way], many[way]
        fields[f"{name}_row_head"] = max(0.0, more_row - row) / (_HEADS - 1)
        fields[f"{name}_head"] = max(0.0, more - nonzero) / (_HEADS - 1)
        fields[f"{name}_drop"] = max(0.0, dropped[way][1] - nonzero)
    return EdgeRates(**fields)


def random_matrix(columns: int, degree: int, rows: int = _ROWS) -> CSR:
    """So many nonzeros in every row, anywhere."""
    indices, _ = _draws(rows * degree, columns).view(rows, degree).sort(dim=1)
    indptr = torch.arange(rows + 1) * degree
    return CSR(Pattern(indptr, indices.reshape(-1), (rows, columns)))


def _draws(count: int, limit: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(limit, (count,), generator=generator, dtype=torch.int32)


def runtime_bytes(comm: Communicator) -> int:
    """Growth of this rank's memory by a whole job on hardly any data. Collective."""
    # Ranks compare their flags before a job begins, which is no part of it.
    comm.check_agreement("a job on hardly any data", rows=_JOB_ROWS)
    before = _resident_bytes()
    exercise(comm)
    return max(0, _resident_bytes() - before)


def exercise(comm: Communicator) -> None:
    """Run what every training job runs: set-up, an epoch, evaluation. Collective."""
    job = _SmallJob(comm, _JOB_ROWS)
    job.epoch()
    job.evaluate()


def _resident_bytes() -> int:
    """Without what ranks have posted for each other, which plans know."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    resident, shared = (int(status.get(n, "0 kB").split()[0]) for n in ("VmRSS", "RssShmem"))
    return 1024 * (resident - shared)


def _overhead(clock: Clock, level: Level) -> Overhead:
    """Fixed costs of operators, exchanges and epochs, on top of the rates. Collective."""
    ranks, many, small = clock.comm.size, 200, clock.ones(8, 8)

    def operators() -> None:
        H = small
        for _ in range(many):
            H = torch.relu(H)

    job = _SmallJob(clock.comm, _FEW_ROWS)
    # With gradients an operator is called twice, and autograd takes as long as the call.
    operation, multiply = 2 * clock(operators) / many, clock(job.product) / 2
    # What a rank of the job's ring sends its neighbours.
    peers = min(2, ranks - 1)
    moving = float(level.alltoallv.seconds(peers, peers * _FEW_ROWS * _CLASSES * 4))
    steps = trace(_MODEL, _FEATURES, _CLASSES).steps
    products = sum(isinstance(step, Product) for step in steps)
    costs = products * multiply + (len(steps) - products) * operation
    if ranks > 1:
        costs += float(level.allreduce.seconds(2 * (ranks - 1).bit_length(), 0))
    epoch = max(0.0, clock(job.epoch) - costs)
    return Overhead(operation, max(0.0, multiply - moving), epoch, 0.0)


class _SmallJob:
    """A training job on a ring, in which each vertex has neighbours on other ranks. Collective."""

    def __init__(self, comm: Communicator, rows: int) -> None:
        share = scatter(_ring(comm.size, rows) if comm.rank == 0 else None, None, comm, comm.size)
        data = training_graph(_MODEL, comm, (share, None))
        trainer = Trainer(task_of(_MODEL, data), options=_MODEL.training)
        self.epoch, self.evaluate = partial(trainer.train_epoch, 0), trainer.evaluate
        self._A = data.A
        self._H = torch.ones(rows, _CLASSES, device=comm.device, requires_grad=True)

    def product(self) -> None:
        """A product and its adjoint. Collective."""
        product(self._A, self._H).sum().backward()
        self._H.grad = None


def _ring(ranks: int, rows: int) -> Graph:
    n = rows * ranks
    vertices = torch.arange(n)
    away = torch.stack([(vertices + step) % n for step in (1, rows, n - rows, n - 1)], 1)
    indices = away.sort(dim=1).values.reshape(-1)
    A = CSR.of(torch.arange(n + 1) * 4, indices.int(), (n, n))
    # The loss looks at some of the rows, of which plans are made.
    X, trained = torch.ones(n, _FEATURES), vertices % rows < rows // 2
    masks = {"train_mask": trained, "val_mask": ~trained, "test_mask": ~trained}
    return Graph("ring", A, False, x=X, y=vertices % _CLASSES, **masks)
