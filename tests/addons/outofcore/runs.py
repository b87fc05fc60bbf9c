"""Training runs in chunks, for tests."""

from __future__ import annotations

import numpy as np

from spgnn.addons.outofcore.chunked_task import ChunkedTask
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.train.run import train

SMALL = {"dataset": "rmat-7-5", "random_features": 11, "random_classes": 4, "epochs": 2}


def reports(rank: int, flags: list[dict[str, object]]) -> list[dict[str, object]]:
    """The report of each run; bytes read and written must be those planned."""
    comm = connect("gloo")
    made = [train(TrainConfig.of(**given), comm) for given in flags]
    for report in made:
        if "storage" in report:
            check_bytes(report["storage"])
    return made


def task_of(**flags: object) -> ChunkedTask:
    """On one rank; with ``outputs`` for inference."""
    outputs = flags.pop("outputs", None)
    return ChunkedTask(TrainConfig.of(**{**SMALL, **flags}), connect("gloo"), 0, outputs)


def check_equal(expected, found) -> None:
    """The same losses and scores in every epoch."""
    assert len(expected) == len(found)
    for before, after in zip(expected, found, strict=True):
        for name, value in before.items():
            if name not in ("seconds", "epoch") and value is not None:
                np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def check_bytes(storage) -> None:
    """What was read and written is what was predicted, to the byte."""
    for way in ("read", "written"):
        assert storage[f"planned_{way}_bytes"] == storage[f"{way}_bytes"], storage
