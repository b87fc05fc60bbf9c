"""Links between ranks that are as slow as one wants."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spgnn.comm import Call, Communicator, Group, Reduction, RowCounts, Wait
from spgnn.errors import InputError, check_choice


def throttled(
    comm: Communicator,
    gigabits: float,
    latency: float = 0.0,
    *,
    inside: tuple[float, float] | None = None,
    ranks_a_node: int = 1,
    clock: str | Callable[[], float] = "wall",
    overlap: bool = True,
) -> Throttled:
    """The same ranks behind a slow network: operations take as long as it would need for them."""
    within = (gigabits, latency) if inside is None else inside
    for rate, delay in ((gigabits, latency), within):
        if not (rate > 0 and delay >= 0):
            raise InputError(
                f"a link of {rate:g} Gb/s and {delay:g} s: the rate must be above 0, the latency "
                "0 or more"
            )
    if ranks_a_node < 1:
        raise InputError(f"ranks_a_node must be 1 or more, got {ranks_a_node}")
    if isinstance(clock, str):
        check_choice("clock", clock, ("wall", "processor"))
    links = [_Link(rate * 1e9 / 8, delay) for rate, delay in (within, (gigabits, latency))]
    if clock == "processor":
        clock = time.process_time
    network = _Network(links, ranks_a_node, None if isinstance(clock, str) else clock, overlap)
    if network.clock is not None:
        comm.ledger.clock = network.now
    return Throttled(comm, network)


class RepeatedWork:
    """A clock of a rank's processor seconds, for epochs that repeat, step by step."""

    def __init__(self, idle: Sequence[float] = ()) -> None:
        self._idle, self.steps = idle, list[float]()
        self._seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin an epoch."""
        self._step, self._last = 0, time.process_time()

    def __call__(self) -> float:
        now, step = time.process_time(), self._step
        took, self._last, self._step = now - self._last, now, step + 1
        if step == len(self.steps):
            self.steps.append(took)
        self.steps[step] = min(took, self.steps[step])
        idle = self._idle[step] if step < len(self._idle) else 0.0
        self._seconds += max(self.steps[step] - idle, 0.0)
        return self._seconds


@dataclass
class _Link:
    """One rank's: bytes a second, seconds of a message, when it is free, for how long it worked."""

    rate: float
    latency: float
    free: float = 0.0
    busy: float = 0.0


@dataclass
class _Network:
    """One rank's links, inside its node and between nodes, and its clock."""

    links: list[_Link]
    ranks_a_node: int
    clock: Callable[[], float] | None
    overlap: bool
    ahead: float = 0.0
    waited: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def now(self) -> float:
        return time.monotonic() if self.clock is None else self.ahead + self.clock()

    def reach(self, moment: float) -> None:
        """Be at that moment: sleep until then, or set the clock."""
        if self.clock is not None:
            self.ahead = moment - self.clock()
            return
        while (left := moment - time.monotonic()) > 0:
            time.sleep(left)


class Throttled(Communicator):
    """Has another communicator do everything, and lets nothing end too early."""

    def __init__(self, inner: Communicator, network: _Network) -> None:
        super().__init__(inner.rank, inner.job, inner.group)
        self.moves_cuda = inner.moves_cuda
        self._inner, self._network = inner, network
        nodes = [rank // network.ranks_a_node for rank in inner.group.ranks]
        self._away = [node != nodes[inner.rank] for node in nodes]

    @property
    def link_seconds(self) -> float:
        """For how long this rank's busier link worked, or will have worked, since it was made."""
        return max(link.busy for link in self._network.links)

    @property
    def seconds(self) -> float:
        """The time on its clock."""
        return self._network.now()

    @property
    def waited(self) -> dict[tuple[str, str], float]:
        """Seconds, by its clock, that this rank waited for links and others."""
        return dict(self._network.waited)

    def _carried(
        self, operation: str, begin: Callable[[], Wait], moved: Sequence[tuple[float, float]]
    ) -> Wait:
        """Start an operation of so many messages in turn and bytes on each of the links."""
        network, start = self._network, self._network.now()
        latest = start
        if network.clock is not None:
            last = torch.tensor([round(start * 1e9)], device="cpu")
            self._inner.maximise_uncounted(last)
            latest = int(last) / 1e9
        arrival = latest
        for link, (messages, nbytes) in zip(network.links, moved, strict=True):
            if messages:
                link.free = max(link.free, latest) + nbytes / link.rate
                link.busy += nbytes / link.rate
                arrival = max(arrival, link.free + messages * link.latency)
        wait = begin()
        if network.clock is not None:
            network.reach(start)  # moving bytes is the network's work

        def finish() -> None:
            came = network.now()
            wait()
            network.reach(max(came, arrival))
            network.waited[operation, self.group.name] += network.now() - came

        if network.overlap:
            return finish
        finish()
        return lambda: None

    def _tree(self, rounds: float, nbytes: float) -> list[tuple[float, float]]:
        moved = [(0.0, 0.0), (0.0, 0.0)]
        moved[any(self._away)] = (rounds * math.ceil(math.log2(self.size)), nbytes)
        return moved

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        row_bytes = max(send.shape[1], recv.shape[1])  # without rows a buffer has no width
        messages, sent, received = [0, 0], [0, 0], [0, 0]
        pairs = zip(self._away, counts.send_list, counts.recv_list, strict=True)
        for peer, (away, to, from_) in enumerate(pairs):
            if peer != self.rank:
                messages[away] += bool(to or from_)
                sent[away] += to * row_bytes
                received[away] += from_ * row_bytes
        moved = [(n, max(s, r)) for n, s, r in zip(messages, sent, received, strict=True)]
        return self._carried("alltoall", lambda: self._inner._alltoallv(send, recv, counts), moved)

    def _all_gather(self, mine: Tensor, parts: Tensor, sizes: Sequence[int]) -> Wait:
        moved = self._tree(1, parts.nbytes - mine.nbytes)
        return self._carried(
            "all_gather", lambda: self._inner._all_gather(mine, parts, sizes), moved
        )

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        moved = self._tree(1, buffer.nbytes)
        return self._carried("broadcast", lambda: self._inner._broadcast(buffer, root), moved)

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        moved = self._tree(1, buffer.nbytes)
        return self._carried("reduce", lambda: self._inner._reduce(buffer, root), moved)

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        moved = self._tree(2, 2 * buffer.nbytes * (self.size - 1) / self.size)
        return self._carried("all_reduce", lambda: self._inner._all_reduce(buffer, op), moved)

    def maximise_uncounted(self, numbers: Tensor) -> None:
        self._inner.maximise_uncounted(numbers)

    def gather_uncounted(self, row: Tensor) -> Tensor:
        return self._inner.gather_uncounted(row)

    def _split(self, group: Group) -> Communicator:
        part = self._inner._split(group)
        return part if part.size == 1 else Throttled(part, self._network)

    def _announce(self, call: Call) -> None:
        self._inner._announce(call)

    def _translated(self, error: Exception) -> Exception:
        return self._inner._translated(error)
