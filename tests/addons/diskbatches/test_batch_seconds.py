"""Seconds of training on batches: parts, ranks, idle ones, imbalance; epochs to a target."""

from __future__ import annotations

from typing import Any

import pytest

from spgnn.addons.diskbatches.batch_seconds import PARTS, BatchSeconds
from spgnn.addons.diskbatches.minibatch import epochs_to
from spgnn.comm import connect
from spgnn.testing import run_ranks

RANKS, STEPS, EPOCHS = 3, 2, 4
ALL_REDUCE = 0.25


def clocked(rank: int) -> dict[str, Any]:
    """Laps of known lengths: a slower rank computes longer, and waits less in an all-reduce."""
    comm, at, pushed = connect(), [100.0], [0.0, 0.0]
    comm.ledger.clock = lambda: at[0]
    clock = BatchSeconds(comm, lambda: (pushed[0], pushed[1]))
    for epoch in range(EPOCHS):
        clock.begin()
        for step in range(STEPS):
            slowest = (step + epoch) % RANKS  # another one in each step
            forward = 3.0 if rank == slowest else 1.0
            for part, seconds in (("sampling", 4.0), ("forward", forward), ("backward", 2.0)):
                at[0] += seconds
                if part == "sampling":  # of the 4 s, 1.5 are pushed, 0.5 of them blocked as is 1
                    pushed = [pushed[0] + 1.5, pushed[1] + 0.5]
                    comm.ledger.of("alltoall").seconds += 1.5
                clock.lap(part)
            at[0] += 3.0 - forward + ALL_REDUCE
            clock.lap("allreduce")
            at[0] += 0.125
            clock.lap("other")
    return clock.report()


def test_laps_become_parts_and_waiting_is_idle():
    reports = run_ranks(clocked, RANKS)
    assert reports == [reports[0]] * RANKS
    parts = {name: part["by_rank"] for name, part in reports[0]["parts"].items()}
    assert tuple(parts) == PARTS
    # Epochs 0 and 1 do not count: epoch 2 has steps in which ranks 2 and 0 are slow, 3: 0 and 1.
    slow = [1.0, 0.5, 0.5]
    for rank in range(RANKS):
        mine = {name: seconds[rank] for name, seconds in parts.items()}
        assert mine == pytest.approx(
            {
                "sampling": STEPS * (4.0 - 1.5 - 1.0),
                "fetch": STEPS * 1.0,
                "push": STEPS * 1.5,
                "forward": STEPS + 2 * slow[rank],
                "backward": STEPS * 2.0,
                "allreduce": STEPS * ALL_REDUCE,
                "idle": 2 * (STEPS - slow[rank]),
                "other": STEPS * 0.125,
            }
        )
    busy = [sum(p[rank] for name, p in parts.items() if name != "idle") for rank in range(RANKS)]
    assert reports[0]["load_imbalance"] == pytest.approx(max(busy) / (sum(busy) / RANKS))
    forward = parts["forward"]
    expected = max(forward) / (sum(forward) / RANKS)
    assert reports[0]["parts"]["forward"]["max_over_mean"] == pytest.approx(expected)


def test_epochs_until_a_target_is_near():
    history = [
        {"epoch": number, "val_acc": 0.9, "test_acc": score}
        for number, score in enumerate((0.5, None, 0.775, 0.79))
    ]
    assert epochs_to(history, 0.50) == 1
    assert epochs_to(history, 0.78) == 3
    assert epochs_to(history, 0.79) == 4
    assert epochs_to(history, 0.81) is None
    assert epochs_to([], 0.5) is None
    assert epochs_to([{"epoch": 0, "val_acc": 0.9}], 0.9) == 1
