"""A resumed run goes on as if it had never stopped, on any number of ranks."""

from __future__ import annotations

import io
import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import spgnn
from spgnn import InputError, Trainer
from spgnn.comm import SoloCommunicator, connect
from spgnn.config import TrainConfig
from spgnn.inference import load_weights, save_weights
from spgnn.nn import GCN, DropoutKeys, GraphSAGE
from spgnn.testing import run_ranks
from spgnn.train import checkpoint
from tests.train.command import run
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


OPTIMISERS = [
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.Adam, {"lr": torch.tensor(0.01), "foreach": False}),
    (torch.optim.AdamW, {"amsgrad": True, "fused": True}),
    (torch.optim.Adagrad, {"lr_decay": 0.1}),
    (torch.optim.Adadelta, {}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.Adafactor, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.ASGD, {"t0": 1}),
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.LBFGS, {"line_search_fn": "strong_wolfe"}),
    (torch.optim.SparseAdam, {}),
]


def steps(model, optimizer, first: int, last: int) -> None:
    for number in range(first, last):
        rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)).bfloat16()

        def closure(rows=rows):
            optimizer.zero_grad()
            out = model(torch.arange(5) if isinstance(model, torch.nn.Embedding) else rows)
            loss = out.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize(("kind", "options"), OPTIMISERS)
def test_every_optimiser_goes_on(tmp_path, kind, options):
    """To the last bit, with rates of groups, in a dtype whose moments could be rounded."""

    def fresh():
        torch.manual_seed(0)
        if kind is torch.optim.SparseAdam:
            model = torch.nn.Embedding(5, 3, sparse=True).bfloat16()
        else:
            layers = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2)
            layers[0].bias.requires_grad_(False)
            model = torch.nn.Sequential(*layers).bfloat16()
        each = list(model.parameters())
        groups = [{"params": each[:2], "lr": 0.03}, {"params": each[2:]}]
        if kind in (torch.optim.SparseAdam, torch.optim.LBFGS):
            groups = each
        return model, kind(groups, **{"lr": 0.01, **options})

    straight, stopped, resumed, own = fresh(), fresh(), fresh(), fresh()
    steps(*straight, 0, 5)
    steps(*stopped, 0, 2)
    solo = SoloCommunicator()
    checkpoint.check_state(*fresh(), solo)
    checkpoint.save_run(str(tmp_path), *stopped, {}, [{}, {}], solo, {})
    checkpoint.load_run(str(tmp_path), *resumed, {}, solo, steps=None)
    model, optimizer = stopped
    spgnn.save(str(tmp_path), solo, model=model, optimizer=optimizer, epoch=2)
    model, optimizer = own
    assert spgnn.load(str(tmp_path), solo, model=model, optimizer=optimizer) == {"epoch": 2}
    for other in (resumed, own):
        steps(*other, 2, 5)
        for name, tensor in straight[0].state_dict().items():
            assert torch.equal(tensor, other[0].state_dict()[name]), name


class Scaled(torch.nn.Linear):
    """A module with a state of its own."""

    scale: Any = 1.0

    def get_extra_state(self):
        return self.scale

    def set_extra_state(self, state):
        self.scale = state


EXTRA = {"scale": float("inf"), "amax": (torch.arange(3), [None, "a", True]), 3: {}}


def test_extra_states_come_back(tmp_path):
    """What a file cannot hold is refused before training, and nothing is unpickled."""
    model, solo = Scaled(4, 2), SoloCommunicator()
    model.scale = EXTRA
    optimizer = torch.optim.Adam(model.parameters())
    checkpoint.save_run(str(tmp_path), model, optimizer, {}, [{}], solo, {})
    weights = tmp_path / "weights.safetensors"
    save_weights(model, str(weights), solo)
    spgnn.save(str(tmp_path / "own"), solo, net=model)
    for path in (tmp_path, weights, tmp_path / "own"):
        other = Scaled(4, 2)
        load_weights(other, str(path), solo)
        assert torch.equal(other.weight, model.weight)
        assert str(other.scale) == str(EXTRA)
    model.scale = io.BytesIO()
    for refused in (
        lambda: checkpoint.check_state(model, optimizer, solo),
        lambda: save_weights(model, str(weights), solo),
    ):
        with pytest.raises(InputError, match=r"numbers and texts; '.*_extra_state' is a BytesIO"):
            refused()
    graph = write_dataset(tmp_path / "graph.npz")
    task = Trainer(Scaled(4, 2), spgnn.distribute(graph), forward=lambda m, g: m(g.x[:, :4]))
    task.task.model.scale = io.BytesIO()
    task.options = replace(task.options, checkpoint=str(tmp_path / "never"))
    with pytest.raises(InputError, match="BytesIO"):
        task.run()
    assert not task.history
    assert not (tmp_path / "never").exists()


