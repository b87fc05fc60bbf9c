"""Directories of tables of several vertex types: the graph, its names, and what is refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import spgnn
from spgnn import InputError
from spgnn.__main__ import main
from spgnn.addons.io import TypedTables
from spgnn.partition.__main__ import main as partition
from spgnn.testing import run_ranks

PAPERS, AUTHORS, VENUES, WRITTEN, CITED = 40, 23, 5, 90, 70


def write(path: Path, rows: dict[str, Any], pieces: int = 1) -> None:
    """A table as a file, or as a folder of several."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(rows)
    if pieces == 1:
        pq.write_table(table, path, row_group_size=7)
        return
    path.mkdir()
    step = -(-len(table) // pieces)
    for number in range(pieces):
        pq.write_table(table.slice(number * step, step), path / f"part-{number}.parquet")
    (path / "_SUCCESS").touch()


def content(seed: int = 0) -> dict[str, Any]:
    """What three types and four relations are, as arrays."""
    rng = np.random.default_rng(seed)
    return {
        "authors": np.array([f"é{7 * i % 23}/{'a' * (i % 4)}" for i in range(AUTHORS)]),
        "papers": rng.permutation(1000)[:PAPERS] * 10**9,
        "x": rng.random((PAPERS, 6), np.float32),
        "of_authors": rng.random((AUTHORS, 2), np.float32),
        "y": rng.integers(0, 3, PAPERS),
        "split": rng.choice(["train", "val", "test"], PAPERS),
        "when": rng.integers(0, 10**6, PAPERS),
        "writes": np.stack((rng.integers(0, AUTHORS, WRITTEN), rng.integers(0, PAPERS, WRITTEN))),
        "cites": rng.integers(0, PAPERS, (2, CITED)),
        "in": np.stack((np.arange(PAPERS), rng.integers(0, VENUES, PAPERS))),
        "weight": rng.random(CITED, np.float32),
        "attr": rng.random((WRITTEN, 2), np.float32),
        "years": rng.integers(1990, 2020, WRITTEN),
    }


def tables(folder: Path, seed: int = 0) -> dict[str, Any]:
    """A directory with strings, large and small integers as ids, and what it holds."""
    all_of = content(seed)
    papers, authors = all_of["papers"], all_of["authors"]
    seconds = pa.array(all_of["when"]).cast(pa.timestamp("s"))
    paper = {"paper_id": papers, "x": list(all_of["x"]), "label": all_of["y"], "published": seconds}
    write(folder / "nodes" / "paper.parquet", {**paper, "split": all_of["split"]})
    columns = {"a": all_of["of_authors"][:, 0], "b": all_of["of_authors"][:, 1], "name": authors}
    write(folder / "nodes" / "author", {"id": authors, **columns, "venue_id": range(AUTHORS)}, 3)
    write(folder / "nodes" / "venue.parquet", {"id": range(VENUES)})
    source, target = all_of["writes"]
    writes = {"paper": papers[target], "author": authors[source]}  # not in the relation's order
    more = {"edge_attr": list(all_of["attr"]), "time": all_of["years"]}
    write(folder / "edges" / "author__writes__paper.parquet", {**writes, **more}, 2)
    ends = [papers[side] for side in all_of["cites"]]
    cites = {"dst": ends[1], "src": ends[0], "weight": all_of["weight"]}
    write(folder / "edges" / "paper__cites__paper.parquet", cites)
    place = {"paper": papers, "venue": all_of["in"][1]}
    write(folder / "edges" / "paper__in__venue.parquet", place)
    back = {"first": papers[target[::-1]], "second": authors[source[::-1]]}
    write(folder / "edges" / "paper__rev__writes__author.parquet", back)
    return all_of


def parts_of_rank(rank: int, path: str, labels: str) -> dict[str, Any]:
    graph: Any = spgnn.distribute(path if rank == 0 else None, partition=labels)
    result: dict[str, Any] = {"names": graph.vertex_names, "ids": graph.vertex_ids_dict}
    for name in graph.node_types:
        store = graph[name]
        result[name] = {key: store.gather(store[key]) for key in store}
    for relation in graph.edge_types:
        one = graph[relation]
        source = one.sources.halo(one.sources.vertex_ids)[one.local_edge_index[0]]
        target = graph[relation[2]].vertex_ids[one.local_edge_index[1]]
        rows = {key: one[key] for key in one if key != "edge_index"}
        result[relation] = {"ends": torch.stack((source, target)), **rows}
    return result


def test_the_graph_is_that_of_the_tables(tmp_path):
    """Whole arrays, by the file's ids; each rank has the names of its part, as the command says."""
    folder, labels = str(tmp_path / "tables"), [tmp_path / "labels", tmp_path / "labels.parquet"]
    all_of = tables(tmp_path / "tables")
    for path in labels:
        assert partition([folder, "--parts", "3", "--seed", "5", "--output", str(path)]) == 0
    of_ranks = run_ranks(parts_of_rank, 3, folder, str(labels[0]))
    parts = pq.read_table(labels[1]).to_pydict()
    listed = zip(parts["type"], parts["id"], parts["part"], strict=True)
    expected = {(kind, name): part for kind, name, part in listed}
    for rank, one in enumerate(of_ranks):
        own = {(kind, str(name)) for kind, names in one["names"].items() for name in names}
        assert own == {vertex for vertex, part in expected.items() if part == rank}
    every = of_ranks[0]
    assert set(every["paper"]) == {"x", "y", "train_mask", "val_mask", "test_mask", "time"}
    assert (every["paper"]["x"].numpy() == all_of["x"]).all()
    assert (every["paper"]["y"].numpy() == all_of["y"]).all()
    assert (every["paper"]["time"].numpy() == all_of["when"] * 10**6).all()
    for split in ("train", "val", "test"):
        assert (every["paper"][f"{split}_mask"].numpy() == (all_of["split"] == split)).all()
    assert (every["author"]["x"].numpy() == all_of["of_authors"]).all()
    assert set(every["author"]) == {"x"}
    assert not every["venue"]
    source, target = all_of["writes"]
    rows = {
        ("author", "writes", "paper"): (source, target, *all_of["attr"].T, all_of["years"]),
        ("paper", "cites", "paper"): (*all_of["cites"], all_of["weight"]),
        ("paper", "in", "venue"): tuple(all_of["in"]),
        ("paper", "rev__writes", "author"): (target, source),
    }
    for relation, expected in rows.items():
        pieces = []
        for one in of_ranks:
            keys = [key for key in ("edge_attr", "time", "edge_weight") if key in one[relation]]
            columns = [one[relation][key].numpy() for key in keys]
            pieces.append(np.column_stack((one[relation]["ends"].numpy().T, *columns)))
        got = np.concatenate(pieces)
        wanted = np.column_stack(expected)
        assert (got[np.lexsort(got.T)] == wanted[np.lexsort(wanted.T)]).all()
    for name, ids in (("author", all_of["authors"]), ("paper", all_of["papers"])):
        for one in of_ranks:
            assert one["names"][name].tolist() == ids[one["ids"][name].numpy()].tolist()


def test_one_type_is_not_several(tmp_path, capsys):
    """A folder of one type stays one; commands for one type refuse several in one line."""
    split = tables(tmp_path / "several")["split"]
    masks = [f"{(split == one).sum()} in {one}_mask" for one in ("train", "val", "test")]
    listed = ["x [6]", "y", *masks, "time"]
    ids = content()["papers"]
    write(tmp_path / "one" / "nodes" / "part-0.parquet", {"id": ids})
    write(tmp_path / "one" / "edges" / "part-0.parquet", {"source": ids[:9], "target": ids[1:10]})
    assert isinstance(spgnn.distribute(str(tmp_path / "one")), spgnn.graph.DistGraph)
    out = tmp_path / "labels.parquet"
    assert partition([str(tmp_path / "one"), "--parts", "2", "--output", str(out)]) == 0
    table = pq.read_table(out).to_pydict()
    assert table["id"] == ids.tolist()
    assert set(table["part"]) == {0, 1}
    capsys.readouterr()
    assert main(["info", str(tmp_path / "several")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "author: 23 vertices: x [2]",
        f"paper: 40 vertices: {', '.join(listed)}",
        "venue: 5 vertices: ids alone",
        "author writes paper: 90 edges: edge_attr [2], time",
        "paper cites paper: 70 edges: edge_weight",
        "paper in venue: 40 edges",
        "paper rev__writes author: 90 edges",
    ]
    with pytest.raises(InputError, match="tables of several vertex types"):
        spgnn.data.load_dataset(tmp_path / "several")


def change(name: str, **columns: Any) -> Callable[[Path], None]:
    """Write a table again with other columns; those that are ``None`` are taken out."""

    def write_again(folder: Path) -> None:
        path = folder / f"{name}.parquet"
        table = pq.read_table(path).to_pydict()
        new = {key: one(table) if callable(one) else one for key, one in columns.items()}
        table = {**table, **new}
        write(path, {key: column for key, column in table.items() if column is not None})

    return write_again


def add(name: str) -> Callable[[Path], None]:
    """Write a file of any content."""

    def write_bytes(folder: Path) -> None:
        (folder / name).write_bytes(b"a,b\n1,2\n")

    return write_bytes


def ragged(table: dict[str, Any]) -> list[list[float]]:
    return [[1.0] * (2 + (row == 11)) for row in range(PAPERS)]


def dangling(table: dict[str, Any]) -> list[int]:
    return [7 if row == 33 else value for row, value in enumerate(table["src"])]


WRITES = "edges/paper__cites__paper"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no id": (
        change("nodes/venue", id=None, size=[1.5] * VENUES),
        "nodes/venue.parquet: no column 'id'; it has size",
    ),
    "twice": (
        change("nodes/venue", id=[0, 1, 2, 1, 3]),
        "nodes/venue.parquet, row 3, column 'id': '1' is not an id that no row before it has",
    ),
    "null": (
        change("nodes/venue", id=["a", None, "c", "d", "e"]),
        "nodes/venue.parquet, row 1, column 'id': there is none",
    ),
    "kind": (
        change("nodes/venue", id=list("abcde")),
        "edges/paper__in__venue.parquet: column 'venue' is int64, ids of .*venue.parquet string",
    ),
    "two": (
        change("nodes/venue", id=None, node_key=range(5), vertex_key=range(5)),
        "nodes/venue.parquet: columns 'node_key' and 'vertex_key' may both be the id; rename one",
    ),
    "dangling": (
        change(WRITES, src=dangling),
        "paper__cites__paper.parquet, row 33, column 'src': '7' is not an id of .*paper.parquet",
    ),
    "outside": (
        change("edges/paper__in__venue", venue=[5] * PAPERS),
        "row 0, column 'venue': 5 is not a vertex of .*venue.parquet, in \\[0, 5\\)",
    ),
    "ragged": (
        change("nodes/paper", x=ragged),
        "nodes/paper.parquet, row 11, column 'x': a list of 3 is not 2",
    ),
    "split": (
        change("nodes/paper", split=["train"] * 20 + ["dev"] * 20),
        "row 20, column 'split': 'dev' is not train, val or test",
    ),
    "label": (
        change("nodes/paper", label=["a"] * PAPERS),
        "nodes/paper.parquet: column 'label' is string; it must be numbers",
    ),
    "ends": (
        change(WRITES, src=None),
        "paper__cites__paper.parquet: no column is named source; it has dst, weight. Rename two",
    ),
    "no rows": (change("nodes/venue", id=pa.array([], pa.int64())), "venue.parquet: holds no vert"),
    "no edges": (
        change("edges/paper__in__venue", paper=[], venue=pa.array([], pa.int64())),
        "paper__in__venue.parquet: holds no edges",
    ),
    "type": (
        lambda folder: (folder / "nodes" / "venue.parquet").unlink(),
        "paper__in__venue.parquet: no SOURCE__NAME__TARGET of types in nodes: author, paper",
    ),
    "csv": (add("nodes/shop.csv"), "nodes/shop.csv: neither of nodes/TYPE and edges/"),
    "pickle": (add("edges/paper__in__venue.pt"), "paper__in__venue.pt: neither of nodes/TYPE"),
    "folder": (lambda folder: (folder / "labels").mkdir(), "labels: neither of nodes/TYPE"),
    "damaged": (add("nodes/venue.parquet"), "nodes/venue.parquet: truncated or damaged"),
}


def test_what_is_wrong_is_said_of_a_file_in_one_line(tmp_path):
    tables(tmp_path / "right")
    TypedTables(tmp_path / "right")
    (tmp_path / "right" / "README.md").touch()
    for name, (harm, message) in REFUSED.items():
        folder = tmp_path / name
        shutil.copytree(tmp_path / "right", folder)
        harm(folder)
        with pytest.raises(InputError) as raised:
            TypedTables(folder)
        assert re.search(message, str(raised.value)), f"{name}: {raised.value}"
        assert "\n" not in str(raised.value)
