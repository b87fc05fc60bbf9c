"""What training epochs cost: seconds, where they went, and bytes of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import fmean
from time import perf_counter

import torch

from spgnn.comm import Ledger
from spgnn.train.clock import CATEGORIES, OperatorClock, breakdown

# What the exchange of rows costs; gradients are summed apart.
ROW_OPERATIONS = ("alltoall", "broadcast", "reduce")
CLOCKED_EVERY = 10


def is_clocked(number: int) -> bool:
    """Whether the operator clock runs in an epoch, the `number`-th of this run.

    It waits for every operator on a GPU, and costs a few microseconds for each anywhere. So it
    runs in epochs 1, 11, 21, …, and these do not count as the time of an epoch; nor does the first,
    which makes what all others use again.
    """
    return number % CLOCKED_EVERY == 1


def timed(seconds: Sequence[float]) -> list[float]:
    """The seconds of the epochs that count, of all of a run; of the first alone if none does."""
    return [s for i, s in enumerate(seconds) if i and not is_clocked(i)] or list(seconds[:1])


class Measurements:
    """What this rank's training epochs cost.

    Parameters
    ----------
    ledger : Ledger
        Of the communicator of all ranks.
    device : torch.device

    Attributes
    ----------
    seconds, sent_bytes, received_bytes : list, one each epoch
    sent_between : list of int, one each epoch
        Bytes sent to other nodes, where the ledger knows nodes.
    breakdowns : list of seconds by category, one each clocked epoch
    """

    def __init__(self, ledger: Ledger, device: torch.device) -> None:
        self.seconds: list[float] = []
        self.sent_bytes: list[int] = []
        self.received_bytes: list[int] = []
        self.sent_between: list[int] = []
        self.breakdowns: list[list[float]] = []
        self._ledger, self._device = ledger, device

    def epoch(self, body: Callable[[], torch.Tensor]) -> float:
        """Run one epoch; returns the loss that `body` computes. The device is waited for once."""
        clock = OperatorClock(self._device, self._ledger) if is_clocked(len(self.seconds)) else None
        before = self._ledger.copy()
        start = perf_counter()
        with clock or nullcontext():
            result = body()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds = perf_counter() - start
        moved = self._ledger.since(before)
        self.seconds.append(seconds)
        self.sent_bytes.append(_row_bytes(moved, "sent_bytes"))
        self.received_bytes.append(_row_bytes(moved, "received_bytes"))
        self.sent_between.append(_row_bytes(moved, "sent_between"))
        if clock is not None:
            self.breakdowns.append(breakdown(seconds, clock, moved))
        return float(result)

    def mean_breakdown(self) -> list[float]:
        """Seconds by category in a clocked epoch; zeros without one."""
        epochs = self.breakdowns or [[0.0] * len(CATEGORIES)]
        return [fmean(parts) for parts in zip(*epochs, strict=True)]


def _row_bytes(ledger: Ledger, direction: str) -> int:
    totals: defaultdict[str, int] = defaultdict(int)
    for name, traffic in ledger.operations.items():
        totals[name] += getattr(traffic, direction)
    return sum(totals[name] for name in ROW_OPERATIONS)
