"""Parquet and Arrow: graphs and pairs against the same arrays in memory; what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch

from spgnn import InputError, distribute
from spgnn.__main__ import main
from spgnn.addons.io import columns
from spgnn.addons.io.parquet import is_tabular, read_pairs
from spgnn.addons.io.through_disk import open_through_disk
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import load_dataset, open_shards, write_shards
from spgnn.testing import run_ranks
from spgnn.train import train as command
from tests.addons.io.pieces import small_pieces
from tests.addons.io.test_through_disk import MEMORY, same_graph
from tests.training import write_dataset


def write(path, table, rows_a_group=7):
    """A table as a file, in the format of the suffix."""
    table = pa.table(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows_a_group)
    elif path.suffix == ".feather":
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(str(path), table.schema, options=options) as file:
            file.write_table(table, max_chunksize=rows_a_group)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=rows_a_group)
    return path


def pandas(table, *index):
    """A table with what pandas' to_parquet says of its index: columns, or ranges."""
    index = [entry if isinstance(entry, str) else range_of(entry) for entry in index]
    stated = json.dumps({"index_columns": index, "columns": []})
    return pa.table(table).replace_schema_metadata({"pandas": stated})


def range_of(numbers):
    first, step = numbers.start, numbers.step
    return {"kind": "range", "name": None, "start": first, "stop": numbers.stop, "step": step}


def names_of(numbers):
    """Ids as strings: of many lengths, with a common beginning, and not in the numbers' order."""
    return np.array([f"https://{'é' * (i % 5)}{7 * i % 101}/{i}" for i in range(200)])[numbers]


IDS = {
    "integers": lambda numbers: pa.array(numbers.astype(np.int32)),
    "sparse": lambda numbers: pa.array(numbers.astype(np.uint64) * 10**12 + 5),
    "strings": lambda numbers: pa.array(names_of(numbers)),
    "large": lambda numbers: pa.array(names_of(numbers), pa.large_string()),
    "bytes": lambda numbers: pa.array([name.encode() for name in names_of(numbers)], pa.binary()),
    "views": lambda numbers: pa.array(names_of(numbers)).cast(pa.string_view()),
    "dictionary": lambda numbers: pa.array(names_of(numbers)).dictionary_encode(),
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(columns, "BATCH_ROWS", 16)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_edges_are_those_of_the_columns(tmp_path, kind, suffix, weighted):
    rng = np.random.default_rng(len(kind))
    source, target = rng.integers(0, 40, (2, 150))
    source[:40] = np.arange(40)  # every vertex occurs
    weights = np.where(rng.random(150) < 0.5, 0.1, 2.5)
    table = {"dst_id": IDS[kind](target), "src_id": IDS[kind](source)}
    if weighted:
        table["weight"] = pa.array(weights)
    table = pa.table(table)
    for number, rows in enumerate((slice(0, 60), slice(60, 61), slice(61, 150))):
        length = rows.stop - rows.start
        write(tmp_path / "g" / f"part-{number}{suffix}", table.slice(rows.start, length))
    (tmp_path / "g" / "_SUCCESS").touch()

    ids = IDS[kind](np.arange(40)).to_pylist()
    order = np.argsort(np.argsort(ids)) if kind != "dictionary" else None
    if order is None:
        order = np.argsort(np.argsort(names_of(np.arange(40))))
    wanted = sp.coo_array(
        (weights if weighted else np.ones(150), (order[target], order[source])), shape=(40, 40)
    ).tocsr()
    for name in ("g", f"g/part-*{suffix}"):
        graph = load_dataset(tmp_path / name)
        found = graph.adjacency.to_scipy()
        assert (found != 0).nnz == ((found != 0).multiply(wanted != 0)).nnz == wanted.nnz
        if weighted:
            assert np.allclose(found.toarray(), wanted.toarray())
        if kind == "sparse":
            assert graph.vertex_ids.tolist() == sorted(ids)
    uncut = open_through_disk(tmp_path / "g", directory=tmp_path / "uncut", memory=MEMORY)
    same_graph(uncut.graph(), load_dataset(tmp_path / "g"))
    if kind in ("integers", "sparse"):
        assert not (tmp_path / "uncut" / "ids.parquet").exists()
    else:
        kept = pq.read_table(tmp_path / "uncut" / "ids.parquet")["id"].to_pylist()
        assert kept == sorted(ids)


def vertex_table(ids, rng):
    n = len(ids)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return {
        "id": ids,
        "name": pa.array(["…"] * n),
        "x": pa.FixedSizeListArray.from_arrays(x.ravel(), 3),
        "label": pa.array(np.arange(n) % 3, mask=np.arange(n) == 4),
        "train_mask": np.arange(n) < 9,
        "val_mask": np.arange(n) > 20,
    }, x


@pytest.mark.parametrize("kind", ["integers", "sparse", "strings"])
def test_a_table_of_vertices_numbers_them(tmp_path, kind):
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 30, (2, 100))
    folder, order = tmp_path / "g", rng.permutation(30)
    ends = {"source": IDS[kind](order[source]), "target": IDS[kind](order[target])}
    write(folder / "edges.parquet", ends)
    table, x = vertex_table(IDS[kind](order), rng)
    whole = pa.table(table)
    write(folder / "nodes" / "a.parquet", whole.slice(0, 11))
    write(folder / "nodes" / "b.parquet", whole.slice(11))
    graph = load_dataset(folder)
    wanted = sp.coo_array((np.ones(100), (target, source)), shape=(30, 30)).tocsr()
    assert ((graph.adjacency.to_scipy() != 0) != (wanted != 0)).nnz == 0
    assert np.array_equal(graph.x, x)
    assert graph.y.tolist() == [-1 if i == 4 else i % 3 for i in range(30)]
    assert int(graph.train_mask.sum()) == 9
    assert graph.test_mask is None
    if kind != "strings":
        assert graph.vertex_ids.tolist() == IDS[kind](order).to_pylist()
    uncut = open_through_disk(folder, directory=tmp_path / "uncut", memory=MEMORY)
    same_graph(uncut.graph(), graph)
    assert torch.equal(uncut.graph().x, graph.x)


