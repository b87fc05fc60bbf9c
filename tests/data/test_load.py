from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.data import load_dataset
from spgnn.data.formats.npz import write_npz
from spgnn.data.sets.generators import block_model
from tests.data.strategies import assert_canonical, assert_same_csr, assert_same_vertices, pattern

REAL = os.environ.get("SPGNN_DATA")


def test_the_built_in_set():
    graph = load_dataset("sbm")
    assert (graph.name, graph.vertices, graph.features, graph.classes) == ("sbm", 20_000, 64, 8)
    assert 297_000 <= graph.edges <= 300_000
    assert graph.splits == 1
    assert not torch.equal(load_dataset("sbm", seed=1).y, graph.y)


def test_generators_by_name():
    assert load_dataset("rmat-6-4").vertices == 64
    assert load_dataset("papers-like@0.00001").features == 128
    with pytest.raises(InputError, match=r"what follows @ must be as in reddit-like@0\.01"):
        load_dataset("reddit-like@small")
    with pytest.raises(InputError, match=r"must be in \(0, 1\]"):
        load_dataset("reddit-like@7")


def test_named_sets_come_from_the_data_directory(tmp_path, monkeypatch):
    graph = block_model(30, 100, features=2, seed=1, name="mine")
    write_npz(graph, tmp_path / "mine.npz")
    for again in (load_dataset("mine", tmp_path), load_dataset(tmp_path / "mine.npz")):
        assert_same_csr(again.adjacency, graph.adjacency)
        assert_same_vertices(again, graph)
    monkeypatch.setenv("SPGNN_DATA", str(tmp_path))
    assert load_dataset("mine").name == "mine"


def test_unknown_names_list_what_there_is(tmp_path):
    with pytest.raises(InputError, match="no data set 'corra': neither a file, nor") as caught:
        load_dataset("corra", tmp_path)
    assert "cora, citeseer, pubmed, reddit, ogbn-arxiv" in str(caught.value)
    with pytest.raises(InputError, match="no such file"):
        load_dataset(tmp_path / "none")
    with pytest.raises(InputError, match="no such file"):
        load_dataset("none.mtx", tmp_path)


@pytest.mark.skipif(REAL is None, reason="SPGNN_DATA is not set")
@pytest.mark.parametrize(
    ("name", "vertices", "edges", "features", "classes", "train"),
    [
        ("cora", 2708, 10556, 1433, 7, 140),
        ("citeseer", 3327, 9104, 3703, 6, 120),
        ("nell", 65755, 251550, 5414, 186, 1054),
        ("squirrel", 5201, 396706, 2089, 5, 2496),
        ("soc-slashdot0902", 82168, 948464, 0, 0, None),
    ],
)
def test_real_sets(name, vertices, edges, features, classes, train):
    graph = load_dataset(name)
    found = (graph.vertices, graph.edges, graph.features, graph.classes)
    assert found == (vertices, edges, features, classes)
    assert_canonical(graph.adjacency.__class__(*first_rows(graph.adjacency, 200)))
    if train is None:
        assert graph.train_mask is None
    else:
        assert int(graph.select_split(0).train_mask.sum()) == train
    if not graph.directed and vertices < 5000:
        dense = pattern(graph.adjacency)
        np.testing.assert_array_equal(dense, dense.T)


def first_rows(A, rows):
    end = int(A.indptr[rows])
    return A.indptr[: rows + 1], A.indices[:end], (rows, A.shape[1])


@pytest.mark.skipif(REAL is None, reason="SPGNN_DATA is not set")
def test_a_real_rectangular_matrix_is_refused():
    path = Path(str(REAL)) / "hg-ibm14.npz"
    with pytest.raises(InputError, match="152772 × 147605; a graph needs as many rows as columns"):
        load_dataset(path)
