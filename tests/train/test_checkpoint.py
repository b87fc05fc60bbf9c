"""A resumed run goes on as if it had never stopped, on any number of ranks."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import (
    SoloCommunicator,
    connect,
)
from spgnn.nn import (
    GCN,
)
from spgnn.testing import run_ranks
from spgnn.train import (
    TrainConfig,
    checkpoint,
)
from tests.train.command import check_refused, run
from tests.training import TOLERANCE, write_dataset
from tests.training import run as train

SIGNATURE = {"layers": "4→3→2", "seed": 3, "optimizer": "adam"}
HISTORY = [{"epoch": 0, "loss": 1.5, "val_loss": 1.0, "val_acc": None, "seconds": 0.25}]


def make(kind=torch.optim.Adam, widths=(4, 3, 2)) -> tuple[GCN, torch.optim.Optimizer]:
    """A model whose optimiser has a state."""
    model = GCN.of(list(widths))
    optimizer = kind(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def save(directory: Path) -> tuple[GCN, torch.optim.Optimizer]:
    """A checkpoint after one epoch."""
    model, optimizer = make()
    checkpoint.save_run(
        str(directory), model, optimizer, SIGNATURE, HISTORY, SoloCommunicator(), {}
    )
    return model, optimizer


def load(directory: Path, model, optimizer, signature=SIGNATURE) -> list[dict]:
    """The history of a checkpoint that is read into model and optimiser."""
    return checkpoint.load_run(str(directory), model, optimizer, signature, SoloCommunicator())[0]


def history(config: TrainConfig, ranks: int) -> list[dict[str, float]]:
    """The report's history of a run on that many ranks."""
    return run_ranks(lambda rank: train(config, connect())[1]["history"], ranks)[0]


@pytest.mark.parametrize(
    ("optimizer", "dropout", "order", "model"),
    [("adam", 0.5, "auto", "gcn"), ("sgd", 0.0, "paper", "gcn"), ("adam", 0.5, "auto", "gin")],
)
def test_resumed_on_other_ranks(tmp_path, optimizer, dropout, order, model):
    """Stopped twice: 1 rank to epoch 3, 3 feature-parallel ranks to 5, a 2 × 2 grid to 8."""
    path = write_dataset(tmp_path / "graph.npz")
    whole = TrainConfig.of(
        dataset=path,
        hidden=8,
        partition="random",
        optimizer=optimizer,
        dropout=dropout,
        order=order,
        model=model,
        lr=0.05 if model == "gcn" else 0.01,
        epochs=8,
    )
    expected = history(whole, 1)
    parts = whole.but(checkpoint=tmp_path / "run", checkpoint_every=1)
    first = history(parts.but(epochs=3), 1)
    second = history(parts.but(algo="feature", c=3, epochs=5, resume=True), 3)
    third = history(parts.but(algo="1.5d", c=2, resume=True), 4)
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
    monkeypatch.setattr(checkpoint, "save_run", lambda *given: saved.append(len(given[4])))
    config = TrainConfig.of(dataset=path, checkpoint="unused", checkpoint_every=3, epochs=8)
    train(config.but(partition="block"), connect())
    assert saved == [3, 6, 8]


def test_nothing_is_left_to_do(tmp_path):
    """A finished run that is resumed reports what it had; fewer epochs are no more to do."""
    path, report = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    flags = ["--dataset", path, "--checkpoint", tmp_path / "run", "--json", report]
    assert run(tmp_path, *flags, "--nproc", 2).status == 0
    before = json.loads(report.read_text())
    for epochs in (2, 1):
        ended = run(tmp_path, *flags, "--resume", "--epochs", epochs)
        assert ended.status == 0, ended.err
        after = json.loads(report.read_text())
        histories = ([r | {"seconds": 0} for r in run["history"]] for run in (before, after))
        assert next(histories) == next(histories)
        assert after["epoch_seconds"] == {"median": 0.0, "min": 0.0, "max": 0.0}
    assert len(before["history"]) == 2


