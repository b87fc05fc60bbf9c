"""The operator clock runs in few epochs, and these do not count; nothing else waits."""

from __future__ import annotations

import pytest
import torch

from spgnn.comm import Ledger
from spgnn.train import measure
from spgnn.train.clock import CATEGORIES
from spgnn.train.measure import Measurements, timed

CPU = torch.device("cpu")


class Clock:
    """Seconds by a counter, so that nothing depends on how fast anything is."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def product() -> torch.Tensor:
    """One operator that the clock times."""
    return (torch.ones(300, 300) @ torch.ones(300, 300)).sum()


@pytest.mark.parametrize(
    ("epochs", "clocked", "counted"),
    [
        (0, [], []),
        (1, [], [0]),
        (2, [1], [0]),
        (3, [1], [2]),
        (12, [1, 11], [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (23, [1, 11, 21], [*range(2, 11), *range(12, 21), 22]),
    ],
)
def test_which_epochs_are_clocked_and_which_count(monkeypatch, epochs, clocked, counted):
    """Never the first; a run of two epochs has a breakdown all the same."""
    clock, entered = Clock(), []
    monkeypatch.setattr(measure, "perf_counter", clock)
    enter = measure.OperatorClock.__enter__
    monkeypatch.setattr(
        measure.OperatorClock,
        "__enter__",
        lambda self: (entered.append(len(measured.seconds)), enter(self))[1],
    )
    measured = Measurements(Ledger(), CPU)

    def body() -> torch.Tensor:
        clock.now += 1 + len(measured.seconds)
        return torch.ones(3).sum()

    assert [measured.epoch(body) for _ in range(epochs)] == [3.0] * epochs
    assert entered == clocked
    assert len(measured.breakdowns) == len(clocked)
    assert measured.seconds == [1.0 + number for number in range(epochs)]
    assert timed(measured.seconds) == [1.0 + number for number in counted]
    assert len(measured.mean_breakdown()) == len(CATEGORIES)


def test_breakdowns_add_up_to_their_epochs():
    measured = Measurements(Ledger(), CPU)
    for _ in range(12):
        measured.epoch(product)
    gemm = CATEGORIES.index("gemm")
    assert all(parts[gemm] > 0 for parts in measured.breakdowns)
    for number, parts in zip((1, 11), measured.breakdowns, strict=True):
        assert sum(parts) == pytest.approx(measured.seconds[number])
    mean = [sum(parts) / 2 for parts in zip(*measured.breakdowns, strict=True)]
    assert measured.mean_breakdown() == pytest.approx(mean)


def test_a_gpu_is_waited_for_at_the_end_of_an_epoch_and_by_the_clock(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: waited.append(device))
    measured = Measurements(Ledger(), torch.device("cuda", 0))
    counts = []
    for _ in range(4):
        before = len(waited)
        measured.epoch(product)
        counts.append(len(waited) - before)
    # Before and after the one product of the clocked epoch.
    assert counts == [1, 3, 1, 1]


def test_bytes_of_rows_do_not_count_gradients():
    ledger = Ledger()
    measured = Measurements(ledger, CPU)

    def body() -> torch.Tensor:
        for name, sent in (
            ("alltoall", 1),
            ("broadcast", 20),
            ("reduce", 300),
            ("all_reduce", 4000),
        ):
            account = ledger.of(name)
            account.calls += 1
            account.sent_bytes += sent
            account.received_bytes += 2 * sent
        return torch.zeros(())

    for _ in range(2):
        measured.epoch(body)
    assert measured.sent_bytes == [321, 321]
    assert measured.received_bytes == [642, 642]
