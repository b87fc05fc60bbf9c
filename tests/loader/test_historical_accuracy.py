"""Historical rows cost no accuracy, and a fraction of the bytes of exact fetching."""

from __future__ import annotations

from statistics import mean
from typing import Any

import pytest

from spgnn.comm import SoloCommunicator, connect
from spgnn.loader.config import MiniBatchConfig
from spgnn.loader.run import train
from spgnn.testing import run_ranks
from tests.real import each

pytestmark = pytest.mark.slow
RANKS = 4
COMMON: dict[str, Any] = {
    "num_neighbors": "10,5,5",
    "hidden": 64,
    "dropout": 0.2,
    "lr": 0.01,
    "feature_norm": "row",
    "eval_every": 1000,
}
# Epochs, and seeds whose mean is compared.
LENGTHS = {"coauthor-physics": (3, 1), "amazon-computers": (16, 2)}
PAST = {"distributed": "historical", "historical": "1000000,32,1,500", "past": "bfloat16"}


def on_ranks(rank: int, flags: dict[str, Any]) -> tuple[float, int]:
    comm = connect()
    before = comm.ledger.copy()
    report = train(MiniBatchConfig.of(**flags), comm)
    return report["history"][-1]["test_acc"], comm.ledger.since(before).of(
        "alltoall"
    ).received_bytes


@pytest.mark.parametrize(("graph", "epochs", "seeds"), each(LENGTHS))
def test_within_a_point_of_one_process_at_half_the_bytes(graph, epochs, seeds):
    flags = {**COMMON, "dataset": graph, "epochs": epochs, "batch_size": 512}
    alone, together = [], []
    for seed in range(seeds):
        report = train(MiniBatchConfig.of(**flags, seed=seed), SoloCommunicator())
        alone.append(report["history"][-1]["test_acc"])
        parts = {**flags, "batch_size": 512 // RANKS, "seed": seed}
        found = run_ranks(on_ranks, RANKS, {**parts, **PAST})
        together.append(found[0][0])
    assert mean(together) > mean(alone) - 0.01
    # Those of setting up and of the evaluation count for both.
    exact = run_ranks(on_ranks, RANKS, {**parts, "distributed": "exact", "epochs": 2})
    past = run_ranks(on_ranks, RANKS, {**parts, **PAST, "epochs": 2})
    assert sum(nbytes for _, nbytes in past) <= 0.5 * sum(nbytes for _, nbytes in exact)
