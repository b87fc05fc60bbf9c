"""The communicator over MPI (mpi4py): how its calls are compared, wait, make progress and end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Literal
from weakref import finalize

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

from spgnn.comm.communicator import Blocked, Communicator, Reduction, SoloCommunicator, Wait
from spgnn.comm.failure import Call, CommunicationError, Group, Job, Lifelines, MismatchError
from spgnn.comm.place import Place, choose, find_place
from spgnn.comm.traffic import RowCounts
from spgnn.memory import processors

_MPICH_NAME = "/dev/shm/mpich_shm_"
_DATA, _CALL, _NOTHING = 0, 1, 2  # tags
# What is shorter is sent at once, or soon after.
_LONG_BYTES = 2**16
# How often to ask before sleeping in between: with a processor of one's own, and without.
_SPINS, _SHARED_SPINS = 100, 3
_LONGEST_PAUSE = 5e-4
_LOOK_SECONDS = 0.01
# How long mpiexec takes to end the other ranks of one that has ended.
_PATIENCE_SECONDS = 3.0
_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int64: MPI.INT64_T,
    torch.int32: MPI.INT32_T,
    torch.uint8: MPI.UINT8_T,
}
_OPS = {"sum": MPI.SUM, "max": MPI.MAX}
_WITHOUT_TYPE = (torch.bfloat16, torch.float16)
Help = Literal["none", "soon", "late"]
# Between two calls that help MPI; until something changes if it needs no help.
_HELP_SECONDS: dict[Help, float | None] = {"none": None, "soon": 1e-4, "late": 5e-3}


def world_of(place: Place) -> Any:
    """MPI_COMM_WORLD, if mpi4py belongs to the MPI whose mpiexec started this rank."""
    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (place.rank, place.size):
        raise InputError(
            f"the launcher says rank {place.rank} of {place.size}, mpi4py rank {world.Get_rank()} "
            f"of {world.Get_size()}: it belongs to another MPI; use that one's mpiexec"
        )
    return world


class CallRing:
    """Every rank of a group sends the next one its calls, which compares them with its own."""

    def __init__(self, comm: Any, group: Group) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()
        self._comm = comm
        self._group = group
        self._rank, self._before, self._after = rank, (rank - 1) % size, (rank + 1) % size
        self._ours: deque[bytes] = deque()  # not yet compared
        self._told: deque[tuple[Any, bytes]] = deque()  # on their way
        self._heard = 0

    def tell(self, call: Call) -> None:
        """A call of the group begins on this rank."""
        words = f"{call.number} {call.what}".encode()
        self._ours.append(words)
        self._told.append((self._comm.Isend([words, MPI.BYTE], self._after, _CALL), words))
        self._has_told()

    def compare(self) -> None:
        """Compare this rank's calls with those of the one before, as far as they have come."""
        while self._ours:
            theirs = self._hear()
            if theirs is None:
                return
            ours = self._ours.popleft()
            if theirs != ours:
                number, what = ours.decode().split(" ", 1)
                other = theirs.decode().split(" ", 1)[1]
                ranks = self._group.ranks
                raise CommunicationError(
                    f"ranks do not agree on call {number} of group {self._group.name}: {other} on "
                    f"rank {ranks[self._before]}; {what} on rank {ranks[self._rank]}"
                )

    def has_compared(self) -> bool:
        """True if all calls of this rank are compared by now."""
        self.compare()
        return not self._ours

    def is_silent(self, ended: dict[int, dict[str, int]]) -> bool:
        """True if nothing is on its way to or from this rank, now that all have ended."""
        self.compare()
        if not self._ours:
            while self._hear() is not None:
                """A call that this rank never made; the one before has not waited for it."""
        begun = ended.get(self._group.ranks[self._before], {}).get(self._group.key, 0)
        return self._has_told() and self._heard == begun

    def is_complete(self, begun: dict[str, int]) -> bool:
        """True if the rank before has sent all calls that this one has begun, and heard its own."""
        with suppress(CommunicationError):
            return self.is_silent({self._group.ranks[self._before]: begun})
        return False

    def _hear(self) -> bytes | None:
        status = MPI.Status()
        if not self._comm.Iprobe(self._before, _CALL, status):
            return None
        words = bytearray(status.Get_count(MPI.BYTE))
        self._comm.Recv([words, MPI.BYTE], self._before, _CALL)
        self._heard += 1
        return bytes(words)

    def _has_told(self) -> bool:
        while self._told and self._told[0][0].Test():
            self._told.popleft()
        return not self._told


