"""Sources that hand out rows: always those of the graph, and never all of them at once."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data import load_dataset, open_shards, write_shards
from spgnn.data.generators import block_model
from spgnn.data.load import open_source
from spgnn.data.npz import NpzSource, read_npz, write_npz
from spgnn.data.shards import ShardDirectory
from spgnn.data.source import MemorySource
from tests.data.graphs import (
    assert_same_csr,
    assert_same_vertices,
    check_pieces,
    check_source,
    graphs,
)


@given(st.data())
def test_a_graph_in_memory(data):
    graph = data.draw(graphs())
    check_source(MemorySource(graph), graph, data)


@settings(max_examples=60)
@given(st.data(), st.booleans(), st.integers(1, 4))
def test_an_npz(tmp_path_factory, data, compressed, rows):
    graph = data.draw(graphs())
    path = tmp_path_factory.mktemp("npz") / "drawn.npz"
    write_npz(graph, path, compressed=compressed)
    with pytest.MonkeyPatch.context() as patch:
        # Pieces of a few rows, so that what is wanted lies in several.
        patch.setattr(NpzSource, "piece_rows", rows)
        source = NpzSource(path)
        whole = read_npz(path)  # drops weights that are all 1
        assert source.meta == MemorySource(whole).meta
        check_source(source, whole, data)
    if isinstance(graph.x, torch.Tensor) and graph.x.numel():
        assert source.random_access == (not compressed)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_sparse_rows_are_made_canonical(tmp_path, save):
    save(
        tmp_path / "g.npz",
        indptr=np.zeros(4, int),
        indices=np.zeros(0, int),
        shape=[3, 3],
        x_indptr=[0, 3, 3, 5],
        x_indices=np.array([2, 0, 2, 1, 0], ">i8"),
        x_data=np.array([1, 2, 4, 8, 16], np.int64),
        x_shape=[3, 4],
    )
    source, graph = NpzSource(tmp_path / "g.npz"), read_npz(tmp_path / "g.npz")
    assert graph.x.to_scipy().toarray().tolist() == [[2, 0, 5, 0], [0] * 4, [16, 8, 0, 0]]
    assert_same_csr(source.rows(slice(0, 3)).x, graph.x)
    check_pieces(source, graph, 2)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_features_are_never_held(tmp_path, compressed, sparse):
    graph = block_model(20_000, 20_000, features=64, seed=0)
    features = graph.x.nbytes
    if sparse:
        graph = replace(graph, x=CSR.from_scipy(sp.csr_array(graph.x.numpy())))
        features *= 2
    write_npz(graph, tmp_path / "g.npz", compressed=compressed)
    del graph
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NpzSource, "piece_rows", 400)
        source = NpzSource(tmp_path / "g.npz")
        for _, data in source.pieces():
            assert data.x.shape == (400, 64)
        source.rows(torch.arange(0, 20_000, 100))
        source.structure()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < features / 2


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_an_npz_is_cut_as_the_graph_in_it(tmp_path, compressed, sparse):
    graph = block_model(200, 1000, features=6, seed=0)
    if sparse:
        graph = replace(graph, x=CSR.from_scipy(sp.csr_array(graph.x.relu().numpy())))
    write_npz(graph, tmp_path / "sbm.npz", compressed=compressed)
    labels = np.arange(200) * 7 % 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NpzSource, "piece_rows", 11)
        write_shards(NpzSource(tmp_path / "sbm.npz"), labels, 3, tmp_path / "a")
    write_shards(graph, labels, 3, tmp_path / "b")
    a, b = open_shards(tmp_path / "a"), open_shards(tmp_path / "b")
    assert a.meta == b.meta
    for part in range(3):
        assert_same_csr(a.block(part).adjacency, b.block(part).adjacency)
        assert_same_vertices(a.block(part), b.block(part))
        assert torch.equal(a.block(part).vertex_ids, b.block(part).vertex_ids)


def test_the_structure_is_handed_over(tmp_path):
    """Who asks for all of it can free it; it is read again for the next."""
    write_npz(block_model(50, 200, features=2, seed=0), tmp_path / "g.npz")
    source = NpzSource(tmp_path / "g.npz")
    first = source.structure()
    assert source._adjacency is None
    assert_same_csr(source.structure(), first)


def test_the_door_opens_what_it_can_in_pieces(tmp_path, monkeypatch):
    graph = block_model(50, 200, features=2, seed=0)
    write_npz(graph, tmp_path / "g.npz")
    write_shards(graph, None, 2, tmp_path / "d")
    (tmp_path / "e.txt").write_text("0 1\n")
    monkeypatch.setenv("SPGNN_DATA", str(tmp_path))
    kinds = {
        "g": NpzSource,
        str(tmp_path / "g.npz"): NpzSource,
        str(tmp_path / "d"): ShardDirectory,
        str(tmp_path / "e.txt"): MemorySource,
        "rmat-4-2": MemorySource,
    }
    for name, kind in kinds.items():
        source = open_source(name)
        assert type(source) is kind
        whole = load_dataset(name)
        assert_same_csr(source.structure(), whole.adjacency)
        assert_same_vertices(source.graph(), whole)
    with pytest.raises(InputError, match="no such file"):
        open_source(tmp_path / "none.npz")
