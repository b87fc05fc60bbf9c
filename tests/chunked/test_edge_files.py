"""Files of edges that do not fit into memory become a graph directory before training."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from spgnn.testing import run_ranks
from spgnn.train import found
from tests.chunked.runs import check_bytes, check_equal, reports

FLAGS = {"model": "sage", "random_features": 5, "random_classes": 3, "epochs": 2, "dropout": 0.3}
MEMORY = 3 * 2**30


def edge_file(path, vertices=80, edges=500) -> str:
    drawn = np.random.default_rng(0).integers(0, vertices, (edges, 2))
    # Names that are no numbers of rows.
    path.write_text("".join(f"{7 * u} {7 * v}\n" for u, v in drawn))
    return str(path)


@pytest.mark.parametrize("symmetrise", [True, False])
def test_history_is_that_of_memory(tmp_path, monkeypatch, symmetrise):
    monkeypatch.setattr(found, "_READ_IN_MEMORY", MEMORY)
    base = {**FLAGS, "dataset": edge_file(tmp_path / "g.txt"), "symmetrise": symmetrise}
    spill = tmp_path / "spill"
    parted = {**base, "spill": str(spill), "memory": MEMORY, "chunks": 3}
    seen = []

    def sorted_into(scratch, config):
        seen.append(scratch)
        return sorting(scratch, config)

    sorting = found._sorted_into
    monkeypatch.setattr(found, "_sorted_into", sorted_into)
    (every,) = run_ranks(lambda rank, flags: (reports(rank, flags), seen), 1, [base, parted])
    (in_memory, from_disk), scratches = every
    check_equal(in_memory["history"], from_disk["history"])
    check_bytes(from_disk["storage"])
    assert len(scratches) == 1
    assert not list(spill.iterdir())


def test_small_files_and_several_ranks_read_as_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(found, "_sorted_into", None)
    flags = {**FLAGS, "dataset": edge_file(tmp_path / "g.txt"), "spill": str(tmp_path / "spill")}
    flags["memory"] = MEMORY
    ((alone,),) = run_ranks(reports, 1, [flags])
    monkeypatch.setattr(found, "_READ_IN_MEMORY", MEMORY)
    ((two,), _) = run_ranks(reports, 2, [flags])
    check_equal(alone["history"], two["history"])


def test_what_is_wrong_in_a_file_leaves_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(found, "_READ_IN_MEMORY", MEMORY)
    path, spill = tmp_path / "g.txt", tmp_path / "spill"
    path.write_text("0 1\n1 x\n")
    flags = {**FLAGS, "dataset": str(path), "spill": str(spill), "memory": MEMORY}
    with pytest.raises(RuntimeError, match="status 2"):
        run_ranks(reports, 1, [flags])
    assert "g.txt, line 2: 'x' is not an integer" in capfd.readouterr().err
    assert not list(spill.iterdir())


@pytest.mark.slow
def test_memory_that_was_asked_for_is_enough(tmp_path):
    """12 million edges between 7 million vertices, either way."""
    path = edge_file(tmp_path / "g.txt", 1_000_000, 12_000_000)
    report = tmp_path / "report.json"
    command = [sys.executable, "experiments/gcn.py", "--dataset", path, "--symmetrise"]
    command += ["--memory", "900MiB", "--spill", str(tmp_path / "spill"), "--epochs", "1"]
    command += ["--random-features", "8", "--random-classes", "4", "--json", str(report)]
    subprocess.run(command, check=True, timeout=900)
    memory = json.loads(report.read_text())["memory"]
    assert memory["max_rank_peak_bytes"] <= 1.05 * 900 * 2**20