def test_state_dicts_of_all_kinds(tmp_path):
    """Each comes back to the last bit, or is refused by its name."""
    model, solo = torch.nn.Linear(3, 2), SoloCommunicator()
    model.twin = torch.nn.Linear(3, 2)
    model.twin.weight = model.weight
    whole = torch.arange(12.0).reshape(3, 4)
    buffers = {
        "transposed": whole.T,
        "slice": whole[:, 1:3],
        "expanded": torch.ones(1).expand(4),
        "empty": torch.zeros(0, 3),
        "also_empty": torch.zeros(3, 0, dtype=torch.int8),
        "number": torch.tensor(7),
        "bool": torch.tensor([True, False]),
        "half": whole.half(),
        "bfloat16": whole.bfloat16(),
        "float8": whole.to(torch.float8_e4m3fn),
        "complex": torch.complex(whole, -whole).conj(),
        "mask": torch.full((2,), -torch.inf),
        "uint16": torch.tensor([65535], dtype=torch.uint16),
    }
    for name, tensor in buffers.items():
        model.register_buffer(f"a_{name}", tensor)
    model.register_buffer("unsaved", torch.zeros(1), persistent=False)
    spgnn.save(str(tmp_path), solo, model=model)
    saved = {name: t.clone() for name, t in model.state_dict().items()}
    for name, tensor in buffers.items():
        setattr(model, f"a_{name}", torch.zeros(tensor.shape, dtype=tensor.dtype))
    spgnn.load(str(tmp_path), solo, model=model)
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == saved[name].dtype
        assert torch.equal(
            tensor.double() if tensor.dtype.itemsize == 1 else tensor,
            saved[name].double() if tensor.dtype.itemsize == 1 else saved[name],
        )
    for tensor, said in (
        (whole.to_sparse(), "is sparse"),
        (whole.to("meta"), "has no numbers"),
        (torch.nn.parameter.UninitializedBuffer(), "has no shape yet"),
        (torch.complex(whole, whole).to(torch.complex128), "is torch.complex128"),
        (np.zeros(3), "is a ndarray"),
    ):
        with pytest.raises(InputError, match=f"'wrong' {said}"):
            spgnn.save(str(tmp_path), solo, wrong=tensor)


def loop(rank: int, path: str, first: int, last: int, directory: Path, codec=None) -> list[float]:
    """A training loop of one's own, with dropout and a schedule of rates."""
    graph = spgnn.distribute(path, partition="random", codec=codec)
    model = GraphSAGE(-1, 8, num_layers=2, out_channels=8, dropout=0.4)
    with torch.no_grad():
        model(graph.x, graph)
    graph.synchronise(model)
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    history = []
    if first:
        saved = spgnn.load(str(directory), graph, **objects)
        assert saved["epoch"] == first
        history = saved["history"]
    mask = graph.train_mask & (graph.y >= 0)
    for _ in range(first, last):
        keys = DropoutKeys(graph.vertex_ids, 0, graph.next_epoch())
        model.train()
        out = model(graph.x, graph, keys)
        loss = graph.mean(F.cross_entropy(out[mask], graph.y[mask], reduction="none"), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        history.append(loss.item())
    spgnn.save(str(directory), graph, **objects, epoch=last, history=history)
    return history


def test_loops_of_ones_own_are_resumed(tmp_path):
    """Two ranks save, others resume; with a codec that keeps rows, as many ranks."""
    path = write_dataset(tmp_path / "graph.npz")
    straight = run_ranks(loop, 1, path, 0, 6, tmp_path / "straight")[0]
    run_ranks(loop, 2, path, 0, 2, tmp_path / "run")
    three = run_ranks(loop, 3, path, 2, 4, tmp_path / "run")
    one = run_ranks(loop, 1, path, 4, 6, tmp_path / "run")[0]
    assert three[0] == three[1] == one[:4]
    np.testing.assert_allclose(one, straight, rtol=TOLERANCE)
    late = {"delay": 2}
    straight = run_ranks(loop, 2, path, 0, 5, tmp_path / "straight", late)
    run_ranks(loop, 2, path, 0, 3, tmp_path / "run", late)
    assert run_ranks(loop, 2, path, 3, 5, tmp_path / "run", late) == straight
    with pytest.raises(InputError, match="was made on 2 ranks, not 1"):
        loop(0, path, 5, 6, tmp_path / "run", late)


def refused_saves(rank: int, directory: Path) -> None:
    comm, model = connect(), torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, rank)
    with pytest.raises(InputError, match=r"do not agree on model of spgnn\.save"):
        spgnn.save(str(directory), comm, model=model)
    if rank == 1:
        model.bias.data[0] = torch.nan
    with pytest.raises(InputError, match=r"model/bias is not finite"):
        spgnn.save(str(directory), comm, model=model)
    assert not directory.exists()


