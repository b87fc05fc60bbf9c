from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from spgnn import InputError
from spgnn.data import reading as text
from spgnn.data.load import read_graph
from spgnn.data.reading import Grammar
from tests.data.graphs import MTX, adjacencies, assert_canonical, put


def entries(A):
    """(row, column, weight) of each entry."""
    rows = np.repeat(np.arange(A.shape[0]), A.row_lengths.numpy())
    values = np.ones(A.nnz) if A.values is None else A.values.numpy()
    return list(zip(rows.tolist(), A.indices.tolist(), values.tolist(), strict=True))


ENDS = ["", "\n", " ", "\t", "\r", "\r\n", "\n\n", " \n", "\n \n", "\0", "x", " x", ".", "%", "e5"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("field", ["pattern", "integer", "real"])
def test_every_end_of_a_matrix_market_file(tmp_path, field, end):
    """A last number followed by anything but a newline ended in a segmentation fault."""
    value = "" if field == "pattern" else " 4"
    path = put(tmp_path, "g.mtx", f"{MTX}{field} general\n3 3 2\n1 2{value}\n2 3{value}{end}")
    wrong = end.strip("\n\r\t ") and not (field == "real" and end in (".", "e5"))
    if wrong:
        with pytest.raises(InputError, match=", line 4: "):
            read_graph(path)
    else:
        dense = read_graph(path).adjacency.to_scipy().toarray()
        weight = {"pattern": 1, "integer": 4, "real": 4e5 if end == "e5" else 4}[field]
        np.testing.assert_array_equal(dense, [[0, 4 if value else 1, 0], [0, 0, weight], [0, 0, 0]])


@given(adjacencies(), st.sampled_from(["general", "symmetric"]), st.randoms())
def test_matrix_market_is_read_as_scipy_does(tmp_path_factory, A, symmetry, draw):
    lines = [(i, j, w) for i, j, w in entries(A) if symmetry == "general" or j <= i]
    draw.shuffle(lines)
    lines += lines[:2]  # entries that occur twice are summed
    signs = ["", " ", "-"]
    text = [f"%%MatrixMarket MATRIX Coordinate Real {symmetry.title()}", "% comment", "%", ""]
    text.append(f"  {A.shape[0]}\t{A.shape[0]} {len(lines)} ")
    for i, j, w in lines:
        text += [f"{i + 1} \t{j + 1} {draw.choice(signs)}{abs(w):.{draw.randint(2, 9)}e}"]
        text += [""] * draw.randint(0, 1)
    path = put(tmp_path_factory.mktemp("mtx"), "g.mtx", "\n".join(text) + "\n")
    expected = scipy.io.mmread(path).toarray().astype(np.float32)
    graph = read_graph(path)
    assert graph.directed == (symmetry == "general")
    if graph.weighted:
        np.testing.assert_array_equal(graph.adjacency.to_scipy().toarray(), expected)
    assert_canonical(graph.adjacency)


def test_damage_inside_a_gzip_stream_is_one_line(tmp_path):
    content = MTX + "pattern general\n99 99 98\n" + "".join(f"{i} {i + 1}\n" for i in range(1, 99))
    whole = put(tmp_path, "g.mtx.gz", content).read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 255
        (tmp_path / "g.mtx.gz").write_bytes(damaged)
        with suppress(InputError):
            refused += 1
            assert read_graph(tmp_path / "g.mtx.gz").edges == 98
            refused -= 1  # a byte of the header that means nothing
    assert refused > 0.9 * len(whole) / 3


def test_nodes_that_a_comment_states_are_believed(tmp_path):
    path = put(tmp_path, "g.txt", "# Nodes: 1000 Edges: 1\n3 5\n")
    graph = read_graph(path)
    assert graph.vertices == 1000
    assert graph.vertex_ids is None
    assert entries(graph.adjacency) == [(5, 3, 1.0)]
    # Fewer than there are ids: those are positions all the same.
    assert read_graph(put(tmp_path, "h.txt", "# Nodes: 2\n3 5\n")).vertices == 6


def test_stated_nodes_beside_ids_that_are_names(tmp_path, caplog):
    path = put(tmp_path, "g.txt", "# Nodes: 5\n5 1000000000000\n7 5\n")
    graph = read_graph(path)
    assert graph.vertices == 5
    assert graph.vertex_ids.tolist() == [5, 7, 10**12, 10**12 + 1, 10**12 + 2]
    assert entries(graph.adjacency) == [(0, 1, 1.0), (2, 0, 1.0)]


@pytest.mark.parametrize("name", ["g.txt.gz", "g.graph.gz", "g.mtx.gz"])
def test_truncated_gzip_is_refused(tmp_path, name):
    content = {
        "g.txt.gz": "".join(f"{i} {i * 7 % 1000}\n" for i in range(1000)),
        "g.graph.gz": "3 2\n2\n1 3\n2\n",
        "g.mtx.gz": MTX + "pattern general\n3 3 2\n1 2\n2 1\n",
    }[name]
    path = put(tmp_path, name, content)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=re.escape(str(path))):
        read_graph(path)


def test_ids_that_are_names_are_renumbered_and_kept(tmp_path, caplog):
    path = put(tmp_path, "g.txt", f"5 {2**63 - 1}\n7 5\n")
    graph = read_graph(path)
    assert graph.vertex_ids.tolist() == [5, 7, 2**63 - 1]
    assert entries(graph.adjacency) == [(0, 1, 1.0), (2, 0, 1.0)]
    assert "numbered in rising order" in caplog.text


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_pieces_do_not_change_what_is_read(tmp_path_factory, piece, seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 1000, (rng.integers(1, 30), 2))
    lines = [f"{u} {v}" for u, v in table.tolist()]
    lines.insert(len(lines) // 2, "% comment 1 2 3")
    lines.insert(len(lines) // 3, "")
    path = put(tmp_path_factory.mktemp("pieces"), "g.txt", "\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE", piece)
        read = list(text.read_numbers(path, Grammar("", "i", blank_rows=True)))
    values = np.concatenate([numbers.integers for numbers in read])
    assert values.tolist() == table.reshape(-1).tolist()
    numbered = dict(
        zip(
            np.concatenate([numbers.lines for numbers in read]).tolist(),
            np.concatenate([numbers.counts for numbers in read]).tolist(),
            strict=True,
        )
    )
    expected = {
        at: len(line.split()) for at, line in enumerate(lines, 1) if not line.startswith("%")
    }
    assert numbered == expected


def test_errors_name_the_line_of_the_file_in_every_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 16)
    path = put(tmp_path, "g.txt", "# head\n" + "1 2\n" * 50 + "1 oops\n" + "1 2\n" * 50)
    with pytest.raises(InputError, match="line 52: 'oops' is not an integer"):
        read_graph(path)


@pytest.mark.parametrize("name", ["g.txt", "g.txt.gz", "g.graph"])
def test_progress_ends_with_the_whole_file(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text, "PIECE", 64)
    edges = "1 2\n" * 100 if name != "g.graph" else "100 0\n" + "\n" * 100
    path = put(tmp_path, name, edges)
    seen = []
    read_graph(path, lambda *args: seen.append(args))
    assert [what for what, _, _ in seen] == [f"reading {name}"] * len(seen)
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1:] == (path.stat().st_size, path.stat().st_size)
