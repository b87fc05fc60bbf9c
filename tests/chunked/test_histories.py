"""Working through rows in parts changes nothing but where numbers lie."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import Graph
from spgnn.data.npz import write_npz
from spgnn.direct import DirectFile
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from spgnn.train.in_parts import InParts
from tests.chunked.runs import SMALL, check_bytes, check_equal, reports

# Everything in memory; everything on the disk.
STORAGE = (
    {"chunks": 1},
    {"chunks": 7},
    {"chunks": 2, "spill": True},
    {"chunks": 13, "spill": True},
)
MODELS = (
    {},
    {"dropout": 0.5, "layers": 3, "hidden": 5},
    {"dropout": 0.5, "input_dropout": False, "model": "sage", "prune": False},
    {"model": "gin", "norm": "node", "residual": True, "layers": 3, "weight_decay": 0.1},
    {"random_labels": 0.05, "layers": 3, "dropout": 0.2, "input_dropout": False, "jk": "last"},
    {"random_labels": 0.03, "layers": 3, "model": "sage", "dropout": 0.2},
    {"model": "sage", "aggregate": "sum", "dropout": 0.3, "normalisation": "row"},
    {"jk": "cat", "hidden": 5, "dropout": 0.4, "random_labels": 0.1},
    {"jk": "max", "model": "sage", "layers": 3, "hidden": 5, "dropout": 0.3, "norm": "node"},
)


def histories(rank: int, flags: list[dict[str, object]]) -> list[list[dict[str, float]]]:
    found = []
    for report in reports(rank, flags):
        if "storage" in report:
            check_bytes(report["storage"])
        found.append(report["history"])
    return found


@pytest.mark.parametrize(
    ("model", "ranks"),
    [(model, 2) for model in MODELS]
    + [(model, 1) for model in MODELS[:2]]
    + [pytest.param(model, 1, marks=pytest.mark.slow) for model in MODELS[2:]],
    ids=lambda given: "-".join(map(str, given.values())) if isinstance(given, dict) else str(given),
)
def test_history_is_that_of_memory(model, ranks, tmp_path):
    base = {**SMALL, **model}
    number = MODELS.index(model) + ranks  # each model in memory and on the disk
    spilled = [
        {**s, "spill": str(tmp_path / f"spill{i}")} if "spill" in s else s
        for i, s in enumerate(STORAGE[number % 2 :: 2])
    ]
    flags = [base, *({**base, **s} for s in spilled)]
    for expected, *others in run_ranks(histories, ranks, flags):
        for found in others:
            check_equal(expected, found)
    for path in tmp_path.rglob("*"):
        assert not path.is_file(), path


def test_bytes_of_a_slow_disk(tmp_path, monkeypatch):
    """What is on its way there when an epoch begins is not of that epoch."""
    real = DirectFile.write_pages

    def slowly(*arguments):
        time.sleep(0.02)
        real(*arguments)

    monkeypatch.setattr(DirectFile, "write_pages", slowly)
    given = {**SMALL, "model": "sage", "epochs": 1, "chunks": 3, "spill": str(tmp_path)}
    run_ranks(histories, 2, [given])


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
    spilled = {"chunks": 4, "spill": str(tmp_path / "spill")}
    wide = {**base, "dtype": "float64", "model": "gcn"}
    flags = [base, {**base, "chunks": 3}, {**base, **spilled}, wide, {**wide, **spilled}]
    for every in run_ranks(histories, ranks, flags):
        for number, found in enumerate(every):
            check_equal(every[0 if number < 3 else 3], found)


def test_progress_inside_an_epoch():
    task = InParts(TrainConfig.of(**SMALL, chunks=5), connect("gloo"), 0)
    told: list[tuple[int, int]] = []
    task.progress = lambda what, done, total: told.append((done, total))
    task.loss(0).backward()
    # Three layers of five parts; backward the last one's gradients are there.
    assert told == [(n + 1, 15) for n in range(15)] + [(n + 1, 10) for n in range(10)]


def test_ranks_without_vertices(tmp_path):
    path = tmp_path / "graph.npz"
    A = sp.csr_array(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32))
    x = torch.arange(6.0).view(3, 2)
    y = torch.tensor([0, 1, 1])
    everybody = torch.ones(3, dtype=torch.bool)
    graph = Graph("path", CSR.from_scipy(A), False, x=x, y=y, train_mask=everybody)
    write_npz(graph, path)
    base = {"dataset": str(path), "epochs": 3, "partition": "block"}
    base |= {"model": "sage", "layers": 3}
    flags = [base, {**base, "chunks": 3}, {**base, "chunks": 2, "spill": str(tmp_path / "spill")}]
    for expected, *others in run_ranks(histories, 4, flags):
        for found in others:
            check_equal(expected, found)
