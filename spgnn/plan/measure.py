"""spgnn machine: measure this machine, alone or as the ranks of a job."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn import kernels
from spgnn.autograd import product
from spgnn.comm import Communicator, Mesh, RowCounts
from spgnn.config import TrainConfig
from spgnn.data import Graph
from spgnn.data.distribute import RankShare, scatter
from spgnn.data.normalise import add_self_loops, degree_scales
from spgnn.exchange import Algorithm, build, layered
from spgnn.memory import freed_is_kept, memory_limit, processors
from spgnn.nn import (
    GCN,
    DropoutKeys,
    accuracies,
    count_labelled,
    masked_cross_entropy,
    propagate_,
)
from spgnn.plan.counts import Product
from spgnn.plan.epoch import trace
from spgnn.plan.machine import Conditions, Level, Levels, Link, Machine, Overhead
from spgnn.plan.rates import (
    Clock,
    measure_dense,
    measure_edges,
    measure_gather,
    measure_operators,
    measure_sparse,
    measure_streams,
    random_matrix,
)
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

_SMALL, _LARGE = 1 << 6, 1 << 20
# What one rank alone is given: it moves nothing, and nobody asks.
_UNMEASURED = Link(1e-5, 1e-5, 1e9)


def measure_levels(comm: Communicator, nodes: list[int], clock: Clock) -> Levels:
    """Both collectives inside nodes, and between them where there are several. Collective.

    Parameters
    ----------
    comm : Communicator
    nodes : list of int
        Where each rank is.
    clock : Clock
    """
    if len(set(nodes)) == 1:
        return Levels(_level(comm, clock))
    inside, between = groups_by_node(nodes)
    return Levels(_level(comm.subgroup(inside), clock), _level(comm.subgroup(between), clock))


def groups_by_node(nodes: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Ranks of the same node; and the first ranks of all nodes, the second ones, and so on."""
    inside: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        inside.setdefault(node, []).append(rank)
    between: list[list[int]] = []
    for members in inside.values():
        for place, rank in enumerate(members):
            if place == len(between):
                between.append([])
            between[place].append(rank)
    return list(inside.values()), between


def _level(comm: Communicator, clock: Clock) -> Level:
    """Measured on every group at the same time. A group of one rank measures nothing."""
    return Level(_alltoallv(comm, clock), _allreduce(comm, clock))


def _alltoallv(comm: Communicator, clock: Clock) -> Link:
    """Two groups of unlike size tell what a message costs from what a call costs."""
    peers = comm.size - 1
    if peers == 0:
        return _UNMEASURED
    share = _LARGE // peers // 64 * 64
    small, large = _exchange(comm, clock, _SMALL), _exchange(comm, clock, share)
    pairs = [list(range(first, min(first + 2, comm.size))) for first in range(0, comm.size, 2)]
    of_two = small if peers == 1 else _exchange(comm.subgroup(pairs), clock, _SMALL)
    # Of two ranks nobody knows which it is.
    message = small / 2 if peers == 1 else max(0.0, small - of_two) / (peers - 1)
    return Link(max(0.0, small - peers * message), message, _bandwidth(small, large, peers * share))


