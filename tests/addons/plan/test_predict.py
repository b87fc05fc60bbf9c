"""Predictions are what training counts at its transport, to the byte, and what plans say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from experiments.mesh import mesh
from spgnn import Axes, InputError
from spgnn.addons.plan import Prediction, predict
from spgnn.addons.plan.counts import Product, count
from spgnn.addons.plan.epoch import Pass, trace
from spgnn.addons.plan.graphs import Dataset
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.data.npz import write_npz
from spgnn.exchange import Algorithm, build_all
from spgnn.exchange.needs import COVERS
from spgnn.exchange.plan import carried_by_level
from spgnn.frontend.from_config import training_graph
from spgnn.graph.dry import recorded_products
from spgnn.machine import Level, Levels, Link, Overhead, read_machine
from spgnn.progress import Stopwatch
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.report import assemble
from spgnn.train.run import task_of
from tests.addons.plan.configurations import EXAMPLE, predicted, random_configurations, write_graphs
from tests.exchange.test_plans import schemes
from tests.training import run


def counted(rank: int, configs: list[TrainConfig]) -> list[dict]:
    return [run(config, connect())[1] for config in configs]


def counted_links(rank: int, configs: list[TrainConfig]) -> list[dict]:
    comm, results = connect(), []
    for config in configs:
        trainer = Trainer(task_of(config, training_graph(config, comm)), options=config.training)
        for epoch in range(config.training.epochs):
            loss = trainer.measured.epoch(partial(trainer.train_epoch, epoch))
            trainer.task.end_epoch(epoch, loss)
        results.append(assemble(config, trainer, 0, Stopwatch()))
    return results


def check_bytes(configs: list[TrainConfig], ranks: int, body=counted) -> list[Prediction]:
    """Of each: the transport's bytes, the plan's, and the prediction's."""
    prices, reports = [predicted(one, ranks) for one in configs], run_ranks(body, ranks, configs)
    for config, price, report in zip(configs, prices, reports[0], strict=True):
        assert price.volume == report["volume"] == report["planned_volume"], config
    return prices


def check_random(directory: Path, ranks: int, many: int, body=counted, **choices) -> None:
    graphs = write_graphs(directory)[: 3 if "links" in choices.get("task", ()) else None]
    check_bytes(random_configurations(graphs, ranks, many, seed=ranks, **choices), ranks, body)


ATTENTION = {
    "model": ("gat", "gatv2"),
    "heads": (1, 2, 4),
    "hidden": (4, 16),
    "message_dropout": (0.0, 0.3),
    "algo": ("1d", "1.5d", "2d", "vertex-cut"),
    "order": ("auto",),
    "recompute_halo": (False,),
    "hierarchy": ("none",),
    "normalisation": ("auto",),
}
LARGEST = ATTENTION | {
    "model": ("sage",),
    "heads": (1,),
    "message_dropout": (0.0,),
    "aggregate": ("max", "std"),
    "algo": ("1d",),
    "cover": ("column",),
    "exchange": ("sparsity-aware",),
}
# Messages that find the sources of pairs, and request their rows, are among the bytes.
LINKS = {
    "task": ("links",),
    "decoder": ("dot", "mlp"),
    "negatives": (1, 3),
    "epochs": (1, 2, 3),
    "model": ("gcn", "sage", "gat"),
}


@pytest.mark.parametrize(
    ("ranks", "many", "body", "choices"),
    [
        (3, 8, counted, {}),
        (4, 12, counted, {}),
        (4, 6, counted, ATTENTION),
        (4, 2, counted, LARGEST),
        (2, 3, counted_links, LINKS),
        (3, 4, counted_links, LINKS),
    ],
)
def test_bytes_are_those_that_ranks_count(tmp_path, ranks, many, body, choices):
    """Of links, of a mean epoch."""
    check_random(tmp_path, ranks, many, body, **choices)


def test_bytes_where_labels_are_inputs_and_peers_take_turns(tmp_path):
    """Their embedding has a gradient, which travels; whatever was looked at before training."""
    graphs, peers = write_graphs(tmp_path), {"schedule": "peers", "buffer": 20_000}
    options: list[dict[str, object]] = [
        {"label_propagation": 0.5, "model": "sage", **peers},
        {"label_propagation": 0.5, "model": "gat", "cover": "minimum", "heads": 2},
        {"label_propagation": 0.5, "algo": "1.5d", "c": 2, "dtype": "bfloat16", "norm": "batch"},
        {"label_propagation": 0.5, "hierarchy": 2, "cover": "row", "bits": 4, "delay": 1},
        {"task": "links", "decoder": "mlp", "model": "gin", "dtype": "bfloat16", **peers},
    ]
    how = {"partition": "random", "epochs": 3, "hidden": 8}
    configs = [TrainConfig.of(dataset=graphs[n % 3], **how, **one) for n, one in enumerate(options)]
    check_bytes(configs, 4, counted_links)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 9])
