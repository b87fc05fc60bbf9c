"""The mini-batch command with systems: histories, reports, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from spgnn import InputError
from spgnn.addons.diskbatches import MiniBatchConfig, train
from spgnn.comm import SoloCommunicator
from tests.addons.diskbatches.test_minibatch import (
    SHORT,
    check_invariant,
    check_resumed,
    check_ways,
    numbers,
    path,
    run,
)

__all__ = ["path"]  # a fixture


@pytest.mark.parametrize("task", ["vertices", "links"])
def test_stored_neighbourhoods_train_as_those_sampled_again(path, tmp_path, task):
    """Bit for bit; files are written once, whatever the number of epochs."""
    flags: dict[str, Any] = {"task": task, "fixed": True}
    flags |= {"batch_size": 60} if task == "links" else {}
    live = run(path, **flags)
    wanted = [record["loss"] for record in numbers(live)]
    changing = [record["loss"] for record in numbers(run(path, **flags | {"fixed": False}))]
    assert wanted[0] == changing[0]
    assert wanted[1] != changing[1]
    disk = {"store": "disk", "store_dir": str(tmp_path), "pack": 10**7}
    bytes_written = set()
    for way in ({"epochs": 1}, {}, {"workers": 3, "superbatch": 2}, {"workers": 0, "cache": 300}):
        made = run(path, **flags, **disk, **way)
        losses = [record["loss"] for record in numbers(made)]
        assert losses == wanted[: len(losses)], way
        # Sampled once, and not in every epoch as those that are not stored.
        assert made["sampler"]["batches"] * 3 == live["sampler"]["batches"]
        packed = made["features"]["packed"]
        bytes_written.add(
            (packed["sample_bytes"], packed["bytes_read"] if "cache" not in way else 0)
        )
    assert len({samples for samples, _ in bytes_written}) == 1
    assert all(samples > 0 for samples, _ in bytes_written)
    assert len({nbytes for _, nbytes in bytes_written if nbytes}) == 1
    assert not list(tmp_path.iterdir())


INVARIANT: dict[str, dict[str, Any]] = {
    "fastgcn": {"sampler": "fastgcn", "num_neighbors": "30,20"},
    "columns": {"distributed": "columns", "superbatch": 2, "model": "gcn", "clip": 0.5},
    "columns labor": {"distributed": "columns", "sampler": "labor", "class_weights": "balanced"},
    "columns gin": {"distributed": "columns", "model": "gin", "prefetch": 0, "jk": "cat"},
}


def test_ranks_train_as_one_process_with_all_their_seeds(path):
    check_invariant(path, 2, INVARIANT)


WAYS: dict[str, dict[str, Any]] = {
    "corrected": {"distributed": "local", "correct_every": 2},
    "averaged": {"distributed": "local", "correct_every": 3, "correct_steps": 0},
    "layers": {"distributed": "exact", "sampler": "ladies", "num_neighbors": "20,10"},
    "replicated": {"distributed": "replicated", "partition": "pagraph", "sampler": "labor"},
}
COLUMNS = {"distributed": "columns", "model": "gcn", "optimizer": "adamw"}


def test_every_way_learns_reports_and_is_resumed(path, tmp_path):
    first = check_ways(path, tmp_path, WAYS)
    assert first["replicated"]["replicas"]["factor"] > 0
    check_resumed(path, tmp_path, {**WAYS, "columns": COLUMNS})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"distributed": "columns", "model": "gat"}, "columns needs --model gcn, sage or gin"),
    ({"distributed": "columns", "aggregate": "max"}, "columns needs --aggregate mean or sum"),
    ({"distributed": "columns", "residual": True}, "columns needs no --residual"),
    ({"distributed": "columns", "input_dropout": True}, "columns needs model.input-dropout off"),
    ({"distributed": "replicated", "sampler": "fastgcn"}, "--sampler .*ladies.*, not fastgcn"),
    ({"distributed": "local", "sampler": "fastgcn"}, "--sampler neighbor, not fastgcn"),
    ({"structure": "disk", "sampler": "fastgcn"}, "disk needs --sampler"),
    ({"distributed": "exact", "correct_every": 3}, "needs --distributed local, not exact"),
    ({"distributed": "local", "correct_steps": 3}, "correct-steps needs distribution.correct-ev"),
    ({"fixed": True, "store": "disk"}, "fixed needs storage.pack under --store disk"),
    ({"pack": 5}, "storage.pack needs --store disk and storage.store-dir"),
    ({"pack_epochs": 2}, "storage.pack-epochs 2 needs storage.pack"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_what_does_not_go_together(path, flags, message):
    with pytest.raises(InputError, match=message):
        train(MiniBatchConfig.of(**{"dataset": str(path), **SHORT, **flags}), SoloCommunicator())