class MPIJob(Job):
    """A job of MPI_COMM_WORLD, and a thread that lets MPI work while this rank computes."""

    lifelines: Lifelines

    def __init__(self, comm: Any, device: torch.device, place: Place | None) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size(), device)
        ranks_here = self.size if place is None else place.local_size
        self._spins = _SPINS if ranks_here <= processors() else _SHARED_SPINS
        self._is_complete = False
        self._under_way: dict[Wait, AbstractContextManager[None]] = {}
        self.rings: list[CallRing] = []
        self.abandoned: list[Any] = []
        self._helped: dict[Help, int] = {"soon": 0, "late": 0}  # operations under way
        self._waits = self._over = False
        self._changed = threading.Condition()
        self._helper: threading.Thread | None = None

    def watch(self, world: Any, place: Place) -> None:
        """Begin to see to the ends of all ranks. Collective."""
        self._control = world.Dup()
        here = place.local_size == place.size
        host = world.bcast("127.0.0.1" if here else socket.gethostname())
        self.lifelines = Lifelines(self, host, world.bcast, _PATIENCE_SECONDS)

    def check_usable(self) -> None:
        """A call begins; ``InputError`` if none may."""

    def poll(
        self,
        done: Callable[[], bool],
        look: Callable[[], object] | None = None,
        patient: bool = False,
    ) -> None:
        """Return as soon as `done` says so; ``TimeoutError`` if that is late, unless `patient`."""
        self._waits = True
        try:
            start = time.monotonic()
            next_look, pause = start + _LOOK_SECONDS, 1e-5
            for attempt in count():
                if done():
                    return
                if attempt < self._spins:
                    continue
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
                now = time.monotonic()
                if now < next_look:
                    continue
                next_look = now + _LOOK_SECONDS
                if look is not None:
                    look()
                if not patient and now - start > self.timeout:
                    raise TimeoutError
        finally:
            with self._changed:
                self._waits = False
                self._changed.notify()

    def began(self, wait: Wait, blocked: AbstractContextManager[None], help_: Help) -> None:
        """An operation is under way until `wait` has returned."""
        self._under_way[wait] = blocked
        if help_ == "none" or self.is_guest or MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return
        with self._changed:
            self._helped[help_] += 1
            self._changed.notify()
        if self._helper is None:
            self._helper = threading.Thread(target=self._help, name="mpi-progress", daemon=True)
            self._helper.start()

    def ended(self, wait: Wait, help_: Help) -> None:
        """The operation is complete, or given up."""
        del self._under_way[wait]
        if self._helped.get(help_):
            self._helped[help_] -= 1

    @property
    def help_needed(self) -> Help:
        """The help that operations need which are under way, and nobody waits for."""
        if self._waits:
            return "none"
        return "soon" if self._helped["soon"] else "late" if self._helped["late"] else "none"

    def _help(self) -> None:
        while not self._over:
            with self._changed:
                self._changed.wait(_HELP_SECONDS[self.help_needed])
            if self.help_needed != "none" and not self._over:
                self._control.Iprobe(MPI.ANY_SOURCE, _NOTHING)

    def close(self) -> None:
        """Leave after all ranks have come here or have ended."""
        self.lifelines.say_farewell()
        if not self._is_complete:
            self._is_complete = True
            for wait, blocked in list(self._under_way.items()):
                with blocked:
                    wait()
            self.poll(self.lifelines.all_ended.is_set, self._are_silent, patient=True)
            try:
                self.poll(self._are_silent)
            except TimeoutError:
                raise CommunicationError(
                    f"waited {self.timeout:g} s for other ranks at the end of the job"
                ) from None
            # Others may still find that something of theirs never will be.
            self.poll(self._control.Ibarrier().Test, patient=True)
        self._stop_helping()
        self.lifelines.leave()

    def leave(self) -> None:
        """Let the others know that this rank ends; it does so when MPI is finalised."""
        self.lifelines.say_farewell()
        self._stop_helping()

    def end(self) -> None:
        """MPI is about to be finalised, which waits for the others in any case."""
        with suppress(CommunicationError):
            for ring in self.rings:
                ring.compare()
        try:
            self.close()
        except CommunicationError as error:
            self.fail(str(error))

    def _stop_helping(self) -> None:
        """MPI must not be called once it is finalised."""
        with self._changed:
            self._over = True
            self._changed.notify()
        if self._helper is not None:
            self._helper.join()

    def _are_silent(self) -> bool:
        return all([ring.is_silent(self.lifelines.ended) for ring in self.rings])


