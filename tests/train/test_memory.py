"""What is freed is used again, what can never fit is refused, and running out is one line."""

from __future__ import annotations

import resource
from statistics import median

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, Trainer, memory, train
from spgnn.train import run as running
from tests.train.command import check_refused, run
from tests.training import write_dataset


def faults_of_epochs(keep: bool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Minor page faults of each epoch, evaluation included, of a training run in this process."""
    counts = []
    train_epoch = Trainer.train_epoch

    def counted(self, epoch):
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return train_epoch(self, epoch)

    monkeypatch.setattr(Trainer, "train_epoch", counted)
    if not keep:
        monkeypatch.setattr(running, "keep_freed", lambda: None)
    # Each activation is of 4 MiB.
    flags = {"random_features": 64, "random_classes": 64, "hidden": 64, "partition": "block"}
    train(TrainConfig.of(dataset="rmat-14-4", epochs=9, **flags), connect())
    return np.diff(counts).tolist()


def test_epochs_use_the_memory_of_those_before(monkeypatch):
    """Pages of 4 KiB: an epoch has more than ten results of 1024 pages, and takes none of them."""
    kept, given_back = (
        run_ranks(lambda rank, keep=keep: faults_of_epochs(keep, monkeypatch), 1)[0]
        for keep in (True, False)
    )
    assert median(given_back[3:]) > 5000
    assert median(kept[3:]) < 500


def test_what_set_up_freed_goes_back(monkeypatch):
    """A block in the middle of the heap too: nothing of it is resident when training begins."""

    def resident(rank: int) -> tuple[int, int]:
        memory.give_back_freed()
        pieces = [torch.ones(2**16) for _ in range(256)]  # 256 KiB each: from the heap
        last = torch.ones(2**16)
        before = memory.resident_bytes()
        del pieces
        memory.keep_freed()
        assert bool(last.all())
        return before, memory.resident_bytes()

    ((before, after),) = run_ranks(resident, 1)
    assert before - after > 32 * 2**20


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
    monkeypatch.setattr(memory, "_machine_bytes", lambda: 61 * 23 * 4 - 1)
    config = TrainConfig.of(dataset=path, order="paper", partition="block")
    with pytest.raises(InputError, match="--order paper with dense features, 61 × 23: needs"):
        train(config, connect())
