"""Plans that work through rows in parts: what training then reads and writes, to the byte."""

from __future__ import annotations

import json
import shlex

import pytest

from spgnn.__main__ import main
from spgnn.chunked.budget import LIBRARIES, ORDER
from spgnn.comm import connect
from spgnn.data import open_source
from spgnn.data.generators import generate_block_model
from spgnn.data.shards import write_shards
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.plan import Network, Subject, read_machine
from spgnn.plan.choose import Planner
from spgnn.plan.network import normalisation_of
from spgnn.plan.out_of_core import FromDisk, OutOfCore
from spgnn.plan.partitions import Partitions
from spgnn.plan.search import Configuration, Planned
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig
from spgnn.train.run import train
from tests.chunked.runs import check_bytes, reports
from tests.plan.configurations import write_graphs
from tests.plan.test_machine import EXAMPLE

CASES = [(0, "sage", 3, {}), (1, "gcn", 3, {}), (2, "gin", 2, {}), (1, "sage", 2, {"dropout": 0.3})]
CASES += [(4, "sage", 2, {})]
CASES += [(0, "gcn", 3, {"norm": "batch"}), (2, "sage", 3, {"norm": "pair", "jk": "cat"})]
CASES += [(1, "gin", 2, {"norm": "graph", "residual": True}), (1, "sage", 3, {"jk": "max"})]
CASES += [(0, "sage", 3, {"aggregate": "max"}), (1, "sage", 2, {"aggregate": "max", "jk": "last"})]
CASES += [(2, "sage", 2, {"aggregate": "max", "norm": "layer", "dropout": 0.3})]
CASES += [(0, "gat", 3, {"heads": 5}), (1, "gatv2", 2, {"heads": 5, "dropout": 0.3})]
CASES += [(4, "gat", 2, {"heads": 5, "jk": "cat"}), (2, "gatv2", 2, {"norm": "batch"})]


def plans(path, ranks, kind, layers, spill, *, memory=None, features=0, **options) -> list[Planned]:
    """Those from the disk."""
    source = open_source(str(path))
    normalisation, loops = normalisation_of(kind, options.get("aggregate", "mean"))
    subject = Subject.of(
        source,
        random_features=features,
        random_classes=4 if features else 0,
        normalisation=normalisation,
        loops=loops,
    )
    widths = (subject.features, *[5] * (layers - 1), subject.classes)
    network = Network(widths, kind, sparse=subject.word_counts is not None, **options)
    beside = OutOfCore(source, str(path), 0, str(spill), 1e9, memory, 10**8)
    partitions = Partitions(subject, spill / "cache")
    machine = read_machine(EXAMPLE)
    planner = Planner(
        subject, network, machine, partitions, methods=["block"], beside=beside, memory=memory
    )
    in_memory = [Configuration(ranks, "block", "column", Algorithm())]
    plans = planner.choose(ranks, in_memory).plans
    return [one for one in plans if isinstance(one.configuration, FromDisk)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_bytes_are_those_of_training(ranks, tmp_path):
    graphs = write_graphs(tmp_path)
    # Features that are read where they lie, of as many parts as there are ranks.
    write_shards(open_source(str(graphs[0])), None, ranks, tmp_path / "cut")
    graphs.append(tmp_path / "cut")
    flags, planned = [], []
    for number, kind, layers, options in CASES:
        (one,) = plans(graphs[number], ranks, kind, layers, tmp_path, **options)
        command = one.configuration.written()
        base = ["--dataset", str(graphs[number]), "--model", kind, "--layers", str(layers)]
        base += ["--hidden", "5", "--epochs", "1", "--random-classes", "4"]
        extra = [f"--{n}" if v is True else f"--{n}={v}" for n, v in options.items()]
        # Memory decides nothing here: all is on the disk, so is what is looked at.
        how = "always" if one.configuration.storage["recomputed_layers"] else "never"
        asked = ["--set", f"storage.recompute={how}"]
        flags.append(TrainConfig.read([*base, *extra, *command, *asked]).flat())
        planned.append(one.configuration.storage)
    (found, *_) = run_ranks(reports, ranks, flags)
    for ahead, report in zip(planned, found, strict=True):
        check_bytes(report["storage"])
        assert ahead == {name: report["storage"][name] for name in ahead}


def test_what_does_not_fit_is_planned_from_the_disk(tmp_path, capsys):
    """Less memory than any plan in memory needs; the command takes the flags that are printed."""
    graph, found = str(write_graphs(tmp_path)[1]), tmp_path / "plans.json"
    command = ["plan", graph, "--ranks", "1", "--machine", str(EXAMPLE), "--partition", "block"]
    command += ["--json", str(found), "--cache", str(tmp_path / "cache"), "--disk-speed", "4KiB"]
    command += ["--top", "50"]
    assert main([*command, "--memory", "64GiB"]) == 0
    plans = json.loads(found.read_text())["plans"]
    assert main([*command, "--spill", str(tmp_path)]) == 0
    in_memory, from_disk = _parted(found)
    assert any(one["storage"] is not None for one in plans)
    assert in_memory
    assert from_disk["storage"]["planned_read_bytes"] > 0
    assert from_disk["storage"]["on_disk"] == sorted(ORDER)
    moved = [from_disk["storage"][f"planned_{way}_bytes"] for way in ("read", "written")]
    beside = dict(from_disk["seconds_by_kind"])
    shown = beside.pop("disk")
    assert shown > 0
    assert shown + sum(beside.values()) == pytest.approx(sum(moved) / 2**12)
    words = shlex.split(from_disk["command"])
    assert words[-4:] == ["--spill", str(tmp_path), "--chunks", "8"]
    TrainConfig.read(words[4:]).check(1)
    assert "from disk" in capsys.readouterr().out


def test_memory_asked_for_is_kept(tmp_path):
    """Of a graph larger than it, with what the process itself takes."""
    graph = tmp_path / "graph"
    generate_block_model(graph, 50_000, 400_000)
    memory = 10**8 + LIBRARIES + 18 * 10**6
    (one,) = plans(graph, 1, "sage", 3, tmp_path, memory=memory, features=64)
    assert one.prediction.memory_bytes <= memory
    assert one.configuration.storage["on_disk"]
    assert one.configuration.written()[-6:-4] == ["--memory", str(memory)]
    (slower,) = plans(graph, 1, "sage", 3, tmp_path, memory=memory - 8 * 10**6, features=64)
    assert slower.configuration.storage["recomputed_layers"]
    assert slower.prediction.seconds["disk"] > one.prediction.seconds["disk"]


def test_a_plan_file_is_followed_in_memory(tmp_path):
    """What works from a disk needs flags of its own, and is passed over."""
    graph, found = str(write_graphs(tmp_path)[1]), tmp_path / "plans.json"
    command = ["plan", graph, "--ranks", "1", "--machine", str(EXAMPLE), "--partition", "block"]
    command += ["--cache", str(tmp_path / "cache"), "--disk-speed", "1GiB", "--json", str(found)]
    assert main([*command, "--spill", str(tmp_path)]) == 0
    record = json.loads(found.read_text())
    record["plans"] = [plan for plan in record["plans"] if plan["storage"] is not None]
    found.write_text(json.dumps(record))
    with pytest.raises(InputError, match="holds no plan for 1 ranks"):
        train(TrainConfig.read(["--dataset", graph, "--plan", str(found)]), connect("gloo"))


def _parted(path):
    every = json.loads(path.read_text())["plans"]
    (from_disk,) = [plan for plan in every if plan["storage"] is not None]
    return [plan for plan in every if plan["storage"] is None], from_disk
