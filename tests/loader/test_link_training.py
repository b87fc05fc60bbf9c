"""Links that are learnt in batches, against full-graph training of the same links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn import CSR, InputError
from spgnn.comm import SoloCommunicator, connect
from spgnn.data import load_dataset, write_shards
from spgnn.loader.config import MiniBatchConfig
from spgnn.loader.dataset import open_dataset
from spgnn.loader.run import train
from spgnn.loader.training import LinkBatches
from spgnn.testing import run_ranks
from spgnn.train import train as train_whole
from tests.training import TOLERANCE, write_dataset

SHORT: dict[str, Any] = {
    "task": "links",
    "num_neighbors": "3,2",
    "batch_size": 40,
    "hidden": 8,
    "epochs": 3,
    "lr": 0.02,
    "val_links": 0.2,
    "test_links": 0.25,
    "eval_negatives": 7,
    "negatives": 2,
}


@pytest.fixture(scope="module", params=[True, False], ids=["directed", "undirected"])
def path(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_dataset(tmp_path_factory.mktemp("set") / "graph.npz")
    if request.param:
        return made
    graph = load_dataset(made).symmetrised()
    A = graph.adjacency
    instead = {"indptr": A.indptr.numpy(), "indices": A.indices.numpy()}
    return write_dataset(made, **instead, directed=np.array(False))


def configured(path: Path, **flags: Any) -> MiniBatchConfig:
    return MiniBatchConfig.of(**{"dataset": str(path), **SHORT, **flags})


def run(path: Path, **flags: Any) -> list[dict[str, Any]]:
    """A history without what is measured."""
    report = train(configured(path, **flags), SoloCommunicator())
    return [{k: v for k, v in record.items() if k != "seconds"} for record in report["history"]]


@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_scores_are_those_of_full_graph_training(path, decoder):
    """Weights do not move: the same links are held out, and meet the same made-up pairs."""
    config = configured(path, decoder=decoder, epochs=1, lr=1e-30, metric="hits@10", full_lr=1e-30)
    whole = config.of_whole_graph()
    report = train_whole(whole.but(epochs=1), SoloCommunicator())
    (wanted,) = report["history"]
    mine = train(config, SoloCommunicator())
    (found,) = mine["history"]
    names = [name for name in wanted if name.startswith(("val", "test"))]
    assert len(names) == 9
    for name in names:
        assert found[name] == pytest.approx(wanted[name], rel=TOLERANCE, abs=TOLERANCE), name
    assert mine["graph"]["edges"] == report["graph"]["edges"] < load_dataset(path).edges


def test_scores_do_not_depend_on_the_order_of_vertices(path, tmp_path):
    graph = load_dataset(path)
    moved = np.random.default_rng(0).integers(0, 3, graph.vertices)
    write_shards(graph, moved, 3, tmp_path / "cut")
    still: dict[str, Any] = {"epochs": 1, "lr": 1e-30, "metric": "hits@10"}
    (wanted,), (found,) = run(path, **still), run(tmp_path / "cut", **still)
    for name in [name for name in wanted if name.startswith(("val", "test"))]:
        assert found[name] == pytest.approx(wanted[name], rel=1e-5), name


def dense_sage(x: Tensor, A: Tensor, layers: Any) -> Tensor:
    mean = A / A.sum(1, keepdim=True).clamp(min=1)
    for number, layer in enumerate(layers):
        x = layer.lin_l(mean @ x) + layer.lin_r(x)
        x = torch.relu(x) if number + 1 < len(layers) else x
    return x


def test_loss_is_that_of_a_dense_model(path):
    config = configured(path, num_neighbors="-1,-1", feature_norm="none").settled()
    with open_dataset(config) as made:
        task = LinkBatches(config, SoloCommunicator(), made)
        A = torch.from_numpy(CSR(made.source.structure).to_scipy().toarray()).float()
        x = load_dataset(path).x
        assert isinstance(x, Tensor)
        Z = dense_sage(x, A, task.layers.convs)
        everything = A + torch.eye(len(A))
        seen = 0
        for batch in task.loader:
            source, target = batch.n_id[batch.edge_label_index]
            links = len(batch.input_id)
            linked = torch.arange(len(source)) < links
            # Of what is made up none is a link that one may know of.
            assert torch.equal(everything[target, source] > 0, linked)
            wanted = F.binary_cross_entropy_with_logits(
                (Z[source] * Z[target]).sum(1), linked.float()
            )
            torch.testing.assert_close(task.loss_of(batch)[0], wanted, rtol=1e-5, atol=1e-5)
            seen += links
        assert seen == len(made.links[0].targets)


def test_links_that_are_held_out_are_not_in_the_graph(path):
    with open_dataset(configured(path)) as made:
        assert made.links is not None
        A = CSR(made.source.structure).to_scipy().toarray()
        graph = load_dataset(path)
        whole = CSR(graph.adjacency.pattern).to_scipy().toarray()
        for pairs in made.links[1:]:
            assert len(pairs.targets)
            assert not A[pairs.targets, pairs.sources].any()
            assert whole[pairs.targets, pairs.sources].all()
            assert graph.directed or not A[pairs.sources, pairs.targets].any()
        both = 1 if graph.directed else 2
        held = sum(len(pairs.targets) for pairs in made.links[1:])
        assert graph.directed or A.sum() == whole.sum() - both * held


def test_history_depends_on_no_way_of_working(path, tmp_path):
    wanted = run(path, dropout=0.3)
    assert wanted[2]["loss"] < wanted[0]["loss"]
    disk = {"store": "disk", "store_dir": str(tmp_path)}
    ways: list[dict[str, Any]] = [
        {"workers": 0},
        {"workers": 3, "prefetch": 5, "superbatch": 2},
        {**disk, "superbatch": 3, "cache": 1400, "cache_policy": "degree"},
        {**disk, "pack": 10**7},
    ]
    for way in ways:
        for one, other in zip(wanted, run(path, dropout=0.3, **way), strict=True):
            assert one == pytest.approx(other, rel=1e-5), way


def two_ranks(rank: int, path: Path, written: Path) -> list[dict[str, Any]]:
    config = configured(path, decoder="mlp", predictions=str(written))
    return train(config, connect())["history"]


def test_ranks_take_batches_in_turn(path, tmp_path):
    written = tmp_path / "p.npz"
    one, other = run_ranks(two_ranks, 2, path, written)
    assert one == other
    assert one[2]["loss"] < one[0]["loss"]
    with np.load(written) as file:
        assert file["embedding"].shape == (61, 8)
        assert file["embedding"].std() > 0


def test_resumed_run_is_a_straight_one(path, tmp_path):
    kept = {"checkpoint": str(tmp_path / "c"), "decoder": "mlp"}
    straight = run(path, decoder="mlp")
    run(path, epochs=2, **kept)
    assert run(path, resume=True, **kept) == straight
    with pytest.raises(InputError, match="decoder"):
        run(path, epochs=4, resume=True, **kept | {"decoder": "dot"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"distributed": "exact"}, "--distributed exact needs --task vertices"),
        (
            {"structure": "disk"},
            "--task links takes links out of the graph: storage.structure memory",
        ),
        ({"loss": "mse"}, "--loss needs --task vertices, not links"),
        ({"task": "vertices"}, "aim.decoder needs --task links"),
        ({"val_links": 0.5, "test_links": 0.5}, "leave nothing to train on"),
        ({"metric": "accuracy"}, "--metric accuracy needs"),
        ({"val_links": 0.4, "test_links": 0.59999}, "no link is left to train on"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said(path, flags, message):
    with pytest.raises(InputError, match=message):
        run(path, **{"decoder": "mlp", **flags})
