"""Induced subgraphs and batches of clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.loader import ClusterSampler, Draw
from spgnn.loader.sampling import sampled_rows
from spgnn.loader.subgraphs import induced
from tests.loader.graphs import random_graph


def check(graph, sample):
    """All entries between the nodes, and which they are."""
    (hop, *rest) = sample.hops
    assert all(other is hop for other in rest)
    assert hop.targets == hop.sources == sample.seeds == len(sample.nodes)
    nodes = sample.nodes.numpy()
    expected = graph.to_scipy()[nodes][:, nodes].toarray()
    found = np.zeros_like(expected)
    rows = np.repeat(np.arange(len(nodes)), hop.indptr.diff().numpy())
    found[rows, hop.indices.numpy()] = graph.values[hop.edge_ids].numpy()
    assert np.array_equal(found, expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.floats(0, 0.7), st.integers(1, 3), st.data())
def test_induced(n, density, layers, data):
    graph = random_graph(n, density, 1, weighted=True)
    chosen = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    vertices = torch.tensor(chosen, dtype=torch.int64)
    sample = induced(
        sampled_rows(graph, threads=2), vertices, layers=layers, edge_ids=True, threads=2
    )
    assert torch.equal(sample.nodes, vertices)
    assert len(sample.hops) == layers
    check(graph, sample)


def test_clusters():
    graph = random_graph(90, 0.1, 1, weighted=True)
    labels = torch.arange(90) % 7
    sampler = ClusterSampler(graph, labels, layers=2, edge_ids=True)
    assert sampler.clusters == 7
    for chosen in ([3], [5, 0, 2], []):
        sample = sampler.sample(torch.tensor(chosen, dtype=torch.int64), Draw(0))
        expected = [v for c in chosen for v in range(90) if v % 7 == c]
        assert sample.nodes.tolist() == expected
        check(graph, sample)
    with pytest.raises(InputError, match=r"cluster 7 outside \[0, 7\)"):
        sampler.sample(torch.tensor([7]), Draw(0))
    with pytest.raises(InputError, match="vertices: seed 1 is given twice"):
        sampler.sample(torch.tensor([1, 1]), Draw(0))
    with pytest.raises(InputError, match="labels must be a tensor, int64"):
        ClusterSampler(graph, labels[:5])
    with pytest.raises(InputError, match="labels must not be negative"):
        ClusterSampler(graph, labels - 1)
