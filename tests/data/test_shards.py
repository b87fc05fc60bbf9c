from __future__ import annotations

import json
import resource
import shutil
import signal
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError, RowLayout
from spgnn.data import Graph, from_scipy, open_shards, source, write_shards
from spgnn.data.graph import VertexData
from spgnn.data.meta import describe
from spgnn.data.sets.generators import block_model
from spgnn.data.shards import arrays, partition_order, write
from spgnn.data.shards.write import directory_writer
from tests.data.directories import restate, rewrite
from tests.data.sources import check_source
from tests.data.strategies import assert_same_csr, assert_same_vertices, graphs


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
    assert shards.meta == describe(graph, layout)
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


def small_graph():
    return block_model(60, 300, classes=3, features=4, seed=2)


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
    with pytest.raises(
        InputError, match="parts 0: must be at least 1, and at most the 60 that 60 vertices can use"
    ):
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
    def half() -> None:
        with directory_writer(tmp_path / "s") as writer, writer.part() as part:
            part.append_rows(small_graph().block(0, 30))
            assert not (tmp_path / "s").exists()
            raise LookupError

    with pytest.raises(LookupError):
        half()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["indptr", "indices", "x", "y", "train_mask"])
def test_truncated_arrays_are_named(tmp_path, name):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    path = tmp_path / "s" / "part-00001" / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match=f"part-00001/{name}.npy: truncated"):
        open_shards(tmp_path / "s").block(1)
    assert open_shards(tmp_path / "s").block(0).rows == 30


LABELS = np.arange(60) % 2


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("indices", lambda a: np.where(np.arange(len(a)) == 3, 60, a), "column index 60 outside"),
        ("indices", lambda a: a.astype(np.int64), "indices.npy: is <i8 .* but must be <i4"),
        ("indptr", lambda a: a[:-1], r"indptr.npy: is <i8 \[30\], but must be <i8 \[31\]"),
        ("indptr", lambda a: np.where(np.arange(31) == 4, 0, a), "indptr must rise"),
        ("y", lambda a: a + 9, r"y\[\d+\] is \d+; it must be in \[0, 3\), or -1"),
        ("y", lambda a: np.where(np.arange(30) == 7, -7, a), r"y\[7\] is -7; it must be in"),
        ("y", lambda a: a[:-1], r"y.npy: is <i8 \[29\], but must be <i8 \[30\]"),
        ("y", lambda a: a.astype(np.float32), "y.npy: is <f4 .* but must be <i8"),
        ("x", lambda a: a[:, :-1], r"x.npy: is <f4 \[30, 3\], but must be <f4 \[30, 4\]"),
        ("x", lambda a: a[:-1], "x.npy: is <f4"),
        ("vertex_ids", lambda a: a[:-1], "vertex_ids.npy: is <i8"),
        ("vertex_ids", lambda a: a - 9, "vertex_ids holds -9; ids are at least 0"),
        ("train_mask", lambda a: (a.view(np.uint8) + 1).view(bool), "neither false nor true"),
        ("train_mask", lambda _: None, "no array 'train_mask', which meta.json says"),
        ("indices", lambda _: None, "no array 'indices', which meta.json says"),
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path, name, change, message):
    write_shards(small_graph(), LABELS, 2, tmp_path / "s")
    array = np.load(tmp_path / "s" / "part-00000" / f"{name}.npy")
    rewrite(tmp_path / "s", 0, name, change(array))
    with pytest.raises(InputError, match=message) as caught:
        open_shards(tmp_path / "s").block(0)
    assert "part-00000" in str(caught.value)


@pytest.mark.parametrize(
    "dtype", ["<U3", "|S4", ">i8", ">f4", "<f8", "<c8", "<M8[s]", "|O", [("a", "<i4")], "<i2"]
)
@pytest.mark.parametrize("name", ["indptr", "indices", "x", "y", "train_mask"])
def test_arrays_of_other_types_are_refused(tmp_path, name, dtype):
    """The header of the file alone is another one, as if somebody had written over it."""
    write_shards(small_graph(), None, 2, tmp_path / "s")
    path = tmp_path / "s" / "part-00000" / f"{name}.npy"
    array = np.zeros(np.load(path).shape, dtype)
    np.save(path, array, allow_pickle=True)
    with pytest.raises(InputError, match=f"{name}.npy: truncated or not an array: "):
        open_shards(tmp_path / "s").block(0)


@pytest.mark.parametrize("name", ["indptr", "indices", "x", "y", "train_mask", "vertex_ids"])
def test_numbers_that_changed_are_found_when_a_part_is_opened(tmp_path, name):
    write_shards(small_graph(), LABELS, 2, tmp_path / "s")
    path = tmp_path / "s" / "part-00000" / f"{name}.npy"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(InputError, match=f"part-00000/{name}.npy: damaged: its numbers"):
        open_shards(tmp_path / "s").block(0)
    assert open_shards(tmp_path / "s").block(1).rows == 30


def test_a_sample_betrays_large_arrays_and_a_check_any_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "CHECKED_WHOLE", 100)
    monkeypatch.setattr(arrays, "_SAMPLES", 4)
    monkeypatch.setattr(arrays, "_SAMPLE_BYTES", 10)
    write_shards(small_graph(), None, 2, tmp_path / "s")
    path = tmp_path / "s" / "part-00001" / "x.npy"
    whole = path.read_bytes()
    last = len(whole) - 128 - 10
    sampled = {128 + last * i // 3 + k for i in range(4) for k in range(10)}
    for at in range(128, len(whole), 7):
        changed = bytearray(whole)
        changed[at] ^= 255
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"x\.npy: damaged"):
            open_shards(tmp_path / "s").check()
        betrayed = pytest.raises(InputError, match=r"x\.npy: damaged")
        with betrayed if at in sampled else nullcontext():
            open_shards(tmp_path / "s").block(1)
    path.write_bytes(whole)
    seen = []
    open_shards(tmp_path / "s").check(lambda *args: seen.append(args))
    assert seen == [("checking parts", 1, 2), ("checking parts", 2, 2)]


