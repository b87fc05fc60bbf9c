"""Settings compared: what the report says of them is what their training says."""

from __future__ import annotations

import json
from statistics import mean, stdev

import numpy as np
import pytest

from spgnn import InputError
from spgnn.comm import connect
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, prepare, train
from spgnn.train.tradeoff import (
    TradeoffConfig,
    beside_exact,
    compare,
    main,
    of_setting,
    seconds_until,
)
from spgnn.train.tradeoff_report import cells, columns
from tests.comm.jobs import Ended, Forked
from tests.train.command import check_refused, without_torch
from tests.training import write_dataset

SETTINGS = "exact,--hidden 3,--layers 1"


def base(tmp_path, **flags) -> TradeoffConfig:
    path = write_dataset(tmp_path / "graph.npz")
    common = {
        "dataset": path,
        "partition": "random",
        "hidden": 8,
        "epochs": 6,
        "settings": SETTINGS,
    }
    return TradeoffConfig.of(**common | flags)


@pytest.mark.parametrize("runs", [1, 3])
def test_each_setting_is_its_own_training(tmp_path, runs):
    config = base(tmp_path, runs=runs, seed=4)

    def body(rank: int) -> tuple:
        comm = connect()
        usual = TrainConfig(**{name: getattr(config, name) for name in vars(TrainConfig())})
        changes = {}, {"hidden": 3}, {"layers": 1}
        return compare(config, comm), [train(usual.but(**change), comm) for change in changes]

    report, alone = run_ranks(body, 2)[0]
    assert report["score"] == "test_acc_at_best_val"
    assert [one["setting"] for one in report["settings"]] == SETTINGS.split(",")
    assert report["failure"] is None
    for one, training in zip(report["settings"], alone, strict=True):
        histories = [run["history"] for run in training["runs"] or [training]]
        best = [max(history, key=lambda record: record["val_acc"]) for history in histories]
        scores = [record["test_acc"] for record in best]
        assert one["score"] == pytest.approx(mean(scores), rel=1e-12)
        assert one["score_std"] == (pytest.approx(stdev(scores)) if runs > 1 else None)
        assert one["volume"] == training["volume"]
        assert [run["seed"] for run in one["runs"]] == list(range(4, 4 + runs))
        for run, history, score in zip(one["runs"], histories, scores, strict=True):
            assert run["score"] == score
            assert [at[1] for at in run["curve"]] == [record["test_acc"] for record in history]
            seconds = [at[0] for at in run["curve"]]
            assert seconds == sorted(seconds)
    exact, narrow, shallow = report["settings"]
    assert (exact["points"], exact["fewer"]) == (0, 1)
    assert narrow["fewer"] == exact["volume"]["total_bytes"] / narrow["volume"]["total_bytes"] > 1
    assert shallow["points"] == pytest.approx(100 * (shallow["score"] - exact["score"]))


def test_what_settings_share_is_prepared_once(tmp_path, monkeypatch):
    """And wires leave nothing behind in it: each trains as it would alone."""
    settings = "delay-1,bits-4,exact,bits-2-feedback,--hidden 3,boundary-0.1"
    config, made = base(tmp_path, runs=2, settings=settings, json=str(tmp_path / "r.json")), []

    def counted(*arguments):
        made.append(1)
        return prepare(*arguments)

    def body(rank: int) -> tuple:
        monkeypatch.setattr("spgnn.train.setup.prepare", counted)
        comm = connect()
        report, times = compare(config, comm), len(made)
        alone = [train(of_setting(config, name), comm) for name in settings.split(",")]
        return report, times, alone

    report, times, alone = run_ranks(body, 2)[0]
    assert times == 3  # another width is another problem, and so is the one after it
    for one, training in zip(report["settings"], alone, strict=True):
        assert one["volume"] == training["volume"]
        assert one["approximation"] == training["approximation"]
        for run, other in zip(one["runs"], training["runs"], strict=True):
            scores = [record["test_acc"] for record in other["history"]]
            assert [at[1] for at in run["curve"]] == scores
    written = json.loads((tmp_path / "r.json").read_text())
    assert [one["setting"] for one in written["settings"]] == settings.split(",")


def of_curves(setting: str, nbytes: int, *curves: list[list[float]]) -> dict:
    scores = [max(score for _, score in curve) for curve in curves]
    return {
        "setting": setting,
        "score": mean(scores),
        "score_std": None,
        "volume": {"total_bytes": nbytes, "max_send_bytes": nbytes},
        "epoch_seconds": 1.0,
        "approximation": None,
        "runs": [{"seed": 0, "score": s, "curve": c} for s, c in zip(scores, curves, strict=True)],
    }


def test_beside_exact():
    exact = of_curves("exact", 1200, [[1.0, 0.5], [2.0, 0.9]], [[1.0, 0.6], [4.0, 0.8]])
    fewer = of_curves("bits-8", 300, [[1.0, 0.846], [2.0, 0.844]], [[0.5, 0.1], [3.0, 0.844]])
    never = of_curves("never", 0, [[1.0, 0.3]], [[1.0, 0.4]])
    settings = [fewer, exact, never]
    beside_exact(settings)
    # Exact's 0.85 less half a point; the second run of exact does not come there.
    told = [(one["seconds_to"]["seconds"], one["seconds_to"]["runs"]) for one in settings]
    assert told == [(1.0, 1), (2.0, 1), (None, 0)]
    assert [one["fewer"] for one in settings] == [4, 1, None]
    assert [one["points"] for one in settings] == pytest.approx([-0.5, 0, -50])
    for one in settings:
        assert len(cells(one)) == len(columns({"score": "test_acc_at_best_val"}))
    assert cells(never)[-3:-1] == ["1.0000", "–"]
    alone = [of_curves("bits-8", 300, [[1.0, 0.5]])]
    beside_exact(alone)
    assert [alone[0][name] for name in ("points", "fewer", "seconds_to")] == [None] * 3
    assert len(cells(alone[0])) == len(cells(never))


