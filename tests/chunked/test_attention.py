"""Attention over neighbours whose rows come part by part."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn.chunked.budget import ORDER, Budget
from spgnn.chunked.predict import Forecast
from spgnn.chunked.room import Places
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import Graph
from spgnn.data.npz import write_npz
from spgnn.errors import InputError
from spgnn.inference.cli import InferConfig, infer_to_file
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from spgnn.train import in_parts
from spgnn.train.in_parts import InParts
from spgnn.train.run import train
from tests.chunked.runs import SMALL, check_bytes, check_equal, reports
from tests.training import write_dataset

MODELS = (
    {"model": "gat", "heads": 4, "hidden": 8, "dropout": 0.5, "attention_dropout": 0.3},
    {"model": "gatv2", "heads": 2, "hidden": 8, "dropout": 0.4, "residual": True, "act": "elu"},
    {"model": "gat", "heads": 3, "hidden": 6, "random_labels": 0.05, "dropout": 0.2, "prune": True},
    # Adam magnifies the rounding of small gradients, as norms do.
    {"model": "gatv2", "random_labels": 0.1, "attention_dropout": 0.5, "dtype": "float64"},
    {"model": "gat", "heads": 2, "hidden": 6, "jk": "cat", "norm": "batch", "dtype": "float64"},
    {"model": "gatv2", "heads": 2, "hidden": 6, "norm": "node", "layers": 2, "dtype": "float64"},
)


@pytest.mark.parametrize(("ranks", "every"), [(1, 1), (2, 2)])
def test_history_is_that_of_memory(ranks, every, tmp_path):
    flags = []
    for model in MODELS[::every]:
        base = {**SMALL, **model}
        spilled = {"chunks": 2, "spill": str(tmp_path), "recompute": "always"}
        flags += [base, base | {"chunks": 7}, base | spilled]
    for every_one in run_ranks(reports, ranks, flags):
        for number, found in enumerate(every_one):
            expected = every_one[number - number % 3]
            check_equal(expected["history"], found["history"])
            if found is not expected:
                check_bytes(found["storage"])
    assert not list(tmp_path.iterdir())


def test_sparse_features_stay_sparse(tmp_path):
    graph = write_dataset(tmp_path / "graph.npz", sparse=True)
    flags = {"dataset": str(graph), "hidden": 6, "epochs": 2, "feature_norm": "row"}
    for model in ({"model": "gat", "heads": 2}, {"model": "gatv2", "residual": True}):
        memory = train(TrainConfig.of(**flags, **model), connect("gloo"))
        task = InParts(TrainConfig.of(**flags, **model, chunks=3), connect("gloo"), 0)
        assert isinstance(task.network.vertices.features.rows(0), CSR)
        parts = train(TrainConfig.of(**flags, **model, chunks=3), connect("gloo"))
        check_equal(memory["history"], parts["history"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_panels_change_nothing(ranks, tmp_path, monkeypatch):
    """Of four heads, two or one are in memory at a time."""
    flags = []
    for model in ({"model": "gat"}, {"model": "gatv2", "layers": 2}):
        base = {**SMALL, **model, "heads": 4, "hidden": 8, "dropout": 0.3, "epochs": 2}
        flags += [base, {**base, "memory": "4GB", "spill": str(tmp_path)}]
    tight = Budget(5, Places(frozenset(ORDER), panel_bytes=40), 10**9)
    monkeypatch.setattr(in_parts, "decide", lambda *args, **options: tight)
    for every in run_ranks(reports, ranks, flags):
        for expected, found in zip(every[::2], every[1::2], strict=True):
            check_equal(expected["history"], found["history"])
            check_bytes(found["storage"])
            assert found["storage"]["amplification"] > 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_directed_graph_on_disk(ranks, tmp_path):
    """No transpose is made; weights do not count; of self-loops some are there."""
    rng = np.random.default_rng(3)
    A = sp.random_array((90, 90), density=0.06, rng=rng, format="lil", dtype=np.float32)
    A[range(0, 90, 4), range(0, 90, 4)] = 1
    x = CSR.from_scipy(
        sp.random_array((90, 9), density=0.3, rng=rng, format="csr", dtype=np.float32)
    )
    write_npz(Graph("weighted", CSR.from_scipy(A.tocsr()), True, x=x), tmp_path / "graph.npz")
    base = {"dataset": str(tmp_path / "graph.npz"), "random_classes": 3, "epochs": 2, "heads": 2}
    base |= {"model": "gat", "hidden": 4, "dropout": 0.2, "feature_norm": "none"}
    flags = [base, {**base, "chunks": 4, "spill": str(tmp_path / "spill")}]
    for expected, found in run_ranks(reports, ranks, flags):
        check_equal(expected["history"], found["history"])
        check_bytes(found["storage"])


def test_inference(tmp_path):
    kept, scores = tmp_path / "kept", tmp_path / "scores.npz"
    model = {"model": "gatv2", "heads": 2, "hidden": 6}
    flags = {**SMALL, **model, "checkpoint": str(kept), "predictions": str(scores), "chunks": 3}
    run_ranks(reports, 2, [{**flags, "spill": str(tmp_path / "spill")}])
    with np.load(scores) as file:
        expected = file["scores"]
    base = {"dataset": SMALL["dataset"], "random_features": 11, "weights": str(kept), **model}
    for number, storage in enumerate(({}, {"chunks": 5, "spill": str(tmp_path / "more")})):
        output = str(tmp_path / f"{number}.npy")
        run_ranks(written, 1, InferConfig.of(**base, **storage, output=output))
        np.testing.assert_allclose(np.load(output), expected, rtol=1e-5, atol=1e-6)


def written(rank, config):
    infer_to_file(config, connect("gloo"))


def test_a_head_is_the_least(tmp_path):
    flags = {**SMALL, "model": "gat", "heads": 2, "hidden": 8, "memory": "1MB"}
    with pytest.raises(InputError, match="one head of an operand must fit"):
        InParts(TrainConfig.of(**flags, spill=str(tmp_path)), connect("gloo"), 0)


def test_panels_have_whole_heads():
    places = Places(frozenset(ORDER), panel_bytes=100)
    assert [places.panel(60, 4, heads) for heads in (0, 12, 6, 4, 1)] == [25, 20, 20, 15, 60]


def test_sizes_foretell_what_the_built_tables_move(tmp_path):
    for model in MODELS:
        flags = {**SMALL, **model, "chunks": 3, "spill": str(tmp_path), "prune": False}
        task = InParts(TrainConfig.of(**flags), connect("gloo"), 0)
        assert Forecast.of_sizes(task.sizes, task.budget) == task.forecast
        task.close()