@pytest.mark.parametrize("kind", ["integers", "strings"])
def test_edges_have_features(tmp_path, kind):
    """They follow their edges: into memory, by way of a disk, and into parts of another order."""
    rng = np.random.default_rng(0)
    places = rng.permutation(20 * 20)[:90]
    places[:20] = 21 * np.arange(20)
    places = np.unique(places)
    source, target = np.divmod(rng.permutation(places), 20)
    attr = rng.normal(size=(len(source), 2)).astype(np.float32)
    table = {"source": IDS[kind](source), "target": IDS[kind](target), "edge_attr": list(attr)}
    path = write(tmp_path / "e.parquet", {**table, "time": source, "weight": source + 0.5})
    ids = IDS[kind](np.arange(20)).to_pylist()
    wanted = {(ids[u], ids[v]): row for u, v, row in zip(source, target, attr, strict=True)}
    with small_pieces(1 << 20, 8):
        uncut = open_through_disk(path, directory=tmp_path / "uncut", memory=MEMORY)
    write_shards(uncut, rng.permutation(20) % 3, 3, tmp_path / "cut")
    uncut.check()
    for graph in (load_dataset(path), uncut.graph(), open_shards(tmp_path / "cut").graph()):
        stood = np.arange(20) if graph.vertex_ids is None else graph.vertex_ids.numpy()
        names = np.array(sorted(ids))[stood].tolist()
        rows, columns = graph.adjacency.to_scipy().tocoo().coords
        found = zip(columns, rows, graph.edge_attr.numpy(), strict=True)
        assert {(names[u], names[v]): tuple(row) for u, v, row in found} == {
            edge: tuple(row) for edge, row in wanted.items()
        }
    with pytest.raises(InputError, match="symmetrise: edges have features"):
        open_through_disk(path, directory=tmp_path / "o", memory=MEMORY, symmetrise=True)
    twice = pa.concat_tables([pa.table(table), pa.table(table).slice(3, 1)])
    write(path, twice)
    for read in (load_dataset, partial(open_through_disk, directory="o", memory=MEMORY)):
        with pytest.raises(InputError, match=r"two edges from vertex \d+ to \d+; an edge with"):
            read(path)


