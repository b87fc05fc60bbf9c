"""Text files: the right ones are read as SciPy does, wrong ones refused in one line."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from spgnn import InputError, files
from spgnn.__main__ import main
from spgnn.addons.io import text
from spgnn.addons.io.through_disk import open_through_disk
from spgnn.addons.recommend import open_interactions
from spgnn.data import load_dataset, open_source
from spgnn.data.load import read_graph
from spgnn.registry import READERS
from tests.addons.io.pieces import small_pieces
from tests.data.graphs import MTX, PACK, put

NINES = "9" * 5000
# What each file holds, and what must be said (a regular expression, in any case of letters).
EDGES = {
    "0 1\n1 x\n": r", line 2: 'x' is not an integer; .* tables \(.parquet\) take text ids",
    "my graph\nsource,target\n0,1\n": ", line 2: 'source' is not an integer; one header line",
    "source,target,year\n0,1,1999\n": ", line 1: column 3 is 'year'; .* name it 'weight'",
    "0 1\n\n# c\n1.5 2\n": ", line 4: '1.5' is not an integer",
    "0 1\n1 2 3\n": ", line 2: 3 columns; the first edge has 2",
    "0 1\n1\n2 3\n4 5 6\n": ", line 2: 1 columns",
    "0 1 2 3\n": ", line 1: 4 columns; an edge is",
    "": ": holds no edges",
    "# only a comment\n": ": holds no edges",
    "source,target\n": ": holds no edges",
    "# Edges: 9\n0 1\n": ": truncated: its header says 9 edges, but it holds 1",
    "0 1\n3 007\n": ", line 2: '007' has a zero or a sign before it",
    "+0 1\n": r", line 1: '\+0' has a zero or a sign before it",
    "0,1\n,2\n": ", line 2: '2' follows an empty field",
    "0,1\n1,,2\n": ", line 2: '2' follows an empty field",
    "0 1\n3 -1\n": ", line 2: -1 is not a vertex id",
    "0 99999999999999999999\n": ", line 1: .* is not an integer of 64 bits",
    "0,1,0.5\n1,0,nan\n": ", line 2: nan is not a finite number",
    "0,1,0.5\n1,0,1_0z\n": ", line 2: '1_0z' is not a number",
    b"\xfe\x00 rubbish\n": ", line 1: .* is not an integer",
    "0 1\n".encode("utf-16"): ": is text in UTF-16; save it as UTF-8",
    "target,source\n0,1\n": ", line 1: the columns are 'target, source'; an edge is",
    "id,weight,to\n0,1,2\n": ", line 1: the columns are 'id, weight, to'; an edge",
    "id,source,target\n0,0,1\n": ", line 1: the columns are 'id, source, target'; an",
    "source,target,timestamp\n0,0,1\n": ", line 1: the columns are 'source, target, timestamp'",
    ",source,target\n0,0,1\n": ", line 1: the columns are ', source, target'; an",
    "nan,nan\n0,1\n": ", line 1: 'nan' is not an integer",
    '"0,1"\n': ", line 1: '\"0' is not an integer",
    '0,1\n"1,2\n': ", line 2: '\"1' is not an integer",
    "0 1\n1 0 # no\n": ", line 2: ('#' |4 columns)",
    "0 1\n/ comment\n": ", line 2: '/' is not an integer",
    "# Nodes: 4 039\n0 1\n": "'4 039' is not a number of nodes",
    "# Nodes: 4.039\n0 1\n": "'4.039' is not a number of nodes",
    "# Edges: 4,03\n0 1\n": "'4,03' is not a number of edges",
    "# Directed graph\n# Undirected graph\n0 1\n": "say both 'Directed graph' and",
    "1,234\t5\n2,345\t6\n": ", line 1: .* mixes separators; use one kind",
    "source;target;weight\n0;1;0,5\n": ", line 2: '0;1;0,5' mixes separators",
    "0 1,234\n": ", line 1: .* mixes separators",
    "0 1\r1 2\r": ", line 1: lines end with CR alone",
    "0 1 16777217\n": ", line 1: 1.67772e.07 is not a whole number that float32",
    "0 1 16777216\n0 1 1\n": r": entry \(1, 0\) is 16777217; it must be a whole",
    "% bip unweighted\n1 1\n": ", line 1: '% bip unweighted': the ids of a bipartite",
    "0,1,1e300\n": ", line 1: 1e.300 is not a weight that float32 can hold",
    "0,1,1e-50\n": ", line 1: 1e-50 is not a weight that float32 can hold",
    "0,1,1e999\n": ", line 1: '1e999' is too large or too small",
    "0,1,0x10\n": ", line 1: '0x10' is not a number",
    f"# Edges: {NINES}\n0 1\n": "'9+…9+' is not a number of edges",
    f"# Nodes: 3\n0 {2**63 - 1}\n": ": ids reach 9223372036854775807; no larger ones are left",
    f"# Nodes: {10**15}\n0 1\n": ": 10{15} vertices: needs .* GiB of memory",
}
METIS = {
    "": ": empty; a METIS graph begins with",
    "x y\n": ", line 1: the header of a METIS graph is",
    "3\n": ", line 1: the header of a METIS graph is",
    "3 2 7\n": ", line 1: .*fmt is up to three digits",
    "3 2\n2\n1 3\n": ": truncated: the header says 3 vertices, but only 2",
    "3 2\n2\n1 3\n2\n1\n": ", line 5: more lines than the header's 3 vertices",
    "3 2\n2\n1 4\n2\n": r", line 3: 4 is not a vertex in \[1, 3\]",
    "3 2\n2\n1 0\n2\n": r", line 3: 0 is not a vertex in \[1, 3\]",
    "3 2\n2\n1 z\n2\n": ", line 3: 'z' is not an integer",
    "3 2\n2\n1 2\n2\n": ", line 3: vertex 2 is its own neighbour",
    "3 5\n2\n1 3\n2\n": ", line 1: the header says 5 edges",
    "3 2\n2\n1 3\n1\n": "vertices 1 and 3 is not the same at both ends",
    "2 1 001\n2 5\n1 6\n": "vertices 1 and 2 is not the same at both ends",
    "2 1 011\n9 2 5\n9 1\n": ", line 3: 2 columns; the fmt in line 1 asks for 1 of .*, then 2 per",
    f"{NINES} 0\n": "'9+…9+' is not a number of vertices",
    f"2 {NINES}\n2\n1\n": "'9+…9+' is not a number of edges",
    f"{10**15} 0\n": ": truncated: the header says 10{15} vertices",
    f"2 1 010 {10**9}\n2\n1\n": "1000000000 constraints are more than",
    f"2 1\n{NINES}\n1\n": ", line 2: '9+…9+' is not an integer of 64 bits",
    "2 1 001\n2 1e300\n1 1e300\n": ", line 2: 1e.300 is not a weight",
    "2 1 010\n1 2\n\n": ", line 3: empty, but the fmt asks for 1",
    "٣ 2\n": ", line 1: the header of a METIS graph is",
}
MATRICES = {
    "hello": ", line 1: not a Matrix Market file",
    MTX.encode("utf-16-be"): ", line 1: not a Matrix Market file",
    MTX.replace("coordinate", "array") + "real general\n": "a 'array' matrix",
} | {
    f"{MTX}{content}": words
    for content, words in {
        "complex general\n": ", line 1: 'complex' entries",
        "real hermitian\n": ", line 1: 'hermitian'",
        "pattern skew-symmetric\n": ", line 1: a 'pattern' has no sign",
        "real skew-symmetric\n2 2 1\n1 2 3\n": ", line 3: 2 is not a column before",
        "real skew-symmetric\n2 2 1\n1 1 3\n": ", line 3: 1 is not a column before",
        "unsigned-integer general\n2 2 1\n1 2 -3\n": ", line 3: -3 is not an uns",
        "integer general\n2 2 1\n1 2 16777217\n": ", line 3: 16777217 is not a whole",
        "integer general\n2 2 2\n1 2 16777216\n1 2 1\n": r"entry \(0, 1\) is 16777217; it must be",
        "pattern symmetric\n3 3 3\n2 1\n3 2\n1 2\n": r": lists both entry \(1, 2\) and \(2, 1\)",
        "pattern general\n3 4 1\n1 2\n": "3 × 4; a graph needs as many rows",
        "pattern general\n3 3 2\n1 2\n": ": truncated: line 2 says 2 entries, but 1 follow",
        "pattern general\n3 3 2\n1 2\n4 1\n": r", line 4: 4 is not a row in \[1, 3\]",
        "pattern general\n3 3 2\n1 2\n2 x\n": ", line 4: 'x' is not an integer",
        "real general\n3 3 1\n1 2 1.5Q\n": ", line 3: '1.5Q' is not a number",
        "real general\n3 3 1\n1 2 0x10\n": ", line 3: '0x10' is not a number",
        "real general\n3 3 1\n1.0 2 1\n": ", line 3: '1.0' is not an integer",
        "integer general\n3 3 1\n1 2 1.5\n": ", line 3: '1.5' is not an integer",
        "real general\n3 3 1\n1 2 1 4\n": ", line 3: 4 columns; an entry of",
        "pattern general\n3 3 1\n1 2 1\n": ", line 3: 3 columns; an entry of",
        "real general\n3 3 1\n1 2\n": ", line 3: 2 columns; .* 'row column value'",
        "pattern general\n3 3 1\n1,2\n": ", line 3: '1,2' is not an integer",
        "pattern general\n3 3 1\n% no\n1 2\n": ", line 3: '%' is not an integer",
        "pattern general\n3 3 1\n1 2\n2 1\n": ", line 4: more entries than the 1",
        "pattern general\n3 3 1\n0 2\n": r", line 3: 0 is not a row in \[1, 3\]",
        "pattern general\n3 3 1\n1 7\n": ", line 3: 7 is not a column in",
        "pattern general\n3 3\n1 2\n": ", line 2: there must be a line 'rows",
        "pattern general\n": ": truncated: there must be a line 'rows",
        "pattern general\n3 3 -1\n": ", line 2: '-1' is not a number of entries",
        f"pattern general\n3 3 {NINES}\n": ", line 2: '9+…9+' is not a number",
        "real general\n3 3 1\n1 2 1e300\n": ", line 3: 1e.300 is not a weight",
        "real general\n3 3 1\n1 2 1e-300\n": ", line 3: 1e-300 is not a weight",
        "real general\n3 3 1\n1 2 1e999\n": ", line 3: '1e999' is too large or",
        "real general\n3 3 1\n1 2 nan\n": ", line 3: nan is not a finite number",
        f"integer general\n3 3 1\n1 2 {10**19}\n": ", line 3: '10+' is not an integer of 64 bits",
        "real general\n2 2 2\n1 2 3e38\n1 2 3e38\n": r"entry \(0, 1\) is 6e.38; it must be a weigh",
        f"pattern general\n{10**15} {10**15} 1\n1 2\n": ": 10+ vertices: needs .* GiB of memory",
    }.items()
}
OTHERS = [
    ("g.mtx.zst", "", ": unpack it first; of packed files only text in .gz, .bz2, .xz"),
    ("g.xyz", "", ": unknown format; known are"),
    *((f"g{suffix}", "", ": unpack it first") for suffix in (".npz.gz", ".tar.gz", ".zip")),
    *(
        (f"g.{suffix}", "xx", ": unpack it first")
        for suffix in ("parquet.gz", "arrow.xz", "pq.bz2")
    ),
    *(
        (f"g{suffix}", "", ": is not read, since pickles can run code")
        for suffix in (".pt", ".PKL")
    ),
    ("g.mat", "", ": is not read; read it by scipy.io.loadmat"),
]
TABLES = (("g.txt", EDGES), ("g.graph", METIS), ("g.mtx", MATRICES))
CASES = [(name, *case) for name, table in TABLES for case in table.items()] + OTHERS


@pytest.mark.parametrize(("name", "content", "words"), CASES)
def test_bad_files_are_named_with_the_line(tmp_path, name, content, words):
    """By both ways to read edges; whatever was begun on a disk is gone."""
    path = put(tmp_path, name, content)

    def through_disk():
        with small_pieces(24, 3):
            open_through_disk(path, directory=tmp_path / "uncut", memory=4 << 30)

    for read in (lambda: read_graph(path), through_disk):
        with pytest.raises(InputError, match="(?i)" + words) as caught:
            read()
        assert str(caught.value).startswith(str(path)[:100])
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) <= 300
    assert list(tmp_path.iterdir()) == [path]


def test_missing_files_and_directories_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_graph(tmp_path / "none.mtx")
    with pytest.raises(InputError, match="is a directory"):
        read_graph(tmp_path)


def entries(A):
    """(row, column, weight) of each entry."""
    rows = np.repeat(np.arange(A.shape[0]), A.row_lengths.numpy())
    values = np.ones(A.nnz) if A.values is None else A.values.numpy()
    return list(zip(rows.tolist(), A.indices.tolist(), values.tolist(), strict=True))


ENDS = ["", "\n", " ", "\t", "\r", "\r\n", "\n\n", " \n", "\n \n", "\0", "x", " x", ".", "%", "e5"]


@pytest.mark.parametrize("field", ["pattern", "integer", "real"])
def test_every_end_of_a_matrix_market_file(tmp_path, field):
    """A last number followed by anything but a newline ended in a segmentation fault."""
    value = "" if field == "pattern" else " 4"
    for end in ENDS:
        content = f"{MTX}{field} general\n3 3 2\n1 2{value}\n2 3{value}{end}"
        path = put(tmp_path, "g.mtx", content)
        if end.strip("\n\r\t ") and not (field == "real" and end in (".", "e5")):
            with pytest.raises(InputError, match=", line 4: "):
                read_graph(path)
        else:
            last = {"pattern": 1, "integer": 4, "real": 4e5 if end == "e5" else 4}[field]
            found = entries(read_graph(path).adjacency)
            assert found == [(0, 1, 4 if value else 1), (1, 2, last)]


def test_damage_inside_a_gzip_stream_is_one_line(tmp_path):
    content = MTX + "pattern general\n99 99 98\n" + "".join(f"{i} {i + 1}\n" for i in range(1, 99))
    path = put(tmp_path, "g.mtx.gz", content)
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 255
        path.write_bytes(damaged)
        with suppress(InputError):
            refused += 1
            assert read_graph(path).edges == 98
            refused -= 1  # a byte of the header that means nothing
    assert refused > 0.9 * len(whole) / 3
    path.write_bytes(whole[:-12])
    with pytest.raises(InputError, match=r"g\.mtx\.gz: truncated or damaged"):
        read_graph(path)


LAST = 2**63 - 1


@pytest.mark.parametrize(
    ("content", "vertices", "ids", "edges"),
    [
        # Stated nodes are believed; if fewer than there are ids, those are positions all the same.
        ("# Nodes: 1000 Edges: 1\n3 5\n", 1000, None, [(5, 3)]),
        ("# Nodes: 2\n3 5\n", 6, None, [(5, 3)]),
        # Ids that are names are renumbered and kept; stated vertices without a name come last.
        (f"5 {LAST}\n7 5\n", 3, [5, 7, LAST], [(0, 1), (2, 0)]),
        ("# Nodes: 4\n5 1000000000000\n7 5\n", 4, [5, 7, 10**12, 10**12 + 1], [(0, 1), (2, 0)]),
    ],
)
def test_ids_are_positions_or_names(tmp_path, caplog, content, vertices, ids, edges):
    graph = read_graph(put(tmp_path, "g.txt", content))
    assert graph.vertices == vertices
    assert (graph.vertex_ids if ids is None else graph.vertex_ids.tolist()) == ids
    assert [place[:2] for place in entries(graph.adjacency)] == edges
    assert ("numbered in rising order" in caplog.text) == (ids is not None)


def test_errors_name_the_line_of_the_file_in_every_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 16)
    path = put(tmp_path, "g.txt", "# head\n" + "1 2\n" * 50 + "1 oops\n" + "1 2\n" * 50)
    with pytest.raises(InputError, match="line 52: 'oops' is not an integer"):
        read_graph(path)


@pytest.mark.parametrize("name", ["g.txt", "g.txt.gz", "g.graph"])
def test_progress_ends_with_the_whole_file(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text, "PIECE", 64)
    path = put(tmp_path, name, "1 2\n" * 100 if name != "g.graph" else "100 0\n" + "\n" * 100)
    seen = []
    read_graph(path, lambda *args: seen.append(args))
    assert [what for what, _, _ in seen] == [f"reading {name}"] * len(seen)
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1:] == (path.stat().st_size, path.stat().st_size)


# Made to do harm: one line at once.


@pytest.mark.parametrize("suffix", [*READERS, ".txt.gz", ".mtx.xz"])
def test_pipes_are_refused_and_not_waited_for(tmp_path, suffix):
    path = tmp_path / f"g{suffix}"
    os.mkfifo(path)
    through_disk = partial(open_through_disk, directory=tmp_path / "uncut", memory=4 << 30)
    for read in (read_graph, load_dataset, open_source, through_disk):
        with pytest.raises(InputError, match="is a pipe or a device; files are read more than"):
            read(path)


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
    put(tmp_path, "g.mtx", MTX + "pattern general\n200000 200000 1\n1 2\n")
    put(tmp_path, "g.txt", "# Nodes: 200000\n0 1\n")
    names = ("e.parquet", "e.feather", "e.arrow", "g.mtx", "g.txt")
    for name in names:
        assert load_dataset(tmp_path / name).vertices
    monkeypatch.setattr(files, "_SMALL_ARRAY", 1 << 20)
    monkeypatch.setattr(files, "_MOST_ARRAY", 50)
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


MTX_FILE = "%MatrixMarket matrix coordinate real symmetric\n2 2 1\n1 2 3\n"
NAMED = "# Nodes: 4,039\n#Undirected graph: g\nfrom,to,weight\n0,1,2\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("g.txt", "# was undirected\n0 1 1\n", "(directed, unweighted)"),
        ("g.txt", "0 1 1\n", "direction by  no comment begins with 'Undirected graph'"),
        ("g.csv", NAMED, "(undirected, weighted)"),
        ("g.csv", NAMED, "direction by  a comment begins with 'Undirected graph'"),
        ("g.csv", NAMED, "vertices by  a comment says 'Nodes: 4039'"),
        ("g.csv", NAMED, "weights by  third column 'weight', unless all are 1"),
        ("g.txt", "% sym unweighted\n% 1 2 2\n1 2\n", "line 1 says 'sym', as"),
        ("g.txt", "% sym unweighted\n% 1 2 2\n1 2\n", "(undirected, "),
        ("g.txt", "% asym weighted\n1 2 3\n", "(directed, weighted)"),
        ("g.txt", "% asym weighted\n1 2 3\n", "line 1 says 'asym', as"),
        ("g.el", "0 5\n", "vertices by  ids reach 5"),
        ("g.el", "0 5\n", "weights by  there is no third column"),
        ("g.txt", "0 1000000\n", "vertices by  ids are names, and renumbered"),
        ("g.mtx", MTX_FILE, "direction by  line 1: 'symmetric'"),
        ("g.mtx", MTX_FILE, "weights by  line 1: 'real', unless all"),
        ("g.graph", "2 1 10 0\n7 2\n7 1\n", "a METIS graph is undirected"),
        ("g.graph", "2 1 10 0\n7 2\n7 1\n", "not read  weights and sizes of vertices, 1 each"),
    ],
)
def test_info_says_what_decides(tmp_path, capsys, name, content, said):
    (tmp_path / name).write_text(content)
    assert main(["info", str(tmp_path / name)]) == 0
    assert said in capsys.readouterr().out
