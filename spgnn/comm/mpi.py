"""The communicator over MPI (mpi4py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError

try:
    from mpi4py import MPI
except (ImportError, RuntimeError):  # it looks for the library when it is imported
    raise InputError(
        "mpi4py finds no MPI library: pip install 'spgnn[mpi]' brings one, and so does the module "
        "of a cluster's MPI; or set MASTER_ADDR and MASTER_PORT, and take --backend gloo"
    ) from None

from spgnn.comm.base import Communicator
from spgnn.comm.callring import CallRing
from spgnn.comm.counts import RowCounts
from spgnn.comm.job import Call, Group, MismatchError
from spgnn.comm.launched import Place
from spgnn.comm.mpijob import Help, MPIJob
from spgnn.comm.placement import Node, choose
from spgnn.comm.solo import SoloCommunicator
from spgnn.comm.transport import Reduction, Wait

_MPICH_NAME = "/dev/shm/mpich_shm_"
_DATA = 0  # tag; a ring of calls has another
# What is shorter is sent at once, or soon after.
_LONG_BYTES = 2**16
_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int64: MPI.INT64_T,
    torch.int32: MPI.INT32_T,
    torch.uint8: MPI.UINT8_T,
}
_OPS = {"sum": MPI.SUM, "max": MPI.MAX}
_WITHOUT_TYPE = (torch.bfloat16, torch.float16)


def world_of(place: Place) -> Any:
    """MPI_COMM_WORLD, if it is the job that this rank was started in.

    Raises
    ------
    InputError
        If mpi4py was built for another MPI than the one whose mpiexec started this rank.
    """
    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (place.rank, place.size):
        raise InputError(
            f"the launcher says rank {place.rank} of {place.size}, mpi4py rank {world.Get_rank()} "
            f"of {world.Get_size()}: it belongs to another MPI; use that one's mpiexec"
        )
    return world


class MPICommunicator(Communicator):
    """Ranks of an MPI communicator. CUDA tensors are staged through host memory.

    MPI adds up whatever ranks reduce at the same time, and overruns buffers if sizes differ. So
    every call is also told to the next rank of the group. A reduction waits for what the rank
    before tells; other calls, whose lengths MPI checks itself, compare it when it is there.
    """

    def __init__(self, job: MPIJob, group: Group, comm: Any) -> None:
        super().__init__(comm.Get_rank(), job, group)
        self._comm = comm
        self._mpi_job = job
        self._ring = CallRing(comm, group)
        job.rings.append(self._ring)

    @classmethod
    def connect(cls, place: Place, backend: str, device: str) -> MPICommunicator:
        """Join the job of MPI_COMM_WORLD.

        Raises
        ------
        InputError
            On all ranks alike if the device cannot be had.
        """
        world = world_of(place)
        least = partial(world.allreduce, op=MPI.MIN)
        _, chosen = choose(backend, device, Node.find(place), least, auto="mpi")
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        job = MPIJob(world, chosen, place.local_size)
        job.poll(world.Ibarrier().Test)
        _remove_names()
        return cls(job, job.everyone(), world)

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        # Point to point: only peers with something to say speak, and no 32-bit displacement
        # into a long buffer is needed.
        own = self.rank
        requests = [
            self._comm.Irecv(_bytes(recv[first:last]), peer, _DATA)
            for peer, first, last in counts.sources
            if peer != own
        ]
        row_bytes = recv.shape[1]
        lengths = [
            (last - first) * row_bytes for peer, first, last in counts.sources if peer != own
        ]
        requests += [
            self._comm.Isend(_bytes(send[first:last]), peer, _DATA)
            for peer, first, last in counts.targets
            if peer != own
        ]
        if counts.send_list[own]:
            _part(recv, counts.sources, own).copy_(_part(send, counts.targets, own))
        return self._waiter(requests, lengths, send.numel() + recv.numel())

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        return self._waiter([self._comm.Ibcast(_bytes(buffer), root)], nbytes=buffer.nbytes)

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        self._mpi_job.poll(self._ring.has_compared)
        operand, op = _operand(buffer, "sum")
        here, there = (MPI.IN_PLACE, operand) if self.rank == root else (operand, None)
        return self._waiter([self._comm.Ireduce(here, there, op, root)], nbytes=buffer.nbytes)

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        self._mpi_job.poll(self._ring.has_compared)
        operand, mpi_op = _operand(buffer, op)
        request = self._comm.Iallreduce(MPI.IN_PLACE, operand, mpi_op)
        return self._waiter([request], nbytes=buffer.nbytes)

    def _split(self, group: Group) -> Communicator:
        self._mpi_job.poll(self._ring.has_compared)
        self._waiter([self._comm.Ibarrier()])()  # MPI's own wait would keep processors busy.
        part = self._comm.Split(group.ranks[0], list(group.ranks).index(self.job.rank))
        if len(group.ranks) == 1:
            return SoloCommunicator(self.job, group)
        return MPICommunicator(self._mpi_job, group, part)

    def _announce(self, call: Call) -> None:
        self._ring.tell(call)

    def _waiter(self, requests: list[Any], lengths: Sequence[int] = (), nbytes: int = 0) -> Wait:
        """Wait for requests, of which the first are receives of so many bytes."""
        job = self._mpi_job
        call = job.waiting
        assert call is not None, "operations begin inside of a call"
        statuses = [MPI.Status() for _ in requests] if lengths else None
        help_: Help = "none"
        if nbytes >= _LONG_BYTES:
            help_ = "late" if self.group.patient else "soon"

        def done() -> bool:
            try:
                return bool(MPI.Request.Testall(requests, statuses))
            except MPI.Exception:
                self._ring.compare()  # It may know more.
                raise

        def wait() -> None:
            try:
                job.poll(done, self._ring.compare)
                self._ring.compare()
            except BaseException:
                job.abandon(requests, receives=len(lengths))
                raise
            finally:
                job.ended(wait, help_)
            for status, length in zip(statuses or (), lengths, strict=False):
                if status.Get_count(MPI.BYTE) != length:
                    raise MismatchError("data of another size arrived")

        job.began(wait, self._blocked(call), help_)
        return wait

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, MPI.Exception) and error.Get_error_class() in (
            MPI.ERR_IN_STATUS,
            MPI.ERR_TRUNCATE,
        ):
            return MismatchError("data of another size arrived")
        return error


def _remove_names() -> None:
    """Remove the names of memory that MPICH shares, once all ranks have it.

    It does so itself at the end, but not of a job that is killed.
    """
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if _MPICH_NAME in line:
                with suppress(OSError):
                    os.unlink(line[line.index(_MPICH_NAME) :])


def _bytes(rows: Tensor) -> list[Any]:
    return [rows.view(torch.uint8).numpy(), MPI.BYTE]


def _part(rows: Tensor, stretches: list[tuple[int, int, int]], peer: int) -> Tensor:
    first, last = next((first, last) for other, first, last in stretches if other == peer)
    return rows[first:last]


def _operand(buffer: Tensor, op: Reduction) -> tuple[list[Any], Any]:
    """The buffer as MPI takes it, and the operation on it."""
    if buffer.dtype == torch.bool:
        return [buffer.numpy(), MPI.C_BOOL], MPI.LOR
    if buffer.dtype in _WITHOUT_TYPE:
        return [buffer.view(torch.int16).numpy(), MPI.INT16_T], _half_op(buffer.dtype, op)
    return [buffer.numpy(), _TYPES[buffer.dtype]], _OPS[op]


@cache
def _half_op(dtype: torch.dtype, op: Reduction) -> Any:
    """Combine 16-bit floats, which MPI does not know, in rank order."""

    def combine(left: Any, right: Any, _: Any) -> None:
        ours, theirs = (
            torch.from_numpy(np.array(np.frombuffer(side, np.int16))).view(dtype)
            for side in (left, right)
        )
        result = ours + theirs if op == "sum" else torch.maximum(ours, theirs)
        np.frombuffer(right, np.int16)[:] = result.view(torch.int16).numpy()

    return MPI.Op.Create(combine, commute=False)
