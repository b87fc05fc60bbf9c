"""``spgnn infer``: weights of a checkpoint or of torch, any scheme, one file or one a rank."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn.__main__ import main
from spgnn.comm import connect
from spgnn.config import InferConfig, TrainConfig
from spgnn.train import train
from spgnn.train.checkpoint import FILE, read_weights
from tests.comm.jobs import Ended, Forked
from tests.train.command import check_refused, without_torch
from tests.training import write_dataset

MODEL = {"hidden": 8, "partition": "random", "model": "sage"}


def infer(directory: Path, *flags: object) -> Ended:
    """The command in a process of its own."""
    command = ["infer", "--partition", "random", "--threads", "1", *map(str, flags)]
    return without_torch(Forked(lambda: main(command), directory).wait())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with a graph, a checkpoint, what its run predicts, and its flags as a file."""
    place = tmp_path_factory.mktemp("trained")
    config = TrainConfig.of(dataset=write_dataset(place / "graph.npz"), epochs=2, **MODEL)
    config = config.but(checkpoint=place / "run", predictions=place / "out.npz", dropout=0.5)
    report = train(config, connect())
    (place / "run.json").write_text(json.dumps(report))
    state, _ = read_weights(place / "run" / FILE)
    torch.save({n: t for n, t in state.items() if n.startswith("convs")}, place / "model.pt")
    wrapped = {f"module.{n}": t for n, t in state.items() if n.startswith("convs")}
    torch.save({"model_state_dict": wrapped, "epoch": 3}, place / "wrapped.pt")
    return place


@pytest.mark.parametrize(
    ("weights", "flags"),
    [
        ("run", []),
        ("run/checkpoint.safetensors", ["--nproc", 3, "--cover", "minimum"]),
        ("model.pt", ["--nproc", 4, "--algo", "1.5d", "--c", 2]),
        ("wrapped.pt", ["--nproc", 2, "--algo", "feature", "--c", 2]),
        ("model.pt", ["--nproc", 2, "--schedule", "peers", "--buffer", 608]),
    ],
)
def test_scores_are_what_the_run_predicted(tmp_path, trained, weights, flags):
    out = tmp_path / "scores.npy"
    ended = infer(
        tmp_path, "--config", trained / "run.json", "--weights", trained / weights, "--output", out,
        *flags,
    )  # fmt: skip
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == f"{out}: 61 vertices × 4 torch.float32\n"
    with np.load(trained / "out.npz") as expected:
        np.testing.assert_allclose(np.load(out), expected["scores"], rtol=1e-5, atol=1e-6)


def test_embeddings_by_rank(tmp_path, trained):
    """The last layer of what is handed over makes the scores; ids say whose each row is."""
    out = tmp_path / "embeddings"
    flags = ["--config", trained / "run.json", "--weights", trained / "run", "--layer", 2]
    assert infer(tmp_path, *flags, "--output", out, "--nproc", 3).status == 0
    names = [f"{name}-{rank:05}.npy" for name in ("ids", "rows") for rank in range(3)]
    assert sorted(os.listdir(out)) == names
    ids = np.concatenate([np.load(out / name) for name in names[:3]])
    rows = np.concatenate([np.load(out / name) for name in names[3:]])
    assert sorted(ids) == list(range(61))
    H = np.empty_like(rows)
    H[ids] = rows
    whole = tmp_path / "whole.npy"
    assert infer(tmp_path, *flags, "--output", whole).status == 0
    np.testing.assert_allclose(np.load(whole), H, rtol=1e-5, atol=1e-6)
    state, _ = read_weights(trained / "run" / FILE)
    w = {n.removeprefix("convs.2."): t.numpy() for n, t in state.items() if "convs.2." in n}
    with np.load(trained / "graph.npz") as graph:
        A = np.zeros((61, 61))
        A[np.repeat(np.arange(61), np.diff(graph["indptr"])), graph["indices"]] = 1
    A /= np.maximum(A.sum(1, keepdims=True), 1)
    made = A @ H @ w["lin_l.weight"].T + w["lin_l.bias"] + H @ w["lin_r.weight"].T
    with np.load(trained / "out.npz") as expected:
        np.testing.assert_allclose(made, expected["scores"], rtol=1e-4, atol=1e-5)


