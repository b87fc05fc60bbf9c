"""What goes by way of a disk, against the same read into memory."""

from __future__ import annotations

import errno
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import InputError
from spgnn.__main__ import main
from spgnn.data import (
    open_shards,
    write_shards,
)
from spgnn.data import reading as text
from spgnn.data import through_disk as sorting
from spgnn.data.load import read_graph
from spgnn.data.npz import write_npz
from spgnn.data.source import MemorySource
from spgnn.data.structure import row_ranges
from spgnn.data.through_disk import open_through_disk
from tests.data.graphs import MTX, assert_same_csr, assert_same_vertices, check_source, graphs, put

MEMORY = 4 << 30


@contextmanager
def small(piece=24, limit=3):
    """Pieces of a few lines, and buckets of a few entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE", piece)
        patch.setattr(sorting, "row_ranges", lambda lengths, _: row_ranges(lengths, limit))
        yield


def outcome(make):
    """What comes of it, or what is said."""
    try:
        return make(), None
    except InputError as error:
        return None, str(error)


def assert_same_graph(found, wanted):
    assert (found.name, found.directed) == (wanted.name, wanted.directed)
    assert_same_csr(found.adjacency, wanted.adjacency)
    assert (found.vertex_ids is None) == (wanted.vertex_ids is None)
    if wanted.vertex_ids is not None:
        assert torch.equal(found.vertex_ids, wanted.vertex_ids)
    assert_same_vertices(found, wanted)


def check_file(path, directory, *, symmetrise=False, **sizes):
    """The graph that is read into memory, or the same complaint."""
    wanted, said = outcome(lambda: read_graph(path))
    with small(**sizes):
        found, complaint = outcome(
            lambda: open_through_disk(
                path, directory=directory / "uncut", memory=MEMORY, symmetrise=symmetrise
            )
        )
    assert complaint == said
    if wanted is not None:
        if symmetrise and wanted.directed:
            wanted = wanted.symmetrised()
        assert_same_graph(found.graph(), wanted)
        assert found.meta.edges == wanted.edges
        found.check()
    else:
        assert [entry.name for entry in directory.iterdir()] == [path.name]
    return wanted


@st.composite
def edge_lines(draw, least=0):
    """Edges with loops, some of them twice, and weights that sums are not exact of."""
    n = draw(st.integers(1, 9))
    ends = st.integers(least, n - 1 + least)
    weight = st.sampled_from([0.1, 0.2, 0.3, 1e8, -1e8, 1.0])
    edges = draw(st.lists(st.tuples(ends, ends, weight), max_size=25))
    weighted = draw(st.booleans())
    return n, [f"{u} {v} {w}" if weighted else f"{u} {v}" for u, v, w in edges], weighted


SIZES = {"piece": st.integers(1, 60), "limit": st.integers(1, 30)}


@given(edge_lines(), st.booleans(), st.booleans(), st.booleans(), st.fixed_dictionaries(SIZES))
def test_edge_lists(tmp_path_factory, drawn, undirected, scattered, symmetrise, sizes):
    n, lines, _ = drawn
    if scattered:  # ids that are names
        lines = [
            " ".join([*(str(10**6 * int(e)) for e in line.split()[:2]), *line.split()[2:]])
            for line in lines
        ]
    stated = "" if scattered else f"# Nodes: {n + 1}\n"
    head = "# Undirected graph\n" if undirected else ""
    directory = tmp_path_factory.mktemp("edges")
    path = put(directory, "g.txt.gz" if scattered else "g.csv", stated + head + "\n".join(lines))
    check_file(path, directory, symmetrise=symmetrise, **sizes)


@given(edge_lines(1), st.booleans(), st.booleans(), st.fixed_dictionaries(SIZES))
def test_matrix_market(tmp_path_factory, drawn, symmetric, symmetrise, sizes):
    n, lines, weighted = drawn
    if symmetric:
        lines = [line for line in lines if int(line.split()[0]) >= int(line.split()[1])]
    kind = f"{'real' if weighted else 'pattern'} {'symmetric' if symmetric else 'general'}"
    directory = tmp_path_factory.mktemp("mtx")
    content = "\n".join([MTX + kind, f"{n} {n} {len(lines)}", *lines])
    check_file(put(directory, "g.mtx", content), directory, symmetrise=symmetrise, **sizes)


@given(
    edge_lines(1),
    st.sampled_from(["", "forget", "twice", "count"]),
    st.booleans(),
    st.fixed_dictionaries(SIZES),
)
def test_metis(tmp_path_factory, drawn, fault, of_vertices, sizes):
    n, lines, weighted = drawn
    weights = {}
    for line in lines:
        u, v, *w = line.split()
        if u != v:
            weights[int(u), int(v)] = weights[int(v), int(u)] = w[0] if w else "1"
    neighbours = {
        u: [f"{v} {w}" if weighted else f"{v}" for (t, v), w in weights.items() if t == u]
        for u in range(1, n + 1)
    }
    edges = len(weights) // 2
    if fault == "forget" and edges:
        next(filter(None, neighbours.values())).pop()
        neighbours[n].append("1 5" if weighted else "1")
    if fault == "twice" and edges:
        some = next(filter(None, neighbours.values()))
        some.append(some[0])
    head = f"{n} {edges + (fault == 'count')} {'1' if of_vertices else '0'}{int(weighted)} "
    rows = ["7 " * of_vertices + " ".join(neighbours[u]) for u in range(1, n + 1)]
    directory = tmp_path_factory.mktemp("metis")
    path = put(directory, "g.graph", "\n".join([head, *rows, ""]))
    _, said = outcome(lambda: read_graph(path))
    if said and "not twice as many" in said and fault != "count":
        # Which of two faults is seen first depends on how far has been read.
        with small(**sizes), pytest.raises(InputError, match=r"not twice as many|not the same at"):
            open_through_disk(path, directory=directory / "uncut", memory=MEMORY)
        return
    check_file(path, directory, **sizes)


@given(graphs(), st.booleans(), st.data())
def test_compressed_archives(tmp_path_factory, graph, compressed, data):
    directory = tmp_path_factory.mktemp("npz")
    write_npz(graph, directory / "g.npz", compressed=compressed)
    wanted = read_graph(directory / "g.npz")
    source = open_through_disk(directory / "g.npz", directory=directory / "uncut", memory=MEMORY)
    assert source.random_access
    check_source(source, wanted, data)


@settings(max_examples=40)
@given(graphs(), st.integers(1, 3), st.data())
def test_directories_are_symmetrised(tmp_path_factory, graph, parts, data):
    directory = tmp_path_factory.mktemp("shards")
    labels = data.draw(
        st.lists(st.integers(0, parts - 1), min_size=graph.vertices, max_size=graph.vertices)
    )
    parts = min(parts, max(graph.vertices, 1))
    write_shards(graph, np.array(labels, np.int64) % parts, parts, directory / "cut")
    wanted = open_shards(directory / "cut").graph()
    if wanted.directed:
        wanted = wanted.symmetrised()
    with small():
        source = open_through_disk(
            directory / "cut", directory=directory / "uncut", memory=MEMORY, symmetrise=True
        )
    assert_same_graph(source.graph(), wanted)
    if source.meta.parts == 1:
        check_source(source, wanted, data)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_command(tmp_path, capsys, parts):
    rng = np.random.default_rng(0)
    lines = "\n".join(f"{u} {v}" for u, v in rng.integers(0, 50, (400, 2)))
    path = put(tmp_path, "g.txt", "# Nodes: 50\n" + lines)
    outputs = []
    for more in ([], ["--memory", "3GB"]):
        outputs.append(tmp_path / f"out{len(more)}")
        arguments = ["shard", str(path), "--parts", str(parts), "--symmetrise", *more]
        assert main([*arguments, "--output", str(outputs[-1])]) == 0
        assert f"50 vertices in {parts} part" in capsys.readouterr().out
    ours, theirs = (open_shards(output) for output in outputs)
    assert ours.meta == theirs.meta
    for part in range(parts):
        assert_same_csr(ours.adjacency_of(part), theirs.adjacency_of(part))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["g.txt", "out0", "out2"]


def test_too_little_memory_says_how_much_would_do(tmp_path, capsys):
    path = put(tmp_path, "g.txt", "0 1\n")
    arguments = ["shard", str(path), "--parts", "1", "--output", str(tmp_path / "out")]
    assert main([*arguments, "--memory", "100MB"]) == 2
    said = capsys.readouterr().err
    assert "g.txt: to be read by way of a disk it takes" in said
    assert "MiB of memory at least, and 95 are allowed" in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.txt"]


@pytest.mark.parametrize("method", ["__init__", "_add"])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, method):
    owner = sorting.EdgeLog if method == "__init__" else sorting.Buckets
    before = getattr(owner, method)

    def fails(*arguments):
        before(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, method, fails)
    path = put(tmp_path, "g.txt", "0 1\n1 2\n")
    with pytest.raises(InputError, match=r"uncut: cannot be written: No space left on device"):
        open_through_disk(path, directory=tmp_path / "uncut", memory=MEMORY)
    assert [entry.name for entry in tmp_path.iterdir()] == ["g.txt"]


def test_what_is_in_memory_anyway_stays_there(tmp_path):
    source = open_through_disk("sbm", directory=tmp_path / "uncut", memory=MEMORY, symmetrise=True)
    assert isinstance(source, MemorySource)
    assert not (tmp_path / "uncut").exists()


@pytest.mark.slow
def test_the_command_takes_the_memory_that_it_is_given(tmp_path):
    """8 million edges with weights, undirected: in memory it takes 1 GB."""
    rng = np.random.default_rng(0)
    with (tmp_path / "g.txt").open("w") as file:
        file.write("# Undirected graph\n")
        for _ in range(40):
            edges = rng.integers(0, 200_000, (200_000, 2)).tolist()
            file.writelines(f"{u} {v} {(u ^ v) / 4}\n" for u, v in edges)
    peaks = {}
    for memory in ("", "700MB"):
        script = (
            "from spgnn.__main__ import main; from spgnn.memory import peak_bytes; "
            f"main(['shard', {str(tmp_path / 'g.txt')!r}, '--parts', '1', '--output', "
            f"{str(tmp_path / f'out{memory}')!r}, *{['--memory', memory] if memory else []}]); "
            "print(peak_bytes())"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        peaks[memory] = int(ran.stdout.split()[-1])
    assert peaks["700MB"] <= 1.05 * 700 * 10**6 < peaks[""]
    found, wanted = (open_shards(tmp_path / f"out{memory}") for memory in ("700MB", ""))
    assert found.meta == wanted.meta
    assert_same_csr(found.structure(), wanted.structure())
