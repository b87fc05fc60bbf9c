"""Stand-ins of papers' graphs: their sizes, their communities, their names, larger copies."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from paper.expansion import expanded, reduced
from systems.stand_ins import STAND_INS, stand_in

from spgnn import CSR, InputError, memory
from spgnn.data import Graph, load_dataset
from spgnn.partition import partition
from spgnn.partition.volume import count_volumes
from tests.data.graphs import assert_canonical, assert_same_csr, assert_same_vertices


@pytest.mark.parametrize("name", STAND_INS)
def test_stand_ins_have_the_shape_of_the_original(name):
    shape = STAND_INS[name]
    scale = 20_000 / shape.edges
    graph = stand_in(name, scale)
    assert graph.vertices == max(round(shape.vertices * scale), 1)
    assert (graph.features, graph.classes <= shape.classes) == (shape.features, True)
    room = graph.vertices * (graph.vertices - 1)
    assert graph.edges >= min(0.95 * 20_000, 0.9 * room)


CUTS = [("amazon-like", 0.002, 16, 0.08, 0.3), ("protein-like", 0.001, 4, 0.0, 0.01)]


@pytest.mark.parametrize(("name", "scale", "parts", "low", "high"), CUTS)
def test_cuts_are_those_of_the_paper(name, scale, parts, low, high):
    """Table 2's total at p = 16 is 0.19 n rows, sent unequally; Protein's cut nearly vanishes."""
    graph, shape = stand_in(name, scale, features=0), STAND_INS[name]
    assert abs(graph.edges * shape.vertices / (graph.vertices * shape.edges) - 1) < 0.02
    labels = partition(graph.adjacency, parts, "metis")[0]
    send = count_volumes(graph.adjacency, labels, parts, minimum=False).column.send
    assert low <= send.sum() / graph.vertices <= high
    assert send.max() > 1.4 * send.mean()


WRONG = "@ @small @, @0.01, @0.01,0.01 @seed=1,seed=1 @seed=-1 @0.01@seed=1"


def test_stand_ins_by_name(monkeypatch):
    """The scale and a seed may follow, in any order."""
    zero, one = (load_dataset("papers-like@0.00001", seed=seed) for seed in (0, 1))
    assert zero.features == 128
    assert not torch.equal(zero.adjacency.indices[:1000], one.adjacency.indices[:1000])
    for name in ("papers-like@0.00001,seed=1", "papers-like@seed=1,0.00001"):
        named = load_dataset(name, seed=7)
        assert_same_csr(named.adjacency, one.adjacency)
        assert_same_vertices(named, one)
        assert named.name == f"{zero.name},seed=1"
    for after in WRONG.split():
        with pytest.raises(InputError, match=r"': what follows @ must be as in reddit-like@0.01 "):
            load_dataset(f"reddit-like{after}")
    for scale in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match=r"must be in \(0, 1\]"):
            stand_in("reddit-like", scale)
    with pytest.raises(InputError, match="did you mean 'reddit-like'"):
        load_dataset("redit-like")
    monkeypatch.setattr(memory, "memory_limit", lambda: 2**20)
    with pytest.raises(InputError, match=r"papers-like@1: .*: needs .* GiB of memory"):
        load_dataset("papers-like@1")


@pytest.mark.parametrize(("copies", "directed"), [(2, False), (4, True), (37, False)])
def test_an_expanded_graph_is_a_randomized_kronecker_product(copies, directed):
    """Of the matrix with its largest singular values: blocks are shuffled, and entries dropped."""
    rng = np.random.default_rng(copies)
    dense = np.triu(rng.random((37, 37)) < 0.2, 1) * rng.integers(1, 9, (37, 37))
    dense = dense if directed else dense + dense.T
    matrix = sp.csr_array(dense.astype(np.float32))
    y = torch.from_numpy(rng.integers(4, size=37))
    small = Graph("small", CSR.from_scipy(matrix), directed=directed, y=y)
    graph = expanded(small, copies, train=0.2, seed=3)
    R = np.abs(signed := reduced(matrix, copies, 3))
    singular = [np.linalg.svd(X, compute_uv=False)[:copies] for X in (signed, dense)]
    np.testing.assert_allclose(*singular, atol=1e-5)
    assert_canonical(graph.adjacency)
    whole = graph.adjacency.to_scipy().toarray()
    assert directed or np.array_equal(whole, whole.T)
    blocks = whole.reshape(copies, 37, copies, 37).swapaxes(1, 2)
    full = blocks[np.unravel_index(R.argmax(), R.shape)]
    for sums in (np.count_nonzero, np.sum, np.max):
        for axis in (0, 1):
            np.testing.assert_array_equal(*(np.sort(sums(X, axis=axis)) for X in (full, dense)))
    likely, drawn = R / R.max() * matrix.nnz, np.count_nonzero(blocks, axis=(2, 3))
    assert np.all(np.abs(drawn - likely) <= 6 * np.sqrt(likely) + 6)
    np.testing.assert_array_equal(graph.y, np.tile(y.numpy(), copies))
    shares = [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]
    ends = [round(share * graph.vertices) for share in (0, 0.2, 0.22, 0.24)]
    assert shares == np.diff(ends).tolist()
    assert not bool((graph.train_mask & (graph.val_mask | graph.test_mask)).any())


def test_expanded_graphs_by_name():
    graph, small = (load_dataset(f"{name}rmat-5-4@seed=2") for name in ("expanded-3-", ""))
    assert (graph.vertices, graph.adjacency.values) == (3 * small.vertices, None)
    assert small.edges < graph.edges < 9 * small.edges
    assert load_dataset("expanded-2-expanded-2-rmat-5-4@seed=2").vertices == 4 * small.vertices
    with pytest.raises(InputError, match=r"has 2 to .* copies, got 1"):
        load_dataset("expanded-1-sbm")
    with pytest.raises(InputError, match="no data set 'nothing'"):
        load_dataset("expanded-2-nothing")
