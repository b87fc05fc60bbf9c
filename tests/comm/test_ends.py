"""A job ends although something is on its way: calls that were told, exchanges nobody waits for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spgnn.comm import launch
from tests.comm import ending
from tests.comm.jobs import MPIEXEC, PATIENCE, ROOT, Ended, Forked, needs_mpi

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


@pytest.mark.parametrize("end", ["close", "exit"])
@pytest.mark.parametrize("how", ["begun", "begun alone"])
def test_gloo_ends(tmp_path, how, end):
    """It leaves behind what nobody waits for."""
    ended = Forked(lambda: launch(lambda: ending.run(how, end), 3), tmp_path).wait()
    assert ended == Ended(0, "", "")
