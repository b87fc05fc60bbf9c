"""What is predicted of memory: items, the most before training, and what a job takes at least."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn.addons.plan import predict
from spgnn.addons.plan.epoch import trace
from spgnn.addons.plan.graphs import Dataset
from spgnn.addons.plan.measure import exercise, runtime_bytes
from spgnn.addons.plan.ranks import VirtualRanks
from spgnn.comm import connect
from spgnn.comm.traffic import RowCounts
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.testing import run_ranks

RANKS = 4
BASE = TrainConfig.of(layers=2, hidden=8, random_features=24, random_classes=4)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset.of(open_source("rmat-8-8"), BASE)


def test_rows_are_there_twice_where_a_halo_joins_them(dataset):
    price = predict(dataset, None, BASE.but(recompute_halo=True), RANKS)
    static = ("matrix", "transpose", "features", "halo", "labels", "runtime")
    begun = np.sum([price.memory[name] for name in static], axis=0)
    own = 4 * 24 * np.diff(np.arange(RANKS + 1) * dataset.vertices // RANKS)
    assert (price.memory["halo"] > 0).all()
    assert (price.setup >= begun + own).all()
    assert price.memory_bytes >= (begun + own).max()


def test_only_small_blocks_are_kept_when_they_are_freed(dataset):
    small = predict(dataset, None, BASE, RANKS).memory
    np.testing.assert_array_equal(small["kept"], small["activations"] + small["buffers"])
    large = predict(dataset, None, BASE.but(hidden=1 << 15), RANKS).memory
    assert not large["kept"].any()


def test_two_exchanges_are_in_shared_memory_on_one_node_and_none_on_several(dataset):
    labels, config = np.arange(dataset.vertices) % RANKS, BASE.but(prune=False)
    price = predict(dataset, labels, config, RANKS)
    # A product of 4 columns, its adjoint, the sum of gradients, and evaluation.
    (hop,) = VirtualRanks(dataset, labels, config, RANKS, RANKS).counted(config).whole.hops
    sent, received = hop.sent_rows, hop.received_rows
    # Around so few bytes lies all that anybody has posted.
    forward, back = (4 * 4 * (rows + rows.sum()) for rows in (sent, received))
    summed = 4 * trace(config, 24, 4).weights * (1 + RANKS)
    expected = np.max([forward + back, back + summed, summed + forward], axis=0)
    np.testing.assert_array_equal(price.memory["posted"], expected)
    apart = predict(dataset, labels, config, RANKS, ranks_a_node=2)
    assert not apart.memory["posted"].any()
    # Before training: one product at the width that A·X is made in.
    assert (price.setup - apart.setup == 24 * 4 * (sent + sent.sum())).all()
    assert predict(dataset, None, config, 1).memory["posted"] == 0


def test_what_was_posted_is_what_stays_of_an_exchange():
    """Shared pages of a rank after two exchanges of a MiB each way: one or two of each."""
    for pages in run_ranks(posted, 2):
        assert 2 << 20 <= pages <= (4 << 20) + (1 << 16)


def posted(rank: int) -> int:
    comm = connect("shm")
    send, recv = torch.zeros(2, 1 << 18, 1)
    counts = RowCounts(*[np.array([1 << 18, 1 << 18]) * (np.arange(2) != rank)] * 2, 1 << 18)
    before = _shared_bytes()
    for _ in range(2):
        comm.alltoallv(send, recv, counts).wait()
    comm.barrier()
    return _shared_bytes() - before


def _shared_bytes() -> int:
    """By the page tables: what the status file says is off by some pages for each processor."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:  # the addresses of a mapping
            ours = "memfd:spgnn" in line
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


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
