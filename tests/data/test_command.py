from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn.__main__ import main
from spgnn.data import open_shards
from spgnn.data.generators import block_model
from spgnn.data.npz import write_npz
from spgnn.registry import OPENERS


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


def test_info_says_what_a_graph_holds(graph_file, tmp_path, capsys):
    assert main(["info", str(graph_file)]) == 0
    said = capsys.readouterr().out
    for words in ("toy", "40", "undirected, unweighted", "4 (dense)", "3 classes"):
        assert words in said
    graph = replace(block_model(40, 200, seed=0), val_mask=None, test_mask=None)
    write_npz(graph, tmp_path / "g.npz")
    assert main(["info", str(tmp_path / "g.npz")]) == 0
    assert f"{int(graph.train_mask.sum())} / none / none" in capsys.readouterr().out


def test_symmetrise(tmp_path, capsys):
    path = tmp_path / "g.npz"
    sp.save_npz(path, sp.csr_array(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]])))
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


def refused(capsys, *arguments):
    """What the one line says."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert len(captured.err) < 320
    assert captured.out == ""
    return captured.err


SHARD = "shard GRAPH --output OUT --parts"
WRONG = [
    ("", "COMMAND"),
    ("inof x", "COMMAND inof: choose one of info, shard, "),
    ("partition x", "did you mean 'spgnn-partition'?"),
    ("inof x", "did you mean 'info'?"),
    ("info", "GRAPH requires an argument"),
    ("info sbm --colour", "--colour"),
    ("info sbm LONG", "xxx"),
    ("info nothing", "no data set 'nothing'"),
    ("info LONG", "no data set 'xxx"),
    ("shard none.npz --parts 2 --output OUT", "none.npz: no such file"),
    ("shard GRAPH --parts 2 --out OUT", "--out"),
    (f"{SHARD} 0", "--parts must be an integer in [1,"),
    (f"{SHARD} two", "--parts: 'two' is no integer"),
    (f"{SHARD} 2147483647", "--parts 2147483647: must be at least 1, and at most the 40 that"),
    (f"{SHARD} 2 --seed -1", "--seed"),
    (f"{SHARD} 2 --imbalance nan", "--imbalance"),
    (f"{SHARD} 2 --split 3", "split 3 does not exist"),
    (f"{SHARD} 2 --partition best", "--partition best: neither a file nor one of block,"),
    (f"{SHARD} 2 --partition metsi", "did you mean 'metis'?"),
    (f"{SHARD} 2 --partition LARGE", "LARGE"),
    (f"{SHARD} 2 --output GRAPH", "exists already"),
    (f"{SHARD} 2 --output=", "--output: must be a text"),
    (f"{SHARD} 2 --output LONG", "File name too long"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_bad_input_is_one_line_and_status_2(tmp_path, graph_file, capsys, arguments, words):
    (tmp_path / "LARGE").write_text("0\n" * 39 + "2\n")
    places = {name: tmp_path / name for name in ("OUT", "LARGE")}
    places |= {"GRAPH": graph_file, "LONG": "x" * 5000}
    before = sorted(tmp_path.iterdir())
    assert words in refused(capsys, *(places.get(a, a) for a in arguments.split()))
    assert sorted(tmp_path.iterdir()) == before


def test_targets_are_tried_before_the_graph_is_read(tmp_path, capsys):
    """Neither its own input nor what cannot be written is found out about after long work."""
    (tmp_path / "there").mkdir()
    for target, message in (
        (tmp_path / "there", "there: exists already"),
        (tmp_path / "no" / "x", "x: cannot be written: No such file or directory"),
    ):
        said = refused(capsys, "shard", "no-such-graph", "--parts", 2, "--output", target)
        assert message in said
        assert "--output" in said


def test_memory_needs_an_add_on(tmp_path, graph_file, capsys, monkeypatch):
    monkeypatch.setattr(OPENERS, "_values", {})
    flags = ("--parts", 2, "--memory", "3GB", "--output", tmp_path / "out")
    before = sorted(tmp_path.iterdir())
    assert "--memory: needs spgnn.addons.io, which" in refused(capsys, "shard", graph_file, *flags)
    assert sorted(tmp_path.iterdir()) == before


def test_a_directory_is_cut_looked_at_and_checked(tmp_path, graph_file, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["shard", str(graph_file), "--parts", "1", "--output", str(whole)]) == 0
    command = ["shard", str(whole), "--parts", "3", "--partition", "metis", "--output", str(cut)]
    assert main(command) == 0
    capsys.readouterr()
    assert "exists already" in refused(capsys, "shard", whole, "--parts", 2, "--output", whole)
    said = []
    for graph in (graph_file, whole, cut):
        assert main(["info", "--check", str(graph)]) == 0
        lines = capsys.readouterr().out.splitlines()
        said.append("\n".join(line for line in lines if " by  " not in line))
    assert said[0] == said[1]
    assert said[2] == said[0].replace("40\n", "40 in 3 parts\n", 1)
    path = cut / "part-00001" / "x.npy"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    assert "part-00001/x.npy: damaged" in refused(capsys, "info", "--check", cut)


def test_a_graph_of_nothing_is_described(tmp_path, capsys):
    empty = {"indptr": np.zeros(1, int), "indices": np.zeros(0, int), "shape": [0, 0]}
    masks = {"train_mask": np.zeros((0, 0), bool), "y": np.zeros(0, int), "x": np.zeros((0, 0))}
    np.savez(tmp_path / "g.npz", **empty, **masks)
    assert main(["info", str(tmp_path / "g.npz")]) == 0
    said = capsys.readouterr().out
    assert "vertices  0\n" in said
    assert "at most 0, 0.0% empty" in said
    output = tmp_path / "d"
    assert main(["shard", str(tmp_path / "g.npz"), "--parts", "1", "--output", str(output)]) == 0
    assert main(["info", str(output)]) == 0


def test_a_seed_is_of_the_method_alone(tmp_path, capsys):
    for seed in ("0", "1"):
        arguments = ["shard", "rmat-5-4", "--parts", "1", "--seed", seed]
        assert main([*arguments, "--output", str(tmp_path / seed)]) == 0
    one, other = (open_shards(tmp_path / seed).structure() for seed in "01")
    assert torch.equal(one.indices, other.indices)


def test_info_says_what_of_an_archive_is_not_read(tmp_path, graph_file, capsys, caplog):
    with np.load(graph_file) as file:
        arrays = {name: array for name, array in file.items() if name != "directed"}
    np.savez(tmp_path / "g.npz", **arrays, edge_time=np.ones(3), note=np.array("text"))
    assert main(["info", str(tmp_path / "g.npz")]) == 0
    shown = capsys.readouterr().out
    assert "direction by  there is no array 'directed'" in shown
    assert "not read  edge_time, note" in shown
    assert (
        "g.npz: not read: edge_time; of edges, weights are 'data' and features 'edge_attr'"
        in caplog.text
    )


def test_a_report_is_drawn(tmp_path, capsys):
    report, picture = tmp_path / "report.json", tmp_path / "training.svg"
    epochs = [{"epoch": n, "loss": 1 / (n + 1), "val_acc": None if n else 0.5} for n in range(3)]
    report.write_text(json.dumps({"history": epochs}))
    assert main(["plot", str(report), "--output", str(picture)]) == 0
    assert picture.read_text().startswith("<?xml")
    for content, words in (("[1]", "no report"), ('{"history": []}', "without epochs")):
        report.write_text(content)
        picture.unlink(missing_ok=True)
        assert main(["plot", str(report), "--output", str(picture)]) == 2
        assert words in capsys.readouterr().err
        assert not picture.exists()
