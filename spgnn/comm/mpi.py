"""The communicator over MPI (mpi4py)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor

from spgnn.comm.base import Communicator, Ledger, Reduction, RowCounts
from spgnn.comm.solo import SoloCommunicator

FORWARDING_SECONDS = 0.5
_TYPES = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE, torch.int64: MPI.INT64_T}


class MPICommunicator(Communicator):
    """Ranks of an MPI communicator. CUDA tensors are staged through host memory."""

    def __init__(self, comm: Any, ledger: Ledger | None = None) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size(), ledger)
        self._comm = comm

    @classmethod
    def connect(cls) -> MPICommunicator:
        """Join the job of MPI_COMM_WORLD."""
        return cls(MPI.COMM_WORLD)

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Callable[[], None]:
        # Point to point: only peers with something to say speak, and no 32-bit displacement
        # into a long buffer is needed.
        sends = send.split(list(counts.send))
        receives = recv.split(list(counts.recv))
        requests = [
            self._comm.Irecv(_bytes(rows), source=peer)
            for peer, rows in enumerate(receives)
            if len(rows) and peer != self.rank
        ]
        requests += [
            self._comm.Isend(_bytes(rows), dest=peer)
            for peer, rows in enumerate(sends)
            if len(rows) and peer != self.rank
        ]
        if len(receives[self.rank]):
            receives[self.rank].copy_(sends[self.rank])

        def wait() -> None:
            MPI.Request.Waitall(requests)

        return wait

    def _broadcast(self, buffer: Tensor, root: int) -> Callable[[], None]:
        return _waiter(self._comm.Ibcast(_bytes(buffer), root=root))

    def _reduce(self, buffer: Tensor, root: int) -> Callable[[], None]:
        operand = [buffer.numpy(), _TYPES[buffer.dtype]]
        if self.rank == root:
            return _waiter(self._comm.Ireduce(MPI.IN_PLACE, operand, op=MPI.SUM, root=root))
        return _waiter(self._comm.Ireduce(operand, None, op=MPI.SUM, root=root))

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Callable[[], None]:
        operand = [buffer.numpy(), _TYPES[buffer.dtype]]
        reduction = MPI.SUM if op == "sum" else MPI.MAX
        return _waiter(self._comm.Iallreduce(MPI.IN_PLACE, operand, op=reduction))

    def _send(self, buffer: Tensor, peer: int) -> Callable[[], None]:
        return _waiter(self._comm.Isend(_bytes(buffer), dest=peer))

    def _receive(self, buffer: Tensor, peer: int) -> Callable[[], None]:
        return _waiter(self._comm.Irecv(_bytes(buffer), source=peer))

    def barrier(self) -> None:
        """Return when all ranks of the group have entered."""
        self._comm.Barrier()

    def subgroup(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """The communicator of the one among `groups` that holds this rank."""
        color = next(number for number, group in enumerate(groups) if self.rank in group)
        mine = groups[color]
        if len(mine) == self.size:
            return self
        part = self._comm.Split(color, list(mine).index(self.rank))
        return (
            SoloCommunicator(self.ledger) if len(mine) == 1 else MPICommunicator(part, self.ledger)
        )

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """Print the message and abort the whole MPI job."""
        rank = MPI.COMM_WORLD.Get_rank()
        print(f"error: rank {rank}: {message}", file=sys.stderr, flush=True)
        # mpiexec forwards what ranks print; what is under way when a job is aborted may be lost.
        time.sleep(FORWARDING_SECONDS)
        MPI.COMM_WORLD.Abort(status)
        raise SystemExit(status)


def _bytes(rows: Tensor) -> list[Any]:
    return [rows.numpy().view(np.uint8), MPI.BYTE]


def _waiter(request: Any) -> Callable[[], None]:
    def wait() -> None:
        request.Wait()

    return wait
