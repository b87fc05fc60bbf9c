from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import CSR, InputError, memory
from spgnn import registry as registries
from spgnn.data import Graph, GraphFile, MemorySource, load_dataset
from spgnn.data.generators import block_model
from spgnn.data.npz import write_npz
from spgnn.graph.vertices import check_table
from tests.data.graphs import assert_canonical, assert_same_csr, assert_same_vertices, pattern
from tests.real import each, file_of, needs

# Vertices, edges, features, classes, and training vertices of the first split.
REAL = {
    "cora": (2708, 10556, 1433, 7, 140),
    "citeseer": (3327, 9104, 3703, 6, 120),
    "nell": (65755, 251550, 5414, 186, 1054),
    "squirrel": (5201, 396706, 2089, 5, 2496),
    "soc-slashdot0902": (82168, 948464, 0, 0, None),
}


@pytest.mark.parametrize("plain", ["sbm", "rmat-6-4"])
def test_a_name_may_say_the_seed(plain):
    """A seed of a run changes the graph only where a caller passes it on, and the name has none."""
    name = f"{plain}@seed=1"
    named, zero, one = load_dataset(name), load_dataset(plain), load_dataset(plain, seed=1)
    assert_same_csr(named.adjacency, one.adjacency)
    assert_same_vertices(named, one)
    assert_same_csr(load_dataset(name, seed=7).adjacency, one.adjacency)
    assert_same_csr(load_dataset(plain, seed=0).adjacency, zero.adjacency)
    assert not torch.equal(zero.adjacency.indices[:1000], one.adjacency.indices[:1000])
    assert named.name == name
    assert_same_csr(load_dataset(named.name).adjacency, one.adjacency)


WRONG = "@ @0.5 @, @seed=1, @seed=1,seed=1 @seed=-1 @seed= @seed=9999999999 @seed=1@seed=1"


@pytest.mark.parametrize(
    "name", [*(f"sbm{after}" for after in WRONG.split()), "rmat-6-4@7", "sbm@" + "x" * 5000]
)
def test_what_follows_an_at_sign_is_checked(name):
    with pytest.raises(InputError, match=r"': what follows @ must be as in \S+@") as caught:
        load_dataset(name)
    assert len(str(caught.value)) < 200


def test_graphs_that_could_never_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "memory_limit", lambda: 2**20)
    for name in ("rmat-31-999999999", "rmat-14-16", "sbm"):
        with pytest.raises(InputError, match=f"{name.split('@')[0]}.*: needs .* GiB of memory"):
            load_dataset(name)


def test_named_sets_come_from_the_data_directory(tmp_path, monkeypatch):
    graph = block_model(30, 100, features=2, seed=1, name="mine")
    write_npz(graph, tmp_path / "mine.npz")
    for again in (load_dataset("mine", tmp_path), load_dataset(tmp_path / "mine.npz")):
        assert_same_csr(again.adjacency, graph.adjacency)
        assert_same_vertices(again, graph)
    monkeypatch.setenv("SPGNN_DATA", str(tmp_path))
    assert load_dataset("mine").name == "mine"


def test_unknown_names_list_what_there_is(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine.npz").touch()
    (tmp_path / "mine.npy.nqz").touch()
    for name, words in (
        ("smm", "no data set 'smm': neither a file, nor .* one of sbm, .*did you mean 'sbm'"),
        ("mien", "did you mean 'mine'"),
        (tmp_path / "mine.npy.nqz", r"unknown format; known .*; did you mean '\.npz'"),
        (tmp_path / "none", "no such file"),
        ("none.npz", "no such file"),
        (tmp_path / "empty", r"not a graph directory: it has no meta\.json"),
    ):
        with pytest.raises(InputError, match=words):
            load_dataset(name, tmp_path)


def test_a_reader_a_set_and_a_table_from_outside_the_package(tmp_path, monkeypatch):
    class Empty(GraphFile):
        def __init__(self, path):
            self.vertices = int(path.read_text())

        def source(self, progress=None):
            return MemorySource(
                Graph("g", CSR.from_scipy(sp.csr_array((self.vertices,) * 2)), True)
            )

    for registry in (registries.READERS, registries.DOWNLOADS):
        monkeypatch.setattr(registry, "_values", dict(registry._values))
    registries.READERS.add(".empty", Empty)
    graph = block_model(7, 20, features=0, seed=0, name="seven")
    registries.DOWNLOADS.add("seven", lambda name, folder, progress: graph)
    (tmp_path / "g.empty.gz").write_bytes(b"")
    (tmp_path / "g.empty").write_text("3")
    assert load_dataset(tmp_path / "g.empty").vertices == 3
    assert load_dataset("seven", tmp_path).edges == graph.edges
    assert (tmp_path / "seven.npz").exists()


def test_readers_and_tables_that_are_missing(tmp_path, monkeypatch):
    for registry in (registries.READERS, registries.WRITERS):
        monkeypatch.setattr(registry, "_values", {})
    (tmp_path / "g.mtx").touch()
    with pytest.raises(InputError, match=r"text and tables need spgnn\.addons\.io, which is not"):
        load_dataset(tmp_path / "g.mtx")
    with pytest.raises(InputError, match=r"^--output o: needs spgnn\.addons\.io, which is not ins"):
        check_table("--output o")


@pytest.mark.parametrize("name", ["x" * 5000, "x" * 300, "a\0b", "", "\x1b[31m", "\udcff", "."])
def test_names_that_no_file_can_have(tmp_path, name):
    for path in (name, f"{tmp_path}/{name}.npz"):
        with pytest.raises(InputError) as caught:
            load_dataset(path, tmp_path)
        assert len(str(caught.value)) <= 300
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(("name", "vertices", "edges", "features", "classes", "train"), each(REAL))
def test_real_sets(name, vertices, edges, features, classes, train):
    graph = load_dataset(name)
    found = (graph.vertices, graph.edges, graph.features, graph.classes)
    assert found == (vertices, edges, features, classes)
    assert_canonical(CSR.of(*first_rows(graph.adjacency, 200)))
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


@needs("hg-ibm14")
def test_a_real_rectangular_matrix_is_refused():
    with pytest.raises(InputError, match="152772 × 147605; a graph needs as many rows as columns"):
        load_dataset(file_of("hg-ibm14"))
