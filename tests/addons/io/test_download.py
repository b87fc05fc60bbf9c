from __future__ import annotations

import gzip
import hashlib
import pickle
import socket
import zipfile
from io import BytesIO
from typing import ClassVar
from urllib.error import URLError

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import InputError
from spgnn.__main__ import main
from spgnn.addons.io import downloads as planetoid
from spgnn.addons.io.downloads import OgbSet, fetch, load_ogb, load_reddit
from spgnn.data.load import load_dataset


def digest_of(path):
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def git_id(path):
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def test_a_file_is_fetched_once_and_checked(tmp_path):
    source = tmp_path / "published.bin"
    source.write_bytes(b"hello\n")
    seen = []
    target = tmp_path / "cache" / "kept.bin"
    # `printf 'hello\n' | git hash-object --stdin`
    git = "git:ce013625030ba8dba906f756967f9e9ca394464a"
    for digest in (digest_of(source), git, None):
        fetch(source.as_uri(), target, digest, lambda *args: seen.append(args))
        assert target.read_bytes() == source.read_bytes()
        assert seen[-1] == ("published.bin", 6, 6)
        target.unlink()
    target.write_bytes(b"kept")
    assert fetch("file:///nowhere", target, digest_of(source)).read_bytes() == b"kept"


def test_another_file_than_the_published_one_is_refused(tmp_path):
    source = tmp_path / "published.bin"
    source.write_bytes(b"tampered")
    for digest in ("sha256:" + "0" * 64, "git:" + "0" * 40):
        with pytest.raises(InputError, match=r"not the published file: .* expected 0000"):
            fetch(source.as_uri(), tmp_path / "cache" / "kept.bin", digest)
    assert list(tmp_path.iterdir()) == [source]


def test_without_a_network_the_way_out_is_named(tmp_path, monkeypatch):
    target = tmp_path / "made" / "cache" / "kept.bin"
    missing = (tmp_path / "none").as_uri()
    with pytest.raises(InputError, match="cannot be fetched") as caught:
        fetch(missing, target, None)
    assert f"put the file at {target}" in str(caught.value)
    assert "\n" not in str(caught.value)
    # A port that is taken, and where nobody listens: no network is asked, and no proxy.
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
        with pytest.raises(InputError, match=r"cannot be fetched \(.*refused"):
            fetch(address, target, None)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "made").mkdir()
    with pytest.raises(InputError, match="cannot be fetched"):
        fetch(missing, target, None)
    assert list((tmp_path / "made").iterdir()) == []  # it was there before


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        fetch((tmp_path / "file").as_uri(), tmp_path / "file" / "below", None)


class Python2Sparse:
    """Pickles like a csr_matrix of the SciPy of 2016."""

    def __init__(self, matrix):
        self.matrix = matrix


class Python2Pickler(pickle._Pickler):
    """Writes the names that files of 2016 hold; the Python pickler can be told to."""

    def save_global(self, obj, name=None):
        names = {
            np.ndarray: ("numpy", "ndarray"),
            np.dtype: ("numpy", "dtype"),
            np.empty(0).__reduce__()[0]: ("numpy.core.multiarray", "_reconstruct"),
            Python2Sparse: ("scipy.sparse.csr", "csr_matrix"),
        }
        module, written = names.get(obj, (None, None))
        if module is None:
            super().save_global(obj, name)
        else:
            self.write(b"c" + f"{module}\n{written}\n".encode())
            self.memoize(obj)

    def reducer_override(self, obj):
        if isinstance(obj, Python2Sparse):
            m = obj.matrix
            state = {"_shape": m.shape, "data": m.data, "indices": m.indices, "indptr": m.indptr}
            return *object.__reduce_ex__(obj, 2)[:2], state
        return NotImplemented

    def save_bytes(self, obj):
        self.write(b"T" + len(obj).to_bytes(4, "little") + obj)
        self.memoize(obj)

    dispatch: ClassVar = {**pickle._Pickler.dispatch, bytes: save_bytes}


