"""The table of experiments/survey.py: systems on a tiny graph."""

from __future__ import annotations

import csv
import json

import saint
import survey

from tests.training import write_dataset


def test_systems_on_a_tiny_graph(tmp_path, capsys):
    """One of each program: a row each, bytes where ranks exchange rows, none on a single one."""
    dataset = write_dataset(tmp_path / "graph.npz")
    words = ["--dataset", str(dataset), "--output", str(tmp_path), "--ranks", "2"]
    assert survey.main([*words, "--only", "flexgraph,2pgraph"]) == 0
    assert "--set storage.store-dir=DIR" in capsys.readouterr().out
    with (tmp_path / "survey.csv").open() as file:
        several, single = csv.DictReader(file)
    assert [several["system"], single["system"]] == ["flexgraph", "2pgraph"]
    assert [several["ranks"], single["ranks"]] == ["2", "1"]
    assert float(several["MB an epoch"]) > float(single["MB an epoch"]) == 0
    for row in (several, single):
        assert float(row["seconds an epoch"]) > 0
        assert 0 <= float(row["test accuracy %"]) <= 100
        assert not row["failure"]
    assert (tmp_path / "survey.svg").read_bytes().startswith(b"<?xml")


def test_subgraphs_of_walks_learn(tmp_path):
    dataset, report = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    assert saint.main(f"--dataset {dataset} --epochs 8 --roots 9 --json {report}".split()) == 0
    scores = [row["train_acc"] for row in json.loads(report.read_text())["history"]]
    assert max(scores[1:]) > scores[0]
