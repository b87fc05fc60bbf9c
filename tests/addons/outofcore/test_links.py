"""Links learnt from a disk: losses and scores are those of memory."""

from __future__ import annotations

import pytest

from spgnn.data.load import load_dataset
from spgnn.data.shards import write_shards
from spgnn.testing import run_ranks
from tests.addons.outofcore.runs import SMALL, check_equal, reports

BASE = {**SMALL, "random_classes": 0, "task": "links", "dtype": "float64", "eval_negatives": 7}
CASES = [
    {"model": "sage", "hidden": 6, "dropout": 0.3, "negatives": 2},
    {"decoder": "mlp", "layers": 1, "hidden": 5, "metric": "roc-auc"},
    {"model": "gin", "jk": "cat", "norm": "batch", "residual": True, "input_dropout": False},
    {"model": "gatv2", "heads": 2, "hidden": 4, "layers": 2, "decoder": "mlp"},
]


@pytest.mark.parametrize("ranks", [1, 2])
def test_links_are_those_of_memory(ranks, tmp_path):
    """On one rank in memory; on two, parts of a directory are read where they lie."""
    base, disk = BASE, {"chunks": 3}
    if ranks > 1:
        write_shards(load_dataset(SMALL["dataset"]), None, ranks, tmp_path / "graph")
        base = {**BASE, "dataset": str(tmp_path / "graph")}
        disk = {"chunks": 4, "spill": str(tmp_path / "spill")}
    cases = [{**base, **case} for case in CASES[:: 3 if ranks > 1 else 1]]
    flags = [*cases, *({**case, **disk} for case in cases)]
    for made in run_ranks(reports, ranks, flags):
        for memory, chunked in zip(made[: len(cases)], made[len(cases) :], strict=True):
            assert memory["history"][-1]["val_loss"] is not None
            check_equal(memory["history"], chunked["history"])
