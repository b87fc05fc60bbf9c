"""The communicator over torch.distributed: gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

# torch.optim imports it too, but later: its functions take the world of that moment as a default
# argument, which would keep the group, and gloo's threads, alive beyond close().
import torch.distributed.nn  # noqa: F401
from torch import Tensor

from spgnn.comm.base import Communicator, Reduction, RowCounts
from spgnn.comm.lifeline import Lifelines
from spgnn.comm.solo import SoloCommunicator

# Rank 0 may read and partition a large graph for hours while the others wait in a collective;
# a dead peer is noticed by its closed connection, not by this.
TIMEOUT = timedelta(hours=24)

FAILED_KEY = "spgnn/failed"
POLL_SECONDS = 0.5
# A launcher that saw a rank die ends the others within this time and says so better than they can.
LAUNCHER_SECONDS = 3.0


class TorchCommunicator(Communicator):
    """Ranks of a torch.distributed process group (the world, or a subgroup of it)."""

    def __init__(self, group: Any, parent: TorchCommunicator | None = None) -> None:
        ledger = parent.ledger if parent is not None else None
        super().__init__(dist.get_rank(group), dist.get_world_size(group), ledger)
        self._group = group
        self._failure: FailureWatch | None = parent._failure if parent is not None else None
        # All communicators of the job; the list is one and the same in each of them.
        self._family: list[TorchCommunicator] = parent._family if parent is not None else []
        self._family.append(self)
        self.moves_cuda = "nccl" in str(dist.get_backend_config(group))

    @classmethod
    def connect(cls, backend: str) -> TorchCommunicator:
        """Join the job that the environment describes (RANK, WORLD_SIZE, MASTER_ADDR, …)."""
        devices = "cpu:gloo,cuda:nccl" if backend == "nccl" else "cpu:gloo"
        dist.init_process_group(devices, timeout=TIMEOUT)
        world = cls(dist.group.WORLD)
        world._failure = FailureWatch(
            dist.distributed_c10d._get_default_store(), world.rank, world.size
        )
        return world

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Callable[[], None]:
        work = dist.all_to_all_single(
            recv, send, list(counts.recv), list(counts.send), group=self._group, async_op=True
        )
        return _waiter(work)

    def _broadcast(self, buffer: Tensor, root: int) -> Callable[[], None]:
        work = dist.broadcast(buffer, group=self._group, group_src=root, async_op=True)
        return _waiter(work)

    def _reduce(self, buffer: Tensor, root: int) -> Callable[[], None]:
        return _waiter(dist.reduce(buffer, group=self._group, group_dst=root, async_op=True))

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Callable[[], None]:
        reduction = dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX
        return _waiter(dist.all_reduce(buffer, reduction, group=self._group, async_op=True))

    def _send(self, buffer: Tensor, peer: int) -> Callable[[], None]:
        return _waiter(dist.isend(buffer, group=self._group, group_dst=peer))

    def _receive(self, buffer: Tensor, peer: int) -> Callable[[], None]:
        return _waiter(dist.irecv(buffer, group=self._group, group_src=peer))

    def barrier(self) -> None:
        """Return when all ranks of the group have entered."""
        self.agree(0)

    def subgroup(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """The communicator of the one among `groups` that holds this rank."""
        mine = next(list(group) for group in groups if self.rank in group)
        if len(mine) == self.size:
            return self
        if len(mine) == 1:
            return SoloCommunicator(self.ledger)
        ranks = dist.get_process_group_ranks(self._group)
        members = [ranks[member] for member in mine]
        group = dist.new_group(members, timeout=TIMEOUT, use_local_synchronization=True)
        return TorchCommunicator(group, parent=self)

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """Announce the failure to all ranks, print it, and exit."""
        assert self._failure is not None
        self._failure.announce(f"rank {dist.get_rank()}: {message}", status)

    def lost_contact(self, message: str) -> NoReturn:
        """End this rank after a peer vanished without a word."""
        assert self._failure is not None
        self._failure.announce_late(f"rank {dist.get_rank()}: {message}")

    def close(self) -> None:
        """Leave the job after all ranks have come here; no communicator of it works on."""
        self.barrier()
        self.leave()

    def leave(self) -> None:
        """Leave the job without waiting for the others, in good order."""
        if self._group is None:
            return
        assert self._failure is not None
        self._failure.leave()
        dist.destroy_process_group()
        # gloo's threads end with the last reference to their group. One that still releases the
        # tensors of its last operation needs the interpreter for that, and aborts the process
        # where the interpreter is already going down.
        for communicator in self._family:
            communicator._group = None


class FailureWatch:
    """One key in the job's store: the first rank that fails writes it, all others end on it.

    A rank blocked inside a collective cannot look, so a thread looks for it. Without this, ranks
    that do not talk to the failed one would run, or wait, on. Ranks that die before they can write
    are noticed by their :class:`Lifelines`.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        # A store serialises its requests per connection; ours must not wait behind a collective's.
        self._store = store.clone()
        self._rank = rank
        self._lifelines = Lifelines(self._store, os.environ["MASTER_ADDR"], rank, size)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="failure-watch", daemon=True)
        self._thread.start()

    def announce(self, message: str, status: int) -> NoReturn:
        """Be the first to say why the job ends; if another rank was first, end in silence."""
        self.stop()
        if self._first(message):
            print(f"error: {message}", file=sys.stderr, flush=True)
            # This rank may host the store: let the others read why before it goes away.
            time.sleep(2 * POLL_SECONDS)
        os._exit(status)

    def announce_late(self, message: str) -> NoReturn:
        """Say it only if neither another rank nor the launcher has ended the job by then."""
        time.sleep(LAUNCHER_SECONDS)
        self.announce(message, status=1)

    def leave(self) -> None:
        """The job is done: stop watching, and let the others know that this rank is not lost."""
        self.stop()
        self._lifelines.leave()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _first(self, message: str) -> bool:
        try:
            return bool(self._store.compare_set(FAILED_KEY, "", message) == message.encode())
        except (RuntimeError, dist.DistError):
            return True

    def _watch(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            try:
                failed, store_lost = self._store.check([FAILED_KEY]), False
            except (RuntimeError, dist.DistError):
                failed, store_lost = False, True
            if failed:
                # Launchers report whoever exits first; that should be the rank with the message.
                time.sleep(3 * POLL_SECONDS)
                os._exit(1)
            lost = self._lifelines.lost()
            if self._lifelines.over:
                return
            if lost is not None:
                self.announce_late(f"rank {self._rank}: lost contact with rank {lost}")
            if store_lost and not self._stopped.is_set():
                self.announce_late(f"rank {self._rank}: lost contact with the job's store")


def _waiter(work: Any) -> Callable[[], None]:
    def wait() -> None:
        work.wait()

    return wait
