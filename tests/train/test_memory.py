"""What is freed is used again, what can never fit is refused, and running out is one line."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

import numpy as np
import pytest
import torch

from spgnn import InputError, memory
from spgnn.comm import connect
from spgnn.data import memory as limits
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, train
from tests.comm.jobs import ROOT
from tests.train.command import check_refused, run
from tests.training import write_dataset


def test_epochs_use_the_memory_of_those_before():
    """An epoch has more than ten results of 4 MiB, and takes no memory anew for them."""
    command = [sys.executable, "-m", "tests.train.page_faults"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept, given_back = json.loads(done.stdout)
    assert median(given_back[3:]) > 20 * 2**20
    assert median(kept[3:]) < 2 * 2**20


@pytest.mark.parametrize("begin", ["keep_freed", "give_back_large"])
def test_what_set_up_freed_goes_back(begin):
    """A block in the middle of the heap too: nothing of it is resident when training begins."""

    def resident(rank: int) -> tuple[int, int]:
        memory.give_back_freed()
        pieces = [torch.ones(2**14) for _ in range(1024)]  # 64 KiB each: from the heap
        last = torch.ones(2**14)
        before = memory.resident_bytes()
        del pieces
        getattr(memory, begin)()
        assert bool(last.all())
        return before, memory.resident_bytes()

    ((before, after),) = run_ranks(resident, 1)
    assert before - after > 32 * 2**20


@pytest.mark.parametrize(
    ("ranks", "here", "limit", "done"),
    [
        (1, 1, 0, ["keep_freed"]),
        (4, 4, 1600, ["give_back_large", "keep_freed"]),
        (4, 4, 1599, ["give_back_large"]),
        (4, 2, 800, ["give_back_large", "keep_freed"]),
    ],
)
def test_ranks_keep_what_is_freed_where_there_is_plenty(monkeypatch, ranks, here, limit, done):
    """Where all ranks of a machine could have twice their peak in half of its memory."""
    called: list[str] = []
    for name in ("keep_freed", "give_back_large"):
        monkeypatch.setattr(memory, name, lambda name=name: called.append(name))
    monkeypatch.setattr(memory, "peak_bytes", lambda: 100)
    monkeypatch.setattr(memory, "memory_limit", lambda: limit)
    freed = memory.FreedMemory(ranks, here)
    freed.begin()
    for _ in range(3):
        freed.after_epoch()
    assert called == done


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--random-features", 2**31 - 1], ["--random-features 2147483647", "GiB"]),
        (["--hidden", 2**31 - 1], ["23→2147483647→2147483647→4", "GiB"]),
    ],
)
def test_absurd_sizes_are_refused_before_the_machine_runs_out(tmp_path, flags, words):
    path = write_dataset(tmp_path / "graph.npz")
    if "--random-features" in flags:
        with np.load(path) as file:
            arrays = {name: array for name, array in file.items() if name != "x"}
        np.savez(path, **arrays)
    check_refused(run(tmp_path, "--dataset", path, *flags), *words)


def test_sparse_features_that_would_not_fit_dense(tmp_path, monkeypatch):
    """One line, rather than a process that is killed."""
    path = write_dataset(tmp_path / "graph.npz", sparse=True)
    monkeypatch.setattr(limits, "memory_limit", lambda: 61 * 23 * 4 - 1)
    config = TrainConfig.of(dataset=path, order="paper", partition="block")
    with pytest.raises(InputError, match="--order paper with dense features, 61 × 23: needs"):
        train(config, connect())