def test_a_run_that_stopped_early_has_ended(tmp_path):
    """Resumed, it trains no more, with more epochs too; without --patience it goes on."""
    path = write_dataset(tmp_path / "graph.npz")
    config = TrainConfig.of(dataset=path, partition="block", lr=0.5, epochs=60, patience=2)
    kept = config.but(checkpoint=tmp_path / "run", checkpoint_every=1000)
    stopped, _ = train(kept, connect())
    assert 4 <= len(stopped) < 60
    again = kept.but(resume=True)
    assert train(again, connect())[0] == stopped
    assert train(again.but(epochs=100), connect())[0] == stopped
    longer, _ = train(again.but(epochs=len(stopped) + 3, patience=0), connect())
    assert longer[: len(stopped)] == stopped
    straight, _ = train(config.but(epochs=len(stopped) + 3, patience=0), connect())
    assert longer == straight


def test_early_stopping_needs_a_validation_loss(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    with np.load(path) as file:
        arrays = dict(file) | {"val_mask": np.zeros(61, bool)}
    np.savez(path, **arrays)
    config = TrainConfig.of(dataset=path, partition="block", epochs=3)
    losses, _ = train(config, connect())
    assert len(losses) == 3
    with pytest.raises(InputError, match="--patience needs a validation loss"):
        train(config.but(patience=2), connect())


def test_everything_comes_back(tmp_path):
    directory = tmp_path / "new" / "directory"
    model, optimizer = save(directory)
    other, its_optimizer = make()
    torch.nn.init.zeros_(other.convolutions[0].lin.weight)
    assert len(load(directory, other, its_optimizer)) == 1
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    states = (optimizer.state_dict()["state"], its_optimizer.state_dict()["state"])
    assert states[0].keys() == states[1].keys() == {0, 1, 2, 3}
    for index, state in states[0].items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), states[1][index][name])


