"""The communicator of ranks that share a machine's memory: rows are copied, and nothing else.

Through sockets a row is copied four times, and threads that nobody sees have to be given a
processor for it: where ranks share processors, a call waits for several turns of the scheduler.
"""

from __future__ import annotations

import hashlib
import math
import os
import resource
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from spgnn._native import Endpoint, Operation
from spgnn.comm.communicator import Communicator, Reduction, SoloCommunicator, Wait
from spgnn.comm.failure import Group, Job, MismatchError
from spgnn.comm.traffic import RowCounts
from spgnn.layout import Int64Array
from spgnn.memory import processors

# Addresses for each rank's memory, which take memory only where used; all ranks map all others'.
_SPAN, _ALL_SPANS = 1 << 36, 1 << 45
# What a rank may have posted that others have not read, beyond which it waits for them.
BUDGET = 1 << 28
# Of one message, so that a rank's memory does not grow with its largest exchange.
MESSAGE_LIMIT = 1 << 26
# Operations under way, beyond which those are looked for that nobody waits for.
_MANY = 256
# Up to so many bytes of all ranks are read by everyone, and beyond summed by parts.
_READ_BY_ALL = 1 << 18
_KINDS: Final = {"alltoall": 1, "broadcast": 2, "reduce": 3, "gather": 4, "scatter": 5, "share": 6}


# Rows to send or receive, rank after rank, and so many units of bytes for each.
Side = tuple[Tensor, Int64Array]


class Memory:
    """The memory of all communicators of a rank, and the operations begun in it."""

    def __init__(self, endpoint: Endpoint, job: Job) -> None:
        self.endpoint = endpoint
        self._job = job
        # Whoever drops an operation must not have its buffer written to later.
        self._under_way: dict[Operation, Tensor] = {}
        self._followed: dict[Operation, Callable[[], None]] = {}

    def begin(
        self,
        where: tuple[int, int, int],
        send: Side,
        recv: Side,
        unit: int,
        *,
        same: bool = False,
        then: Callable[[], None] | None = None,
    ) -> Wait:
        """Post rows, and return a function that reads those of others."""
        (outgoing, to), (incoming, from_) = send, recv
        start, end = outgoing.data_ptr(), time.monotonic() + self._job.timeout
        begin = partial(self.endpoint.begin, *where, start, to, unit, same)
        while (begun := begin(incoming.data_ptr(), from_, then is not None, BUDGET)) is None:
            self.endpoint.pause()
            self.go_on(end)
        if len(self._under_way) > _MANY:
            for one in list(self._under_way):  # read into, though nobody has waited for it
                if self.endpoint.is_done(one):
                    self._under_way.pop(one, None)
        self._under_way[begun] = incoming
        if then is not None:
            self._followed[begun] = then

        def wait() -> None:
            end = time.monotonic() + self._job.timeout
            while not self.endpoint.wait(begun):
                self.go_on(end)
            self._under_way.pop(begun, None)
            if self._followed:
                self.go_on()
            if begun.mismatched:
                raise MismatchError("data of another size arrived")

        return wait

    def release(self) -> None:
        """Give the memory back; no operation may follow."""
        self._under_way.clear()
        self._followed.clear()
        del self.endpoint

    def go_on(self, end: float = math.inf) -> None:
        """Do what follows operations that are done; ``TimeoutError`` after the end."""
        if self._followed:
            self.endpoint.take_notice()
        for operation in list(self._followed):
            if self.endpoint.is_done(operation):
                then = self._followed.pop(operation, None)
                if then is not None:  # no other thread was faster
                    then()
        if time.monotonic() > end:
            raise TimeoutError


