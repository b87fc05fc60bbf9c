from __future__ import annotations

import json
import resource
import signal

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn import CSR, InputError, RowLayout
from spgnn.data import Graph, open_shards, write_shards
from spgnn.data.generators import block_model
from spgnn.data.graph import VertexData
from spgnn.data.shards import ShardWriter, describe, partition_order
from tests.data.strategies import assert_same_csr, assert_same_vertices, graphs


@given(st.data())
def test_parts_are_blocks_of_the_relabelled_graph(tmp_path_factory, data):
    graph = data.draw(graphs())
    parts = data.draw(st.integers(1, 5))
    n = graph.vertices
    labels = data.draw(
        st.none() | st.lists(st.integers(0, parts - 1), min_size=n, max_size=n).map(np.array)
    )
    if labels is not None:
        labels = labels.astype(np.int32)
    directory = tmp_path_factory.mktemp("shards") / "out"
    write_shards(graph, labels, parts, directory)
    shards = open_shards(directory)
    layout, order = partition_order(labels, n, parts)
    moved = graph.relabel(order)
    assert shards.meta == describe(graph, layout)
    assert shards.layout.offsets.tolist() == layout.offsets.tolist()
    for part in range(parts):
        expected, block = moved.block(*layout.range(part)), shards.block(part)
        assert_same_csr(block.adjacency, expected.adjacency)
        assert_same_csr(shards.adjacency(part), expected.adjacency)
        assert torch.equal(block.vertex_ids, expected.vertex_ids)
        assert block.first_row == expected.first_row
        assert_same_vertices(block, expected)


def test_sharding_a_relabelled_graph_keeps_original_ids(tmp_path):
    graph = block_model(30, 100, features=2, seed=3)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    write_shards(graph.relabel(order), None, 3, tmp_path / "s")
    ids = torch.cat([open_shards(tmp_path / "s").block(part).vertex_ids for part in range(3)])
    assert torch.equal(ids, order)


def small_graph():
    return block_model(60, 300, classes=3, features=4, seed=2)


def test_an_opened_part_touches_no_other(tmp_path):
    write_shards(small_graph(), None, 3, tmp_path / "s")
    for other in (0, 2):
        for file in (tmp_path / "s" / f"part-{other:05d}").iterdir():
            file.unlink()
    assert open_shards(tmp_path / "s").block(1).rows == 20
    with pytest.raises(InputError, match=r"\.npy: no such file; the shards are incomplete"):
        open_shards(tmp_path / "s").block(0)


