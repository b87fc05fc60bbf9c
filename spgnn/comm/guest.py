"""A guest in a program that has made a process group: nothing is started, watched or ended.

Ranks of the group meet in its store, because whoever calls with another group would otherwise wait
for a message that never comes. All else is the program's: how long ranks wait, and how they end. A
graph that needs groups of its own (rows and columns of a grid, or the host's side of a group that
has NCCL alone) makes such as torch does not list, so groups that the program makes later are called
as they would be; they end with the graph.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from spgnn.comm.communicator import Communicator, SoloCommunicator, Wait
from spgnn.comm.connect import inherited
from spgnn.comm.failure import Group, Job, guests, shown_ranks
from spgnn.comm.torchdist import TorchCommunicator
from spgnn.errors import InputError
from spgnn.torch_internals import store_of, timeout_of, unlisted_group

_FIRST_LOOK, _LOOK_SECONDS = 0.001, 0.25
_SUSPICIOUS_SECONDS = 1.0
_ENDED = "the process group has ended (destroy_process_group): what was built on it is of no use"
# By device, the communicator of the group of all ranks, for as long as the program has that group.
_of_default: dict[str, tuple[ref[Any], Communicator]] = {}
# By group: its communicators count calls on, so that a number names one call.
_begun: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


def visit_default(theirs: Any, device: str) -> Communicator:
    """As `visit`, of the group of all ranks: a second call returns the same communicator."""
    group, comm = _of_default.get(device, (None, None))
    if group is None or comm is None or group() is not theirs or comm.job.left:
        comm = visit(theirs, device)
        _of_default[device] = ref(theirs, lambda _: _of_default.pop(device, None)), comm
    return comm


def visit(group: Any, device: str) -> Communicator:
    """A communicator of a ProcessGroup, a DeviceMesh of one axis, or an MPI communicator."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and isinstance(group, mpi.Comm):
        from spgnn.comm.mpi import visit_mpi

        visitor = visit_mpi(group, device)
        guests.add(visitor)
        return visitor
    if not dist.is_initialized():
        kind = "" if isinstance(group, dist.ProcessGroup) else f"{type(group).__name__}: "
        raise InputError(f"group: {kind}torch.distributed has no process group, or no longer")
    if inherited and inherited[0]() is dist.group.WORLD:
        raise InputError(
            "group: this process is a fork of one with a process group, which forks cannot use; "
            "start it with the method 'spawn', or make the group in it"
        )
    meeting = _Meeting()
    try:
        theirs, config = _checked(group, device)
    except InputError as error:
        meeting.refuse(str(error), getattr(group, "group_name", ""))
        raise
    if dist.get_rank(theirs) < 0:
        raise InputError("group: this process is no member of the group")
    chosen = torch.device("cpu")
    if device == "cuda" or (device == "auto" and "nccl" in config):
        chosen = torch.device("cuda", torch.cuda.current_device())
    ranks = dist.get_process_group_ranks(theirs)
    job = GuestJob(theirs, chosen)
    if job.size == 1:
        comm: Communicator = SoloCommunicator(job)
    else:
        moves_host = "cpu:" in config
        timeout = timeout_of(theirs, torch.device("cpu" if moves_host else "cuda"))
        job.timeout = timeout.total_seconds()
        job.key = meeting.of(theirs.group_name, ranks, timeout.total_seconds())
        everyone, cuda = job.everyone(), "nccl" in config
        own = None if moves_host else job.make_group(everyone, cuda=False)
        comm = GuestCommunicator(job, everyone, own, cuda, only_host=True)
        comm.check_agreement("the group", backend=config, device=chosen.type)
        comm.greeted()
    guests.add(comm)
    return comm