def test_what_is_of_other_objects_is_refused(tmp_path):
    run_ranks(refused_saves, 2, tmp_path / "never")
    model, solo, directory = torch.nn.Linear(2, 2), SoloCommunicator(), str(tmp_path)
    optimizer = torch.optim.Adam(model.parameters())
    spgnn.save(directory, solo, model=model, optimizer=optimizer, epoch=1)
    before = model.weight.clone()
    for objects, said in (
        ({"net": model}, "holds no 'net', but model, optimizer, epoch"),
        ({"model": torch.nn.Linear(3, 2)}, r"'model/weight' is torch.float32 \[2, 2\], not"),
        ({"optimizer": torch.optim.SGD([model.weight])}, r"groups of \[2\] parameters, not \[1\]"),
        ({"epoch": 1}, "epoch is a int, and is returned"),
        ({"model": model, "epoch": optimizer}, r"'epoch' has groups of \[\] parameters"),
    ):
        with pytest.raises(InputError, match=said):
            spgnn.load(directory, solo, **objects)
    assert torch.equal(before, model.weight)
    with pytest.raises(InputError, match=r"was written by spgnn\.save"):
        load(tmp_path, *make())
    save(tmp_path)
    with pytest.raises(InputError, match="is a Trainer's checkpoint"):
        spgnn.load(directory, solo, model=model)
    with pytest.raises(InputError, match=r"give the graph of spgnn.distribute.* got str"):
        spgnn.save(directory, "graph", model=model)


HOSTILE = [5, [], {"table": []}, {"table": [["weight", 3], ["optimizer", {"table": []}]]}]
HOSTILE += [
    {"tensor": "none"},
    {"table": [[[1], 2]]},
    {"module": "os"},
    {"table": [["weight", []]]},
]


@pytest.mark.parametrize("values", HOSTILE, ids=str)
def test_checkpoints_of_another_form(tmp_path, values):
    """Whoever can write one can give it a digest as well."""
    save(tmp_path)
    tensors, progress = checkpoint._read(tmp_path / checkpoint.FILE, "")
    for changed in (progress | {"values": values}, {"values": values, "modules": ["model"]}):
        text = json.dumps(changed | {"ranks": None})
        checkpoint._write(tmp_path / checkpoint.FILE, tensors, text, "")
        for read in (
            lambda: load(tmp_path, *make()),
            lambda: spgnn.load(str(tmp_path), SoloCommunicator(), model=make()[0]),
            lambda: load_weights(make()[0], str(tmp_path), SoloCommunicator()),
        ):
            with pytest.raises(InputError, match=re.escape(str(tmp_path))):
                read()


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
    with_more = refusal(tmp_path, lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True))
    assert "no tensor 'optimizer/0/max_exp_avg_sq'" in with_more
    assert "there is no checkpoint" in refusal(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"spgnn\.load: there is no checkpoint"):
        spgnn.load(str(tmp_path / "elsewhere"), SoloCommunicator())


def test_a_checkpoint_is_of_one_graph_and_one_model(tmp_path):
    """The same layers and seed are not enough."""
    path, other = write_dataset(tmp_path / "graph.npz"), write_dataset(tmp_path / "b.npz", seed=1)
    config = TrainConfig.of(dataset=path, partition="block", epochs=2, checkpoint=tmp_path)
    train(config, connect())
    for options, said in (
        ({"dataset": other}, r"was made with a graph of 61 vertices and .* not 61 "),
        ({"model": "sage"}, "was made with model gcn, not sage"),
    ):
        with pytest.raises(InputError, match=said):
            train(config.but(resume=True, **options), connect())


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
            for name, tensor in learnt(model, optimizer).items():
                tensor.copy_(before[name])
    assert resumed < count / 2


def learnt(model, optimizer) -> dict[str, torch.Tensor]:
    state = {"weight": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}
    return checkpoint.packed(state)[0]


def snapshot(model, optimizer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learnt(model, optimizer).items()}


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
