"""The loss history does not depend on ranks, algorithm, partition, cover, order or storage."""

from __future__ import annotations

import pytest

from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.training import check_history, write_dataset


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_history_is_that_of_a_dense_gcn(tmp_path, ranks, sparse):
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    assert min(run_ranks(lambda rank: check_history(connect(), path), ranks)) == 3


@pytest.mark.parametrize(("ranks", "every"), [(3, 2), (6, 3), (16, 4)])
def test_history_at_more_ranks(tmp_path, ranks, every):
    path = write_dataset(tmp_path / "graph.npz")
    run_ranks(lambda rank: check_history(connect(), path, every), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [64, 256])
def test_history_at_many_ranks(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    run_ranks(lambda rank: check_history(connect(), path, 8), ranks)
