"""Seconds of training on batches, by part, on every rank; what waiting for slower ranks costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from spgnn.comm import Communicator
from spgnn.train import gathered, timed

PARTS = ("sampling", "fetch", "push", "forward", "backward", "allreduce", "idle", "other")


class BatchSeconds:
    """Seconds of each epoch of this rank, by what the training thread did."""

    def __init__(self, comm: Communicator, pushed: Callable[[], tuple[float, float]]) -> None:
        self.epochs: list[dict[str, float]] = []
        self._waits: list[list[float]] = []
        self._comm, self._pushed = comm, pushed
        self._last = self._push = self._fetch = 0.0

    def begin(self) -> None:
        """Begin an epoch."""
        self.epochs.append(dict.fromkeys(PARTS, 0.0))
        self._waits.append([])
        self._push, self._fetch = self._moved()
        self._last = self._comm.ledger.clock()

    def lap(self, part: str) -> None:
        """The seconds since the last lap were those of a part."""
        spent, now = self.epochs[-1], self._comm.ledger.clock()
        seconds, self._last = now - self._last, now
        push, fetch = self._moved()
        spent["push"] += push - self._push
        spent["fetch"] += fetch - self._fetch
        seconds -= push - self._push + fetch - self._fetch
        self._push, self._fetch = push, fetch
        if part == "allreduce":
            self._waits[-1].append(seconds)
        spent[part] += seconds

    def report(self) -> dict[str, Any]:
        """Mean seconds of the epochs that count, by part and rank. Collective."""
        numbers = [int(number) for number in timed(list(range(len(self.epochs))))]
        waits = torch.tensor([w for n in numbers for w in self._waits[n]], dtype=torch.float64)
        shortest = -waits
        self._comm.all_reduce(shortest, "max").wait()
        idle = float((waits + shortest).sum())
        sums = {part: sum(self.epochs[n][part] for n in numbers) for part in PARTS}
        sums["idle"], sums["allreduce"] = idle, sums["allreduce"] - idle
        by_rank = gathered(self._comm, list(sums.values())) / max(len(numbers), 1)
        busy = by_rank.sum(axis=1) - by_rank[:, PARTS.index("idle")]
        parts = {
            part: {"by_rank": seconds.tolist(), "max_over_mean": _max_over_mean(seconds)}
            for part, seconds in zip(PARTS, by_rank.T, strict=True)
        }
        return {"parts": parts, "load_imbalance": _max_over_mean(busy)}

    def _moved(self) -> tuple[float, float]:
        """Seconds of pushes, and those blocked by other exchanges of rows, so far."""
        push, blocked = self._pushed()
        return push, self._comm.ledger.of("alltoall").seconds - blocked


def _max_over_mean(seconds: np.ndarray[Any, Any]) -> float | None:
    return float(seconds.max() / seconds.mean()) if seconds.any() else None
