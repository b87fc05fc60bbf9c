"""Interactions from files of every form, and what is refused of them."""

from __future__ import annotations

import gzip
import logging
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from spgnn.addons.recommend import Interactions, open_interactions
from spgnn.addons.recommend.interactions import make_up
from spgnn.errors import LONGEST_LINE, InputError
from tests.data.test_fuzz import mutated


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def listed(data: Interactions) -> set[tuple[object, object]]:
    every = (data.train + data.test).tocoo()
    users = every.row if data.users is None else data.users[every.row]
    items = every.col if data.items is None else data.items[every.col]
    return set(zip(users.tolist(), items.tolist(), strict=True))


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

    users, items = [0, 0, 2, 2, 3], [3, 1, 0, 3, 2]
    table = {"user": [f"u{u}" for u in users], "item": items, "rating": [1.0, 2, 3, 4, 5]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    data = open_interactions(str(tmp_path / "a.parquet"), least_rating=2)
    assert listed(data) == {("u0", 1), ("u2", 0), ("u2", 3), ("u3", 2)}
    names = {side: ids.tolist() for side, ids in data.sides().items()}
    assert names == {"user": ["u0", "u2", "u3"], "item": [0, 1, 2, 3]}


def test_repeated_interactions_count_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.txt", "0 1\n0 1\n1 0\n0 1\n")
    with caplog.at_level(logging.WARNING):
        assert listed(open_interactions(str(path))) == {(0, 1), (1, 0)}
    assert "2 interactions are repeated" in caplog.text


RIGHT = {
    # Integers: numbers from 0, or names with gaps.
    "1.txt": (b"0 3\n0 1\n2 0\n", {(0, 3), (0, 1), (2, 0)}),
    "2.csv": (b"user_id,item_id,rating\n0,3,0.5\n0,1,2\n", {(0, 3), (0, 1)}),
    "3.tsv.gz": (gzip.compress(b"# a comment\n0\t3\t0.5\t17.5\n2\t0\t1\t17.5\n"), {(0, 3), (2, 0)}),
    "4.dat": (b"0;3;2\n2;0;2\n", {(0, 3), (2, 0)}),
    "5.txt": (b"0 999999999997\n2 999999999999\n", {(0, 999999999997), (2, 999999999999)}),
    "6.csv": (b'"u 0";"i;3"\n"u 2";"i;0"\n', {("u 0", "i;3"), ("u 2", "i;0")}),
    # Names of columns, known or not, before texts; as RecBole writes them.
    "a.csv": (b"visitorid,itemid\nv1,i2\nv3,i4\n", {("v1", "i2"), ("v3", "i4")}),
    "b.csv": (b"member,thing,stars\nv1,i2,4\nv3,i4,5\n", {("v1", "i2"), ("v3", "i4")}),
    "c.tsv": (b"user_id:token\titem_id:token\trating:float\nA1\tB2\t4\n", {("A1", "B2")}),
    "d.csv": (b"x,y\na,b\na,c\nx,c\n", {("x", "y"), ("a", "b"), ("a", "c"), ("x", "c")}),
    "e.txt": (b"# item user\na b\na c\n", {("b", "a"), ("c", "a")}),
    # In the order of the names, without row numbers, whatever else there is.
    "f.csv": (b",user,item\n0,100,7\n1,200,8\n", {(100, 7), (200, 8)}),
    "g.csv": (b"Unnamed: 0,item,note,user\n0,7,x,100\n1,8,y,200\n", {(100, 7), (200, 8)}),
    "h.csv": (b"item_id,user_id\n1,100\n2,200\n", {(100, 1), (200, 2)}),
    "i.csv": (b"movieId,userId,rating\r\nm,u,2\r\n", {("u", "m")}),
    # Ids are what the file has.
    "j.tsv": (b"user\titem\nu1\ti1\n#u2\t%i2\n", {("u1", "i1"), ("#u2", "%i2")}),
    "k.txt": (b"007 12\n07 13\n7 14\n", {("007", 12), ("07", 13), ("7", 14)}),
    "l.csv": (b"user;isbn\n1;0155061224\n2;034545104X\n", {(1, "0155061224"), (2, "034545104X")}),
    "m.txt": (
        b"1e5 7\n+5 -0\n99999999999999999999 8\n",
        {("1e5", "7"), ("+5", "-0"), ("99999999999999999999", "8")},
    ),
    "n.csv": ('José;"a;b";0.5\nJosè;c;2\n'.encode(), {("José", "a;b"), ("Josè", "c")}),
    "o.tsv": (b"1,234\tan item\t5\n1,2\tb\t3\n", {("1,234", "an item"), ("1,2", "b")}),
    "p.csv": (b"\xef\xbb\xbf1,2,\n3,4,\n", {(1, 2), (3, 4)}),
    # As the data sets have it: RetailRocket, H&M, MovieLens; a frame after reset_index().
    "q.csv": (
        b"timestamp,visitorid,event,itemid,transactionid\n5,2,view,9,\n7,3,buy,8,40\n",
        {(2, 9), (3, 8)},
    ),
    "r.tsv": (b"timestamp\tuser\titem\tnote\n5\t2\t9\t\n7\t3\t8\t40\n", {(2, 9), (3, 8)}),
    "s.csv": (
        b"t_dat,customer_id,article_id,price,sales_channel_id\n2018-09-20,00c,066,0.05,2\n",
        {("00c", "066")},
    ),
    "t.dat": (b"1::1193::5::978300760\n1::661::3::978302109\n", {(1, 1193), (1, 661)}),
    "u.csv": (b"index,user,item\n1,100,7\n0,200,8\n", {(100, 7), (200, 8)}),
    "v.csv": (b"level_0,level_1,item,user\n0,5,7,100\n", {(100, 7)}),
    "w.tsv": (b"\tuser\titem\n0\t100\t7\n1\t200\t8\n", {(100, 7), (200, 8)}),
    "x.csv": (b"user,item\n1,2,\n3,4,\n", {(1, 2), (3, 4)}),
    "y.csv": (b"a::1,b,5\nc::2,d,4\n", {("a::1", "b"), ("c::2", "d")}),
    "z.csv": (b"2,7,4\n0,8,5\n1,9,3\n", {(2, 7), (0, 8), (1, 9)}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_lines_are_read_as_they_are_meant(tmp_path: Path, name: str) -> None:
    content, pairs = RIGHT[name]
    (tmp_path / name).write_bytes(content)
    assert listed(open_interactions(str(tmp_path / name), test_share=0)) == pairs


def test_numbers_in_one_file_and_texts_in_the_other(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "user,isbn\n1,15\n2,16\n")
    write(tmp_path / "test.csv", "user,isbn\n1,345X\n")
    data = open_interactions(str(tmp_path))
    assert listed(data) == {(1, "15"), (2, "16"), (1, "345X")}


def test_the_latest_are_held_out(tmp_path: Path) -> None:
    """By the times of numbers, dates and time stamps; of a pair that is repeated the first one."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    seconds = rng.permutation(40) * 86400 * 30
    users, items = np.arange(40) % 7, np.arange(40) % 11
    dates = seconds.astype("datetime64[s]")
    rows = list(zip(users, items, seconds, dates, strict=True))
    again = (*rows[int(np.argmin(seconds))][:2], 10**10, np.datetime64("2200-01-01T00:00:00"))
    rows.append(again)
    wanted = {(int(u), int(i)) for u, i, second, _ in rows[:-1] if second >= 32 * 86400 * 30}
    write(tmp_path / "a.txt", "\n".join(f"{u} {i} 5 {s}" for u, i, s, _ in rows))
    texts = "\n".join(f"{date},{u},{i}" for u, i, _, date in rows)
    write(tmp_path / "b.csv", f"timestamp,user,item\n{texts}")
    columns = dict(zip(("user", "item", "seen", "at"), zip(*rows, strict=True), strict=True))
    times = {"seen": columns.pop("seen"), "at": np.array(columns.pop("at"))}
    for name, time in {
        "c": {"ts": times["at"]},
        "d": {"timestamp": times["seen"]},
        "e": {"date": times["at"].astype("datetime64[D]")},
        "f": {"date": times["at"].astype(str)},
    }.items():
        pq.write_table(pa.table({**columns, **time}), tmp_path / f"{name}.parquet")
    for path in sorted(tmp_path.iterdir()):
        data = open_interactions(str(path))
        assert set(zip(*(c.tolist() for c in data.test.nonzero()), strict=True)) == wanted, path
        assert data.train.nnz == 32
    pq.write_table(
        pa.table({**columns, "a": times["at"], "b": times["at"]}), tmp_path / "g.parquet"
    )
    with pytest.raises(InputError, match=r"columns 'a' and 'b' may both be the time; name one"):
        open_interactions(str(tmp_path / "g.parquet"))
    assert open_interactions(f"{tmp_path / 'g.parquet'}@time=a").test.nnz == 8


def test_how_interactions_are_held_out_is_said_and_can_be_chosen(tmp_path: Path) -> None:
    timed = "".join(f"{i % 5} {i % 7} 3 {100 - i}\n" for i in range(30))
    bare = "".join(" ".join(line.split()[:2]) + "\n" for line in timed.splitlines())
    paths = [str(write(tmp_path / f"{n}.txt", text)) for n, text in enumerate((timed, bare))]
    splits = [open_interactions(path).split for path in (*paths, "interactions-20-10-50")]
    assert splits == ["temporal", "random", "random"]
    latest, drawn = (open_interactions(paths[0], split=how) for how in ("temporal", "random"))
    assert (drawn.split, latest.split) == ("random", "temporal")
    assert (drawn.test != latest.test).nnz
    assert not (drawn.test != open_interactions(paths[1]).test).nnz
    assert listed(latest) == listed(drawn)
    for place in (paths[1], "interactions-20-10-50"):
        with pytest.raises(InputError, match="has no times for --split temporal"):
            open_interactions(place, split="temporal")
    (tmp_path / "both").mkdir()
    write(tmp_path / "both" / "train.txt", "0 1 4 9\n1 2 4 8\n")
    write(tmp_path / "both" / "test.txt", "0 2 4 7\n")
    assert open_interactions(str(tmp_path / "both")).split == "files"
    with pytest.raises(InputError, match=r"--split random: it has test\.txt to test with"):
        open_interactions(str(tmp_path / "both"), split="random")


# The first lines of what RecBole, MovieLens and Amazon publish; the last is the latest.
PUBLISHED = {
    "ml-100k.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "196\t242\t3\t881250949\n22\t377\t1\t878887116\n186\t302\t3.0\t891717742.0\n",
    "gowalla.inter": "user_id:token\titem_id:token\ttimestamp:float\tnum_repeat:float\n"
    "196\t242\t1287532527.0\t1\n22\t377\t1287530127.0\t2\n186\t302\t1287535744.0\t1\n",
    "yelp.inter": "review_id:token\tuser_id:token\tbusiness_id:token\tstars:float\tdate:float\n"
    "xQ\t196\t242\t2.0\t1353544922.0\nUm\t22\t377\t1.0\t12.0\nCt\t186\t302\t5\t1451938530.0\n",
    "u.data": "196\t242\t3\t881250949\n22\t377\t1\t878887116\n186\t302\t3\t891717742\n",
    "ratings.csv": "userId,movieId,rating,timestamp\r\n"
    "196,242,4.0,964982703\r\n22,377,3.5,964981247\r\n186,302,4.5,964982931\r\n",
    "ratings.dat": "196::242::5::978300760\n22::377::3::878302109\n186::302::4::988301968\n",
    "ratings_Books.csv": "A2IIIDRK3PRRZY,0000116,1.0,1395619200\n"
    "A3O4ATU0ENBKTU,0001384,5.0,5184000\nAH2L9G3DQHHAJ,000055512X,4.0,1399161600\n",
    "Books.csv": "user_id,parent_asin,rating,timestamp\nA2IIIDRK3PRRZY,0000116,1.0,1395619200000\n"
    "A3O4ATU0ENBKTU,0001384,5.0,5184000000\nAH2L9G3DQHHAJ,000055512X,4.0,1399161600000\n",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    data = open_interactions(str(write(tmp_path / name, PUBLISHED[name])), test_share=0.3)
    amazon = {("A2IIIDRK3PRRZY", "0000116"), ("A3O4ATU0ENBKTU", "0001384")}
    latest = ("AH2L9G3DQHHAJ", "000055512X") if "Books" in name else (186, 302)
    assert listed(data) == (amazon if "Books" in name else {(196, 242), (22, 377)}) | {latest}
    assert data.split == "temporal"
    assert listed(replace(data, train=data.test)) == {latest}


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
    ("alpha,beta\nv1,i2\nv3,i4\n", {}, "line 1", "may be a header or an interaction; begin"),
    ("user,item\na,b\nuser,item\n", {}, "line 3", "names of columns again"),
    ("#a,b\na,c\n", {}, "line 1", "may be a comment or an interaction; begin"),
    ("a1 b\n# c\nd e\n", {}, "line 2", "a comment between interactions"),
    ("user,item\nJos\udce9,a\n", {}, "line 2", "is not UTF-8"),
    ("0 1\r1 2\r", {}, "line 1", "CR alone"),
    ("1,234\t5\n2,345\t6\n", {}, "'\\t' or ','"),
    ("a;b;4,5\nc;d;3,5\n", {}, "line 1", "'4,5' is not"),
    ("0,,1\n1,,2\n", {}, "line 1", "name is missing"),
    ("user_id,userid,item\n1,2,3\n", {}, "may both be the user"),
    ("time,rating,a\n1,2,3\n", {}, "line 1", "the columns are"),
    ("a,b,1,yesterday\n", {}, "line 1", "'yesterday' is not a time"),
    ("a," + "b" * 1001, {}, "an id of 1001 characters"),
    ('a,"b\nc,d\n', {}, "line 1"),
    ("007 1 2 3 4\n1 2\n", {}, "line 1", "007"),
    ("when,customer_id,sku,price\na,b,c,2\n", {}, "line 1", "'when' and 'sku' may both be the it"),
    ("user,item,rating\n1,2,\n1,3,4\n", {}, "line 2", "the rating is missing"),
    ("1,2,3\n4,5,\n", {}, "line 2", "the rating is missing"),
    ("1,2,3,7\n4,5,6,\n", {}, "line 2", "the time is missing"),
    ("0,100,7\n1,200,8\n2,100,9\n", {}, "may number the rows"),
    ("0,100,7,5,99\n1,200,8,4,98\n2,100,9,3,97\n", {}, "may number the rows"),
    ("0 u a\n1 v b\n2 u c\n", {}, "may number the rows"),
    ("1::2::3\n1:2::3\n", {"form": "pairs"}, "line 2", "2 columns"),
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


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    """Of each form, with a few bytes that are wrong: interactions, or one line."""
    lists, dated = b"0 1 2 3 4\n1 3 5\n2 5 6 7 8\n", b"# c\nuser,item,time\na,b,2020-01-01 10:00\n"
    files = [(name, content) for name, (content, _) in RIGHT.items()]
    lines = []
    for number in range(300):
        draw = random.Random(number)
        name, content = draw.choice([*files, ("z.txt", lists), ("y.csv", dated)])
        path = tmp_path / name
        path.write_bytes(mutated(content, draw))
        try:
            open_interactions(str(path))
        except InputError as error:
            lines.append(str(error))
    assert all(line.isprintable() and len(line) <= LONGEST_LINE for line in lines)
    assert 50 < len(lines) < 250


def test_made_up_interactions_have_tastes_and_the_size_that_was_asked_for() -> None:
    data = make_up(300, 200, 5000, groups=4, seed=1)
    assert (data.shape, data.nnz) == ((300, 200), 5000)
    assert (data != make_up(300, 200, 5000, groups=4, seed=1)).nnz == 0
    own = np.asarray(data.todense())
    inside = sum(own[:, group::4].sum(0).max() for group in range(4))
    assert inside > 4 * 25  # items of each group have fans
