"""Ranking: what fits, best first; each plan's command is one that the training command takes."""

from __future__ import annotations

import shlex
from contextlib import suppress
from itertools import product

import numpy as np
import pytest

from spgnn import InputError
from spgnn.__main__ import main
from spgnn.addons.plan import Planner, predict
from spgnn.addons.plan.choose import algorithms, candidates
from spgnn.addons.plan.cli import lines
from spgnn.addons.plan.counts import Product
from spgnn.addons.plan.graphs import Dataset, Partitions
from spgnn.addons.plan.ranks import VirtualRanks
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.exchange import Algorithm, Codec
from spgnn.exchange.needs import COVERS
from spgnn.exchange.schemes import STRATEGIES
from spgnn.machine import read_machine
from spgnn.partition import partition
from spgnn.registry import SCHEMES
from tests.addons.plan.configurations import EXAMPLE, planned, predicted, write_graphs

CONTRACT = {"ranks", "algo", "c", "cover", "recompute_halo", "prune", "order", "partition"}
CONTRACT |= {"schedule", "hierarchy", "bytes", "memory_bytes", "seconds", "command"}
BASE = TrainConfig.of(layers=2, hidden=7, partition="block")


def planner(tmp_path, **options) -> Planner:
    source, cache = open_source(write_graphs(tmp_path)[0]), str(tmp_path / "cache")
    options = {"pinned": {"partition"}, "cache": cache, **options}
    return Planner(source, BASE, read_machine(EXAMPLE), **options)


