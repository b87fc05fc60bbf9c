"""Ranks that do not agree end with one line that says so, on all of them, and none hangs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from spgnn import InputError
from spgnn.comm import CommunicationError, connect, launch
from spgnn.testing import run_ranks
from tests.comm import quarrels
from tests.comm.jobs import MPIEXEC, PATIENCE, ROOT, Forked, needs_mpi

pytestmark = pytest.mark.usefixtures("clean_environment")


def objection(rank: int, facts: list[dict[str, object]]) -> str | None:
    comm = connect()
    try:
        comm.check_agreement("DistMatrix.build", **facts[rank])
    except InputError as error:
        return str(error)
    return None


AGREED = {"n": 5, "cover": "column", "dtype": torch.float32, "missing": None, "pair": (1, "a")}
X = np.arange(6.0)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_agreement_is_silent(ranks):
    facts = AGREED | {"layout": X, "weights": torch.ones(3, dtype=torch.bfloat16)}
    assert run_ranks(objection, ranks, [facts] * ranks) == [None] * ranks


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            [AGREED, AGREED | {"cover": "row"}, AGREED, AGREED],
            "ranks do not agree on cover of DistMatrix.build: "
            "'column' on ranks 0, 2-3; 'row' on rank 1",
        ),
        (
            [AGREED | {"n": n, "cover": n} for n in (1, 2, 3)],
            "ranks do not agree on cover of DistMatrix.build (and on n): "
            "1 on rank 0; 2 on rank 1; 3 on rank 2",
        ),
        (
            [{"a": None}, {}],
            "ranks do not agree on a of DistMatrix.build: None on rank 0; nothing on rank 1",
        ),
        (
            [{"a": 1}, {"a": 1.0}],
            "ranks do not agree on a of DistMatrix.build: 1 on rank 0; 1.0 on rank 1",
        ),
    ],
)
def test_all_ranks_name_who_holds_what(facts, line):
    assert run_ranks(objection, len(facts), facts) == [line] * len(facts)


@pytest.mark.parametrize(
    "other", [X[::-1].copy(), X.astype(np.float32), X.reshape(2, 3), torch.from_numpy(X)[:5]]
)
def test_arrays_agree_in_dtype_shape_and_contents(other):
    said = run_ranks(objection, 2, [{"layout": X}, {"layout": other}])
    assert said[0] == said[1]
    assert "layout of DistMatrix.build: float64 [6] #" in said[0]


def test_long_facts_are_shortened_but_compared_whole():
    text = "x" * 5000
    said = run_ranks(objection, 2, [{"a": text + "y" + text}, {"a": text + "z" + text}])
    assert said[0] == said[1]
    assert len(said[0]) <= 300


def test_agreement_within_a_group_names_ranks_of_the_job():
    def objection(rank: int) -> str:
        comm = connect().subgroup([[0, 2], [1, 3]])
        with pytest.raises(InputError) as caught:
            comm.check_agreement("plan", width=rank)
        return str(caught.value)

    odd, even = (
        "width of plan: 1 on rank 1; 3 on rank 3",
        "width of plan: 0 on rank 0; 2 on rank 2",
    )
    assert run_ranks(objection, 4) == [f"ranks do not agree on {w}" for w in (even, odd, even, odd)]


def under_debug(rank: int, how: str, group: bool) -> str:
    comm = connect()
    part = comm.subgroup([[0, 1], [2]], name="row") if group else comm
    if group and rank == 2:
        return ""
    usual, different, _ = quarrels.QUARRELS[how]
    quarrels.all_reduce(part)
    with pytest.raises(CommunicationError) as caught:
        (different if rank == 1 else usual)(part)
    return str(caught.value)


@pytest.mark.parametrize("group", [False, True], ids=["world", "row"])
@pytest.mark.parametrize("how", quarrels.QUARRELS)
def test_debug_communicator_names_call_and_ranks(monkeypatch, how, group):
    monkeypatch.setenv("SPGNN_DEBUG", "1")
    said = run_ranks(under_debug, 3, how, group)
    members = said[:2] if group else said
    assert len(set(members)) == 1
    number, name = (2, "row") if group else (2, "world")
    assert members[0].startswith(f"ranks do not agree on call {number} of group {name}: ")
    for words in quarrels.QUARRELS[how][2]:
        assert words in members[0]


def test_debug_communicator_compares_counts(monkeypatch):
    def sends_too_much(rank: int) -> str:
        with pytest.raises(CommunicationError) as caught:
            quarrels.alltoallv(connect(), rows=1 if rank == 1 else 2)
        return str(caught.value)

    monkeypatch.setenv("SPGNN_DEBUG", "1")
    said = run_ranks(sends_too_much, 3)
    assert len(set(said)) == 1
    assert said[0].startswith("rank 1 sends 1 rows to rank 0, which expects 2, in alltoallv(")


# Without it: the line that some rank ends the job with.
IN_VAIN = "rank 1 ended while others wait for it in all_reduce(torch.float32 [4], sum), call"
SILENT = {
    "exit": f"{IN_VAIN} 2 of group world",
    "fewer": f"{IN_VAIN} 4 of group world",
    "fewer in a group": f"{IN_VAIN} 1 of group pair",
    "silence": "waited 1 s in all_reduce(torch.float32 [4], sum), call 2 of group world",
    "sizes": "ranks do not agree on all_reduce(torch.float32 [",
    "widths": "ranks do not agree on alltoallv(torch.float32, ",
}


@pytest.mark.parametrize("how", SILENT)
def test_gloo_ends_with_one_line(tmp_path, monkeypatch, how):
    monkeypatch.setenv("SPGNN_TIMEOUT_SECONDS", "1")
    ended = Forked(lambda: launch(lambda: quarrels.fall_out(how), 3), tmp_path).wait()
    assert ended.status == 1
    assert ended.err.startswith("error: rank ")
    assert ended.err.count("\n") == 1, ended.err
    assert SILENT[how] in ended.err


def test_nccl_is_told_how_long_to_wait(monkeypatch):
    """It waits by itself; what it is told through is tried on gloo, which can be told as well."""

    def waits(rank: int) -> bool:
        comm = connect()
        comm.moves_cuda = True
        comm.settled()
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"(?i)timed out"):
                dist.all_reduce(torch.ones(1))
        return comm.job.timeout == 0.2

    monkeypatch.setenv("SPGNN_TIMEOUT_SECONDS", "0.2")
    assert run_ranks(waits, 2, backend="gloo") == [True, True]


@needs_mpi
@pytest.mark.parametrize(
    ("how", "backend"),
    [
        ("exit", "mpi"),
        pytest.param("fewer", "mpi", marks=pytest.mark.slow),
        pytest.param("exit", "gloo", marks=pytest.mark.slow),
        pytest.param("widths", "mpi", marks=pytest.mark.slow),
    ],
)
def test_mpiexec_ends_with_one_line(how, backend):
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "tests.comm.quarrels", how, backend]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    said = (
        SILENT[how]
        if how != "widths"
        else "ranks do not agree on call 2 of group world: alltoallv("
    )
    assert said in lines[0]
    assert "Traceback" not in done.stderr
