"""Π on real buffers: how the rows of S·H reach the ranks that need them, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from spgnn.comm import Communicator, Pending
from spgnn.exchange.plan import ExchangePlan


class Waitable(Protocol):
    """Something under way."""

    def wait(self) -> None:
        """Return when it is complete on this rank."""


class Together:
    """Several operations under way, waited for as one."""

    def __init__(self, operations: Sequence[Pending]) -> None:
        self._operations = operations

    def wait(self) -> None:
        """Return when all of them are complete."""
        for operation in self._operations:
            operation.wait()


class Transport(Protocol):
    """Carries the rows of a plan; begin, then wait before touching either buffer."""

    def begin(self, sent: Tensor, received: Tensor) -> Waitable:
        """Π: `sent` [n_send, f] of everyone becomes `received` [n_recv, f]."""

    def begin_adjoint(self, sent: Tensor, received: Tensor) -> Waitable:
        """Πᵀ: `sent` [n_recv, f] of everyone becomes `received` [n_send, f]."""


def transport_of(plan: ExchangePlan, comm: Communicator) -> Transport:
    """The transport that a plan's strategy asks for."""
    return BlockBroadcasts(plan, comm) if plan.strategy == "oblivious" else RowsAllToAll(plan, comm)


class RowsAllToAll:
    """Only needed rows, by one all-to-allv; the adjoint sends them back where they came from."""

    def __init__(self, plan: ExchangePlan, comm: Communicator) -> None:
        self._comm = comm
        self._counts = plan.counts
        self._counts_back = plan.counts.reversed()

    def begin(self, sent: Tensor, received: Tensor) -> Waitable:
        """One all-to-allv with the plan's counts."""
        return self._comm.alltoallv(sent, received, self._counts)

    def begin_adjoint(self, sent: Tensor, received: Tensor) -> Waitable:
        """One all-to-allv with the counts swapped."""
        return self._comm.alltoallv(sent, received, self._counts_back)


class BlockBroadcasts:
    """Every rank broadcasts its whole block row (CAGNET); the adjoint sums it back to its owner."""

    def __init__(self, plan: ExchangePlan, comm: Communicator) -> None:
        self._comm = comm
        self._sizes = list(plan.counts.recv)

    def begin(self, sent: Tensor, received: Tensor) -> Waitable:
        """One broadcast for each rank's rows."""
        blocks = list(received.split(self._sizes))
        blocks[self._comm.rank] = sent
        return Together([self._comm.broadcast(block, root) for root, block in enumerate(blocks)])

    def begin_adjoint(self, sent: Tensor, received: Tensor) -> Waitable:
        """One reduction to each rank."""
        blocks = list(sent.split(self._sizes))
        blocks[self._comm.rank] = received.zero_()
        return Together([self._comm.reduce(block, root) for root, block in enumerate(blocks)])


class Workspace:
    """Buffers that outlive an exchange: no epoch should fault in new pages."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def rows(self, role: str, count: int, like: Tensor) -> Tensor:
        """An uninitialised [count, f] with the width, dtype and device of `like`."""
        width = like.shape[1]
        held = self._buffers.get(role)
        if held is None or held.numel() < count * width or held.dtype != like.dtype:
            held = torch.empty(count * width, dtype=like.dtype, device=like.device)
            self._buffers[role] = held
        return held[: count * width].view(count, width)

    def release(self) -> None:
        """Give the memory back; the next exchange takes what it needs."""
        self._buffers.clear()
