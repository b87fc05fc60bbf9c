"""When one rank fails, all end within ten seconds with its number and message, and none is left."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from spgnn.comm import connect, launch
from spgnn.comm.failure import Lifelines
from tests.comm import failing
from tests.comm.failing import MESSAGE
from tests.comm.jobs import (
    MPIEXEC,
    PATIENCE,
    ROOT,
    Ended,
    Forked,
    free_port,
    is_alive,
    needs_mpi,
    slowness,
    wait_for,
)

BOUND_SECONDS = 10.0
CASES = [
    ("input", "collective", 2),
    ("input", "sleeping", 0),
    ("input", "computing", 1),
    ("error", "collective", 0),
    ("error", "computing", 2),
    ("kill", "collective", 1),
    ("kill", "computing", 2),
    ("kill", "computing", 0),
    ("kill", "sleeping", 1),
    ("input", "exchanging", 1),
    ("kill", "exchanging", 0),
]


@pytest.mark.parametrize(("how", "where", "victim"), CASES)
def test_under_the_local_launcher(tmp_path, how, where, victim):
    job = Forked(lambda: launch(lambda: failing.run(tmp_path, how, where, victim), 3), tmp_path)
    ended = job.wait()
    _check_end(tmp_path, 3)
    _check_message(ended, how, victim)
    if how == "kill":
        assert ended.status == 128 + signal.SIGKILL
        assert ended.err == f"error: rank {victim} was killed by SIGKILL\n"


@pytest.mark.parametrize(("how", "where", "victim"), CASES)
def test_without_any_supervisor(tmp_path, how, where, victim):
    """As srun starts them: processes of their own, which only the environment describes."""
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        Forked(
            lambda: failing.run(tmp_path, how, where, victim),
            tmp_path,
            job | {"RANK": str(rank)},
            name=f"rank{rank}",
        )
        for rank in range(3)
    ]
    ended = [rank.wait() for rank in ranks]
    _check_end(tmp_path, 3)
    assert all(end.status != 0 for end in ended)
    if how != "kill":
        assert f"error: rank {victim}: " in ended[victim].err
        assert MESSAGE in ended[victim].err
        # The others have nothing to add.
        others = [end.err for rank, end in enumerate(ended) if rank != victim]
        assert not re.findall(r"^error: .*", "\n".join(others), re.MULTILINE)
    else:
        assert any("lost contact" in end.err for end in ended)
    _check_tracebacks("".join(end.err for end in ended), how)


def test_a_rank_that_listens_late_still_knows_why_rank_0_has_ended(tmp_path, monkeypatch):
    """On a busy machine; it would take rank 0 for lost."""
    hear = Lifelines._hear

    def late(self: Lifelines, *given: object) -> None:
        if os.environ["RANK"] == "1":
            time.sleep(2)
        hear(self, *given)

    monkeypatch.setattr(Lifelines, "_hear", late)
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        Forked(
            lambda: failing.run(tmp_path, "input", "sleeping", 0),
            tmp_path,
            job | {"RANK": str(rank)},
            name=f"rank{rank}",
        )
        for rank in range(3)
    ]
    ended = [rank.wait() for rank in ranks]
    _check_end(tmp_path, 3)
    assert [end.err for end in ended] == [f"error: rank 0: {MESSAGE}\n", "", ""]


LONGER = [
    ("input", "collective"),
    ("kill", "computing"),
    ("unguarded", "collective"),
    ("error", "computing"),
    ("kill", "collective"),
    ("input", "exchanging"),
]


def slow_but(*fast: tuple[str, str]) -> list[object]:
    """These cases, which start interpreters anew; all others are left to the slow tests."""
    others = [case for case in LONGER if case not in fast]
    return [*fast, *(pytest.param(*case, marks=pytest.mark.slow) for case in others)]


@pytest.mark.parametrize(("how", "where"), slow_but(("input", "collective")))
def test_under_torchrun(tmp_path, how, where):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ended = _subprocess([*torchrun, "--nproc-per-node", "2", "-m"], tmp_path, how, where)
    _check_end(tmp_path, 2)
    _check_message(ended, how, 1)


@needs_mpi
@pytest.mark.parametrize(
    ("how", "where"),
    slow_but(("kill", "computing"), ("unguarded", "collective")),
)
def test_under_mpiexec(tmp_path, how, where):
    ended = _subprocess([MPIEXEC, "-n", "2", sys.executable, "-m"], tmp_path, how, where)
    _check_end(tmp_path, 2)
    _check_message(ended, how, 1)


def test_ranks_die_with_their_launcher(tmp_path):
    job = Forked(lambda: launch(lambda: failing.run(tmp_path, "kill", "computing", 7), 3), tmp_path)
    wait_for(lambda: all((tmp_path / str(rank)).exists() for rank in range(3)))
    job.signal(signal.SIGKILL)
    start = time.monotonic()
    assert job.wait().status == -signal.SIGKILL
    _check_none_left(tmp_path, 3, start)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([signal.SIGTERM], "terminated (SIGTERM)"),
        ([signal.SIGTERM, signal.SIGTERM], "terminated (SIGTERM)"),
        ([signal.SIGINT, signal.SIGTERM], "interrupted"),
    ],
    ids=["once", "twice", "both"],
)
def test_a_signal_to_all_processes_is_one_line(tmp_path, numbers, said):
    """Batch systems send it to the launcher and to all ranks, and perhaps again."""
    job = Forked(
        lambda: launch(lambda: failing.run(tmp_path, "kill", "collective", 99), 16), tmp_path
    )
    wait_for(lambda: all((tmp_path / str(rank)).exists() for rank in range(16)))
    for number in numbers:
        os.killpg(job.pid, number)
        time.sleep(0.02)
    ended = job.wait()
    assert (ended.status, ended.err) == (
        128 + numbers[0],
        f"error: {said}, and all ranks with it\n",
    )


@pytest.mark.parametrize("whole_group", [False, True], ids=["launcher", "terminal"])
def test_interrupt_ends_all_ranks(tmp_path, whole_group):
    """Ctrl-C on a terminal reaches every process; a signal from elsewhere only the launcher."""
    job = Forked(
        lambda: launch(lambda: failing.run(tmp_path, "kill", "collective", 7), 3), tmp_path
    )
    wait_for(lambda: all((tmp_path / str(rank)).exists() for rank in range(3)))
    start = time.monotonic()
    os.killpg(job.pid, signal.SIGINT) if whole_group else job.signal(signal.SIGINT)
    ended = job.wait()
    assert ended.status == 130
    assert ended.err == "error: interrupted, and all ranks with it\n"
    _check_none_left(tmp_path, 3, start)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "interrupted, and all ranks with it"),
        (signal.SIGTERM, "terminated (SIGTERM), and all ranks with it"),
    ],
)
def test_a_signal_that_comes_while_ranks_are_started(tmp_path, monkeypatch, number, said):
    """It waits until all of them can be ended in good order."""
    launcher = importlib.import_module("spgnn.comm.launch")
    fork = launcher._fork

    def signalled() -> int:
        pid = fork()
        if pid:
            os.kill(os.getpid(), number)
        return pid

    monkeypatch.setattr(launcher, "_fork", signalled)
    ended = Forked(lambda: launch(lambda: time.sleep(1000), 3), tmp_path).wait()
    assert (ended.status, ended.err) == (128 + number, f"error: {said}\n")


def test_rank_alone_in_its_group_ends_all(tmp_path):
    def body() -> None:
        comm = connect()
        part = comm.subgroup([[0], [1, 2]])
        if comm.rank == 0:
            part.fail("the group is too small", status=5)
        comm.barrier()

    ended = Forked(lambda: launch(body, 3), tmp_path).wait()
    assert (ended.status, ended.err) == (5, "error: rank 0: the group is too small\n")


def test_rank_that_leaves_an_exchange_behind_does_not_wait_for_it(tmp_path):
    def body() -> None:
        comm = connect()
        comm.barrier()
        if comm.rank == 1:
            comm.all_reduce(torch.ones(4))
            (tmp_path / "left").write_text(str(time.monotonic()))
            sys.exit(3)
        time.sleep(1000)

    assert Forked(lambda: launch(body, 2), tmp_path).wait().status == 3
    _check_in_time(float((tmp_path / "left").read_text()))


def test_terminated_launcher_says_so(tmp_path):
    job = Forked(lambda: launch(lambda: failing.run(tmp_path, "kill", "computing", 7), 3), tmp_path)
    wait_for(lambda: all((tmp_path / str(rank)).exists() for rank in range(3)))
    start = time.monotonic()
    job.signal(signal.SIGTERM)
    ended = job.wait()
    assert ended.status == 128 + signal.SIGTERM
    assert ended.err == "error: terminated (SIGTERM), and all ranks with it\n"
    _check_none_left(tmp_path, 3, start)


def _subprocess(start: list[object], directory: Path, how: str, where: str) -> Ended:
    command = [*map(str, start), "tests.comm.failing", str(directory), how, where, "1"]
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    done = subprocess.run(
        command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _check_end(directory: Path, ranks: int) -> None:
    _check_none_left(directory, ranks, float((directory / "failed").read_text()))


def _check_none_left(directory: Path, ranks: int, since: float) -> None:
    pids = [int((directory / str(rank)).read_text()) for rank in range(ranks)]
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    _check_in_time(since)


def _check_in_time(since: float) -> None:
    taken = time.monotonic() - since
    assert taken < BOUND_SECONDS or taken < BOUND_SECONDS * slowness()


def _check_message(ended: Ended, how: str, victim: int) -> None:
    assert ended.status != 0
    _check_tracebacks(ended.err, how)
    if how != "kill":
        said = re.findall(r"^error: rank (\d+): (.*)$", ended.err, re.MULTILINE)
        kind = "" if how == "input" else "LookupError: "
        assert said == [(str(victim), kind + MESSAGE)]


def _check_tracebacks(err: str, how: str) -> None:
    """Only an error of the program shows where it happened."""
    own = [part for part in err.split("Traceback (most recent call last)")[1:] if MESSAGE in part]
    assert len(own) == (1 if how in ("error", "unguarded") else 0)
