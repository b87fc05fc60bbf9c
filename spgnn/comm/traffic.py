"""Rows that ranks send each other, and the account of what that cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError
from spgnn.layout import Int64Array

Numbers = Sequence[int] | Int64Array
Stretch = tuple[int, int, int]  # a peer, and the first and last (exclusive) of its rows


class RowCounts:
    """Rows this rank sends to and receives from each peer of a group, in rank order.

    Immutable, so whatever a call needs of it is computed once for all epochs. Equal if all counts
    are equal.

    Parameters
    ----------
    send, recv : sequence of int, one per peer
        Held as int64 arrays.
    largest : int
        The most rows that any pair of the *whole group* exchanges. All ranks hold the same
        number, so all agree on how many rounds a split exchange takes.
    call : int
        The call of the group in which ranks told each other, negative for the way back; 0 if none.

    Raises
    ------
    InputError
        If the two differ in length, or a count is negative or larger than `largest`.
    """

    send: Int64Array
    recv: Int64Array
    largest: int

    def __init__(self, send: Numbers, recv: Numbers, largest: int, call: int = 0) -> None:
        self.send, self.recv, self.largest = _frozen(send), _frozen(recv), int(largest)
        self.call, back = call, ", backwards" if call < 0 else ""
        self.planned = f", planned in call {abs(call)}{back}" if call else ""
        if self.send.shape != self.recv.shape or self.send.ndim != 1:
            raise InputError(
                f"rows are sent to {self.send.shape} peers but received from {self.recv.shape}"
            )
        for counts in (self.send, self.recv):
            if counts.size and not 0 <= counts.min() <= counts.max() <= self.largest:
                raise InputError(
                    f"counts of rows must be in [0, {self.largest}], "
                    f"got {counts.min()} to {counts.max()}"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowCounts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"RowCounts(send={self.send}, recv={self.recv}, largest={self.largest})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RowCounts, (self.send, self.recv, self.largest, self.call)

    def reversed(self) -> RowCounts:
        """The counts of the adjoint exchange; its own reversed is this one."""
        return self._reversed

    @cached_property
    def sent(self) -> int:
        return int(self.send.sum())

    @cached_property
    def received(self) -> int:
        return int(self.recv.sum())

    @cached_property
    def send_list(self) -> list[int]:
        """The counts as torch.distributed takes them."""
        return list(self.send.tolist())

    @cached_property
    def recv_list(self) -> list[int]:
        return list(self.recv.tolist())

    @cached_property
    def targets(self) -> list[Stretch]:
        """The peers that get rows, and where those lie."""
        return _stretches(self.send)

    @cached_property
    def sources(self) -> list[Stretch]:
        """The peers that send rows, and where those go."""
        return _stretches(self.recv)

    @cached_property
    def _reversed(self) -> RowCounts:
        other = RowCounts(self.recv, self.send, self.largest, -self.call)
        other.__dict__["_reversed"] = self
        return other

    @cached_property
    def _key(self) -> tuple[bytes, bytes, int]:
        return self.send.tobytes(), self.recv.tobytes(), self.largest


def _frozen(counts: Numbers) -> Int64Array:
    if isinstance(counts, np.ndarray) and counts.dtype == np.int64 and not counts.flags.writeable:
        return counts
    array = np.array(counts, dtype=np.int64)
    array.setflags(write=False)
    return array


def _stretches(counts: Int64Array) -> list[Stretch]:
    peers = np.flatnonzero(counts)
    last = np.cumsum(counts)[peers]
    first = last - counts[peers]
    return list(zip(peers.tolist(), first.tolist(), last.tolist(), strict=True))


@dataclass
class Account:
    """The cost of one kind of operation on this rank so far."""

    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    sent_out: Any = 0
    """Of `sent_bytes`, those that leave this rank's group of each size, nodes last; int64 [sizes].

    0 where the ledger knows no nodes.
    """
    received_between: int = 0
    seconds: float = 0.0
    """Seconds this rank was blocked, in starting the operation and in waiting for its end.

    A transport that orders operations on a stream of the device blocks nobody: see `Ledger.wait`.
    """


@dataclass
class Ledger:
    """The traffic of each operation."""

    operations: dict[str, Account] = field(default_factory=dict)
    node_size: int = 0
    """Neighbouring ranks on a node, if known: bytes between nodes are counted apart."""
    groups: tuple[int, ...] = ()
    """Sizes of smaller groups inside a node whose bytes are counted apart."""
    wait: Callable[[], None] | None = None
    """Waits for the device around each exchange, while its seconds are to be the device's."""
    clock: Callable[[], float] = perf_counter
    """The time in seconds, of exchanges and of training."""

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Sizes of groups of neighbouring ranks, those of nodes last; none if nodes are unknown."""
        return (*self.groups, self.node_size) if self.node_size else ()

    def know(self, node_size: int, groups: tuple[int, ...]) -> None:
        """From now on count what leaves groups of these sizes."""
        self.node_size, self.groups = node_size, groups
        for traffic in self.operations.values():
            traffic.sent_out = 0

    def of(self, operation: str) -> Account:
        """The running account of one operation."""
        return self.operations.setdefault(operation, Account())

    def copy(self) -> Ledger:
        """A snapshot, to subtract from a later one."""
        return Ledger({name: Account(**vars(t)) for name, t in self.operations.items()})

    def since(self, earlier: Ledger) -> Ledger:
        """The traffic after the snapshot `earlier`."""
        added = {}
        for name, now in self.operations.items():
            before = earlier.operations.get(name, Account())
            if now.calls == before.calls:
                continue
            added[name] = Account(**{k: v - getattr(before, k) for k, v in vars(now).items()})
        return Ledger(added)


def bytes_of_ranks(sent: npt.NDArray[Any], received: npt.NDArray[Any]) -> dict[str, int | float]:
    """The figures of what each rank sends and receives, as reports have them."""
    moved = np.maximum(sent, received)
    return {
        "total_bytes": int(sent.sum()),
        "max_send_bytes": int(sent.max()),
        "max_recv_bytes": int(received.max()),
        "avg_send_bytes": float(sent.mean()),
        "busiest_bytes": int(moved.max()),
        "busiest_rank": int(moved.argmax()),
    }
