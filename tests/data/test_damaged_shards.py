from __future__ import annotations

import json
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from spgnn import InputError
from spgnn.data import arrays, open_shards, write_shards
from tests.data.graphs import restate, rewrite, small_graph


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
    for read in (lambda shards: shards.block(0), lambda shards: shards.graph()):
        with pytest.raises(InputError, match=message) as caught:
            read(open_shards(tmp_path / "s"))
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
    for text in ("", "[]", "{", "null", "[" * 100_000, '{"a": ' * 50_000, "9" * 5000, "{}"):
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
        ("edges", -1),
        ("edges", "9"),
        ("classes", None),
        ("name", 5),
        ("name", "x" * 2000),
        ("name", "\ud800"),
        ("name", "\x1b[31m"),
        ("directed", 1),
        ("offsets", [0, 60, 30]),
        ("offsets", [0, "30", 60]),
        ("offsets", [0, 10**30, 60]),
        ("offsets", [60]),
        ("offsets", []),
        ("offsets", [[0], 60]),
        ("offsets", [0, 59]),
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