def test_bytes_of_five_hundred_configurations(tmp_path, ranks):
    check_random(tmp_path, ranks, 50)
    if ranks not in (4, 8):
        check_random(tmp_path, ranks, 50, **ATTENTION)


CODECS: list[dict[str, object]] = [
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
    {"algo": "vertex-cut", "clones": True},
    {"algo": "vertex-cut", "clones": True, "model": "sage", "prune": False, "norm": "batch"},
    {"hierarchy": 2, "cover": "row"},
]
CODED_ATTENTION: list[dict[str, object]] = [
    {"model": "gat", "heads": 2, "cover": "minimum", "bits": 4},
    {"model": "gatv2", "algo": "1.5d", "c": 2, "cover": "row", "delay": 1},
    {"model": "gat", "algo": "vertex-cut", "delay": "never", "exact_last": 2, "heads": 4},
    {"model": "gatv2", "cover": "minimum", "bits": "16,2@2", "error_feedback": True, "heads": 2},
    {"model": "gat", "algo": "1.5d", "c": 2, "bits": 8, "delay": 2, "delay_bins": 2},
    {"model": "sage", "aggregate": "max", "bits": 8, "delay": 1},
]


@pytest.mark.parametrize("shift", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_bytes_with_codecs_are_those_of_a_mean_epoch(tmp_path, shift):
    """Each codec, each scheme; with a shift on others."""
    pairs = [(codec, SCHEMES[(n + shift) % len(SCHEMES)]) for n, codec in enumerate(CODECS)]
    options = [{"hidden": 7, **scheme, **codec} for codec, scheme in pairs]
    options += [] if shift else [{"hidden": 8, "layers": 2, **each} for each in CODED_ATTENTION]
    graphs, how = write_graphs(tmp_path), {"partition": "random", "epochs": 5, "eval_every": 9}
    check_bytes(
        [TrainConfig.of(dataset=graphs[n % 3], **how, **each) for n, each in enumerate(options)], 4
    )


def test_a_sample_is_priced_at_its_share(tmp_path):
    base = TrainConfig.of(dataset=write_graphs(tmp_path)[2], partition="random", epochs=10)

    def total(**codec) -> float:
        return predicted(base.but(**codec), 4).volume["total_bytes"]

    exact, share = total(cover="column"), {"boundary_sampling": 0.25}
    assert 0 < total(bits=4) < exact / 2
    assert total(**share, exact_means=False) == pytest.approx(exact / 4, abs=8)
    mean = total(delay="never", exact_means=True)
    assert mean > 0
    assert total(**share) == pytest.approx(exact / 4 + mean, abs=8)
    with pytest.raises(InputError, match=r"messages.fresh 0\.5"):
        total(fresh=0.5)


def test_what_codecs_keep_and_take_is_predicted():
    made_up = {"random_features": 16, "random_classes": 4, "layers": 3, "prune": False}
    base = TrainConfig.of(**made_up)
    dataset, machine = Dataset.of(open_source("rmat-10-8"), base), read_machine(EXAMPLE)
    slow = Level(Link(0.0, 0.0, 1e6), Link(0.0, 0.0, 1e6))
    machine = replace(machine, levels=Levels(slow), overlap=0.9, ranks_a_node=8)
    labels = torch.arange(dataset.vertices) % 8

    def price(**codec):
        return predict(dataset, labels, base.but(**codec), 8, machine=machine)

    exact, bits, late = price(), price(bits=4), price(delay=1)
    assert bits.seconds["exchange"] < exact.seconds["exchange"]
    assert late.seconds["exchange"] < exact.seconds["exchange"]
    assert not exact.memory["codecs"].any()
    # Names alone; rows that are stale, and those of both ends under way.
    names = bits.memory["codecs"]
    assert (names > 0).all()
    assert (late.memory["codecs"] > names).all()


@pytest.mark.parametrize(("ranks", "c", "node"), [(4, 1, 2), (4, 2, 2), (6, 2, 4), (9, 3, 9)])
@pytest.mark.parametrize("cover", COVERS)
def test_counts_are_the_sums_of_plans(ranks, c, node, cover):
    axes = Axes.grid(ranks, c)
    algorithm = Algorithm("1d" if c == 1 else "1.5d", c, cover=cover, relays=ranks != 4)
    plans = build_all(schemes(algorithm, ranks)[0], axes)
    counts = count(plans, axes, node)
    for adjoint in (False, True):
        levels = counts.moved(Product(0, 5, torch.float64, adjoint))
        for rank, plan in enumerate(plans):
            exchanges = list(plan.carried(5, torch.float64, adjoint=adjoint))
            by_level = carried_by_level(exchanges, axes, rank, group_sizes=[node])
            for level, traffic in enumerate(by_level.values()):
                expected = traffic.sent_bytes, traffic.received_bytes, traffic.messages
                assert tuple(levels[:, level, rank]) == expected
    for rank, plan in enumerate(plans):
        nonzeros = (b.nnz for s in plan.stages for b in (s.local, s.remote) if b is not None)
        assert sum(int(n[rank]) for n in counts.nonzeros.values()) == sum(nonzeros)
        items = plan.memory(3)
        assert (counts.matrix[rank], counts.transpose[rank]) == (
            items["matrix"],
            items["transpose"],
        )
        assert counts.buffers(3)[rank] * 4 == items["buffers"]


@pytest.mark.parametrize("sparse", [False, True])
def test_products_are_those_of_a_dry_run(tmp_path, sparse):
    """The same widths, dtypes and directions in the same order, whatever the features."""
    graph = write_graphs(tmp_path)[1 if sparse else 0]
    for order, dropout in [("auto", 0.0), ("auto", 0.5), ("paper", 0.0)]:
        config = TrainConfig.of(dataset=graph, order=order, dropout=dropout)
        graph_of = training_graph(config, connect())
        for layers, hidden in ((1, 1), (2, 16), (3, 7)):
            config = config.but(layers=layers, hidden=hidden)
            epoch = trace(config, 11, 3, sparse=sparse)
            expected = recorded_products(config.network(11, 3), graph_of.features, graph_of.A)
            traced, dry = (
                [(p.width, p.dtype, p.adjoint) for p in products]
                for products in (epoch.products, expected)
            )
            assert traced == dry
            forward, back = ([p.layer for p in epoch.products if p.adjoint == a] for a in (0, 1))
            assert forward == sorted(forward)
            assert back == sorted(set(back) & set(forward), reverse=True)


def test_activations_are_what_is_alive_at_the_worst_time():
    config, bare = TrainConfig.of(layers=1, hidden=64), TrainConfig.of(layers=2, hidden=64)
    # Scores and their gradient, float32 each.
    assert trace(config, 8, 4).activations([0, 1]) == 2 * 4 * 4
    # H, its gradient before and after ReLU.
    assert trace(bare, 8, 4).activations([0, 1, 1]) == 3 * 64 * 4
    # A last layer that makes few rows leaves the ones before as they are.
    assert trace(bare, 8, 4).activations([0, 1, 0]) == 3 * 64 * 4
    # Dropout has no matrix of its own, but the vertices' ids.
    plain, dropped = (
        trace(bare.but(input_dropout=False, dropout=p), 8, 4).activations([0, 1, 1])
        for p in (0.0, 0.5)
    )
    assert 0 <= dropped - plain <= 9


def test_norms_skips_and_jumps_are_seen():
    def of(**options):
        return trace(TrainConfig.of(layers=3, hidden=16, **options), 8, 4)

    plain = of()
    for options, more in (({"norm": "batch"}, 2 * 2 * 16), ({"residual": True}, 2 * 16 + 16 * 4)):
        assert of(**options).weights >= plain.weights + more
        assert of(**options).activations([1] * 4) > plain.activations([1] * 4)
    # All layers are hidden ones, whose outputs lie side by side.
    assert max(p.width for p in of(jk="cat").products) == 16
    assert of(jk="cat").weights > plain.weights
    assert of(norm="node").summed == plain.summed == ()
    assert of(norm="layer").summed == (17, 32, 32) * 2
    assert of(jk="cat", norm="pair").summed == (17, 32, 32) * 3


@pytest.mark.parametrize(
    ("options", "exchanges"),
    [
        ({}, 4),
        ({"recompute_halo": True}, 2),
        ({"algo": "1.5d", "c": 2}, 8),
        ({"algo": "feature", "c": 2}, 12),
    ],
)
def test_every_exchange_has_its_price(options, exchanges):
    """Of two products forward and two back: one each, a fold beside it, or two transpositions."""
    machine = replace(read_machine(EXAMPLE), overhead=Overhead(0.0, 1.0, 0.0, 0.0))
    config = TrainConfig.of(layers=3, prune=False, **options)
    price = predict(Dataset.of(open_source("sbm")), None, config, 4, machine=machine)
    assert price.seconds is not None
    assert price.seconds["overhead"] == pytest.approx(exchanges)


def test_links_cost_what_is_drawn_and_what_is_scored():
    config = TrainConfig.of(task="links", epochs=1, eval_negatives=1, layers=2, hidden=16)
    source, machine = open_source("sbm"), read_machine(EXAMPLE)
    plain, many, network = (
        predict(Dataset.of(source, each), None, each, 4, machine=machine)
        for each in (config, config.but(eval_negatives=99), config.but(decoder="mlp"))
    )
    assert plain.seconds is not None
    assert plain.seconds["pairs"] > 0
    assert many.memory["activations"].max() > plain.memory["activations"].max()
    assert network.memory["weights"].max() - plain.memory["weights"].max() == 4 * (16 * 16 + 33)


@pytest.mark.parametrize(("algo", "c"), [("1d", 1), ("1.5d-replicated", 2)])
def test_the_largest_message_and_the_papers_bound(tmp_path, algo, c):
    """cut_P(G) counted pair by pair, and T_comm by hand: sections 4.1 and 4.2 of ICPP'24."""
    config = TrainConfig.of(
        **{"dataset": write_graphs(tmp_path)[0], "random_features": 5, "random_classes": 3},
        **{"algo": algo, "c": c, "layers": 2, "hidden": 16, "order": "paper", "prune": False},
        cover="column",
    )
    dataset = Dataset.of(open_source(config.data.dataset), config)
    A, n, P, parts = dataset.looped, dataset.vertices, 8, 8 // c
    dense = torch.zeros(n, n, dtype=torch.bool)
    dense[torch.repeat_interleave(torch.arange(n), A.row_lengths), A.indices.long()] = True
    labels = torch.arange(n) % parts
    of = [labels == part for part in range(parts)]
    cut = max(
        int(dense[of[i]][:, of[k]].any(dim=0).sum())
        for i in range(parts)
        for k in range(parts)
        if i != k
    )
    machine = read_machine(EXAMPLE)
    price = predict(dataset, labels.numpy(), config, P, machine=machine)
    assert price.largest_message == cut
    link = machine.levels.between.alltoallv
    # P − 1 messages; or P/c² rounds, in which rows of H travel, and their logarithm.
    rounds, messages = (7, 7) if c == 1 else (2, 2)
    moved = 4 * rounds * cut * (dataset.features + 16 + 16 + dataset.classes) / link.bandwidth
    assert price.bound_seconds == pytest.approx(4 * link.latency * messages + moved)


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_what_follows_a_product_is_one_pass(kind):
    config = TrainConfig.of(model=kind, hidden=64, layers=3, dropout=0.5, input_dropout=False)
    passes = [step for step in trace(config, 5, 4).steps if isinstance(step, Pass)]
    drops = [step for step in passes if step.kind == "dropout"]
    # Read and written, and an id of 8 bytes; back by sign, without a hash.
    assert [step.nbytes for step in drops] == [2 * 4 * 64 + 8] * 2
    assert [step.nbytes for step in passes].count(3 * 4 * 64) == 2


@pytest.mark.parametrize("model", ["gine", "gat", "gatv2"])
def test_features_of_edges_take_memory_and_stay_where_they_are(tmp_path, model):
    write_npz(mesh(60), tmp_path / "mesh.npz")
    config = TrainConfig.of(dataset=tmp_path / "mesh.npz", model=model, edge_dim=3, hidden=4)
    (priced,), wider = check_bytes([config.but(epochs=1)], 3), predicted(config.but(edge_dim=30), 3)
    assert priced.volume == wider.volume
    edges = [price.memory["edges"].sum() for price in (priced, wider)]
    nonzeros = sum(int(each.sum()) for each in priced.nonzeros.values())
    assert edges == [(16 + 4 * width) * nonzeros for width in (3, 30)]
    plain = predicted(config.but(model={"gine": "gin"}.get(model, model), edge_dim=0), 3)
    assert priced.memory["activations"].sum() > plain.memory["activations"].sum()