def test_models_of_other_types_come_back(tmp_path):
    """Buffers, frozen weights, and bfloat16."""
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).bfloat16()
        model[0].bias.requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if seed == 0:
            model(torch.randn(4, 3).bfloat16()).square().sum().backward()
            optimizer.step()
            history = [{"epoch": 0, "loss": 1.0, "seconds": 1.0}]
            checkpoint.save_run(
                str(tmp_path), model, optimizer, {}, history, SoloCommunicator(), {}
            )
            first = model
    checkpoint.load_run(str(tmp_path), model, optimizer, {}, SoloCommunicator())
    for (name, a), b in zip(first.state_dict().items(), model.state_dict().values(), strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


def refusal(
    directory: Path, kind=torch.optim.Adam, signature: dict[str, object] = SIGNATURE
) -> str:
    """The line with which a checkpoint is refused; model and optimiser are left as they were."""
    model, optimizer = make(kind)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(InputError) as refused:
        load(directory, model, optimizer, signature)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return str(refused.value)


def test_checkpoint_of_another_run(tmp_path):
    save(tmp_path)
    file = str(tmp_path / checkpoint.FILE)
    for name, theirs, mine in (
        ("layers", "4→3→2", "4→5→2"),
        ("seed", 3, 4),
        ("optimizer", "adam", "sgd"),
        ("heads", None, 2),
    ):
        said = refusal(tmp_path, signature=SIGNATURE | {name: mine})
        assert said == f"{file}: was made with {name} {theirs}, not {mine}"
    assert "tensor 'optimizer/0/exp_avg' is of another optimiser" in refusal(
        tmp_path, torch.optim.SGD
    )
    assert "there is no checkpoint" in refusal(tmp_path / "elsewhere")


def test_a_checkpoint_is_of_one_graph(tmp_path):
    """The same layers and seed are not enough."""
    path, other = write_dataset(tmp_path / "graph.npz"), write_dataset(tmp_path / "b.npz", seed=1)
    config = TrainConfig.of(dataset=path, partition="block", epochs=2, checkpoint=tmp_path)
    train(config, connect())
    with pytest.raises(InputError, match=r"was made with a graph of 61 vertices and .* not 61 "):
        train(config.but(dataset=other, resume=True), connect())


def test_a_checkpoint_is_of_one_model(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    config = TrainConfig.of(dataset=path, partition="block", epochs=1, checkpoint=tmp_path)
    train(config, connect())
    with pytest.raises(InputError, match="was made with model gcn, not sage"):
        train(config.but(model="sage", resume=True), connect())


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    save(tmp_path)
    before = (tmp_path / checkpoint.FILE).read_bytes()
    model, optimizer = make()
    torch.nn.init.constant_(model.convolutions[1].lin.weight, float("inf"))
    with pytest.raises(InputError, match=r"convs.1.lin.weight is not finite after 0 epochs"):
        checkpoint.save_run(str(tmp_path), model, optimizer, SIGNATURE, [], SoloCommunicator(), {})
    assert (tmp_path / checkpoint.FILE).read_bytes() == before


def damage_bytes(whole: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, doubled, moved or overwritten."""
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        if not data:  # nothing is left to damage
            break
        at, length = rng.randrange(len(data)), rng.choice([1, 1, 2, 4, 16, 200])
        piece = bytes(data[at : at + length])
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + length] = rng.randbytes(len(piece))
            case 2:
                data[at : at + length] = bytes([rng.choice([0, 255, 32, 57])]) * len(piece)
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = piece
            case 5:
                to = rng.randrange(len(data))
                data[to : to + length] = piece
            case 6:
                del data[max(at, 1) :]
    return bytes(data)


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_damaged_checkpoints(tmp_path, count):
    """All is resumed or nothing is: the digest tells of every byte that matters."""
    saved, its_optimizer = save(tmp_path)
    path = tmp_path / checkpoint.FILE
    whole = path.read_bytes()
    model, optimizer = make()
    before, after = snapshot(model, optimizer), snapshot(saved, its_optimizer)
    resumed = 0
    for seed in range(count):
        path.write_bytes(damage_bytes(whole, random.Random(seed)))
        said = None
        try:
            load(tmp_path, model, optimizer)
        except InputError as error:
            said = str(error)
        resumed += said is None
        expected = after if said is None else before
        assert said is None or re.fullmatch(f"{path}: .{{,250}}", said), seed
        found = snapshot(model, optimizer)
        assert found.keys() == expected.keys(), seed
        assert all(torch.equal(found[name], expected[name]) for name in found), seed
        with torch.no_grad():
            for name, tensor in checkpoint._training_state(model, optimizer)[0].items():
                tensor.copy_(before[name])
    assert resumed < count / 2


def snapshot(model, optimizer) -> dict[str, torch.Tensor]:
    state = checkpoint._training_state(model, optimizer)[0]
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("widths", "steps", "said"),
    [
        ([4, 5, 2], 1, "is torch.float32 [3], not torch.float32 [5]"),
        ([4, 3, 2, 2], 1, "no tensor 'weight/convs.2"),
        ([4, 3, 2], 2, "was made with other batches: steps of an epoch differ"),
    ],
)
def test_checkpoints_that_do_not_fit(tmp_path, widths, steps, said):
    save(tmp_path)
    with pytest.raises(InputError) as refused:
        checkpoint.load_run(
            str(tmp_path), *make(widths=widths), SIGNATURE, SoloCommunicator(), steps=steps
        )
    assert said in str(refused.value)


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    """What a process that no longer runs had begun to write goes at the next start."""
    path, directory = write_dataset(tmp_path / "graph.npz"), tmp_path / "run"
    ended = run(tmp_path, "--dataset", path, "--checkpoint", directory, kill_while_saving=True)
    assert ended.status < 0
    (left,) = directory.iterdir()
    assert left.name.startswith(f".{checkpoint.FILE}.")
    assert run(tmp_path, "--dataset", path, "--checkpoint", directory).status == 0
    assert [p.name for p in directory.iterdir()] == [checkpoint.FILE]


def test_command_refuses_in_one_line(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", path, "--checkpoint", tmp_path / "run", "--resume", "--nproc", 2]
    check_refused(run(tmp_path, *flags), "--resume", "there is no checkpoint")
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / checkpoint.FILE).write_bytes(b"")
    check_refused(run(tmp_path, *flags), checkpoint.FILE, "damaged")


def test_only_rank_0_reads_the_checkpoint(tmp_path, monkeypatch):
    """Where the others see nothing, or something else, they get what rank 0 reads."""
    path = write_dataset(tmp_path / "graph.npz")
    config = TrainConfig.of(dataset=path, partition="block", epochs=2, checkpoint=tmp_path / "0")
    expected = history(config.but(epochs=4, checkpoint=None), 3)
    history(config, 1)

    def resumed(rank: int) -> list[dict[str, float]]:
        if rank:
            monkeypatch.setattr(checkpoint, "_checked", None)
        config_here = config.but(epochs=4, resume=True)
        return train(config_here, connect())[1]["history"]

    found = run_ranks(resumed, 3)
    losses = [[[r["loss"] for r in h] for h in hs] for hs in (found, [expected] * 3)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=TOLERANCE)