def test_several_columns_are_features(tmp_path):
    write(tmp_path / "edges.parquet", {"a": [0, 1], "b": [1, 2]})
    write(tmp_path / "nodes.parquet", {"age": [3, 4, 5], "rich": [True, False, True]})
    graph = load_dataset(tmp_path)
    assert graph.x.tolist() == [[3, 1], [4, 0], [5, 1]]
    assert graph.vertex_ids is None


INDEX = "__index_level_0__"
V = {"id": [2, 0, 1], "a": [0.3, 0.1, 0.2], "b": [3.0, 1.0, 2.0]}
X = [[np.float32(0.3), 3], [np.float32(0.1), 1], [np.float32(0.2), 2]]
SHUFFLED = {INDEX: [2, 0, 1]}
RIGHT_INDEX = {
    "after a shuffle": (pandas(V | SHUFFLED, INDEX), X),
    "by name alone": (V | SHUFFLED, X),
    "after reset_index()": (V | {"index": [2, 0, 1], "level_1": [5, 6, 7]}, X),
    "from CSV": (V | {"Unnamed: 0": [0, 1, 2]}, X),
    "of the ids": (pandas(V, "id"), X),
    "with a name": (pandas({**V, "year": [2, 0, 1]}, "year"), X),
    "in order": (pandas({"a": V["a"], INDEX: [0, 1, 2]}, INDEX), [row[:1] for row in X]),
    "a range": (pandas({"a": V["a"]}, range(3)), [row[:1] for row in X]),
}
WRONG_INDEX = [
    pandas({"a": V["a"]} | SHUFFLED, INDEX),
    {"a": V["a"]} | SHUFFLED,
    pandas({"a": V["a"], "paper": [5, 6, 7]}, "paper"),
    pandas({"a": V["a"]}, range(5, 8)),
    pandas({"a": V["a"]}, range(2, -1, -1)),
    pandas({"a": V["a"]}, range(0, 6, 2)),
    {"a": V["a"], "Unnamed: 0": ["x", "y", "z"]},
    {"a": V["a"], "index": [2, 0, 1]},
    {"a": V["a"], "level_0": [2, 0, 1]},
]


def test_an_index_of_pandas_is_no_feature(tmp_path):
    write(tmp_path / "edges.parquet", pandas({"u": [0, 1], "v": [1, 2], INDEX: [7, 9]}, INDEX))
    for case, (table, x) in RIGHT_INDEX.items():
        for suffix in (".parquet", ".arrow"):
            path = write(tmp_path / f"vertices{suffix}", table)
            graph = load_dataset(tmp_path)
            assert graph.x.tolist() == x, case
            assert (graph.vertex_ids is None) == ("id" not in pa.table(table).column_names)
            assert graph.edges == 2
            path.unlink()
    for table in WRONG_INDEX:
        path = write(tmp_path / "vertices.parquet", table)
        with pytest.raises(InputError, match=r"vertices.parquet: no column 'id', and an index of"):
            load_dataset(tmp_path)
    path.unlink()
    for first in (0, 3):  # two files, numbered in each or in both
        for number, begin in enumerate((0, first)):
            table = pandas({"a": [1.0, 2.0, 3.0]}, range(begin, begin + 3))
            write(tmp_path / "nodes" / f"{number}.parquet", table)
        assert load_dataset(tmp_path).x[:, 0].tolist() == [1, 2, 3, 1, 2, 3]
    write(tmp_path / "nodes" / "1.parquet", pandas({"a": [1.0, 2.0, 3.0]}, range(4, 7)))
    with pytest.raises(InputError, match=r"1.parquet: no column 'id'"):
        load_dataset(tmp_path)
    pairs = read_pairs(
        write(tmp_path / "p.parquet", pandas({"x": [5, 6], "y": [7, 8], INDEX: [1, 0]}, INDEX))
    )
    assert (pairs.first_ids.to_pylist(), pairs.second_ids.to_pylist()) == ([5, 6], [7, 8])
    pairs = read_pairs(write(tmp_path / "p.parquet", {"index": [1, 0], "x": [5, 6], "y": [7, 8]}))
    assert (pairs.first_ids.to_pylist(), pairs.second_ids.to_pylist()) == ([5, 6], [7, 8])
    for broken in (
        b"{",
        b"[" * 10000,
        b'{"index_columns": 5}',
        b'{"index_columns": [{"kind": 3}]}',
    ):
        whole = pa.table(V).replace_schema_metadata({b"pandas": broken})
        write(tmp_path / "nodes" / "1.parquet", whole)
        os.replace(tmp_path / "nodes" / "1.parquet", tmp_path / "nodes" / "0.parquet")
        assert load_dataset(tmp_path).x.tolist() == X


