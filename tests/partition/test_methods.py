"""Every method on every odd graph: right or refused clearly; from a disk, and in two levels."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError, _native
from spgnn.data import Graph, open_shards, write_shards
from spgnn.data.generators import generate_block_model
from spgnn.machine import Levels, Link, read_machine, write_machine
from spgnn.partition import (
    METHODS,
    cut_vertices,
    packages,
    partition,
    permutation,
    place,
    report,
    write_labels,
)
from spgnn.partition.labels import part_sizes
from spgnn.partition.methods import FIXING, OURS
from spgnn.partition.places import OUTSIDE, levels_of
from spgnn.partition.problem import Adjacency, check_parts
from tests.data.graphs import rewrite
from tests.partition.oracle import (
    column_volumes,
    community_graph,
    dense_blocks,
    matrices,
    random_pattern,
    uneven_communities,
)

DETERMINISTIC = set(METHODS) - {"mtkahypar", "kaminpar"}


def _odd_graphs() -> dict[str, sp.csr_array]:
    ring = sp.csr_array(np.roll(np.eye(40, dtype=bool), 1, axis=1))
    star = np.zeros((40, 40), bool)
    star[0] = star[:, 0] = True
    return {
        "empty": sp.csr_array((30, 30), dtype=bool),
        "one vertex": sp.csr_array((1, 1), dtype=bool),
        "no vertex": sp.csr_array((0, 0), dtype=bool),
        "isolated vertices": sp.block_diag((ring + ring.T, sp.csr_array((20, 20)))).tocsr(),
        "star": sp.csr_array(star),
        "disconnected": sp.block_diag([ring + ring.T] * 3).tocsr(),
        "directed": ring,
        "only self-loops": sp.eye_array(25).tocsr(),
        "complete": sp.csr_array(np.ones((20, 20))),
    }


GRAPHS = _odd_graphs()


@pytest.mark.parametrize("method", [*METHODS])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("k", [1, 2, 5, 100])
def test_labels_are_in_range_whatever_the_graph(method, graph, k):
    A = GRAPHS[graph]
    labels, result = partition(A, k, method)
    assert (labels.dtype, labels.shape) == (np.int32, (A.shape[0],))
    assert ((labels >= 0) & (labels < k)).all()
    assert (result["method"], result["parts"]) == (method, k)
    assert result["empty_parts"] == k - len(np.unique(labels))


@pytest.mark.parametrize("method", [*METHODS])
def test_what_every_method_promises(method):
    """Bounds of 0 and none at all; duplicates count once; a seed is a partition; communities."""
    A = GRAPHS["disconnected"]
    labels, result = partition(A, 4, method, imbalance=0.0)
    if method == "block":  # the layout that training uses without a partition
        np.testing.assert_array_equal(labels, np.repeat(range(4), 30))
    weights = np.bincount(labels, weights=np.diff(A.indptr), minlength=4)
    assert result["imbalance_met"] == (weights.max() == 60)
    assert result["nnz_imbalance"] == pytest.approx(weights.max() / 60 - 1)
    assert partition(A, 2, method, imbalance=1)[1]["imbalance_met"]
    A = community_graph(800, 4, seed=5)
    labels, found = partition(A, 4, method, seed=7)
    coo = A.astype(np.float32).tocoo()
    places = tuple(np.tile(axis, 2) for axis in coo.coords)
    twice = sp.coo_array((np.tile(coo.data, 2), places), shape=A.shape)
    again, report_of_twice = partition(twice, 4, method, seed=7)
    assert report_of_twice["edges"] == A.nnz
    if method in DETERMINISTIC:
        np.testing.assert_array_equal(labels, again)
    if method not in ("block", "random", "pagraph"):
        _, chance = partition(A, 4, "random")
        assert found["total_volume"] < 0.8 * chance["total_volume"]
        assert found["max_send"] < 0.8 * chance["max_send"]
        assert found["nnz_imbalance"] < 0.06


@dataclass
class Arrays:
    """As a graph on disk has them."""

    indptr: Any
    indices: Any
    shape: Any = (3, 3)


def test_every_kind_of_matrix_gives_the_same():
    A = community_graph(300, 3, seed=0)
    for method in ("gvb", "stream"):
        labels, _ = partition(A, 3, method)
        np.testing.assert_array_equal(partition(CSR.from_scipy(A), 3, method)[0], labels)
    labels, _ = partition(A, 3, "gvb")
    for dtype in (np.int32, np.int64):
        arrays = Arrays(A.indptr.astype(dtype), A.indices.astype(dtype), A.shape)
        np.testing.assert_array_equal(partition(arrays, 3, "gvb")[0], labels)


def test_more_parts_than_vertices_stay_empty():
    for k in (41, 65536):
        labels, result = partition(GRAPHS["directed"], k, "gvb")
        assert len(np.unique(labels)) == 40
        assert result["empty_parts"] == result["parts"] - 40
        assert result["total_volume"] == 40
    assert check_parts(80_000, 20_000) == 80_000
    with pytest.raises(InputError, match=r"k must be an integer in \[1, 80000\]"):
        check_parts(80_001, 20_000)


# Shares of parts, and vertices that are fixed to a part.


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"pagraph", "mtkahypar-deterministic"}))
def test_parts_follow_their_shares(method):
    A = community_graph(600, 12, seed=5)
    shares = np.array([1, 4, 2, 1, 3.0])
    labels, result = partition(A, 5, method, shares=shares, threads=2)
    loads = np.bincount(labels, weights=np.diff(A.indptr), minlength=5)
    excess = (loads / loads.sum() / (shares / shares.sum())).max() - 1
    assert excess <= (0.05 if method in OURS else 0.15)
    assert result["nnz_imbalance"] == pytest.approx(excess)
    assert result["imbalance_met"] == (excess <= 0.05)
    assert report(A, labels, shares=7 * shares)["nnz_imbalance"] == pytest.approx(excess)
    if method in DETERMINISTIC:
        np.testing.assert_array_equal(
            partition(A, 5, method, shares=np.full(5, 0.1), threads=2)[0],
            partition(A, 5, method, threads=1)[0],
        )


@pytest.mark.parametrize("method", ["metis", "metis-volume", *OURS])
def test_a_part_of_a_negligible_share_stays_empty(method):
    labels, _ = partition(community_graph(60, 3, seed=5), 4, method, shares=[1, 1, 1, 1e-300])
    assert np.bincount(labels, minlength=4)[3] == 0


@pytest.mark.parametrize("method", [*sorted(set(METHODS) - {"pagraph", "graph-vb"}), "morton"])
def test_weights_of_any_kind_are_balanced(method):
    """Fractions, tensors, numbers of any size, few that are not 0; judged as they are."""
    A, rng = community_graph(600, 4, seed=5), np.random.default_rng(1)
    few, fractions = np.repeat([100, 1, 100, 1], 150), rng.random(600)
    more = {"positions": rng.random((600, 2))} if method == "morton" else {}
    kinds = [fractions * 1e-9, few * 1e305, few * 2**50, few > 50]
    for weights in (*kinds, torch.rand(600, dtype=torch.bfloat16, requires_grad=True)):
        exact = np.array(weights.tolist(), float) / max(weights.tolist())
        labels, found = partition(A, 4, method, weights=weights, minimum=False, threads=1, **more)
        excess = np.bincount(labels, exact, minlength=4).max() / exact.sum() * 4 - 1
        assert found["weight_imbalance"] == pytest.approx(excess, abs=1e-12)
        assert found["imbalance_met"] == (excess <= 0.05)
        assert excess <= (0.1 if method in packages.PACKAGES else 0.05)
    assert partition(sp.csr_array((600, 600)), 4, method, weights=few, **more)[1]["imbalance_met"]


def test_stream_makes_initial_parts_light_enough():
    # A star, whose vertices all begin in one part, in one batch.
    star = sp.csr_array((np.ones(400), (np.arange(400), np.zeros(400, int))), (400, 400))
    for parts in (8, 130):
        initial = np.zeros(400, int)
        _, result = partition(star, parts, "stream", initial=initial, imbalance=0.3, preset="fast")
        assert result["imbalance_met"]


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_shares_and_fixed_vertices_whatever_the_graph(data):
    n, k = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 7))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    A = sp.random_array((n, n), density=0.1, rng=rng).astype(bool).tocsr()
    fixed = np.where(
        rng.random(n) < data.draw(st.sampled_from([0.1, 0.6, 1])), rng.integers(k, size=n), -1
    )
    weights, shares = rng.integers(1, 5, n), rng.choice([1e-3, 1, 2, 50], k)
    for method in ("gvb", "stream", "block", "random"):
        chosen = {"shares": shares, "fixed": fixed, "weights": weights, "imbalance": 0.3}
        labels, result = partition(A, k, method, **chosen, threads=2)
        assert ((labels == fixed) | (fixed < 0)).all()
        assert set(labels) <= set(range(k))
        np.testing.assert_array_equal(partition(A, k, method, **chosen, threads=1)[0], labels)
        loads = np.bincount(labels, weights=weights, minlength=k)
        assert (
            result["imbalance_met"]
            == (loads <= 1.3 * loads.sum() * shares / shares.sum() + 1e-6).all()
        )
        if method in ("gvb", "stream"):
            again = partition(A, k, method, initial=rng.integers(k, size=n), **chosen)[0]
            assert ((again == fixed) | (fixed < 0)).all()


def test_only_parts_that_are_alike_change_nodes():
    A = community_graph(800, 8, seed=4)
    shares, fixed = np.array([1, 2] * 4), np.full(800, -1)
    fixed[:3] = [3, 3, 6]
    for method in ("gvb", "stream"):
        labels, result = partition(A, 8, method, nodes=2, shares=shares, fixed=fixed)
        assert labels[:3].tolist() == [3, 3, 6]
        assert result["imbalance_met"]
    assert partition(A, 8, "metis", nodes=2, shares=shares)[1]["nnz_imbalance"] < 0.3
    mixed = labels.copy()
    mixed[labels == 1], mixed[labels == 7] = 7, 1
    placed = place(A, mixed, nodes=2, shares=shares)
    even = [np.bincount(one, minlength=8)[::2].sum() for one in (mixed, placed)]
    assert even[0] == even[1]
    stays = np.where(np.arange(800) < 9, mixed, -1)
    placed = place(A, mixed, nodes=2, fixed=stays)
    assert np.array_equal(placed[:9], mixed[:9])
    with pytest.raises(InputError, match="is fixed to part"):
        place(A, mixed, nodes=2, fixed=(stays + 1) % 8)


@pytest.mark.parametrize("objective", ["both", "cover"])
def test_fixed_vertices_pull_their_communities_along(objective):
    # Three vertices of each of eight communities are fixed to another part than chance gives it.
    k, order = 8, np.random.default_rng(2).permutation(8)
    A = community_graph(1600, k, seed=3)
    community, _ = partition(A, k)
    fixed = np.full(1600, -1)
    for part in range(k):
        fixed[np.flatnonzero(community == part)[:3]] = order[part]
    for method in ("gvb", "stream") if objective == "both" else ("gvb",):
        labels, result = partition(A, k, method, objective=objective, fixed=fixed, imbalance=0.1)
        # Covers have better parts than the communities: their total is 6 % less.
        assert (labels == order[community]).mean() > (0.95 if objective == "both" else 0.85)
        assert result["imbalance_met"]


@pytest.mark.parametrize("method", FIXING)
def test_fixed_vertices_stay_where_no_balance_is_possible(method):
    A = community_graph(300, 3, seed=6)
    fixed = np.where(np.arange(300) % 2, 0, -1)
    labels, result = partition(A, 3, method, fixed=fixed, threads=2)
    assert (labels[1::2] == 0).all()
    assert set(labels[::2]) >= {1, 2}
    assert not result["imbalance_met"]


def brute_force(A, k, fixed, bounds):
    """The least total volume of all partitions within the bounds."""
    lengths, best = np.diff(A.indptr), np.inf
    for free in itertools.product(range(k), repeat=int((fixed < 0).sum())):
        labels = fixed.copy()
        labels[fixed < 0] = free
        if (np.bincount(labels, weights=lengths, minlength=k) <= bounds).all():
            best = min(best, column_volumes(A, labels, k)[0].sum())
    return best


@pytest.mark.parametrize("seed", range(6))
def test_small_problems_are_solved_exactly(seed):
    rng = np.random.default_rng(seed)
    A = sp.random_array((11, 11), density=0.2, rng=rng) + sp.eye_array(11)
    A = sp.csr_array(A + A.T).astype(bool)
    shares, fixed = np.array([2.0, 1.0]), np.full(11, -1)
    fixed[rng.choice(11, 3, replace=False)] = [0, 1, 1]
    _, result = partition(A, 2, "gvb", shares=shares, fixed=fixed, imbalance=0.2, preset="strong")
    assert result["imbalance_met"]
    assert result["total"] == brute_force(A, 2, fixed, 1.2 * A.nnz * shares / 3)


def test_out_of_memory_says_for_what(monkeypatch):
    def too_much(problem):
        raise MemoryError("std::bad_alloc")

    A = Adjacency.of(community_graph(100, 2, 0))
    monkeypatch.setitem(METHODS._values, "gvb", too_much)
    with pytest.raises(MemoryError, match=r"^method gvb for 100 vertices, .* nonzeros, 2 parts$"):
        partition(A, 2)
    with pytest.raises(MemoryError):  # of native code
        _native.count_volumes(A.indptr, A.indices, np.zeros(100, np.int32), 2**50, 1, 1 << 20, None)


@pytest.mark.parametrize("method", ["metis", "kahypar", "mtkahypar", "kaminpar"])
def test_a_missing_package_is_named_with_its_extra(method, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(packages.importlib, "import_module", missing)
    packages._mtkahypar_threads.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'spgnn\[partition\]'"):
        partition(community_graph(100, 2, 0), 2, method)


def test_training_vertices_can_be_balanced():
    A, mask = community_graph(2000, 4, seed=2), np.arange(2000) < 400
    labels, result = partition(
        A, 4, "gvb", balance=("nnz", "train"), train_mask=mask, imbalance=0.1
    )
    assert np.bincount(labels[mask], minlength=4).max() <= 110
    assert result["imbalance_met"]


# Arguments that make no sense: each is refused in one line that says what would.

DENSE = sp.csr_array(np.ones((30, 30)))
EYE = sp.eye_array(3, dtype=bool).tocsr()
MANY = sp.eye_array(1_050_000, dtype=bool).tocsr()
PARTITION = [
    ({"k": 0}, r"k must be an integer in \[1, 65536\], got int 0"),
    ({"k": 65537}, r"k must be an integer in \[1, 65536\]"),
    ({"k": 2.0}, "k must be an integer in .*, got float 2.0"),
    ({"A": MANY, "k": 1 << 20 | 1}, r"parts of gvb must be an integer in \[1, 1048576\]"),
    ({"threads": 0}, r"threads must be an integer in \[1, 1024\]"),
    ({"method": "magic"}, "method magic: choose one of block, random, metis"),
    ({"objective": "sent"}, "objective sent: choose one of both, send, cover"),
    ({"objective": "column"}, "objective column is now both"),
    ({"preset": "defualt"}, "did you mean 'default'"),
    ({"imbalance": 5}, r"imbalance must be a number in \[0, 1\], got int 5"),
    ({"imbalance": "a"}, "imbalance must be a number in .*, got str 'a'"),
    ({"seed": -1}, "seed must be an integer"),
    ({"objective": "cover", "method": "metis"}, "method metis takes no objective cover"),
    ({"initial": np.zeros(30, int), "method": "metis"}, "cannot refine labels"),
    ({"initial": np.zeros(3, int)}, "3 labels for 30 vertices"),
    ({"balance": ("nnz", "edges")}, "balance edges: choose one of"),
    ({"balance": ("nnz", "nnz")}, "names a quantity twice"),
    ({"balance": "train"}, "needs a train mask, .* has none"),
    ({"balance": "train", "train_mask": np.ones(30)}, r"bool \[30\]; the graph has float64 \[30\]"),
    ({"balance": ("nnz", "vertices"), "method": "metis"}, "one weight only"),
    ({"shares": [1.0]}, "1 shares for 2 parts; there must be one for each"),
    ({"shares": [1, 0]}, "the share of part 1 is 0"),
    ({"shares": [np.nan, 1]}, r"shares\[0\] is nan; shares are finite numbers that are not neg"),
    ({"weights": [1, 2]}, "2 weights for 30 vertices"),
    ({"weights": np.zeros(30)}, "weights are all 0"),
    ({"weights": torch.ones(30, 1)}, r"vector of numbers, got float64 \[30, 1\]"),
    ({"weights": np.ones(30), "method": "pagraph"}, "pagraph .* takes no shares or weights"),
    *(({"weights": [1] * 29 + [bad]}, r"weights\[29\] is") for bad in (-1, np.nan, np.inf)),
    ({"shares": [1, 2], "method": "pagraph"}, "pagraph .* takes no shares"),
    ({"fixed": np.full(30, 2)}, r"fixed label 2 of vertex 0 is outside \[-1, 2\)"),
    ({"fixed": np.zeros(30)}, "fixed must be a vector of integers"),
    (
        {"fixed": np.zeros(30, int), "method": "metis"},
        "metis takes no fixed vertices; use one of gvb",
    ),
    ({"k": 4, "nodes": 3}, "nodes 3 must divide the number of parts, which is 4"),
    ({"k": 4, "nodes": 0}, "nodes must be an integer of at least 1"),
]
CUT = [
    ({"edges": [0, 1]}, "2 edge labels for 3 nonzeros"),
    ({"edges": [0, 1, 2]}, r"edge label 2 of nonzero 2 is outside \[0, 2\)"),
    ({"edges": [0.0, 1.0, 1.0]}, "edge labels must be a vector of integers"),
    ({"seed": -1}, "seed must be an integer"),
]
REPORT = [
    (([0, 1], 2), "2 labels for 3 vertices"),
    (([0, 1, 2], 2), "label 2 of vertex 2 is outside"),
    (([0, -1, 0], 2), "label -1 of vertex 1"),
    (([0.0, 1.0, 0.0], 2), "vector of integers"),
    (([1, 2, 2],), "labels begin at 1, and parts at 0: subtract as much, or give the number"),
    (([0, 0, 2**20], None), r"k must be an integer in \[1, 65536\], got int 1048577"),
]
CALLS = [
    *((lambda o=o: partition(**{"A": DENSE, "k": 2} | o), words) for o, words in PARTITION),
    *((lambda o=o: cut_vertices(EYE, 2, **o), words) for o, words in CUT),
    *((lambda o=o: report(EYE, *o), words) for o, words in REPORT),
]


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_arguments(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


ZEROS = np.zeros(3, np.int32)
MATRICES = [
    (np.ones((3, 3)), "cannot partition a ndarray"),
    (None, "cannot partition a NoneType"),
    (sp.coo_array([1, 0, 1]), "the matrix is 3; a partition"),
    (sp.csr_array((3, 4)), "the matrix is 3 × 4"),
    (Arrays(np.array([0, 1, 2]), ZEROS[:2]), "indptr must have 4 entries, got 3"),
    (Arrays(np.array([0, 2, 1, 3]), ZEROS), "indptr must rise from 0"),
    (Arrays(np.array([1, 1, 2, 3]), ZEROS), "indptr must rise from 0"),
    (Arrays(np.array([0.0, 1, 2, 3]), ZEROS), "indptr must be a vector of int"),
    (Arrays(np.array([0, 1, 2, 3]), np.zeros(3)), "indices must be a vector of integers"),
    (Arrays(np.array([0, 1, 2, 3]), np.full(3, 2**32)), "column index 4294967296 outside"),
    (Arrays(None, None, (2**31, 2**31)), "at most 2³¹ − 1 can be partitioned"),
]


@pytest.mark.parametrize(("A", "words"), MATRICES)
def test_matrices(A, words):
    for call in (partition, lambda A, _: report(A, [0, 0, 0]), cut_vertices):
        with pytest.raises(InputError, match=words):
            call(A, 2)


def test_columns_of_mapped_files_are_checked_where_they_are_used():
    A = Arrays(np.array([0, 1, 2]), np.array([0, 7], np.int32), (2, 2))
    calls = [lambda o=o: cut_vertices(A, 2, **o) for o in ({}, {"labels": [0, 1]})]
    for call in (*calls, lambda: cut_vertices(A, 2, edges=[0, 1]), lambda: report(A, [0, 1])):
        with pytest.raises(InputError, match=r"row 1 has column index 7, outside \[0, 2\)"):
            call()


@pytest.mark.parametrize("labels", [[0.0, 1.0], [[0, 1]], ["0"], [[0], [1, 2]], 3])
def test_labels(tmp_path, labels):
    path = tmp_path / "labels"
    for call in (permutation, lambda labels: write_labels(path, labels)):
        with pytest.raises(InputError, match="labels must be a vector of integers"):
            call(labels)
    with pytest.raises(InputError, match="labels must be a vector of integers"):
        part_sizes(labels, 2)
    with pytest.raises(InputError, match="must fit 32 bits"):
        write_labels(path, [2**31])
    assert not path.exists()


# The semi-external partitioner: in bounds, deterministic, and well under random and block.


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "communities"
    directory = generate_block_model(path, 20_000, 300_000, community=250, district=8, seed=3)
    return directory.pattern()


@pytest.mark.parametrize("parts", [2, 64])
def test_volume_is_well_under_random_and_block(mapped, parts):
    labels, found = partition(mapped, parts, "stream")
    assert found["nnz_imbalance"] <= 0.05
    assert found["imbalance_met"]
    for method in ("random", "block"):
        _, other = partition(mapped, parts, method)
        assert found["total_volume"] < 0.75 * other["total_volume"]
        assert found["max_send"] < 0.85 * other["max_send"]
    again = report(mapped, labels, parts)
    assert again["covers"] == found["covers"]
    assert again["cover_volume"]["minimum"] is None


@pytest.mark.parametrize("preset", ["fast", "default", "strong"])
def test_labels_do_not_depend_on_the_threads(mapped, preset):
    one, three = (partition(mapped, 16, "stream", preset=preset, threads=t)[0] for t in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_a_graph_on_disk_and_in_memory_give_the_same(mapped):
    ones, arrays = np.ones(len(mapped.indices), bool), (mapped.indices, mapped.indptr)
    matrix = sp.csr_array((ones, *map(np.array, arrays)), shape=mapped.shape)
    from_disk, disk_report = partition(mapped, 8, "stream")
    from_memory, memory_report = partition(CSR.from_scipy(matrix), 8, "stream")
    np.testing.assert_array_equal(from_disk, from_memory)
    assert disk_report["covers"]["column"] == memory_report["covers"]["column"]
    assert report(mapped, from_disk, 8, minimum=True)["covers"] == memory_report["covers"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_nonzeros(tmp_path):
    """Thirty times the nonzeros, in a file of 48 MB, take 8 MB more at most."""
    script = """
