"""Whatever happens to a file: a graph, or one clear line. No traceback, crash, hang, flood."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from spgnn import InputError
from tests.data import fuzz
from tests.data.fuzz import KINDS, faults, mutant

FEW, MANY = 200, 10_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_damaged_files(tmp_path, kind):
    assert list(faults(kind, range(FEW), tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files(tmp_path, kind):
    assert list(faults(kind, range(FEW, MANY), tmp_path)) == []


@pytest.mark.parametrize("kind", ["general.mtx.gz", "packed.npz"])
def test_a_number_is_a_mutation(tmp_path, monkeypatch, kind):
    def mutants(home):
        home.mkdir()
        return [mutant(kind, number, home).read_bytes() for number in range(5)]

    once = mutants(tmp_path / "once")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1_000_000)
    assert mutants(tmp_path / "later") == once
    assert len(set(once)) == 5


def loud(path):
    raise ValueError("loud")


def deadly(path):
    os.kill(os.getpid(), signal.SIGKILL)


def endless(path):
    time.sleep(1000)


def greedy(path):
    return np.ones(1 << 40)


def long_winded(path):
    error = InputError("")
    error.args = ("x" * 301,)
    raise error


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (loud, ["general.mtx 7: Traceback", "general.mtx 8: Traceback"]),
        (deadly, ["general.mtx 7: the process ended with status -9", "general.mtx 8: the"]),
        (endless, ["general.mtx 7: the process ended with status -14", "general.mtx 8: the"]),
        (greedy, ["general.mtx 7: Traceback", "general.mtx 8: Traceback"]),
        (long_winded, ["general.mtx 7: an error of 301", "general.mtx 8: an error of 301"]),
    ],
)
def test_readers_that_fail_are_seen(tmp_path, monkeypatch, reader, said):
    monkeypatch.setattr(fuzz, "read_graph", reader)
    if reader is endless:
        monkeypatch.setattr(fuzz, "PATIENCE", 1)
    found = list(faults("general.mtx", range(7, 9), tmp_path))
    assert [fault[: len(words)] for fault, words in zip(found, said, strict=True)] == said
