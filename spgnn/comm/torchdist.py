"""The communicator over torch.distributed: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from spgnn.comm.communicator import Blocked, Communicator, Reduction, SoloCommunicator, Wait
from spgnn.comm.connect import Rendezvous, has_address, least, meet
from spgnn.comm.failure import CONNECT_SECONDS, Group, Job, Lifelines, StartError, StreamCall
from spgnn.comm.place import Place, choose
from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.torch_internals import groups_made, set_timeout

_INTERFACE = "GLOO_SOCKET_IFNAME"
_LIFELINE_KEY = "spgnn/lifeline"
_BROKEN = ("connection closed", "connection reset", "broken pipe", "socket", "pair closure")
_NCCL_BROKEN = ("ncclremoteerror", "remote process exit", "communicator was aborted")
# NCCL's own watchdog aborts the process with pages of text: ours is to speak before.
WATCHDOG_SECONDS = 30.0


class TorchJob(Job):
    """A job whose ranks have process groups of torch."""

    def __init__(
        self, rank: int, size: int, device: torch.device, meeting: Rendezvous, backend: str
    ) -> None:
        super().__init__(rank, size, device)
        self.streams = backend == "nccl"
        self.members: list[TorchCommunicator] = []
        self.under_way = 0  # operations that were begun and not waited for yet
        self._store = store = meeting.store  # On rank 0, it may itself live in this process.

        def publish(text: str | None) -> str:
            if text is not None:
                store.set(_LIFELINE_KEY, text)
            return str(store.get(_LIFELINE_KEY).decode())

        self.lifelines = Lifelines(self, meeting.host, publish, meeting.patience)

    def settle(self) -> None:
        """Wait minutes from now on, not hours; NCCL has a limit of its own, which is set too."""
        super().settle()
        for member in self.members:
            if member.moves_cuda and self.lifelines is not None:
                set_timeout(member.process_group, _span(self.timeout + WATCHDOG_SECONDS))

    def note(self, call: StreamCall) -> None:
        """Have the lifelines' thread look when a call ends on the stream."""
        while self.on_stream and self.on_stream[0].ended.query():
            self.on_stream.popleft()
        self.on_stream.append(call)

    def leave(self) -> None:
        """Leave without waiting for the others, in good order."""
        if self.left:
            return
        self.left = True
        super().leave()
        if self.under_way:
            # gloo would wait for the operations that this rank has begun, hence for the others. A
            # group that is never destroyed does not; its threads end with the process.
            for member in self.members:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(member.process_group))
            return
        dist.destroy_process_group()
        self.forget()

    def forget(self) -> None:
        """Let go of all process groups."""
        for member in self.members:
            member.process_group = None


