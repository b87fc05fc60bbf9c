"""The one communication protocol: what every backend offers, and how its bytes are counted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from time import perf_counter
from typing import Literal, NoReturn

import torch
from torch import Tensor

# MPI counts and some transports' lengths are 32-bit, so no single message may reach 2 GiB.
MESSAGE_LIMIT = 2**31 - 2**16

Reduction = Literal["sum", "max"]


@dataclass(frozen=True)
class RowCounts:
    """Rows this rank sends to and receives from each peer of a group, in rank order.

    Attributes
    ----------
    send, recv : tuple of int, one per peer
    largest : int
        The most rows that any pair of the *whole group* exchanges. All ranks hold the same
        number, so all agree on how many rounds a split exchange takes.
    """

    send: tuple[int, ...]
    recv: tuple[int, ...]
    largest: int

    def reversed(self) -> RowCounts:
        """The counts of the adjoint exchange."""
        return RowCounts(self.recv, self.send, self.largest)


@dataclass
class Traffic:
    """What one kind of operation cost this rank so far."""

    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    """Seconds this rank was blocked, in starting the operation and in waiting for its end."""


@dataclass
class Ledger:
    """Traffic by operation, counted where the bytes are handed to the transport."""

    operations: dict[str, Traffic] = field(default_factory=dict)

    def of(self, operation: str) -> Traffic:
        """The running account of one operation."""
        return self.operations.setdefault(operation, Traffic())

    def copy(self) -> Ledger:
        """A snapshot, to subtract from a later one."""
        return Ledger({name: Traffic(**vars(t)) for name, t in self.operations.items()})

    def since(self, earlier: Ledger) -> Ledger:
        """What was added after the snapshot `earlier`."""
        added = {}
        for name, now in self.operations.items():
            before = earlier.operations.get(name, Traffic())
            if now.calls == before.calls:
                continue
            added[name] = Traffic(**{k: v - getattr(before, k) for k, v in vars(now).items()})
        return Ledger(added)


class Pending:
    """An operation under way; its buffers must not be touched before :meth:`wait` returns."""

    def __init__(self, finish: Callable[[], None] | None, account: Traffic) -> None:
        self._finish = finish
        self._account = account

    def wait(self) -> None:
        """Block until the operation is complete on this rank. Waiting again does nothing."""
        if self._finish is not None:
            start = perf_counter()
            finish, self._finish = self._finish, None
            finish()
            self._account.seconds += perf_counter() - start


class Communicator(ABC):
    """A group of ranks that exchange tensors; every call counts its bytes in :attr:`ledger`.

    All operations are collective over the group and return a :class:`Pending`. Tensors must be
    contiguous. Messages longer than :attr:`message_limit` bytes are split.

    Attributes
    ----------
    rank, size : int
        This rank's number in the group and the number of ranks.
    moves_cuda : bool
        Whether the transport takes CUDA tensors; if not, they are staged through host memory.
    ledger : Ledger
        Shared by a communicator and all its subgroups, so it is the rank's whole account.
    message_limit : int
        Most bytes handed to the transport as one message (but always at least one row).
    """

    moves_cuda = False

    def __init__(self, rank: int, size: int, ledger: Ledger | None = None) -> None:
        self.rank = rank
        self.size = size
        self.ledger = Ledger() if ledger is None else ledger
        self.message_limit = MESSAGE_LIMIT

    # What a backend provides. Each starts the operation and returns what waits for its end.

    @abstractmethod
    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Callable[[], None]:
        """Start one all-to-allv of byte rows [rows, row_bytes]."""

    @abstractmethod
    def _broadcast(self, buffer: Tensor, root: int) -> Callable[[], None]: ...

    @abstractmethod
    def _reduce(self, buffer: Tensor, root: int) -> Callable[[], None]: ...

    @abstractmethod
    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Callable[[], None]: ...

    @abstractmethod
    def _send(self, buffer: Tensor, peer: int) -> Callable[[], None]: ...

    @abstractmethod
    def _receive(self, buffer: Tensor, peer: int) -> Callable[[], None]: ...

    @abstractmethod
    def barrier(self) -> None:
        """Return when all ranks of the group have entered."""

    @abstractmethod
    def subgroup(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Split the group into disjoint groups of ranks; returns the one this rank is in.

        Collective over this communicator; every rank passes the same groups.
        """

    @abstractmethod
    def fail(self, message: str, status: int = 1) -> NoReturn:
        """End every rank of the job, promptly, with this rank's message on stderr."""

    def close(self) -> None:  # noqa: B027  (most backends have nothing to do)
        """Wait for all ranks, then leave the job; all call it, last."""

    def leave(self) -> None:  # noqa: B027
        """Leave the job without waiting for the others; where that was done, do nothing."""

    # What users call.

    def alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Pending:
        """Move rows: the first ``counts.send[0]`` rows of `send` go to rank 0, and so on.

        Parameters
        ----------
        send, recv : Tensor [sum(counts.send), …] and [sum(counts.recv), …]
            Contiguous, same dtype and same trailing shape. Rows arrive in rank order.
        counts : RowCounts
        """
        # Not from a row: ranks without any must agree with the others on the number of rounds.
        row_bytes = prod(send.shape[1:]) * send.element_size()
        outgoing = sum(n for peer, n in enumerate(counts.send) if peer != self.rank)
        incoming = sum(n for peer, n in enumerate(counts.recv) if peer != self.rank)
        account = self._count("alltoall", outgoing * row_bytes, incoming * row_bytes)
        if counts.largest == 0:
            return Pending(None, account)
        start = perf_counter()
        send_bytes = self._reachable(_as_byte_rows(send))
        recv_bytes = _as_byte_rows(recv)
        landing = self._reachable(recv_bytes)
        step = max(1, self.message_limit // max(row_bytes, 1))
        wait: Callable[[], None] | None = None
        if counts.largest <= step:
            wait = self._alltoallv(send_bytes, landing, counts)
        else:
            self._alltoallv_in_rounds(send_bytes, landing, counts, step)
        account.seconds += perf_counter() - start

        def finish() -> None:
            if wait is not None:
                wait()
            if landing is not recv_bytes:
                recv_bytes.copy_(landing)

        return Pending(finish, account)

    def broadcast(self, buffer: Tensor, root: int) -> Pending:
        """Copy `buffer` of rank `root` into everyone's; the root is charged once per receiver."""
        sent = buffer.numel() * buffer.element_size()
        mine = (sent * (self.size - 1), 0) if self.rank == root else (0, sent)
        account = self._count("broadcast", *mine)
        return self._in_pieces(buffer, account, lambda piece: self._broadcast(piece, root))

    def reduce(self, buffer: Tensor, root: int) -> Pending:
        """Sum everyone's `buffer` into that of `root`; the others' contents become undefined."""
        sent = buffer.numel() * buffer.element_size()
        mine = (0, sent * (self.size - 1)) if self.rank == root else (sent, 0)
        account = self._count("reduce", *mine)
        return self._in_pieces(buffer, account, lambda piece: self._reduce(piece, root))

    def all_reduce(self, buffer: Tensor, op: Reduction = "sum") -> Pending:
        """Sum (or maximise) elementwise over the group, in place, the same bits on every rank.

        Counted as a ring does it: each rank sends 2 (P - 1) / P of the buffer.
        """
        share = 2 * (self.size - 1) * buffer.numel() * buffer.element_size() // self.size
        account = self._count("all_reduce", share, share)
        return self._in_pieces(buffer, account, lambda piece: self._all_reduce(piece, op))

    def reduce_scatter(self, parts: Tensor, mine: Tensor, sizes: Sequence[int]) -> None:
        """Sum block r of everyone's `parts` into rank r's `mine`; the adjoint of all_gather.

        Parameters
        ----------
        parts : Tensor [sum(sizes), f]
        mine : Tensor [sizes[rank], f]
            Receives the sum, added in rank order, so the result does not depend on timing.
        sizes : rows of each rank's block
        """
        own = sizes[self.rank]
        received = parts.new_empty((self.size * own, *parts.shape[1:]))
        counts = RowCounts(tuple(sizes), (own,) * self.size, max(sizes))
        self.alltoallv(parts, received, counts).wait()
        torch.sum(received.view(self.size, *mine.shape), dim=0, out=mine)

    def all_gather(self, mine: Tensor, parts: Tensor, sizes: Sequence[int]) -> None:
        """Collect everyone's `mine` [sizes[rank], f] in `parts` [sum(sizes), f], in rank order."""
        copies = mine.repeat((self.size,) + (1,) * (mine.dim() - 1))
        counts = RowCounts((sizes[self.rank],) * self.size, tuple(sizes), max(sizes))
        self.alltoallv(copies, parts, counts).wait()

    def scatter(self, parts: Tensor, mine: Tensor, sizes: Sequence[int], root: int = 0) -> None:
        """Give block r of the root's `parts` to rank r; blocks may differ in size and be empty.

        Parameters
        ----------
        parts : Tensor [sum(sizes), …]
            Read on the root only.
        mine : Tensor [sizes[rank], …]
        sizes : rows of each rank's block, the same list on every rank
        """
        row_bytes = prod(mine.shape[1:]) * mine.element_size()
        step = max(1, self.message_limit // max(row_bytes, 1))
        others = sum(sizes) - sizes[root] if self.rank == root else 0
        incoming = 0 if self.rank == root else sizes[self.rank]
        account = self._count("scatter", others * row_bytes, incoming * row_bytes)
        start = perf_counter()
        if self.rank == root:
            blocks = parts.split(list(sizes))
            waits = [
                self._send(piece, peer)
                for peer, block in enumerate(blocks)
                if peer != root
                for piece in _pieces(block, step)
            ]
            mine.copy_(blocks[root])
        else:
            waits = [self._receive(piece, root) for piece in _pieces(mine, step)]
        for wait in waits:
            wait()
        account.seconds += perf_counter() - start

    def agree(self, value: int, op: Reduction = "max") -> int:
        """The maximum (or sum) of one integer over the group."""
        buffer = torch.tensor([value], dtype=torch.int64)
        self.all_reduce(buffer, op).wait()
        return int(buffer)

    def exchange_counts(self, send: Sequence[int]) -> RowCounts:
        """Tell every peer how many rows it will get from this rank, and learn the same."""
        outgoing = torch.tensor(send, dtype=torch.int64)
        incoming = torch.empty_like(outgoing)
        ones = (1,) * self.size
        self.alltoallv(outgoing, incoming, RowCounts(ones, ones, 1)).wait()
        return RowCounts(tuple(send), tuple(incoming.tolist()), self.agree(max(send, default=0)))

    def _reachable(self, buffer: Tensor) -> Tensor:
        """The buffer itself, or a host copy where the transport cannot reach the device."""
        return buffer.cpu() if buffer.is_cuda and not self.moves_cuda else buffer

    def _count(self, operation: str, sent: int, received: int) -> Traffic:
        account = self.ledger.of(operation)
        account.calls += 1
        account.sent_bytes += sent
        account.received_bytes += received
        return account

    def _alltoallv_in_rounds(
        self, send: Tensor, recv: Tensor, counts: RowCounts, step: int
    ) -> None:
        send_parts = send.split(list(counts.send))
        recv_parts = recv.split(list(counts.recv))
        for first in range(0, counts.largest, step):
            outgoing = [part[first : first + step] for part in send_parts]
            incoming = [part[first : first + step] for part in recv_parts]
            sizes = RowCounts(
                tuple(len(part) for part in outgoing), tuple(len(part) for part in incoming), step
            )
            landed = recv.new_empty((sum(sizes.recv), recv.shape[1]))
            self._alltoallv(torch.cat(outgoing), landed, sizes)()
            for part, rows in zip(incoming, landed.split(list(sizes.recv)), strict=True):
                part.copy_(rows)

    def _in_pieces(
        self, buffer: Tensor, account: Traffic, begin: Callable[[Tensor], Callable[[], None]]
    ) -> Pending:
        if self.size == 1 or buffer.numel() == 0:
            return Pending(None, account)
        start = perf_counter()
        flat = buffer.view(-1)
        landing = self._reachable(flat)
        pieces = landing.split(max(1, self.message_limit // buffer.element_size()))
        waits = [begin(piece) for piece in pieces]
        account.seconds += perf_counter() - start

        def finish() -> None:
            for wait in waits:
                wait()
            if landing is not flat:
                flat.copy_(landing)

        return Pending(finish, account)


def _pieces(rows: Tensor, step: int) -> list[Tensor]:
    """Stretches of at most `step` rows as bytes; none if there are no rows."""
    return [_as_byte_rows(piece).view(-1) for piece in rows.split(step) if len(piece)]


def _as_byte_rows(rows: Tensor) -> Tensor:
    """View [n, …] of any dtype as bytes [n, row_bytes], so that transports need no dtype."""
    if not rows.is_contiguous():
        raise ValueError("communication buffers must be contiguous")
    if rows.shape[0] == 0:
        return torch.empty((0, 1), dtype=torch.uint8, device=rows.device)
    return rows.view(rows.shape[0], -1).view(torch.uint8)