class MPIGuestJob(MPIJob):
    """The ranks of a communicator of the program's own: no thread, no lifelines, no exit hook."""

    is_guest = True

    def check_usable(self) -> None:
        if MPI.Is_finalized():
            raise InputError("MPI is finalised: what was built on its communicator is of no use")
        if self.left:
            raise InputError("leave() was called: what was built on this group is of no use")

    def close(self) -> None:
        self.left = True

    leave = end = close


def visit_mpi(group: Any, device: str) -> Communicator:
    """A communicator of the ranks of an MPI communicator, which stays as it is. Collective."""
    if group == MPI.COMM_NULL:
        raise InputError("group: this process is no member of the communicator, or it was freed")
    if not isinstance(group, MPI.Intracomm):
        raise InputError("group: an MPI intercommunicator has two groups; give intercomm.Merge()")
    place = find_place()
    if group == MPI.COMM_WORLD and place is not None:
        world_of(place)  # refuses the MPI of another launcher, in which each rank is alone
    job = MPIGuestJob(group, torch.device("cpu"), place)
    if job.size == 1:
        comm: Communicator = SoloCommunicator(job)
    else:
        _free_unused()
        duplicate, begun = group.Idup()
        try:
            job.poll(begun.Test)
        except TimeoutError:
            raise CommunicationError(
                f"waited {job.timeout:g} s for all ranks to call with the same MPI communicator"
            ) from None
        comm = MPICommunicator(job, job.everyone(), duplicate)

    def check_device() -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError('device="cuda": no CUDA device is available here')

    comm.on_every_rank(check_device)
    comm.check_agreement("the group", device=device)
    if device == "cuda":
        job.device = torch.device("cuda", torch.cuda.current_device())
    return comm


class MPICommunicator(Communicator):
    """Ranks of an MPI communicator. CUDA tensors are staged through host memory."""

    def __init__(self, job: MPIJob, group: Group, comm: Any) -> None:
        super().__init__(comm.Get_rank(), job, group)
        self._comm = comm
        self._mpi_job = job
        self._ring = CallRing(comm, group)
        if job.is_guest:
            finalize(self, _unused.append, (comm, self._ring, job.begun))
        else:
            job.rings.append(self._ring)

    @classmethod
    def connect(cls, place: Place, backend: str, device: str) -> MPICommunicator:
        """Join the job of MPI_COMM_WORLD."""
        world = world_of(place)
        least = partial(world.allreduce, op=MPI.MIN)
        _, chosen = choose(backend, device, place, least, auto="mpi")
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        job = MPIJob(world, chosen, place)
        job.watch(world, place)
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
            part.Free()
            return SoloCommunicator(self.job, group)
        return MPICommunicator(self._mpi_job, group, part)

    def _announce(self, call: Call) -> None:
        self._mpi_job.check_usable()
        self._ring.tell(call)

    def _waiter(self, requests: list[Any], lengths: Sequence[int] = (), nbytes: int = 0) -> Wait:
        """Wait for requests; the first of them are receives of so many bytes."""
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
                for request in requests[: len(lengths)]:  # Their memory may still be written.
                    if request != MPI.REQUEST_NULL:
                        request.Cancel()
                job.abandoned += requests
                raise
            finally:
                job.ended(wait, help_)
            for status, length in zip(statuses or (), lengths, strict=False):
                if status.Get_count(MPI.BYTE) != length:
                    raise MismatchError("data of another size arrived")

        job.began(wait, Blocked(self, call), help_)
        return wait

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, MPI.Exception) and error.Get_error_class() in (
            MPI.ERR_IN_STATUS,
            MPI.ERR_TRUNCATE,
        ):
            return MismatchError("data of another size arrived")
        return error


# Communicators that guests have made and need no more.
_unused: list[tuple[Any, CallRing, dict[str, int]]] = []


def _free_unused() -> None:
    """End them, once nothing is on its way there: a later one may get the same number from MPI."""
    for one in list(_unused):
        comm, ring, begun = one
        if ring.is_complete(begun):
            _unused.remove(one)
            comm.Free()


def _remove_names() -> None:
    """Remove the names of memory that MPICH shares, once all ranks have it."""
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