class TorchCommunicator(Communicator):
    """Ranks of a torch.distributed process group (the world, or a subgroup of it)."""

    message_limit = sys.maxsize  # gloo and NCCL count in 64 bits

    def __init__(self, job: TorchJob, group: Group, process_group: Any) -> None:
        super().__init__(process_group.rank(), job, group)
        self.process_group = process_group
        self.moves_cuda = "nccl" in str(dist.get_backend_config(process_group))
        self._torch_job = job
        job.members.append(self)

    @classmethod
    def connect(cls, place: Place, backend: str, device: str) -> TorchCommunicator:
        """Join the job and choose a device of this rank, of one kind on all ranks."""
        named = os.environ.get(_INTERFACE)
        # Ranks of one machine need no network, so one that is named for another does not matter.
        here = backend != "gloo" and place.local_size == place.size
        meeting = meet(place, None if here else named)
        if meeting.interface is not None and (not named or (here and not has_address(named))):
            # gloo would take the one that the host's name leads to, often the loopback.
            os.environ[_INTERFACE] = meeting.interface
        agree = least(meeting.store, place.size, "gpus")
        group = "gloo" if backend == "shm" else backend
        backend, chosen = choose(group, device, place, agree)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        # torch.optim imports it too, but later: its functions take the world of that moment as a
        # default argument, which would keep the group, and gloo's threads, alive beyond close().
        import_module("torch.distributed.nn")
        job = TorchJob(place.rank, place.size, chosen, meeting, backend)
        # A plain name, because torch does not know the hooks of a group with several backends
        # once any plugin is registered, and warns of that when the group is destroyed.
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
                store=meeting.store,
                rank=place.rank,
                world_size=place.size,
                timeout=_span(min(job.timeout, CONNECT_SECONDS)),
            )
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise StartError(f"rank {place.rank} cannot connect to the others: {reason}") from None
        # All ranks are there, so that connections took seconds; operations may wait for hours.
        set_timeout(dist.group.WORLD, _span(job.timeout))
        return cls(job, job.everyone(), dist.group.WORLD).greeted()

    def greeted(self) -> Self:
        """The same, once NCCL has connected the ranks on this one's device. Collective."""
        greeting = torch.zeros(self.size, 1, dtype=torch.uint8, device=self.device)
        if not self.moves_cuda or not self._on_stream(greeting):
            return self
        job, ones = self.job, RowCounts([1] * self.size, [1] * self.size, 1)
        call = self._next_call("NCCL's first messages (NCCL_DEBUG=INFO says more)")
        timeout, job.timeout = job.timeout, min(job.timeout, CONNECT_SECONDS)
        try:
            with Blocked(self, call):
                self._alltoallv(greeting, torch.empty_like(greeting), ones)()
                self._all_gather(greeting[:1], torch.empty_like(greeting), [1] * self.size)()
                self._all_reduce(greeting, "max")()
                _mark().synchronize()
        finally:
            job.timeout = timeout
        return self

    def release(self) -> None:
        """Let go of all process groups of the job."""
        self._torch_job.forget()

    def _group_for(self, buffer: Tensor) -> Any:
        """The process group that moves a tensor; `InputError` if this rank has left."""
        if self.process_group is None:
            raise InputError("this rank has left the job: what was built on it is of no use")
        return self.process_group

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        group, sizes = self._group_for(recv), (counts.recv_list, counts.send_list)
        return self._waiter(group.alltoall_base(recv, send, *sizes, dist.AllToAllOptions()), recv)

    def _all_gather(self, mine: Tensor, parts: Tensor, sizes: Sequence[int]) -> Wait:
        group = self._group_for(parts)
        if min(sizes) == max(sizes):
            return self._waiter(group._allgather_base(parts, mine), parts)
        if not self._on_stream(parts):  # gloo gathers parts of one size only
            return super()._all_gather(mine, parts, sizes)
        # A broadcast of each part, all in one launch: not padded, nothing is sent that is not read.
        blocks = list(parts.split(list(sizes)))
        return self._waiter(group.allgather([blocks], [mine]), parts)

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._waiter(self._group_for(buffer).broadcast([buffer], options), buffer)

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        if self.rank != root and not self._on_stream(buffer):
            buffer = buffer.clone()  # gloo adds up in it what passes through this rank
        options = dist.ReduceOptions()
        options.rootRank = root
        return self._waiter(self._group_for(buffer).reduce([buffer], options), buffer)

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
        return self._waiter(self._group_for(buffer).allreduce([buffer], options), buffer)

    def _split(self, group: Group) -> Communicator:
        job, span = self._torch_job, _span(self.job.timeout)
        # torch calls a group after its ranks and the number of groups that a rank has made before:
        # whoever has made fewer makes some of its own, or its peers wait for another name.
        most = torch.tensor([groups_made()], device="cpu")
        self.maximise_uncounted(most)
        if len(group.ranks) == 1:
            return SoloCommunicator(job, group)
        mine, own = list(group.ranks), [job.rank]
        while groups_made() < int(most):
            dist.new_group(own, timeout=span, use_local_synchronization=True)
        part = dist.new_group(mine, timeout=span, use_local_synchronization=True)
        return TorchCommunicator(job, group, part).greeted()

    def _on_stream(self, buffer: Tensor) -> bool:
        """True if NCCL moves it: operations are ordered on a stream, and their waits return."""
        return buffer.is_cuda

    def _waiter(self, work: Any, buffer: Tensor) -> Wait:
        job, call = self._torch_job, self.job.waiting
        job.under_way += 1
        begun = _mark() if self._on_stream(buffer) else None

        def wait() -> None:
            if begun is None:
                work.wait(_span(job.timeout))
            else:
                # With a time-out, NCCL would hold up the host instead of the stream.
                work.wait()
                if call is not None:
                    job.note(StreamCall(call, begun, _mark()))
            job.under_way -= 1

        return wait

    def _translated(self, error: Exception) -> Exception:
        text = str(error).splitlines()[0] if str(error) else ""
        if any(sign in str(error).lower() for sign in _NCCL_BROKEN):
            return ConnectionError(text)
        if "timed out" in text.lower():
            return TimeoutError()
        return ConnectionError(text) if any(sign in text.lower() for sign in _BROKEN) else error


def _mark() -> Any:
    """An event that says when all before it on the current stream is done."""
    event = torch.cuda.Event()
    event.record()
    return event


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
