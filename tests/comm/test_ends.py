"""A job ends although something is on its way: calls that were told, exchanges nobody waits for."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

from spgnn import signals
from spgnn.comm import SoloCommunicator, connect, guarded, launch
from tests.comm import ending
from tests.comm.jobs import (
    MPIEXEC,
    PATIENCE,
    ROOT,
    Ended,
    Forked,
    free_port,
    is_alive,
    needs_mpi,
    wait_for,
)

pytestmark = pytest.mark.usefixtures("clean_environment")
MORE = [(how, end) for how in ("told", "begun") for end in ("close", "exit")]


def under_mpiexec(ranks: int, *arguments: str) -> Ended:
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "tests.comm.ending", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@needs_mpi
@pytest.mark.parametrize(
    ("ranks", "how", "end"),
    [
        (2, "begun and told", "close"),
        *(pytest.param(3, *more, marks=pytest.mark.slow) for more in MORE),
    ],
)
def test_mpi_has_nothing_on_its_way_when_it_is_finalised(ranks, how, end):
    """Else it hangs, or reads memory that is gone."""
    assert under_mpiexec(ranks, how, end) == Ended(0, "", "")


@needs_mpi
@pytest.mark.parametrize("end", ["exit", pytest.param("close", marks=pytest.mark.slow)])
def test_mpi_says_what_can_never_be_complete(end):
    ended = under_mpiexec(2, "begun alone", end)
    assert ended.status != 0
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    call = "alltoallv(torch.float32, 4 bytes a row), call 1 of group world"
    assert lines == [f"error: rank 0: rank 1 ended while others wait for it in {call}"]


@needs_mpi
def test_memory_that_mpi_shares_has_no_name():
    """It would be left behind by a job that is killed."""
    program = (
        "from spgnn.comm import connect\n"
        "comm = connect('mpi')\n"
        "shared = [line for line in open('/proc/self/maps') if 'mpich_shm_' in line]\n"
        "named = [line for line in shared if not line.endswith('(deleted)\\n')]\n"
        "number = comm.agree(len(named), 'sum')\n"
        "if comm.rank == 0: print(len(shared) > 0, number)\n"
    )
    done = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 0\n", "")


@pytest.mark.parametrize("end", ["close", "exit"])
@pytest.mark.parametrize("how", ["begun", "begun alone"])
def test_gloo_ends(tmp_path, how, end):
    """It leaves behind what nobody waits for."""
    ended = Forked(lambda: launch(lambda: ending.run(how, end), 3), tmp_path).wait()
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
def test_last_words_of_a_library_program(tmp_path):
    """It keeps its matrix and what autograd made of it, and ends without closing anything."""
    program = tmp_path / "program.py"
    program.write_text(
        "import scipy.sparse as sp\n"
        "import torch\n"
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
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(free_port())
    pipe, quiet = subprocess.PIPE, {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    ranks = [
        subprocess.Popen(
            [sys.executable, program],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                **quiet,
                **place,
                "RANK": rank,
                "LOCAL_RANK": rank,
            },
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for rank in "01"
    ]
    assert [rank.communicate(timeout=PATIENCE) for rank in ranks] == [("6\n", "")] * 2


def busy_in_c() -> None:
    """The main thread comes to no handler: signals wake only what was not told to restart."""
    signal.siginterrupt(signal.SIGTERM, False)
    read, _ = os.pipe()
    ctypes.CDLL(None).read(read, ctypes.create_string_buffer(1), 1)


@pytest.mark.parametrize("outside", [False, True], ids=["in Python", "in C"])
def test_one_rank_is_terminated(tmp_path, outside):
    """It says so, and removes what it was writing if it comes to that."""
    spill = tmp_path / "spill"

    def body() -> None:
        signals.END_SECONDS = 0.2
        comm = connect()
        assert isinstance(comm, SoloCommunicator)
        with guarded(comm):
            spill.touch()
            try:
                if outside:
                    busy_in_c()
                time.sleep(1000)
            finally:
                spill.unlink()

    job = Forked(body, tmp_path)
    wait_for(spill.exists)
    job.signal(signal.SIGTERM)
    assert job.wait() == Ended(143, "", "error: terminated (SIGTERM)\n")
    assert spill.exists() == outside


def test_forked_process_of_a_guarded_one(tmp_path):
    """A signal to it is its own."""

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
        "import spgnn, torch\n"
    )
    command = [sys.executable, "-c", program]
    for more, number in ({"TORCHELASTIC_RUN_ID": "7"}, signal.SIGKILL), ({}, 0):
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, check=False)
        assert done.returncode == number


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 1.0, 3.0])
def test_torchrun_is_killed_just_after_its_ranks_appear(tmp_path, pause):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    more = ["--nproc-per-node", "2", "-m", "tests.comm.failing", str(tmp_path)]
    job = subprocess.Popen(
        [*torchrun, *more, "kill", "computing", "7"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    ranks: list[int] = []

    def have_begun() -> bool:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        ranks[:] = map(int, children)
        return len(ranks) == 2

    wait_for(have_begun)
    time.sleep(pause)
    job.kill()
    job.wait()
    wait_for(lambda: not any(is_alive(rank) for rank in ranks), patience=90.0)
