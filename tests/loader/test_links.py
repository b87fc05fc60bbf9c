"""Batches of links."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import spgnn
from spgnn import CSR, InputError, LinkNeighborLoader
from spgnn import nn as ours
from spgnn.data import Graph
from tests.loader.graphs import F_IN, N, directed

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


def test_scores_of_whole_neighbourhoods():
    record = graph()
    model = ours.GraphSAGE(F_IN, 6, 2, 5)
    whole = model(X, spgnn.distribute(record))
    links = torch.tensor([[1, 4, 4, 9], [7, 7, 2, 1]])
    label = torch.tensor([2, 1, 1, 3])
    for batch in LinkNeighborLoader(record, [-1, -1], links, edge_label=label, batch_size=3):
        source, target = model(batch.x, batch.layers)[batch.edge_label_index]
        wanted = (whole[links[0]] * whole[links[1]]).sum(1)[batch.input_id]
        torch.testing.assert_close((source * target).sum(1), wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(batch.edge_label, label[batch.input_id])


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
