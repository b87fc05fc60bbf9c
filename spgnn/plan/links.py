"""How fast ranks reach each other, and how much of that hides behind a product."""

from __future__ import annotations

import torch

from spgnn import kernels
from spgnn.comm import Communicator, RowCounts
from spgnn.plan.machine import Level, Levels, Link
from spgnn.plan.rates import Clock, random_matrix

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
    """Which part of the shorter one hides, when an exchange and a product run at once."""
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
