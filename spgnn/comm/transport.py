"""What a backend provides, and what surrounds every call of it: counting, staging, errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Literal, NoReturn

import torch
from torch import Tensor

from spgnn.comm import agreement
from spgnn.comm.counts import RowCounts
from spgnn.comm.job import Call, CommunicationError, Group, Job, MismatchError
from spgnn.comm.ledger import Traffic

# MPI counts and some transports' lengths are 32-bit, so no single message may reach 2 GiB.
MESSAGE_LIMIT = 2**31 - 2**16

Reduction = Literal["sum", "max"]
Wait = Callable[[], None]


class Transport(ABC):
    """The lower half of a communicator.

    Attributes
    ----------
    rank, size : int
        This rank's number in the group and the number of ranks.
    group : Group
        Its name, and which ranks of the job are in it.
    job : Job
        Shared by a communicator and all its subgroups.
    moves_cuda : bool
        Whether the transport takes CUDA tensors; if not, they are staged through host memory.
    message_limit : int
        Most bytes handed to the transport as one message (but always at least one row).
    """

    moves_cuda = False

    def __init__(self, rank: int, job: Job, group: Group) -> None:
        self.rank = rank
        self.size = len(group.ranks)
        self.job = job
        self.group = group
        self.message_limit = MESSAGE_LIMIT

    # A backend starts an operation and returns what waits for its end.

    @abstractmethod
    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        """Start one all-to-allv of byte rows [rows, row_bytes]."""

    @abstractmethod
    def _broadcast(self, buffer: Tensor, root: int) -> Wait: ...

    @abstractmethod
    def _reduce(self, buffer: Tensor, root: int) -> Wait: ...

    @abstractmethod
    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait: ...

    def _announce(self, call: Call) -> None:  # noqa: B027  (only for backends that need it)
        """A call of this group begins; its data follow."""

    def _translated(self, error: Exception) -> Exception:
        """TimeoutError, ConnectionError or MismatchError for what the transport calls them."""
        return error

    # How it ends is the job's business, whichever of its communicators is asked.

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """End every rank of the job, promptly, with this rank's message on stderr."""
        self.job.fail(message, status)

    def close(self) -> None:
        """Wait until all ranks of the job have come here or have ended, then leave it."""
        self.job.close()

    def leave(self) -> None:
        """Leave the job without waiting for the others, which learn of it; once is enough."""
        self.job.leave()

    # What surrounds a call.

    def _next_call(self, what: str) -> Call:
        key = self.group.key
        number = self.job.begun[key] = self.job.begun.get(key, 0) + 1
        call = Call(self.group, number, what)
        if self.size > 1:
            self._announce(call)
        return call

    def _begin(
        self,
        operation: str,
        what: str,
        sent: int,
        received: int,
        counts: RowCounts | None = None,
        *,
        between: tuple[int, int] = (0, 0),
    ) -> tuple[Call, Traffic]:
        """Count a call that starts now; under ``SPGNN_DEBUG``, compare it with the others'."""
        account = self.job.ledger.of(operation)
        account.calls += 1
        account.sent_bytes += sent
        account.received_bytes += received
        account.sent_between += between[0]
        account.received_between += between[1]
        call = self._next_call(what)
        if self.job.debug and self.size > 1:
            with self._blocked(call):
                agreement.check_call(self, call)
                if counts is not None:
                    agreement.check_counts(self, call, counts)
        return call, account

    def _blocked(self, call: Call, account: Traffic | None = None) -> _Blocked:
        """Time what may block, let it be watched, and name the call if it fails."""
        return _Blocked(self, call, account)

    def _named(self, call: Call, error: Exception) -> Exception:
        match error:
            case TimeoutError():
                return CommunicationError(
                    f"waited {self.job.timeout:g} s in {call}; SPGNN_DEBUG=1 names the first call "
                    "that not all ranks make"
                )
            case ConnectionError():
                return self.job.explained(call, error)
            case MismatchError():
                return CommunicationError(
                    f"ranks do not agree on {call}: {error}; SPGNN_DEBUG=1 names the ranks"
                )
        return error

    def _staged(self, buffer: Tensor, filled: bool) -> Tensor:
        """The buffer itself, or host memory where the transport cannot reach the device.

        What is only received into is not copied to the host first.
        """
        if self._reaches(buffer):
            return buffer
        host = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=buffer.is_cuda)
        return host.copy_(buffer) if filled else host

    def _reaches(self, buffer: Tensor) -> bool:
        return self.moves_cuda or not buffer.is_cuda

    # For agreement.py: not counted, for they carry nothing of the user's.

    def maximise_uncounted(self, numbers: Tensor) -> None:
        """The elementwise maximum over the group, in place."""
        self._all_reduce(numbers, "max")()

    def gather_uncounted(self, row: Tensor) -> Tensor:
        """Everyone's `row` [n], all of one length, as [size, n] in rank order."""
        rows = row.view(torch.uint8).repeat(self.size, 1)
        landed = torch.empty_like(rows)
        ones = RowCounts([1] * self.size, [1] * self.size, 1)
        self._alltoallv(rows, landed, ones)()
        return landed.view(row.dtype)


class _Blocked:
    """What :meth:`Transport._blocked` returns; a generator would cost as much as a small call."""

    __slots__ = ("_account", "_call", "_start", "_transport")

    def __init__(self, transport: Transport, call: Call, account: Traffic | None) -> None:
        self._transport, self._call, self._account = transport, call, account

    def __enter__(self) -> None:
        self._transport.job.waiting = self._call
        self._start = perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._transport.job.waiting = None
        if self._account is not None:
            self._account.seconds += perf_counter() - self._start
        if isinstance(error, RuntimeError | OSError | MismatchError):
            named = self._transport._named(self._call, self._transport._translated(error))
            if named is not error:
                raise named from None
