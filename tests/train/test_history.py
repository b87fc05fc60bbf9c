"""The loss history does not depend on ranks, algorithm, partition, cover, order or storage."""

from __future__ import annotations

import pytest

from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.training import check_history, write_dataset


@pytest.mark.parametrize(
    ("ranks", "every", "sparse"),
    [(1, 1, False), (1, 2, True), (3, 2, True), (4, 1, False), (4, 2, True), (6, 3, False)],
)
def test_history_is_that_of_a_dense_gcn(tmp_path, ranks, every, sparse):
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    run_ranks(lambda rank: check_history(connect(), path, every), ranks)


def test_history_at_more_ranks(tmp_path):
    """Each of the graph's 61 vertices is one of few: exchanges are many and small."""
    path = write_dataset(tmp_path / "graph.npz")
    run_ranks(lambda rank: check_history(connect(), path, 9, epochs=3), 16)


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_every_history(tmp_path, sparse):
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    for ranks in (1, 3, 4, 6, 16):
        run_ranks(lambda rank: check_history(connect(), path), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [64, 256])
def test_history_at_many_ranks(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    run_ranks(lambda rank: check_history(connect(), path, 8), ranks)