import sys
from pathlib import Path
from spgnn.data.shards import open_shards
from spgnn.partition import partition
graph = open_shards(Path(sys.argv[1])).pattern()
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
before, peak = resident(), 0
def watch(stage, done, total):
    global peak
    if stage == "streaming":
        peak = max(peak, resident() - before)
partition(graph, 16, "stream", threads=1, progress=watch)
print(peak)
"""
    peaks = []
    for nonzeros in (400_000, 12_000_000):
        path = tmp_path / str(nonzeros)
        generate_block_model(path, 20_000, nonzeros, community=250, district=8, seed=3)
        command = [sys.executable, "-c", script, str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    assert 0 < peaks[1] < peaks[0] + 8192, peaks


def test_of_a_directed_graph_only_what_rows_need_counts():
    """Vertices that need the same rows belong together, not those whom the same vertices need."""
    n, groups, rng = 4000, 40, np.random.default_rng(0)
    needing = np.repeat(np.arange(n), 8)
    # All needs of a vertex lie in one of 40 groups, which says nothing of the group it is in.
    group_needed = rng.integers(0, groups, n)[needing]
    needed = group_needed * (n // groups) + rng.integers(0, n // groups, len(needing))
    A = sp.csr_array((np.ones(len(needing), bool), (needing, needed)), shape=(n, n))
    _, directed = partition(A, 8, "stream")
    labels, _ = partition(A + A.T, 8, "stream")
    assert directed["total_volume"] < 0.9 * report(A, labels, 8)["total_volume"]
    assert directed["imbalance_met"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("method", ["stream", "random"])
def test_native_code_can_be_interrupted(mapped, method, threads):
    calls = []

    def interrupt(stage, done, total):
        calls.append(stage)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(mapped, 8, method, threads=threads, progress=interrupt)
    assert calls == ["streaming" if method == "stream" else "counting volumes"]


def test_refinement_keeps_the_bound(mapped):
    labels, before = partition(mapped, 16, "random", seed=1)
    for initial in (labels, np.zeros_like(labels)):
        _, refined = partition(mapped, 16, "stream", initial=initial)
        assert refined["nnz_imbalance"] <= 0.05
        assert refined["total_volume"] < before["total_volume"]


def test_a_broken_index_on_disk_is_an_error_not_a_crash(tmp_path):
    A = community_graph(500, 4, 0)
    write_shards(Graph("g", CSR.from_scipy(A.astype(bool)), False), None, 1, tmp_path / "graph")
    indices = np.load(tmp_path / "graph" / "part-00000" / "indices.npy")
    indices[1234] = 500
    rewrite(tmp_path / "graph", 0, "indices", indices)
    graph = open_shards(tmp_path / "graph").pattern()
    for method in ("stream", "block", "metis", "kahypar", "gvb"):
        with pytest.raises(InputError, match="500"):
            partition(graph, 4, method)


# Partitions of two levels, and rows counted by level.


@given(
    matrices(), st.sampled_from([(1, 1), (4, 2), (6, 3), (6, 1), (5, 5), (130, 2)]),
    st.integers(0, 2**32 - 1), st.integers(1, 3),
)  # fmt: skip
def test_levels_are_counted_by_definition(A, shape, seed, threads):
    parts, nodes = shape
    size = parts // nodes
    labels = np.random.default_rng(seed).integers(0, parts, A.shape[0])
    few = parts < 10  # or else the reference is too slow
    levels = report(A, labels, parts, nodes=nodes, minimum=few, threads=threads)["levels"]
    rows, columns = A.nonzero()
    pairs = {(v, labels[i]) for i, v in zip(rows, columns, strict=True) if labels[i] != labels[v]}
    inside, flat = np.zeros((2, parts), int), np.zeros((2, parts), int)
    for v, p in pairs:
        counts = inside if p // size == labels[v] // size else flat
        counts[0, labels[v]] += 1
        counts[1, p] += 1
    between, arriving = np.zeros(parts, int), np.zeros(nodes, int)
    for v, node in {(v, p // size) for v, p in pairs if p // size != labels[v] // size}:
        between[labels[v]] += 1
        arriving[node] += 1
    minimum = levels.pop("minimum", {})
    assert levels.pop("nodes") == nodes
    assert (len(levels), len(minimum)) == (3, 2 if few else 0)
    between_nodes = [(levels["between_flat"], flat), (levels["between"], (between, arriving))]
    inside_nodes = [(levels["inside"], inside)]
    if few:
        blocks, node = dense_blocks(A, labels, parts, "minimum"), np.arange(parts) // size
        near = blocks * (node[:, None] == node)
        inside_nodes.append((minimum["inside"], (near.sum(axis=1), near.sum(axis=0))))
        far = blocks - near
        between_nodes.append((minimum["between_flat"], (far.sum(axis=1), far.sum(axis=0))))
    for figures, (sent, received) in between_nodes + inside_nodes:
        assert (figures["send"], figures["recv"]) == (sent.tolist(), received.tolist())
        assert (figures["total"], figures["max_send"]) == (sent.sum(), sent.max())
        # What enters a node once is no one part's.
        moved = np.maximum(sent, received) if len(sent) == len(received) else sent
        assert figures["busiest"] == moved.max() == moved[figures["busiest_part"]]
    for figures, ends in between_nodes:
        by_node = [rows.reshape(nodes, -1).sum(axis=1).max() for rows in ends]
        assert figures["busiest_node"] == max(by_node)


@pytest.mark.parametrize(
    ("preset", "objective"), [("fast", "both"), ("default", "send"), ("fast", "cover")]
)
def test_both_levels_keep_the_bound_and_less_crosses_nodes(preset, objective):
    A = uneven_communities(1200, seed=3)
    A = sp.csr_array(A + sp.eye_array(1200, dtype=bool))
    options = {"preset": preset, "objective": objective, "imbalance": 0.1}
    labels, found = partition(A, 12, nodes=3, threads=1, **options)
    again, _ = partition(A, 12, nodes=3, threads=3, **options)
    np.testing.assert_array_equal(labels, again)
    assert found["imbalance_met"]
    assert found["empty_parts"] == 0
    if objective != "cover":
        flat, _ = partition(A, 12, **options)
        apart = report(A, flat, 12, nodes=3)["levels"]["between"]["total"]
        assert found["levels"]["between"]["total"] < apart


def score_of_places(A, labels, parts, nodes):
    """Rows that leave nodes: all, and of the busiest part and node as if all were as busy."""
    blocks = dense_blocks(A, labels, parts, "column")
    node = np.arange(parts) // (parts // nodes)
    away = blocks * (node[:, None] != node)
    ends = np.stack((away.sum(axis=1), away.sum(axis=0)))
    by_node = ends.reshape(2, nodes, -1).sum(axis=2)
    return away.sum() + parts * ends.max() + nodes * by_node.max()


@given(matrices(), st.sampled_from([(4, 2), (8, 4), (8, 2), (16, 4)]), st.integers(0, 2**32 - 1))
def test_places_on_nodes_are_no_worse_than_the_order_alone(A, shape, seed):
    parts, nodes = shape
    labels = np.random.default_rng(seed).integers(0, parts, A.shape[0])
    ordered, placed = place(A, labels, parts), place(A, labels, parts, nodes=nodes)
    for renamed in (ordered, placed):
        pairs = set(zip(labels.tolist(), renamed.tolist(), strict=True))
        assert len(pairs) == len(set(labels.tolist())) == len(set(renamed.tolist()))
    scores = [score_of_places(A, one, parts, nodes) for one in (placed, ordered)]
    assert scores[0] <= scores[1]


def test_swaps_find_the_best_places_of_few_parts():
    """Random graphs: against all 15 ways to put six parts on three nodes."""
    exact = 0
    for seed in range(20):
        A = random_pattern(60, 3, seed, skew=1.0)
        labels = np.random.default_rng(seed).integers(0, 6, 60)
        places = set(itertools.permutations(range(6)))
        least = min(
            score_of_places(A, np.array(order)[labels], 6, 3)
            for order in places
            if all(order.index(2 * n) < order.index(2 * n + 1) for n in range(3))
        )
        found = score_of_places(A, place(A, labels, 6, nodes=3), 6, 3)
        assert found <= 1.1 * least
        exact += found == least
    assert exact >= 14


@pytest.mark.parametrize("method", ["metis", "metis-volume", "stream", "gvb"])
def test_parts_of_every_method_find_their_nodes(method):
    """Communities in pairs that have some edges more: of 16 parts, two are a node."""
    blocks = [community_graph(200, 2, seed) for seed in range(8)]
    A = sp.csr_array(sp.block_diag(blocks, format="csr").astype(bool))
    _, found = partition(A, 16, method, nodes=8, seed=3)
    assert found["levels"]["between"]["total"] == 0
    # And without nodes, neighbours in number exchange most.
    assert report(A, partition(A, 16, method)[0], 16, nodes=8)["levels"]["between"]["total"] == 0


def test_a_machine_says_what_nodes_are_and_what_leaving_one_costs(tmp_path):
    """Four ranks a node, whose links inside are 6 times as fast."""
    folder = Path(__file__).parents[2] / "experiments" / "machines"
    machine = read_machine(folder / "perlmutter_a100.json")
    slow = replace(machine.levels.inside, alltoallv=Link(0, 0, 1e9))
    fast = replace(slow, alltoallv=Link(0, 0, 6e9))
    machine = replace(machine, ranks_a_node=4, levels=Levels(fast, slow))
    path = tmp_path / "machine.json"
    write_machine(machine, path)
    assert levels_of(path, 12) == levels_of(machine, 12) == (3, 6)
    assert levels_of(path, 12, 2) == (2, 6)
    assert levels_of(path, 3) == (1, 6)
    A = uneven_communities(1200, seed=3)
    options = {"preset": "fast", "seed": 1, "threads": 1}
    _, found = partition(A, 12, machine=path, **options)
    assert found["levels"]["nodes"] == 3
    slow_inside = replace(machine, levels=Levels(slow, slow))
    _, equal = partition(A, 12, machine=slow_inside, **options)
    busiest = [one["levels"]["between_flat"]["busiest"] for one in (found, equal)]
    assert busiest[0] < busiest[1]
    with pytest.raises(InputError, match=r"its 4 ranks a node do not divide .* 6; give nodes"):
        partition(A, 6, machine=path)
    alike = replace(machine, levels=Levels(fast))
    assert levels_of(alike, 6) == (None, OUTSIDE)
    with pytest.raises(InputError, match="knows no links between nodes"):
        partition(A, 6, machine=alike, nodes=2)


@pytest.mark.parametrize("nodes", [1, 4])
def test_one_node_or_one_part_each_is_an_ordinary_partition(nodes):
    A = community_graph(200, 4, seed=0)
    labels, found = partition(A, 4, nodes=nodes)
    np.testing.assert_array_equal(labels, partition(A, 4)[0])
    level = "inside" if nodes == 1 else "between"
    assert found["levels"][level]["total"] == found["total_volume"]


def test_a_node_may_have_few_vertices():
    """A row as heavy as all others, and ranks without any vertex."""
    dense = np.eye(9, dtype=bool)
    dense[0] = True
    labels, found = partition(sp.csr_array(dense), 6, nodes=2)
    assert found["levels"]["nodes"] == 2
    assert set(labels) <= set(range(6))


def test_gvb_keeps_small_communities_together():
    """Against planted communities, packed in any order: 0.87 with, 0.91 without regard to them."""
    n, size, k = 16_000, 20, 4
    random = np.random.default_rng(1)
    v = np.arange(n)
    near = np.repeat(v // size * size, 4) + random.integers(0, size, 4 * n)
    row = np.concatenate([np.repeat(v, 4), v])
    column = np.concatenate([near, random.integers(0, n, n)])
    name = random.permutation(n)
    one_way = sp.coo_matrix((np.ones(5 * n), (name[row], name[column])), (n, n)).tocsr()
    A = sp.csr_matrix(one_way + one_way.T + sp.eye(n))
    planted = np.empty(n, np.int32)
    planted[name] = v // size % k
    limit = 0.89 * report(A, planted, k)["total_volume"]
    for seed in range(3):
        assert partition(A, k, "gvb", preset="fast", seed=seed)[1]["total_volume"] < limit


@pytest.mark.parametrize("hops", [1, 2])
def test_pagraph_is_its_score(hops):
    """Against sets: the best score, then fewest training vertices; others go where they are."""
    A, k = community_graph(200, 3, seed=4), 3
    train = np.random.default_rng(1).random(200) < 0.4
    labels, result = partition(A, k, "pagraph", train_mask=train, hops=hops, balance=("train",))
    given, held = [set() for _ in range(k)], [set() for _ in range(k)]
    for v in np.flatnonzero(train).tolist():
        reached, frontier = {v}, {v}
        for _ in range(hops):
            frontier = {int(u) for w in frontier for u in A[[w]].indices}
            reached |= frontier
        scores = [
            len(given[i] & reached) * (train.sum() / k - len(given[i])) / max(len(held[i]), 1)
            for i in range(k)
        ]
        best = [i for i in range(k) if scores[i] == max(scores)]
        part = min(best, key=lambda i: len(given[i]))
        assert labels[v] == part
        given[part].add(v)
        held[part] |= reached
    for v in np.flatnonzero(~train).tolist():
        holders = [i for i in range(k) if v in held[i]]
        assert not holders or labels[v] in holders
    assert max(map(len, given)) <= np.ceil(train.sum() / k)
    assert result["imbalance_met"]
    with pytest.raises(InputError, match=r"method pagraph needs a train mask, bool \[200\]"):
        partition(A, k, "pagraph", train_mask=train[:5])
