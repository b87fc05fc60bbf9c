"""Every method on every odd graph: right or refused clearly."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import CSR, InputError, _native
from spgnn.partition import METHODS, Adjacency, methods, partition
from tests.partition.oracle import community_graph

OURS = ("block", "random", "gvb", "stream")
DETERMINISTIC = (*OURS, "metis", "metis-volume", "kahypar")


def _star(n: int) -> sp.csr_array:
    A = sp.lil_array((n, n), dtype=bool)
    A[0, :] = True
    A[:, 0] = True
    return A.tocsr()


def _odd_graphs() -> dict[str, sp.csr_array]:
    ring = sp.csr_array(np.roll(np.eye(40, dtype=bool), 1, axis=1))
    return {
        "empty": sp.csr_array((30, 30), dtype=bool),
        "one vertex": sp.csr_array((1, 1), dtype=bool),
        "no vertex": sp.csr_array((0, 0), dtype=bool),
        "isolated vertices": sp.block_diag((ring + ring.T, sp.csr_array((20, 20)))).tocsr(),
        "star": _star(40),
        "disconnected": sp.block_diag([ring + ring.T] * 3).tocsr(),
        "directed": ring,
        "only self-loops": sp.eye_array(25).tocsr(),
        "complete": sp.csr_array(np.ones((20, 20))),
    }


GRAPHS = _odd_graphs()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("k", [1, 2, 5, 100])
def test_labels_are_in_range_whatever_the_graph(method, graph, k):
    A = GRAPHS[graph]
    labels, result = partition(A, k, method)
    assert labels.dtype == np.int32
    assert labels.shape == (A.shape[0],)
    assert ((labels >= 0) & (labels < k)).all()
    assert result["method"] == method
    assert result["parts"] == k
    assert result["empty_parts"] == k - len(np.unique(labels))


@pytest.mark.parametrize("method", METHODS)
def test_imbalance_zero_is_no_error_and_the_report_says_whether_it_was_met(method):
    A = GRAPHS["disconnected"]
    labels, result = partition(A, 4, method, imbalance=0.0)
    weights = np.bincount(labels, weights=np.diff(A.indptr), minlength=4)
    assert result["imbalance_met"] == (weights.max() == 60)
    assert result["nnz_imbalance"] == pytest.approx(weights.max() / 60 - 1)


@pytest.mark.parametrize("method", METHODS)
def test_duplicate_entries_change_nothing(method):
    A = community_graph(200, 4, seed=1).astype(np.float32).tocoo()
    twice = sp.coo_array(
        (np.tile(A.data, 2), (np.tile(A.coords[0], 2), np.tile(A.coords[1], 2))), shape=A.shape
    )
    if method in DETERMINISTIC:
        np.testing.assert_array_equal(partition(twice, 4, method)[0], partition(A, 4, method)[0])
    assert partition(twice, 4, method)[1]["edges"] == A.nnz


@pytest.mark.parametrize("method", DETERMINISTIC)
def test_the_same_seed_gives_the_same_labels(method):
    A = community_graph(600, 4, seed=3)
    first, _ = partition(A, 4, method, seed=7)
    np.testing.assert_array_equal(partition(A, 4, method, seed=7)[0], first)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("block", "random")])
def test_a_method_finds_communities(method):
    A = community_graph(800, 4, seed=5)
    _, random = partition(A, 4, "random")
    _, found = partition(A, 4, method)
    assert found["total_volume"] < 0.8 * random["total_volume"]
    assert found["max_send"] < 0.8 * random["max_send"]
    assert found["nnz_imbalance"] < 0.06


def test_a_csr_block_and_its_scipy_matrix_give_the_same():
    A = community_graph(300, 3, seed=0)
    from_scipy, _ = partition(A, 3, "stream")
    from_block, _ = partition(CSR.from_scipy(A), 3, "stream")
    np.testing.assert_array_equal(from_scipy, from_block)


def test_block_is_the_layout_that_training_uses_without_a_partition():
    labels, _ = partition(sp.eye_array(10).tocsr(), 4, "block")
    assert labels.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]


@dataclass
class Arrays:
    """As a graph on disk has them."""

    indptr: Any
    indices: Any
    shape: Any = (3, 3)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_arrays_of_any_integers_are_taken(dtype):
    A = community_graph(300, 3, seed=0)
    arrays = Arrays(A.indptr.astype(dtype), A.indices.astype(dtype), A.shape)
    labels, _ = partition(A, 3, "gvb")
    np.testing.assert_array_equal(partition(arrays, 3, "gvb")[0], labels)


@pytest.mark.parametrize("k", [41, 100, 65536])
def test_more_parts_than_vertices_stay_empty(k):
    labels, result = partition(GRAPHS["directed"], k, "gvb")
    assert len(np.unique(labels)) == 40
    assert result["empty_parts"] == result["parts"] - 40
    assert result["total_volume"] == 40
    with pytest.raises(InputError, match=r"k must be an integer in \[1, 65536\]"):
        partition(GRAPHS["directed"], 65537)


def test_four_parts_a_vertex_are_the_most():
    A = sp.csr_array((20_000, 20_000), dtype=bool)
    assert partition(A, 80_000, "block")[1]["empty_parts"] == 60_000
    with pytest.raises(InputError, match=r"k must be an integer in \[1, 80000\]"):
        partition(A, 80_001, "block")


def test_out_of_memory_says_for_what(monkeypatch):
    def too_much(problem):
        raise MemoryError("std::bad_alloc")

    monkeypatch.setitem(METHODS, "gvb", too_much)
    with pytest.raises(MemoryError, match=r"^method gvb for 100 vertices, .* nonzeros, 2 parts$"):
        partition(community_graph(100, 2, 0), 2)


def test_native_code_that_runs_out_of_memory_raises():
    A = Adjacency.of(community_graph(100, 2, 0))
    with pytest.raises(MemoryError):
        _native.count_volumes(A.indptr, A.indices, np.zeros(100, np.int32), 2**50, 1, 1 << 20, None)


@pytest.mark.parametrize("method", METHODS)
def test_no_bound_is_allowed(method):
    labels, result = partition(community_graph(300, 3, 1), 3, method, imbalance=1e6)
    assert result["imbalance_met"]
    assert ((labels >= 0) & (labels < 3)).all()


@pytest.mark.parametrize("method", ["metis", "kahypar", "mtkahypar"])
def test_a_missing_package_is_named_with_its_extra(method, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(methods.importlib, "import_module", missing)
    methods._mtkahypar_threads.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'spgnn\[partition\]'"):
        partition(community_graph(100, 2, 0), 2, method)
    assert methods.importlib is importlib


@pytest.mark.parametrize("method", ["gvb", "stream"])
def test_refinement_improves_given_labels(method):
    A = community_graph(2000, 4, seed=9)
    labels, before = partition(A, 4, "random")
    _, after = partition(A, 4, method, initial=labels, imbalance=0.1)
    assert after["total_volume"] < before["total_volume"]


def test_training_vertices_can_be_balanced():
    A = community_graph(2000, 4, seed=2)
    mask = np.arange(2000) < 400
    labels, result = partition(
        A, 4, "gvb", balance=("nnz", "train"), train_mask=mask, imbalance=0.1
    )
    assert np.bincount(labels[mask], minlength=4).max() <= 110
    assert result["imbalance_met"]