def test_a_graph_without_labels(tmp_path, trained):
    with np.load(trained / "graph.npz") as file:
        kept = {name: file[name] for name in ("indptr", "indices", "shape", "directed", "x")}
    np.savez(tmp_path / "graph.npz", **kept)
    flags = ["--config", trained / "run.json", "--dataset", tmp_path / "graph.npz", "--nproc", 2]
    out = tmp_path / "scores.npy"
    ended = infer(tmp_path, *flags, "--weights", trained / "model.pt", "--output", out)
    assert ended.status == 0, ended.err
    with np.load(trained / "out.npz") as expected:
        np.testing.assert_allclose(np.load(out), expected["scores"], rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Bad:
    name: str
    words: list[str]
    weights: str = "model.pt"
    flags: list[object] = field(default_factory=list)
    output: str = "out.npy"


class Evil:
    """Would make a file, were it unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


BAD = [
    Bad("missing", ["no-such.pt: no such file"], "no-such.pt"),
    Bad("of code", ["evil.pt: not a state_dict", "no tensors alone"], "evil.pt"),
    Bad("garbage", ["garbage.pt: not a state_dict"], "garbage.pt"),
    Bad("of a list", ["list.pt: not a state_dict, but a list"], "list.pt"),
    Bad("no layers", ["linear.pt: not the weights of a model of layers", "'weight'"], "linear.pt"),
    Bad(
        "another kind",
        ["model.pt: no 'convs.0.bias' [8]", "it has 'convs.", "another model"],
        flags=["--model", "gcn"],
    ),
    Bad(
        "another width",
        ["'convs.0.lin_l.weight' is [8, 23], not [9, 23]", "another model"],
        flags=["--hidden", 9],
    ),
    Bad(
        "another graph",
        ["'convs.0.lin_l.weight' is [8, 23], not [8, 5]", "of another graph"],
        flags=["--dataset", "narrow.npz"],
    ),
    Bad("checkpoint of another", ["was made with model sage, not gin"], "run", ["--model", "gin"]),
    Bad("another act", ["was made with act relu, not elu"], "run", ["--set", "model.act=elu"]),
    Bad("no checkpoint", ["empty/checkpoint.safetensors: no such file"], "empty"),
    Bad("no directory", ["--output no/out.npy", "directory"], output="no/out.npy"),
    Bad("output there", ["--output empty: exists already"], output="empty"),
    Bad("layer", ["--layer 4: the model has --layers 3"], flags=["--layer", 4]),
    Bad("typed", ["--wieghts", "Did you mean --weights"], flags=["--wieghts", 1]),
    Bad(
        "labels",
        ["aim.label-propagation: such a model"],
        flags=["--set", "aim.label-propagation=0.5"],
    ),
    Bad("c", ["--c 2 needs --algo 1.5d"], flags=["--c", 2]),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_refused_in_one_line(tmp_path, monkeypatch, trained, bad):
    monkeypatch.chdir(tmp_path)
    for name in ("model.pt", "run", "graph.npz"):
        (tmp_path / name).symlink_to(trained / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage.pt").write_bytes(b"no archive at all")
    made = {"evil": Evil(), "list": [1]}
    made["linear"] = torch.nn.Linear(2, 3).state_dict()
    for name, content in made.items():
        torch.save(content, f"{name}.pt")
    with np.load("graph.npz") as file:
        np.savez("narrow.npz", **dict(file) | {"x": file["x"][:, :5].copy()})
    flags = ["--dataset", "graph.npz", "--model", "sage", "--hidden", 8, *bad.flags]
    before = sorted(os.listdir())
    ended = infer(tmp_path, *flags, "--nproc", 2, "--weights", bad.weights, "--output", bad.output)
    check_refused(ended, *bad.words, status=2)
    assert sorted(set(os.listdir()) - {"job.out", "job.err"}) == before


def test_what_must_be_given(capsys):
    for flags, word in ((["--output", "x.npy"], "--weights"), (["--weights", "x"], "--output")):
        assert main(["infer", *flags]) == 2
        assert f"error: {word} FILE is needed" in capsys.readouterr().err


def test_flags_of_training_are_all_there():
    ours, theirs = InferConfig().flat(), TrainConfig().flat()
    assert ours == theirs | {"weights": None, "output": None, "layer": 0}
