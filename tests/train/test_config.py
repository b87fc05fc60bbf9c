"""Options of training: read from flags, keys and files; wrong values and combinations refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import spgnn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import InferConfig, TrainConfig, Training, options_of
from spgnn.exchange import Codec
from spgnn.frontend.from_config import training_graph
from spgnn.inference.cli import infer_to_file
from spgnn.registry import PLANNERS
from spgnn.testing import run_ranks
from spgnn.train import Trainer, train
from spgnn.train.run import main
from tests.comm.jobs import Ended
from tests.train.command import check_help, check_refused

# An option of each kind: as it is written, its value, and the words of a command line.
WRITTEN = [
    ("algo", "1.5d", ["--algo", "1.5d"]),
    ("buffer", 1536, ["--buffer", "1.5 KiB"]),
    ("c", 2, ["--c", "1", "--c", "2"]),  # the last one counts
    ("lr", 1e-3, ["--lr", "1e-3"]),
    ("bits", "2,8@50,32@90", ["--bits", "2,8@50,32@90"]),
    ("resume", True, ["--no-resume", "--resume"]),
    ("prune", False, ["--no-prune"]),
    ("metric", "f1-macro", ["--metric", "f1-macro"]),
    ("attention_dropout", 0.5, ["--set", "model.attention-dropout=0.5"]),
    ("input_dropout", False, ["--set", "model.input_dropout=false"]),
    ("clip", 1.0, ["--set", "training.clip=9", "--set", "training.clip=1"]),
    ("hidden", 7, ["--set", "model.hidden=9", "--hidden", "7"]),  # flags count more
    ("class_weights", "1,2", ["--set", "aim.class-weights=1,2"]),
]
OTHERS = {name: value for name, value, _ in WRITTEN} | {"dataset": 'a "graph" \\ of \u00fc\n'}


@pytest.mark.parametrize(("name", "value", "words"), WRITTEN)
def test_options_are_read_and_written(name, value, words):
    config = TrainConfig.read(words)
    assert config == TrainConfig.of(**{name: value})
    assert config.flat() == TrainConfig().flat() | {name: value}
    assert type(config.flat()[name]) is type(value)
    assert TrainConfig.given(words) == {name: value}
    assert TrainConfig.read(config.written()) == config


@pytest.mark.parametrize("kind", [TrainConfig, InferConfig])
def test_help_is_short_and_names_are_unique(kind, capsys):
    check_help(kind, capsys)


def test_a_missing_add_on_is_named(monkeypatch):
    _ = list(PLANNERS)  # add-ons have registered what they bring
    monkeypatch.setattr(PLANNERS, "_values", {})
    with pytest.raises(InputError, match=r"^--plan: needs spgnn\.addons\.plan, which is not insta"):
        train(TrainConfig.of(plan="auto"), connect("gloo"))
    with pytest.raises(InputError, match=r'^plan="auto": needs spgnn\.addons\.plan, which is not'):
        spgnn.distribute("sbm", plan="auto", comm=connect("gloo"))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("suffix", [".json", ".toml", ".yaml"])
def test_files_equal_flags(tmp_path, suffix, nested):
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    expected = TrainConfig.of(**OTHERS)
    tables = dict[str, dict[str, Any]]()
    for record in expected.records:
        table = tables.setdefault(options_of(type(record))[0].section, {})
        table |= {k.replace("_", "-"): v for k, v in vars(record).items() if v is not None}
    if not nested:
        tables = {"": {k: v for table in tables.values() for k, v in table.items()}}
    if suffix == ".toml":
        lines = []
        for section, table in tables.items():
            lines += [f"[{section}]"] if section else []
            lines += [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in table.items()]
        text = "\n".join(lines)
    else:
        text = json.dumps(tables.get("", tables))
    path = write(tmp_path / f"run{suffix}", text)
    assert TrainConfig.read(["--config", str(path)]) == expected.but(config=path)
    found = TrainConfig.read(["--hidden", "99", "--config", str(path), "--set", "training.lr=9"])
    assert found == expected.but(config=path, hidden=99, lr=9)


def test_a_report_is_a_configuration(tmp_path):
    path = tmp_path / "report.json"
    config = TrainConfig.of(**OTHERS | {"config": "else.toml"})
    path.write_text(json.dumps({"config": config.flat(), "history": []}))
    # Files of the earlier run are not written again.
    files = ("json", "log", "predictions", "checkpoint")
    other = config.but(config=path, resume=False, **dict.fromkeys(files))
    assert other != config.but(config=path)
    assert TrainConfig.read(["--config", str(path)]) == other
    assert TrainConfig.read(["--config", str(path), "--json", "b"]) == other.but(json="b")


BAD = [
    ("run.toml", "epoch = 3", "unknown key 'epoch'.* did you mean 'epochs'"),
    ("run.toml", "[modle]\nhidden = 3", "unknown key 'modle'.* did you mean 'model'"),
    ("run.toml", "[model]\nepochs = 3", r"unknown key 'epochs' of \[model\]"),
    ("run.toml", "[hidden]\nx = 1", "hidden must be a value, got a dict"),
    ("run.toml", "dataset = ['a', 'b']", "dataset must be a value, got a list"),
    ("run.toml", "epochs = 'many'", "--epochs.*many"),
    ("run.toml", "prune = 'maybe'", "--prune.*maybe"),
    ("run.toml", "buffer = 'much'", "--buffer.*must be bytes"),
    ("run.toml", "epochs = 0", r"--epochs must be an integer in \[1,"),
    ("run.toml", "cover = 'colunm'", "colunm.*--cover.*column"),
    ("run.toml", "lr = 1\n[training]\nlr = 2", "lr is there twice"),
    ("run.toml", "eval-every = 1\neval_every = 1", "eval_every is there twice"),
    ("run.toml", "hidden: 16", "line 1"),
    ("run.toml", b"\xff\xfe\x00", "UTF-8"),
    ("run.txt", "", "its name must end in .toml, .json"),
    ("missing.toml", None, "cannot be read: No such file"),
    ("list.json", "[1]", "must hold keys and values"),
    ("broken.json", "{", "line 1"),
    ("deep.json", "[" * 100_000, "recursion"),
    ("bad.yaml", "hidden: [", "line"),
    ("keys.yaml", "1: 2", "keys"),
    ("code.yaml", "hidden: !!python/object/apply:os.abort []", "constructor"),
]


@pytest.mark.parametrize(("name", "text", "said"), BAD)
def test_bad_files(tmp_path, capsys, name, text, said):
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    status = main(["--config", str(path)])
    printed = capsys.readouterr()
    check_refused(Ended(status, printed.out, printed.err), f"--config {path}")
    assert re.search(said, printed.err)


def test_yaml_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = write(tmp_path / "run.yaml", "hidden: 16")
    with pytest.raises(InputError, match=r"YAML needs PyYAML: pip install 'spgnn\[yaml\]'"):
        TrainConfig.read(["--config", str(path)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 0}, "--epochs must be an integer in"),
        ({"epochs": 2.0}, "--epochs must be an integer"),
        ({"epochs": True}, "--epochs must be an integer"),
        ({"hidden": 10**5000}, "--hidden must be an integer"),
        ({"layers": 10**9}, r"--layers must be an integer in \[1, 1000\]"),
        ({"lr": float("nan")}, r"--lr must be in \[0, inf\), got nan"),
        ({"imbalance": 1e300}, "--imbalance must be in"),
        ({"dropout": "much"}, r"--dropout must be in \[0, 1\), got the text 'much'"),
        ({"cover": "colunm"}, "--cover colunm: .*did you mean 'column'"),
        ({"cover": None}, "--cover None: choose one of"),
        ({"prune": "yes"}, "--prune must be true or false, got the text 'yes'"),
        ({"hierarchy": "autp"}, "--hierarchy autp: must be none, auto or .*did you mean 'auto'"),
        ({"hierarchy": 0}, "--hierarchy 0: must be none, auto or a number from 1"),
        ({"json": ""}, "--json: must be a text that is not empty"),
        ({"dataset": "a\0b"}, "--dataset: must be a text"),
        ({"buffer": "much"}, "--buffer: 'much' must be bytes"),
        ({"buffer": -1}, "--buffer must be an integer of at least 0"),
        ({"class_weights": "balancd"}, "class-weights balancd: must be .*mean 'balanced'"),
        ({"class_weights": "1,-2"}, "aim.class-weights 1,-2: must be none, balanced, or a weight"),
        ({"class_weights": "0,0"}, "class-weights 0,0: must be none"),
        ({"graph_split": "20,2"}, "data.graph-split 20,2: must be three numbers of graphs"),
        ({"graph_split": "0,2,2"}, "graph-split 0,2,2: must be three"),
        ({"label_smoothing": 1}, r"aim.label-smoothing must be in \[0, 1\), got 1"),
        ({"epoch": 3}, "option epoch: .*did you mean 'epochs'"),
        ({"bits": 3}, "--bits 3: must be 32, 16, 8, 4, 2 or 1, or a schedule"),
        ({"bits": "8,4"}, "--bits 8,4: must be"),
        ({"bits": "8@3"}, "--bits 8@3: must be"),
        ({"bits": "8,4@9,2@9"}, "--bits 8,4@9,2@9: must be"),
        ({"bits": "8,4@-1"}, "--bits 8,4@-1: must be"),
        ({"boundary_sampling": 0}, "--boundary-sampling 0: must be .*--delay never sends nothing"),
        ({"boundary_sampling": "nan"}, "--boundary-sampling nan: must be a share in"),
        ({"boundary_sampling": "1,1e-40@2"}, "--boundary-sampling 1,1e-40@2: must be a share"),
        ({"boundary_sampling": 1.5}, "--boundary-sampling 1.5: must be a share in"),
        ({"delay": -1}, "--delay -1: must be a number of epochs from 0, or never"),
        ({"delay": "nevr"}, "--delay nevr: must be .*did you mean 'never'"),
        ({"bits": "8,1@5", "error_feedback": True}, "--error-feedback needs --bits 2 or more"),
        ({"smoothing": 1}, r"messages.smoothing must be in \[0, 1\)"),
    ],
)
def test_wrong_values(options, said):
    with pytest.raises(InputError, match=said):
        TrainConfig.of(**options)


def test_paths_and_numbers_are_converted():
    assert TrainConfig.of(lr=1, dataset=Path("there"), bits=8, buffer="1kB").flat() == (
        TrainConfig().flat() | {"lr": 1.0, "dataset": "there", "bits": "8", "buffer": 1000}
    )


MAX, PEERS = {"model": "sage", "aggregate": "max"}, {"schedule": "peers", "buffer": 9}


@pytest.mark.parametrize(
    ("options", "ranks", "words"),
    [
        ({"c": 2}, 2, "--c 2 needs --algo 1.5d"),
        ({"algo": "feature", "c": 4}, 6, "--c 4 must divide the number of ranks, which is 6"),
        ({"algo": "3d", "c": 3}, 8, "--c 3 must divide the number of ranks, which is 8"),
        ({"exchange": "oblivious", "cover": "row"}, 1, "--cover row needs"),
        ({"hierarchy": 4}, 6, "--hierarchy 4 must divide the number of ranks, which is 6"),
        ({"nodes": 3}, 4, "--nodes 3 must divide the number of ranks, which is 4"),
        ({"nodes": 4, "hierarchy": 2}, 4, "--nodes 4 and --hierarchy 2 contradict each other"),
        ({"hierarchy": 2, "algo": "feature", "c": 2}, 4, "--hierarchy 2 needs --algo 1d"),
        ({"hierarchy": 2, "algo": "1.5d", "c": 4}, 4, "--hierarchy 2 must be a multiple of --c 4"),
        ({"hierarchy": 2, "exchange": "oblivious"}, 4, "--hierarchy 2 needs --exchange"),
        ({"edges": "file"}, 2, "algorithm.edges needs --algo vertex-cut"),
        ({"fresh": 0.1, "delay": 2, "delay_bins": 2}, 2, "messages.fresh .* --delay-bins"),
        ({"clones": True}, 2, "algorithm.clones needs --algo vertex-cut"),
        ({"clones": True, "algo": "vertex-cut", "cover": "row"}, 2, "clones needs --cover column"),
        ({"clones": True, "algo": "vertex-cut", **PEERS}, 2, "clones needs .* --schedule overlap"),
        ({"clones": True, "algo": "vertex-cut", "relays": True}, 2, "clones needs --no-relays"),
        ({"clones": True, "algo": "vertex-cut", "recompute_halo": True}, 2, "no --recompute-halo"),
        ({"clones": True, "algo": "vertex-cut", "label_propagation": 0.5}, 2, "clones needs fixed"),
        ({"clones": True, "algo": "vertex-cut", "model": "gat"}, 2, "clones needs a model that"),
        ({"resume": True}, 1, "--resume needs --checkpoint"),
        ({"warmup": 5, "epochs": 5}, 1, "training.warmup 5 must be less than --epochs 5"),
        ({"order": "paper", "model": "gin"}, 1, "--order paper needs --model gcn, not gin"),
        ({"loss": "mse", "metric": "accuracy"}, 1, "--metric accuracy needs --loss softmax, not"),
        ({"loss": "multilabel", "metric": "r2"}, 1, "--metric r2 needs --loss mse or --loss l1"),
        ({"loss": "l1", "class_weights": "balanced"}, 1, "aim.class-weights needs classes"),
        ({"metric": "mrr"}, 1, "--metric mrr needs --task links, not auto"),
        ({"task": "links", "metric": "r2"}, 1, "--metric r2 needs --loss mse or .*, not links: "),
        ({"task": "links", "loss": "mse"}, 1, "--loss needs --task vertices, not links"),
        ({"task": "links", "inductive": True}, 1, "aim.inductive needs --task vertices"),
        ({"task": "links", "val_links": 0.5, "test_links": 0.5}, 1, "leave nothing to train on"),
        ({"label_propagation": 0.5, "recompute_halo": True}, 1, "needs fixed features"),
        ({"label_propagation": 0.5, "loss": "mse"}, 1, "aim.label-propagation needs classes"),
        ({"plan": "auto", "inductive": True}, 1, "--plan knows .* not aim.inductive True"),
        ({"negatives": 3}, 1, "aim.negatives needs --task links"),
        ({"loss": "huber", "label_smoothing": 0.1}, 1, "aim.label-smoothing needs classes"),
        ({"aggregate": "max"}, 1, "--aggregate max needs --model sage, not gcn"),
        ({"heads": 2, "model": "gin"}, 1, "--heads 2 needs --model gat, .*, not gin"),
        ({"attention_dropout": 0.0}, 1, "model.attention-dropout 0.0 needs --model gat"),
        ({"message_dropout": 0.5}, 1, "model.message-dropout 0.5 needs --model gat"),
        ({"edge_dim": 3, "model": "gin"}, 1, "model.edge-dim 3 needs --model gine, gat"),
        ({"layers": 1, "jk": "cat", "heads": 2, "model": "gat"}, 1, "cat makes one layer as wide"),
        ({"heads": 3, "model": "gat"}, 1, "--hidden 16 must be a multiple of --heads 3"),
        ({"model": "gat", "recompute_halo": True, "layers": 2}, 1, "--model gat .*no --recompute"),
        ({"model": "gat", "normalisation": "sym"}, 1, "--model gat weighs edges itself"),
        ({**MAX, "cover": "row"}, 1, "--aggregate max needs --algo 1d, --cover column"),
        (
            {"model": "gat", "relays": True, "bits": "8"},
            4,
            "--bits 8 with --model gat needs --no-relays: its rows travel once",
        ),
        ({**MAX, "hierarchy": 2}, 4, "--aggregate max needs .* --hierarchy none"),
        ({**MAX, "normalisation": "row"}, 1, "--aggregate max .* data.normalisation auto"),
        ({"recompute_halo": True, "layers": 1}, 1, "--recompute-halo needs --layers 2"),
        ({"recompute_halo": True, "order": "paper"}, 1, "--recompute-halo needs --order auto"),
        ({"recompute_halo": True, "dropout": 0.5}, 1, "--recompute-halo needs model.input-dropout"),
        ({"buffer": 9}, 2, "--buffer 9 needs --schedule peers"),
        ({"schedule": "peers"}, 2, "--schedule peers needs --buffer BYTES"),
        ({**PEERS, "exchange": "oblivious"}, 2, "--schedule peers needs --exchange sparsity-aware"),
        ({"delay": 10, "epochs": 10}, 4, "--delay 10 must be less than --epochs 10"),
        ({"delay_bins": 3}, 4, "--delay-bins 3 needs --delay R"),
        ({"delay_bins": 3, "delay": "never"}, 4, "--delay-bins 3 needs --delay R"),
        ({"smoothing": 0.5}, 4, "messages.smoothing 0.5 needs --delay R"),
        ({"exact_last": 11, "epochs": 10}, 4, "messages.exact-last 11 exceeds --epochs 10"),
        ({"error_feedback": True}, 4, "--error-feedback needs --bits 16 or fewer"),
        ({"exact_means": True}, 4, "messages.exact-means needs --bits, --delay"),
        ({"exact_means": True, "delay": 1, "model": "gat"}, 4, "--model gat: messages.exact-means"),
        ({"bits": 8, "exchange": "oblivious"}, 4, "--bits 8 needs --exchange sparsity-aware"),
        (
            {"delay": 1, "boundary_sampling": 0.5, "model": "gat"},
            4,
            "--model gat: --boundary-sampling cannot be had with --delay 1",
        ),
        ({**MAX, "delay": "never"}, 4, "--delay never needs --aggregate mean or sum"),
        ({**MAX, "boundary_sampling": 0.5}, 4, "needs --aggregate mean or sum"),
        ({"bits": 4, "error_feedback": True, **PEERS}, 4, "--error-feedback needs --schedule over"),
        ({"delay": 3, **PEERS}, 4, "--delay 3 needs --schedule overlap"),
    ],
)
def test_combinations_that_cannot_work(options, ranks, words):
    with pytest.raises(InputError, match=words):
        TrainConfig.of(**options).check(ranks)


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        *(({"algo": algo, "c": c}, ranks) for algo, c, ranks in [("1d", 1, 5), ("1.5d", 4, 8)]),
        *(({"algo": algo, "c": c}, ranks) for algo, c, ranks in [("2d", 1, 7), ("3d", 2, 6)]),
        ({"bits": 4, **PEERS}, 4),
        ({"delay": "never", **PEERS}, 4),
        ({"bits": 32, "delay": 0, "exchange": "oblivious"}, 4),
        ({"hierarchy": "auto", "bits": 2}, 4),
        ({"delay": 9, "epochs": 10, "exact_last": 10, "recompute_halo": True}, 4),
        ({"bits": 8, "task": "links"}, 4),
        ({"delay": 2, "bits": 2, "error_feedback": True, "model": "gat"}, 4),
        ({"boundary_sampling": 0.1, "bits": 8, "model": "gatv2", "algo": "1.5d", "c": 2}, 4),
        ({"bits": 8, "inductive": True, "label_propagation": 0.5}, 4),
        ({"bits": 4, "error_feedback": True, "delay": 1, "exact_means": True}, 4),
    ],
    ids=str,
)
def test_combinations_that_work(options, ranks):
    TrainConfig.of(**options).check(ranks)


@pytest.mark.parametrize(
    ("options", "asked", "described"),
    [
        ({}, Codec(), ""),
        ({"bits": 8}, Codec(bits=((0, 8),)), "--bits 8"),
        (
            {"bits": "2, 8@50,32@90", "error_feedback": True},
            Codec(bits=((0, 2), (50, 8), (90, 32)), feedback=True),
            "--bits 2, 8@50,32@90 --error-feedback True",
        ),
        ({"delay": "never"}, Codec(delay=None), "--delay never"),
        (
            {"delay": 5, "delay_bins": 3, "smoothing": 0.5, "exact_last": 2},
            Codec(delay=5, bins=3, smoothing=0.5, exact_last=2),
            "--delay 5 --delay-bins 3 messages.smoothing 0.5 messages.exact-means True "
            "messages.exact-last 2",
        ),
        ({"fresh": 0.01}, Codec(extra=(("fresh", 0.01),)), "messages.fresh 0.01"),
        ({"delay": 2, "exact_means": False}, Codec(delay=2, exact_means=False), "--delay 2"),
        (
            {"boundary_sampling": "0.1,1@9"},
            Codec(sampling=((0, 0.1), (9, 1.0))),
            "--boundary-sampling 0.1,1@9 messages.exact-means True",
        ),
        # Nothing is lost and nothing late.
        ({"bits": "32,32@4", "boundary_sampling": "1.0", "exact_last": 5}, Codec(), None),
    ],
    ids=str,
)
def test_options_stand_for_approximations(options, asked, described):
    config = TrainConfig.of(**options)
    config.check(4)
    assert config.codec == asked
    assert described in (None, config.described_messages)
    assert "exact-means" not in config.but(model="gat").described_messages
    config.but(model="gat", exact_means=None).check(4)


def refusals(rank):
    """What each public function that takes a configuration says of one that cannot work."""
    comm, gat = connect(), {"model": "gat", "recompute_halo": True, "dataset": "rmat-5-4"}
    files = {"weights": "none.npz", "output": "none.npy"}
    calls = [
        lambda: train(TrainConfig.of(**gat), comm),
        lambda: training_graph(TrainConfig.of(**gat), comm),
        lambda: infer_to_file(InferConfig.of(dataset="rmat-5-4", layer=7, **files), comm),
        lambda: Trainer(torch.nn.Linear(1, 1), options=Training(resume=True)),
        lambda: Trainer(torch.nn.Linear(1, 1), options=Training(warmup=9, epochs=3)),
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
            *["--model gat cannot begin with A·X"] * 2,
            "--layer 7: the model has --layers",
            "--resume needs --checkpoint",
            "training.warmup 9 must be less than --epochs 3",
        ],
        strict=True,
    ):
        assert message in said


OPEN_COVERS = [
    ({}, "minimum", "cover", None),
    ({"model": "sage"}, "minimum", "cover", None),
    ({"model": "gin", "hierarchy": 2}, "minimum", "cover", None),
    ({"algo": "1.5d", "c": 2, "partition": "metis"}, "minimum", "both", None),
    ({"objective": "send"}, "minimum", "send", None),
    ({"cover": "minimum", "partition": "stream"}, "minimum", "both", None),
    ({"cover": "minimum", "model": "gat"}, "minimum", "cover", None),
    ({"model": "gat", "relays": True}, "column", "both", "--model gat: attention weighs rows"),
    ({"cover": "column"}, "column", "both", None),
    ({"cover": "column", "objective": "cover"}, "column", "cover", None),
    ({"model": "gat"}, "column", "both", "attention"),
    ({"model": "gatv2", "algo": "1.5d", "c": 2}, "column", "both", "attention"),
    ({"model": "sage", "aggregate": "max"}, "column", "both", "--aggregate max"),
    ({"model": "gine", "edge_dim": 2}, "column", "both", "features of edges"),
    ({"bits": 8}, "column", "both", "approximate"),
    ({"delay": 1, "algo": "vertex-cut"}, "column", "both", "approximate"),
    ({"boundary_sampling": 0.5}, "column", "both", "approximate"),
    ({"recompute_halo": True}, "column", "both", "--recompute-halo"),
    ({"exchange": "oblivious"}, "column", "both", "--exchange oblivious"),
    ({"schedule": "peers", "buffer": 100}, "column", "both", "--schedule peers"),
    ({"algo": "vertex-cut", "clones": True}, "column", "both", "clones"),
]


@pytest.mark.parametrize(("options", "cover", "objective", "why"), OPEN_COVERS)
def test_an_open_cover_is_minimum_where_sums_may_travel(options, cover, objective, why):
    config = TrainConfig.of(**options)
    config.check(4)
    assert (config.distribution.cover, config.objective) == (cover, objective)
    assert config.whole_rows is None if why is None else why in config.whole_rows
    decided = config.decided()
    assert decided.algorithm.cover == cover
    assert (decided.distribution, decided.objective) == (config.distribution, objective)
    assert decided.distribution.algo == config.distribution.algo
