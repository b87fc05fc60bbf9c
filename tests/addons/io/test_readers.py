"""What readers of text make of numbers, in memory and by way of a disk: those that are stored."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.addons.io.through_disk import open_through_disk
from tests.addons.io.pieces import small_pieces
from tests.data.graphs import put
from tests.data.test_readers import check_file, meant, stored


def check_text(path, wanted):
    """In memory, and in pieces of a few entries."""

    def through_disk():
        with small_pieces(24, 3):
            return open_through_disk(path, directory=path.parent / "uncut", memory=4 << 30).graph()

    check_file(path, wanted, [through_disk])


@settings(max_examples=25)
@given(stored(), st.sampled_from(["general", "symmetric", "skew-symmetric"]), st.booleans())
def test_matrix_market(tmp_path_factory, entries, symmetry, upper):
    n, row, column, values = entries
    if symmetry != "general":
        row, column = np.maximum(row, column), np.minimum(row, column)
    fields = {"b": "pattern", "i": "integer", "u": "unsigned-integer", "f": "real"}
    field = fields[values.dtype.kind]
    skew = symmetry == "skew-symmetric"
    if skew and field in ("pattern", "unsigned-integer"):
        return
    keep = values if field == "pattern" else np.ones(len(values), np.bool_)
    keep = keep & (row != column) if skew else keep
    row, column, values = row[keep], column[keep], values[keep]
    ends = (column, row) if upper and symmetry == "symmetric" else (row, column)
    numbers = [""] * len(row) if field == "pattern" else values.tolist()
    # Capitals, blanks, blank lines and exponents are all the same to the format.
    lines = [f"{i + 1} \t{j + 1}  {v}" for i, j, v in zip(*ends, numbers, strict=True)]
    head = [f"%%MatrixMarket MATRIX Coordinate {field.title()} {symmetry}", "% comment", "%", ""]
    text = "\n".join([*head, f"  {n}\t{n} {len(lines)} ", *lines[:2], "", *lines[2:], ""])
    if field == "real":
        text = text.replace(" 0.375", " 3.75E-1").replace(" 1.0", " +1e0")
    if symmetry != "general":
        off = row != column
        other = -values[off] if skew else values[off]
        row, column = np.append(row, column[off]), np.append(column, row[off])
        values = np.append(values, other)
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
    name, directory = "g.mtx.xz" if upper else "g.mtx", tmp_path_factory.mktemp("mtx")
    check_text(put(directory, name, text), meant(n, row, column, values))


HEADS = ["", '"source","target"{}\n', "from node,to node{}\n", "\ufeff", "\ufeff// a comment\n"]


@settings(max_examples=25)
@given(
    stored(),
    st.sampled_from(HEADS),
    st.booleans(),
    st.booleans(),
    st.sampled_from([",", " ", "\t", "  ;"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["g.txt", "g.csv.gz", "g.edges", "g.el.bz2", "g.TSV.XZ"]),
)
def test_edge_lists(tmp_path_factory, entries, head, undirected, quoted, separator, newline, name):
    n, row, column, values = entries
    pattern = values.dtype == np.bool_
    keep = values if pattern else np.ones(len(values), np.bool_)
    row, column, values = row[keep], column[keep], values[keep]
    if not len(row):
        return
    mark = '"' if quoted else ""
    fields = [[j, i] if pattern else [j, i, v] for i, j, v in zip(row, column, values, strict=True)]
    lines = [separator.join(f"{mark}{v}{mark}" for v in some) for some in fields]
    comments = f"# Nodes: {n}\n" + (
        "  # Undirected graph: g\n" if undirected else "# undirected?\n"
    )
    first = head.format("" if pattern else ", the weight")
    begin, rest = (first, "") if first.startswith("\ufeff") else ("", first)
    text = begin + comments + rest + newline.join(lines)
    off = row != column
    if undirected:
        row, column = np.append(row, column[off]), np.append(column, row[off])
        values = np.append(values, values[off])
    directory = tmp_path_factory.mktemp("edges")
    wanted = meant(n, row, column, values)
    check_text(put(directory, name, text.encode()), wanted)


@settings(max_examples=25)
@given(
    stored(loops=False, symmetric=True),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(["", "\n% between lines"]),
    st.sampled_from(["g.graph", "g.graph.gz"]),
)
def test_metis(tmp_path_factory, entries, sizes, constraints, comment, name):
    n, row, column, values = entries
    pattern = values.dtype == np.bool_
    once = {
        (i, j): v for i, j, v in zip(row.tolist(), column.tolist(), values.tolist(), strict=True)
    }
    if pattern:
        once = {place: v for place, v in once.items() if v}
    both = once | {(j, i): v for (i, j), v in once.items()}
    of_vertex = "7 " * (sizes + constraints)
    lines = [
        of_vertex
        + " ".join(
            f"{j + 1}" if pattern else f"{j + 1} {v}" for (i, j), v in both.items() if i == u
        )
        + comment
        for u in range(n)
    ]
    fmt = f"{int(sizes)}{int(constraints > 0)}{int(not pattern)} {constraints or ''}"
    directory = tmp_path_factory.mktemp("metis")
    path = put(directory, name, "\n".join([f"{n} {len(once)} {fmt}{comment}", *lines, ""]))
    ends = np.array(list(both), np.int64).reshape(-1, 2)
    weights = np.array(list(both.values()), values.dtype)
    check_text(path, meant(n, *ends.T, weights))
