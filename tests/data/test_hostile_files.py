"""What is no plain file, or is made to do harm: one line at once, and nothing of it is used."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import scipy.sparse

from spgnn import InputError, files
from spgnn.data import load_dataset, open_shards, open_source, write_shards
from spgnn.data.arrays import ArrayRecord, ArrayWriter
from spgnn.data.load import read_graph
from spgnn.data.shards import PART, write_part
from spgnn.partition import read_labels
from spgnn.partition.labels import read_edge_labels
from tests.data.graphs import restate, small_graph

PIPE = "is a pipe or a device; files are read more than once, so write it to one"


def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path):
    reading, writing = os.pipe()  # what is left of a shell
    paths = [tmp_path / "g", tmp_path / "g.npz", f"/dev/fd/{reading}", "/dev/zero"]
    for path in paths[:2]:
        os.mkfifo(path)
    for path in paths:
        for read, *more in (
            *((read_graph,), (load_dataset,), (open_source,)),
            *((read_labels, 3, 2), (read_edge_labels, 3, 2)),
        ):
            with pytest.raises(InputError, match=PIPE):
                read(path, *more)
    for end in (reading, writing):
        os.close(end)


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


def test_arrays_far_larger_than_their_file(tmp_path, monkeypatch):
    A, x = scipy.sparse.csr_array((4, 4)), np.zeros((4, 1 << 18), np.float32)
    named = {"indptr": A.indptr, "indices": A.indices, "shape": np.array(A.shape), "x": x}
    np.savez_compressed(tmp_path / "g.npz", **named)
    assert load_dataset(tmp_path / "g.npz").vertices
    monkeypatch.setattr(files, "_SMALL_ARRAY", 1 << 20)
    monkeypatch.setattr(files, "_MOST_ARRAY", 50)
    with pytest.raises(InputError, match="more than 50 times as much; if that is right, "):
        load_dataset(tmp_path / "g.npz")