class SharedCommunicator(Communicator):
    """Ranks of one machine. CUDA tensors are staged through host memory."""

    def __init__(self, job: Job, group: Group, memory: Memory) -> None:
        ranks = list(group.ranks)
        super().__init__(ranks.index(job.rank), job, group)
        self.message_limit = MESSAGE_LIMIT
        self._memory = memory
        digest = hashlib.blake2b(group.key.encode(), digest_size=8).digest()
        self._channel = memory.endpoint.open(int.from_bytes(digest) | 1, ranks, self.rank)
        self._ones = np.ones(self.size, np.int64)
        self._nothing = torch.empty(0, device="cpu"), np.zeros(self.size, np.int64)

    @classmethod
    def of(cls, comm: Communicator) -> SharedCommunicator | str:
        """The same ranks, all of the job, if they can share memory, else why not. Collective."""
        token = secrets.randbits(62)
        span = min(_SPAN, _ALL_SPANS // comm.size)
        try:
            endpoint = Endpoint(span, token, comm.size, comm.rank, comm.ranks_here <= processors())
        except RuntimeError:
            endpoint = None
        file = -1 if endpoint is None else endpoint.file
        mine = torch.tensor([_machine(), os.getpid(), file, token], device="cpu")
        everyone = comm.gather_uncounted(mine).tolist()
        apart = len({machine for machine, *_ in everyone}) > 1
        met = (
            endpoint is not None
            and not apart
            and all(
                endpoint.meet(rank, pid, number, other)
                for rank, (_, pid, number, other) in enumerate(everyone)
                if rank != comm.rank
            )
        )
        limit = resource.RLIM_INFINITY
        with suppress(OSError):  # Some sandboxes do not tell.
            limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        obstacles = {
            "the ranks are not all on one machine": apart,
            f"every rank needs {comm.size * span >> 30} GiB of addresses, of which only what is "
            "used takes memory, and ulimit -v of some rank allows less": not met
            and limit != resource.RLIM_INFINITY,
            "the system denies some rank memory that others can map (memfd_create)": endpoint
            is None,
            "the ranks cannot find each other's memory through /proc, which takes one user and "
            "one process namespace": not met,
        }
        anywhere = torch.tensor([int(present) for present in obstacles.values()], device="cpu")
        comm.maximise_uncounted(anywhere)
        for what, present in zip(obstacles, anywhere.tolist(), strict=True):
            if present:
                return what
        assert endpoint is not None
        return cls(comm.job, comm.group, Memory(endpoint, comm.job))

    def settled(self) -> None:
        """Set-up is over: what was posted in it need not stay in memory."""
        super().settled()
        self._memory.endpoint.give_back()

    def release(self) -> None:
        """Give the memory back that ranks share."""
        self._memory.release()

    def _post(
        self,
        kind: str,
        send: Side | None,
        recv: Side | None,
        unit: int,
        *,
        same: bool = False,
        number: int | None = None,
        then: Callable[[], None] | None = None,
    ) -> Wait:
        if number is None:
            number = self._memory.endpoint.reserve(self._channel, 1)
        where = self._channel, number, _KINDS[kind]
        sides = send or self._nothing, recv or self._nothing
        return self._memory.begin(where, *sides, unit, same=same, then=then)

    def _from(self, root: int) -> Int64Array:
        """One unit from (or for) one rank."""
        counts = np.zeros(self.size, np.int64)
        counts[root] = 1
        return counts

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        unit = send.shape[1] if send.shape[0] else recv.shape[1] if recv.shape[0] else 0
        return self._post("alltoall", (send, counts.send), (recv, counts.recv), unit)

    def _all_gather(self, mine: Tensor, parts: Tensor, sizes: Sequence[int]) -> Wait:
        sides = (mine, len(mine) * self._ones), (parts, np.array(sizes))
        return self._post("share", *sides, parts.shape[1], same=True)

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        if self.rank != root:
            return self._post("broadcast", None, (buffer, self._from(root)), buffer.nbytes)
        return self._post("broadcast", (buffer, self._ones), None, buffer.nbytes, same=True)

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        send = (buffer, self._from(root))
        if self.rank != root:
            return self._post("reduce", send, None, buffer.nbytes)
        recv = buffer.new_empty((self.size, *buffer.shape))
        landed = self._post("reduce", send, (recv, self._ones), buffer.nbytes)

        def wait() -> None:
            landed()
            buffer.copy_(_combined(recv, "sum"))

        return wait

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        if self.size * buffer.nbytes > _READ_BY_ALL:
            return self._all_reduce_by_parts(buffer.view(-1), op)
        recv = buffer.new_empty((self.size, *buffer.shape))
        sides = (buffer, self._ones), (recv, self._ones)
        landed = self._post("gather", *sides, buffer.nbytes, same=True)

        def wait() -> None:
            landed()
            buffer.copy_(_combined(recv, op))

        return wait

    def _all_reduce_by_parts(self, flat: Tensor, op: Reduction) -> Wait:
        """Each rank combines a part of all buffers, which the others then read."""
        # Both numbers now: ranks may wait for several of these in different orders, and must share
        # a part that is combined even while they wait for something else.
        first, unit = self._memory.endpoint.reserve(self._channel, 2), flat.element_size()
        sizes = np.diff(np.arange(self.size + 1) * flat.numel() // self.size)
        own = int(sizes[self.rank])
        recv = flat.new_empty((self.size, own))
        sharing: list[Wait] = []

        def share() -> None:
            part = (_combined(recv, op).contiguous(), own * self._ones)
            sides = part, (flat, sizes)
            sharing.append(self._post("share", *sides, unit, same=True, number=first + 1))

        sides = (flat, sizes), (recv, own * self._ones)
        landed = self._post("scatter", *sides, unit, number=first, then=share)

        def wait() -> None:
            landed()
            end = time.monotonic() + self.job.timeout
            while not sharing:
                self._memory.go_on(end)
            sharing[0]()

        return wait

    def _split(self, group: Group) -> Communicator:
        if len(group.ranks) == 1:
            return SoloCommunicator(self.job, group)
        return SharedCommunicator(self.job, group, self._memory)


def _combined(rows: Tensor, op: Reduction) -> Tensor:
    """The sum or maximum over all ranks [size, …]: the same bits wherever it is done."""
    if rows.dtype == torch.bool:
        return rows.any(0)
    return rows.amax(0) if op == "max" else rows.sum(0, dtype=rows.dtype)


def _machine() -> int:
    """A number of this machine, and of this start of it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = socket.gethostname() + (boot.read_text() if boot.exists() else "")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())
