"""``--runs N``: several seeds on one graph, their mean and spread, and what each of them writes."""

from __future__ import annotations

import json
from statistics import mean, stdev

import numpy as np
import pytest

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.testing import run_ranks
from spgnn.train import train
from spgnn.train.report import final_scores
from tests.train.command import check_refused, run
from tests.training import write_dataset


def base(tmp_path, **flags) -> TrainConfig:
    path = write_dataset(tmp_path / "graph.npz")
    with np.load(path) as file:  # a split that would depend on the seed
        np.savez(path, **{n: a for n, a in file.items() if not n.endswith("_mask")})
    return TrainConfig.of(dataset=path, partition="random", hidden=8, seed=5, dropout=0.5, **flags)


def without_seconds(history: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]


@pytest.mark.parametrize("ranks", [1, 2])
def test_runs(tmp_path, monkeypatch, ranks):
    """Each is what a run of its seed is on the graph of the first; the graph is made once."""
    config = base(tmp_path, epochs=3, runs=3)
    named = config.but(
        checkpoint=tmp_path / "kept", log=tmp_path / "log", predictions=tmp_path / "out.npz"
    )

    def body(rank: int) -> tuple:
        made = []

        def counted(*arguments):
            made.append(training_graph(*arguments))
            return made[-1]

        monkeypatch.setattr("spgnn.train.run.training_graph", counted)
        report = train(named, connect())
        count = len(made)
        # On the graph of seed 5, whatever the seed of weights.
        alone = [
            train(config.but(runs=1, seed=seed), connect(), data=made[0]) for seed in (5, 6, 7)
        ]
        return count, report, alone

    count, report, alone = run_ranks(body, ranks)[0]
    assert count == 1
    runs = report["runs"]
    assert [(one["seed"], one["epochs"], one["failure"]) for one in runs] == [
        *((5, 3, None), (6, 3, None), (7, 3, None))
    ]
    for one, other in zip(runs, alone, strict=True):
        assert without_seconds(one["history"]) == without_seconds(other["history"])
        assert (other["runs"], other["mean"], other["std"]) == (None, None, None)
    assert report["history"][0]["loss"] == runs[0]["history"][0]["loss"]
    assert len({one["scores"]["loss"] for one in runs}) == 3
    for name in ("loss", "val_loss", "test_acc", "test_acc_at_best_val"):
        values = [one["scores"][name] for one in runs]
        assert report["mean"][name] == pytest.approx(mean(values))
        assert report["std"][name] == pytest.approx(stdev(values))
    json.dumps(report, allow_nan=False)
    for number in range(3):
        assert (tmp_path / "log" / f"run-{number}" / "history.csv").exists()
        assert (tmp_path / "kept" / f"run-{number}" / "checkpoint.safetensors").exists()
        with np.load(tmp_path / f"out.run-{number}.npz") as file:
            assert file["scores"].shape == (61, 4)


def test_what_had_not_begun_begins(tmp_path):
    """Killed in the second of three runs, and resumed."""
    config = base(tmp_path, epochs=4, runs=3)
    kept = config.but(checkpoint=tmp_path / "kept", checkpoint_every=1)
    straight = train(config, connect())
    train(kept.but(runs=2), connect())
    train(kept.but(runs=2, resume=True, epochs=4), connect())
    resumed = train(kept.but(resume=True), connect())
    for one, other in zip(straight["runs"], resumed["runs"], strict=True):
        assert without_seconds(one["history"]) == without_seconds(other["history"])


def test_the_command(tmp_path):
    config, report = base(tmp_path), tmp_path / "report.json"
    flags = ["--dataset", config.data.dataset, "--runs", 2, "--json", report]
    ended = run(tmp_path, *flags)
    assert ended.status == 0, ended.err
    for name in ("test accuracy", "test accuracy at best val", "loss"):
        assert any(name in line and "±" in line for line in ended.out.splitlines()), ended.out
    ended = run(tmp_path, *flags, "--lr", "1e30", "--optimizer", "sgd", "--epochs", 9)
    check_refused(ended, "training ends")
    found = json.loads(report.read_text())
    assert len(found["runs"]) == 1
    assert found["failure"] == found["runs"][0]["failure"]
    ended = run(tmp_path, *flags, "--checkpoint", tmp_path / "none", "--resume")
    check_refused(ended, "--resume: there is no checkpoint", "run-0")


def test_the_test_score_where_validation_was_best():
    history = [
        {"epoch": 0, "loss": 3.0, "val_acc": 0.5, "test_acc": 0.1, "seconds": 1.0, "lr": 0.1},
        {"epoch": 1, "loss": 2.0, "val_acc": 0.9, "test_acc": 0.2, "seconds": 1.0, "lr": 0.1},
        {"epoch": 2, "loss": 1.0, "val_acc": 0.9, "test_acc": 0.3, "seconds": 1.0, "lr": 0.1},
        {"epoch": 3, "loss": 0.5, "seconds": 1.0, "lr": 0.1},
    ]
    errors = [{"val_rmse": v, "test_rmse": t} for v, t in ((2.0, 0.5), (1.0, 0.7), (1.5, 0.2))]
    assert final_scores(errors)["test_rmse_at_best_val"] == 0.7
    assert final_scores(history) == {
        "loss": 0.5,
        "val_acc": 0.9,
        "test_acc": 0.3,
        "test_acc_at_best_val": 0.2,
    }
