"""Predictions are what training counts at its transport, to the byte, and what plans say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from spgnn import Axes
from spgnn.comm import connect
from spgnn.data import open_source
from spgnn.exchange import COVERS, Algorithm, build_all
from spgnn.graph.dry import recorded_products
from spgnn.nn import GCN
from spgnn.plan import Subject, predict, read_machine
from spgnn.plan.census import count
from spgnn.plan.machine import Overhead
from spgnn.plan.network import Network
from spgnn.plan.pairs import LinkTask
from spgnn.plan.tracing import trace
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, Trainer, training_graph
from spgnn.train.report import assemble
from spgnn.train.run import task_of
from tests.exchange.test_plans import schemes
from tests.plan.configurations import predicted, random_configurations, write_graphs
from tests.training import run

MACHINE = Path(__file__).parents[2] / "experiments" / "machines" / "perlmutter_a100.json"


def counted(rank: int, configs: list[TrainConfig]) -> list[dict]:
    return [run(config, connect())[1] for config in configs]


def counted_links(rank: int, configs: list[TrainConfig]) -> list[dict]:
    comm, found = connect(), []
    for config in configs:
        trainer = Trainer(task_of(config, training_graph(config, comm)), options=config.training)
        for epoch in range(config.training.epochs):
            loss = trainer.measured.epoch(partial(trainer.train_epoch, epoch))
            trainer.task.end_epoch(epoch, loss)
        report = assemble(config, trainer, 0)
        assert report["volume"] == report["planned_volume"], config
        found.append(report["volume"])
    return found


def check_bytes(directory: Path, ranks: int, many: int, **given: tuple[object, ...]) -> None:
    configs = random_configurations(write_graphs(directory), ranks, many, seed=ranks, **given)
    reports = run_ranks(counted, ranks, configs)[0]
    for config, report in zip(configs, reports, strict=True):
        prediction = predicted(config, ranks)
        assert prediction.volume == report["volume"], config
        assert prediction.volume == report["planned_volume"], config


@pytest.mark.parametrize(("ranks", "many"), [(3, 12), (4, 18)])
def test_bytes_are_those_that_ranks_count(tmp_path, ranks, many):
    check_bytes(tmp_path, ranks, many)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 9])
def test_bytes_of_three_hundred_configurations(tmp_path, ranks):
    check_bytes(tmp_path, ranks, 50)


@pytest.mark.parametrize(("ranks", "c", "node"), [(4, 1, 2), (4, 2, 2), (6, 2, 4), (9, 3, 9)])
@pytest.mark.parametrize("cover", COVERS)
def test_a_census_is_the_sum_of_its_plans(ranks, c, node, cover):
    axes = Axes.grid(ranks, c)
    algorithm = Algorithm("1d" if c == 1 else "1.5d", c, cover=cover)
    plans = build_all(schemes(algorithm, ranks)[0], axes)
    census = count(plans, axes, node)
    for adjoint in (False, True):
        sent, received, messages = census.traffic(5, torch.float64, adjoint=adjoint)
        for rank, plan in enumerate(plans):
            moved = list(plan.traffic(5, torch.float64, adjoint=adjoint).values())
            assert sent[:, rank].sum() == sum(t.sent_bytes for t in moved)
            assert received[:, rank].sum() == sum(t.received_bytes for t in moved)
            assert messages[:, rank].sum() == sum(t.messages for t in moved)
            assert sent[1, rank] == sum(
                int(rows) * 5 * 8
                for hop in plan.hops
                for peer, rows in zip(
                    axes.group(hop.axis, rank),
                    hop.counts.recv if adjoint else hop.counts.send,
                    strict=True,
                )
                if peer // node != rank // node
            )
    for rank, plan in enumerate(plans):
        assert sum(int(n[rank]) for n in census.nonzeros.values()) == sum(
            stage.local.nnz + (0 if stage.remote is None else stage.remote.nnz)
            for stage in plan.stages
        )
        items = plan.memory(3)
        assert census.matrix[rank] == items["matrix"]
        assert census.transpose[rank] == items["transpose"]
        assert census.buffers(3)[rank] * 4 == items["buffers"]


@pytest.mark.parametrize("sparse", [False, True])
def test_products_are_those_of_a_dry_run(tmp_path, sparse):
    """The same widths, dtypes and directions in the same order, whatever the features."""
    graph = write_graphs(tmp_path)[1 if sparse else 0]
    for order, dropout in [("auto", 0.0), ("auto", 0.5), ("paper", 0.0)]:
        problem = training_graph(
            TrainConfig.of(dataset=graph, order=order, dropout=dropout), connect()
        )
        for hidden in ((), (16,), (32, 7)):
            network = Network((11, *hidden, 3), order=order, dropout=dropout, sparse=sparse)
            epoch = trace(network)
            model = GCN.of(network.widths, order=order)
            expected = recorded_products(model, problem.features, problem.A)
            assert [(p.width, p.dtype, p.adjoint) for p in epoch.products] == [
                (found.width, found.dtype, found.adjoint) for found in expected
            ]
            forward, back = ([p.layer for p in epoch.products if p.adjoint == a] for a in (0, 1))
            assert forward == sorted(forward)
            assert back == sorted(set(back) & set(forward), reverse=True)


def test_activations_are_what_is_alive_at_the_worst_time():
    # Scores and their gradient, float32 each, and what class a row is of.
    assert trace(Network((8, 4))).activations([0, 1]) == 2 * 4 * 4 + 8
    # H, its gradient before and after ReLU.
    assert trace(Network((8, 64, 4))).activations([0, 1, 1]) == 3 * 64 * 4
    # A last layer that makes few rows leaves the ones before as they are.
    assert trace(Network((8, 64, 4))).activations([0, 1, 0]) == 3 * 64 * 4


def test_norms_skips_and_jumps_are_seen():
    plain = Network((8, 16, 16, 4))
    for name, value, more in (("norm", "batch", 2 * 2 * 16), ("residual", True, 2 * 16 + 16 * 4)):
        other = replace(plain, **{name: value})
        assert other.weights >= plain.weights + more
        assert trace(other).activations([1] * 4) > trace(plain).activations([1] * 4)
    # All layers are hidden ones, and what they make is kept side by side.
    jumping = replace(plain, jk="cat")
    assert max(p.width for p in trace(jumping).products) == 16
    assert jumping.weights > plain.weights
    assert replace(plain, norm="node").summed == plain.summed == ()
    assert replace(plain, norm="layer").summed == (17, 32, 32) * 2
    assert replace(jumping, norm="pair").summed == (17, 32, 32) * 3


@pytest.mark.parametrize(
    ("algorithm", "ghosts", "exchanges"),
    [
        (Algorithm(), False, 4),
        (Algorithm(), True, 2),
        (Algorithm("1.5d", 2), False, 8),
        (Algorithm("feature", 2), False, 12),
    ],
)
def test_every_exchange_has_its_price(algorithm, ghosts, exchanges):
    """Of two products forward and two back: one each, a fold beside it, or two transpositions."""
    machine = replace(read_machine(MACHINE), overhead=Overhead(0.0, 1.0, 0.0, 0.0))
    subject = Subject.of(open_source("sbm"))
    network = Network((subject.features, 16, 16, subject.classes), ghosts=ghosts)
    price = predict(subject, None, algorithm, 4, network, reach=False, machine=machine)
    assert price.seconds is not None
    assert price.seconds["overhead"] == pytest.approx(exchanges)


WEIGHED = {
    "model": ("gat", "gatv2"),
    "heads": (1, 2, 4),
    "message_dropout": (0.0, 0.3),
    "algo": ("1d", "1.5d", "2d", "vertex-cut"),
    "order": ("auto",),
    "recompute_halo": (False,),
    "hierarchy": ("none",),
    "normalisation": ("auto",),
}
LARGEST = {
    "model": ("sage",),
    "aggregate": ("max",),
    "algo": ("1d",),
    "cover": ("column",),
    "exchange": ("sparsity-aware",),
} | {name: WEIGHED[name] for name in ("order", "recompute_halo", "hierarchy", "normalisation")}


@pytest.mark.parametrize(("kinds", "many"), [(WEIGHED, 10), (LARGEST, 3)])
def test_bytes_of_attention_and_of_the_largest_neighbours(tmp_path, kinds, many):
    check_bytes(tmp_path, 4, many, **kinds)


LINKS = {
    "task": ("links",),
    "decoder": ("dot", "mlp"),
    "negatives": (1, 3),
    "epochs": (1, 2, 3),
    "model": ("gcn", "sage", "gat"),
}


@pytest.mark.parametrize(("ranks", "many"), [(2, 3), (3, 4)])
def test_bytes_of_links_are_those_of_their_mean_epoch(tmp_path, ranks, many):
    """With what is told before rows are fetched, which is counted alike."""
    configs = random_configurations(write_graphs(tmp_path)[:3], ranks, many, seed=ranks, **LINKS)
    found = run_ranks(counted_links, ranks, configs)[0]
    for config, volume in zip(configs, found, strict=True):
        assert predicted(config, ranks).volume == volume, config


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 6, 9])
def test_bytes_of_attention_in_two_hundred_configurations(tmp_path, ranks):
    check_bytes(tmp_path, ranks, 50, **WEIGHED)


def test_links_cost_what_is_drawn_and_what_is_scored():
    machine, asked = read_machine(MACHINE), LinkTask(epochs=1, eval_negatives=1)
    subject = Subject.of(open_source("sbm"), links=asked)
    found = []
    for links in (asked, replace(asked, eval_negatives=99), replace(asked, decoder="mlp")):
        network = Network((subject.features, 16, 16), links=links)
        found.append(predict(subject, None, Algorithm(), 4, network, machine=machine))
    plain, judged, scored = found
    assert plain.seconds is not None
    assert plain.seconds["pairs"] > 0
    assert judged.memory["activations"].max() > plain.memory["activations"].max()
    assert scored.memory["weights"].max() - plain.memory["weights"].max() == 4 * (16 * 16 + 33)