LATER = {
    "weight": ({"weight": [5.0, 7.0]}, {}),
    "edge_attr": ({"edge_attr": [5.0, 7.0]}, {}),
    "y": ({}, {"y": [1, 0]}),
    "train_mask": ({}, {"train_mask": [True, False]}),
    "x": ({}, {"x": [[1.0], [2.0]]}),
    "age": ({}, {"age": [1, 2]}),
}


def test_columns_that_only_a_later_file_has_are_refused(tmp_path):
    edges, vertices = {"source": [0, 1], "target": [1, 2]}, {"id": [0, 1], "b": [1.5, 2.5]}
    for name, (more_edges, more_vertices) in LATER.items():
        for order in ("ab", "ba"):
            folder = tmp_path / name / order
            for which, file in enumerate(order):
                write(folder / "edges" / f"{file}.parquet", edges | (more_edges if which else {}))
                ids = {"id": [2 * which, 2 * which + 1]}
                table = vertices | ids | (more_vertices if which else {})
                write(folder / "nodes" / f"{file}.parquet", table)
            lacking, has = order
            words = f"{lacking}.parquet: no column '{name}'; it has .*; {has}.parquet has one"
            if order == "ba":
                words = f"{lacking}.parquet: no column '{name}'; it has"
            with pytest.raises(InputError, match=words):
                load_dataset(folder)
    write(tmp_path / "t" / "edges.parquet", edges)
    write(tmp_path / "t" / "nodes" / "a.parquet", {"id": [0, 1], "age": ["x", "y"]})
    write(tmp_path / "t" / "nodes" / "b.parquet", {"id": [2, 3], "age": [1, 2]})
    with pytest.raises(InputError, match=r"b.parquet: column 'age' is int64, but string in"):
        load_dataset(tmp_path / "t")


def test_labels_that_are_floating_for_what_is_missing_are_classes(tmp_path):
    write(tmp_path / "edges.parquet", {"a": [0, 1], "b": [1, 2]})
    nan = float("nan")
    for y, wanted in (
        ([0.0, 1.0, nan], [-1, 0, 1]),
        (pa.array([0.0, 1.0, None]), [-1, 0, 1]),
        ([0.0, 1.0, 2.0], None),
        ([0.5, 1.0, nan], None),
        ([4000.0, 1.0, nan], None),
        ([nan, nan, nan], None),
        ([-3.0, 1.0, nan], None),
        ([[1.0], [0.0], [nan]], None),
        ([Decimal("1.50"), Decimal("2.00"), None], None),
    ):
        write(tmp_path / "vertices.parquet", {"id": [1, 2, 0], "y": y})
        labels = load_dataset(tmp_path).y
        if wanted is not None:
            assert (labels.dtype, labels.tolist()) == (torch.int64, [0, 1, -1])
        else:
            given = pa.array(y).cast(pa.float64()) if not isinstance(y[0], list) else pa.array(y)
            values = np.array(given.to_pylist(), np.float32).reshape(3, 1)
            np.testing.assert_array_equal(labels.numpy(), values)


