"""Batches of links, and links that are learnt in them: as in full-graph training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn import CSR, InputError, LinkNeighborLoader
from spgnn.addons.diskbatches.batch_training import LinkBatches
from spgnn.addons.diskbatches.minibatch import train
from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.addons.diskbatches.minibatch_data import open_dataset
from spgnn.comm import SoloCommunicator
from spgnn.data import Graph, load_dataset, write_shards
from spgnn.train import train as train_whole
from tests.addons.batches.graphs import F_IN, N, directed
from tests.training import TOLERANCE, write_dataset

X = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(0))


def graph() -> Graph:
    return Graph("small", CSR.from_scipy(directed()), True, x=X)


def test_links_and_pairs_that_are_none():
    record, A = graph(), torch.from_numpy(directed().toarray())
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "neg_sampling_ratio": 2}
    loader = LinkNeighborLoader(record, [3, 2], **options)
    met = []
    for batch, again in zip(loader, LinkNeighborLoader(record, [3, 2], **options), strict=True):
        count = len(batch.input_id)
        assert len(batch.edge_label) == 3 * count
        assert bool((batch.edge_label_index < batch.batch_size).all())
        source, target = batch.n_id[batch.edge_label_index]
        assert bool(A[target[:count], source[:count]].all())
        assert not bool(A[target[count:], source[count:]].any())
        assert torch.equal(target[count:], target[:count].repeat_interleave(2))
        assert batch.edge_label.tolist() == [1.0] * count + [0.0] * 2 * count
        assert torch.equal(batch.n_id, again.n_id)
        met.append(batch.input_id)
    assert torch.equal(torch.cat(met).sort().values, torch.arange(record.edges))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_label_index": [1, 2]}, r"edge_label_index must be integers \[2, links\]"),
        ({"edge_label_index": [[1], [60]]}, "runs from 1 to 60"),
        ({"edge_label": torch.ones(3)}, "edge_label must be"),
        ({"edge_label": 3}, "edge_label must be"),
        ({"edge_label_index": {1: 2}}, r"must be integers \[2, links\], got a dict"),
        ({"edge_label_index": torch.ones(2, 3, dtype=torch.bool)}, "got torch.bool"),
        ({"neg_sampling_ratio": -1}, "neg_sampling_ratio must be"),
        ({"neg_sampling_ratio": 0.5}, "neg_sampling_ratio must be an integer"),
        ({"disjoint": True}, "LinkNeighborLoader knows no disjoint"),
    ],
)
def test_what_is_wrong_is_said(options, message):
    with pytest.raises(InputError, match=message):
        LinkNeighborLoader(graph(), [2], **options)


def test_labels_of_links_are_kept_where_no_pairs_are_drawn():
    links = torch.tensor([[1, 4, 4, 9], [7, 7, 2, 1]])
    label = [0, 1, 0, 1]  # of a test set, with its own pairs that are no links
    for ratio in (0, 0.0, None):
        loader = LinkNeighborLoader(
            graph(), [2], links, edge_label=label, neg_sampling_ratio=ratio, batch_size=4
        )
        (batch,) = loader
        assert batch.edge_label.tolist() == label
    with pytest.raises(InputError, match="positive: 0 stands for the pairs"):
        LinkNeighborLoader(graph(), [2], links, edge_label=label, neg_sampling_ratio=1.0)


def test_a_batch_that_moves_keeps_its_links():
    (batch,) = LinkNeighborLoader(graph(), [2], torch.tensor([[1, 4], [7, 2]]), batch_size=2)
    moved = batch.to("meta")
    assert moved.edge_label_index.device.type == moved.edge_label.device.type == "meta"
    pytest.importorskip("torch_geometric.data")
    known = batch.pyg()
    assert torch.equal(known.edge_label_index, batch.edge_label_index)
    assert torch.equal(known.edge_label, batch.edge_label)


def test_labels_of_several_columns():
    label = torch.arange(1, 7).view(3, 2)
    links = torch.tensor([[1, 4, 9], [7, 2, 1]])
    loader = LinkNeighborLoader(
        graph(), [2], links, edge_label=label, neg_sampling_ratio=2, batch_size=3
    )
    (batch,) = loader
    assert torch.equal(batch.edge_label, torch.cat((label, torch.zeros(6, 2, dtype=torch.int64))))
    with pytest.raises(InputError, match="edge_label must be"):
        LinkNeighborLoader(graph(), [2], links, edge_label=torch.eye(3).to_sparse())


# Training.

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


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("set") / "graph.npz")


@pytest.fixture(scope="module", params=[True, False], ids=["directed", "undirected"])
def either(request, path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param:
        return path
    A = load_dataset(path).symmetrised().adjacency
    instead = {"indptr": A.indptr.numpy(), "indices": A.indices.numpy()}
    where = tmp_path_factory.mktemp("set") / "graph.npz"
    return write_dataset(where, **instead, directed=np.array(False))


def configured(path: Path, **flags: Any) -> MiniBatchConfig:
    return MiniBatchConfig.of(**{"dataset": str(path), **SHORT, **flags})


def run(path: Path, **flags: Any) -> list[dict[str, Any]]:
    """A history without what is measured."""
    report = train(configured(path, **flags), SoloCommunicator())
    return [{k: v for k, v in record.items() if k != "seconds"} for record in report["history"]]


@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_scores_are_those_of_full_graph_training(either, decoder):
    """Weights do not move: the same links are held out, and meet the same made-up pairs."""
    config = configured(
        either, decoder=decoder, epochs=1, lr=1e-30, metric="hits@10", full_lr=1e-30
    )
    whole = config.of_whole_graph()
    report = train_whole(whole.but(epochs=1), SoloCommunicator())
    (wanted,) = report["history"]
    mine = train(config, SoloCommunicator())
    (found,) = mine["history"]
    names = [name for name in wanted if name.startswith(("val", "test"))]
    assert len(names) == 9
    for name in names:
        assert found[name] == pytest.approx(wanted[name], rel=TOLERANCE, abs=TOLERANCE), name
    assert mine["graph"]["edges"] == report["graph"]["edges"] < load_dataset(either).edges


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


def test_loss_is_that_of_a_dense_model(either):
    config = configured(either, num_neighbors="-1,-1", feature_norm="none").settled()
    with open_dataset(config) as made:
        task = LinkBatches(config, SoloCommunicator(), made)
        A = torch.from_numpy(CSR(made.graph.structure).to_scipy().toarray()).float()
        x = load_dataset(either).x
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


def test_links_that_are_held_out_are_not_in_the_graph(either):
    with open_dataset(configured(either)) as made:
        assert made.links is not None
        A = CSR(made.graph.structure).to_scipy().toarray()
        graph = load_dataset(either)
        whole = CSR(graph.adjacency.pattern).to_scipy().toarray()
        for pairs in made.links[1:]:
            assert len(pairs.targets)
            assert not A[pairs.targets, pairs.sources].any()
            assert whole[pairs.targets, pairs.sources].all()
            assert graph.directed or not A[pairs.sources, pairs.targets].any()
        both = 1 if graph.directed else 2
        held = sum(len(pairs.targets) for pairs in made.links[1:])
        assert graph.directed or A.sum() == whole.sum() - both * held


def test_resumed_run_is_a_straight_one(path, tmp_path):
    kept: dict[str, Any] = {"checkpoint": str(tmp_path / "c"), "decoder": "mlp"}
    straight = run(path, decoder="mlp", dropout=0.3, predictions=str(tmp_path / "p.npz"))
    assert straight[2]["loss"] < straight[0]["loss"]
    with np.load(tmp_path / "p.npz") as file:
        assert file["embedding"].shape == (61, 8)
        assert file["embedding"].std() > 0
    run(path, epochs=2, dropout=0.3, **kept)
    assert run(path, resume=True, dropout=0.3, **kept) == straight
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
def test_what_training_refuses(path, flags, message):
    with pytest.raises(InputError, match=message):
        run(path, **{"decoder": "mlp", **flags})
