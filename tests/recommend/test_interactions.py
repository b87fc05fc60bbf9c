"""Interactions from files of every form, and what is refused of them."""

from __future__ import annotations

import gzip
import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spgnn.errors import InputError
from spgnn.recommend import Interactions, open_interactions
from spgnn.recommend.interactions import make_up

PAIRS = [(0, 3), (0, 1), (2, 0), (2, 3), (3, 2)]


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def listed(data: Interactions) -> set[tuple[object, object]]:
    every = (data.train + data.test).tocoo()
    users = every.row if data.users is None else data.users[every.row]
    items = every.col if data.items is None else data.items[every.col]
    return set(zip(users.tolist(), items.tolist(), strict=True))


LINES = [
    ("a.txt", "{u} {i}", ""),
    ("a.csv", "{u},{i},{r}", "user_id,item_id,rating"),
    ("a.tsv.gz", "{u}\t{i}\t{r}\t17.5", "# a comment"),
    ("a.dat", "{u};{i};2", ""),
]


@pytest.mark.parametrize(("name", "line", "head"), LINES)
def test_pairs_of_integers(tmp_path: Path, name: str, line: str, head: str) -> None:
    rows = [line.format(u=u, i=i, r=u + 0.5) for u, i in PAIRS]
    data = open_interactions(str(write(tmp_path / name, "\n".join([head, *rows, ""]))))
    assert listed(data) == set(PAIRS)
    assert data.shape == (4, 4)
    assert data.users is None


@pytest.mark.parametrize("line", ["user-{u} {i}x", "user-{u},an item {i},{u}", '"u {u}";"i;{i}"'])
def test_names_that_are_texts(tmp_path: Path, line: str) -> None:
    text = "\n".join(line.format(u=u, i=i) for u, i in PAIRS)
    data = open_interactions(str(write(tmp_path / "a.csv", text)), test_share=0)
    assert data.shape == (3, 4)
    user, item = next(iter(sorted(listed(data))))
    assert "0" in user
    assert "1" in item


def test_integers_with_gaps_are_names(tmp_path: Path) -> None:
    text = "\n".join(f"{u} {10**12 - i}" for u, i in PAIRS)
    data = open_interactions(str(write(tmp_path / "a.txt", text)))
    assert data.shape == (4, 4)
    assert listed(data) == {(u, 10**12 - i) for u, i in PAIRS}


def test_lists_of_lightgcn(tmp_path: Path) -> None:
    write(tmp_path / "train.txt", "0 3 1 4 5 6 7\n1\n2 0 3\n4 1 2 3 4\n")  # a user without items
    write(tmp_path / "test.txt", "0 0\n2 9\n3 1 2 3 4 5\n")
    data = open_interactions(str(tmp_path))
    assert data.shape == (5, 10)
    assert [data.train.indices[a:b].tolist() for a, b in pairwise(data.train.indptr)] == [
        [1, 3, 4, 5, 6, 7],
        [],
        [0, 3],
        [],
        [1, 2, 3, 4],
    ]
    assert data.test.nnz == 7


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    users, items = zip(*PAIRS, strict=True)
    table = {"user": [f"u{u}" for u in users], "item": list(items), "rating": [1.0, 2, 3, 4, 5]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    data = open_interactions(str(tmp_path / "a.parquet"), least_rating=2)
    assert listed(data) == {(f"u{u}", i) for u, i in PAIRS[1:]}
    names = data.names()
    assert list(zip(names["side"], names["id"], strict=True)) == [
        *(("user", name) for name in ("u0", "u2", "u3")),
        *(("item", str(i)) for i in range(4)),
    ]


def test_repeated_interactions_count_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.txt", "0 1\n0 1\n1 0\n0 1\n")
    with caplog.at_level(logging.WARNING):
        assert listed(open_interactions(str(path))) == {(0, 1), (1, 0)}
    assert "2 interactions are repeated" in caplog.text


MANY = "0 1 5\n" * 30
BAD = [
    ("", {}, "holds no interactions"),
    ("# nothing\n", {}, "holds no interactions"),
    ("0 1\n1 -2\n", {}, "line 2", "-2", "at least 0"),
    ("0 1 good\n1 2 bad\n", {}, "line 1", "good", "number"),
    ("u 1 3\nv 2 bad\n", {}, "line 2", "bad", "number"),
    ("u 1 nan\n", {"least_rating": 1.0}, "rating"),
    ("0 1 nan\n", {}, "rating"),
    ("0 1\n", {"least_rating": 1.0}, "no ratings"),
    ("0 1 2\n", {"least_rating": 5.0}, "no interaction"),
    (MANY + "0 1\n", {}, "line 31", "2 columns"),
    (MANY + "0 1 2 3 4 5 6\n", {}, "line 31", "7 columns"),
    ("0 1 2\n0 1\n1 2 3 4\n", {}, "data.form"),
    ("1 2 3 4 5\n", {"form": "pairs"}, "5 columns"),
    ("u,7\n,8\n", {}, "line 2", "name is missing"),
]


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_one_line(tmp_path: Path, case: tuple) -> None:
    text, options, *words = case
    path = write(tmp_path / "bad.txt", text)
    with pytest.raises(InputError) as error:
        open_interactions(str(path), **options)
    assert "bad.txt" in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_bad_directories_and_names_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.txt"):
        open_interactions(str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        open_interactions("nowhere.txt")
    with pytest.raises(InputError, match="half of all pairs"):
        open_interactions("interactions-3-3-8")
    write(tmp_path / "train.txt", "0 1 2 3 4 5\n1 3\n")
    write(tmp_path / "test.txt", "1 4\n0 2\n")
    with pytest.raises(InputError, match=r"test\.txt: user 0 and item 2 are in train\.txt as well"):
        open_interactions(str(tmp_path))
    write(tmp_path / "test.txt", "a 4\nb 2\n")
    with pytest.raises(InputError, match="texts"):
        open_interactions(str(tmp_path))


def test_made_up_interactions_have_tastes_and_the_size_that_was_asked_for() -> None:
    data = make_up(300, 200, 5000, groups=4, seed=1)
    assert (data.shape, data.nnz) == ((300, 200), 5000)
    assert (data != make_up(300, 200, 5000, groups=4, seed=1)).nnz == 0
    own = np.asarray(data.todense())
    inside = sum(own[:, group::4].sum(0).max() for group in range(4))
    assert inside > 4 * 25  # items of each group have fans