def test_columns_are_known_by_their_names_or_refused(tmp_path, caplog):
    ends = {"source_id": [0, 1], "targetId": [1, 2]}
    for more in ({}, {"from_type": ["a", "b"]}, {"src_port": [1, 2]}):
        assert load_dataset(write(tmp_path / "e.parquet", ends | more)).edges == 2
    assert "not read: columns src_port" in caplog.text
    turned = {"to_page": [1, 2], "from_page": [0, 1], "weight": [2, 3]}
    graph = load_dataset(write(tmp_path / "e.parquet", turned))
    assert graph.adjacency.to_scipy().toarray()[1, 0] == 2
    banks = {"From Bank": [1, 2], "Account": ["a", "b"], "To Bank": [2, 2], "Account.1": ["c", "a"]}
    path = write(tmp_path / "e.parquet", banks)
    with pytest.raises(InputError, match=r"'From Bank' and 'Account' may both be the source; name"):
        load_dataset(path)
    assert load_dataset(f"{path}@source=Account,target=Account.1").vertices == 3
    write(tmp_path / "e.parquet", ends)
    write(tmp_path / "vertices.parquet", {"pos_x": [1.0, 2, 3], "pos_y": [4.0, 5, 6]})
    graph = load_dataset(tmp_path)
    assert (graph.x.tolist(), graph.y) == ([[1, 4], [2, 5], [3, 6]], None)
    write(tmp_path / "vertices.parquet", {"y": [1, 2, 0], "label": [4, 5, 6]})
    with pytest.raises(InputError, match=r"'y' and 'label' may both be the label; name one: FILE@"):
        load_dataset(tmp_path)
    price = {"price": pa.array([Decimal("1.50"), Decimal("2.00"), Decimal("0.25")])}
    write(tmp_path / "vertices.parquet", {**price, "born": np.array([1, 2, 3], "datetime64[s]")})
    assert load_dataset(tmp_path).x.tolist() == [[1.5], [2], [0.25]]
    assert "not read: columns born" in caplog.text


def test_names_that_paths_may_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "c++" / os.fsdecode(b"caf\xe9")
    folder.mkdir(parents=True)
    for suffix in (".parquet", ".arrow", ".feather"):
        path = folder / f"a+b{suffix}"
        with path.open("wb") as file:
            if suffix == ".parquet":
                pq.write_table(pa.table(EDGES), file)
            else:
                pa.ipc.new_file(file, pa.table(EDGES).schema).close()
        places = (f"{path}@source=src,target=dst", f"{folder}/*{suffix}", path, path.parent)
        for place in places if suffix == ".parquet" else ():
            assert load_dataset(place).edges == 3
            assert open_through_disk(place, directory="o", memory=MEMORY).meta.edges == 3
            __import__("shutil").rmtree("o")
        if suffix != ".parquet":
            with pytest.raises(InputError, match="holds no edges"):
                load_dataset(path)
        path.unlink()
    write(tmp_path / "e.parquet", EDGES)
    for read in (load_dataset, partial(open_through_disk, directory="o", memory=MEMORY)):
        with pytest.raises(InputError, match=r"c\+\+/missing.npz: no such file"):
            read("c++/missing.npz")
        with pytest.raises(
            InputError, match=r"e.parquet\+missing, data sets joined by '\+': no dat"
        ):
            read("e.parquet+missing")
    assert load_dataset("e.parquet+e.parquet").edges == 6
    (tmp_path / "v.feather").write_bytes(b"FEA1" + bytes(20))
    with pytest.raises(InputError, match=r"v.feather: is Feather of version 1; write it with"):
        load_dataset("v.feather")
    # Names of columns that are no text, and a table of no vertices.
    path = write(tmp_path / "t" / "e.arrow", {"source": [0], "target": [1]})
    path.write_bytes(path.read_bytes().replace(b"target", b"targ\xfft"))
    with pytest.raises(InputError, match=r"e.arrow: truncated or damaged: 'utf-8' codec"):
        load_dataset(path)
    path.unlink()
    write(tmp_path / "t" / "edges.parquet", {"source": [0], "target": [1]})
    write(tmp_path / "t" / "nodes.parquet", {"y": pa.array([], pa.int64())})
    with pytest.raises(InputError, match=r"row 0, column 'source': 0 is not a vertex of"):
        load_dataset(tmp_path / "t")