def _checked(group: Any, device: str) -> tuple[Any, str]:
    """The process group, and what moves tensors of each device: ``cpu:gloo,cuda:nccl``."""
    is_mesh = hasattr(group, "get_group")
    if is_mesh and group.ndim != 1:
        axes = group.mesh_dim_names
        one = f'mesh["{axes[-1]}"]' if axes else f"mesh.get_group({group.ndim - 1})"
        raise InputError(f"group: the mesh has {group.ndim} axes; give one of them, as {one}")
    if is_mesh and group.get_coordinate() is None:
        return dist.GroupMember.NON_GROUP_MEMBER, ""
    theirs = group.get_group() if is_mesh else group
    if theirs is dist.GroupMember.NON_GROUP_MEMBER:
        return theirs, ""
    if not isinstance(theirs, dist.ProcessGroup):
        kind = type(group).__name__
        raise InputError(
            "group: must be a ProcessGroup, a DeviceMesh of one axis or an MPI communicator, got "
            f"{kind}"
        )
    if _has_ended(theirs):
        raise InputError(_ENDED)
    config = str(dist.get_backend_config(theirs))
    moves = ("cpu:" in config or "nccl" in config) and "fake" not in config
    if theirs.size() > 1 and (store_of(theirs) is None or not moves):
        raise InputError(f"group: its backend is {config}; use gloo, nccl or cpu:gloo,cuda:nccl")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError('device="cuda": no CUDA device is available here')
    return theirs, config


def _has_ended(theirs: Any) -> bool:
    try:
        return dist.get_rank(theirs) < 0
    except ValueError:
        return True


class GuestJob(Job):
    """The ranks of a group of the program's own, which alone says how long they wait."""

    is_guest = True

    def __init__(self, theirs: Any, device: torch.device) -> None:
        super().__init__(theirs.rank(), theirs.size(), device)
        self.begun = _begun.setdefault(theirs, self.begun)
        # Held, it would not end where the program ends it.
        self._theirs = ref(theirs)
        self.members: WeakSet[GuestCommunicator] = WeakSet()
        self.key = ""

    def theirs(self) -> Any:
        """The program's group; ``InputError`` if it has ended."""
        theirs = self._theirs()
        if theirs is None or _has_ended(theirs):
            raise InputError(_ENDED)
        if self.left:
            raise InputError("leave() was called: what was built on this group is of no use")
        return theirs

    def leave(self) -> None:
        """End the groups made for this one, at once; the program's stays."""
        self.left = True
        for member in self.members:
            member.release()

    def make_group(self, group: Group, cuda: bool) -> Any:
        """A process group of some ranks, for as long as somebody refers to it. Collective."""
        name = f"spgnn/{self.key}/{group.key}"
        store = PrefixStore(name, store_of(self.theirs()))
        rank, timeout = list(group.ranks).index(self.rank), timedelta(seconds=self.timeout)
        return unlisted_group(store, rank, len(group.ranks), name, timeout, cuda)

    def settle(self) -> None:
        """Time-outs are the program's to set."""


class GuestCommunicator(TorchCommunicator):
    """Ranks of the program's group; `own` is a group of ours, which moves all or the host's."""

    def __init__(
        self, job: GuestJob, group: Group, own: Any, moves_cuda: bool, *, only_host: bool = False
    ) -> None:
        Communicator.__init__(self, list(group.ranks).index(job.rank), job, group)
        self.moves_cuda = moves_cuda
        self._guest_job, self._own, self._only_host = job, own, only_host
        job.members.add(self)

    def release(self) -> None:
        """Let go of its own group; no operation may follow."""
        self._own = None

    def _group_for(self, buffer: Tensor) -> Any:
        theirs = self._guest_job.theirs()
        ours = self._own is not None and not (self._only_host and buffer.is_cuda)
        return self._own if ours else theirs

    def _split(self, group: Group) -> Communicator:
        job = self._guest_job
        if len(group.ranks) == 1:
            return SoloCommunicator(job, group)
        own = job.make_group(group, self.moves_cuda and job.device.type == "cuda")
        return GuestCommunicator(job, group, own, self.moves_cuda).greeted()

    def _waiter(self, work: Any, buffer: Tensor) -> Wait:
        def wait() -> None:
            work.wait()

        return wait


