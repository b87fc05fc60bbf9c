"""Graph directories: written from any source as from memory, read in rows, damage refused."""

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
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import InputError
from spgnn.data import arrays, open_shards, source, write_shards
from spgnn.data import shards as shards_module
from spgnn.data.generators import block_model
from spgnn.data.npz import NpzSource, write_npz
from spgnn.data.shards import directory_writer, partition_order
from spgnn.data.source import describe
from tests.data.graphs import (
    assert_same_csr,
    assert_same_vertices,
    check_source,
    graphs,
    restate,
    rewrite,
    small_graph,
)


def labels_of(data, n, parts):
    return np.array(data.draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)), int)


@settings(max_examples=25)
@given(st.data())
def test_parts_are_blocks_of_the_relabelled_graph(tmp_path_factory, data):
    graph = data.draw(graphs())
    n = graph.vertices
    if data.draw(st.booleans()):  # vertices that have moved before
        graph = graph.relabel(torch.arange(n - 1, -1, -1))
    parts = data.draw(st.integers(1, max(1, min(n, 4))))
    labels = labels_of(data, n, parts) if data.draw(st.booleans()) else None
    directory = tmp_path_factory.mktemp("shards") / "out"
    write_shards(graph, labels, parts, directory)
    shards = open_shards(directory)
    layout, order = partition_order(labels, n, parts)
    for part in range(parts) if labels is not None else ():
        members = np.flatnonzero(labels == part)
        assert order[slice(*layout.range(part))].tolist() == members.tolist()
    moved = graph.relabel(order)
    if labels is None and graph.vertex_ids is None:
        moved = replace(moved, vertex_ids=None)
    offsets = tuple(layout.offsets.tolist())
    assert shards.meta == replace(describe(graph), offsets=offsets)
    assert tuple(shards.layout.offsets) == offsets
    for part in range(parts):
        expected, block = moved.block(*layout.range(part)), shards.block(part)
        assert_same_csr(block.adjacency, expected.adjacency)
        assert_same_csr(shards.adjacency_of(part), expected.adjacency)
        assert torch.equal(block.vertex_ids, expected.vertex_ids)
        assert block.first_row == expected.first_row
        assert_same_vertices(block, expected)
    check_source(shards, moved, data)


