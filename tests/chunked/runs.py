"""Training runs in parts, for tests."""

from __future__ import annotations

import numpy as np

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.train.run import train

SMALL = {"dataset": "rmat-7-5", "random_features": 11, "random_classes": 4, "epochs": 3}


def reports(rank: int, flags: list[dict[str, object]]) -> list[dict[str, object]]:
    """The report of each run."""
    comm = connect("gloo")
    return [train(TrainConfig.of(**given), comm) for given in flags]


def check_equal(expected, found) -> None:
    """The same losses and scores in every epoch."""
    assert len(expected) == len(found)
    for before, after in zip(expected, found, strict=True):
        for name, value in before.items():
            if name not in ("seconds", "epoch") and value is not None:
                np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def check_bytes(storage) -> None:
    """What was read and written is what was foretold, to the byte."""
    for way in ("read", "written"):
        assert storage[f"planned_{way}_bytes"] == storage[f"{way}_bytes"], storage
