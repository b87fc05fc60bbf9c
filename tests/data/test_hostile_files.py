"""What is no plain file, or is made to do harm: one line at once, and nothing of it is used."""

from __future__ import annotations

import gzip
import json
import os

import numpy as np
import pytest
import scipy.sparse

from spgnn import InputError
from spgnn.addons.io.through_disk import open_through_disk
from spgnn.addons.recommend import open_interactions
from spgnn.data import load_dataset, open_shards, open_source, write_shards
from spgnn.data import reading as text
from spgnn.data.arrays import ArrayRecord, ArrayWriter
from spgnn.data.load import EDGE_FILES, read_graph
from spgnn.data.shards import PART, write_part
from spgnn.partition import read_labels
from spgnn.partition.labels import read_edge_labels
from tests.data.graphs import MTX, PACK, put, restate, small_graph

PIPE = "is a pipe or a device; files are read more than once, so write it to one"


@pytest.mark.parametrize("suffix", ["", *EDGE_FILES, ".npz", ".txt.gz", ".mtx.xz"])
def test_pipes_are_refused_and_not_waited_for(tmp_path, suffix):
    path = tmp_path / f"g{suffix}"
    os.mkfifo(path)
    for read in (
        read_graph,
        load_dataset,
        open_source,
        lambda path: open_through_disk(path, directory=tmp_path / "uncut", memory=4 << 30),
        lambda path: read_labels(path, 3, 2),
        lambda path: read_edge_labels(path, 3, 2),
    ):
        with pytest.raises(InputError, match=PIPE):
            read(path)


def test_what_is_left_of_a_shell_is_refused():
    reading, writing = os.pipe()
    try:
        with pytest.raises(InputError, match=PIPE):
            load_dataset(f"/dev/fd/{reading}")
        with pytest.raises(InputError, match=PIPE):
            load_dataset("/dev/zero")
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("name", ["meta.json", "part-00000/part.json", "part-00000/indices.npy"])
@pytest.mark.parametrize("link", [False, True])
def test_pipes_in_graph_directories(tmp_path, name, link):
    write_shards(small_graph(), None, 1, tmp_path / "d")
    (tmp_path / "d" / name).unlink()
    target = tmp_path / "elsewhere" if link else tmp_path / "d" / name
    os.mkfifo(target)
    if link:
        (tmp_path / "d" / name).symlink_to(target)
    with pytest.raises(InputError, match=PIPE):
        open_shards(tmp_path / "d").graph()


def test_links_in_graph_directories_lead_to_what_was_written_or_nowhere(tmp_path):
    """Arrays may lie on another disk; digests say that they are those of the graph."""
    write_shards(small_graph(), None, 1, tmp_path / "d")
    array = tmp_path / "d" / "part-00000" / "indices.npy"
    array.rename(tmp_path / "moved.npy")
    array.symlink_to(tmp_path / "moved.npy")
    assert open_shards(tmp_path / "d").graph().edges == small_graph().edges
    array.unlink()
    changed = bytearray((tmp_path / "moved.npy").read_bytes())
    changed[-4:] = b"\0\0\0\0" if changed[-4:] != b"\0\0\0\0" else b"\1\0\0\0"
    (tmp_path / "other.npy").write_bytes(changed)
    array.symlink_to(tmp_path / "other.npy")
    with pytest.raises(InputError, match="damaged: its numbers are not those that were written"):
        open_shards(tmp_path / "d").graph()


@pytest.mark.parametrize("name", ["../../secret", "/secret", "indices/../../../secret", "more"])
def test_descriptions_lead_nowhere_else(tmp_path, name):
    write_shards(small_graph(), None, 1, tmp_path / "d")
    writer = ArrayWriter(tmp_path / "secret.npy", np.arange(3))
    writer.append(np.arange(3))
    folder = tmp_path / "d" / "part-00000"
    described = json.loads((folder / PART).read_text())["arrays"]
    records = {key: ArrayRecord.of(key, entry) for key, entry in described.items()}
    digest = write_part(folder, 0, records | {name: writer.finish()})
    meta = json.loads((tmp_path / "d" / "meta.json").read_text())
    restate(tmp_path / "d", meta | {"digests": [digest]})
    with pytest.raises(InputError, match=r"part\.json names an array '.*', which no part has"):
        open_shards(tmp_path / "d").check()


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("content", [b"# " + b"x" * (1 << 20), b"0 1\n" * (1 << 18)])
def test_text_that_unpacks_to_far_more_than_its_file(tmp_path, monkeypatch, suffix, content):
    """One line, or many equal ones: refused before all of it is in memory."""
    path = tmp_path / f"g.txt{suffix}"
    path.write_bytes(PACK[suffix](b"0 1\n" + content))
    monkeypatch.setattr(text, "_SMALL_TEXT", 1 << 19)
    for read in (read_graph, lambda path: open_interactions(str(path))):
        with pytest.raises(InputError, match="unpacks to more than 100 times its size; if that is"):
            read(path)
    monkeypatch.setattr(text, "_SMALL_TEXT", 1 << 21)
    assert read_graph(path).edges == 1


def test_arrays_far_larger_than_their_file(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    ends = {"source": np.zeros(1 << 18, np.int64), "target": np.ones(1 << 18, np.int64)}
    pq.write_table(pa.table(ends), tmp_path / "e.parquet")
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    for name, new in (("e.feather", pa.ipc.new_file), ("e.arrow", pa.ipc.new_stream)):
        with new(str(tmp_path / name), pa.table(ends).schema, options=options) as file:
            file.write_table(pa.table(ends))
    A = scipy.sparse.csr_array((4, 4))
    x = np.zeros((4, 1 << 18), np.float32)
    np.savez_compressed(
        tmp_path / "g.npz", indptr=A.indptr, indices=A.indices, shape=np.array(A.shape), x=x
    )
    put(tmp_path, "g.mtx", MTX + "pattern general\n200000 200000 1\n1 2\n")
    put(tmp_path, "g.txt", "# Nodes: 200000\n0 1\n")
    names = ("e.parquet", "e.feather", "e.arrow", "g.npz", "g.mtx", "g.txt")
    for name in names:
        assert load_dataset(tmp_path / name).vertices
    monkeypatch.setattr(text, "_SMALL_ARRAY", 1 << 20)
    monkeypatch.setattr(text, "_MOST_ARRAY", 50)
    for name in names:
        with pytest.raises(InputError, match="more than 50 times as much; if that is right, "):
            load_dataset(tmp_path / name)


@pytest.mark.parametrize("name", ["g.txt.gz", "g.mtx.gz", "g.graph.gz"])
def test_lines_without_an_end(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text, "PIECE", 1 << 10)
    monkeypatch.setattr(text, "memory_limit", lambda: 1 << 16)
    head = {"g.txt.gz": b"0 1\n", "g.graph.gz": b"2 1\n"}.get(
        name, b"%%MatrixMarket matrix coordinate pattern general\n2 2 1\n"
    )
    (tmp_path / name).write_bytes(gzip.compress(head + b"1" * (1 << 20)))
    with pytest.raises(InputError, match="has a line of more than 2048 bytes"):
        read_graph(tmp_path / name)


def test_comments_without_an_end_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_LONGEST_HEAD", 64)
    lines = ["# Undirected graph", *["# nothing"] * 1000, "# Nodes: 9", "0 1"]
    graph = read_graph(put(tmp_path, "g.txt", "\n".join(lines)))
    assert (graph.vertices, graph.directed) == (2, False)
