"""The semi-external partitioner: in bounds, deterministic, and well under random and block."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import CSR, InputError
from spgnn.data import Graph, open_shards, write_shards
from spgnn.data.generators import generate_block_model
from spgnn.partition import partition, report
from tests.data.graphs import rewrite
from tests.partition.oracle import community_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "communities"
    directory = generate_block_model(path, 20_000, 300_000, community=250, district=8, seed=3)
    return directory.pattern()


@pytest.mark.parametrize("parts", [2, 16, 64])
def test_volume_is_well_under_random_and_block(graph, parts):
    labels, found = partition(graph, parts, "stream")
    assert found["nnz_imbalance"] <= 0.05
    assert found["imbalance_met"]
    for method in ("random", "block"):
        _, other = partition(graph, parts, method)
        assert found["total_volume"] < 0.75 * other["total_volume"]
        assert found["max_send"] < 0.85 * other["max_send"]
    again = report(graph, labels, parts)
    assert again["covers"] == found["covers"]
    assert again["cover_volume"]["minimum"] is None


@pytest.mark.parametrize("preset", ["fast", "default", "strong"])
def test_labels_do_not_depend_on_the_threads(graph, preset):
    one, _ = partition(graph, 16, "stream", preset=preset, threads=1)
    three, _ = partition(graph, 16, "stream", preset=preset, threads=3)
    np.testing.assert_array_equal(one, three)


def test_a_graph_on_disk_and_in_memory_give_the_same(graph):
    from_disk, disk_report = partition(graph, 8, "stream")
    matrix = CSR.from_scipy(_scipy(graph))
    from_memory, memory_report = partition(matrix, 8, "stream")
    np.testing.assert_array_equal(from_disk, from_memory)
    assert disk_report["covers"]["column"] == memory_report["covers"]["column"]
    assert report(graph, from_disk, 8, minimum=True)["covers"] == memory_report["covers"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("method", ["stream", "random"])
def test_native_code_can_be_interrupted(graph, method, threads):
    calls = []

    def interrupt(stage, done, total):
        calls.append(stage)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partition(graph, 8, method, threads=threads, progress=interrupt)
    assert calls == ["streaming" if method == "stream" else "counting volumes"]


def test_refinement_keeps_the_bound(graph):
    labels, _ = partition(graph, 16, "random", seed=1)
    _, refined = partition(graph, 16, "stream", initial=labels)
    assert refined["nnz_imbalance"] <= 0.05


def test_one_row_heavier_than_a_part_is_said(tmp_path):
    A = np.zeros((50, 50), bool)
    A[0, :] = True
    labels, result = partition(CSR.from_scipy(sp.csr_array(A)), 10, "stream")
    assert not result["imbalance_met"]
    assert len(labels) == 50


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


def _scipy(graph):
    data = np.ones(len(graph.indices), bool)
    return sp.csr_array((data, np.array(graph.indices), np.array(graph.indptr)), shape=graph.shape)
