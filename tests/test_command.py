"""How commands end, and what their flags accept."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import pytest
from rich.table import Table

import spgnn
from spgnn import InputError, commands
from spgnn.__main__ import main as spgnn_command
from spgnn.command import nbytes, run, say, show_table
from spgnn.config import TrainConfig
from spgnn.registry import COMMANDS
from spgnn.train.run import main as train
from tests.comm.jobs import Forked
from tests.train.command import check_slip


def raises(error: BaseException):
    def body() -> int:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InputError("file: wrong"), 2, "error: file: wrong\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (MemoryError("the adjacency, 3 GiB"), 2, "error: out of memory: the adjacency, 3 GiB\n"),
        (MemoryError(), 2, "error: out of memory\n"),
    ],
)
def test_what_goes_wrong_is_one_line(capsys, error, status, said):
    assert run(raises(error)) == status
    assert capsys.readouterr().err == said


def test_a_closed_pipe_is_one_line(tmp_path):
    def body() -> int:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(reading)
        return run(lambda: print("x" * 100_000))

    ended = Forked(body, tmp_path).wait()
    assert ended.status == 141
    assert ended.err == "error: the output was closed before all was written\n"


CLOSED = "error: the output cannot be written: Bad file descriptor\n"
FULL = "error: the output cannot be written: No space left on device\n"


def with_streams(body, out, err):
    """A body that runs as in a process which was started with such streams."""

    def started() -> int:
        for number, state in ((1, out), (2, err)):
            name = "stdout" if number == 1 else "stderr"
            if state == "closed":
                os.close(number)
                setattr(sys, name, None)
            elif state == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), number)
            setattr(sys, f"__{name}__", getattr(sys, name))
        return body()

    return started


@pytest.mark.parametrize("err", ["open", "closed", "full"])
@pytest.mark.parametrize(
    ("out", "status", "said"), [("open", 0, ""), ("closed", 2, CLOSED), ("full", 2, FULL)]
)
def test_streams_that_cannot_be_written(tmp_path, out, err, status, said):
    def body() -> int:
        print("a diagnostic", file=sys.stderr)
        say("a result")
        # What is opened later has not the number of a stream.
        assert os.open(os.devnull, os.O_RDONLY) > 2
        return 0

    ended = Forked(with_streams(lambda: run(body), out, err), tmp_path).wait()
    assert ended.status == status
    assert ended.out == ("a result\n" if out == "open" else "")
    assert ended.err == (f"a diagnostic\n{said}" if err == "open" else "")


@pytest.mark.parametrize(("out", "said"), [("closed", CLOSED), ("full", FULL)])
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_job_whose_output_cannot_be_written(tmp_path, out, said, ranks):
    """It has done all the rest by then."""
    flags = ["--dataset", "rmat-6-4", "--random-features", "5", "--random-classes", "3"]
    flags += ["--epochs", "1", "--hidden", "4", "--json", str(tmp_path / "report.json")]
    job = with_streams(lambda: train([*flags, "--nproc", ranks]), out, "open")
    ended = Forked(job, tmp_path).wait()
    assert (ended.status, ended.err) == (2, said)
    assert (tmp_path / "report.json").exists()


def test_characters_that_a_terminal_does_not_have(tmp_path):
    def body() -> int:
        sys.stdout.reconfigure(encoding="latin-1")
        return run(lambda: say("a – b"))

    ended = Forked(body, tmp_path).wait()
    assert (ended.status, ended.out) == (0, "a \\u2013 b\n")


def test_help_is_output_like_any_other(tmp_path):
    def body() -> int:
        TrainConfig.read(["--help"])
        return 0

    ended = Forked(with_streams(lambda: run(body), "full", "open"), tmp_path).wait()
    assert (ended.status, ended.err) == (2, FULL)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("sbm", "'sbm' is no flag; did you mean '--dataset sbm'?"),
        ("--nproc 2 sbm", "did you mean '--dataset sbm'?"),
        ("--buffer 20 GB", "'GB' is no flag, and --buffer takes one word"),
        ("--weights 3", "--weights; it is a flag of spgnn infer"),
        ("epochs=5", "did you mean '--epochs 5'?"),
        ("-dataset sbm", "did you mean '--dataset'?"),
        ("\u2014epochs 5", "did you mean '--epochs'?"),
        ("--Epochs 5", "did you mean '--epochs'?"),
        ("--num-epochs 5", "did you mean '--epochs'?"),
        ("--learning_rate 1", "did you mean '--lr'?"),
        ("--num-workers 3", "Unknown option: --num-workers."),
        ("--hiden 3", "Did you mean --hidden?"),
        ("--np 2", "did you mean '--nproc'?"),
        ("--act elu", "--act is a key, not a flag: --set model.act=VALUE"),
        ("--set model.atc=elu", "unknown key 'model.atc'; did you mean 'model.act'?"),
        ("--set act", "must be SECTION.KEY=VALUE, as in training.clip=1"),
        ("--set model.act=rleu", 'Did you mean "relu"?'),
        ("--epochs", "--epochs requires an argument"),
        ("--epochs x", "--epochs: 'x' is no integer"),
        ("--cover colunm", '"column", "row", "minimum", "auto". Did you mean "column"?'),
        ("--metric f1-macor", 'Did you mean "f1-macro"?'),
        ("--prune false", "write --prune or --no-prune"),
        ("--dataset --epochs 3", "--dataset requires an argument"),
        ("--model GCN", 'Did you mean "gcn"?'),
        ("--set clip=1", "did you mean 'training.clip'?"),
        ("--epochs 1.7", "'1.7' is no integer"),
        ("--seed 30.0", "'30.0' is no integer"),
        ("--set training.epochs=2e3", "'2e3' is no integer"),
    ],
)
def test_slips_are_answered_with_what_was_meant(words, meant):
    check_slip(TrainConfig, words, meant)


def test_help_hangs_at_the_width_of_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        TrainConfig.read(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.startswith(" " * 8) for line in lines)


@pytest.mark.parametrize("words", [["--version"], ["train", "--version"]])
def test_the_version(words, capsys):
    with suppress(SystemExit):
        assert spgnn_command(words) == 0
    assert capsys.readouterr().out == f"spgnn {spgnn.__version__}\n"


def test_tables_are_as_wide_as_they_need_where_no_terminal_sets_a_limit(capsys):
    table = Table(show_header=False)
    table.add_row("x" * 100, "y" * 150)
    show_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert f"{'x' * 100} │ {'y' * 150}" in lines[1]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("20MB", 20_000_000),
        ("20 mb", 20_000_000),
        ("2GiB", 2**31),
        ("1.5k", 1500),
        ("0.5KiB", 512),
        ("3T", 3 * 10**12),
    ],
)
def test_bytes(text, read):
    assert nbytes(text) == read


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e6", "2 XB", "1GiBs", "½", "9" * 5000, "nan"])
def test_what_is_no_number_of_bytes(text):
    with pytest.raises(InputError, match=r"'.*' must be bytes, as in 4096, 20MB or 2GiB"):
        nbytes(text)


def test_the_list_of_commands_needs_no_torch():
    program = "import sys, spgnn.__main__ as c; c.main(['--help']); print('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert ended.stdout.splitlines()[-1] == "False", ended.stderr
    records = (commands.Info, commands.Shard, commands.Weights, commands.Plot)
    assert {record.__doc__ for record in records} <= {COMMANDS[name][0] for name in COMMANDS}
