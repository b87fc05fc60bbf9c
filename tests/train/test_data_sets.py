"""What the training command may be given as a data set, and what its seed does to it."""

from __future__ import annotations

import json

import pytest

from spgnn.data import load_dataset, write_shards
from tests.train.command import run
from tests.training import write_dataset


def history(tmp_path, dataset, *flags):
    report = tmp_path / "report.json"
    ended = run(tmp_path, "--dataset", dataset, "--json", report, *flags)
    assert ended.status == 0, ended
    return json.loads(report.read_text())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_directory_with_one_part_is_a_graph_that_is_not_cut_yet(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    write_shards(load_dataset(path), None, 1, tmp_path / "whole")
    found = [
        history(tmp_path, dataset, "--nproc", ranks)["history"]
        for dataset in (path, tmp_path / "whole")
    ]
    assert [e["loss"] for e in found[0]] == [e["loss"] for e in found[1]]


def test_the_seed_of_a_run_is_not_that_of_the_graph(tmp_path):
    """Weights and splits change with it; the graph that is trained on does not."""
    edges = {}
    for name in ("rmat-7-8", "rmat-7-8@seed=1"):
        for seed in (0, 1):
            made_up = ["--random-features", 3, "--random-classes", 2]
            edges[name, seed] = history(tmp_path, name, *made_up, "--seed", seed)["graph"]["edges"]
    for name in ("rmat-7-8", "rmat-7-8@seed=1"):
        assert edges[name, 0] == edges[name, 1] == load_dataset(name).edges
    assert edges["rmat-7-8", 0] != edges["rmat-7-8@seed=1", 0]