@pytest.mark.parametrize("more", [[], ["--memory", "3GB"]])
def test_ids_stay_beside_the_parts(tmp_path, capsys, more):
    path = write(tmp_path / "e.parquet", {"u": ["b", "a", "d"], "v": ["c", "b", "a"]})
    arguments = ["shard", f"{path}@source=u,target=v", "--parts", "2", "--output"]
    labels = tmp_path / "labels"
    labels.write_text("1\n0\n1\n0\n")
    assert main([*arguments, str(tmp_path / "out"), "--partition", str(labels), *more]) == 0
    again = tmp_path / "again"
    assert main(["shard", str(tmp_path / "out"), "--parts", "1", "--output", str(again)]) == 0
    for directory in (tmp_path / "out", again):
        ids = pq.read_table(directory / "ids.parquet")["id"].to_pylist()
        assert ids == ["a", "b", "c", "d"]
        graph = open_shards(directory).graph()
        stood = [ids[i] for i in graph.vertex_ids]
        rows = zip(stood, graph.adjacency.to_scipy().toarray(), strict=True)
        edges = {(stood[int(np.argmax(row))], vertex) for vertex, row in rows if row.any()}
        assert edges == {("b", "c"), ("a", "b"), ("d", "a")}


def test_pairs_have_numbers_of_their_own(tmp_path):
    table = {"user_id": ["eve", "bob", "bob"], "movie": [70, 9, 70], "rating": [1, 5, 2]}
    pairs = read_pairs(write(tmp_path / "train.parquet", table))
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([1, 0, 0], [1, 0, 1])
    assert pairs.first_ids.to_pylist() == ["bob", "eve"]
    assert pairs.second_ids.to_pylist() == [9, 70]
    assert pairs.weights.tolist() == [1, 5, 2]


EDGES = {"src": [0, 1, 2], "dst": [1, 2, 0]}
BAD = {
    "null": ({"src": [0, None, 2], "dst": [1, 2, 0]}, "row 1, column 'src': there is none (null)"),
    "negative": ({"src": [0, 1, 2], "dst": [1, -7, 0]}, "row 1, column 'dst': -7 is not a vertex"),
    "floating": ({"src": [0.0, 1.0], "dst": [1, 2]}, "column 'src' is double; an id is"),
    "kinds": ({"src": ["a"], "dst": [1]}, "ids are of one kind"),
    "one": ({"src": [1]}, "no column is named target; it has src. Name two"),
    "three": ({"a": [1], "b": [2], "c": [3]}, "no column is named source"),
    "two": ({"src": [1], "from": [1], "dst": [2]}, "may both be the source; name one: FILE@"),
    "none": ({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())}, "holds no edges"),
    "weight": ({**EDGES, "weight": [1, float("inf"), 2]}, "row 1, column 'weight': inf is not"),
    "large": ({**EDGES, "weight": [1, 2, 2**24 + 1]}, "row 2, column 'weight': 16777217 is not"),
    "words": ({**EDGES, "weight": ["1", "2", "3"]}, "column 'weight' is string; it must be num"),
    "unsigned": ({"src": pa.array([2**64 - 1], pa.uint64()), "dst": [0]}, "integer of 63 bits"),
}
VERTICES = {
    "missing": ({"id": [0, 2], "x": [1, 2]}, "row 1, column 'src': '1' is not an id of"),
    "short": ({"x": [1, 2]}, "row 2, column 'src': 2 is not a vertex of"),
    "twice": ({"id": [0, 1, 1, 2]}, "row 2, column 'id': '1' is not an id that no row before"),
    "lists": ({"x": [[1, 2], [1, 2], [3]]}, "row 2, column 'x': a list of 1 is not 2"),
    "nan": ({"x": [1.0, float("nan"), 2.0]}, "row 1, column 'x': nan is not finite"),
    "element": (
        {"x": [[1.0, 2.0], [0.0, 0.0], [0.5, float("nan")]]},
        "row 2, column 'x': element 1, nan, is not finite in float32",
    ),
    "exact": (
        {"x": [[1, 2], [2**24 + 1, 0], [5, 6]]},
        "row 1, column 'x': element 0, 16777217, is not a whole number that float32 holds",
    ),
    "gap": ({"y": [0, 1, 10**6]}, "column 'y': row 2 is 1000000; a class"),
    "mask": ({"train_mask": [0, 1, 1]}, "column 'train_mask' must be bool"),
    "strings": ({"id": ["a", "b", "c"]}, "column 'id' is string, but edges name integers"),
    "labels": ({"y": ["a", "b", "c"]}, "column 'y' is string; it must be numbers"),
}


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("case", [*BAD, *VERTICES])
def test_bad_tables_are_one_line(tmp_path, case, disk):
    table, words = BAD.get(case) or VERTICES[case]
    write(tmp_path / "g" / "edges.parquet", EDGES if case in VERTICES else table)
    if case in VERTICES:
        write(tmp_path / "g" / "vertices.parquet", table)
    read = partial(open_through_disk, directory=tmp_path / "out", memory=MEMORY)
    with pytest.raises(InputError) as error:
        (read if disk else load_dataset)(tmp_path / "g")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert ".parquet" in str(error.value) or case == "none"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g"]


