"""The commands of experiments/distgnn_mb.py, on a tiny graph."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import distgnn
import distgnn_mb
import pytest

from spgnn.addons.diskbatches.batch_seconds import PARTS
from tests.training import write_dataset

SMALL = "--batch-size 6 --hidden 8 --num-neighbors 3,2 --historical 50,2,1,4,features --epochs 4"


def made(command: str, tmp_path: Path, *more: str) -> list[dict[str, Any]]:
    """The lines of the table."""
    dataset = write_dataset(tmp_path / "graph.npz")
    words = [command, *SMALL.split(), "--dataset", str(dataset), "--output", str(tmp_path), *more]
    assert distgnn_mb.main(words) == 0
    assert (tmp_path / f"{command}.svg").read_bytes().startswith(b"<?xml")
    with (tmp_path / f"{command}.csv").open() as file:
        return list(csv.DictReader(file))


def test_exact_batches_are_the_baseline(tmp_path, capsys):
    rows = made("compare", tmp_path, "--ranks", "2")
    exact, ahead, past = rows
    assert [row["batches"] for row in rows] == ["DistDGL", "DistDGL, ahead", "historical"]
    assert exact["MB an epoch"] == ahead["MB an epoch"] != past["MB an epoch"]
    assert (exact["push s"], past["fetch s"], exact["hits"]) == ("0.0", "0.0", "")
    for row in rows:
        seconds = float(row["seconds an epoch"])
        assert float(row["× DistDGL"]) == pytest.approx(float(exact["seconds an epoch"]) / seconds)
        # Two epochs count: their median is their mean, and of ranks, the slowest one's.
        assert 0 < sum(float(row[f"{part} s"]) for part in PARTS) <= seconds * (1 + 1e-9)
    assert "sage, one process:" in capsys.readouterr().out


def test_scaling_of_both_models(tmp_path):
    rows = made("scaling", tmp_path, "--ranks", "2,3")
    assert [(row["model"], row["ranks"]) for row in rows] == [
        *(("sage", ranks) for ranks in "23"),
        *(("gat", ranks) for ranks in "23"),
    ]
    assert [row["× 2 ranks"] == "1.0" for row in rows] == [True, False, True, False]
    assert all(len(row["hits"].split()) == 2 for row in rows)


@pytest.mark.slow
def test_late_messages_of_one_cut(tmp_path):
    words = ["--dataset", str(write_dataset(tmp_path / "graph.npz")), "--output", str(tmp_path)]
    assert distgnn.main([*words, "--ranks", "2", "--epochs", "12"]) == 0
    with (tmp_path / "distgnn.csv").open() as file:
        moved = {row["way"]: float(row["MB an epoch"]) for row in csv.DictReader(file)}
    assert moved["0c"] == 0 < moved["cd-5"] < moved["cd-5 with means"] < moved["cd-0"]
    assert moved["nothing sent"] == 0 < moved["synchronous"] == moved["Dorylus"]
