"""The flags of the training command are a contract: this test freezes them and their defaults."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from spgnn import InputError
from spgnn.train import TrainConfig, parse

# Flag, default, another value as written and as read.
FLAGS = [
    ("--dataset", "sbm", "cora", "cora"),
    ("--data-dir", None, "there", "there"),
    ("--algo", "1d", "1.5d", "1.5d"),
    ("--c", 1, "2", 2),
    ("--exchange", "sparsity-aware", "oblivious", "oblivious"),
    ("--cover", "column", "minimum", "minimum"),
    ("--partition", "gvb", "metis", "metis"),
    ("--imbalance", 0.05, "0.1", 0.1),
    ("--layers", 3, "2", 2),
    ("--hidden", 16, "64", 64),
    ("--epochs", 100, "5", 5),
    ("--lr", 0.01, "1e-3", 1e-3),
    ("--weight-decay", 5e-4, "0", 0.0),
    ("--dropout", 0.0, "0.5", 0.5),
    ("--optimizer", "adam", "sgd", "sgd"),
    ("--seed", 0, "7", 7),
    ("--order", "auto", "paper", "paper"),
    ("--split", 0, "3", 3),
    ("--feature-norm", "auto", "none", "none"),
    ("--normalisation", "sym", "row", "row"),
    ("--random-features", 0, "300", 300),
    ("--random-classes", 0, "24", 24),
    ("--eval-every", 1, "10", 10),
    ("--patience", 0, "10", 10),
    ("--backend", "auto", "gloo", "gloo"),
    ("--device", "auto", "cpu", "cpu"),
    ("--nproc", 1, "4", 4),
    ("--threads", 0, "2", 2),
    ("--json", None, "report.json", "report.json"),
    ("--checkpoint", None, "run", "run"),
    ("--checkpoint-every", 10, "1", 1),
]
SWITCHES = [("--symmetrise", "symmetrise", True), ("--resume", "resume", True)]
SWITCHES += [("--no-overlap", "overlap", False)]
CHOICES = {
    "--algo": ["1d", "1.5d"],
    "--exchange": ["sparsity-aware", "oblivious"],
    "--cover": ["column", "row", "minimum"],
    "--order": ["auto", "paper"],
    "--backend": ["auto", "gloo", "nccl", "mpi"],
    "--device": ["auto", "cpu", "cuda"],
    "--feature-norm": ["auto", "row", "none"],
    "--optimizer": ["adam", "sgd"],
}


def name_of(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def test_defaults():
    assert parse([]) == TrainConfig()
    frozen = {name_of(flag): default for flag, default, *_ in FLAGS}
    frozen |= {name: not value for _, name, value in SWITCHES}
    assert frozen.items() <= asdict(parse([])).items()


@pytest.mark.parametrize(("flag", "default", "written", "read"), FLAGS)
def test_flags(flag, default, written, read):
    config = asdict(parse([flag, written]))
    assert config == asdict(TrainConfig()) | {name_of(flag): read}
    assert type(config[name_of(flag)]) is type(read)
    assert read != default


@pytest.mark.parametrize(("flag", "name", "value"), SWITCHES)
def test_switches(flag, name, value):
    assert asdict(parse([flag])) == asdict(TrainConfig()) | {name: value}


@pytest.mark.parametrize(("flag", "choices"), CHOICES.items())
def test_choices(flag, choices):
    for choice in choices:
        assert asdict(parse([flag, choice]))[name_of(flag)] == choice
    with pytest.raises(InputError, match=f"{flag}.*{choices[-1]}"):
        parse([flag, "else"])


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (TrainConfig(c=2), 2, "--c 2 needs --algo 1.5d"),
        (TrainConfig(algo="1.5d", c=2), 3, "--c 2 must divide the number of ranks, which is 3"),
        (TrainConfig(exchange="oblivious", cover="row"), 1, "--cover row needs"),
        (TrainConfig(resume=True), 1, "--resume needs --checkpoint"),
        (TrainConfig(json="no/such/place.json"), 1, "--json no/such/place.json"),
    ],
)
def test_combinations_that_cannot_work(config, ranks, message):
    with pytest.raises(InputError, match=message):
        config.check(ranks)


@pytest.mark.parametrize(("algo", "c", "ranks"), [("1d", 1, 5), ("1.5d", 1, 5), ("1.5d", 4, 8)])
def test_combinations_that_work(algo, c, ranks):
    TrainConfig(algo=algo, c=c).check(ranks)
