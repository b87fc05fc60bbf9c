"""A resumed run goes on as if it had never stopped, on any number of ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.nn import GCN
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, checkpoint
from tests.train.command import check_refused, run
from tests.training import TOLERANCE, write_dataset
from tests.training import run as train


def history(config: TrainConfig, ranks: int) -> list[dict[str, float]]:
    """The report's history of a run on that many ranks."""
    return run_ranks(lambda rank: train(config, connect())[1]["history"], ranks)[0]


@pytest.mark.parametrize(
    ("optimizer", "dropout", "order"), [("adam", 0.5, "auto"), ("sgd", 0.0, "paper")]
)
def test_resumed_on_other_ranks(tmp_path, optimizer, dropout, order):
    """Stopped twice: 1 rank to epoch 3, 3 ranks to epoch 5, a 2 × 2 grid to epoch 8."""
    path = write_dataset(tmp_path / "graph.npz")
    whole = TrainConfig(
        dataset=str(path),
        hidden=8,
        partition="random",
        optimizer=optimizer,
        dropout=dropout,
        order=order,
        lr=0.05,
        epochs=8,
    )
    expected = history(whole, 1)
    parts = replace(whole, checkpoint=str(tmp_path / "run"), checkpoint_every=1)
    first = history(replace(parts, epochs=3), 1)
    second = history(replace(parts, epochs=5, resume=True), 3)
    third = history(replace(parts, algo="1.5d", c=2, resume=True), 4)
    assert [record["epoch"] for record in third] == list(range(8))
    for name in ("loss", "val_loss"):
        resumed, straight = ([r[name] for r in records] for records in (third, expected))
        np.testing.assert_allclose(resumed, straight, rtol=TOLERANCE)
        # What was before a stop is kept to the last bit.
        for before, after in pairwise((first, second, third)):
            assert [r[name] for r in before] == [r[name] for r in after[: len(before)]]
    assert expected[0]["loss"] != expected[-1]["loss"]
    assert [p.name for p in (tmp_path / "run").iterdir()] == [checkpoint.FILE]


def test_checkpoints_are_made_every_so_often_and_at_the_end(tmp_path, monkeypatch):
    path = write_dataset(tmp_path / "graph.npz")
    saved = []
    monkeypatch.setattr(checkpoint, "save", lambda *given: saved.append(given[-1].epoch))
    config = TrainConfig(dataset=str(path), checkpoint="unused", checkpoint_every=3, epochs=8)
    train(replace(config, partition="block"), connect())
    assert saved == [3, 6, 8]


def test_nothing_is_left_to_do(tmp_path):
    """A finished run that is resumed reports what it had."""
    path, report = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    flags = ["--dataset", path, "--checkpoint", tmp_path / "run", "--json", report, "--nproc", 2]
    assert run(tmp_path, *flags).status == 0
    before = json.loads(report.read_text())
    ended = run(tmp_path, *flags, "--resume")
    assert ended.status == 0, ended.err
    after = json.loads(report.read_text())
    losses = [[record["loss"] for record in report["history"]] for report in (before, after)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2


def make(
    widths: list[int], kind: type[torch.optim.Optimizer] = torch.optim.Adam, **options: float
) -> tuple[GCN, torch.optim.Optimizer]:
    """A model whose optimiser has a state."""
    model = GCN(widths)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def save(directory: Path, widths: list[int]) -> tuple[GCN, torch.optim.Optimizer]:
    model, optimizer = make(widths)
    checkpoint.save(str(directory), model, optimizer, checkpoint.Progress(7, 3, widths, "adam", []))
    return model, optimizer


def test_everything_comes_back(tmp_path):
    model, optimizer = save(tmp_path / "new" / "directory", [4, 3, 2])
    other, its_optimizer = make([4, 3, 2])
    torch.nn.init.zeros_(other.convolutions[0].weight)
    progress = checkpoint.load(
        str(tmp_path / "new" / "directory"), other, its_optimizer, 3, [4, 3, 2]
    )
    assert (progress.epoch, progress.seed, progress.widths) == (7, 3, [4, 3, 2])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    states = (optimizer.state_dict()["state"], its_optimizer.state_dict()["state"])
    for index, state in states[0].items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), states[1][index][name])


def refusal(directory: Path, widths: list[int], seed: int = 3, kind=torch.optim.Adam) -> str:
    """The line with which a checkpoint is refused; the model is left as it was."""
    model, optimizer = make(widths, kind)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InputError) as refused:
        checkpoint.load(str(directory), model, optimizer, seed, widths)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return str(refused.value)


def test_checkpoint_of_another_run(tmp_path):
    save(tmp_path, [4, 3, 2])
    file = str(tmp_path / checkpoint.FILE)
    said = refusal(tmp_path, [4, 5, 2])
    assert file in said
    assert "4→3→2, this run's 4→5→2" in said
    assert f"{file}: was made with --seed 3, not 4" == refusal(tmp_path, [4, 3, 2], seed=4)
    assert "--optimizer adam, not sgd" in refusal(tmp_path, [4, 3, 2], kind=torch.optim.SGD)
    assert "there is no checkpoint" in refusal(tmp_path / "elsewhere", [4, 3, 2])


def test_damaged_checkpoints(tmp_path):
    save(tmp_path, [4, 3, 2])
    file = tmp_path / checkpoint.FILE
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[200] ^= 255
    for damaged in (b"", whole[: len(whole) // 2], whole[:-1], b"PK" + whole[9:], bytes(flipped)):
        file.write_bytes(damaged)
        assert f"{file}: not a checkpoint, or a damaged one" in refusal(tmp_path, [4, 3, 2])
    with file.open("wb") as target:
        np.save(target, np.zeros(3))
    assert "not a checkpoint" in refusal(tmp_path, [4, 3, 2])


@pytest.mark.parametrize("name", ["weight/layers.0.weight", "optimizer/0/exp_avg", "progress"])
@pytest.mark.parametrize("change", ["missing", "shape"])
def test_checkpoints_whose_arrays_do_not_fit(tmp_path, name, change):
    save(tmp_path, [4, 3, 2])
    file = tmp_path / checkpoint.FILE
    with np.load(file) as loaded:
        arrays = dict(loaded)
    if change == "missing":
        del arrays[name]
    else:
        arrays[name] = np.zeros((2, 2), np.float32)
    np.savez(file, **arrays)
    assert str(file) in refusal(tmp_path, [4, 3, 2])


def test_command_refuses_in_one_line(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", path, "--checkpoint", tmp_path / "run", "--resume", "--nproc", 2]
    check_refused(run(tmp_path, *flags), "--resume", "there is no checkpoint")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / checkpoint.FILE).write_bytes(b"")
    check_refused(run(tmp_path, *flags), "checkpoint.npz", "damaged")
