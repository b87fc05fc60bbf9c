"""Ranking: what fits, best first; each plan's command is one that the training command takes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.__main__ import main
from spgnn.data import open_source
from spgnn.exchange import Algorithm, Codec
from spgnn.partition import partition
from spgnn.plan import Network, Subject, predict, read_machine
from spgnn.plan.choose import Planner
from spgnn.plan.estimate import estimated_setting
from spgnn.plan.network import Weighing
from spgnn.plan.partitions import Partitions
from spgnn.plan.search import Configuration, algorithms, configurations, fitting
from spgnn.plan.subject import set_up
from spgnn.plan.table import lines
from spgnn.plan.wired import Wired
from spgnn.train import TrainConfig
from tests.plan.configurations import write_graphs
from tests.plan.test_machine import EXAMPLE

CONTRACT = {
    "ranks",
    "algo",
    "c",
    "cover",
    "recompute_halo",
    "prune",
    "order",
    "partition",
    "schedule",
}
CONTRACT |= {"hierarchy", "bytes", "memory_bytes", "seconds", "command"}


def planner(tmp_path, **options) -> Planner:
    subject = Subject.of(open_source(write_graphs(tmp_path)[0]))
    network = Network((subject.features, 7, subject.classes))
    partitions = Partitions(subject, tmp_path / "cache")
    options = {"methods": ["block"], **options}
    return Planner(subject, network, read_machine(EXAMPLE), partitions, **options)


def some(ours: Planner, ranks: int) -> list[Configuration]:
    """A few, of every kind."""
    every = list(configurations(ranks, ours.network, ["block"], ranks_a_node=4))
    return every[:: len(every) // 12]


def test_every_algorithm_once():
    found = list(algorithms(4))
    assert len(set(found)) == len(found)
    assert Algorithm("1.5d", 1) not in found
    assert {Algorithm("1d"), Algorithm("1.5d", 2), Algorithm("1.5d", 4, cover="row")} <= set(found)
    several = set(algorithms(8, 4))
    assert Algorithm("1d", cover="minimum", node_size=4) in several
    assert not any(one.node_size > 1 for one in algorithms(4, 4))


def test_plans_are_ranked_by_what_they_cost(tmp_path):
    ours = planner(tmp_path)
    chosen = ours.choose(8, some(ours, 8))
    seconds = [one.seconds for one in chosen.plans]
    assert seconds == sorted(seconds)
    assert chosen.dropped == []
    assert "the least seconds" in chosen.why(chosen.plans[0])
    assert chosen.why(chosen.plans[-1]).startswith(f"{seconds[-1] / seconds[0]:.2f} times")
    names = {str(one.configuration) for one in chosen.plans}
    assert len(names) == len(chosen.plans)
    assert set(lines([chosen])) <= names
    # Each is priced as it is alone.
    for one in chosen.plans[::4]:
        how = one.configuration
        labels, _ = partition(ours.subject.looped, how.algorithm.parts(8), "block")
        alone = predict(
            ours.subject,
            labels,
            how.algorithm,
            8,
            how.network(ours.network),
            reach=how.reach,
            machine=read_machine(EXAMPLE),
        )
        assert alone.volume == one.prediction.volume
        assert alone.volume_by_level == one.prediction.volume_by_level
        assert alone.memory_bytes == one.prediction.memory_bytes
        assert alone.epoch_seconds == one.prediction.epoch_seconds


def test_of_a_large_graph_hierarchies_that_promise_least_are_not_counted(tmp_path, monkeypatch):
    every = list(configurations(8, planner(tmp_path).network, ["block"], ranks_a_node=4))
    twice = [one for one in every if one.algorithm.node_size > 1 and not one.reach]
    flat = [replace(one, algorithm=replace(one.algorithm, node_size=1)) for one in twice]
    whole = planner(tmp_path).choose(8, [*flat, *twice])
    seconds = {one.configuration: one.seconds for one in whole.plans}
    assert whole.outpaced == []

    monkeypatch.setattr("spgnn.plan.choose.THOROUGH", 0)
    some = planner(tmp_path).choose(8, [*flat, *twice])
    assert {one.configuration: one.seconds for one in some.plans}.items() <= seconds.items()
    outpaced = {one.configuration: one.seconds for one in some.outpaced}
    assert len(outpaced) >= len(twice) - 1
    assert outpaced.keys() | {one.configuration for one in some.plans} == seconds.keys()
    # Columns have no partial sums, whose products a node may share out in another way.
    columns = [one for one in outpaced if one.algorithm.cover == "column"]
    assert columns
    assert all(outpaced[one] <= seconds[one] for one in columns)


def test_what_does_not_fit_is_left_out(tmp_path):
    ours = planner(tmp_path)
    everything = ours.choose(4, some(ours, 4))
    needs = sorted(one.prediction.memory_bytes for one in everything.plans)
    middle = needs[len(needs) // 2]
    ours.memory = middle
    fitting_ones = ours.choose(4, some(ours, 4))
    assert len(fitting_ones.plans) == sum(n <= middle for n in needs)
    assert len(fitting_ones.dropped) == sum(n > middle for n in needs)
    ours.memory = needs[0] - 1
    with pytest.raises(InputError, match=f"the smallest needs {needs[0]} bytes"):
        ours.choose(4, some(ours, 4))


def test_given_flags_stay():
    network = Network((11, 7, 3))
    every = list(configurations(4, network, ["block"]))
    assert all(one.algorithm.cover == "row" for one in fitting(every, {"cover": "row"}))
    found = list(fitting(every, {"exchange": "oblivious", "recompute_halo": False}))
    assert found
    assert {(one.algorithm.exchange, one.algorithm.cover) for one in found} == {
        ("oblivious", "column")
    }
    assert list(fitting(every, {"partition": "metis"})) == []
    dropped = list(configurations(4, replace(network, dropout=0.5), ["block"]))
    assert not any(one.ghosts for one in dropped)


def test_a_configuration_writes_flags_that_mean_it():
    network = Network((11, 7, 3))
    for one in list(configurations(8, network, ["gvb", "stream"], ranks_a_node=4))[::7]:
        flat = TrainConfig.read(one.written()).flat()
        assert {name: flat[name] for name in one.flags} == one.flags
    assert Configuration(4, "gvb", "column", Algorithm()).written() == []


def test_partitions_are_kept_and_damaged_ones_made_again(tmp_path):
    subject = Subject.of(open_source(write_graphs(tmp_path)[0]))
    kept = Partitions(subject, tmp_path / "cache", seed=3)
    labels = kept.labels("random", "column", 4)
    expected, _ = partition(subject.looped, 4, "random", seed=3)
    np.testing.assert_array_equal(labels, expected)
    (path,) = (tmp_path / "cache").iterdir()
    assert kept.file("random", "column", 4) == path
    for damage in (b"0\n" * subject.vertices, b"", b"\xff\n", path.read_bytes()[:-2]):
        path.write_bytes(damage)
        np.testing.assert_array_equal(kept.labels("random", "column", 4), expected)
        assert [path] == list((tmp_path / "cache").iterdir())
    other = Partitions(subject, tmp_path / "cache", seed=4)
    other.labels("random", "column", 4)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match=r"--cache .*cannot be made"):
        Partitions(subject, blocked / "inside")


@pytest.mark.parametrize(("ranks", "c"), [(4, 1), (6, 2)])
def test_a_sample_of_everything_is_the_truth(tmp_path, ranks, c):
    """Of an undirected graph; its loops are added where it is estimated."""
    subject = Subject.of(open_source(write_graphs(tmp_path)[1]))
    algorithm = Algorithm("1d" if c == 1 else "1.5d", c)
    setting = set_up(subject, None, algorithm, ranks, 2)
    made = setting.whole
    guessed = estimated_setting(setting).counted(2, reach=False, ghosts=False, propagated=True)
    sent, _, _ = made.traffic(5)
    np.testing.assert_array_equal(guessed.whole.traffic(5)[0].sum(axis=1).sum(), sent.sum())
    if c == 1:
        np.testing.assert_array_equal(guessed.whole.traffic(5)[0], sent)
        wired = replace(setting, wired=Wired.of(Codec.of(bits=4, exact_means=True), 10))
        fewer, known = estimated_setting(wired).whole.traffic(5)[0], wired.whole.traffic(5)[0]
        # Of messages, and so of means, it is not estimated how many leave a node.
        np.testing.assert_array_equal(fewer.sum(axis=0), known.sum(axis=0))
        assert fewer.sum() < sent.sum()
        for kind in ("local", "remote"):
            loops = subject.looped.nnz - subject.structure.nnz if kind == "local" else 0
            total = guessed.whole.nonzeros[kind].sum()
            assert abs(int(total) - int(made.nonzeros[kind].sum())) <= subject.vertices - loops
    weighing = replace(setting, weighs=True)
    layer = Weighing(0, 8, torch.float32, adjoint=True, heads=2)
    known, guessed = (
        layer.traffic(one.whole)[0] for one in (weighing, estimated_setting(weighing))
    )
    assert guessed.sum() == known.sum() > 0


def test_the_command(tmp_path, capsys, monkeypatch):
    graph = write_graphs(tmp_path)[2]
    out = tmp_path / "plans.json"
    flags = ["--machine", EXAMPLE, "--cache", tmp_path / "cache", "--hidden", 5, "--layers", 2]
    flags += ["--json", out, "--plot", tmp_path / "plans.svg", "--top", 2]
    flags += ["--partition", "block"]
    assert main(["plan", str(graph), "--ranks", "4,2", *map(str, flags)]) == 0
    shown = capsys.readouterr().out
    assert "2 ranks: " in shown
    assert "4 ranks: " in shown
    assert (tmp_path / "plans.svg").read_text().startswith("<?xml")
    record = json.loads(out.read_text())
    assert record["graph"]["vertices"] == 61
    assert {plan["ranks"] for plan in record["plans"]} == {2, 4}
    for plan in record["plans"]:
        assert set(plan) >= CONTRACT
        words = shlex.split(plan["command"])
        assert words[:4] == ["torchrun", "--nproc-per-node", str(plan["ranks"]), words[3]]
        config: TrainConfig = TrainConfig.read(words[4:])
        config.check(plan["ranks"])
        assert config.data.dataset == str(graph)
        assert (config.model.hidden, config.model.layers) == (5, 2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ranks", "four"], ["--ranks", "four"]),
        (["--ranks", "4,0"], ["--ranks", "0"]),
        (["--ranks", "4", "--memory", "lots"], ["--memory", "2GiB"]),
        (["--ranks", "2", "--memory", "1000"], ["--memory 1000", "the smallest needs"]),
        (["--ranks", "4", "--partition", "gvp"], ["--partition", "did you mean 'gvb'?"]),
        (["--ranks", "4", "--machine", "none.json"], ["none.json: cannot be read"]),
        (["--ranks", "4", "--plot", "plans.xyz"], ["unknown suffix .xyz"]),
        ([], ["--ranks"]),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, flags, words):
    graph = str(write_graphs(tmp_path)[0])
    cache = ["--cache", str(tmp_path / "cache")]
    machine = [] if "--machine" in flags else ["--machine", str(EXAMPLE)]
    assert main(["plan", graph, *flags, *machine, *cache]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    for word in words:
        assert word in said
    assert main(["plan", "nosuch", "--ranks", "4", "--machine", str(EXAMPLE), *cache]) == 2
    assert "no data set 'nosuch'" in capsys.readouterr().err
