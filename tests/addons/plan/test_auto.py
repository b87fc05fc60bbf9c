"""``--plan``: what is given stays, what is chosen runs, and the history is that of the plan."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import spgnn
from spgnn.addons.plan import planned
from spgnn.addons.plan.choose import CHOSEN
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.data.shards import write_shards
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.layout import RowLayout
from spgnn.machine import read_machine
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.addons.plan.configurations import EXAMPLE, predicted, write_graphs
from tests.graph.test_distribute import N, check_same, graph
from tests.train.command import check_refused, run


def trained(rank: int, configs: list[TrainConfig]) -> list[dict]:
    return [train(config, connect()) for config in configs]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPGNN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# Options of the model, then those of the scheme that are given; of graphs in turn.
CASES: list[tuple[dict[str, object], dict[str, object]]] = [
    ({}, {}),
    ({}, {"cover": "minimum", "algo": "1.5d", "c": 2}),
    ({"model": "gat", "heads": 2}, {"cover": "minimum"}),
    ({"norm": "batch", "residual": True, "jk": "cat", "act": "elu"}, {"prune": True}),
    ({"model": "gatv2"}, {}),
    ({"model": "sage", "aggregate": "max"}, {}),
    ({"model": "sage", "norm": "node"}, {"prune": True}),
]


def test_auto_trains_what_it_chose(tmp_path, cache):
    """What is given stays; the bytes are those predicted, and the history is that of the model."""
    graphs, auto = write_graphs(tmp_path), {"plan": "auto", "machine": str(EXAMPLE)}
    configs = []
    for number, (model, given) in enumerate(CASES):
        base = TrainConfig.of(dataset=graphs[number % 3], epochs=2, layers=2, hidden=8, **model)
        configs += [base, base.but(**auto, **given)]
    coded = configs[0].but(**auto, bits=4, delay=1, dropout=0.5, epochs=3)
    *reports, codecs = run_ranks(trained, 4, [*configs, coded])[0]
    kinds = []
    for (model, given), plain, chosen in zip(CASES, reports[::2], reports[1::2], strict=True):
        losses = [[record["loss"] for record in each["history"]] for each in (plain, chosen)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        plan, flags = chosen["plan"], chosen["config"]
        assert plain["plan"] is None
        assert plan["bytes"] == chosen["volume"]["total_bytes"]
        assert plan["max_send_bytes"] == chosen["volume"]["max_send_bytes"]
        for name in CHOSEN:
            assert name == "partition" or plan[name] == flags[name]
        # Where norms take all rows, pruning makes no difference.
        stays = {"prune": False} if model.get("norm") == "batch" else given
        assert {name: flags[name] for name in stays} == stays
        assert Path(flags["partition"]).parent == cache / "partitions"
        assert plan["seconds"] > 0
        assert plan["memory_bytes"] > 0
        assert len(plan["tried"]) in (0, 2)
        kinds += plan["seconds_by_kind"].keys() & {"attention", "largest"}
    assert kinds == ["attention", "attention", "largest"]
    assert reports[3]["plan"]["objective"] == "cover"
    largest = reports[11]["config"]
    assert (largest["algo"], largest["cover"], largest["recompute_halo"]) == ("1d", "column", False)
    assert codecs["plan"]["bytes"] == codecs["volume"]["total_bytes"]
    assert codecs["approximation"]["codec"] == "--bits 4 --delay 1 messages.exact-means True"


def test_labels_that_are_given_stay(tmp_path, cache):
    """Of a graph that is cut, and of a file."""
    graph, labels = write_graphs(tmp_path)[0], tmp_path / "labels"
    write_shards(open_source(str(graph)), None, 2, tmp_path / "cut")
    labels.write_text("0\n1\n" * 23 + "0\n")
    base = {"plan": "auto", "machine": str(EXAMPLE), "dropout": 0.5}
    for given in ({"dataset": tmp_path / "cut"}, {"dataset": graph, "partition": labels}):
        config = TrainConfig.of(epochs=1, layers=2, **base, **given)
        (report,) = run_ranks(trained, 2, [config])[0]
        assert report["config"]["partition"] == config.algorithm.partition
        assert report["plan"]["bytes"] == report["volume"]["total_bytes"] > 0


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


def check_planned(rank: int) -> None:
    whole = graph()
    found = spgnn.distribute(whole, plan="auto", memory="1 GiB", hidden_channels=8)
    check_same(found, whole)
    assert found.algorithm == Algorithm()
    assert found.halo_rows >= found.own_rows
    assert found.plan["why"].startswith("the least seconds")
    assert 0 < found.plan["memory_bytes"] < 1 << 30
    assert found.plan["ranks"] == 4
    any_way = spgnn.distribute(whole, plan="auto", halo=False, num_layers=3)
    check_same(any_way, whole)
    assert any_way.plan["algo"] == any_way.algorithm.algo
    attending = spgnn.distribute(whole, plan="auto", halo=False, plan_for="gat")
    assert attending.plan["seconds_by_kind"]["attention"] > 0
    block = whole.block(*RowLayout.even(N, 4).range(rank))
    for data, options, words in (
        (whole, {"memory": 10}, "--memory 10: no plan for 4 ranks fits"),
        (whole, {"partition": np.zeros(N, int)}, 'plan="auto" makes partitions by itself'),
        (whole, {"cover": "row"}, 'auto" chooses the algorithm'),
        (whole, {"memory": "much"}, "memory: 'much' must be bytes"),
        (whole, {"plan_for": "gats"}, "plan_for gats: choose one of gcn"),
        (block, {}, "cuts a graph by itself: give it in one piece"),
    ):
        with pytest.raises(InputError, match=words):
            spgnn.distribute(data, plan="auto", **options)


def test_a_plan_is_chosen(monkeypatch, tmp_path):
    machine = read_machine(EXAMPLE)
    monkeypatch.setenv("SPGNN_CACHE", str(tmp_path))
    monkeypatch.setattr(planned, "measure", lambda comm, edges=(): machine)
    run_ranks(check_planned, 4)