def test_files_of_one_table_agree(tmp_path):
    write(tmp_path / "a.parquet", EDGES)
    write(tmp_path / "b.parquet", {"src": ["0"], "dst": ["1"]})
    with pytest.raises(InputError, match=r"b.parquet: column 'src' is string, but int64 in"):
        load_dataset(tmp_path / "*.parquet")
    write(tmp_path / "b.parquet", {"src": [0], "to": [1]})
    with pytest.raises(InputError, match=r"b.parquet: no column 'dst'; it has src, to"):
        load_dataset(tmp_path)
    null = pa.DictionaryArray.from_arrays([0, 1], ["a", None])
    path = write(tmp_path / "d" / "d.arrow", {"src": null, "dst": ["b", "c"]})
    with pytest.raises(InputError, match=r"d.arrow, row 1, column 'src': there is none \(null\)"):
        load_dataset(path)
    with pytest.raises(InputError, match=r"no such files"):
        load_dataset(tmp_path / "c-*.parquet")
    with pytest.raises(InputError, match=r"no column 'u'; it has src, dst"):
        load_dataset(f"{tmp_path / 'a.parquet'}@source=u,target=v")
    with pytest.raises(InputError, match=r"a.parquet@ src: choose one of source, target, weight"):
        load_dataset(f"{tmp_path / 'a.parquet'}@src=u")
    assert not is_tabular("reddit-like@0.01,seed=3")
    assert not is_tabular("sbm@seed=3")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
def test_damaged_files_are_one_line(tmp_path, suffix):
    """Wherever a byte is wrong: the graph as it was, or one that is valid, or one line."""
    path = write(tmp_path / f"e{suffix}", {"src": ["a", "b"] * 20, "dst": ["b", "c"] * 20})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"e\.\w+: (truncated or damaged|holds no edges)"):
        load_dataset(path)
    lines = []
    for place in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            load_dataset(path)
        except InputError as error:
            lines.append(str(error))
    assert not any("\n" in line for line in lines)


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = tmp_path / "e.parquet"
    path.touch()
    with pytest.raises(InputError, match=r"e.parquet: needs the package pyarrow: pip install"):
        load_dataset(path)


