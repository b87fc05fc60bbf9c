"""The communicator over torch.distributed: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# torch.optim imports it too, but later: its functions take the world of that moment as a default
# argument, which would keep the group, and gloo's threads, alive beyond close().
import torch.distributed.nn
from torch import Tensor

from spgnn.comm.communicator import Communicator, Reduction, SoloCommunicator, Wait
from spgnn.comm.connect import Rendezvous, has_address, least, meet
from spgnn.comm.failure import Group, Job, Lifelines, StartError
from spgnn.comm.place import Place, choose
from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.torch_internals import groups_made, set_timeout

_INTERFACE = "GLOO_SOCKET_IFNAME"
_LIFELINE_KEY = "spgnn/lifeline"
_BROKEN = ("connection closed", "connection reset", "broken pipe", "socket", "pair closure")


class TorchJob(Job):
    """A job whose ranks have process groups of torch.

    Without a `meeting` it is a guest in the program that made the group, which alone decides how
    long ranks wait and how they end. `ranks` are their numbers in torch's world.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        device: torch.device,
        meeting: Rendezvous | None = None,
    ) -> None:
        super().__init__(rank, len(ranks), device)
        self.ranks = ranks
        self.members: list[TorchCommunicator] = []
        self.under_way = 0  # operations that were begun and not waited for yet
        self._left = meeting is None
        if meeting is None:
            return
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
                set_timeout(member.process_group, _span(self.timeout))

    def leave(self) -> None:
        """Leave without waiting for the others, in good order."""
        if self._left:
            return
        self._left = True
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
        """Let go of all process groups.

        gloo's threads end with the last reference to their group. One that still releases the
        tensors of its last operation needs the interpreter for that, and aborts the process where
        the interpreter is already going down.
        """
        for member in self.members:
            member.process_group = None


class TorchCommunicator(Communicator):
    """Ranks of a torch.distributed process group (the world, or a subgroup of it)."""

    def __init__(self, job: TorchJob, group: Group, process_group: Any) -> None:
        super().__init__(dist.get_rank(process_group), job, group)
        self.process_group = process_group
        self.moves_cuda = "nccl" in str(dist.get_backend_config(process_group))
        self._torch_job = job
        job.members.append(self)

    @classmethod
    def connect(cls, place: Place, backend: str, device: str) -> TorchCommunicator:
        """Join the job and choose a device of this rank, of one kind on all ranks."""
        if dist.is_initialized():
            raise InputError(
                "torch.distributed has a process group already: connect(group=…) takes it, or "
                "leave out init_process_group; connect() makes one, which others can use"
            )
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
        job = TorchJob(place.rank, range(place.size), chosen, meeting)
        # A plain name, because torch does not know the hooks of a group with several backends
        # once any plugin is registered, and warns of that when the group is destroyed.
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
                store=meeting.store,
                rank=place.rank,
                world_size=place.size,
                timeout=_span(job.timeout),
            )
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise StartError(f"rank {place.rank} cannot connect to the others: {reason}") from None
        return cls(job, job.everyone(), dist.group.WORLD)

    @classmethod
    def guest(cls, group: Any, device: str) -> Communicator:
        """The ranks of a process group, or of a DeviceMesh of one dimension, of the caller's."""
        group = group.get_group() if hasattr(group, "get_group") else group
        rank = dist.get_rank(group)
        if rank < 0:
            raise InputError("connect(group=…): this process is no member of the group")
        config = str(dist.get_backend_config(group))
        if "cpu:" not in config:
            raise InputError(
                f"connect(group=…): its backend is {config}, which moves no numbers of the host; "
                'use init_process_group("cpu:gloo,cuda:nccl")'
            )
        on_gpu = device == "cuda" or (device == "auto" and "nccl" in config)
        chosen = torch.device("cpu")
        if on_gpu:
            chosen = torch.device("cuda", torch.cuda.current_device())
        job = TorchJob(rank, dist.get_process_group_ranks(group), chosen)
        return cls(job, job.everyone(), group) if job.size > 1 else SoloCommunicator(job)

    def release(self) -> None:
        """Let go of all process groups of the job."""
        self._torch_job.forget()

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        group, sizes = self.process_group, (counts.recv_list, counts.send_list)
        work = dist.all_to_all_single(recv, send, *sizes, group=group, async_op=True)
        return self._waiter(work, recv)

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        group = self.process_group
        work = dist.broadcast(buffer, group=group, group_src=root, async_op=True)
        return self._waiter(work, buffer)

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        group = self.process_group
        if self.rank != root and not buffer.is_cuda:
            buffer = buffer.clone()  # gloo adds up in it what passes through this rank
        work = dist.reduce(buffer, group=group, group_dst=root, async_op=True)
        return self._waiter(work, buffer)

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        group = self.process_group
        reduction = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
        work = dist.all_reduce(buffer, reduction, group=group, async_op=True)
        return self._waiter(work, buffer)

    def _split(self, group: Group) -> Communicator:
        job, span = self._torch_job, _span(self.job.timeout)
        # torch calls a group after its ranks and the number of groups that a rank has made before:
        # whoever has made fewer makes some of its own, or its peers wait for another name.
        most = torch.tensor([groups_made()])
        self.maximise_uncounted(most)
        if len(group.ranks) == 1:
            return SoloCommunicator(job, group)
        mine, own = [job.ranks[rank] for rank in group.ranks], [job.ranks[job.rank]]
        while groups_made() < int(most):
            dist.new_group(own, timeout=span, use_local_synchronization=True)
        made = dist.new_group(mine, timeout=span, use_local_synchronization=True)
        return TorchCommunicator(job, group, made)

    def _waiter(self, work: Any, buffer: Tensor) -> Wait:
        job = self._torch_job
        job.under_way += 1

        def wait() -> None:
            # With a time-out, NCCL would hold up the host instead of the stream; see settle().
            work.wait() if buffer.is_cuda else work.wait(_span(job.timeout))
            job.under_way -= 1

        return wait

    def _translated(self, error: Exception) -> Exception:
        text = str(error).splitlines()[0] if str(error) else ""
        if "timed out" in text.lower():
            return TimeoutError()
        return ConnectionError(text) if any(sign in text.lower() for sign in _BROKEN) else error


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
