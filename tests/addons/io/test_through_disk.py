"""What goes by way of a disk, against the same read into memory."""

from __future__ import annotations

import errno
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import InputError
from spgnn.__main__ import main
from spgnn.addons.io import through_disk as sorting
from spgnn.addons.io.through_disk import open_through_disk
from spgnn.data import open_shards, write_shards
from spgnn.data.load import read_graph
from spgnn.data.npz import write_npz
from spgnn.data.source import MemorySource
from tests.addons.io.pieces import small_pieces
from tests.data.graphs import assert_same_csr, assert_same_vertices, check_source, graphs, put

MEMORY = 4 << 30


def same_graph(found, wanted):
    assert (found.name, found.directed) == (wanted.name, wanted.directed)
    assert_same_csr(found.adjacency, wanted.adjacency)
    assert (found.vertex_ids is None) == (wanted.vertex_ids is None)
    if wanted.vertex_ids is not None:
        assert torch.equal(found.vertex_ids, wanted.vertex_ids)
    assert_same_vertices(found, wanted)


WEIGHTS = st.sampled_from([0.1, 0.2, 0.3, 1e8, -1e8, 1.0])  # sums depend on their order
EDGE = st.tuples(st.integers(0, 8), st.integers(0, 8), WEIGHTS)


@settings(max_examples=50)
@given(
    st.lists(EDGE, min_size=1, max_size=25), st.booleans(), st.booleans(), st.booleans(),
    st.integers(1, 60), st.integers(1, 30),
)  # fmt: skip
def test_edges_are_those_in_memory_bit_for_bit(
    tmp_path_factory, edges, undirected, scattered, symmetrise, piece, limit
):
    factor = 10**6 if scattered else 1  # ids that are names
    head = ("" if scattered else "# Nodes: 10\n") + ("# Undirected graph\n" if undirected else "")
    text = head + "\n".join(f"{factor * u} {factor * v} {w}" for u, v, w in edges)
    directory = tmp_path_factory.mktemp("edges")
    path = put(directory, "g.txt.gz" if scattered else "g.csv", text)
    wanted = read_graph(path)
    with small_pieces(piece, limit):
        found = open_through_disk(
            path, directory=directory / "uncut", memory=MEMORY, symmetrise=symmetrise
        )
    if symmetrise and wanted.directed:
        wanted = wanted.symmetrised()
    same_graph(found.graph(), wanted)
    assert found.meta.edges == wanted.edges
    found.check()


@settings(max_examples=30)
@given(graphs(), st.booleans(), st.data())
def test_compressed_archives(tmp_path_factory, graph, compressed, data):
    directory = tmp_path_factory.mktemp("npz")
    write_npz(graph, directory / "g.npz", compressed=compressed)
    wanted = read_graph(directory / "g.npz")
    source = open_through_disk(directory / "g.npz", directory=directory / "uncut", memory=MEMORY)
    assert source.random_access
    check_source(source, wanted, data)


@settings(max_examples=20)
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
    with small_pieces(24, 3):
        source = open_through_disk(
            directory / "cut", directory=directory / "uncut", memory=MEMORY, symmetrise=True
        )
    same_graph(source.graph(), wanted)
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
