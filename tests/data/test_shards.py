from __future__ import annotations

import resource
import signal
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data import Graph, open_shards, source, write_shards
from spgnn.data import shards as write
from spgnn.data.generators import block_model
from spgnn.data.graph import VertexData
from spgnn.data.shards import directory_writer, partition_order
from spgnn.data.source import describe
from tests.data.graphs import (
    assert_same_csr,
    assert_same_vertices,
    check_source,
    graphs,
    small_graph,
)


@given(st.data())
def test_parts_are_blocks_of_the_relabelled_graph(tmp_path_factory, data):
    graph = data.draw(graphs())
    n = graph.vertices
    parts = data.draw(st.integers(1, max(1, min(n, 5))))
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
    assert shards.meta == replace(describe(graph), offsets=tuple(layout.offsets.tolist()))
    assert shards.layout.offsets.tolist() == layout.offsets.tolist()
    for part in range(parts):
        expected, block = moved.block(*layout.range(part)), shards.block(part)
        assert_same_csr(block.adjacency, expected.adjacency)
        assert_same_csr(shards.adjacency_of(part), expected.adjacency)
        assert torch.equal(block.vertex_ids, expected.vertex_ids)
        assert block.first_row == expected.first_row
        assert_same_vertices(block, expected)


def test_sharding_a_relabelled_graph_keeps_original_ids(tmp_path):
    graph = block_model(30, 100, features=2, seed=3)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    write_shards(graph.relabel(order), None, 3, tmp_path / "s")
    ids = torch.cat([open_shards(tmp_path / "s").block(part).vertex_ids for part in range(3)])
    assert torch.equal(ids, order)


def test_an_opened_part_touches_no_other(tmp_path):
    write_shards(small_graph(), None, 3, tmp_path / "s")
    for other in (0, 2):
        for file in (tmp_path / "s" / f"part-{other:05d}").iterdir():
            file.unlink()
    assert open_shards(tmp_path / "s").block(1).rows == 20
    with pytest.raises(InputError, match=r"part-00000/part\.json: no such file"):
        open_shards(tmp_path / "s").block(0)


def test_writing_to_a_block_leaves_the_file_alone(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    shards = open_shards(tmp_path / "s")
    shards.block(0).x.fill_(7)
    assert torch.equal(shards.block(0).x, small_graph().x[:30])


@pytest.mark.parametrize(
    ("labels", "parts", "words"),
    [
        (np.zeros(59, np.int64), 2, r"60 integer labels, got int64 \[59\]"),
        (np.zeros(60), 2, r"60 integer labels, got float64 \[60\]"),
        (np.full(60, 2), 2, r"label of vertex 0 is 2; must be in \[0, 2\)"),
        (np.arange(60) - 1, 2, r"label of vertex 0 is -1; must be in \[0, 2\)"),
        (None, 0, "parts 0: must be at least 1, and at most the 60 that 60 vertices can use"),
        (None, 2**31 - 1, "at most the 60 that 60 vertices can use"),
    ],
)
def test_labels_and_parts_must_fit(tmp_path, labels, parts, words):
    with pytest.raises(InputError, match=words):
        write_shards(small_graph(), labels, parts, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


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


def test_unfinished_writing_publishes_nothing(tmp_path):
    def half() -> None:
        with directory_writer(tmp_path / "s") as writer:
            block = small_graph().block(0, 30)
            writer.append_rows(block.adjacency, None, block)
            assert not (tmp_path / "s").exists()
            raise LookupError

    with pytest.raises(LookupError):
        half()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40)
@given(st.data())
def test_rows_of_a_directory_are_those_of_the_graph(tmp_path_factory, data):
    graph = data.draw(graphs())
    n = graph.vertices
    parts = data.draw(st.integers(1, max(1, min(n, 4))))
    labels = np.array(data.draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)), int)
    directory = tmp_path_factory.mktemp("shards") / "out"
    write_shards(graph, labels, parts, directory)
    check_source(open_shards(directory), graph.relabel(partition_order(labels, n, parts)[1]), data)


@settings(max_examples=40)
@given(st.data())
def test_a_directory_is_cut_again_as_the_graph_would_be(tmp_path_factory, data):
    graph = data.draw(graphs())
    n = graph.vertices
    before, after = (data.draw(st.integers(1, max(1, min(n, 4)))) for _ in range(2))
    labels = np.array(data.draw(st.lists(st.integers(0, after - 1), min_size=n, max_size=n)), int)
    home = tmp_path_factory.mktemp("shards")
    write_shards(graph, None, before, home / "before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "_PIECE_ENTRIES", 3)  # more than one piece a part
        write_shards(open_shards(home / "before"), labels, after, home / "again")
    write_shards(graph, labels, after, home / "direct")
    assert open_shards(home / "again").meta == open_shards(home / "direct").meta
    files = sorted(path.relative_to(home / "again") for path in (home / "again").rglob("*.npy"))
    assert files == sorted(p.relative_to(home / "direct") for p in (home / "direct").rglob("*.npy"))
    for file in files:
        again, direct = (np.load(home / kind / file) for kind in ("again", "direct"))
        np.testing.assert_array_equal(again, direct, err_msg=str(file))


def test_cutting_again_holds_no_more_than_a_piece(tmp_path):
    """The features of the whole graph never exist in memory: only mapped files are larger."""
    graph = block_model(20_000, 100_000, features=64, seed=0)
    write_shards(graph, None, 1, tmp_path / "whole")
    features = graph.x.nbytes
    del graph
    labels = np.arange(20_000) % 4
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "PIECE_BYTES", features // 50)
        write_shards(open_shards(tmp_path / "whole"), labels, 4, tmp_path / "cut")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < features / 3


@pytest.mark.parametrize("parts", [1, 3])
def test_one_column_of_the_masks_is_kept(tmp_path, parts):
    graph = with_masks(small_graph(), 3)
    write_shards(graph, None, parts, tmp_path / "s", split=2)
    shards = open_shards(tmp_path / "s")
    assert shards.meta.splits == 1
    mask = torch.cat([shards.block(part).train_mask for part in range(parts)])
    assert torch.equal(mask, graph.train_mask[:, 2])
    with pytest.raises(InputError, match="split 3 does not exist"):
        write_shards(graph, None, parts, tmp_path / "t", split=3)
    assert not (tmp_path / "t").exists()


def with_masks(graph, splits):
    draw = torch.rand(3, graph.vertices, splits, generator=torch.Generator().manual_seed(0)) < 0.3
    return replace(graph, train_mask=draw[0], val_mask=draw[1], test_mask=draw[2])


def test_masks_without_columns_are_no_masks(tmp_path):
    write_shards(with_masks(small_graph(), 0), None, 2, tmp_path / "s")
    block = open_shards(tmp_path / "s").block(0)
    assert open_shards(tmp_path / "s").meta.splits == 0
    assert block.train_mask is None


def test_parts_that_do_not_exist_are_named(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    for part in (-1, 2):
        with pytest.raises(InputError, match=f"no part {part}; it has parts 0 to 1"):
            open_shards(tmp_path / "s").block(part)
        with pytest.raises(InputError, match=f"no part {part}"):
            open_shards(tmp_path / "s").adjacency_of(part)


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
    meta = describe(Graph("g", A, True, x=words))
    assert meta.sparse_features
    assert meta.bag_of_words
    assert meta.weighted
    assert meta.directed
    assert not meta.labelled
    assert meta.splits == 0
    assert VertexData(x=words).features == 9
