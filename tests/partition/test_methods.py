"""Every method on every odd graph: right or refused clearly."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import CSR, InputError, _native
from spgnn.partition import METHODS, Adjacency, methods, partition, report
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, r"k must be an integer in \[1, 65536\], got int 0"),
        ({"k": -3}, "k must be an integer"),
        ({"k": 2.0}, "k must be an integer in .*, got float 2.0"),
        ({"k": "2"}, "k must be an integer"),
        ({"k": True}, "k must be an integer"),
        ({"k": None}, "k must be an integer"),
        ({"k": 2**31 - 1}, "k must be an integer"),
        ({"k": 10**5000}, "k must be an integer"),
        ({"threads": 0}, r"threads must be an integer in \[1, 1024\]"),
        ({"threads": -1}, "threads must be an integer"),
        ({"threads": 1.5}, "threads must be an integer"),
        ({"threads": 10**9}, "threads must be an integer"),
        ({"method": "magic"}, "method magic: choose one of block, random, metis"),
        ({"method": 7}, "method 7: choose one of"),
        ({"objective": "both"}, "objective both: choose one of column, cover"),
        ({"preset": "best"}, "preset best: choose one of"),
        ({"preset": "defualt"}, "did you mean 'default'"),
        ({"imbalance": -0.1}, r"imbalance must be a number in \[0, 1e\+06\]"),
        ({"imbalance": float("nan")}, "imbalance must be a number"),
        ({"imbalance": 1e308}, "imbalance must be a number"),
        ({"imbalance": "a"}, "imbalance must be a number in .*, got str 'a'"),
        ({"imbalance": None}, "imbalance must be a number"),
        ({"seed": -1}, "seed must be an integer"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"seed": 0.5}, "seed must be an integer"),
        ({"seed": 2**31}, "seed must be an integer"),
        ({"objective": "cover", "method": "metis"}, "only method gvb takes objective cover"),
        ({"initial": np.zeros(30, int), "method": "metis"}, "cannot refine labels"),
        ({"initial": np.zeros(3, int), "method": "gvb"}, "3 labels for 30 vertices"),
        ({"initial": np.zeros(30), "method": "gvb"}, "labels must be a vector of integers"),
        ({"balance": ("nnz", "edges")}, "balance edges: choose one of"),
        ({"balance": ("nnz", "nnz")}, "names a quantity twice"),
        ({"balance": ()}, "balance must name one or more"),
        ({"balance": 5}, "balance must name one or more"),
        ({"balance": ("train",)}, "needs a train mask"),
        (
            {"balance": "train", "train_mask": np.ones(30)},
            r"needs a train mask, bool \[30\]; the graph has float64 \[30\]",
        ),
        ({"balance": ("nnz", "vertices"), "method": "metis"}, "one weight only"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    A = sp.csr_array(np.ones((30, 30)))
    with pytest.raises(InputError, match=message):
        partition(A, **{"k": 2, **arguments})


@pytest.mark.parametrize("method", METHODS)
def test_a_rectangular_matrix_is_refused(method):
    with pytest.raises(InputError, match="the matrix is 3 × 4"):
        partition(sp.csr_array((3, 4)), 2, method)


@dataclass
class Arrays:
    """As a graph on disk has them."""

    indptr: Any
    indices: Any
    shape: Any = (3, 3)


@pytest.mark.parametrize(
    ("A", "message"),
    [
        (np.ones((3, 3)), "cannot partition a ndarray"),
        (None, "cannot partition a NoneType"),
        ([[1]], "cannot partition a list"),
        (sp.coo_array([1, 0, 1]), "the matrix is 3; a partition"),
        (Arrays(np.array([0, 1, 2]), np.zeros(2, np.int32)), "indptr must have 4 entries, got 3"),
        (Arrays(np.array([0, 2, 1, 3]), np.zeros(3, np.int32)), "indptr must rise from 0"),
        (Arrays(np.array([0, 1, 2, 3]), np.zeros(2, np.int32)), "indptr must rise from 0"),
        (Arrays(np.array([1, 1, 2, 3]), np.zeros(3, np.int32)), "indptr must rise from 0"),
        (Arrays(np.array([0.0, 1, 2, 3]), np.zeros(3, np.int32)), "indptr must be a vector of int"),
        (Arrays(np.array([0, 1, 2, 3]), np.zeros(3)), "indices must be a vector of integers"),
        (Arrays(np.array([0, 1, 2, 3]), np.full(3, 2**32)), "column index 4294967296 outside"),
        (Arrays(None, None, (2**31, 2**31)), "at most 2³¹ − 1 can be partitioned"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_is_no_square_matrix_is_refused(A, message):
    for method in ("gvb", "stream", "block"):
        with pytest.raises(InputError, match=message):
            partition(A, 2, method)
    with pytest.raises(InputError, match=message):
        report(A, [0, 0, 0])


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
