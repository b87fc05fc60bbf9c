from __future__ import annotations

import pytest

from spgnn import InputError
from spgnn.data import read_graph
from tests.data.text_files import MTX, put


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.txt", "0 1\n1 x\n", ", line 2: 'x' is not an integer"),
        ("g.txt", "0 1\n\n# c\n1.5 2\n", ", line 4: '1.5' is not an integer"),
        ("g.txt", "0 1\n1 2 3\n", ", line 2: 3 columns; the first edge has 2"),
        ("g.txt", "0 1\n1\n2 3\n4 5 6\n", ", line 2: 1 columns"),
        ("g.txt", "0 1 2 3\n", ", line 1: 4 columns; an edge is"),
        ("g.txt", "", ": holds no edges"),
        ("g.txt", "# only a comment\n", ": holds no edges"),
        ("g.csv", "source,target\n", ": holds no edges"),
        ("g.txt", "# Edges: 9\n0 1\n", ": truncated: its header says 9 edges, but it holds 1"),
        ("g.txt", "0 1\n3 -1\n", ", line 2: -1 is not a vertex id"),
        ("g.txt", "0 99999999999999999999\n", ", line 1: .* is not an integer of 64 bits"),
        ("g.csv", "0,1,0.5\n\n1.5,0,2\n", ", line 3: '1.5' is not an integer"),
        ("g.csv", "0,1,0.5\n1,0,nan\n", ", line 2: nan is not a finite weight"),
        ("g.csv", "0,1,0.5\n1,0,1_0z\n", ", line 2: '1_0z' is not a number"),
        ("g.txt", b"\xff\xfe\x00 rubbish\n", ", line 1: .* is not an integer"),
        ("g.graph", "", ": empty; a METIS graph begins with"),
        ("g.graph", "x y\n", ", line 1: the header of a METIS graph is"),
        ("g.graph", "3\n", ", line 1: the header of a METIS graph is"),
        ("g.graph", "3 2 7\n", ", line 1: .*fmt is up to three digits"),
        ("g.graph", "3 2\n2\n1 3\n", ": truncated: the header says 3 vertices, but only 2"),
        ("g.graph", "3 2\n2\n1 3\n2\n1\n", ", line 5: more lines than the header's 3 vertices"),
        ("g.graph", "3 2\n2\n1 4\n2\n", r", line 3: 4 is not a vertex in \[1, 3\]"),
        ("g.graph", "3 2\n2\n1 0\n2\n", r", line 3: 0 is not a vertex in \[1, 3\]"),
        ("g.graph", "3 2\n2\n1 z\n2\n", ", line 3: 'z' is not an integer"),
        ("g.graph", "3 5\n2\n1 3\n2\n", ", line 1: the header says 5 edges"),
        ("g.graph", "3 2\n2\n1 3\n1\n", "vertices 1 and 3 is not the same at both ends"),
        ("g.graph", "2 1 001\n2 5\n1 6\n", "vertices 1 and 2 is not the same at both ends"),
        (
            "g.graph",
            "2 1 011\n9 2 5\n9 1\n",
            ", line 3: 2 columns; the fmt in line 1 asks for 1 of the vertex, then 2 per edge",
        ),
        ("g.mtx", "hello", ", line 1: not a Matrix Market file"),
        ("g.mtx", MTX + "complex general\n", ", line 1: 'complex' entries"),
        ("g.mtx", MTX + "real skew-symmetric\n", ", line 1: 'skew-symmetric'"),
        ("g.mtx", MTX.replace("coordinate", "array") + "real general\n", "a 'array' matrix"),
        ("g.mtx", MTX + "pattern general\n3 4 1\n1 2\n", "3 × 4; a graph needs as many rows"),
        ("g.mtx", MTX + "pattern general\n3 3 2\n1 2\n", ": truncated"),
        (
            "g.mtx",
            MTX + "pattern general\n3 3 2\n1 2\n4 1\n",
            r", line 4: 4 is not a row in \[1, 3\]",
        ),
        ("g.mtx", MTX + "pattern general\n3 3 2\n1 2\n2 x\n", ", line 4: 'x' is not an integer"),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2 1.5Q\n", ", line 3: '1.5Q' is not a number"),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2 0x10\n", ", line 3: '0x10' is not a number"),
        ("g.mtx", MTX + "real general\n3 3 1\n1.0 2 1\n", ", line 3: '1.0' is not an integer"),
        ("g.mtx", MTX + "integer general\n3 3 1\n1 2 1.5\n", ", line 3: '1.5' is not an integer"),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2 1 4\n", ", line 3: 4 columns; an entry of"),
        ("g.mtx", MTX + "pattern general\n3 3 1\n1 2 1\n", ", line 3: 3 columns; an entry of"),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2\n", ", line 3: 2 columns; .* 'row column value'"),
        ("g.mtx", MTX + "pattern general\n3 3 1\n1,2\n", ", line 3: '1,2' is not an integer"),
        ("g.mtx", MTX + "pattern general\n3 3 1\n% no\n1 2\n", ", line 3: '%' is not an integer"),
        ("g.mtx", MTX + "pattern general\n3 3 1\n1 2\n2 1\n", ", line 4: more entries than the 1"),
        ("g.mtx", MTX + "pattern general\n3 3 1\n0 2\n", r", line 3: 0 is not a row in \[1, 3\]"),
        ("g.mtx", MTX + "pattern general\n3 3 1\n1 7\n", ", line 3: 7 is not a column in"),
        ("g.mtx", MTX + "pattern symmetric\n3 3 1\n1 2\n", ", line 3: 2 is not a column up to"),
        ("g.mtx", MTX + "pattern general\n3 3\n1 2\n", ", line 2: there must be a line 'rows"),
        ("g.mtx", MTX + "pattern general\n", ": truncated: there must be a line 'rows"),
        ("g.mtx", MTX + "pattern general\n3 3 -1\n", ", line 2: '-1' is not a number of entries"),
        (
            "g.mtx",
            MTX + f"pattern general\n3 3 {'9' * 5000}\n",
            ", line 2: '9+…9+' is not a number",
        ),
        (
            "g.mtx",
            MTX + f"pattern general\n3 3 {10**15}\n1 2\n",
            ": truncated: line 2 says 10",
        ),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2 1e300\n", ", line 3: 1e.300 is not a weight"),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2 1e-300\n", ", line 3: 1e-300 is not a weight"),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2 1e999\n", ", line 3: '1e999' is too large or"),
        (
            "g.mtx",
            MTX + f"integer general\n3 3 1\n1 2 {10**19}\n",
            ", line 3: '10+' is not an integer of 64 bits",
        ),
        (
            "g.mtx",
            MTX + "real general\n2 2 2\n1 2 3e38\n1 2 3e38\n",
            r"entry \(0, 1\) is 6e.38; it must be a weight that float32 can hold",
        ),
        ("g.csv", "0,1,1e300\n", ", line 1: 1e.300 is not a weight that float32 can hold"),
        ("g.csv", "0,1,1e-50\n", ", line 1: 1e-50 is not a weight that float32 can hold"),
        ("g.csv", "0,1,1e999\n", ", line 1: '1e999' is too large or too small"),
        ("g.csv", f"0,{'9' * 30}\n", ", line 1: '9{30}' is not an integer of 64 bits"),
        ("g.csv", f"0,1\n1,{'9' * 5000}\n", ", line 2: '9+…9+' is not an integer of 64 bits"),
        ("g.csv", f"0,1,{'9' * 5000}\n", ", line 1: '9+…9+' is too large or too small"),
        ("g.csv", "0,1,0x10\n", ", line 1: '0x10' is not a number"),
        ("g.txt", f"# Nodes: {'9' * 30}\n0 1\n", "'9{30}' is not a number of nodes"),
        ("g.txt", f"# Edges: {'9' * 5000}\n0 1\n", "'9+…9+' is not a number of edges"),
        ("g.txt", f"# Nodes: {10**15}\n0 1\n", ": 10{15} vertices: needs .* GiB of memory"),
        ("g.graph", f"{'9' * 30} 0\n", "'9{30}' is not a number of vertices"),
        ("g.graph", f"{'9' * 5000} 0\n", "'9+…9+' is not a number of vertices"),
        ("g.graph", f"2 {'9' * 5000}\n2\n1\n", "'9+…9+' is not a number of edges"),
        ("g.graph", f"{10**15} 0\n", ": truncated: the header says 10{15} vertices"),
        ("g.graph", f"2 1 010 {10**9}\n2\n1\n", "1000000000 constraints are more than"),
        ("g.graph", f"2 1\n{'2' * 5000}\n1\n", ", line 2: '2+…2+' is not an integer of 64 bits"),
        ("g.graph", "2 1 001\n2 1e300\n1 1e300\n", ", line 2: 1e.300 is not a weight"),
        ("g.graph", "2 1 010\n1 2\n\n", ", line 3: empty, but the fmt asks for 1"),
        ("g.graph", "٣ 2\n", ", line 1: the header of a METIS graph is"),
        ("g.mtx", MTX + "real general\n3 3 1\n1 2 nan\n", ", line 3: nan is not a finite number"),
        (
            "g.mtx",
            MTX + f"pattern general\n{10**15} {10**15} 1\n1 2\n",
            ": 10+ vertices: needs .* GiB of memory",
        ),
        ("g.xyz", "", ": unknown format; known are"),
        ("g.npz.gz", "", ": unknown format; known are"),
    ],
)
def test_bad_files_are_named_with_the_line(tmp_path, name, content, message):
    path = put(tmp_path, name, content)
    with pytest.raises(InputError, match="(?i)" + message) as caught:
        read_graph(path)
    assert str(caught.value).startswith(str(path)[:100])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300
