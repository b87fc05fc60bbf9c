"""Working through rows in parts changes nothing but where numbers lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn.comm import connect
from spgnn.data import Graph
from spgnn.data.formats.npz import write_npz
from spgnn.sparse import CSR
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
    {"random_labels": 0.05, "layers": 3, "dropout": 0.2, "input_dropout": False},
    {"random_labels": 0.03, "layers": 3, "model": "sage", "dropout": 0.2},
    {"model": "sage", "aggregate": "sum", "dropout": 0.3, "normalisation": "row"},
)


def histories(rank: int, flags: list[dict[str, object]]) -> list[list[dict[str, float]]]:
    comm = connect("gloo")
    found = []
    for given in flags:
        report = train(TrainConfig.of(**given), comm)
        if "storage" in report:
            check_bytes(report["storage"])
        found.append(report["history"])
    return found


def check_bytes(storage: dict[str, int]) -> None:
    """What was read and written is what was foretold, to the byte."""
    for way in ("read", "written"):
        assert storage[f"planned_{way}_bytes"] == storage[f"{way}_bytes"], storage


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


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("labelled", [0.0, 0.1])
def test_directed_and_weighted(ranks, labelled, tmp_path):
    """The adjoint is a product with the transpose, which is made, and lies on the disk as well."""
    path = tmp_path / "graph.npz"
    rng = np.random.default_rng(3)
    A = sp.random_array((90, 90), density=0.06, rng=rng, format="csr", dtype=np.float32)
    x = torch.from_numpy(rng.normal(size=(90, 5)).astype(np.float32))
    write_npz(Graph("weighted", CSR.from_scipy(A), True, x=x), path)
    base = {"dataset": str(path), "random_classes": 3, "random_labels": labelled, "layers": 3}
    base |= {"epochs": 3, "model": "sage", "normalisation": "none", "dropout": 0.2}
    flags = [base, {**base, "parts": 3}, {**base, "parts": 4, "spill": str(tmp_path / "spill")}]
    for expected, *others in run_ranks(histories, ranks, flags):
        for found in others:
            check_equal(expected, found)
