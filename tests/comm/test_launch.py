"""The local launcher, and how a process finds out who started it."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from spgnn.comm import connect, launch, world
from spgnn.testing import run_ranks
from spgnn.train import main
from tests.comm.jobs import Forked, is_alive

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
pytestmark = pytest.mark.usefixtures("clean_environment")


def test_ranks_are_described_as_under_torchrun():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    found = run_ranks(lambda rank: [os.environ[name] for name in names], 3)
    port = found[0][-1]
    assert found == [[str(r), str(r), "3", "3", "127.0.0.1", port] for r in range(3)]
    assert "RANK" not in os.environ


def test_second_connect_is_the_same_communicator():
    assert run_ranks(lambda rank: connect() is connect() is world(), 2) == [True, True]


def test_ranks_of_a_parent_that_has_connected():
    """Its communicator is not theirs."""
    assert connect().size == 1
    assert run_ranks(lambda rank: (connect().rank, connect().size), 2) == [(0, 2), (1, 2)]


def test_threads_of_each_rank():
    def threads(rank: int) -> tuple[int, str]:
        import torch

        return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    assert run_ranks(threads, 2, threads=3) == [(3, "3")] * 2


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda rank: None, 0),
        (lambda rank: 0, 0),
        (lambda rank: 7 if rank == 1 else 0, 7),
        (lambda rank: sys.exit(5) if rank == 2 else 0, 5),
        (lambda rank: sys.exit("no number") if rank == 2 else 0, 1),
        (lambda rank: sys.exit() if rank == 2 else 0, 0),
        (lambda rank: os.kill(os.getpid(), signal.SIGTERM) if rank == 0 else 0, 143),
    ],
    ids=["none", "zero", "status", "exit", "exit with words", "exit without", "terminated"],
)
def test_status_of_a_job(tmp_path, end, status):
    job = Forked(lambda: launch(lambda: end(int(os.environ["RANK"])), 3), tmp_path)
    assert job.wait().status == status


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGTERM, "terminated (SIGTERM)"), (signal.SIGINT, "interrupted")],
)
def test_a_launcher_that_is_asked_to_end_at_once(tmp_path, monkeypatch, number, said):
    """Its ranks run already, but cannot meet yet."""
    module = importlib.import_module("spgnn.comm.launch")
    store = module.TCPStore

    def asked(*given, **named):
        signal.raise_signal(number)
        return store(*given, **named)

    monkeypatch.setattr(module, "TCPStore", asked)
    ended = Forked(lambda: launch(lambda: time.sleep(1000), 2), tmp_path).wait()
    assert (ended.status, ended.err) == (128 + number, f"error: {said}, and all ranks with it\n")


def test_last_words_of_a_rank(tmp_path):
    body = lambda: sys.exit("the data are not mine") if os.environ["RANK"] == "1" else None  # noqa: E731
    ended = Forked(lambda: launch(body, 2), tmp_path).wait()
    assert (ended.status, ended.err) == (1, "error: rank 1: the data are not mine\n")


def test_error_outside_any_guard_names_its_rank(tmp_path):
    def body() -> None:
        if os.environ["RANK"] == "1":
            raise LookupError("no bridge")

    ended = Forked(lambda: launch(body, 2), tmp_path).wait()
    assert ended.status == 1
    assert ended.err.startswith("error: rank 1:")
    assert "LookupError: no bridge" in ended.err


def test_failed_ranks_have_no_results(capfd):
    def fail_on_one(rank: int) -> None:
        assert rank != 1, "not me"

    with pytest.raises(RuntimeError, match="a rank failed with status 1"):
        run_ranks(fail_on_one, 2)
    assert "error: rank 1: AssertionError: not me" in capfd.readouterr().err


def test_output_is_whole(tmp_path):
    """What ranks print just before they end is not lost."""
    job = Forked(lambda: launch(lambda: print("x" * 5000), 3), tmp_path)
    assert sorted(job.wait().out.split()) == ["x" * 5000] * 3


def test_system_without_descriptors_of_processes(tmp_path, monkeypatch):
    """Older ones, and sandboxes, do not have them."""

    def refused(*given):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert run_ranks(lambda rank: rank, 2) == [0, 1]


def test_loopback_that_cannot_be_reached(tmp_path):
    def body() -> int:
        if ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return 77
        return launch(lambda: None, 2)

    ended = Forked(body, tmp_path).wait()
    if ended.status == 77:
        pytest.skip("needs a network namespace of its own")
    assert ended.status == 2
    assert ended.err.startswith("error: ranks meet at 127.0.0.1, which this process cannot reach (")
    assert ended.err.count("\n") == 1


def test_limit_of_processes(tmp_path, monkeypatch):
    """The ranks that could start are ended."""
    module = importlib.import_module("spgnn.comm.launch")
    fork, pids = module._fork, []

    def limited() -> int:
        if len(pids) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        pids.append(fork())
        if pids[-1]:
            (tmp_path / str(pids[-1])).touch()
        return pids[-1]

    monkeypatch.setattr(module, "_fork", limited)
    ended = Forked(lambda: launch(lambda: time.sleep(1000), 3), tmp_path).wait()
    assert ended.status == 2
    assert ended.err.startswith(
        "error: 2 of 3 ranks could start (Resource temporarily unavailable): start fewer, or raise"
    )
    assert ended.err.count("\n") == 1
    started = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(started) == 2
    assert not any(is_alive(pid) for pid in started)


def test_parent_that_ignores_the_end_of_children(tmp_path):
    def body() -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return launch(lambda: int(os.environ["RANK"]) * 3, 2)

    assert Forked(body, tmp_path).wait().status == 3


def test_rank_is_no_rank_of_another_launcher(tmp_path):
    """A library may start ranks from one of mpiexec or srun."""
    outer = {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}
    job = Forked(lambda: launch(lambda: connect("gloo").size, 2), tmp_path, outer)
    assert job.wait().status == 2


def test_ranks_are_started_once(tmp_path, monkeypatch):
    """--nproc inside a job that a launcher has started must say the same number."""

    def body() -> int:
        os.environ.update(RANK="0", WORLD_SIZE="3")
        return main(["--nproc", "2"])

    ended = Forked(body, tmp_path).wait()
    assert ended.status == 2
    assert "--nproc 2" in ended.err
    assert "already started 3" in ended.err
    assert Path(tmp_path, "job.err").read_text().count("\n") == 1
