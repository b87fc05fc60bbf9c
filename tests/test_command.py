"""How commands end, and what their flags accept."""

from __future__ import annotations

import os

import pytest

from spgnn import InputError
from spgnn.command import Parser, at_least, nbytes, nonempty, real, run
from tests.comm.jobs import Forked


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


def test_status_of_what_goes_well():
    assert run(lambda: None) == 0
    assert run(lambda: 3) == 3


def test_a_closed_pipe_is_one_line(tmp_path):
    def body() -> int:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(reading)
        return run(lambda: print("x" * 100_000))

    ended = Forked(body, tmp_path).wait()
    assert ended.status == 141
    assert ended.err == "error: the output was closed before all was written\n"


def test_flags():
    parser = Parser(prog="x")
    parser.add_argument("--n", type=at_least(1))
    parser.add_argument("--p", type=real(0, 1))
    parser.add_argument("--file", type=nonempty)
    given = ["--n", "7", "--p", "0.5", "--file", "x"]
    assert vars(parser.parse_args(given)) == {"n": 7, "p": 0.5, "file": "x"}
    for name in ("", "a\0b"):
        with pytest.raises(InputError, match="--file: an empty name"):
            parser.parse_args([f"--file={name}"])
    wrong = {"--n": ["0", "-1", "x", "9" * 5000, str(2**31)], "--p": ["1", "-0.1", "nan", "x"]}
    for flag, texts in wrong.items():
        for text in texts:
            with pytest.raises(InputError, match=f"{flag}: '.*' must be"):
                parser.parse_args([f"{flag}={text}"])


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
    parser = Parser(prog="x")
    parser.add_argument("--buffer", type=nbytes)
    with pytest.raises(InputError, match=r"--buffer: '.*' must be bytes, as in 4096, 20MB or 2GiB"):
        parser.parse_args([f"--buffer={text}"])


def test_typing_errors_are_answered_with_what_was_meant():
    parser = Parser(prog="x")
    parser.add_argument("--output")
    parser.add_argument("--cover", choices=("column", "row"))
    commands = parser.add_subparsers()
    below = commands.add_parser("below")
    below.add_argument("--seed")
    assert parser.parse_args(["--cover", "row", "below"]).cover == "row"
    for arguments, said in (
        (["--outptu=x"], "unrecognized arguments: --outptu=x; did you mean '--output'"),
        (["below", "--seeed", "1"], "did you mean '--seed'"),
        (["--zzz"], r"unrecognized arguments: --zzz$"),
        (["below", "--output", "x"], "--output x; --output is a flag of another command$"),
        (["belov"], "command belov: choose one of below; did you mean 'below'"),
        (["x" * 5000], r"^command x+…x+: choose one of below$"),
        (["--cover", "colunm"], "--cover colunm: choose one of column, row; did you mean 'column'"),
    ):
        with pytest.raises(InputError, match=said):
            parser.parse_args(arguments)
