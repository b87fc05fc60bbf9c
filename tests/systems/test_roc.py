"""algorithm.rebalance: cuts follow the seconds of the first epochs; losses stay."""

from __future__ import annotations

import numpy as np
import pytest
from systems import roc

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.testing import run_ranks
from spgnn.train import train

COSTS, SLOW = np.array([3e-6, 1e-7, 5e-7]), np.array([1.0, 2.5, 1.0, 0.8])
CONFIG = TrainConfig.of(
    dataset="rmat-9-8", random_features=5, random_classes=3, epochs=4, rebalance=2
)


def test_costs_and_slow_ranks_are_fitted():
    rng = np.random.default_rng(0)
    features = rng.uniform(0.5, 1.5, (3, 4, 3)) * (1e5, 2e6, 5e4)
    seconds = (features @ COSTS) * SLOW
    cost, slowness = roc.fitted(features, seconds)
    assert (cost >= 0).all()
    # The seconds of the last round are met exactly.
    np.testing.assert_allclose(features[-1] @ cost * slowness, seconds[-1])
    np.testing.assert_allclose(slowness / slowness.mean(), SLOW / SLOW.mean(), rtol=0.4)
    assert np.argsort(slowness).tolist()[-1] == 1


def trained(rank: int, rebalance: int, partition: str) -> tuple:
    """Epochs are run, but last as long as the costs of a part and a slow rank 1 say."""
    measured = roc.tried_seconds

    def simulated(config, comm, epochs, shared):
        assert all(0 < spent < 60 for spent, _ in measured(config, comm, epochs, shared))
        A, (begin, end) = shared[0].adjacency, shared[0].layout.range(rank)
        column = np.unique(A.indices.numpy())
        remote = ((column < begin) | (column >= end)).sum()
        seconds = float(np.dot((A.shape[0], A.nnz, remote), COSTS) * SLOW[rank])
        return [(seconds + 1, 1.0)] * epochs

    roc.tried_seconds = simulated
    report = train(CONFIG.but(rebalance=rebalance, partition=partition), connect())
    losses = [record["loss"] for record in report["history"]]
    return losses, report.get("rebalance"), report["volume"] == report["planned_volume"]


@pytest.mark.parametrize("partition", ["gvb", "block"])
def test_a_slow_rank_gets_less(partition):
    (losses, found, counted), (expected, nothing, _) = (
        run_ranks(trained, 3, rebalance, partition)[0] for rebalance in (2, 0)
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert nothing is None
    assert counted
    first, second = (np.array(one["seconds"]) for one in found["rounds"])
    rows = np.array([one["rows"] for one in found["rounds"]])
    assert (rows.sum(axis=1) == 512).all()
    assert rows[1, 1] < rows[0, 1]
    assert second.max() / second.mean() - 1 < 0.6 * (first.max() / first.mean() - 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algo": "2d"}, "rebalance needs --algo 1d, not 2d"),
        ({"chunks": 2}, "rebalance goes with no --chunks"),
        ({"plan": "auto"}, "rebalance goes with no"),
    ],
)
def test_refused(options, said):
    with pytest.raises(InputError, match=said):
        CONFIG.but(**options).check(4)
