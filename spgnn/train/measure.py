"""Measurements of training epochs: seconds, by kind of operator, and bytes of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
import torch

from spgnn.comm import Communicator, Ledger, bytes_of_ranks
from spgnn.exchange.plan import levels_of
from spgnn.torch_internals import DispatchMode, below_modes

# What the exchange of rows costs; gradients are summed apart.
ROW_OPERATIONS = ("alltoall", "broadcast", "reduce")
CLOCKED_EVERY = 10


def is_clocked(number: int) -> bool:
    """True if the operator clock runs in an epoch, the `number`-th of this run."""
    return number % CLOCKED_EVERY == 1


def timed(seconds: Sequence[float]) -> list[float]:
    """The seconds of the epochs that count, of all of a run; of the first alone if none does."""
    return [s for i, s in enumerate(seconds) if i and not is_clocked(i)] or list(seconds[:1])


class Measurements:
    """Seconds and bytes of this rank's training epochs, by the ledger of the communicator."""

    def __init__(self, ledger: Ledger, device: torch.device) -> None:
        self.seconds: list[float] = []
        self.sent_bytes: list[int] = []
        self.received_bytes: list[int] = []
        self.sent_out: list[Any] = []
        self.breakdowns: list[list[float]] = []
        self._ledger, self._device = ledger, device

    def epoch(self, body: Callable[[], torch.Tensor]) -> float:
        """Run one epoch; returns the loss that `body` computes. The host waits for it alone."""
        clock = OperatorClock(self._device, self._ledger) if is_clocked(len(self.seconds)) else None
        before = self._ledger.copy()
        start = self._ledger.clock()
        with clock.timing_exchanges() if clock else nullcontext():
            loss = float(body())
        seconds = self._ledger.clock() - start
        moved = self._ledger.since(before)
        self.seconds.append(seconds)
        self.sent_bytes.append(_row_bytes(moved, "sent_bytes"))
        self.received_bytes.append(_row_bytes(moved, "received_bytes"))
        self.sent_out.append(_row_bytes(moved, "sent_out"))
        if clock is not None:
            self.breakdowns.append(breakdown(seconds, clock, moved))
        return loss

    def mean_sent_out(self) -> list[int]:
        """Bytes sent out of groups of each size in an epoch."""
        none = np.zeros(len(self._ledger.group_sizes), np.int64)
        epochs = max(len(self.sent_out), 1)
        return [int(total) // epochs for total in sum(self.sent_out, none)]

    def mean_breakdown(self) -> list[float]:
        """Seconds by category in a clocked epoch; zeros without one."""
        epochs = self.breakdowns or [[0.0] * len(CATEGORIES)]
        return [fmean(parts) for parts in zip(*epochs, strict=True)]


def gathered(comm: Communicator, values: Any) -> np.ndarray[Any, Any]:
    """One row of numbers from each rank, float64 [P, numbers]. Collective."""
    mine = torch.as_tensor(np.asarray(values, dtype=np.float64)).reshape(1, -1)
    rows = torch.empty(comm.size, mine.shape[1], dtype=torch.float64)
    if mine.shape[1]:
        comm.all_gather(mine, rows, [1] * comm.size)
    return rows.numpy()


def volume(comm: Communicator, sent: int, received: int) -> dict[str, int | float]:
    """Bytes of all ranks, given those of this one. Collective."""
    # float64 holds bytes exactly up to 2⁵³.
    return bytes_of_ranks(*gathered(comm, [sent, received]).T)


def volume_by_level(comm: Communicator, sent: int, out: Sequence[int]) -> dict[str, Any] | None:
    """Bytes inside nodes and between them; ``None`` where nodes are not known. Collective."""
    if not comm.ledger.node_size:
        return None
    levels = gathered(comm, -np.diff([sent, *out, 0])).T
    return {
        level: {"total_bytes": int(by_rank.sum()), "max_send_bytes": int(by_rank.max())}
        for level, by_rank in zip(levels_of(comm.ledger.group_sizes), levels, strict=True)
    }


def _row_bytes(ledger: Ledger, direction: str) -> Any:
    moved = (t for name, t in ledger.operations.items() if name in ROW_OPERATIONS)
    return sum(getattr(traffic, direction) for traffic in moved)


# Products with sparse matrices and their gradients in values are spmm; what works on rows around
# an exchange is pack.
_OPERATORS = {
    "spmm": "spmm extreme extreme_adjoint pick_extremes sddmm edge_sum edge_products edge_extremes "
    "attention attention_backward attention_v2 attention_v2_backward",
    "pack": "gather_rows gather_rows_adjoint scatter_add_rows quantise_rows dequantise_rows",
    "gemm": "gemm_product gemm_gradient gemm_narrow_product gemm_narrow_gradient "
    "gemm_products gemm_gradients gemm_passed",
}
# By operator, whatever its overload.
COMPUTE = {f"spgnn::{name}": kind for kind, names in _OPERATORS.items() for name in names.split()}
COMPUTE |= dict.fromkeys(
    ("aten::mm", "aten::matmul", "aten::addmm", "aten::bmm", "aten::baddbmm"), "gemm"
)
# A distributed product in a compiled graph: not timed itself, but for the operators inside.
COMPOSED = "spgnn::product"
# Exchanges and kernels in one: what is neither an exchange nor an operator inside is its kernels.
ATTENTION = ("spgnn::attend", "spgnn::attend_backward")
TRANSPORT = {
    "alltoall": "alltoall",
    "broadcast": "bcast",
    "reduce": "bcast",
    "all_reduce": "allreduce",
}
CATEGORIES = ("spmm", "gemm", "pack", "alltoall", "bcast", "allreduce", "other")


class OperatorClock(DispatchMode):
    """Seconds in each kind of torch operator that runs while this mode is active."""

    def __init__(self, device: torch.device, ledger: Ledger | None = None) -> None:
        super().__init__()
        self.seconds: dict[str, float] = defaultdict(float)
        self._ledger = ledger
        self._now = perf_counter if ledger is None else ledger.clock
        # For the current stream alone: rows of others arrive on another one meanwhile.
        self._wait: Callable[[], None] = (
            (lambda: torch.cuda.current_stream(device).synchronize())
            if device.type == "cuda"
            else lambda: None
        )

    @contextmanager
    def timing_exchanges(self) -> Iterator[None]:
        """Time operators, and exchanges until their rows have arrived."""
        assert self._ledger is not None
        self._ledger.wait = self._wait
        try:
            with self:
                yield
        finally:
            self._ledger.wait = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Time what compiled graphs call; without this torch would not run them compiled."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.name().partition(".")[0]
        if name == COMPOSED or name in ATTENTION:
            if name in ATTENTION:
                self._wait()
            start, counted = self._now(), self._counted()
            with self:
                result = func.redispatch(below_modes(args[0].device), *args, **(kwargs or {}))
            if name in ATTENTION:
                self._wait()
                rest = self._now() - start - (self._counted() - counted)
                self.seconds["spmm"] += max(0.0, rest)
            return result
        category = COMPUTE.get(name)
        if category is None:
            return func(*args, **(kwargs or {}))
        self._wait()
        start = self._now()
        result = func(*args, **(kwargs or {}))
        self._wait()
        self.seconds[category] += self._now() - start
        return result

    def _counted(self) -> float:
        """Seconds that some category has, exchanges included."""
        operations = {} if self._ledger is None else self._ledger.operations
        return sum(self.seconds.values()) + sum(moved.seconds for moved in operations.values())


def breakdown(epoch_seconds: float, clock: OperatorClock, ledger: Ledger) -> list[float]:
    """Seconds per category, in the order of :data:`CATEGORIES`; the rest is ``other``."""
    spent: dict[str, float] = dict(clock.seconds)
    for operation, traffic in ledger.operations.items():
        category = TRANSPORT.get(operation, "other")
        spent[category] = spent.get(category, 0.0) + traffic.seconds
    spent["other"] = max(0.0, epoch_seconds - sum(spent.values()))
    return [spent.get(category, 0.0) for category in CATEGORIES]
