"""Plans that work through rows in chunks: what training then reads and writes, to the byte."""

from __future__ import annotations

import json
import shlex

import pytest

from spgnn.addons.outofcore import Storage
from spgnn.addons.outofcore.budget import LIBRARIES, ORDER
from spgnn.addons.plan import Planner, PricedPlan
from spgnn.addons.plan.disk import Disk
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.data.generators import generate_block_model
from spgnn.data.shards import write_shards
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.machine import read_machine
from spgnn.testing import run_ranks
from spgnn.train.run import train
from tests.addons.outofcore.runs import check_bytes, reports
from tests.addons.plan.configurations import EXAMPLE, planned, write_graphs

CASES = [(0, "sage", 3, {}), (1, "gcn", 3, {}), (2, "gin", 2, {}), (1, "sage", 2, {"dropout": 0.3})]
CASES += [(4, "sage", 2, {})]
CASES += [(0, "gcn", 3, {"norm": "batch"}), (2, "sage", 3, {"norm": "pair", "jk": "cat"})]
CASES += [(1, "gin", 2, {"norm": "graph", "residual": True}), (1, "sage", 3, {"jk": "max"})]
CASES += [(0, "sage", 3, {"aggregate": "max"}), (1, "sage", 2, {"aggregate": "max", "jk": "last"})]
CASES += [(2, "sage", 2, {"aggregate": "max", "norm": "layer", "dropout": 0.3})]
CASES += [(0, "gat", 3, {"heads": 5}), (1, "gatv2", 2, {"heads": 5, "dropout": 0.3})]
CASES += [(1, "sgformer", 2, {"heads": 5, "dropout": 0.3})]
CASES += [(4, "gat", 2, {"heads": 5, "jk": "cat"}), (2, "gatv2", 2, {"norm": "batch"})]


def from_disk(graph, spill, ranks, *, memory: int = 0, **options) -> PricedPlan:
    """The plan of training with everything on the disk, or with some memory."""
    config = TrainConfig.of(dataset=graph, hidden=5, partition="block", **options)
    storage = Storage(memory=memory, spill=str(spill))
    planner = Planner(
        open_source(str(graph)),
        config,
        read_machine(EXAMPLE),
        pinned={"partition"},
        disk=Disk(str(graph), storage, 1e9, 10**8),
        memory=memory or None,
        cache=str(spill / "cache"),
    )
    plans = planner.choose(ranks, lambda one: one.distribution == Algorithm()).plans
    (from_disk,) = [one for one in plans if one.storage is not None]
    return from_disk


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [(1, CASES[::3]), (2, CASES[1::2]), pytest.param(2, CASES[::2], marks=pytest.mark.slow)],
)
def test_bytes_are_those_of_training(ranks, cases, tmp_path):
    graphs = write_graphs(tmp_path)
    # Features that are read where they lie, of as many parts as there are ranks.
    write_shards(open_source(str(graphs[0])), None, ranks, tmp_path / "cut")
    graphs.append(tmp_path / "cut")
    plans = [
        from_disk(graphs[number], tmp_path, ranks, model=model, layers=layers, **options)
        for number, model, layers, options in cases
    ]
    # Memory decides nothing here: all is on the disk, so is what is looked at.
    flags = [
        plan.config.but(
            epochs=1, recompute="always" if plan.storage["recomputed_layers"] else "never"
        ).flat()
        for plan in plans
    ]
    for plan, report in zip(plans, run_ranks(reports, ranks, flags)[0], strict=True):
        check_bytes(report["storage"])
        assert plan.storage == {name: report["storage"][name] for name in plan.storage}


def test_what_does_not_fit_is_planned_from_the_disk(tmp_path, capsys):
    """Less memory than any plan in memory needs; the command takes the flags that are printed.

    Plan files are followed in memory: plans from a disk need flags of their own.
    """
    graph, disk = write_graphs(tmp_path)[1], ("--disk-speed", "4KiB", "--top", 50)
    plans = planned(tmp_path, graph, 1, *disk, "--memory", "64GiB")["plans"]
    assert any(one["storage"] is not None for one in plans)
    record = planned(tmp_path, graph, 1, *disk, "--spill", tmp_path)
    assert any(one["storage"] is None for one in record["plans"])
    (from_disk,) = [one for one in record["plans"] if one["storage"] is not None]
    assert from_disk["storage"]["planned_read_bytes"] > 0
    assert from_disk["storage"]["on_disk"] == sorted(ORDER)
    moved = [from_disk["storage"][f"planned_{way}_bytes"] for way in ("read", "written")]
    beside = dict(from_disk["seconds_by_kind"])
    shown = beside.pop("disk")
    assert shown > 0
    assert shown + sum(beside.values()) == pytest.approx(sum(moved) / 2**12)
    words = shlex.split(from_disk["command"])
    config: TrainConfig = TrainConfig.read(words[6:])
    assert config.extension(Storage) == Storage(spill=str(tmp_path), chunks=8)
    config.check(1)
    assert "from disk" in capsys.readouterr().out
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({**record, "plans": [from_disk]}))
    with pytest.raises(InputError, match="holds no plan for 1 ranks"):
        train(TrainConfig.read(["--dataset", str(graph), "--plan", str(path)]), connect("gloo"))


def test_memory_asked_for_is_kept(tmp_path):
    """Of a graph larger than it, with what the process itself takes."""
    graph = tmp_path / "graph"
    generate_block_model(graph, 50_000, 400_000)
    memory = 10**8 + LIBRARIES + 18 * 10**6
    how = {"model": "sage", "layers": 3, "random_features": 64, "random_classes": 4}
    one = from_disk(graph, tmp_path, 1, memory=memory, **how)
    assert one.prediction.memory_bytes <= memory
    assert one.storage["on_disk"]
    assert f"--memory {memory}" in one.command
    slower = from_disk(graph, tmp_path, 1, memory=memory - 8 * 10**6, **how)
    assert slower.storage["recomputed_layers"]
    assert slower.prediction.seconds["disk"] > one.prediction.seconds["disk"]
