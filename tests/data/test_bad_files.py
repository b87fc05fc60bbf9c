"""Text files that are wrong: one line that names the file, the line, and what would be right."""

from __future__ import annotations

import pytest

from spgnn import InputError
from spgnn.data.load import read_graph
from tests.data.graphs import MTX, put

NINES = "9" * 5000
# What each file holds, and what must be said (a regular expression, in any case of letters).
EDGES = {
    "0 1\n1 x\n": ", line 2: 'x' is not an integer",
    "0 1\n\n# c\n1.5 2\n": ", line 4: '1.5' is not an integer",
    "0 1\n1 2 3\n": ", line 2: 3 columns; the first edge has 2",
    "0 1\n1\n2 3\n4 5 6\n": ", line 2: 1 columns",
    "0 1 2 3\n": ", line 1: 4 columns; an edge is",
    "": ": holds no edges",
    "# only a comment\n": ": holds no edges",
    "source,target\n": ": holds no edges",
    "# Edges: 9\n0 1\n": ": truncated: its header says 9 edges, but it holds 1",
    "0 1\n3 -1\n": ", line 2: -1 is not a vertex id",
    "0 99999999999999999999\n": ", line 1: .* is not an integer of 64 bits",
    "0,1,0.5\n\n1.5,0,2\n": ", line 3: '1.5' is not an integer",
    "0,1,0.5\n1,0,nan\n": ", line 2: nan is not a finite number",
    "0,1,0.5\n1,0,1_0z\n": ", line 2: '1_0z' is not a number",
    b"\xfe\x00 rubbish\n": ", line 1: .* is not an integer",
    "0 1\n".encode("utf-16"): ": is text in UTF-16; save it as UTF-8",
    "target,source\n0,1\n": ", line 1: the columns are 'target, source'; an edge is",
    "id,weight,to\n0,1,2\n": ", line 1: the columns are 'id, weight, to'; an edge",
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
    "0 1 16777217\n": ", line 1: 1.67772e.07 is not a whole number that float32",
    "0 1 16777216\n0 1 1\n": r": entry \(1, 0\) is 16777217; it must be a whole",
    "% bip unweighted\n1 1\n": ", line 1: '% bip unweighted': the ids of a bipartite",
    "0,1,1e300\n": ", line 1: 1e.300 is not a weight that float32 can hold",
    "0,1,1e-50\n": ", line 1: 1e-50 is not a weight that float32 can hold",
    "0,1,1e999\n": ", line 1: '1e999' is too large or too small",
    f"0,1\n1,{NINES}\n": ", line 2: '9+…9+' is not an integer of 64 bits",
    f"0,1,{NINES}\n": ", line 1: '9+…9+' is too large or too small",
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
    ("g.mtx.zst", "", ": unpack it first; of packed files only .gz, .bz2, .xz are read"),
    ("g.xyz", "", ": unknown format; known are"),
    ("g.npz.gz", "", ": unknown format; known are"),
]
TABLES = (("g.txt", EDGES), ("g.graph", METIS), ("g.mtx", MATRICES))
CASES = [(name, *case) for name, table in TABLES for case in table.items()] + OTHERS


@pytest.mark.parametrize(("name", "content", "words"), CASES)
def test_bad_files_are_named_with_the_line(tmp_path, name, content, words):
    path = put(tmp_path, name, content)
    with pytest.raises(InputError, match="(?i)" + words) as caught:
        read_graph(path)
    assert str(caught.value).startswith(str(path)[:100])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_missing_files_and_directories_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_graph(tmp_path / "none.mtx")
    with pytest.raises(InputError, match="is a directory"):
        read_graph(tmp_path)
