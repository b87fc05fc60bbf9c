"""The generators that write graphs of any size as a directory with one part."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import CSR, InputError
from spgnn.data import Graph, load_dataset, open_shards, write_shards
from spgnn.data.generators import generate_block_model, generate_rmat
from tests.data.graphs import rewrite


def matrix(directory) -> sp.csr_array:
    graph = directory.pattern()
    data = np.ones(len(graph.indices), np.int8)
    return sp.csr_array((data, np.array(graph.indices), np.array(graph.indptr)), shape=graph.shape)


def degrees_of(directory) -> np.ndarray:
    return np.diff(directory.pattern().indptr)


GENERATORS = [generate_block_model, generate_rmat]


@pytest.mark.parametrize("generate", GENERATORS)
@pytest.mark.parametrize("vertices", [2, 17, 1000, 5003])
def test_graphs_are_undirected_and_canonical(generate, vertices, tmp_path):
    graph = generate(tmp_path / "g", vertices, 20 * vertices, seed=1)
    A = matrix(graph)
    assert A.shape == (vertices, vertices)
    assert A.has_canonical_format
    assert abs(A - A.T).nnz == 0
    assert A.diagonal().sum() == 0
    assert graph.meta.edges == A.nnz
    assert graph.meta.parts == 1
    assert A.nnz <= 20 * vertices
    if vertices > 500:
        assert A.nnz > 10 * vertices


@pytest.mark.parametrize("generate", GENERATORS)
def test_buffers_and_threads_do_not_change_the_graph(generate, tmp_path):
    whole = generate(tmp_path / "whole", 3000, 40_000, seed=5)
    pieces = generate(tmp_path / "pieces", 3000, 40_000, seed=5, buffer_bytes=4000, threads=3)
    other = generate(tmp_path / "other", 3000, 40_000, seed=6)
    np.testing.assert_array_equal(whole.pattern().indptr, pieces.pattern().indptr)
    np.testing.assert_array_equal(whole.pattern().indices, pieces.pattern().indices)
    assert not np.array_equal(whole.pattern().indptr, other.pattern().indptr)
    assert whole.made["seed"] == 5


@pytest.mark.parametrize("generate", GENERATORS)
def test_degrees_are_skewed(generate, tmp_path):
    degrees = degrees_of(generate(tmp_path / "g", 20_000, 400_000))
    assert degrees.max() > 10 * degrees.mean()
    assert np.median(degrees) < degrees.mean()


def test_communities_close_triangles(tmp_path):
    # Neighbours of neighbours are neighbours inside small communities, hardly ever elsewhere.
    clustered = matrix(generate_block_model(tmp_path / "a", 10_000, 200_000, community=50, hub=1.0))
    scattered = matrix(
        generate_block_model(tmp_path / "b", 10_000, 200_000, inside=0.0, near=0.0, hub=1.0)
    )

    def triangles(A):
        A = A.astype(np.int64)
        return (A @ A).multiply(A).sum()

    assert triangles(clustered) > 10 * triangles(scattered)


def test_rmat_follows_its_quadrants(tmp_path):
    # With all weight on the diagonal quadrants, every edge joins a vertex to itself.
    assert matrix(generate_rmat(tmp_path / "a", 64, 1000, a=0.5, b=0.0, c=0.0)).nnz == 0
    # Equal quadrants make a uniform graph.
    degrees = degrees_of(generate_rmat(tmp_path / "b", 1000, 50_000, a=0.25, b=0.25, c=0.25))
    assert degrees.max() < 2 * degrees.mean()


def test_a_generated_graph_is_cut_opened_and_loaded_like_any_other(tmp_path):
    directory = generate_rmat(tmp_path / "g", 100, 1000)
    assert sorted(os.listdir(tmp_path / "g")) == ["meta.json", "part-00000"]
    files = ["indices.npy", "indptr.npy", "part.json"]
    assert sorted(os.listdir(tmp_path / "g" / "part-00000")) == files
    A = matrix(directory)
    loaded = load_dataset(tmp_path / "g").adjacency.to_scipy()
    np.testing.assert_array_equal(loaded.toarray(), A.toarray())
    directory.check()
    write_shards(directory, np.arange(100) % 3, 3, tmp_path / "cut")
    cut = open_shards(tmp_path / "cut")
    order = cut.vertex_ids.numpy()
    moved = cut.structure().to_scipy().toarray()
    np.testing.assert_array_equal(moved, A.toarray()[order][:, order])


def test_a_pattern_of_several_parts_is_put_together(tmp_path):
    A = sp.random_array((50, 50), density=0.1, rng=0).tocsr()
    write_shards(Graph("g", CSR.from_scipy(A), True), None, 4, tmp_path / "g")
    found = open_shards(tmp_path / "g").pattern()
    np.testing.assert_array_equal(found.to_scipy().toarray(), A.astype(np.float32).toarray())


def test_an_empty_graph_survives_the_disk(tmp_path):
    A = CSR.from_scipy(sp.csr_array((3, 3), dtype=bool))
    write_shards(Graph("g", A, False), None, 1, tmp_path / "g")
    pattern = open_shards(tmp_path / "g").pattern()
    assert pattern.shape == (3, 3)
    assert len(pattern.indices) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: np.where(np.arange(101) == 10, a[9] - 1, a), "indptr falls after row 9"),
        (lambda a: a + 1, r"indptr runs 1 to \d+, must rise to \d+"),
    ],
)
def test_a_mapped_pattern_has_rising_row_offsets(tmp_path, change, message):
    generate_rmat(tmp_path / "g", 100, 1000)
    indptr = np.load(tmp_path / "g" / "part-00000" / "indptr.npy")
    rewrite(tmp_path / "g", 0, "indptr", change(indptr))
    with pytest.raises(InputError, match=message):
        open_shards(tmp_path / "g").pattern()


@pytest.mark.parametrize(
    ("generate", "arguments", "message"),
    [
        (generate_rmat, {"vertices": 1}, "vertices must be in"),
        (generate_rmat, {"nonzeros": -1}, "nonzeros must not be negative"),
        (generate_rmat, {"a": 0.9, "b": 0.2}, "probabilities that sum to at most 1"),
        (generate_block_model, {"inside": 0.9, "near": 0.2}, "shares that sum to at most 1"),
        (generate_block_model, {"exponent": 1.5}, "exponent must be in"),
    ],
)
def test_senseless_numbers_are_refused(generate, arguments, message, tmp_path):
    with pytest.raises(InputError, match=message):
        generate(tmp_path / "g", **{"vertices": 100, "nonzeros": 100, **arguments})
    assert os.listdir(tmp_path) == []


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def interrupt(stage, done, total):
        if stage.startswith("drawing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_rmat(tmp_path / "g", 100, 1000, progress=interrupt)
    assert os.listdir(tmp_path) == []
