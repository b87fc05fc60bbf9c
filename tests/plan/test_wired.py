"""Plans for approximate wires: bytes are those that ranks count, seconds follow from them."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest

from spgnn import InputError
from spgnn.__main__ import main
from spgnn.comm import connect
from spgnn.data import open_source
from spgnn.exchange import Algorithm, Codec
from spgnn.plan import Network, Subject, predict, read_machine
from spgnn.plan.machine import Level, Levels, Link
from spgnn.plan.wired import Wired
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, train
from tests.plan.configurations import predicted, write_graphs
from tests.plan.test_machine import EXAMPLE
from tests.training import run

WIRES: list[dict[str, object]] = [
    {"bits": 4},
    {"bits": "16,2@2", "error_feedback": True},
    {"delay": 1},
    {"bits": 8, "delay": 2, "delay_bins": 2},  # after the first epoch, two periods
    {"delay": "never", "exact_last": 2},
    {"boundary_sampling": "1,1e-9@4", "bits": 8},
    {"bits": "1,4@3", "exact_means": True},
    {"delay": 1, "exact_last": 1, "bits": 4, "exact_means": False},
]
SCHEMES: list[dict[str, object]] = [
    {"cover": "minimum"},
    {"algo": "1.5d", "c": 2, "dropout": 0.5},
    {"algo": "2d", "dropout": 0.5, "model": "sage"},
    {"hierarchy": 2, "prune": False},
    {"algo": "feature", "c": 4, "prune": False},
    {"algo": "vertex-cut", "recompute_halo": True},
    {"hierarchy": 2, "cover": "row"},
]


WEIGHED: list[dict[str, object]] = [
    {"model": "gat", "heads": 2, "cover": "minimum", "bits": 4},
    {"model": "gatv2", "algo": "1.5d", "c": 2, "cover": "row", "delay": 1},
    {"model": "gat", "algo": "vertex-cut", "delay": "never", "exact_last": 2, "heads": 4},
    {"model": "gatv2", "cover": "minimum", "bits": "16,2@2", "error_feedback": True, "heads": 2},
    {"model": "gat", "algo": "1.5d", "c": 2, "bits": 8, "delay": 2, "delay_bins": 2},
    {"model": "sage", "aggregate": "max", "bits": 8, "delay": 1},
]


def counted(rank: int, configs: list[TrainConfig]) -> list[dict]:
    return [run(config, connect())[1] for config in configs]


def test_bytes_of_a_run_are_those_that_ranks_count(tmp_path):
    graphs = write_graphs(tmp_path)
    configs = [
        TrainConfig.of(
            dataset=graphs[number % 3],
            epochs=5,
            hidden=7,
            partition="random",
            **SCHEMES[number % len(SCHEMES)],
            **WIRES[(number + number // len(SCHEMES)) % len(WIRES)],
        )
        for number in range(2 * len(SCHEMES))
    ]
    reports, fewer = run_ranks(counted, 4, configs)[0], list[bool]()
    for config, report in zip(configs, reports, strict=True):
        wired = Wired.of(config.messages.codec, 5)
        assert wired is not None
        found = predicted(config, 4, wired)
        assert found.volume == report["volume"] == report["planned_volume"], config
        fewer.append(found.volume["total_bytes"] < predicted(config, 4).volume["total_bytes"])
    # Turns have no wires, and what is late travels all the same.
    assert sum(fewer) >= 9


def test_bytes_of_attention_on_wires_are_those_that_ranks_count(tmp_path):
    graphs, flags = write_graphs(tmp_path), {"epochs": 5, "hidden": 8, "layers": 2}
    configs = [
        TrainConfig.of(dataset=graphs[number % 3], partition="random", **flags, **how)
        for number, how in enumerate(WEIGHED)
    ]
    for config, report in zip(configs, run_ranks(counted, 4, configs)[0], strict=True):
        found = predicted(config, 4, Wired.of(config.messages.codec, 5))
        assert found.volume == report["volume"] == report["planned_volume"], config


def test_a_sample_is_priced_at_its_share(tmp_path):
    config = TrainConfig.of(dataset=write_graphs(tmp_path)[2], partition="random")
    exact = predicted(config, 4).volume["total_bytes"]
    wired = Wired(Codec.of(sampling=0.25, exact_means=False), 10)
    assert predicted(config, 4, wired).volume["total_bytes"] == pytest.approx(exact / 4, abs=8)
    means = Wired(Codec.of(delay=None, exact_means=True), 10)
    both = Wired(Codec.of(sampling=0.25), 10)
    sent, mean = (predicted(config, 4, each).volume["total_bytes"] for each in (both, means))
    assert mean > 0
    assert sent == pytest.approx(exact / 4 + mean, abs=8)


def test_what_wires_keep_and_take_is_predicted():
    subject = Subject.of(open_source("rmat-10-8"), random_features=16, random_classes=4)
    machine, network = read_machine(EXAMPLE), Network((16, 16, 16, 4))
    slow = Level(Link(0.0, 0.0, 1e6), Link(0.0, 0.0, 1e6))
    machine = replace(machine, levels=Levels(slow), overlap=0.9, ranks_a_node=8)
    labels = np.arange(subject.vertices) % 8

    def price(**asked):
        wired = Wired.of(Codec.of(**asked), 100)
        return predict(subject, labels, Algorithm(), 8, network, machine=machine, wired=wired)

    exact, bits, late = price(), price(bits=4), price(delay=1)
    assert bits.seconds["exchange"] < exact.seconds["exchange"]
    assert late.seconds["exchange"] < exact.seconds["exchange"]
    assert not exact.memory["wires"].any()
    # Names alone; rows that are held, and those of both ends under way.
    names = bits.memory["wires"]
    assert (names > 0).all()
    assert (late.memory["wires"] > names).all()
    assert price(delay=None).volume["total_bytes"] == 0
    means = price(delay=None, exact_means=True).volume["total_bytes"]
    late_bytes = price(delay=1, exact_means=False).volume["total_bytes"]
    assert 0 < means < late_bytes / 2
    assert price(delay=1).volume["total_bytes"] == late_bytes + means


def test_what_depends_on_values_is_refused():
    with pytest.raises(InputError, match=r"messages.fresh 0\.5"):
        Wired.of(Codec.of(fresh=0.5), 10)


def trained(rank: int, config: TrainConfig) -> dict:
    return train(config, connect())


def test_auto_takes_wires(tmp_path, monkeypatch):
    monkeypatch.setenv("SPGNN_CACHE", str(tmp_path / "cache"))
    flags = {"plan": "auto", "machine": str(EXAMPLE), "bits": 4, "delay": 1, "epochs": 3}
    config = TrainConfig.of(dataset=write_graphs(tmp_path)[2], hidden=7, dropout=0.5, **flags)
    report = run_ranks(trained, 4, config)[0]
    assert report["plan"]["bytes"] == report["volume"]["total_bytes"]
    assert report["approximation"]["codec"] == "--bits 4 --delay 1 messages.exact-means True"


def test_the_command_ranks_for_wires(tmp_path, capsys):
    out, graph = tmp_path / "plans.json", str(write_graphs(tmp_path)[2])
    flags = ["--machine", EXAMPLE, "--cache", tmp_path, "--partition", "block", "--json", out]
    given = [
        "--bits",
        "8,4@50",
        "--delay",
        "2",
        "--delay-bins",
        "2",
        "--epochs",
        "60",
        "--set",
        "messages.exact-means=false",
    ]
    assert main(["plan", graph, "--ranks", "4", *map(str, flags), *given]) == 0
    capsys.readouterr()
    plan = json.loads(out.read_text())["plans"][0]
    config = TrainConfig.read(shlex.split(plan["command"])[4:])
    asked = config.messages.codec
    bits = [(0, 8), (50, 4)]
    assert asked == Codec.of(bits=bits, delay=2, bins=2, exact_means=False)
    assert config.training.epochs == 60
    assert predicted(config, 4, Wired(asked, 60)).volume["total_bytes"] == plan["bytes"]
    for wrong in (["--bits", "3"], ["--delay-bins", "2"], ["--delay", "100"]):
        assert main(["plan", graph, "--ranks", "4", "--machine", str(EXAMPLE), *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err
