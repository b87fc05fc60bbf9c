"""What is predicted of memory: items, the most before training, and what a job takes at least."""

from __future__ import annotations

import numpy as np
import pytest

from spgnn.comm import connect
from spgnn.data import open_source
from spgnn.exchange import Algorithm
from spgnn.plan import Network, Subject, predict
from spgnn.plan.runtime import exercise, runtime_bytes
from spgnn.testing import run_ranks

RANKS = 4


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of(open_source("rmat-8-8"), random_features=24, random_classes=4)


def test_rows_are_there_twice_where_ghosts_join_them(subject):
    network = Network((24, 8, 4), ghosts=True)
    price = predict(subject, None, Algorithm(), RANKS, network)
    static = ("matrix", "transpose", "features", "ghosts", "labels", "runtime")
    held = np.sum([price.memory[name] for name in static], axis=0)
    own = 4 * 24 * np.diff(np.arange(RANKS + 1) * subject.vertices // RANKS)
    assert (price.memory["ghosts"] > 0).all()
    assert (price.setup >= held + own).all()
    assert price.memory_bytes >= (held + own).max()


def test_only_small_blocks_are_kept_when_they_are_freed(subject):
    small = predict(subject, None, Algorithm(), RANKS, Network((24, 8, 4))).memory
    np.testing.assert_array_equal(small["kept"], small["activations"] + small["buffers"])
    large = predict(subject, None, Algorithm(), RANKS, Network((24, 1 << 15, 4))).memory
    assert not large["kept"].any()


def taken(rank: int) -> tuple[int, int]:
    comm = connect()
    first = runtime_bytes(comm)
    exercise(comm)
    return first, runtime_bytes(comm)


def test_libraries_take_their_memory_once():
    """Some MiB in the first job, and hardly anything in the next ones."""
    for first, later in run_ranks(taken, 2):
        assert first > 1 << 20
        assert later < first
