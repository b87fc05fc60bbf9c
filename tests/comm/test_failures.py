"""When one rank fails, all end within ten seconds with its number and message, and none is left."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import re
import signal
import sys
import time
import weakref
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch

from spgnn import InputError, signals
from spgnn.comm import SoloCommunicator, connect, guarded, launch
from spgnn.comm.failure import Lifelines
from spgnn.testing import run_ranks
from tests.comm import misbehaving
from tests.comm.jobs import (
    MPIEXEC,
    NEEDS_MPI,
    ROOT,
    Ended,
    Forked,
    is_alive,
    needs_mpi,
    on_their_own,
    run_program,
    slowness,
    wait_for,
)
from tests.comm.misbehaving import MESSAGE

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
UNDER_MPI = [str(MPIEXEC), "-n", "2", sys.executable]
BOUND_SECONDS = 10.0
ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated (SIGTERM)"}
CASES = [
    ("input", "collective", 2),
    ("error", "computing", 0),
    ("kill", "computing", 1),
    ("kill", "sleeping", 0),
    ("input", "exchanging", 1),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [
            ("input", "sleeping", 0),
            ("input", "computing", 1),
            ("error", "collective", 0),
            ("kill", "collective", 1),
            ("kill", "computing", 0),
            ("kill", "exchanging", 0),
        ]
    ),
]


def check_none_left(directory: Path, ranks: int, since: float | None = None) -> None:
    """All ranks have ended in time."""
    since = float((directory / "failed").read_text()) if since is None else since
    pids = [int((directory / str(rank)).read_text()) for rank in range(ranks)]
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    taken = time.monotonic() - since
    assert taken < BOUND_SECONDS or taken < BOUND_SECONDS * slowness()


def check_message(err: str, how: str, victim: int) -> None:
    """One line names the rank; only an error of the program shows where it happened."""
    own = [part for part in err.split("Traceback (most recent call last)")[1:] if MESSAGE in part]
    assert len(own) == (how in ("error", "unguarded"))
    if how != "kill":
        said = re.findall(r"^error: rank (\d+): (.*)$", err, re.MULTILINE)
        assert said == [(str(victim), ("" if how == "input" else "LookupError: ") + MESSAGE)]


@pytest.mark.parametrize(("how", "where", "victim"), CASES)
@pytest.mark.parametrize("launched", [True, False])
def test_a_failure_ends_all_ranks_in_time(tmp_path, launched, how, where, victim):
    """Under the local launcher, and where nobody supervises them, as under srun."""
    body = lambda: misbehaving.fail(tmp_path, how, where, victim)  # noqa: E731
    if launched:
        ended = Forked(lambda: launch(body, 3), tmp_path).wait()
        err, status = ended.err, ended.status
        expected = {"input": 2, "kill": 128 + signal.SIGKILL}.get(how, 1)
    else:
        each = on_their_own(body, tmp_path, 3)
        err, status = "".join(end.err for end in each), 0 in [end.status for end in each]
        expected = False
    check_none_left(tmp_path, 3)
    assert status == expected
    if how == "kill":
        said = f"error: rank {victim} was killed by SIGKILL\n" if launched else "lost contact"
        assert err == said if launched else said in err
    check_message(err, how, victim)


def test_a_rank_that_listens_late_still_knows_why_rank_0_has_ended(tmp_path, monkeypatch):
    """On a busy machine; it would take rank 0 for lost."""
    hear = Lifelines._hear

    def late(self: Lifelines, *given: object) -> None:
        if os.environ["RANK"] == "1":
            time.sleep(2)
        hear(self, *given)

    monkeypatch.setattr(Lifelines, "_hear", late)
    ended = on_their_own(lambda: misbehaving.fail(tmp_path, "input", "sleeping", 0), tmp_path, 3)
    assert [end.err for end in ended] == [f"error: rank 0: {MESSAGE}\n", "", ""]


class Slow:
    """A stream that takes its time, as on a machine with much else to do."""

    def __init__(self, begun: Path) -> None:
        self._begun = begun

    def write(self, text: str) -> int:
        self._begun.touch()
        time.sleep(1)
        return os.write(2, text.encode())

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("first", "fails_too"), [(0, True), (1, False)])
def test_the_first_line_is_written_before_any_other_rank_ends(tmp_path, first, fails_too):
    """The launcher kills whoever is left a moment after the first rank has ended."""

    def body() -> None:
        comm = connect()
        with guarded(comm):
            if comm.rank == first:
                sys.stderr = Slow(tmp_path / "begun")
                raise InputError(MESSAGE)
            if fails_too:
                wait_for((tmp_path / "begun").exists)
                raise InputError("so is the eighth")
            time.sleep(100)

    ended = Forked(lambda: launch(body, 2), tmp_path).wait()
    assert (ended.status, ended.err) == (2, f"error: rank {first}: {MESSAGE}\n")


LAUNCHERS = {"torchrun": TORCHRUN, "mpiexec": UNDER_MPI}
# Interpreters are started anew: all but one is left to the slow tests.
LONGER = [("input", "collective"), ("kill", "computing"), ("error", "computing")]


@pytest.mark.parametrize(
    ("launcher", "how", "where"),
    [
        pytest.param("mpiexec", "unguarded", "collective", marks=NEEDS_MPI),
        *(
            pytest.param(launcher, *case, marks=[*NEEDS_MPI, pytest.mark.slow])
            for launcher in LAUNCHERS
            for case in [*LONGER, ("input", "exchanging")]
        ),
    ],
)
def test_under_other_launchers(tmp_path, launcher, how, where):
    ended = run_program([*LAUNCHERS[launcher], "-m"], "fail", tmp_path, how, where, 1)
    check_none_left(tmp_path, 2)
    check_message(ended.err, how, 1)
    assert ended.status != 0


@pytest.mark.parametrize(
    ("ranks", "numbers", "to_all"),
    [
        (3, [signal.SIGKILL], False),
        (3, [signal.SIGTERM], False),
        # Batch systems send it to the launcher and to all ranks, and perhaps again; so does Ctrl-C.
        (3, [signal.SIGINT], True),
        (5, [signal.SIGINT, signal.SIGTERM], True),
        pytest.param(16, [signal.SIGTERM, signal.SIGTERM], True, marks=pytest.mark.slow),
    ],
)
def test_signals_to_the_launcher_end_all_ranks(tmp_path, ranks, numbers, to_all):
    body = lambda: misbehaving.fail(tmp_path, "kill", "collective", 99)  # noqa: E731
    job = Forked(lambda: launch(body, ranks), tmp_path)
    wait_for(lambda: all((tmp_path / str(rank)).exists() for rank in range(ranks)))
    start = time.monotonic()
    for number in numbers:
        os.killpg(job.pid, number) if to_all else job.signal(number)
        time.sleep(0.02)
    ended = job.wait()
    check_none_left(tmp_path, ranks, start)
    if numbers == [signal.SIGKILL]:
        assert ended.status == -signal.SIGKILL
    else:
        said = f"error: {ENDINGS[numbers[0]]}, and all ranks with it\n"
        assert ended == Ended(128 + numbers[0], "", said)


@pytest.mark.parametrize("number", ENDINGS)
def test_a_program_that_is_asked_to_end_starts_no_further_ranks(tmp_path, number):
    """Not even where it goes on when ranks fail."""

    def program() -> None:
        for attempt in range(3):
            with suppress(RuntimeError):
                run_ranks(lambda rank: misbehaving.fail(tmp_path, "kill", "collective", 99), 2)
            (tmp_path / f"went on after {attempt}").touch()

    job = Forked(program, tmp_path)
    wait_for(lambda: all((tmp_path / str(rank)).exists() for rank in range(2)))
    job.signal(number)
    ended = job.wait()
    status = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM}[number]  # KeyboardInterrupt
    assert ended == Ended(status, "", f"error: {ENDINGS[number]}, and all ranks with it\n")
    assert not [*tmp_path.glob("went on*")]


@pytest.mark.parametrize("number", ENDINGS)
def test_a_signal_that_comes_while_ranks_are_started(tmp_path, monkeypatch, number):
    """It waits until all of them can be ended in good order; they cannot meet yet."""
    launcher = importlib.import_module("spgnn.comm.launch")
    fork = launcher._fork

    def signalled() -> int:
        pid = fork()
        if pid:
            os.kill(os.getpid(), number)
        return pid

    monkeypatch.setattr(launcher, "_fork", signalled)
    ended = Forked(lambda: launch(lambda: time.sleep(1000), 3), tmp_path).wait()
    assert ended == Ended(128 + number, "", f"error: {ENDINGS[number]}, and all ranks with it\n")


@pytest.mark.parametrize(
    ("backend", "ranks", "ended", "watched"),
    [
        ("shm", 2, [0], False),
        ("shm", 2, [1], True),
        ("shm", 4, [0], True),
        ("shm", 3, [0, 1], False),
        ("gloo", 2, [0], False),
    ],
)
def test_a_rank_that_ends_one_call_early(tmp_path, backend, ranks, ended, watched):
    """Who waits for it says so at once, though nothing more is to be heard from anybody."""
    ways = [lambda: None, sys.exit]

    def body() -> None:
        comm = connect(backend)
        with guarded(comm) if watched else nullcontext():
            ones = torch.ones(10)
            comm.all_reduce(ones).wait()
            if comm.rank in ended:
                return ways[watched]()
            comm.all_reduce(ones).wait()

    job = Forked(lambda: launch(body, ranks), tmp_path).wait(60)
    call = "all_reduce(torch.float32 [10], sum), call 2 of group world"
    line = rf"error: rank \d: rank {ended} ended while others wait for it in "
    assert re.fullmatch(line + re.escape(call) + "\n", job.err), job
    assert job.status == 1


def test_rank_alone_in_its_group_ends_all(tmp_path):
    def body() -> None:
        comm = connect()
        part = comm.subgroup([[0], [1, 2]])
        if comm.rank == 0:
            part.fail("the group is too small", status=5)
        comm.barrier()

    ended = Forked(lambda: launch(body, 3), tmp_path).wait()
    assert ended == Ended(5, "", "error: rank 0: the group is too small\n")


# Ends with something under way, and of jobs of one rank.


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "how", "way"),
    [
        (2, "begun and called", "close"),
        *(
            pytest.param(3, how, way, marks=pytest.mark.slow)
            for how in ("called", "begun")
            for way in ("close", "exit")
        ),
    ],
)
def test_mpi_has_nothing_on_its_way_when_it_is_finalised(ranks, how, way):
    """Else it hangs, or reads memory that is gone."""
    mpiexec = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-m"]
    assert run_program(mpiexec, "end", how, way) == Ended(0, "", "")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("way", ["exit", "close"])
def test_mpi_names_a_call_that_can_never_be_complete(way):
    ended = run_program([*UNDER_MPI, "-m"], "end", "begun alone", way)
    assert ended.status != 0
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    call = "alltoallv(torch.float32, 4 bytes a row), call 1 of group world"
    assert lines == [f"error: rank 0: rank 1 ended while others wait for it in {call}"]


@pytest.mark.parametrize(
    ("how", "way", "backend"),
    [("begun", "close", "shm"), ("begun alone", "exit", "gloo"), ("begun", "exit", "gloo")],
)
def test_nobody_waits_for_what_was_left_behind(tmp_path, how, way, backend):
    ended = Forked(lambda: launch(lambda: misbehaving.end(how, way, backend), 3), tmp_path).wait()
    assert ended == Ended(0, "", "")


def test_nothing_refers_to_a_job_that_has_ended(tmp_path):
    """Or memory that ranks share outlives the interpreter, and nanobind complains of leaks."""

    def body() -> None:
        atexit._clear()
        memory = weakref.ref(connect("shm")._memory)
        atexit._run_exitfuncs()
        gc.collect()
        assert memory() is None

    assert Forked(lambda: launch(body, 2), tmp_path).wait() == Ended(0, "", "")


@pytest.mark.slow
def test_a_library_program_that_closes_nothing_ends_in_silence(tmp_path):
    """It keeps its matrix and what autograd made of it."""
    program = (
        "import os, scipy.sparse as sp, torch\n"
        "from spgnn import CSR, DistMatrix, Mesh, RowLayout, connect\n"
        "comm = connect()\n"
        "layout = RowLayout.even(6, comm.size)\n"
        "first, last = layout.range(comm.rank)\n"
        "rows = CSR.from_scipy(sp.identity(6, 'float32', 'csr')[::-1][first:last])\n"
        "matrix = DistMatrix.build(rows, layout, Mesh.grid(comm))\n"
        "def use(): return matrix @ torch.ones(last - first, 2)\n"
        "print(int(use().sum()))\n"
        "loss = (matrix @ torch.ones(last - first, 2, requires_grad=True)).sum()\n"
    )
    ended = on_their_own(
        lambda: os.execv(sys.executable, [sys.executable, "-c", program]),
        tmp_path,
        2,
        PYTHONPATH=str(ROOT),
        TORCH_CPP_LOG_LEVEL="ERROR",
    )
    assert ended == [Ended(0, "6\n", "")] * 2


def busy_in_c() -> None:
    """The main thread comes to no handler: signals wake only what was not told to restart."""
    signal.siginterrupt(signal.SIGTERM, False)
    read, _ = os.pipe()
    ctypes.CDLL(None).read(read, ctypes.create_string_buffer(1), 1)


class Lingering:
    """Python drops whatever is raised in its finaliser."""

    def __del__(self) -> None:
        for _ in range(10**6):
            pass


@pytest.mark.parametrize("where", ["Python", "finalisers", "C"])
def test_one_rank_is_terminated(tmp_path, where):
    """It says so, and removes what it was writing if it comes to that."""
    spill = tmp_path / "spill"

    def body() -> None:
        signals.END_SECONDS = 0.2
        comm = connect()
        assert isinstance(comm, SoloCommunicator)
        with guarded(comm):
            spill.touch()
            try:
                while where == "finalisers":
                    Lingering()
                busy_in_c() if where == "C" else time.sleep(1000)
            finally:
                spill.unlink()
                raise RuntimeError("the signal came in the middle of what this would undo")

    job = Forked(body, tmp_path)
    wait_for(spill.exists)
    job.signal(signal.SIGTERM)
    assert job.wait() == Ended(143, "", "error: terminated (SIGTERM)\n")
    assert where == "C" or not spill.exists()


def test_a_signal_to_a_fork_of_a_guarded_process_is_its_own(tmp_path):
    def body() -> int:
        with guarded(connect()):
            child = os.fork()
            if child == 0:
                time.sleep(1000)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
        return -os.waitstatus_to_exitcode(status)

    assert Forked(body, tmp_path).wait() == Ended(signal.SIGTERM, "", "")


def test_ranks_die_with_torchrun_while_torch_is_imported():
    program = (
        "import ctypes, sys\n"
        "class Torch:\n"
        "    def find_spec(name, *rest):\n"
        "        if name == 'torch':\n"
        "            number = ctypes.c_int()\n"
        "            ctypes.CDLL(None).prctl(2, ctypes.byref(number))\n"  # PR_GET_PDEATHSIG
        "            sys.exit(number.value)\n"
        "sys.meta_path.insert(0, Torch)\n"
        "import os, runpy\n"
        "sys.path.insert(0, os.path.dirname(sys.argv[1]))\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    for more, number in ({"TORCHELASTIC_RUN_ID": "7"}, signal.SIGKILL), ({}, 0):
        script = [sys.executable, "-c", program, str(ROOT / "experiments" / "gcn.py")]
        assert run_program(script, **more).status == number
        library = [sys.executable, "-c", program.replace("import os, runpy", "import spgnn, torch")]
        assert run_program(library, **more).status == 0  # of a program that it is a guest of, too