def pickled(obj):
    file = BytesIO()
    Python2Pickler(file, protocol=2).dump(obj)
    return file.getvalue()


def test_planetoid_files_become_a_graph(tmp_path, monkeypatch):
    # Six vertices: 0 trains, 0–2 are in allx, 5 and 3 are tested, 4 is in no file.
    features = sp.csr_matrix(np.arange(15.0).reshape(5, 3))
    one_hot = np.eye(3, dtype=np.int32)[[0, 2, 1, 2, 0]]
    published = {
        "x": pickled(Python2Sparse(features[:1])),
        "y": pickled(one_hot[:1]),
        "allx": pickled(Python2Sparse(features[:3])),
        "ally": pickled(one_hot[:3]),
        "tx": pickled(Python2Sparse(features[3:])),
        "ty": pickled(one_hot[3:]),
        "graph": pickled({0: [1, 1, 0], 1: [0], 2: [5], 3: [], 4: [], 5: [2, 3]}),
        "test.index": b"5\n3\n",
    }
    ids = {}
    for kind, content in published.items():
        path = tmp_path / f"ind.toy.{kind}"
        path.write_bytes(content)
        ids[kind] = git_id(path)
    monkeypatch.setitem(planetoid.FILES, "toy", ids)
    monkeypatch.setattr(planetoid, "VALIDATION", 2)
    graph = planetoid.load_planetoid("toy", tmp_path / "cache", home=tmp_path.as_uri())
    dense = np.zeros((6, 6), int)
    for u, v in ((0, 1), (2, 5), (3, 5)):
        dense[u, v] = dense[v, u] = 1
    np.testing.assert_array_equal(graph.adjacency.to_scipy().toarray(), dense)
    x = np.zeros((6, 3))
    x[[0, 1, 2, 5, 3]] = features.toarray()
    np.testing.assert_array_equal(graph.x.numpy(), x)
    assert graph.y.tolist() == [0, 2, 1, 0, -1, 2]
    assert graph.train_mask.nonzero().ravel().tolist() == [0]
    assert graph.val_mask.nonzero().ravel().tolist() == [1, 2]
    assert graph.test_mask.nonzero().ravel().tolist() == [3, 5]


def test_other_pickles_are_refused(tmp_path):
    class Mark:
        def __reduce__(self):
            return (open, (str(tmp_path / "opened"), "w"))

    path = tmp_path / "ind.toy.x"
    path.write_bytes(pickle.dumps(Mark(), protocol=2))
    with pytest.raises(InputError, match=r"not the published file: it names \w+\.open"):
        planetoid._unpickle(path)
    assert not (tmp_path / "opened").exists()


def npz_bytes(**arrays):
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_reddit_archive_becomes_a_graph(tmp_path):
    archive = tmp_path / "reddit.zip"
    coo = {"row": [0, 1, 2, 1], "col": [1, 0, 1, 2], "data": np.ones(4), "shape": [3, 3]}
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("reddit_graph.npz", npz_bytes(**coo))
        data = {
            "feature": np.ones((3, 2)),
            "label": np.array([4, 0, 1], np.int32),
            "node_types": np.array([1, 2, 3]),
        }
        files.writestr("reddit_data.npz", npz_bytes(**data))
    graph = load_reddit(
        "reddit", tmp_path / "cache", url=archive.as_uri(), digest=digest_of(archive)
    )
    expected = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert graph.adjacency.to_scipy().toarray().tolist() == expected
    assert graph.x.dtype == torch.float32
    assert graph.y.tolist() == [4, 0, 1]
    assert graph.train_mask.tolist() == [True, False, False]
    assert graph.test_mask.tolist() == [False, False, True]
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("other.txt", "")
    with pytest.raises(InputError, match="not the published file"):
        load_reddit("reddit", tmp_path / "other", url=archive.as_uri(), digest=digest_of(archive))


