"""What libraries take once a rank trains, whatever it trains on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.autograd import product
from spgnn.comm import Communicator, Mesh
from spgnn.data import Graph
from spgnn.data.distribute import RankShare, scatter
from spgnn.data.normalise import add_self_loops, degree_scales
from spgnn.exchange import Algorithm, build, layered
from spgnn.nn import (
    GCN,
    DropoutKeys,
    accuracies,
    count_labelled,
    masked_cross_entropy,
    propagate_,
)
from spgnn.plan.machine import Level, Link, Overhead
from spgnn.plan.network import Network
from spgnn.plan.rates import Clock, measure_operators
from spgnn.plan.steps import Product
from spgnn.plan.tracing import trace
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

# The graph of a job that has hardly any data: vertices of each rank, features, classes.
_ROWS, _FEATURES, _CLASSES = 2048, 64, 16  # enough for the kernels that real ones are given
_WIDTHS = (_FEATURES, 16, 16, _CLASSES)
# Of one that has none to speak of.
_FEW_ROWS = 32


def runtime_bytes(comm: Communicator) -> int:
    """How much this rank's memory grows by a whole job on hardly any data. Collective.

    Most of it are pages of libraries that are touched for the first time: ranks of one host share
    them, and each one's resident memory has them.
    """
    # Ranks compare their flags before a job begins, which is no part of it.
    comm.check_agreement("a job on hardly any data", rows=_ROWS)
    before = _resident_bytes()
    exercise(comm)
    return max(0, _resident_bytes() - before)


def exercise(comm: Communicator) -> None:
    """What every training job does: set-up, an epoch, evaluation. Collective."""
    job = SmallJob(comm, _ROWS)
    job.epoch(_Seen())  # type: ignore[no-untyped-call]
    job.evaluate()


def measure_overhead(comm: Communicator, level: Level, clock: Clock) -> Overhead:
    """What operators, exchanges and epochs cost beside the rates. Collective.

    Of a job that has no data to speak of: whatever Python and autograd do, and waiting for ranks
    that share the cores, are in it.

    Parameters
    ----------
    comm : Communicator
    level : Level
        What an exchange takes that nothing surrounds.
    clock : Clock
    """
    job = SmallJob(comm, _FEW_ROWS)
    operation, product = measure_operators(clock, comm.device), clock(job.product) / 2
    exchange = max(0.0, product - _moving(level.alltoallv, comm.size))
    steps = trace(Network(_WIDTHS, dropout=0.5, input_dropout=False)).steps
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
