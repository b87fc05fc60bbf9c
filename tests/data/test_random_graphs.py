"""Graphs on disk and the generators that write them."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import CSR, InputError
from spgnn.data import ondisk
from spgnn.data.ondisk import generate_block_model, generate_rmat, open_on_disk, write_on_disk


def matrix(graph) -> sp.csr_array:
    data = np.ones(len(graph.indices), np.int8)
    return sp.csr_array((data, np.array(graph.indices), np.array(graph.indptr)), shape=graph.shape)


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
    assert graph.meta["edges"] == A.nnz
    assert A.nnz <= 20 * vertices
    if vertices > 500:
        assert A.nnz > 10 * vertices


@pytest.mark.parametrize("generate", GENERATORS)
def test_buffers_and_threads_do_not_change_the_graph(generate, tmp_path):
    whole = generate(tmp_path / "whole", 3000, 40_000, seed=5)
    pieces = generate(tmp_path / "pieces", 3000, 40_000, seed=5, buffer_bytes=4000, threads=3)
    other = generate(tmp_path / "other", 3000, 40_000, seed=6)
    np.testing.assert_array_equal(whole.indptr, pieces.indptr)
    np.testing.assert_array_equal(whole.indices, pieces.indices)
    assert not np.array_equal(whole.indptr, other.indptr)


@pytest.mark.parametrize("generate", GENERATORS)
def test_degrees_are_skewed(generate, tmp_path):
    degrees = np.diff(generate(tmp_path / "g", 20_000, 400_000).indptr)
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
    degrees = np.diff(generate_rmat(tmp_path / "b", 1000, 50_000, a=0.25, b=0.25, c=0.25).indptr)
    assert degrees.max() < 2 * degrees.mean()


def test_a_block_survives_the_disk(tmp_path):
    A = sp.random_array((50, 50), density=0.1, rng=0).tocsr()
    graph = write_on_disk(tmp_path / "g", CSR.from_scipy(A))
    np.testing.assert_array_equal(matrix(graph).toarray(), A.toarray() != 0)
    assert sorted(os.listdir(tmp_path / "g")) == ["indices.npy", "indptr.npy", "meta.json"]
    np.testing.assert_array_equal(np.load(tmp_path / "g" / "indptr.npy"), A.indptr)


def test_an_empty_graph_survives_the_disk(tmp_path):
    graph = write_on_disk(tmp_path / "g", CSR.from_scipy(sp.csr_array((3, 3))))
    assert graph.shape == (3, 3)
    assert len(graph.indices) == 0


def _broken(path, file):
    meta = json.loads((path / "meta.json").read_text())
    if file == "no meta":
        (path / "meta.json").unlink()
    elif file == "bad meta":
        (path / "meta.json").write_text("{")
    elif file == "other meta":
        (path / "meta.json").write_text("{}")
    elif file == "version":
        (path / "meta.json").write_text(json.dumps({**meta, "version": 9}))
    elif file == "edges":
        (path / "meta.json").write_text(json.dumps({**meta, "edges": 3}))
    elif file == "missing":
        (path / "indices.npy").unlink()
    elif file == "truncated":
        data = (path / "indices.npy").read_bytes()
        (path / "indices.npy").write_bytes(data[:-4])
    elif file == "falls":
        indptr = np.load(path / "indptr.npy")
        indptr[10] = indptr[9] - 1
        np.save(path / "indptr.npy", indptr)
    elif file == "pickle":
        np.save(path / "indices.npy", np.array([{}, {}]), allow_pickle=True)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("no meta", "meta.json: cannot be read: No such file"),
        ("bad meta", "meta.json: is not JSON"),
        ("other meta", "meta.json: is not the description of a graph"),
        ("version", "meta.json: version 9; this program knows 1"),
        ("edges", r"indices.npy: is int32 \[\d+\], meta.json promises int32 \[3\]"),
        ("missing", "indices.npy: cannot be read: No such file"),
        ("truncated", "indices.npy: truncated or no .npy file"),
        ("falls", "indptr.npy: falls after row 9"),
        ("pickle", "indices.npy: truncated or no .npy file"),
    ],
)
def test_a_broken_graph_is_refused(file, message, tmp_path):
    generate_rmat(tmp_path / "g", 100, 1000)
    _broken(tmp_path / "g", file)
    with pytest.raises(InputError, match=message):
        open_on_disk(tmp_path / "g")


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


def test_what_exists_is_not_written_over(tmp_path):
    generate_rmat(tmp_path / "g", 100, 1000)
    with pytest.raises(InputError, match="g: exists already"):
        generate_rmat(tmp_path / "g", 100, 1000)


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def interrupt(stage, done, total):
        if stage.startswith("drawing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_rmat(tmp_path / "g", 100, 1000, progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ondisk.os, "rename", full)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        generate_rmat(tmp_path / "g", 100, 1000)
    assert os.listdir(tmp_path) == []
