"""The table of experiments/survey.py: systems on a tiny graph."""

from __future__ import annotations

import csv

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


def test_bad_input_is_one_line(capsys):
    assert survey.main(["--only", "p4"]) != 0
    assert "p4" in capsys.readouterr().err