@pytest.mark.slow
def test_a_conversion_that_is_killed(tmp_path):
    """It leaves nothing of that name, and the next one removes what lies there."""
    ends = np.random.default_rng(0).integers(0, 10**5, (2, 2 * 10**6))
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"source": ends[0].astype(str), "target": ends[1].astype(str)}), path)
    output = tmp_path / "out"
    command = [sys.executable, "-m", "spgnn", "shard", path, "--parts", "1", "--memory", "3GB"]
    command += ["--output", output]
    killed = subprocess.Popen(command)
    # The log of edges is being written.
    while not list(tmp_path.glob("**/sorting/edges")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert sorted(item.name for item in tmp_path.iterdir() if item.name[0] != ".") == ["e.parquet"]
    subprocess.run(command, check=True)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["e.parquet", "out"]
    assert open_shards(output).meta.vertices == pq.read_table(output / "ids.parquet").num_rows


@pytest.mark.parametrize("ids", ["strings", "sparse"])
def test_predictions_have_the_ids_of_the_data(tmp_path, ids):
    """On three ranks as on one of the same graph without ids, in the order of the data's."""
    path = write_dataset(tmp_path / "graph.npz")
    graph = load_dataset(path)
    n, A = graph.vertices, graph.adjacency.to_scipy().tocoo()
    numbers = np.random.default_rng(0).permutation(n) * 10**9
    named = pa.array([f"v{i}" for i in numbers]) if ids == "strings" else pa.array(numbers)
    (tmp_path / "tables").mkdir()
    edges = pa.table({"source": named.take(A.coords[1]), "target": named.take(A.coords[0])})
    pq.write_table(edges, tmp_path / "tables" / "edges.parquet")
    masks = {name: getattr(graph, name).numpy() for name in ("train_mask", "val_mask", "test_mask")}
    columns = {"id": named, "x": list(graph.x.numpy()), "y": graph.y.numpy(), **masks}
    pq.write_table(pa.table(columns), tmp_path / "tables" / "vertices.parquet")
    common = {"hidden": 8, "epochs": 3, "partition": "random"}
    for data, ranks, out in ((path, 1, "out.npz"), (tmp_path / "tables", 3, "out.parquet")):
        config = TrainConfig.of(dataset=data, predictions=tmp_path / out, **common)
        run_ranks(lambda rank, config=config: command(config, connect()), ranks)
    table, order = pq.read_table(tmp_path / "out.parquet"), np.arange(n)
    if ids == "sparse":
        order = np.argsort(numbers)
    assert table["id"].to_pylist() == named.take(order).to_pylist()
    with np.load(tmp_path / "out.npz") as file:
        scores = np.array(table["scores"].to_pylist())
        np.testing.assert_allclose(scores, file["scores"][order], rtol=1e-4, atol=1e-5)


def own_names(rank, paths):
    graphs = [distribute(path, partition="random") for path in paths]
    for graph in graphs[:-1]:
        with pytest.raises(InputError, match="vertices have names, and new ones would have none"):
            graph.update(add_nodes=[7] if rank else None)
        numbers = dict(zip(graph.vertex_names, graph.vertex_ids.tolist(), strict=True))
        graph.update([[numbers["a"]], [numbers["a"]]] if "a" in numbers else None)
        assert graph.version == 1
    graphs[-1].update(add_nodes=[7] if rank else None)
    assert graphs[-1].vertex_names is None
    return [
        (graph.vertex_ids.tolist(), None if graph.vertex_names is None else [*graph.vertex_names])
        for graph in graphs
    ]


def test_own_vertices_have_the_names_of_the_source(tmp_path):
    """Of a table of vertices, of edges alone in rising order, of parts; integers have none."""
    rng, names = np.random.default_rng(0), ["née", "b", "Zoë Ångström", "a", "cc", "e", "ddd"]
    ends = {end: rng.permutation(7) for end in ("source", "target")}
    texts = {end: [names[i] for i in places] for end, places in ends.items()}
    paths = [tmp_path / name for name in ("folder", "edges.parquet", "cut", "numbers.parquet")]
    paths[0].mkdir()
    pq.write_table(pa.table(texts), paths[0] / "edges.parquet")
    pq.write_table(pa.table({"id": names}), paths[0] / "vertices.parquet")
    pq.write_table(pa.table(texts), paths[1])
    pq.write_table(pa.table(ends), paths[3])
    assert main(["shard", str(paths[0]), "--parts", "2", "--output", str(paths[2])]) == 0
    results = run_ranks(own_names, 2, [*map(str, paths)])
    for number, source in enumerate((names, sorted(names), names, None)):
        for of_rank in results:
            ids, own = of_rank[number]
            assert len(ids) in ((3, 4) if source else (4,))
            assert own == (None if source is None else [source[i] for i in ids])