def test_errors_are_told_by_product_and_direction():
    one = of_curves("bits-8", 300, [[1.0, 0.5]])
    beside_exact([one])
    errors = [
        {"product": 0, "direction": "forward", "error": 0.01234, "by": {}},
        {"product": 0, "direction": "adjoint", "error": 0.5, "by": {}},
        {"product": 1, "direction": "forward", "error": None, "by": {}},
    ]
    for found, shown in ((None, "0"), ([], "–"), (errors, "1.23 –; 50")):
        approximation = found if found is None else {"wires": "", "errors": found}
        assert cells(one | {"approximation": approximation})[-1] == shown


def test_seconds_until():
    curve = [[1.0, 0.2], [2.0, 0.8], [3.0, 0.5]]
    assert [seconds_until(curve, score) for score in (0.1, 0.2, 0.5, 0.8, 0.81)] == [
        *(1.0, 1.0, 2.0, 2.0, None)
    ]


def test_settings_write_apart(tmp_path):
    config = base(tmp_path, checkpoint="kept", log="log", predictions="out.npz", json="r.json")
    made = of_setting(config, "--hidden 3")
    assert (made.training.checkpoint, made.job.log) == ("kept/hidden-3", "log/hidden-3")
    assert (made.job.predictions, made.job.json) == ("out.hidden-3.npz", None)
    assert made.model.hidden == 3
    assert type(made) is TrainConfig


def test_resumed(tmp_path):
    """Settings that have ended are not trained again, others begin or go on."""
    config = base(tmp_path, checkpoint=str(tmp_path / "kept"), checkpoint_every=1)
    whole = compare(config.but(checkpoint=None), connect())
    compare(config.but(settings="exact"), connect())
    compare(config.but(settings="--hidden 3", epochs=3), connect())
    resumed = compare(config.but(resume=True), connect())
    for one, other in zip(whole["settings"], resumed["settings"], strict=True):
        assert one["score"] == other["score"]
        for run, again in zip(one["runs"], other["runs"], strict=True):
            assert [at[1] for at in run["curve"]] == [at[1] for at in again["curve"]]


def command(tmp_path, *flags: object) -> Ended:
    data = write_dataset(tmp_path / "graph.npz")
    short = ["--threads", "1", "--epochs", "3", "--partition", "random", "--dataset", data]
    job = Forked(lambda: main([*map(str, short), *map(str, flags)]), tmp_path)
    return without_torch(job.wait())


def test_command(tmp_path):
    plot, path = tmp_path / "drawn.png", tmp_path / "report.json"
    flags = ["--nproc", 2, "--plot", plot, "--json", path, "--settings", SETTINGS, "--runs", 2]
    ended = command(tmp_path, *flags)
    assert (ended.status, ended.err) == (0, "")
    assert plot.read_bytes()[:4] == b"\x89PNG"
    report = json.loads(path.read_text())
    assert report["config"]["settings"] == SETTINGS
    for one in report["settings"]:
        [line] = [line for line in ended.out.splitlines() if f"│ {one['setting']} " in line]
        assert f" {one['volume']['total_bytes']:,} " in line
        assert f"{one['score']:.2%}" in line


def test_training_that_fails_is_told_and_the_others_go_on(tmp_path):
    path = tmp_path / "report.json"
    flags = ["--lr", 1, "--json", path, "--settings", "exact,--lr 1e38 --optimizer sgd,--hidden 3"]
    ended = command(tmp_path, *flags)
    check_refused(ended, "--settings --lr 1e38 --optimizer sgd: ", "training ends", status=2)
    scores = [one["score"] is None for one in json.loads(path.read_text())["settings"]]
    assert scores[0] is scores[2] is False


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"settings": "exact,bits-5"},
            "--settings bits-5: choose one of exact, .*did you mean 'bits-",
        ),
        ({"settings": "exact,"}, "--settings : choose one of exact, "),
        ({"settings": "never,exact,never"}, "name each of them once"),
        ({"settings": "--hidden 3,--hidden=3"}, "name each of them once"),
    ],
)
def test_bad_settings(flags, words):
    with pytest.raises(InputError, match=words):
        TradeoffConfig.of(**flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"settings": "--ghosts 1 --layers 1"},
            "--settings --ghosts 1 --layers 1: --ghosts 1 needs",
        ),
        ({"epochs": 5, "settings": "delay-5-bins"}, "--settings delay-5-bins: --delay 5 must be"),
        ({"bits": 8}, "--bits 8: is what --settings are about"),
        ({"settings": "--hiden 1"}, "--settings --hiden 1: .*--hidden"),
        ({"write_config": "x.toml"}, "--write-config is not known here"),
    ],
)
def test_refused_before_training(flags, words):
    with pytest.raises(InputError, match=words):
        TradeoffConfig.of(**{"settings": "exact"} | flags).check(2)


def test_refused_for_their_data_or_places(tmp_path):
    one = "--settings", "exact"
    check_refused(command(tmp_path, *one, "--plot", tmp_path / "x.doc"), "suffix .doc")
    nowhere = tmp_path / "nowhere" / "x.json"
    check_refused(command(tmp_path, *one, "--json", nowhere), "--json", "nowhere")
    config = base(tmp_path, settings="exact", epochs=2)
    with np.load(config.data.dataset) as file:
        arrays = dict(file)
    np.savez(config.data.dataset, **arrays | {"test_mask": np.zeros_like(arrays["test_mask"])})
    with pytest.raises(InputError, match="no score of a test set"):
        compare(config, connect())