def _exchange(comm: Communicator, clock: Clock, nbytes: int) -> float:
    """Seconds in which everyone sends everyone else so much."""
    rows = [nbytes // 64 * (rank != comm.rank) for rank in range(comm.size)]
    counts = RowCounts(rows, rows, nbytes // 64)
    send = torch.ones(counts.sent, 16, device=comm.device)
    received = torch.empty_like(send)
    return clock(lambda: comm.alltoallv(send, received, counts).wait())


def _allreduce(comm: Communicator, clock: Clock) -> Link:
    if comm.size == 1:
        return _UNMEASURED

    def reduce(nbytes: int) -> float:
        buffer = torch.ones(nbytes // 4, device=comm.device)
        return clock(lambda: comm.all_reduce(buffer).wait())

    steps = 2 * (comm.size - 1).bit_length()
    moved = 2 * (comm.size - 1) * _LARGE // comm.size
    small, large = reduce(_SMALL), reduce(_LARGE)
    return Link(0.0, small / steps, _bandwidth(small, large, moved))


def _bandwidth(small: float, large: float, nbytes: int) -> float:
    # A long message takes longer than a short one, whatever a noisy machine says.
    return nbytes / max(large - small, 0.1 * large)


def measure_overlap(comm: Communicator, clock: Clock) -> float:
    """Share of the shorter of an exchange and a product that is hidden when both run at once."""
    if comm.size == 1:
        return 0.0
    share = 2 * _LARGE // comm.size // 64
    rows = [share * (rank != comm.rank) for rank in range(comm.size)]
    counts = RowCounts(rows, rows, share)
    send = torch.ones(counts.sent, 16, device=comm.device)
    received = torch.empty_like(send)
    A = random_matrix(1 << 15, 32).to(comm.device)
    H = torch.ones(A.shape[1], 16, device=comm.device)
    out = torch.empty(A.shape[0], 16, device=comm.device)

    def exchange() -> None:
        comm.alltoallv(send, received, counts).wait()

    def product(times: int) -> None:
        for _ in range(times):
            kernels.spmm(A, H, out=out)

    moving, one = clock(exchange), clock(lambda: product(1))
    times = max(1, min(100, round(moving / one)))

    def both() -> None:
        flight = comm.alltoallv(send, received, counts)
        product(times)
        flight.wait()

    computing, together = clock(lambda: product(times)), clock(both)
    hidden = (moving + computing - together) / min(moving, computing)
    return min(1.0, max(0.0, hidden))


# The graph of a job that has hardly any data: vertices of each rank, features, classes.
_ROWS, _FEATURES, _CLASSES = 2048, 64, 16  # enough for the kernels that real ones are given
_WIDTHS = (_FEATURES, 16, 16, _CLASSES)
# Of one that has none to speak of.
_FEW_ROWS = 32


def runtime_bytes(comm: Communicator) -> int:
    """Growth of this rank's memory by a whole job on hardly any data. Collective.

    Most of it are pages of libraries that are touched for the first time: ranks of one host share
    them, and each one's resident memory has them.
    """
    # Ranks compare their flags before a job begins, which is no part of it.
    comm.check_agreement("a job on hardly any data", rows=_ROWS)
    before = _resident_bytes()
    exercise(comm)
    return max(0, _resident_bytes() - before)


def exercise(comm: Communicator) -> None:
    """Run what every training job runs: set-up, an epoch, evaluation. Collective."""
    job = SmallJob(comm, _ROWS)
    job.epoch(_Seen())  # type: ignore[no-untyped-call]
    job.evaluate()


def measure_overhead(comm: Communicator, level: Level, clock: Clock) -> Overhead:
    """Fixed costs of operators, exchanges and epochs, on top of the rates. Collective.

    They come from a job with hardly any data, and include the work of Python and autograd, and
    waiting for ranks that share the cores.

    Parameters
    ----------
    comm : Communicator
    level : Level
        Cost of an exchange on its own.
    clock : Clock
    """
    job = SmallJob(comm, _FEW_ROWS)
    operation, product = measure_operators(clock, comm.device), clock(job.product) / 2
    exchange = max(0.0, product - _moving(level.alltoallv, comm.size))
    config = TrainConfig.of(layers=3, hidden=_WIDTHS[1], dropout=0.5, input_dropout=False)
    steps = trace(config, _FEATURES, _CLASSES).steps
    products = sum(isinstance(step, Product) for step in steps)
    known = products * product + (len(steps) - products) * operation
    if comm.size > 1:
        known += float(level.allreduce.seconds(2 * (comm.size - 1).bit_length(), 0))
    return Overhead(operation, exchange, max(0.0, clock(job.epoch) - known), 0.0)


def _moving(link: Link, ranks: int) -> float:
    """Seconds of what a rank of a small job's ring sends its neighbours."""
    peers = min(2, ranks - 1)
    return float(link.seconds(peers, peers * _FEW_ROWS * _CLASSES * 4))


class SmallJob:
    """A training job on a ring. Collective."""

    def __init__(self, comm: Communicator, rows: int) -> None:
        self._comm = comm
        ring = _graph(comm.size, rows) if comm.rank == 0 else None
        share = scatter(ring, None, comm, comm.size)
        self._A, self._X = _operands(share, comm)
        device = comm.device
        assert share.data.y is not None
        assert share.data.train_mask is not None
        self._y, self._masks = share.data.y.to(device), [share.data.train_mask.to(device)]
        self._totals = count_labelled(self._masks, self._y, comm)
        self._model = GCN.of(list(_WIDTHS), dropout=0.5, input_dropout=False).to(device)
        self._optimiser = torch.optim.Adam(self._model.parameters())
        self._keys = DropoutKeys(share.vertex_ids.to(device), 0, 0)
        self._H = torch.ones(rows, _CLASSES, device=device, requires_grad=True)

    def epoch(self, seen: AbstractContextManager[object] | None = None) -> None:
        """One training epoch. Collective."""
        with seen or nullcontext():
            logits = self._model(self._X, self._A, self._keys)
            masked_cross_entropy(logits, self._y, self._masks[0], self._totals[0]).backward()
        flat = torch.cat(
            [p.grad.reshape(-1) for p in self._model.parameters() if p.grad is not None]
        )
        self._comm.all_reduce(flat).wait()
        self._optimiser.step()
        self._optimiser.zero_grad()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Accuracies. Collective."""
        logits = self._model.eval()(self._X, self._A)
        accuracies(logits, self._y, self._masks, self._totals, self._comm)
        self._model.train()

    def product(self) -> None:
        """A product and its adjoint. Collective."""
        product(self._A, self._H).sum().backward()
        self._H.grad = None


class _Seen(TorchDispatchMode):
    """Operators come through Python, as in the epochs that are clocked."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


def _graph(ranks: int, rows: int) -> Graph:
    """A ring of all vertices, in which each has some that are on other ranks."""
    n = rows * ranks
    vertices = torch.arange(n)
    away = torch.stack([(vertices + step) % n for step in (1, rows, n - rows, n - 1)], 1)
    indices = away.sort(dim=1).values.reshape(-1)
    A = CSR.of(torch.arange(n + 1) * 4, indices.int(), (n, n))
    every = torch.ones(n, dtype=torch.bool)
    X = torch.ones(n, _FEATURES)
    return Graph("ring", A, False, x=X, y=vertices % _CLASSES, train_mask=every)


def _operands(share: RankShare, comm: Communicator) -> tuple[DistMatrix, Tensor]:
    """The normalised matrix and A·X."""
    assert share.adjacency is not None
    assert isinstance(share.data.x, Tensor)
    block = add_self_loops(share.adjacency, share.layout.range(comm.rank)[0])
    row_scale, own_scale = degree_scales(block, "sym")
    block, layout, algorithm = block.with_scales(row_scale, None), share.layout, Algorithm()
    A = DistMatrix.build(
        block, layout, Mesh.grid(comm), algorithm=algorithm, column_scale=own_scale
    ).to(comm.device)
    # Plans are made of these, as of rows that the loss looks at.
    some = torch.arange(int(layout.sizes[comm.rank]) // 2)
    scheme = layered(
        algorithm, block, layout, comm.rank, layers=3, wanted=some, column_scale=own_scale
    )
    build(scheme, A.mesh)
    return A, propagate_(A, share.data.x.to(comm.device)).AX_local


def _resident_bytes() -> int:
    """Without what ranks have posted for each other, which plans know."""
    found = {"VmRSS": 0, "RssShmem": 0}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024
    return found["VmRSS"] - found["RssShmem"]


# Every figure is repeated for about so long, but so often at least and at most.
SECONDS, _LEAST, _MOST = 0.04, 5, 200


def measure(
    comm: Communicator,
    name: str | None = None,
    *,
    seconds: float = SECONDS,
    edges: Collection[str] = (),
) -> Machine:
    """Measure kernels and links, on all ranks at the same time; the same on all. Collective.

    Takes a few seconds. Every figure is the median over ranks of the mean of repetitions, with the
    number of threads that ranks have.

    Parameters
    ----------
    comm : Communicator
        All ranks.
    name : str, optional
        By default the first rank's host.
    seconds : float
        For about so long each figure is repeated.
    edges : collection of str
        Which layers that weigh or compare neighbours are measured: ``gat``, ``gatv2``, ``largest``.
    """
    runtime = Together(comm).of_all(float(runtime_bytes(comm)))
    nodes = node_of_each(comm)
    here = max(nodes.count(node) for node in set(nodes))
    together = Together(comm, seconds)
    with freed_is_kept():
        spmm = measure_sparse(together, comm.device)
        gather = measure_gather(together, comm.device)
        gemm = measure_dense(together, comm.device)
        streams = measure_streams(together, comm.device)
        levels = measure_levels(comm, nodes, together)
        overhead = measure_overhead(comm, levels.inside, together)
        overlap = measure_overlap(comm, together)
        weighed = measure_edges(together, comm.device, edges)
    cuda = comm.device.type == "cuda"
    cores = torch.cuda.device_count() if cuda else processors()
    memory = torch.cuda.get_device_properties(comm.device).total_memory if cuda else memory_limit()
    return Machine(
        name or socket.gethostname() or platform.machine(),
        cores,
        here,
        float(memory if cuda else memory // here),
        Conditions(here, 1 if cuda else torch.get_num_threads()),
        levels,
        overlap,
        spmm,
        gather,
        gemm,
        streams,
        replace(overhead, memory=runtime),
        f"measured on {comm.size} ranks, {comm.device.type}, torch {torch.__version__}",
        edges=weighed,
    )


class Together:
    """Times what all ranks do at the same time.

    Parameters
    ----------
    comm : Communicator
    seconds : float
        For about so long each is repeated, but a few times in any case.
    """

    def __init__(self, comm: Communicator, seconds: float = SECONDS) -> None:
        self._comm, self._budget = comm, seconds

    def __call__(self, body: Callable[[], object]) -> float:
        """Seconds of `body`: the mean of repetitions, then the median over ranks. Collective.

        A mean, because ranks that share cores are interrupted now and then, not in most calls.
        """
        body()
        first = self._seconds(body, 1)
        # As often on every rank, or collectives would not meet.
        slowest = self._comm.agree(int(first * 1e9)) / 1e9
        times = round(min(_MOST, max(_LEAST, self._budget / max(slowest, 1e-9))))
        return self.of_all(self._seconds(body, times))

    def _seconds(self, body: Callable[[], object], times: int) -> float:
        start = perf_counter()
        for _ in range(times):
            body()
        if self._comm.device.type == "cuda":
            torch.cuda.synchronize(self._comm.device)
        return (perf_counter() - start) / times

    def of_all(self, value: float) -> float:
        """The median over ranks. Collective."""
        mine = torch.tensor([value], dtype=torch.float64)
        every = torch.empty(self._comm.size, dtype=torch.float64)
        self._comm.all_gather(mine, every, [1] * self._comm.size)
        return float(every.median())


def node_of_each(comm: Communicator) -> list[int]:
    """A number for the host of each rank. Collective."""
    hashed = hashlib.blake2b(socket.gethostname().encode(), digest_size=7).digest()
    mine = torch.tensor([int.from_bytes(hashed, "big")])
    every = torch.empty(comm.size, dtype=torch.int64)
    comm.all_gather(mine, every, [1] * comm.size)
    return list(every.tolist())
