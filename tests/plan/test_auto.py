"""``--plan``: what is given stays, what is chosen runs, and the history is that of the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spgnn.comm import connect
from spgnn.plan.choose import CHOSEN
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, train
from tests.plan.configurations import EXAMPLE, predicted, write_graphs
from tests.train.command import check_refused, run


def trained(rank: int, configs: list[TrainConfig]) -> list[dict]:
    return [train(config, connect()) for config in configs]


def test_given_flags_are_found_whatever_their_value():
    assert TrainConfig.given([]) == {}
    flags = ["--c", "1", "--no-prune", "--plan", "auto", "--cover=column"]
    assert set(TrainConfig.given(flags)) == {"c", "prune", "plan", "cover"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPGNN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_auto_trains_what_it_chose(tmp_path, cache):
    graph = write_graphs(tmp_path)[1]
    base = TrainConfig.of(dataset=graph, epochs=3, layers=2, hidden=5, seed=2)
    auto = base.but(plan="auto", machine=str(EXAMPLE))
    given = auto.but(cover="minimum", algo="1.5d", c=2)
    reports = run_ranks(trained, 4, [base, auto, given])[0]
    losses = [[record["loss"] for record in report["history"]] for report in reports]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)
    assert reports[0]["plan"] is None
    for config, report in zip((auto, given), reports[1:], strict=True):
        plan, flags = report["plan"], report["config"]
        assert plan["bytes"] == report["volume"]["total_bytes"]
        assert plan["max_send_bytes"] == report["volume"]["max_send_bytes"]
        assert {name: plan[name] for name in CHOSEN if name != "partition"} == {
            name: flags[name] for name in CHOSEN if name != "partition"
        }
        assert Path(flags["partition"]).parent == cache / "partitions"
        assert plan["seconds"] > 0
        assert plan["memory_bytes"] > 0
        assert len(plan["tried"]) in (0, 2)
        assert flags["hidden"] == config.model.hidden
    assert reports[2]["config"]["cover"] == "minimum"
    assert (reports[2]["config"]["algo"], reports[2]["config"]["c"]) == ("1.5d", 2)
    assert reports[2]["plan"]["objective"] == "cover"


def test_auto_knows_norms_skips_and_jumps(tmp_path, cache):
    graph = write_graphs(tmp_path)[0]
    model = {"norm": "batch", "residual": True, "jk": "cat", "act": "elu", "hidden": 7}
    base = TrainConfig.of(dataset=graph, epochs=3, layers=2, **model)
    auto = base.but(plan="auto", machine=str(EXAMPLE))
    both = [base, auto, auto.but(prune=True, model="sage", norm="node")]
    reports = run_ranks(trained, 3, both)[0]
    losses = [[record["loss"] for record in report["history"]] for report in reports]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    for report in reports[1:]:
        assert report["plan"]["bytes"] == report["volume"]["total_bytes"]
    assert reports[1]["plan"]["prune"] is False


def test_auto_knows_attention_and_largest_neighbours(tmp_path, cache):
    """Chosen among what these models can have; the bytes are counted, the history is the same."""
    graph = write_graphs(tmp_path)[2]
    base = TrainConfig.of(dataset=graph, epochs=2, layers=2, hidden=8)
    models = [
        {"model": "gat", "heads": 2, "cover": "minimum"},
        {"model": "gatv2"},
        {"model": "sage", "aggregate": "max"},
    ]
    plain = [base.but(**model) for model in models]
    auto = [one.but(plan="auto", machine=str(EXAMPLE)) for one in plain]
    reports = run_ranks(trained, 4, [*plain, *auto])[0]
    for one, chosen in zip(reports[:3], reports[3:], strict=True):
        losses = [[record["loss"] for record in each["history"]] for each in (one, chosen)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        assert chosen["plan"]["bytes"] == chosen["volume"]["total_bytes"]
    assert reports[3]["config"]["cover"] == "minimum"
    largest = reports[5]["config"]
    assert (largest["algo"], largest["cover"], largest["recompute_halo"]) == ("1d", "column", False)
    kinds = [report["plan"]["seconds_by_kind"] for report in reports[3:]]
    assert [next(iter(kind.keys() & {"attention", "largest"})) for kind in kinds] == [
        *["attention"] * 2,
        "largest",
    ]


def test_auto_takes_codecs(tmp_path, cache):
    flags = {"plan": "auto", "machine": str(EXAMPLE), "bits": 4, "delay": 1, "epochs": 3}
    config = TrainConfig.of(dataset=write_graphs(tmp_path)[2], hidden=7, dropout=0.5, **flags)
    (report,) = run_ranks(trained, 4, [config])[0]
    assert report["plan"]["bytes"] == report["volume"]["total_bytes"]
    assert report["approximation"]["codec"] == "--bits 4 --delay 1 messages.exact-means True"


def test_a_file_gives_its_first_plan_for_as_many_ranks(tmp_path):
    graph = write_graphs(tmp_path)[0]
    flags = {"algo": "1d", "c": 1, "exchange": "sparsity-aware", "cover": "row", "order": "paper"}
    flags |= {"recompute_halo": False, "prune": False, "partition": "random", "hierarchy": "none"}
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"plans": [{"ranks": 2}, {"ranks": 3, **flags}]}))
    base = TrainConfig.of(dataset=graph, epochs=1, plan=str(path))
    both = [base, base.but(cover="minimum")]
    reports = run_ranks(trained, 3, both)[0]
    assert {name: reports[0]["config"][name] for name in flags} == flags
    assert reports[0]["plan"]["source"] == str(path)
    assert reports[1]["config"]["cover"] == "minimum"
    chosen = base.but(plan=None, **flags)
    assert predicted(chosen, 3).volume == reports[0]["volume"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["neither auto nor a file"]),
        ("{", ["not what spgnn plan --json writes"]),
        ('{"plans": 3}', ["not what spgnn plan --json writes"]),
        ('{"plans": [{"ranks": 2}]}', ["no plan for 1 ranks"]),
        ('{"plans": [{"ranks": 1, "algo": "1d"}]}', ["for 1 ranks lacks c"]),
    ],
)
def test_a_file_of_something_else_is_one_line(tmp_path, text, words):
    path = tmp_path / "plans.json"
    if text is not None:
        path.write_text(text)
    ended = run(tmp_path, "--dataset", write_graphs(tmp_path)[0], "--plan", path)
    check_refused(ended, f"--plan {path}", *words, status=2)