def ogb_archive(path, *, binary):
    with zipfile.ZipFile(path, "w") as files:

        def table(name, rows):
            text = "".join(",".join(map(str, row)) + "\n" for row in rows)
            files.writestr(f"toy/{name}.csv.gz", gzip.compress(text.encode()))

        edges, x, y = [[0, 1], [2, 1]], [[0.5, -1], [2, 0], [1e-3, 4]], [[1], [0], [3]]
        if binary:
            columns = np.array(edges).T
            files.writestr("toy/raw/data.npz", npz_bytes(edge_index=columns, node_feat=np.array(x)))
            labels = np.array([[1.0], [0.0], [np.nan]])
            files.writestr("toy/raw/node-label.npz", npz_bytes(node_label=labels))
        else:
            table("raw/edge", edges)
            table("raw/node-feat", x)
            table("raw/node-label", y)
        for name, rows in (("train", [[0]]), ("valid", [[2]]), ("test", [])):
            table(f"split/time/{name}", rows)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
def test_ogb_archive_becomes_a_graph(tmp_path, binary, undirected):
    archive = tmp_path / "toy.zip"
    ogb_archive(archive, binary=binary)
    source = OgbSet(archive.as_uri(), digest_of(archive), "time", undirected, binary)
    graph = load_ogb("ogbn-toy", tmp_path / "cache", source=source)
    expected = [[0, 1, 0], [1, 0, 1], [0, 1, 0]] if undirected else [[0, 0, 0], [1, 0, 1], [0] * 3]
    assert graph.adjacency.to_scipy().toarray().tolist() == expected
    assert graph.directed == (not undirected)
    np.testing.assert_array_equal(
        graph.x.numpy(), np.array([[0.5, -1], [2, 0], [1e-3, 4]], np.float32)
    )
    assert graph.y.tolist() == [1, 0, -1 if binary else 3]
    assert graph.train_mask.tolist() == [True, False, False]
    assert graph.val_mask.tolist() == [False, False, True]
    assert not graph.test_mask.any()


def test_ogb_archive_without_its_files(tmp_path):
    archive = tmp_path / "toy.zip"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("toy/readme", "")
    source = OgbSet(archive.as_uri(), digest_of(archive), "time", False)
    with pytest.raises(InputError, match="not the published file"):
        load_ogb("ogbn-toy", tmp_path / "cache", source=source)


@pytest.mark.parametrize("name", ["cora", "reddit", "ogbn-arxiv"])
def test_a_failed_download_leaves_no_directories(tmp_path, monkeypatch, name):
    def unreachable(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    with pytest.raises(InputError, match=r"cannot be fetched \(no network\)"):
        load_dataset(name, tmp_path / "new" / "data")
    assert list(tmp_path.iterdir()) == []


def test_a_download_is_kept_as_npz(tmp_path, monkeypatch):
    archive = tmp_path / "toy.zip"
    ogb_archive(archive, binary=False)
    source = OgbSet(archive.as_uri(), digest_of(archive), "time", False)
    monkeypatch.setitem(planetoid.SETS, "ogbn-arxiv", source)
    graph = load_dataset("ogbn-arxiv", tmp_path / "data")
    archive.unlink()
    (tmp_path / "data" / "raw" / "toy.zip").unlink()
    again = load_dataset("ogbn-arxiv", tmp_path / "data")
    assert torch.equal(again.x, graph.x)
    assert again.edges == graph.edges


def test_names_that_can_be_downloaded_are_suggested(tmp_path, capsys):
    for name, meant in (("corra", "cora"), ("ogbn-arkiv", "ogbn-arxiv")):
        with pytest.raises(InputError, match=f"no data set '{name}'.*did you mean '{meant}'"):
            load_dataset(name, tmp_path)
    for words in (["download", "sbm"], ["download", "corra"]):
        assert main(words) == 2
        assert "data set to download" in (said := capsys.readouterr().err)
        assert ("did you mean 'cora'" in said) == (words[1] == "corra")
