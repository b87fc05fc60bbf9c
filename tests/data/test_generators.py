"""Random graphs, in memory and on a disk: simple, undirected, skewed, a function of their seed."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data import Graph, load_dataset, open_shards, write_shards
from spgnn.data.generators import block_model, generate_block_model, rmat
from tests.data.graphs import (
    assert_canonical,
    assert_same_csr,
    assert_same_vertices,
    pattern,
    rewrite,
)


def check_simple(A: CSR) -> None:
    assert_canonical(A)
    dense = pattern(A)
    np.testing.assert_array_equal(dense, dense.T)
    assert not dense.diagonal().any()


@settings(max_examples=50)
@given(
    st.integers(1, 40), st.integers(0, 200), st.integers(1, 5), st.integers(0, 3), st.integers(0, 9)
)
def test_block_models_are_simple_undirected_graphs(vertices, edges, classes, features, seed):
    graph = block_model(vertices, edges, classes=classes, features=features, seed=seed)
    check_simple(graph.adjacency)
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
    rows = torch.arange(graph.vertices).repeat_interleave(graph.adjacency.row_lengths)
    same = (graph.y[rows] == graph.y[graph.adjacency.indices.long()]).double().mean().item()
    # Edges to anywhere fall into the same class one time in eight.
    assert same == pytest.approx(0.7 + 0.3 / 8, abs=0.03)
    lengths = graph.adjacency.row_lengths.double()
    assert lengths.max() > 8 * lengths.mean()
    flat = block_model(4000, 60_000, skew=20.0, seed=0).adjacency.row_lengths.double()
    assert flat.max() < 3 * flat.mean()
    # Where classes are full, edges spill over.
    full = block_model(40, 1000, classes=10, homophily=1.0, skew=20.0, features=0, seed=0)
    assert full.edges >= 0.9 * 1000


def test_class_means_carry_the_signal():
    graph = block_model(3000, 100, classes=3, features=16, signal=5.0, seed=0)
    means = torch.stack([graph.x[graph.y == label].mean(dim=0) for label in range(3)])
    assert torch.allclose(means.norm(dim=1), torch.full((3,), 5.0), atol=0.3)
    noise = graph.x - means[graph.y]
    assert noise.std().item() == pytest.approx(1.0, abs=0.02)


def test_rmat_is_skewed_and_follows_its_quadrants():
    graph = rmat(10, 8, seed=0)
    assert graph.vertices == 1024
    check_simple(graph.adjacency)
    assert 0.5 * 1024 * 16 < graph.edges <= 1024 * 16
    lengths = graph.adjacency.row_lengths.double()
    assert lengths.max() > 8 * lengths.mean()
    graph = rmat(1, 4096, probabilities=(0.0, 1.0, 0.0), seed=0)
    np.testing.assert_array_equal(pattern(graph.adjacency), [[False, True], [True, False]])
    assert rmat(5, 64, probabilities=(1.0, 0.0, 0.0), seed=0).edges == 0


# Graphs of any size, written as a directory with one part.


def matrix(directory) -> sp.csr_array:
    graph = directory.pattern()
    data = np.ones(len(graph.indices), np.int8)
    return sp.csr_array((data, np.array(graph.indices), np.array(graph.indptr)), shape=graph.shape)


@pytest.mark.parametrize("vertices", [2, 17, 1000, 5003])
def test_graphs_are_undirected_and_canonical_whatever_buffers_and_threads(vertices, tmp_path):
    graph = generate_block_model(tmp_path / "g", vertices, 20 * vertices, seed=5)
    A = matrix(graph)
    assert A.shape == (vertices, vertices)
    assert A.has_canonical_format
    assert abs(A - A.T).nnz == 0
    assert A.diagonal().sum() == 0
    assert (graph.meta.edges, graph.meta.parts, graph.made["seed"]) == (A.nnz, 1, 5)
    assert (10 * vertices if vertices > 500 else 0) <= A.nnz <= 20 * vertices
    how = {"seed": 5, "buffer_bytes": 4000, "threads": 3}
    pieces = matrix(generate_block_model(tmp_path / "pieces", vertices, 20 * vertices, **how))
    np.testing.assert_array_equal(A.indptr, pieces.indptr)
    np.testing.assert_array_equal(A.indices, pieces.indices)
    other = matrix(generate_block_model(tmp_path / "other", vertices, 20 * vertices, seed=6))
    assert vertices < 500 or not np.array_equal(A.indptr, other.indptr)


def test_degrees_and_communities(tmp_path):
    degrees = np.diff(matrix(generate_block_model(tmp_path / "g", 20_000, 400_000)).indptr)
    assert degrees.max() > 10 * degrees.mean()
    assert np.median(degrees) < degrees.mean()

    # Neighbours of neighbours are neighbours inside small communities, hardly ever elsewhere.
    def triangles(name, **how):
        A = matrix(generate_block_model(tmp_path / name, 10_000, 200_000, hub=1.0, **how))
        A = A.astype(np.int64)
        return (A @ A).multiply(A).sum()

    assert triangles("a", community=50) > 10 * triangles("b", inside=0.0, near=0.0)


def test_a_generated_graph_is_cut_opened_and_loaded_like_any_other(tmp_path):
    directory = generate_block_model(tmp_path / "g", 100, 1000)
    files = [path.name for path in (tmp_path / "g").rglob("*")]
    assert sorted(files) == ["indices.npy", "indptr.npy", "meta.json", "part-00000", "part.json"]
    A = matrix(directory)
    loaded = load_dataset(tmp_path / "g").adjacency.to_scipy()
    np.testing.assert_array_equal(loaded.toarray(), A.toarray())
    directory.check()
    write_shards(directory, np.arange(100) % 3, 3, tmp_path / "cut")
    cut = open_shards(tmp_path / "cut")
    order = cut.vertex_ids.numpy()
    moved = cut.pattern().to_scipy().toarray()  # of several parts: put together
    np.testing.assert_array_equal(moved, A.toarray()[order][:, order])
    empty = CSR.from_scipy(sp.csr_array((3, 3), dtype=bool))
    write_shards(Graph("g", empty, False), None, 1, tmp_path / "empty")
    pattern = open_shards(tmp_path / "empty").pattern()
    assert (pattern.shape, len(pattern.indices)) == ((3, 3), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: np.where(np.arange(101) == 10, a[9] - 1, a), "indptr falls after row 9"),
        (lambda a: a + 1, r"indptr runs 1 to \d+, must rise to \d+"),
    ],
)
def test_a_mapped_pattern_has_rising_row_offsets(tmp_path, change, message):
    generate_block_model(tmp_path / "g", 100, 1000)
    indptr = np.load(tmp_path / "g" / "part-00000" / "indptr.npy")
    rewrite(tmp_path / "g", 0, "indptr", change(indptr))
    with pytest.raises(InputError, match=message):
        open_shards(tmp_path / "g").pattern()


@pytest.mark.parametrize(
    ("generate", "arguments", "message"),
    [
        (generate_block_model, {"vertices": 1}, "vertices must be in"),
        (generate_block_model, {"nonzeros": -1}, "nonzeros must not be negative"),
        (generate_block_model, {"inside": 0.9, "near": 0.2}, "shares that sum to at most"),
        (generate_block_model, {"exponent": 1.5}, "exponent must be in"),
        (block_model, {"vertices": 0}, "at least one vertex and one class"),
        (block_model, {"edges": -1}, "edges ≥ 0"),
        (block_model, {"classes": 0}, "at least one vertex and one class"),
        (block_model, {"skew": 1.0}, "skew must be above 1"),
        (block_model, {"homophily": 1.5}, r"homophily in \[0, 1\]"),
        (rmat, {"scale": -1}, "scale of an R-MAT graph"),
        (rmat, {"scale": 32}, "scale of an R-MAT graph"),
    ],
)
def test_senseless_numbers_are_refused(generate, arguments, message, tmp_path):
    usual = {
        generate_block_model: {"path": tmp_path / "g", "vertices": 100, "nonzeros": 100},
        block_model: {"vertices": 10, "edges": 10},
        rmat: {},
    }[generate]
    with pytest.raises(InputError, match=message):
        generate(**usual | arguments)
    assert os.listdir(tmp_path) == []


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def interrupt(stage, done, total):
        if stage.startswith("drawing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_block_model(tmp_path / "g", 100, 1000, progress=interrupt)
    assert os.listdir(tmp_path) == []