def some(ours: Planner, ranks: int):
    """Of a few, of every kind."""
    every = list(candidates(ours.config, ranks, ["block"], ranks_a_node=4))
    return every[:: len(every) // 12].__contains__


def test_every_algorithm_once():
    found = list(algorithms(4))
    assert len(set(found)) == len(found)
    assert Algorithm("1.5d", 1) not in found
    assert {Algorithm("1d"), Algorithm("1.5d", 2), Algorithm("1.5d", 4, cover="row")} <= set(found)
    several = set(algorithms(8, 4))
    assert Algorithm("1d", cover="minimum", node_size=4) in several
    assert not any(one.node_size > 1 for one in algorithms(4, 4))
    assert Algorithm("1d", cover="minimum", relays=True) in found
    assert not any(one.relays for one in algorithms(4, fixed={"relays": False}))
    assert not any(one.relays for one in algorithms(1))


def test_plans_are_ranked_by_what_they_cost(tmp_path):
    ours = planner(tmp_path)
    chosen = ours.choose(8, some(ours, 8))
    seconds = [one.seconds for one in chosen.plans]
    assert seconds == sorted(seconds)
    assert chosen.dropped == []
    assert "the least seconds" in chosen.why(chosen.plans[0])
    assert chosen.why(chosen.plans[-1]).startswith(f"{seconds[-1] / seconds[0]:.2f} times")
    names = {one.name for one in chosen.plans}
    assert len(names) == len(chosen.plans)
    assert set(lines([chosen])) <= names
    # Each is priced as it is alone.
    for one in chosen.plans[::4]:
        labels = ours.labels(one)
        alone = predict(ours.dataset, labels, one.config, 8, machine=read_machine(EXAMPLE))
        assert alone.volume == one.prediction.volume
        assert alone.volume_by_level == one.prediction.volume_by_level
        assert alone.memory_bytes == one.prediction.memory_bytes
        assert alone.epoch_seconds == one.prediction.epoch_seconds


def test_of_a_large_graph_little_is_tried_but_for_the_best(tmp_path, monkeypatch):
    whole = {one.config: one.seconds for one in planner(tmp_path).choose(8).plans}
    monkeypatch.setattr("spgnn.addons.plan.choose.THOROUGH", 0)
    few = {one.config: one.seconds for one in planner(tmp_path).choose(8).plans}
    assert few.items() < whole.items()

    def algorithms_of(chosen) -> set[Algorithm]:
        return {one.distribution for one in few if chosen(one.algorithm)}

    assert 1 <= len(algorithms_of(lambda how: how.node_size > 1)) <= 2
    assert 1 <= len(algorithms_of(lambda how: how.prune or how.recompute_halo)) <= 2
    assert min(few.values()) <= 1.15 * min(whole.values())


def test_what_does_not_fit_is_left_out(tmp_path):
    ours = planner(tmp_path)
    everything = ours.choose(4, some(ours, 4))
    needs = sorted(one.prediction.memory_bytes for one in everything.plans)
    ours.memory = middle = needs[len(needs) // 2]
    fitting = ours.choose(4, some(ours, 4))
    assert len(fitting.plans) == sum(n <= middle for n in needs)
    assert len(fitting.dropped) == sum(n > middle for n in needs)
    ours.memory = needs[0] - 1
    with pytest.raises(InputError, match=f"the smallest needs {needs[0]} bytes"):
        ours.choose(4, some(ours, 4))


def test_given_flags_stay_and_written_ones_mean_the_same():
    def found(config: TrainConfig, *given: str) -> list[TrainConfig]:
        return list(candidates(config, 8, ["gvb", "stream"], pinned=given, ranks_a_node=4))

    every = found(BASE)
    assert len(set(every)) == len(every)
    for one in every[::7]:
        assert TrainConfig.read(one.written()) == one
        one.check(8)
    rows = found(BASE.but(cover="row"), "cover")
    assert {one.algorithm.cover for one in rows} == {"row"}
    base = BASE.but(exchange="oblivious")
    oblivious = {(one.algorithm.exchange, one.algorithm.cover) for one in found(base, "exchange")}
    assert oblivious == {("oblivious", "column")}
    assert found(BASE.but(partition="metis"), "partition") == []
    assert not any(one.algorithm.recompute_halo for one in found(BASE.but(dropout=0.5)))
    assert {one.algorithm.prune for one in found(BASE.but(norm="batch"), "prune")} == {False}


def test_planning_knows_whatever_training_runs():
    """Under any option that is given, and with the values that are given."""
    values: dict[str, tuple[object, ...]] = {
        "algo": [name for name in SCHEMES if " " not in name],
        "c": (1, 2, 3, 32),
        "hierarchy": ("1", "2", "2,4"),
        "cover": COVERS,
        "exchange": STRATEGIES,
        "order": ("paper",),
        "recompute_halo": (True,),
        "prune": (False,),
    }
    of_each = [{name: value} for name, every in values.items() for value in every]
    both = [one | other for one in of_each[:7] for other in of_each[7::3]]
    many = [given for given in both if given.get("c") == 32]
    for ranks, given in (*product((3, 4, 64), of_each), *product([4], both), *product([64], many)):
        config = BASE.but(**given)
        found = list(candidates(config, ranks, ["block"], pinned=given, ranks_a_node=4))
        assert {tuple(getattr(one.algorithm, name) for name in given) for one in found} <= {
            tuple(given.values())
        }
        with suppress(InputError):
            config.check(ranks)
            assert found, given
    assert list(candidates(BASE.but(hierarchy="auto"), 8, ["block"], pinned=["hierarchy"]))


def test_a_disk_is_for_plans_that_nothing_given_excludes(tmp_path, capsys):
    how = tmp_path, write_graphs(tmp_path)[0]
    disk = "--disk-speed", "1GiB", "--memory", "64GiB"
    plans = planned(*how, "3,4", *disk, "--algo", "1.5d", "--c", "2")["plans"]
    assert {(plan["algo"], plan["c"], plan["ranks"]) for plan in plans} == {("1.5d", 2, 4)}
    assert all(plan["storage"] is None for plan in plans)
    assert "no plan: --c 2 must divide the number of ranks, which is 3" in capsys.readouterr().out
    plans = planned(*how, 3, *disk, "--cover", "column", "--no-prune")["plans"]
    kinds = [plan["storage"] is not None for plan in plans]
    assert kinds == sorted(kinds)
    assert any(kinds)


def test_partitions_are_kept_and_damaged_ones_made_again(tmp_path):
    dataset = Dataset.of(open_source(write_graphs(tmp_path)[0]))
    cached = Partitions(dataset, tmp_path / "cache", seed=3)
    labels = cached.labels("random", "both", 4)
    expected, _ = partition(dataset.looped, 4, "random", seed=3)
    np.testing.assert_array_equal(labels, expected)
    (path,) = (tmp_path / "cache").iterdir()
    assert cached.file("random", "both", 4) == path
    for damage in (b"0\n" * dataset.vertices, b"", b"\xff\n", path.read_bytes()[:-2]):
        path.write_bytes(damage)
        np.testing.assert_array_equal(cached.labels("random", "both", 4), expected)
        assert [path] == list((tmp_path / "cache").iterdir())
    other = Partitions(dataset, tmp_path / "cache", seed=4)
    other.labels("random", "both", 4)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match=r"--cache .*cannot be made"):
        Partitions(dataset, blocked / "inside")


@pytest.mark.parametrize(("ranks", "c"), [(4, 1), (6, 2)])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_a_sample_of_everything_is_the_truth(tmp_path, monkeypatch, ranks, c, model):
    """Of an undirected graph; its loops are added where it is estimated."""
    dataset = Dataset.of(open_source(write_graphs(tmp_path)[1]))
    config = BASE.but(
        algo="1d" if c == 1 else "1.5d", c=c, cover="column", prune=False, model=model
    )

    def counted():
        return VirtualRanks(dataset, None, config, ranks, 2).counted(config).whole

    built = counted()
    monkeypatch.setattr("spgnn.addons.plan.ranks.EXACT", 0)
    sampled = counted()
    step = Product(0, 8, adjoint=True, heads=2) if model == "gat" else Product(0, 5)
    sent, guessed = built.moved(step)[0], sampled.moved(step)[0]
    assert guessed.sum() == sent.sum() > 0
    if c > 1 or model == "gat":
        return
    np.testing.assert_array_equal(guessed, sent)
    codec = Codec.of(bits=4, exact_means=True, epochs=10)
    fewer, known = sampled.moved(step, codec)[0], built.moved(step, codec)[0]
    # Of messages, and so of means, it is not estimated how many leave a node.
    np.testing.assert_array_equal(fewer.sum(axis=0), known.sum(axis=0))
    assert fewer.sum() < sent.sum()
    for kind in ("local", "remote"):
        loops = dataset.looped.nnz - dataset.structure.nnz if kind == "local" else 0
        off = int(sampled.nonzeros[kind].sum()) - int(built.nonzeros[kind].sum())
        assert abs(off) <= dataset.vertices - loops


def test_the_command(tmp_path, capsys):
    graph, plot = write_graphs(tmp_path)[2], tmp_path / "plans.svg"
    model = ["--hidden", 5, "--layers", 2]
    record = planned(tmp_path, graph, "3,2", *model, "--plot", plot, "--top", 2)
    shown = capsys.readouterr().out
    assert "2 ranks: " in shown
    assert "3 ranks: " in shown
    assert plot.read_text().startswith("<?xml")
    assert record["graph"]["vertices"] == 61
    assert {plan["ranks"] for plan in record["plans"]} == {2, 3}
    for plan in record["plans"]:
        assert set(plan) >= CONTRACT
        words = shlex.split(plan["command"])
        assert shlex.join(words[:6]) == f"torchrun --nproc-per-node {plan['ranks']} -m spgnn train"
        config: TrainConfig = TrainConfig.read(words[6:])
        config.check(plan["ranks"])
        assert config.data.dataset == str(graph)
        assert (config.model.hidden, config.model.layers) == (5, 2)
        for name in ("algo", "c", "cover", "hierarchy", "prune", "recompute_halo", "partition"):
            assert plan[name] == getattr(config.algorithm, name)


def test_the_command_ranks_for_codecs(tmp_path):
    graph, bits = str(write_graphs(tmp_path)[2]), [(0, 8), (50, 4)]
    given = ["--bits", "8,4@50", "--delay", "2", "--delay-bins", "2", "--epochs", "60"]
    given += ["--set", "messages.exact-means=false"]
    plan = planned(tmp_path, graph, "2", *given)["plans"][0]
    config = TrainConfig.read(shlex.split(plan["command"])[6:])
    assert config.codec == Codec.of(bits=bits, delay=2, bins=2, exact_means=False)
    assert config.training.epochs == 60
    assert predicted(config, 2).volume["total_bytes"] == plan["bytes"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ranks", "four"], ["--ranks", "four"]),
        (["--ranks", "4,0"], ["--ranks", "0"]),
        (["--ranks", "4", "--memory", "lots"], ["--memory", "2GiB"]),
        (["--ranks", "2", "--memory", "1000"], ["--memory 1000", "the smallest needs"]),
        (["--ranks", "4", "--partition", "gvp"], ["--partition", "did you mean 'gvb'?"]),
        (["--ranks", "4", "--partition", "libra"], ["spgnn plan has no prices for it"]),
        (["--ranks", "4", "--nproc", "4"], ["--nproc 4: spgnn plan knows 1 only"]),
        (["--ranks", "4", "--machine", "none.json"], ["none.json: cannot be read"]),
        (["--ranks", "4", "--plot", "plans.xyz"], ["unknown suffix .xyz"]),
        (["--ranks", "4", "--bits", "3"], ["--bits"]),
        (["--ranks", "4", "--delay-bins", "2"], ["--delay-bins"]),
        (["--ranks", "4", "--delay", "100"], ["--delay"]),
        (["--ranks", "4", "--plan", "auto"], ["--plan is for training"]),
        (["--ranks", "4", "--set", "aim.inductive=true"], ["not aim.inductive"]),
        (["--ranks", "4", "--chunks", "2"], ["--chunks is what plans choose"]),
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
