"""Where the time of an epoch goes, without a timer inside the algebra."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.comm import Ledger

COMPUTE = {
    "spgnn::spmm": "spmm",
    "spgnn::spmm_transposed": "spmm",
    "spgnn::gather_rows": "pack",
    "spgnn::scatter_add_rows": "pack",
    "aten::mm": "gemm",
    "aten::addmm": "gemm",
}
TRANSPORT = {
    "alltoall": "alltoall",
    "broadcast": "bcast",
    "reduce": "bcast",
    "all_reduce": "allreduce",
}
CATEGORIES = ("spmm", "gemm", "pack", "alltoall", "bcast", "allreduce", "other")


class OperatorClock(TorchDispatchMode):
    """Seconds in each kind of torch operator that runs while this mode is active.

    Parameters
    ----------
    device : torch.device
        On a GPU every timed operator is waited for, so the parts add up, but overlap is lost:
        epochs with this clock do not count as the time of an epoch.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds: dict[str, float] = defaultdict(float)
        self._wait: Callable[[], None] = (
            torch.cuda.synchronize if device.type == "cuda" else lambda: None
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        category = COMPUTE.get(func.name().partition(".")[0])
        if category is None:
            return func(*args, **(kwargs or {}))
        self._wait()
        start = perf_counter()
        result = func(*args, **(kwargs or {}))
        self._wait()
        self.seconds[category] += perf_counter() - start
        return result


def breakdown(epoch_seconds: float, clock: OperatorClock, ledger: Ledger) -> list[float]:
    """Seconds per category, in the order of :data:`CATEGORIES`; the rest is ``other``."""
    spent: dict[str, float] = dict(clock.seconds)
    for operation, traffic in ledger.operations.items():
        category = TRANSPORT.get(operation, "other")
        spent[category] = spent.get(category, 0.0) + traffic.seconds
    spent["other"] = max(0.0, epoch_seconds - sum(spent.values()))
    return [spent.get(category, 0.0) for category in CATEGORIES]
