"""Settings compared: what the report says of them is what their training says."""

from __future__ import annotations

import json
import sys
from statistics import mean, stdev

import numpy as np
import pytest
import tradeoff

from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.comm.jobs import Ended, Forked
from tests.train.command import check_refused, without_torch
from tests.training import write_dataset

SETTINGS = ["exact", "--bits 4", "--delay 1 --bits 8", "--hidden 3"]


def words(*settings: str) -> list[str]:
    return [word for setting in settings for word in (":", *setting.split())]


def common(tmp_path, *flags: object) -> list[str]:
    data = write_dataset(tmp_path / "graph.npz")
    short = ["--dataset", data, "--threads", 1, "--partition", "random", "--epochs", 5]
    return [str(word) for word in (*short, "--hidden", 8, "--runs", 2, *flags)]


def test_each_setting_is_its_own_training(tmp_path, monkeypatch):
    """What settings share is prepared once, and none leaves anything behind in it."""
    path, made = tmp_path / "report.json", []
    given = [*common(tmp_path, "--seed", 4), *words(*SETTINGS)]

    def counted(*arguments):
        made.append(1)
        return training_graph(*arguments)

    def body(rank: int) -> tuple:
        monkeypatch.setattr(tradeoff, "training_graph", counted)
        comm = connect()
        report = tradeoff.compare(tradeoff.Comparison.of(["--json", str(path), *given]), comm)
        times = len(made)
        flags = ["" if setting == "exact" else setting for setting in SETTINGS]
        rows = [*common(tmp_path, "--seed", 4), "--cover", "column"]  # as approximate messages are
        configs = [TrainConfig.read([*rows, *each.split()]) for each in flags]
        return report, times, [train(config, comm) for config in configs]

    report, times, alone = run_ranks(body, 2)[0]
    assert times == 2  # another width is another problem
    assert report["score"] == "test_acc_at_best_val"
    assert [one["setting"] for one in report["settings"]] == SETTINGS
    assert report["failure"] is None
    for one, training in zip(report["settings"], alone, strict=True):
        histories = [run["history"] for run in training["runs"]]
        best = [max(history, key=lambda record: record["val_acc"]) for history in histories]
        scores = [record["test_acc"] for record in best]
        assert one["score"] == pytest.approx(mean(scores), rel=1e-12)
        assert one["score_std"] == pytest.approx(stdev(scores))
        assert one["volume"] == training["volume"]
        assert one["approximation"] == training["approximation"]
        seeds = zip((4, 5), scores, strict=True)
        assert one["runs"] == [{"seed": seed, "score": score} for seed, score in seeds]
    assert json.loads(path.read_text()) == json.loads(json.dumps(report))


def command(tmp_path, *flags: object) -> Ended:
    def body() -> int:
        sys.argv = ["tradeoff.py", *common(tmp_path), *map(str, flags)]
        return tradeoff.main()

    return without_torch(Forked(body, tmp_path).wait())


def test_command(tmp_path):
    plot, path = tmp_path / "drawn.png", tmp_path / "report.json"
    failing = "--lr 1e38 --optimizer sgd"
    flags = ["--nproc", 2, "--plot", plot, "--json", path]
    ended = command(tmp_path, *flags, *words("exact", failing, "--delay never"))
    check_refused(ended, f"{failing}: ", "training ends", status=2)
    assert plot.read_bytes()[:4] == b"\x89PNG"
    exact, _, never = json.loads(path.read_text())["settings"]
    for one in (exact, never):
        [line] = [line for line in ended.out.splitlines() if f"│ {one['setting']} " in line]
        assert f" {one['volume']['total_bytes']:,} " in line
        assert f"{one['score']:.2%}" in line
    assert f"{100 * (never['score'] - exact['score']):+.2f}" in line


def test_refused_for_their_data_or_places(tmp_path):
    check_refused(command(tmp_path, "--plot", tmp_path / "x.doc"), "suffix .doc")
    nowhere = tmp_path / "nowhere" / "x.json"
    check_refused(command(tmp_path, "--json", nowhere), "--json", "nowhere")
    path = tmp_path / "graph.npz"
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"test_mask": np.zeros_like(arrays["test_mask"])})
    config = ["--dataset", str(path), "--epochs", "2", ":", "exact"]
    with pytest.raises(InputError, match="no score of a test set"):
        tradeoff.compare(tradeoff.Comparison.of(config), connect())