class _Meeting:
    """The place where members of a group meet, in the store of all ranks of the program."""

    def __init__(self) -> None:
        # A fake group's store holds nothing.
        others = dist.get_world_size() > 1 and dist.get_backend() != "fake"
        store: Any = store_of(dist.group.WORLD) if others else None
        self._store: Any = store and PrefixStore("spgnn", store)
        self._me, self._calls = dist.get_rank(), 0
        if self._store is not None:
            self._calls = self._store.add(f"calls {self._me}", 1)

    def refuse(self, reason: str, name: str) -> None:
        """Let those who wait for this rank, in a group of that name, know that it stays away."""
        if self._store is not None:
            self._say(name, 0, [], reason)

    def of(self, name: str, ranks: Sequence[int], patience: float) -> str:
        """Wait for the members of a group; returns a name that no other meeting has had."""
        store = self._store
        number = store.add(f"{name} {self._me}", 1)
        key = f"{name} {number}"
        self._say(name, number, ranks)
        if store.add(f"{key} came", 1) == len(ranks):
            store.set(f"{key} all", "1")
        begun, pause, looked = time.monotonic(), _FIRST_LOOK, 0.0
        while not store.check([f"{key} all"]):
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_SECONDS)
            waited, reason = time.monotonic() - begun, ""
            if waited > looked + _SUSPICIOUS_SECONDS:
                looked, reason = waited, self._why_in_vain(self._me, {})
            if waited > patience:
                missing = shown_ranks(self._missing(name, number, ranks))
                reason = reason or (
                    f"group: waited {patience:g} s for {missing} to call with the same group, of "
                    f"{shown_ranks(ranks)}"
                )
            if reason:
                time.sleep(2 * _SUSPICIOUS_SECONDS)  # Others look here for the same reason.
                self.refuse(reason, name)
                store.add(f"{key} came", -1)
                store.add(f"{name} {self._me}", -1)
                raise InputError(reason)
        self._say("", 0, [])
        if store.add(f"{key} left", 1) == len(ranks):
            for word in ("came", "all", "left"):
                store.delete_key(f"{key} {word}")
        return key

    def _say(self, name: str, number: int, ranks: Sequence[int], reason: str = "") -> None:
        place = [name, number, list(ranks), reason, self._calls]
        self._store.set(f"at {self._me}", json.dumps(place))

    def _missing(self, name: str, number: int, ranks: Sequence[int]) -> list[int]:
        return [rank for rank in ranks if self._store.add(f"{name} {rank}", 0) < number]

    def _why_in_vain(self, rank: int, waiting: dict[int, Any]) -> str:
        """The reason why a rank waits for ever: for one refused, or in a circle; else nothing."""
        if rank in waiting:
            # They were looked up one after the other: whoever is not there by now never was, since.
            next_ones = [*list(waiting)[1:], rank]
            places = list(waiting.values())
            if not all(r in self._missing(*at) for r, at in zip(next_ones, places, strict=True)):
                return ""
            groups = [f"rank {r} in that of {shown_ranks(at[2])}" for r, at in waiting.items()]
            return f"group: ranks wait for each other in different groups: {'; '.join(groups)}"
        if not self._store.check([f"at {rank}"]):
            return ""
        *place, reason, calls = json.loads(self._store.get(f"at {rank}"))
        if reason:
            # Of this group, or of one without a name, as a mesh of two axes.
            same = place[0] in ("", [*waiting.values()][-1][0])
            return f"on rank {rank}: {reason}" if same and calls == self._calls else ""
        reasons = (
            self._why_in_vain(other, {**waiting, rank: place}) for other in self._missing(*place)
        )
        return next(filter(None, reasons), "")
