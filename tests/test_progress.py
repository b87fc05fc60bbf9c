"""What is said of long work: a line on a terminal, a few lines in a file."""

from __future__ import annotations

import io
import os
import pty
import signal
import sys
import time

import pytest

from spgnn import progress
from spgnn.errors import ERASE
from spgnn.progress import ProgressBar, working
from spgnn.train.run import main
from tests.comm.jobs import PATIENCE, wait_for


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def stderr(monkeypatch, terminal):
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture(autouse=True)
def nothing_written(monkeypatch):
    monkeypatch.setattr(ProgressBar, "_next_line", 0.0)
    monkeypatch.setattr(ProgressBar, "_pause", 0.0)


def test_a_file_gets_ever_fewer_lines_of_long_work(monkeypatch, clock):
    stream = stderr(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "LONG_SECONDS", 15.0)
    with ProgressBar() as bar:
        for done in range(101):
            bar("short", done, 100)
            clock[0] += 0.1
        for done in range(1001):
            bar("long", done, 1000, f"loss {done}")
            clock[0] += 0.06
    lines = stream.getvalue().splitlines()
    assert lines == [
        "long: 25 %, 15 s, loss 250",
        "long: 50 %, 30 s, loss 500",
        "long: done, 60 s, loss 1000",
    ]


def test_a_file_of_hours_and_of_many_stages_is_not_full_of_progress(monkeypatch, clock):
    stream = stderr(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "LONG_SECONDS", 15.0)
    for _ in range(100):  # a partition each, of two minutes
        with ProgressBar() as bar:
            for done in range(121):
                bar("refinement", done, 120)
                clock[0] += 1
    lines = stream.getvalue().splitlines()
    assert 20 < len(lines) < 60


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch, clock):
    stream = stderr(monkeypatch, terminal=True)
    monkeypatch.setenv("COLUMNS", "70")
    with ProgressBar() as bar:
        for epoch in range(3):
            bar("epoch", epoch, 3, f"loss {epoch}.5")
            for part in range(5):
                clock[0] += 0.2
                bar("parts of this epoch", part, 4)
    lines = stream.getvalue().split(ERASE)
    assert lines[0] == lines[-1] == ""
    assert all(len(line) < 70 and line.isprintable() for line in lines)
    assert "epoch 1 of 3  loss 1.5  parts of this epoch  ━" in " ".join(lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_others_than_rank_zero_say_nothing(monkeypatch, terminal):
    stream = stderr(monkeypatch, terminal)
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.0)
    with ProgressBar(shown=False) as bar, working("something", shown=False):
        bar("something", 0, 2)
    assert not stream.getvalue()


def test_work_that_cannot_tell_how_far_it_is(monkeypatch):
    stream = stderr(monkeypatch, terminal=False)
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.0)
    with working("reading"):
        wait_for(lambda: "reading: under way, 0 s" in stream.getvalue())
    assert stream.getvalue().splitlines()[-1] == "reading: done, 0 s"


def test_without_stderr(monkeypatch):
    """Work goes on, and nothing is said elsewhere."""
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.0)
    with ProgressBar() as bar, working("something"):
        bar("something", 0, 2)
        bar("something", 1, 2)
    assert not stdout.getvalue()


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_an_interrupted_job_leaves_a_clean_line(ranks):
    """As Ctrl-C does: the terminal sends the signal to all processes of the job."""
    pid, terminal = pty.fork()
    if pid == 0:
        status = 99
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for name in ("stdout", "stderr"):
                number = 1 if name == "stdout" else 2
                stream = open(number, "w", closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
            flags = ["--dataset", "rmat-6-4", "--random-features", "5", "--random-classes", "3"]
            # One thread: OpenMP's others did not come through the fork.
            flags += ["--partition", "random", "--threads", "1"]
            status = main([*flags, "--epochs", "1000000", "--nproc", ranks])
        finally:
            os._exit(status)
    shown, end = b"", time.monotonic() + PATIENCE
    try:
        while time.monotonic() < end:
            try:
                piece = os.read(terminal, 1 << 16)
            except OSError:  # all that had the terminal have ended
                break
            if b"loss" in piece and b"\x03" not in shown:
                os.write(terminal, b"\x03")
                shown += b"\x03"
            shown += piece
        if time.monotonic() >= end:
            os.kill(pid, signal.SIGKILL)
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(terminal)
    assert status == 130
    lines = shown.decode().split(ERASE)
    said = [line for line in lines if "interrupted" in line]
    assert len(said) == 1
    assert said[0].startswith("error: interrupted")
    assert said[0].endswith("\r\n")
    assert not lines[-1].strip() or lines[-1] is said[0]
    assert "\x1b[?25l" not in shown.decode()  # the cursor stays
