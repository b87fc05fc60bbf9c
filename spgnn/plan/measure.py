"""``spgnn machine``: measure this machine, alone or as the ranks of a job."""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Callable, Collection
from dataclasses import replace
from time import perf_counter

import torch

from spgnn.comm import Communicator
from spgnn.memory import freed_is_kept, memory_limit, processors
from spgnn.plan.edges import measure_edges
from spgnn.plan.links import measure_levels, measure_overlap
from spgnn.plan.machine import Conditions, Machine
from spgnn.plan.rates import (
    measure_dense,
    measure_gather,
    measure_sparse,
    measure_streams,
)
from spgnn.plan.runtime import measure_overhead, runtime_bytes

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
