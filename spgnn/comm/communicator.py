"""A group of ranks that exchange tensors.

A backend (:mod:`~spgnn.comm.torchdist`, :mod:`~spgnn.comm.mpi`, :mod:`~spgnn.comm.shared`) starts
a few operations, and returns functions that wait for their ends. Everything around them is here:
bytes are counted, long messages split, CUDA tensors staged where the transport cannot reach them,
and errors named after the call in which they happened.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import agreement
from spgnn.comm.failure import Call, CommunicationError, Group, Job, MismatchError, shown_ranks
from spgnn.comm.place import find_place
from spgnn.comm.traffic import Account, Ledger, RowCounts
from spgnn.errors import InputError
from spgnn.layout import Int64Array
from spgnn.torch_internals import named

# MPI's counts are 32-bit, so no single message may reach 2 GiB.
MESSAGE_LIMIT = 2**31 - 2**16

Reduction = Literal["sum", "max"]
Wait = Callable[[], None]
Result = TypeVar("Result")


class Pending:
    """An operation under way; its buffers must not be touched before :meth:`wait` returns."""

    def __init__(self, finish: Wait | None) -> None:
        self._finish = finish

    def wait(self) -> None:
        """Block until the operation is complete on this rank. Waiting again does nothing.

        `CommunicationError` if another rank is late, has ended, or sent data of another size.
        """
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class Communicator(ABC):
    """A group of ranks that exchange tensors; every call counts its bytes in :attr:`ledger`.

    All operations are collective over the group, and refused once one has failed. Tensors must be
    contiguous; autograd does not see what is written to them. Messages longer than
    :attr:`message_limit` bytes are split.

    Attributes
    ----------
    rank, size : int
        This rank's number in the group and the number of ranks.
    group : Group
        Its name, and its ranks' numbers in the job.
    job : Job
        Shared by a communicator and all its subgroups.
    moves_cuda : bool
        The transport takes CUDA tensors; if not, they are staged through host memory.
    message_limit : int
        Most bytes handed to the transport as one message (but always at least one row).
    handle : int
        A number by which compiled graphs name it.
    """

    moves_cuda = False
    message_limit = MESSAGE_LIMIT
    _apart: Communicator | None = None
    _broken = ""  # the line of the first call that failed: ranks are out of step since

    def __init__(self, rank: int, job: Job, group: Group) -> None:
        self.rank = rank
        self.size = len(group.ranks)
        self.job = job
        self.group = group
        self.handle = named(self)

    # A backend starts an operation and returns what waits for its end.

    @abstractmethod
    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        """Start one all-to-allv of byte rows [rows, row_bytes]."""

    def _all_gather(self, mine: Tensor, parts: Tensor, sizes: Sequence[int]) -> Wait:
        """Start to collect everyone's byte rows; here, each peer is sent a copy of its own."""
        counts = RowCounts([sizes[self.rank]] * self.size, sizes, max(sizes))
        return self._alltoallv(mine.repeat(self.size, 1), parts, counts)

    @abstractmethod
    def _broadcast(self, buffer: Tensor, root: int) -> Wait: ...

    @abstractmethod
    def _reduce(self, buffer: Tensor, root: int) -> Wait: ...

    @abstractmethod
    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait: ...

    @abstractmethod
    def _split(self, group: Group) -> Communicator:
        """A communicator of a subgroup, or of the same ranks."""

    def _announce(self, call: Call) -> None:  # noqa: B027  (only for backends that need it)
        """A call of this group begins; its data follow."""

    def _translated(self, error: Exception) -> Exception:
        """TimeoutError, ConnectionError or MismatchError for the transport's own errors."""
        return error

    # The job.

    @property
    def ledger(self) -> Ledger:
        """The rank's whole account, of this group and all others."""
        return self.job.ledger

    @property
    def is_main(self) -> bool:
        """True on rank 0, which prints and logs."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device for this rank's tensors."""
        return self.job.device

    @property
    def ranks_here(self) -> int:
        """Ranks of the job on this node, according to the launcher."""
        place = find_place()
        return 1 if place is None else place.local_size

    def ranks_a_node(self) -> int:
        """So many neighbouring ranks are on each node, according to the launcher. Collective.

        0 if nodes have different numbers of ranks, or ranks that are no neighbours.
        """
        place = find_place()
        here = (0, 1) if place is None else (place.local_rank, place.local_size)
        size = int(self.broadcast_value(here[1]))
        return size if self.agree(int(here != (self.rank % size, size))) == 0 else 0

    def settled(self) -> None:
        """Set-up is over: from now on this rank waits minutes for the others, not hours.

        For all communicators of the job; not collective. ``SPGNN_SETUP_SECONDS`` (a day) and
        ``SPGNN_TIMEOUT_SECONDS`` (ten minutes) set both times.
        """
        self.job.settle()

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """End every rank of the job, promptly, with this rank's message on stderr."""
        self.job.fail(message, status)

    def close(self) -> None:
        """Wait until all ranks of the job have come here or have ended, then leave it."""
        self.job.close()

    def leave(self) -> None:
        """Leave the job without waiting for the others, which learn of it; once is enough."""
        self.job.leave()

    def release(self) -> None:  # noqa: B027  (only for backends that need it)
        """Give up memory that must not outlive the interpreter; no operation may follow."""

    def check_agreement(self, what: str, /, **facts: Any) -> None:
        """Make sure that all ranks of the group hold the same facts before they do `what`.

        Facts are numbers, texts, tuples of them, ``None``, arrays or tensors. They are equal if
        their ``repr`` is; arrays, if dtype, shape and contents are. Costs one all-reduce of 24
        bytes while they do; the ledger does not count it. Else all ranks raise the same
        `InputError`, which names a fact and which ranks hold which value.
        """
        if self.size > 1:
            with Blocked(self, self._next_call(f"check_agreement({what})")):
                agreement.check_facts(self, what, facts, "")

    # Groups.

    def subgroup(self, groups: Sequence[Sequence[int]], name: str = "") -> Communicator:
        """Split the group into disjoint groups of ranks; returns the one this rank is in.

        Collective over this communicator; every rank passes the same groups. Messages call the new
        groups `name`, or list their ranks.
        """
        mine = next(list(group) for group in groups if self.rank in group)
        if len(mine) == self.size:
            return self
        call = self._next_call("subgroup")
        ranks = [self.group.ranks[member] for member in mine]
        key = f"{self.group.key}/{call.number}:{ranks[0]}"
        with Blocked(self, call):
            return self._split(Group(key, name or f"of {shown_ranks(ranks)}", ranks))

    def apart(self) -> Communicator:
        """The same ranks once more, for what is under way for long. Collective when first asked.

        Backends carry out the operations of one communicator in turn, so those that nobody waits
        for yet would hold up the others.
        """
        if self.size == 1:
            return self
        if self._apart is None:
            call, group = self._next_call("apart"), self.group
            key = f"{group.key}/{call.number}:apart"
            with Blocked(self, call):
                self._apart = self._split(Group(key, f"{group.name}, apart", group.ranks, True))
        return self._apart

    # Operations.

    def alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Pending:
        """Move rows: the first ``counts.send[0]`` rows of `send` go to rank 0, and so on.

        `send` [sum(counts.send), …] and `recv` [sum(counts.recv), …] are contiguous, of one dtype
        and one trailing shape; others are refused. Rows arrive in rank order.
        """
        _check_contiguous(send, recv)
        if send.shape[1:] != recv.shape[1:] or send.dtype != recv.dtype:
            raise InputError(
                f"alltoallv sends {_shown(send)} but receives {_shown(recv)}: "
                "dtypes and widths must be the same"
            )
        if (send.shape[0], recv.shape[0]) != (counts.sent, counts.received):
            raise InputError(
                f"alltoallv sends {send.shape[0]} rows and receives {recv.shape[0]}, but the "
                f"counts say {counts.sent} and {counts.received}"
            )
        # Not from a row: ranks without any must agree with the others on the number of rounds.
        row_bytes = prod(send.shape[1:]) * send.element_size()
        what = f"alltoallv({send.dtype}, {row_bytes} bytes a row{counts.planned})"
        call, account = self._begin("alltoall", what, row_bytes, counts)
        if counts.largest * row_bytes == 0:
            return Pending(None)
        with Blocked(self, call, account):
            wait = self._move_rows(send, recv, counts, row_bytes)

        def finish() -> None:
            with Blocked(self, call, account):
                wait()

        return Pending(finish)

    def broadcast(self, buffer: Tensor, root: int) -> Pending:
        """Copy `buffer` of rank `root` into everyone's; the root is charged once per receiver."""
        what, sends = f"broadcast({_shown(buffer)} from {root})", self.rank == root
        begun = self._begin_rooted("broadcast", what, buffer, root, sends)
        start = lambda piece: self._broadcast(piece, root)  # noqa: E731
        return self._in_pieces(buffer, begun, start, sends, not sends)

    def reduce(self, buffer: Tensor, root: int) -> Pending:
        """Sum everyone's `buffer` into that of `root`; the others' stay as they are."""
        what, receives = f"reduce({_shown(buffer)} to {root})", self.rank == root
        begun = self._begin_rooted("reduce", what, buffer, root, not receives)
        start = lambda piece: self._reduce(piece, root)  # noqa: E731
        return self._in_pieces(buffer, begun, start, True, receives)

    def all_reduce(self, buffer: Tensor, op: Reduction = "sum") -> Pending:
        """Sum (or maximise) elementwise over the group, in place, the same bits on every rank.

        Counted as a ring does it: each rank sends 2 (P - 1) / P of the buffer. Sums of 16-bit
        floats may be rounded after every addition; a sum of booleans says whether any is true.
        """
        _check_contiguous(buffer)
        share = 2 * (self.size - 1) * buffer.numel() * buffer.element_size() // self.size
        begun = self._begin("all_reduce", f"all_reduce({_shown(buffer)}, {op})", share)
        return self._in_pieces(buffer, begun, lambda piece: self._all_reduce(piece, op), True, True)

    def all_gather(self, mine: Tensor, parts: Tensor, sizes: Sequence[int]) -> None:
        """Collect everyone's `mine` [sizes[rank], f] in `parts` [sum(sizes), f], in rank order.

        Counted as an all-to-all of these rows: a rank sends its own to every other one.
        """
        _check_contiguous(mine, parts)
        counts = RowCounts([sizes[self.rank]] * self.size, sizes, max(sizes))
        row_bytes = prod(parts.shape[1:]) * parts.element_size()
        what = f"all_gather({parts.dtype}, {row_bytes} bytes a row)"
        call, account = self._begin("alltoall", what, row_bytes, counts)
        if counts.largest * row_bytes == 0:
            return
        with Blocked(self, call, account):
            self._move_rows(mine, parts, counts, row_bytes, sizes)()

    def scatter(self, parts: Tensor, mine: Tensor, sizes: Sequence[int], root: int = 0) -> None:
        """Give block r of the root's `parts` [sum(sizes), …] to rank r, in `mine` [sizes[r], …].

        Blocks may differ in size and be empty; `parts` and `sizes` are read on the root only.
        """
        sends = self.rank == root
        _check_contiguous(mine, *((parts,) if sends else ()))
        receives = [len(mine) if rank == root else 0 for rank in range(self.size)]
        # All make as many rounds.
        largest = self.agree(max(sizes, default=0) if sends else 0)
        counts = RowCounts(sizes if sends else [0] * self.size, receives, largest)
        self.alltoallv(parts if sends else mine[:0], mine, counts).wait()

    def barrier(self) -> None:
        """Return when all ranks of the group have entered."""
        self.agree(0)

    def agree(self, value: int, op: Reduction = "max") -> int:
        """The maximum (or sum) of one integer over the group."""
        buffer = torch.tensor([value], dtype=torch.int64, device="cpu")
        self.all_reduce(buffer, op).wait()
        return int(buffer)

    def exchange_counts(self, send: Sequence[int] | Int64Array) -> RowCounts:
        """Tell every peer how many rows it will get from this rank, and learn the same."""
        outgoing = torch.tensor(send, dtype=torch.int64, device="cpu")
        incoming = torch.empty_like(outgoing)
        ones = [1] * self.size
        self.alltoallv(outgoing, incoming, RowCounts(ones, ones, 1)).wait()
        return RowCounts(outgoing.numpy(), incoming.numpy(), self.agree(int(outgoing.max())))

    # Decisions of one rank that hold on all.

    def on_rank_zero(self, work: Callable[[], Result]) -> Result | None:
        """Do something on rank 0 alone; ``None`` on the others. Collective.

        An `InputError` of the work is raised on all ranks.
        """
        result, refusal = None, ""
        if self.rank == 0:
            try:
                result = work()
            except InputError as error:
                refusal = str(error)
        refusal = self.broadcast_value(refusal)
        if refusal:
            raise agreement.refused(refusal)
        return result

    def from_rank_zero(self, work: Callable[[], Any]) -> Any:
        """As `on_rank_zero`, but all ranks get the result, which JSON can carry. Collective."""
        return self.broadcast_value(self.on_rank_zero(work))

    def on_every_rank(self, work: Callable[[], Result]) -> Result:
        """Do something on all ranks; an `InputError` on some of them is one on all. Collective.

        Also on those that are not as far, and compare something that belongs to the work.
        """
        result, error = None, None
        try:
            result = work()
        except InputError as caught:
            if caught.everywhere:
                raise
            error = caught
        if self.size > 1:
            try:
                with Blocked(self, self._next_call("on_every_rank")):
                    agreement.check_facts(self, "on_every_rank", {}, str(error or ""))
            except InputError as of_another:
                # Or this rank has left the job, which no other one has heard of.
                error = error if error and of_another.everywhere else of_another
            except CommunicationError:  # others are elsewhere, perhaps by what is wrong here
                if error is None:
                    raise
        if error is not None:
            error.everywhere = True
            raise error
        return result  # type: ignore[return-value]

    def broadcast_value(self, value: Any, root: int = 0) -> Any:
        """The value of one rank, which JSON can carry, on all of them. Collective."""
        text = json.dumps(value).encode() if self.rank == root else b""
        buffer = torch.zeros(self.agree(len(text)), dtype=torch.uint8, device="cpu")
        if self.rank == root:
            buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        self.broadcast(buffer, root).wait()
        return json.loads(buffer.numpy().tobytes())

    # For agreement.py: not counted, for they carry nothing of the user's.

    def maximise_uncounted(self, numbers: Tensor) -> None:
        """The elementwise maximum over the group, in place."""
        self._all_reduce(numbers, "max")()

    def gather_uncounted(self, row: Tensor) -> Tensor:
        """Everyone's `row` [n], all of one length, as [size, n] in rank order."""
        mine = row.view(torch.uint8)[None]
        received = mine.new_empty(self.size, mine.shape[1])
        self._all_gather(mine, received, [1] * self.size)()
        return received.view(row.dtype)

    # What surrounds a call.

    def _next_call(self, what: str) -> Call:
        key = self.group.key
        if self._broken:
            raise CommunicationError(f"since a call failed, no other can follow: {self._broken}")
        number = self.job.begun[key] = self.job.begun.get(key, 0) + 1
        call = Call(self.group, number, what)
        if self.size > 1:
            self._announce(call)
        return call

    def _begin(
        self, operation: str, what: str, nbytes: int, counts: RowCounts | None = None
    ) -> tuple[Call, Account]:
        """Count a call that starts now; under ``SPGNN_DEBUG``, compare it with the others'.

        It moves so many bytes for each of the counts, or without counts both ways.
        """
        ledger = self.job.ledger
        account = ledger.operations.get(operation) or ledger.of(operation)
        account.calls += 1
        sent = received = 1
        if counts is not None:
            sent = counts.sent - counts.send_list[self.rank]
            received = counts.received - counts.recv_list[self.rank]
        account.sent_bytes += sent * nbytes
        account.received_bytes += received * nbytes
        if counts is not None and ledger.node_size:
            sizes, ranks = np.array(ledger.group_sizes)[:, None], np.asarray(self.group.ranks)
            away = ranks // sizes != self.job.rank // sizes  # by size, nodes last
            account.sent_out = account.sent_out + away @ counts.send * nbytes
            account.received_between += int(counts.recv[away[-1]].sum()) * nbytes
        call = self._next_call(what)
        if self.job.debug and self.size > 1:
            with Blocked(self, call):
                agreement.check_call(self, call)
                if counts is not None:
                    agreement.check_counts(self, call, counts)
        return call, account

    def _begin_rooted(
        self, operation: str, what: str, buffer: Tensor, root: int, sends: bool
    ) -> tuple[Call, Account]:
        """Count a call in which a buffer goes from or to one rank, for each of the others."""
        _check_contiguous(buffer)
        units, none = np.zeros((2, self.size), np.int64)
        units[np.arange(self.size) != self.rank if self.rank == root else root] = 1
        counts = RowCounts(units, none, 1) if sends else RowCounts(none, units, 1)
        return self._begin(operation, what, buffer.numel() * buffer.element_size(), counts)

    def _named(self, call: Call, error: Exception) -> Exception:
        match error:
            case TimeoutError():
                return CommunicationError(self.job.waited_in(call))
            case ConnectionError():
                return self.job.explained(call, error)
            case MismatchError():
                return CommunicationError(
                    f"ranks do not agree on {call}: {error}; SPGNN_DEBUG=1 names the ranks"
                )
        return error

    def _staged(self, buffer: Tensor, filled: bool) -> Tensor:
        """The buffer itself, or host memory where the transport cannot reach the device."""
        if self._reaches(buffer) and not (buffer.is_neg() or buffer.is_conj()):
            return buffer
        host = torch.empty(
            buffer.shape, dtype=buffer.dtype, pin_memory=buffer.is_cuda, device="cpu"
        )
        return host.copy_(buffer) if filled else host

    def _reaches(self, buffer: Tensor) -> bool:
        return self.moves_cuda or not buffer.is_cuda

    def _move_rows(
        self,
        send: Tensor,
        recv: Tensor,
        counts: RowCounts,
        row_bytes: int,
        sizes: Sequence[int] | None = None,
    ) -> Wait:
        """Begin to move rows; returns what waits until they are in `recv`.

        With the sizes of all ranks' `send`, everyone gets all of it.
        """
        outgoing = _as_byte_rows(self._staged(send.detach(), filled=True))
        recv = recv.detach()
        landed = self._staged(recv, filled=False)
        received = _as_byte_rows(landed)
        step = max(1, self.message_limit // max(row_bytes, 1))
        if counts.largest > step:
            outgoing = outgoing if sizes is None else outgoing.repeat(self.size, 1)
            self._alltoallv_in_rounds(outgoing, received, counts, step)
            wait: Wait = _nothing
        elif sizes is None:
            wait = self._alltoallv(outgoing, received, counts)
        else:
            wait = self._all_gather(outgoing, received, sizes)
        if landed is recv:
            return wait

        def copy() -> None:
            wait()
            recv.copy_(landed)

        return copy

    def _alltoallv_in_rounds(
        self, send: Tensor, recv: Tensor, counts: RowCounts, step: int
    ) -> None:
        send_parts = send.split(counts.send_list)
        recv_parts = recv.split(counts.recv_list)
        for first in range(0, counts.largest, step):
            outgoing = [part[first : first + step] for part in send_parts]
            incoming = [part[first : first + step] for part in recv_parts]
            sizes = RowCounts([len(part) for part in outgoing], [len(p) for p in incoming], step)
            received = recv.new_empty((sizes.received, recv.shape[1]))
            self._alltoallv(torch.cat(outgoing), received, sizes)()
            for part, rows in zip(incoming, received.split(sizes.recv_list), strict=True):
                part.copy_(rows)

    def _in_pieces(
        self,
        buffer: Tensor,
        begun: tuple[Call, Account],
        begin: Callable[[Tensor], Wait],
        reads: bool,
        writes: bool,
    ) -> Pending:
        """Start an operation on a buffer of any length, which this rank reads, writes, or both."""
        if self.size == 1 or buffer.numel() == 0:
            return Pending(None)
        with Blocked(self, *begun):
            flat = buffer.detach().view(-1)
            staged = self._staged(flat, filled=reads)
            most = max(1, self.message_limit // buffer.element_size())
            pieces = staged.split(most) if len(staged) > most else (staged,)
            waits = [begin(piece) for piece in pieces]

        def finish() -> None:
            with Blocked(self, *begun):
                for wait in waits:
                    wait()
                if writes and staged is not flat:
                    flat.copy_(staged)

        return Pending(finish)


class Blocked:
    """Time what may block, let it be watched, and name the call if it fails."""

    # A class, for a generator costs as much as a small call.
    __slots__ = ("_account", "_call", "_comm", "_start")

    def __init__(self, comm: Communicator, call: Call, account: Account | None = None) -> None:
        self._comm, self._call, self._account = comm, call, account

    def __enter__(self) -> None:
        job = self._comm.job
        if self._account is not None and (wait := job.ledger.wait) is not None:
            wait()  # for what came before
        job.waiting = self._call
        self._start = job.ledger.clock()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        job = self._comm.job
        if self._account is not None:
            if error is None and (wait := job.ledger.wait) is not None:
                wait()
            self._account.seconds += job.ledger.clock() - self._start
        job.waiting = None
        if isinstance(error, RuntimeError | OSError | MismatchError):
            named = self._comm._named(self._call, self._comm._translated(error))
            if named is not error:
                self._comm._broken = str(named)
                raise named from None


def _nothing() -> None:
    """Nothing is to be waited for."""


def _check_contiguous(*buffers: Tensor) -> None:
    # Transports read and write memory from the first element on, whatever the strides are.
    for buffer in buffers:
        if not buffer.is_contiguous():
            raise InputError("communication buffers must be contiguous")
        if buffer.is_meta:
            raise InputError("a communication buffer has no data: it is on the device meta")


def _shown(buffer: Tensor) -> str:
    return f"{buffer.dtype} {list(buffer.shape)}"


def _as_byte_rows(rows: Tensor) -> Tensor:
    """View [n, …] of any dtype as bytes [n, row_bytes], so that transports need no dtype."""
    if rows.shape[0] == 0:
        return torch.empty((0, 1), dtype=torch.uint8, device=rows.device)
    if rows.dim() != 2 or rows.stride(1) != 1:
        # Torch calls rows contiguous whatever the strides of dimensions of length 1 are.
        width = prod(rows.shape[1:])
        rows = rows.as_strided((rows.shape[0], width), (width, 1))
    return rows.view(torch.uint8)


class SoloCommunicator(Communicator):
    """A single rank, of a whole job or of a subgroup: every exchange is a copy to itself."""

    moves_cuda = True

    def __init__(self, job: Job | None = None, group: Group | None = None) -> None:
        job = Job() if job is None else job
        super().__init__(0, job, job.everyone() if group is None else group)

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        recv.copy_(send)
        return _nothing

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        return _nothing

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        return _nothing

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        return _nothing

    def _split(self, group: Group) -> Communicator:
        raise AssertionError("a single rank has no subgroup but itself")
