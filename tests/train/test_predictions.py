"""``--predictions``: class and scores of every vertex in its original order, whoever owns it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import TrainConfig, Training
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train import train as command
from spgnn.train.checkpoint import FILE, read_weights
from tests.train.command import check_refused, run
from tests.train.test_task import Line
from tests.training import dense_layer, dense_matrix, read, write_dataset


def dense_scores(graph, weights, model: str) -> np.ndarray:
    """What a dense float64 model of these weights says of every vertex."""
    data = read(graph)
    A, H = dense_matrix(data.A, model, "auto"), data.X
    names = {"gcn": ["lin.weight", "bias"], "sage": ["lin_l.weight", "lin_l.bias", "lin_r.weight"]}
    for layer in range(3):
        H = torch.relu(H) if layer else H
        given = [weights[f"convs.{layer}.{name}"].double() for name in names[model]]
        if model == "gcn":
            given[0] = given[0].T
        H = dense_layer(model, A, H, *given)
    return H.numpy()


@pytest.mark.parametrize(
    ("model", "flags", "ranks"),
    [
        ("gcn", {}, 1),
        ("gcn", {"cover": "minimum", "dropout": 0.5}, 3),
        ("sage", {"algo": "1.5d", "c": 2}, 4),
        ("gcn", {"algo": "feature", "c": 2}, 2),
        ("sage", {"algo": "vertex-cut", "recompute_halo": True}, 2),
    ],
)
def test_predictions_are_those_of_a_dense_model(tmp_path, model, flags, ranks):
    graph, out = write_dataset(tmp_path / "graph.npz"), tmp_path / "out.npz"
    config = TrainConfig.of(dataset=graph, model=model, hidden=8, epochs=3, partition="random")
    config = config.but(predictions=out, checkpoint=tmp_path / "run", **flags)
    report = run_ranks(lambda rank: command(config, connect()), ranks)[0]
    assert report["failure"] is None
    weights, _ = read_weights(tmp_path / "run" / FILE)
    with np.load(out) as file, np.load(graph) as data:
        assert sorted(file.files) == ["class", "scores"]
        found, classes = file["scores"], file["class"]
        assert (found.dtype, classes.dtype) == (np.float32, np.int64)
        expected = dense_scores(graph, weights, model)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(classes, found.argmax(1))
        right = (classes == data["y"])[data["test_mask"] & (data["y"] >= 0)]
    assert report["history"][-1]["test_acc"] == pytest.approx(right.mean())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("out.npy", ["must end in .npz or .parquet"]),
        ("missing/out.npz", ["--predictions missing/out.npz", "directory"]),
        ("graph.npz", ["--predictions graph.npz", "this run reads"]),
    ],
)
def test_refused_before_training(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", "graph.npz", "--nproc", 2, "--json", "report.json"]
    check_refused(run(tmp_path, *flags, "--predictions", name), *words)
    assert not (tmp_path / "report.json").exists()


def test_the_report_is_written_if_they_cannot_be(tmp_path, monkeypatch):
    graph, report = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    flags = ["--dataset", graph, "--json", report, "--predictions", tmp_path / "out.npz"]
    said = "InputError('no space')"
    monkeypatch.setattr(
        "spgnn.train.trainer.write_rows", lambda *_: (_ for _ in ()).throw(InputError(said))
    )
    check_refused(run(tmp_path, *flags), said)
    found = json.loads(report.read_text())
    assert (found["failure"], len(found["history"])) == (said, 2)


def test_tasks_without_predictions_say_so(tmp_path):
    trainer = Trainer(Line(connect()), options=Training(epochs=1))
    trainer.run()
    with pytest.raises(InputError, match="Line predicts nothing of vertices"):
        trainer.write_predictions(str(tmp_path / "out.npz"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda task: task.model(task.x), r"got a tensor \[3, 1\]"),
        (lambda task: torch.tensor(1.0), "got one that does not"),
        (lambda task: 1.0, "got float"),
    ],
)
def test_losses_that_are_none(made, said):
    class Wrong(Line):
        def loss(self, epoch):
            return made(self)

    with pytest.raises(InputError, match=f"loss must be a scalar that depends.*{said}"):
        Trainer(Wrong(connect()), options=Training(epochs=1)).run()
