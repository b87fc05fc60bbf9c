"""Working through rows in parts changes nothing but where numbers lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spgnn.comm import connect
from spgnn.testing import run_ranks
from spgnn.train.config import TrainConfig
from spgnn.train.run import train

# Everything in memory; everything on the disk.
STORAGE = ({"parts": 1}, {"parts": 7}, {"parts": 2, "spill": True}, {"parts": 32, "spill": True})
MODELS = (
    {},
    {"dropout": 0.5, "layers": 3, "hidden": 5},
    {"dropout": 0.5, "input_dropout": False, "model": "sage", "reach": False},
    {"model": "gin", "norm": "node", "residual": True, "layers": 3, "weight_decay": 0.1},
    {"model": "sage", "aggregate": "sum", "dropout": 0.3, "normalisation": "row"},
)


def histories(rank: int, flags: list[dict[str, object]]) -> list[list[dict[str, float]]]:
    comm = connect("gloo")
    return [train(TrainConfig.of(**given), comm)["history"] for given in flags]


def check_equal(expected, found) -> None:
    assert len(expected) == len(found)
    for before, after in zip(expected, found, strict=True):
        for name, value in before.items():
            if name not in ("seconds", "epoch") and value is not None:
                np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: "-".join(map(str, model.values())))
def test_history_is_that_of_memory(model, ranks, tmp_path):
    base = {"dataset": "rmat-9-6", "random_features": 11, "random_classes": 4, "epochs": 4, **model}
    spilled = [
        {**s, "spill": str(tmp_path / f"spill{i}")} if "spill" in s else s
        for i, s in enumerate(STORAGE)
    ]
    flags = [base, *({**base, **s} for s in spilled)]
    for expected, *others in run_ranks(histories, ranks, flags):
        for found in others:
            check_equal(expected, found)
    for path in itertools.chain(tmp_path.rglob("*")):
        assert not path.is_file(), path