def test_writing_to_a_block_leaves_the_file_alone(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    shards = open_shards(tmp_path / "s")
    shards.block(0).x.fill_(7)
    assert torch.equal(shards.block(0).x, small_graph().x[:30])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(59, np.int64), r"60 integer labels, got int64 \[59\]"),
        (np.zeros(60), r"60 integer labels, got float64 \[60\]"),
        (np.full(60, 2), r"label of vertex 0 is 2; must be in \[0, 2\)"),
        (np.arange(60) - 1, r"label of vertex 0 is -1; must be in \[0, 2\)"),
    ],
)
def test_labels_must_fit(tmp_path, labels, message):
    with pytest.raises(InputError, match=message):
        write_shards(small_graph(), labels, 2, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_there_is_at_least_one_part(tmp_path):
    with pytest.raises(InputError, match="at least 1, got 0"):
        write_shards(small_graph(), None, 0, tmp_path / "s")


def test_an_existing_directory_is_left_alone(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine").write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        write_shards(small_graph(), None, 2, tmp_path / "s")
    assert (tmp_path / "s" / "mine").read_text() == "precious"


def test_a_full_disk_leaves_nothing(tmp_path):
    graph = block_model(5000, 50_000, features=64, seed=0)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(InputError, match="s: cannot be written: File too large"):
            write_shards(graph, None, 2, tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def interrupt(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(small_graph(), None, 2, tmp_path / "s", interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_needs_its_parent(tmp_path):
    with pytest.raises(InputError, match="cannot be written: No such file or directory"):
        write_shards(small_graph(), None, 2, tmp_path / "missing" / "s")
    assert list(tmp_path.iterdir()) == []


def test_unfinished_writing_publishes_nothing(tmp_path):
    graph = small_graph()
    with ShardWriter(tmp_path / "s") as writer:
        writer.write(0, graph.block(0, 30))
        assert not (tmp_path / "s").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["indptr", "indices", "x", "y", "vertex_ids"])
def test_truncated_arrays_are_named(tmp_path, name):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    path = tmp_path / "s" / "part-00001" / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=f"part-00001/{name}.npy: truncated"):
        open_shards(tmp_path / "s").block(1)
    assert open_shards(tmp_path / "s").block(0).rows == 30


def replace_array(directory, name, change):
    path = directory / "part-00000" / f"{name}.npy"
    array = np.load(path)
    np.save(path, change(array))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("indices", lambda a: np.where(np.arange(len(a)) == 3, 60, a), "column index 60 outside"),
        ("indptr", lambda a: a[:-1], r"indptr must be int64 \[31\]"),
        ("y", lambda a: a + 9, r"y\[\d+\] is \d+; it must be in \[0, 3\)"),
        ("y", lambda a: a[:-1], "y must be int64"),
        ("x", lambda a: a[:, :-1], "3 features, but meta.json says 4"),
        ("x", lambda a: a[:-1], r"x must be \[30, features\]"),
        ("vertex_ids", lambda a: a[:-1], r"vertex_ids must be int64 \[30\]"),
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path, name, change, message):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    replace_array(tmp_path / "s", name, lambda a: change(a).astype(a.dtype))
    with pytest.raises(InputError, match=message) as caught:
        open_shards(tmp_path / "s").block(0)
    assert "part-00000" in str(caught.value)


def test_a_training_mask_that_should_exist_is_missed(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    (tmp_path / "s" / "part-00000" / "train_mask.npy").unlink()
    with pytest.raises(InputError, match=r"train_mask\.npy: no such file"):
        open_shards(tmp_path / "s").block(0)


def test_pickles_are_never_loaded(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    np.save(tmp_path / "s" / "part-00000" / "y.npy", np.array([print], dtype=object))
    with pytest.raises(InputError, match=r"y\.npy: truncated or not an array"):
        open_shards(tmp_path / "s").block(0)


def test_a_directory_that_is_no_sharded_graph(tmp_path):
    with pytest.raises(InputError, match="not a sharded graph"):
        open_shards(tmp_path)
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(InputError, match=r"meta\.json: not a description"):
        open_shards(tmp_path)


def test_parts_that_do_not_exist_are_named(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    for part in (-1, 2):
        with pytest.raises(InputError, match=f"no part {part}; it has parts 0 to 1"):
            open_shards(tmp_path / "s").block(part)
        with pytest.raises(InputError, match=f"no part {part}"):
            open_shards(tmp_path / "s").adjacency(part)


def test_meta_is_plain_json(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    meta = json.loads((tmp_path / "s" / "meta.json").read_text())
    assert meta["vertices"] == 60
    assert meta["offsets"] == [0, 30, 60]
    assert meta["labelled"] is True


@given(st.data())
def test_layouts_and_orders_agree(data):
    parts = data.draw(st.integers(1, 6))
    labels = np.array(data.draw(st.lists(st.integers(0, parts - 1), max_size=20)), np.int64)
    layout, order = partition_order(labels, len(labels), parts)
    for part in range(parts):
        first, last = layout.range(part)
        assert order[first:last].tolist() == np.flatnonzero(labels == part).tolist()


def test_describe_knows_what_blocks_carry():
    A = CSR.from_scipy(sp.eye_array(4, format="csr"))
    words = CSR.from_scipy(sp.csr_array(np.eye(4, 9, dtype=np.float32)))
    meta = describe(Graph("g", A, True, x=words), RowLayout.even(4, 2))
    assert meta.sparse_features
    assert meta.bag_of_words
    assert meta.weighted
    assert meta.directed
    assert not meta.labelled
    assert meta.splits == 0
    assert VertexData(x=words).features == 9