@settings(max_examples=20)
@given(st.data())
def test_every_source_is_cut_as_the_graph_would_be(tmp_path_factory, data):
    graph = data.draw(graphs())
    n, home = graph.vertices, tmp_path_factory.mktemp("shards")
    before, after = (data.draw(st.integers(1, max(1, min(n, 4)))) for _ in range(2))
    labels = labels_of(data, n, after)
    graph = replace(graph, name="g")
    write_npz(graph, home / "g.npz", compressed=data.draw(st.booleans()))
    graph = NpzSource(home / "g.npz").graph()  # weights that are all 1 are gone
    write_shards(graph, labels, after, home / "direct")
    write_shards(graph, None, before, home / "before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "_PIECE_ENTRIES", 3)  # more than one piece a part
        patch.setattr(NpzSource, "piece_rows", 3)
        for name in ("before", "g.npz"):
            opened = NpzSource(home / name) if name == "g.npz" else open_shards(home / name)
            write_shards(opened, labels, after, home / f"cut-{name}")
    for name in ("before", "g.npz"):
        files = [path for path in (home / f"cut-{name}").rglob("*") if path.is_file()]
        for file in files:
            direct = home / "direct" / file.relative_to(home / f"cut-{name}")
            assert file.read_bytes() == direct.read_bytes()
        assert len(files) == len([p for p in (home / "direct").rglob("*") if p.is_file()])


def test_an_opened_part_touches_no_other(tmp_path):
    write_shards(small_graph(), None, 3, tmp_path / "s")
    for other in (0, 2):
        for file in (tmp_path / "s" / f"part-{other:05d}").iterdir():
            file.unlink()
    shards = open_shards(tmp_path / "s")
    assert shards.block(1).rows == 20
    for part, words in (
        (0, r"part-00000/part\.json: no such file"),
        (-1, "no part -1; it has parts 0 to 2"),
        (3, "no part 3; it has parts 0 to 2"),
    ):
        for read in (shards.block, shards.adjacency_of):
            with pytest.raises(InputError, match=words):
                read(part)


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


def test_a_full_disk_an_interrupt_or_an_error_leave_nothing(tmp_path):
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

    def interrupt(what, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(small_graph(), None, 2, tmp_path / "s", interrupt)

    def half() -> None:
        block = small_graph().block(0, 30)
        with directory_writer(tmp_path / "s") as writer:
            writer.append_rows(block.adjacency, None, block)
            assert not (tmp_path / "s").exists()
            raise LookupError

    with pytest.raises(LookupError):
        half()
    assert list(tmp_path.iterdir()) == []


def test_cutting_again_needs_memory_for_a_piece_alone(tmp_path):
    """The features of the whole graph never exist in memory: only mapped files are larger."""
    graph = block_model(20_000, 100_000, features=64, seed=0)
    write_shards(graph, None, 1, tmp_path / "whole")
    features = graph.x.nbytes
    del graph
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "PIECE_BYTES", features // 50)
        labels = np.arange(20_000) % 4
        write_shards(open_shards(tmp_path / "whole"), labels, 4, tmp_path / "cut")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < features / 3


def with_masks(graph, splits):
    draw = torch.rand(3, graph.vertices, splits, generator=torch.Generator().manual_seed(0)) < 0.3
    return replace(graph, train_mask=draw[0], val_mask=draw[1], test_mask=draw[2])


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
    # Masks without columns are no masks.
    write_shards(with_masks(small_graph(), 0), None, parts, tmp_path / "t")
    assert open_shards(tmp_path / "t").meta.splits == 0
    assert open_shards(tmp_path / "t").block(0).train_mask is None


# Damage.

ARRAYS = ["indptr", "indices", "x", "y", "train_mask"]
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
    for read in (lambda shards: shards.block(0), lambda shards: shards.graph()):
        with pytest.raises(InputError, match=message) as caught:
            read(open_shards(tmp_path / "s"))
        assert "part-00000" in str(caught.value)


DTYPES = ["<U3", "|S4", ">i8", ">f4", "<f8", "<c8", "<M8[s]", "|O", [("a", "<i4")], "<i2"]


@pytest.mark.parametrize("name", [*ARRAYS, "vertex_ids"])
def test_files_that_changed_are_refused(tmp_path, name):
    """Cut off, another number, or a header as if somebody had written over it."""
    write_shards(small_graph(), LABELS, 2, tmp_path / "s")
    path = tmp_path / "s" / "part-00000" / f"{name}.npy"
    whole, array = path.read_bytes(), np.load(path)

    def refused(words):
        with pytest.raises(InputError, match=f"part-00000/{name}.npy: {words}"):
            open_shards(tmp_path / "s").block(0)
        assert open_shards(tmp_path / "s").block(1).rows == 30

    path.write_bytes(whole[:-4])
    refused("truncated")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("damaged: its numbers")
    for dtype in DTYPES:
        np.save(path, np.zeros(array.shape, dtype), allow_pickle=True)
        if np.dtype(dtype) != array.dtype:
            refused("truncated or not an array: ")


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
    for name, labels in (("s", None), ("other", LABELS)):
        write_shards(graph, labels, 2, tmp_path / name)
    one = tmp_path / "s" / "part-00001"
    # An array alone, of the same size; then whole parts.
    shutil.copy(tmp_path / "s" / "part-00000" / "x.npy", one / "x.npy")
    for copied, words in (
        (None, r"part-00001/x\.npy: damaged"),
        ("s/part-00000", "part-00001: holds part 0; it was copied over part 1"),
        ("other/part-00001", "part-00001: is not the part that was written"),
    ):
        if copied is not None:
            shutil.rmtree(one)
            shutil.copytree(tmp_path / copied, one)
        with pytest.raises(InputError, match=words):
            open_shards(tmp_path / "s").block(1)


NO_JSON = ["", "{", "[]", "null", "[" * 100_000, '{"a": ' * 50_000, "9" * 5000, "{}", "\xff"]


def test_descriptions_that_are_none(tmp_path):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    for text in (*NO_JSON, '{"part": 0}'):
        (tmp_path / "s" / "part-00000" / "part.json").write_text(text)
        with pytest.raises(InputError, match="part-00000: is not the part that was written"):
            open_shards(tmp_path / "s").block(0)
    for directory, words in (
        (tmp_path, r"not a graph directory: it has no meta\.json"),
        (tmp_path / "nowhere", "nowhere: no such directory"),
    ):
        with pytest.raises(InputError, match=words):
            open_shards(directory)
    old = {"name": "g", "vertices": 3, "offsets": [0, 3], "edges": 2}
    older = {"format": "spgnn-csr", "version": 1, "vertices": 3, "edges": 2}
    for text, words in (
        *((text, "not (JSON|a JSON|the description)") for text in NO_JSON),
        (json.dumps(old), ".*make the directory again with spgnn shard GRAPH"),
        (json.dumps(older), ".*make the directory again with spgnn shard GRAPH"),
        ('{"format": "spgnn-graph", "version": 9}', "version 9; this program knows 2"),
    ):
        (tmp_path / "meta.json").write_text(text)
        with pytest.raises(InputError, match=rf"meta\.json: {words}"):
            open_shards(tmp_path)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("vertices", [-1, 60.0, True]),
        ("edges", [10**400, -1, "9"]),
        ("classes", [None]),
        ("name", [5, "x" * 2000, "\ud800", "\x1b[31m"]),
        ("directed", [1]),
        ("offsets", [[0, 60, 30], [0, "30", 60], [0, 10**30, 60], [60], [], [[0], 60], [0, 59]]),
        ("offsets", [7, {"0": 1}]),
        ("splits", [[[[]]]]),
        ("digests", [["x"], None]),
    ],
)
def test_senseless_descriptions_are_refused(tmp_path, field, values):
    write_shards(small_graph(), None, 2, tmp_path / "s")
    path = tmp_path / "s" / "meta.json"
    whole = path.read_text()
    for value in values:
        restate(tmp_path / "s", {**json.loads(whole), field: value})
        with pytest.raises(InputError, match=rf"meta\.json: not a? ?(the )?description.*{field}"):
            open_shards(tmp_path / "s")
    path.write_text(whole.replace('"classes": 3', '"classes": 8'))
    with pytest.raises(InputError, match=r"meta\.json: damaged: not what was written"):
        open_shards(tmp_path / "s")
