"""The flags of the training command: how they are read, and what is refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from spgnn import InputError
from spgnn.comm import connect
from spgnn.inference.cli import infer_to_file
from spgnn.inference.config import InferConfig
from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.run import train as train_batches
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, Trainer, Training, parse, prepare, train

# One flag of each type, another value than its default as written, and as read.
FLAGS = [
    ("--algo", "1.5d", "1.5d"),
    ("--data-dir", "there", "there"),
    ("--buffer", "1.5 KiB", 1536),
    ("--memory", "2GiB", 2**31),
    ("--c", "2", 2),
    ("--imbalance", "0.1", 0.1),
    ("--lr", "1e-3", 1e-3),
    ("--attention-dropout", "0.5", 0.5),
    ("--bits", "2,8@50,32@90", "2,8@50,32@90"),
]
SWITCHES = [("--resume", "resume", True), ("--no-overlap", "overlap", False)]


SAGE_MAX = {"model": "sage", "aggregate": "max"}


def name_of(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


@pytest.mark.parametrize(("flag", "written", "read"), FLAGS)
def test_flags(flag, written, read):
    config = parse([flag, written])
    assert config.flat() == TrainConfig().flat() | {name_of(flag): read}
    assert config == TrainConfig.of(**{name_of(flag): read})
    assert type(config.flat()[name_of(flag)]) is type(read)
    assert read != TrainConfig().flat()[name_of(flag)]


@pytest.mark.parametrize(("flag", "name", "value"), SWITCHES)
def test_switches(flag, name, value):
    assert parse([flag]).flat() == TrainConfig().flat() | {name: value}
    assert parse([flag]) == TrainConfig.of(**{name: value})
    # The other way round is said as well.
    other = flag.replace("--no-", "--") if "--no-" in flag else flag.replace("--", "--no-")
    assert parse([flag, other]) == TrainConfig()


@pytest.mark.parametrize("flag", ["--algo", "--metric"])
def test_choices(flag):
    """What help lists is taken, and what is nearly one of these is refused with it."""
    with pytest.raises(InputError, match=f"{flag} else: choose one of") as refused:
        parse([flag, "else"])
    choices = str(refused.value).partition("choose one of ")[2].split(", ")
    assert len(choices) > 4
    for choice in choices:
        assert parse([flag, choice]).flat()[name_of(flag)] == choice
    with pytest.raises(InputError, match=f"{flag} {choices[-1]}x: .*did you mean '{choices[-1]}'"):
        parse([flag, f"{choices[-1]}x"])


def test_records_have_all_flags_once():
    """Records are the one list of flags: no name is in two of them."""
    parts = [asdict(part) for part in vars(TrainConfig()).values()]
    assert sum(map(len, parts)) == len(TrainConfig().flat())


def test_help_says_what_every_flag_is(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all("--" + name.replace("_", "-") in shown for name in TrainConfig().flat())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"epochs": 0}, "--epochs: '0' must be an integer ≥ 1"),
        ({"epochs": 2.0}, "--epochs: '2.0' must be an integer"),
        ({"epochs": True}, "--epochs: 'True' must be an integer"),
        ({"hidden": 10**5000}, "--hidden: "),
        ({"layers": 10**9}, "--layers: '1000000000' must be an integer ≤ 1000"),
        ({"lr": float("nan")}, r"--lr: 'nan' must be in \[0, inf\)"),
        ({"imbalance": 1e300}, "--imbalance: '1e.300' must be in"),
        ({"dropout": "much"}, r"--dropout: 'much' must be in \[0, 1\)"),
        ({"cover": "colunm"}, "--cover colunm: .*did you mean 'column'"),
        ({"cover": None}, "--cover None: choose one of"),
        ({"overlap": "yes"}, "--overlap yes: choose one of True, False"),
        ({"hierarchy": "autp"}, "--hierarchy autp: must be none, auto or .*did you mean 'auto'"),
        ({"hierarchy": 0}, "--hierarchy 0: must be none, auto or a number from 1"),
        ({"hierarchy": "1_0"}, "--hierarchy 1_0: must be"),
        ({"json": ""}, "--json: an empty name"),
        ({"buffer": "much"}, "--buffer: 'much' must be bytes"),
        ({"buffer": -1}, "--buffer: '-1' must be bytes"),
        ({"dataset": ""}, "--dataset: an empty name"),
        ({"class_weights": "balancd"}, "--class-weights balancd: must be .*mean 'balanced'"),
        ({"class_weights": "1,-2"}, "--class-weights 1,-2: must be none, balanced, or a weight"),
        ({"class_weights": "0,0"}, "--class-weights 0,0: must be none"),
        ({"graph_split": "20,2"}, "--graph-split 20,2: must be three numbers of graphs"),
        ({"graph_split": "0,2,2"}, "--graph-split 0,2,2: must be three"),
        ({"label_smoothing": 1}, r"--label-smoothing: '1' must be in \[0, 1\)"),
        ({"epoch": 3}, "flag epoch: .*did you mean 'epochs'"),
    ],
)
def test_wrong_values_in_the_library(flags, said):
    """What a command line refuses, a configuration refuses; a known value is converted."""
    with pytest.raises(InputError, match=said):
        TrainConfig.of(**flags)
    assert TrainConfig.of(lr=1, dataset=Path("there")).flat() == TrainConfig().flat() | {
        "lr": 1.0,
        "dataset": "there",
    }


@pytest.mark.parametrize(
    ("flags", "ranks", "message"),
    [
        ({"c": 2}, 2, "--c 2 needs --algo 1.5d"),
        ({"algo": "feature", "c": 4}, 6, "--c 4 must divide the number of ranks, which is 6"),
        ({"algo": "3d", "c": 3}, 8, "--c 3 must divide the number of ranks, which is 8"),
        ({"algo": "1.5d", "c": 2}, 3, "--c 2 must divide the number of ranks, which is 3"),
        ({"exchange": "oblivious", "cover": "row"}, 1, "--cover row needs"),
        ({"hierarchy": 4}, 6, "--hierarchy 4 must divide the number of ranks, which is 6"),
        ({"hierarchy": 2, "algo": "feature", "c": 2}, 4, "--hierarchy 2 needs --algo 1d"),
        ({"hierarchy": 2, "algo": "1.5d", "c": 4}, 4, "--hierarchy 2 must be a multiple of --c 4"),
        ({"hierarchy": 2, "exchange": "oblivious"}, 4, "--hierarchy 2 needs --exchange"),
        ({"resume": True}, 1, "--resume needs --checkpoint"),
        ({"warmup": 5, "epochs": 5}, 1, "--warmup 5 must be less than --epochs 5"),
        ({"spill_dtype": "bfloat16"}, 1, "--spill-dtype needs --memory, --spill or --parts"),
        ({"recompute": "always"}, 1, "--recompute needs --memory, --spill or --parts"),
        ({"order": "paper", "model": "gin"}, 1, "--order paper needs --model gcn, not gin"),
        ({"loss": "mse", "metric": "accuracy"}, 1, "--metric accuracy needs --loss softmax, not"),
        ({"loss": "multilabel", "metric": "r2"}, 1, "--metric r2 needs --loss mse or --loss l1"),
        ({"loss": "l1", "class_weights": "balanced"}, 1, "--class-weights needs classes"),
        ({"metric": "mrr"}, 1, "--metric mrr needs --task links, not auto"),
        ({"task": "links", "metric": "r2"}, 1, "--metric r2 needs --loss mse or .*, not links: "),
        ({"task": "links", "loss": "mse"}, 1, "--loss needs --task vertices, not links"),
        ({"task": "links", "inductive": True}, 1, "--inductive needs --task vertices"),
        ({"task": "links", "val_links": 0.5, "test_links": 0.5}, 1, "leave nothing to train on"),
        ({"label_propagation": 0.5, "task": "links"}, 1, "--label-propagation needs --task vert"),
        ({"label_propagation": 0.5, "ghosts": 1}, 1, "--ghosts 1 needs fixed features"),
        ({"label_propagation": 0.5, "loss": "mse"}, 1, "--label-propagation needs classes"),
        ({"plan": "auto", "inductive": True}, 1, "--plan knows .* not --inductive True"),
        ({"negatives": 3}, 1, "--negatives needs --task links"),
        ({"loss": "huber", "label_smoothing": 0.1}, 1, "--label-smoothing needs classes"),
        ({"aggregate": "max"}, 1, "--aggregate max needs --model sage, not gcn"),
        ({"heads": 2, "model": "gin"}, 1, "--heads 2 needs --model gat or gatv2, not gin"),
        ({"attention_dropout": 0.0}, 1, "--attention-dropout 0.0 needs --model gat"),
        ({"message_dropout": 0.5}, 1, "--message-dropout 0.5 needs --model gat"),
        (
            {"model": "gat", "message_dropout": 0.5, "parts": 2},
            1,
            "weigh the rows that were scored: --message-dropout 0",
        ),
        ({"layers": 1, "jk": "cat", "heads": 2, "model": "gat"}, 1, "cat makes one layer as wide"),
        ({"heads": 3, "model": "gat"}, 1, "--hidden 16 must be a multiple of --heads 3"),
        ({"model": "gat", "ghosts": 1, "layers": 2}, 1, "--model gat needs --ghosts 0"),
        ({**SAGE_MAX, "cover": "row"}, 1, "--aggregate max needs --algo 1d and --cover column"),
        ({**SAGE_MAX, "algo": "1.5d", "c": 2}, 2, "--aggregate max needs --algo 1d"),
        ({**SAGE_MAX, "hierarchy": 2}, 4, "--aggregate max needs --hierarchy none"),
        ({**SAGE_MAX, "normalisation": "row"}, 1, "--aggregate max needs --normalisation auto"),
        ({"buffer": 9}, 2, "--buffer 9 needs --schedule peers"),
        ({"schedule": "peers"}, 2, "--schedule peers needs --buffer BYTES"),
        (
            {"schedule": "peers", "buffer": 9, "exchange": "oblivious"},
            2,
            "--schedule peers needs --exchange sparsity-aware",
        ),
    ],
)
def test_combinations_that_cannot_work(flags, ranks, message):
    with pytest.raises(InputError, match=message):
        TrainConfig.of(**flags).check(ranks)


@pytest.mark.parametrize(
    ("algo", "c", "ranks"),
    [("1d", 1, 5), ("1.5d", 1, 5), ("1.5d", 4, 8), ("feature", 8, 8), ("2d", 1, 7), ("3d", 2, 6)],
)
def test_combinations_that_work(algo, c, ranks):
    TrainConfig.of(algo=algo, c=c).check(ranks)


def refusals(rank):
    """What each public function that takes a configuration says of one that cannot work."""
    comm, gat = connect(), {"model": "gat", "ghosts": 1, "layers": 2, "dataset": "rmat-5-4"}
    files = {"weights": "none.npz", "output": "none.npy"}
    calls = [
        lambda: train(TrainConfig.of(**gat), comm),
        lambda: prepare(TrainConfig.of(**gat), comm),
        lambda: infer_to_file(InferConfig.of(dataset="rmat-5-4", layer=7, **files), comm),
        lambda: train_batches(MiniBatchConfig.of(dataset="rmat-5-4", layers=5), comm),
        lambda: Trainer(None, Training(resume=True), comm),
        lambda: Trainer(None, Training(warmup=9, epochs=3), comm),
    ]
    said = []
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        said.append(str(caught.value))
    return said


def test_functions_refuse_what_commands_refuse():
    """On every rank, before anything is read."""
    first, second = run_ranks(refusals, 2)
    assert first == second
    for said, message in zip(
        first,
        [
            "--model gat needs --ghosts 0",
            "--model gat needs --ghosts 0",
            "--layer 7: the model has --layers",
            "--layers 5 needs as many --num-neighbors",
            "--resume needs --checkpoint",
            "--warmup 9 must be less than --epochs 3",
        ],
        strict=True,
    ):
        assert message in said
