"""Configuration files equal flags: read, written, read back, and refused by file and key."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from spgnn import InputError
from spgnn.train import TrainConfig, main, parse
from spgnn.train.flags import FILE
from spgnn.train.tables import write_table
from tests.comm.jobs import Ended
from tests.train.command import check_refused, run
from tests.train.test_config import FLAGS, SWITCHES, name_of
from tests.training import write_dataset

# Every flag at another value than its own.
OTHERS = {name_of(flag): value for flag, _, value in FLAGS}
OTHERS |= {name: value for _, name, value in SWITCHES}
OTHERS |= {"buffer": "1.5 KiB", "c": 2, "dataset": 'a "graph" \\ of \u00fc\x7f\n'}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("suffix", [".json", ".toml", ".yaml"])
def test_a_file_equals_its_flags(tmp_path, suffix, nested):
    if suffix == ".yaml":
        pytest.importorskip("yaml")
    expected = TrainConfig.of(**OTHERS)
    path = tmp_path / f"flags{suffix}"
    table = {part: vars(record) for part, record in vars(expected).items()}
    write_table(table, str(path), "")
    if not nested:  # the same without the lines that name records
        text = path.read_text()
        if suffix == ".toml":
            path.write_text("".join(f"{x}\n" for x in text.split("\n") if not x.startswith("[")))
        else:
            flat = {
                key: value for inner in json.loads(text).values() for key, value in inner.items()
            }
            path.write_text(json.dumps(flat))
    found = parse(["--config", str(path)])
    assert found == expected.but(config=str(path))
    names = {name for name, value in expected.flat().items() if value is not None}
    assert TrainConfig.given(["--config", str(path)]) == names | {FILE}


def test_the_command_line_wins_and_dashes_are_underscores(tmp_path):
    path = write(
        tmp_path / "run.toml", "weight-decay = 0\n[training]\nlr = 1\neval-every = 7\nresume = true"
    )
    found = parse(["--no-resume", "--lr", "0.5", "--config", str(path), "--hidden", "9"])
    flags = {"weight_decay": 0.0, "lr": 0.5, "eval_every": 7, "resume": False, "hidden": 9}
    assert found == TrainConfig.of(**flags, config=path)
    assert TrainConfig.given(["--lr", "1", "--config", str(path)]) == {
        *("weight_decay", "lr", "eval_every", "resume", "config")
    }


BAD = [
    ("unknown", "epoch = 3", ["unknown key 'epoch'", "did you mean 'epochs'"]),
    ("unknown table", "[modle]\nhidden = 3", ["unknown key 'modle'", "did you mean 'model'"]),
    ("other record", "[model]\nepochs = 3", ["unknown key 'epochs' of [model]"]),
    ("table", "[hidden]\nx = 1", ["hidden must be an integer, got a dict"]),
    ("text", "hidden = '16'", ["hidden must be an integer, got the text '16'"]),
    ("real", "epochs = 5.0", ["epochs must be an integer, got 5.0"]),
    ("truth", "c = true", ["c must be an integer, got true"]),
    ("no truth", "reach = 1", ["reach must be true or false, got 1"]),
    ("no number", "lr = '1e-3'", ["lr must be a number, got the text '1e-3'"]),
    ("no text", "hierarchy = 2", ["hierarchy must be a text in quotes, got 2"]),
    ("list", "dataset = ['a', 'b']", ["dataset must be a text in quotes, got a list"]),
    ("date", "json = 2020-01-01", ["json must be a text in quotes, got a date"]),
    ("bytes", "buffer = 1.5", ["buffer must be bytes", "got 1.5"]),
    ("range", "epochs = 0", ["--epochs: '0' must be an integer ≥ 1"]),
    ("infinite", "lr = inf", ["--lr: 'inf' must be in"]),
    ("choice", "cover = 'colunm'", ["--cover colunm", "did you mean 'column'"]),
    ("twice", "lr = 1\n[training]\nlr = 2", ["lr is there twice"]),
    ("twice written", "eval-every = 1\neval_every = 1", ["eval_every is there twice"]),
    ("twice bare", "lr = 1\nlr = 2", ["line 2"]),
    ("no table", "training = 3", ["training must be a table, got 3"]),
    ("chain", "config = 'other.toml'", ["cannot name another one"]),
    ("no TOML", "hidden: 16", ["line 1"]),
    ("binary", b"\xff\xfe\x00", ["UTF-8"]),
]


@pytest.mark.parametrize(("text", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_files(tmp_path, capsys, text, words):
    path = tmp_path / "run.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    status = main(["--config", str(path)])
    printed = capsys.readouterr()
    check_refused(Ended(status, printed.out, printed.err), f"--config {path}", *words)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.txt", "", "its name must end in .toml, .json"),
        ("missing.toml", None, "cannot be read: No such file"),
        ("list.json", "[1]", "must hold keys and values"),
        ("broken.json", "{", "line 1"),
        ("deep.json", "[" * 100_000, "recursion"),
        ("null.json", '{"hidden": null}', "hidden must be an integer, got a NoneType"),
        ("twice.json", '{"training": {"lr": 1, "epochs": 2, "lr": 3}}', "lr is there twice"),
    ],
)
def test_bad_names_and_json(tmp_path, name, text, said):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=f"--config {re.escape(str(path))}: .*{said}"):
        parse(["--config", str(path)])


def test_yaml_is_an_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = write(tmp_path / "run.yaml", "hidden: 16")
    with pytest.raises(InputError, match=r"YAML needs PyYAML: pip install 'spgnn\[yaml\]'"):
        parse(["--config", str(path)])


def test_bad_yaml(tmp_path):
    pytest.importorskip("yaml")
    for text, said in (
        ("hidden: [", "line"),
        ("1: 2", "keys"),
        ("lr: '1e-3'", "text '1e-3'"),
        ("epochs: 1e3", "an integer, got 1000.0"),
        ("? [a]\n: b", "unhashable key"),
        ("hidden: 3\nlr: 1\nhidden: 4", "hidden is there twice, line 3"),
        (
            "training:\n  lr: 1\nmodel:\n  hidden: 4\ntraining: {}",
            "training is there twice, line 5",
        ),
        ("hidden: !!python/object/apply:os.abort []", "constructor"),
    ):
        path = write(tmp_path / "run.yml", text)
        with pytest.raises(InputError, match=f"--config {re.escape(str(path))}: .*{said}"):
            parse(["--config", str(path)])


def test_numbers_of_yaml_and_empty_tables(tmp_path):
    pytest.importorskip("yaml")
    for text, flags in (
        ("lr: 1e-3\nweight-decay: -0E+1", {"lr": 1e-3, "weight_decay": 0.0}),
        ("# all as it is\n", {}),
        ("training:\n  # lr: 1\nhidden: 3", {"hidden": 3}),
        ("model: &m {hidden: 3}\n", {"hidden": 3}),
    ):
        path = write(tmp_path / "run.yml", text)
        assert parse(["--config", str(path)]) == TrainConfig.of(**flags, config=path)


@pytest.mark.parametrize(("suffix", "text"), [(".toml", "hidden = 3"), (".json", '{"hidden": 3}')])
def test_a_byte_order_mark_is_no_text(tmp_path, suffix, text):
    path = tmp_path / f"run{suffix}"
    path.write_text(text, encoding="utf-8-sig")
    assert parse(["--config", str(path)]) == TrainConfig.of(hidden=3, config=path)


def test_what_a_run_used_is_written_and_read_back(tmp_path):
    """Also from its report; the runs are the same, and a plan is what it filled in."""
    graph, written = write_dataset(tmp_path / "graph.npz"), tmp_path / "used.toml"
    plan, report = tmp_path / "plan.json", tmp_path / "report.json"
    entry = {"algo": "1d", "c": 1, "exchange": "sparsity-aware", "cover": "minimum"}
    entry |= {"hierarchy": "none", "order": "auto", "ghosts": 0, "reach": False}
    plan.write_text(json.dumps({"plans": [{**entry, "partition": "block", "ranks": 2}]}))
    flags = ["--nproc", 2, "--dataset", graph, "--json", report, "--dropout", 0.5]
    ended = run(tmp_path, *flags, "--plan", plan, "--hidden", 5, "--write-config", written)
    assert ended.status == 0, ended.err
    first = json.loads(report.read_text())
    used = parse(["--config", str(written)])
    assert used.but(config=None, write_config=written, plan=plan).flat() == first["config"]
    assert (used.algorithm.cover, used.algorithm.reach, used.algorithm.plan) == (
        *("minimum", False, None),
    )
    again = parse(["--config", str(report)])
    assert again == used.but(config=report, plan=plan, write_config=written)
    assert run(tmp_path, "--config", written, "--epochs", 3).status == 0
    second = json.loads(report.read_text())
    assert [r["loss"] for r in second["history"]][:2] == [r["loss"] for r in first["history"]]
    assert len(second["history"]) == 3


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--write-config", "used.txt"], ["--write-config used.txt", ".toml"]),
        (["--write-config", "missing/used.toml"], ["--write-config missing", "directory"]),
        (["--config", "in.toml", "--write-config", "in.toml"], ["--write-config in.toml", "reads"]),
    ],
)
def test_places_where_it_cannot_be_written(tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.toml", "hidden = 5")
    check_refused(run(tmp_path, "--dataset", write_dataset(tmp_path / "g.npz"), *flags), *words)
    assert (tmp_path / "in.toml").read_text() == "hidden = 5"
