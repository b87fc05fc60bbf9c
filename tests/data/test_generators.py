from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn import InputError
from spgnn.data.generators import STAND_INS, block_model, rmat, stand_in
from tests.data.graphs import (
    assert_canonical,
    assert_same_csr,
    assert_same_vertices,
    pattern,
)


def same_class_share(graph):
    rows = torch.arange(graph.vertices).repeat_interleave(graph.adjacency.row_lengths)
    return (graph.y[rows] == graph.y[graph.adjacency.indices.long()]).double().mean().item()


@given(
    st.integers(1, 40), st.integers(0, 200), st.integers(1, 5), st.integers(0, 3), st.integers(0, 9)
)
def test_block_models_are_simple_undirected_graphs(vertices, edges, classes, features, seed):
    graph = block_model(vertices, edges, classes=classes, features=features, seed=seed)
    assert_canonical(graph.adjacency)
    dense = pattern(graph.adjacency)
    np.testing.assert_array_equal(dense, dense.T)
    assert not dense.diagonal().any()
    assert graph.edges <= edges
    assert not graph.directed
    assert graph.features == features
    assert 0 <= int(graph.y.min()) <= int(graph.y.max()) < classes
    assert bool((graph.train_mask ^ graph.val_mask ^ graph.test_mask).all())


@pytest.mark.parametrize("model", [partial(block_model, 500, 3000), partial(rmat, 8)])
def test_a_seed_is_a_graph(model):
    once, again, other = model(seed=1), model(seed=1), model(seed=2)
    assert_same_csr(once.adjacency, again.adjacency)
    assert_same_vertices(once, again)
    assert not np.array_equal(pattern(once.adjacency), pattern(other.adjacency))


def test_block_models_meet_their_edges_degrees_and_homophily():
    graph = block_model(4000, 60_000, classes=8, homophily=0.7, seed=0)
    assert 0.98 * 60_000 <= graph.edges <= 60_000
    # Edges to anywhere fall into the same class one time in eight.
    assert same_class_share(graph) == pytest.approx(0.7 + 0.3 / 8, abs=0.03)
    lengths = graph.adjacency.row_lengths.double()
    assert lengths.max() > 8 * lengths.mean()
    flat = block_model(4000, 60_000, skew=20.0, seed=0).adjacency.row_lengths.double()
    assert flat.max() < 3 * flat.mean()


def test_class_means_carry_the_signal():
    graph = block_model(3000, 100, classes=3, features=16, signal=5.0, seed=0)
    means = torch.stack([graph.x[graph.y == label].mean(dim=0) for label in range(3)])
    assert torch.allclose(means.norm(dim=1), torch.full((3,), 5.0), atol=0.3)
    noise = graph.x - means[graph.y]
    assert noise.std().item() == pytest.approx(1.0, abs=0.02)


def test_crowded_classes_spill_over():
    graph = block_model(40, 1000, classes=10, homophily=1.0, skew=20.0, features=0, seed=0)
    assert graph.edges >= 0.9 * 1000


def test_rmat_is_skewed_simple_and_undirected():
    graph = rmat(10, 8, seed=0)
    assert graph.vertices == 1024
    assert_canonical(graph.adjacency)
    dense = pattern(graph.adjacency)
    np.testing.assert_array_equal(dense, dense.T)
    assert not dense.diagonal().any()
    assert 0.5 * 1024 * 16 < graph.edges <= 1024 * 16
    lengths = graph.adjacency.row_lengths.double()
    assert lengths.max() > 8 * lengths.mean()


def test_rmat_quadrants_follow_their_probabilities():
    graph = rmat(1, 4096, probabilities=(0.0, 1.0, 0.0), seed=0)
    np.testing.assert_array_equal(pattern(graph.adjacency), [[False, True], [True, False]])
    assert rmat(5, 64, probabilities=(1.0, 0.0, 0.0), seed=0).edges == 0


@pytest.mark.parametrize("scale", [-1, 32])
def test_rmat_refuses_other_scales(scale):
    with pytest.raises(InputError, match="scale of an R-MAT graph"):
        rmat(scale)


@pytest.mark.parametrize("name", STAND_INS)
def test_stand_ins_have_the_shape_of_the_original(name):
    shape = STAND_INS[name]
    scale = 20_000 / shape.edges
    graph = stand_in(name, scale)
    assert graph.vertices == max(round(shape.vertices * scale), 1)
    assert graph.features == shape.features
    assert graph.classes <= shape.classes
    room = graph.vertices * (graph.vertices - 1)
    assert graph.edges >= min(0.95 * 20_000, 0.9 * room)


def test_stand_ins_refuse_other_names_and_scales():
    with pytest.raises(InputError, match="stand-in cora-like: choose one of reddit-like"):
        stand_in("cora-like")
    for scale in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(InputError, match=r"must be in \(0, 1\]"):
            stand_in("reddit-like", scale)


@pytest.mark.parametrize(
    "arguments",
    [{"vertices": 0}, {"edges": -1}, {"classes": 0}, {"skew": 1.0}, {"homophily": 1.5}],
)
def test_block_models_refuse_nonsense(arguments):
    with pytest.raises(InputError):
        block_model(**{"vertices": 10, "edges": 10, **arguments})