def test_a_part_copied_over_another_is_found(tmp_path):
    graph = small_graph()
    write_shards(graph, None, 2, tmp_path / "s")
    write_shards(graph, LABELS, 2, tmp_path / "other")
    one = tmp_path / "s" / "part-00001"
    shutil.rmtree(one)
    shutil.copytree(tmp_path / "s" / "part-00000", one)
    with pytest.raises(InputError, match="part-00001: holds part 0; it was copied over part 1"):
        open_shards(tmp_path / "s").block(1)
    shutil.rmtree(one)
    shutil.copytree(tmp_path / "other" / "part-00001", one)
    with pytest.raises(InputError, match="part-00001: is not the part that was written"):
        open_shards(tmp_path / "s").block(1)
    # An array alone, of the same size.
    write_shards(graph, None, 2, tmp_path / "t")
    x = tmp_path / "t" / "part-00001" / "x.npy"
    x.write_bytes((tmp_path / "t" / "part-00000" / "x.npy").read_bytes())
    with pytest.raises(InputError, match=r"part-00001/x\.npy: damaged"):
        open_shards(tmp_path / "t").block(1)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"part": 0}', "[" * 100_000, "9" * 5000, "\xff"]
)
def test_descriptions_of_parts_that_changed_are_refused(tmp_path, text):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    (tmp_path / "s" / "part-00000" / "part.json").write_text(text)
    with pytest.raises(InputError, match="part-00000: is not the part that was written"):
        open_shards(tmp_path / "s").block(0)


def test_a_directory_that_is_no_graph(tmp_path):
    with pytest.raises(InputError, match=r"not a graph directory: it has no meta\.json"):
        open_shards(tmp_path)
    with pytest.raises(InputError, match="nowhere: no such directory"):
        open_shards(tmp_path / "nowhere")
    for text in ("", "[]", "{", "null", "[" * 100_000, "9" * 5000, "{}"):
        (tmp_path / "meta.json").write_text(text)
        with pytest.raises(InputError, match=r"meta\.json: not (JSON|a JSON|the description)"):
            open_shards(tmp_path)


def test_directories_of_earlier_versions_are_refused_with_the_way_out(tmp_path):
    shards = {"name": "g", "vertices": 3, "offsets": [0, 3], "edges": 2}
    csr = {"format": "spgnn-csr", "version": 1, "vertices": 3, "edges": 2}
    for old in (shards, csr):
        (tmp_path / "meta.json").write_text(json.dumps(old))
        with pytest.raises(InputError, match="make the directory again with spgnn shard GRAPH"):
            open_shards(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"format": "spgnn-graph", "version": 9}))
    with pytest.raises(InputError, match="version 9; this program knows 2"):
        open_shards(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vertices", -1),
        ("vertices", 60.0),
        ("vertices", True),
        ("edges", 10**400),
        ("edges", "9"),
        ("classes", None),
        ("name", 5),
        ("name", "x" * 2000),
        ("name", "\ud800"),
        ("directed", 1),
        ("offsets", [0, 60, 30]),
        ("offsets", [0, "30", 60]),
        ("offsets", [0, 10**30, 60]),
        ("offsets", [60]),
        ("offsets", 7),
        ("offsets", {"0": 1}),
        ("splits", [[[]]]),
        ("digests", ["x"]),
        ("digests", None),
    ],
)
def test_senseless_descriptions_are_refused(tmp_path, field, value):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    meta = json.loads((tmp_path / "s" / "meta.json").read_text())
    restate(tmp_path / "s", {**meta, field: value})
    with pytest.raises(InputError, match=rf"meta\.json: not a? ?(the )?description.*{field}"):
        open_shards(tmp_path / "s")


def test_a_description_that_changed_is_refused(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    path = tmp_path / "s" / "meta.json"
    path.write_text(path.read_text().replace('"classes": 3', '"classes": 8'))
    with pytest.raises(InputError, match=r"meta\.json: damaged: not what was written"):
        open_shards(tmp_path / "s")


def test_no_more_parts_than_vertices(tmp_path):
    with pytest.raises(InputError, match="at most the 60 that 60 vertices can use"):
        write_shards(small_graph(), None, 2**31 - 1, tmp_path / "s")
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


def test_weights_of_scipy_can_be_cut(tmp_path):
    """SciPy's weights are float64, and its column numbers may be int64."""
    A = sp.random_array((20, 20), density=0.3, rng=0).tocsr()
    assert A.dtype == np.float64
    A.indices = A.indices.astype(np.int64)
    graph = from_scipy(A)
    write_shards(graph, np.arange(20) % 3, 3, tmp_path / "s")
    blocks = [open_shards(tmp_path / "s").block(part) for part in range(3)]
    order = torch.cat([block.vertex_ids for block in blocks]).numpy()
    dense = np.vstack([block.adjacency.to_scipy().toarray() for block in blocks])
    np.testing.assert_array_equal(dense, A.astype(np.float32).toarray()[order][:, order])


def test_parts_that_do_not_exist_are_named(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    for part in (-1, 2):
        with pytest.raises(InputError, match=f"no part {part}; it has parts 0 to 1"):
            open_shards(tmp_path / "s").block(part)
        with pytest.raises(InputError, match=f"no part {part}"):
            open_shards(tmp_path / "s").adjacency_of(part)


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
