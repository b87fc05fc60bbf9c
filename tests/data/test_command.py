from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from spgnn.__main__ import main
from spgnn.data import open_shards
from spgnn.data.formats.npz import write_npz
from spgnn.data.sets.generators import block_model


@pytest.fixture
def graph_file(tmp_path):
    path = tmp_path / "toy.npz"
    write_npz(block_model(40, 200, classes=3, features=4, seed=0), path)
    return path


def test_shard_by_block_method_and_file(tmp_path, graph_file, capsys):
    labels = tmp_path / "labels"
    labels.write_text("".join(f"{v % 3}\n" for v in range(40)))
    for method in ("block", "random", str(labels)):
        output = tmp_path / f"out-{len(method)}"
        arguments = ["shard", str(graph_file), "--parts", "3", "--partition", method]
        assert main([*arguments, "--output", str(output)]) == 0
        shards = open_shards(output)
        ids = np.concatenate([shards.block(part).vertex_ids.numpy() for part in range(3)])
        assert sorted(ids.tolist()) == list(range(40))
        assert f"{output}: 40 vertices in 3 parts" in capsys.readouterr().out
    assert (ids[:14] % 3 == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["shard", "GRAPH", "--parts", "0", "--output", "OUT"],
            "--parts: '0' must be an integer ≥ 1",
        ),
        (["shard", "none.npz", "--parts", "2", "--output", "OUT"], "none.npz: no such file"),
        (
            ["shard", "GRAPH", "--parts", "2", "--partition", "best", "--output", "OUT"],
            "--partition best: neither a file nor one of block, random",
        ),
        (
            ["shard", "GRAPH", "--parts", "2", "--split", "3", "--output", "OUT"],
            "split 3 does not exist",
        ),
        (["shard", "GRAPH", "--parts", "2", "--output", "GRAPH"], "exists already"),
        (["shard", "GRAPH", "--parts", "2", "--partition", "SHORT", "--output", "OUT"], "SHORT"),
        (["shard", "GRAPH", "--parts", "2", "--partition", "LARGE", "--output", "OUT"], "LARGE"),
        (["info", "nothing"], "no data set 'nothing'"),
        (["download", "sbm"], "to download sbm: choose one of cora"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, graph_file, capsys, arguments, message):
    (tmp_path / "SHORT").write_text("0\n1\n")
    (tmp_path / "LARGE").write_text("0\n" * 39 + "2\n")
    places = {name: str(tmp_path / name) for name in ("OUT", "SHORT", "LARGE")}
    places["GRAPH"] = str(graph_file)
    before = sorted(tmp_path.iterdir())
    assert main([places.get(argument, argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_info_says_what_a_graph_holds(graph_file, capsys):
    assert main(["info", str(graph_file)]) == 0
    said = capsys.readouterr().out
    for words in ("toy", "40", "undirected, unweighted", "4 (dense)", "3 classes"):
        assert words in said


def test_symmetrise(tmp_path, capsys):
    path = tmp_path / "g.txt"
    path.write_text("0 1\n1 2\n")
    output = tmp_path / "out"
    assert main(["shard", str(path), "--parts", "1", "--symmetrise", "--output", str(output)]) == 0
    shards = open_shards(output)
    assert shards.meta.edges == 4
    assert not shards.meta.directed


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "spgnn", "info", "nothing.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: nothing.npz: no such file\n"
