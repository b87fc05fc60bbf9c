"""Ranks that do not agree end with one line that says so, on all of them, and none hangs."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist

from spgnn import Halo, InputError
from spgnn.comm import CommunicationError, connect, failure, guarded, launch, torchdist
from spgnn.comm.failure import Call
from spgnn.comm.torchdist import TorchCommunicator
from spgnn.exchange import EXACT
from spgnn.testing import run_ranks
from tests.comm.jobs import MPIEXEC, Forked, announce, needs_mpi, run_program, wait_for
from tests.comm.misbehaving import QUARRELS, all_reduce, alltoallv, quarrel


def outcome(work: Callable[[], Any]) -> Any:
    """What it returns, or the line with which it is refused."""
    try:
        return work()
    except (InputError, CommunicationError) as error:
        return f"refused: {error}"


def objection(rank: int, facts: list[dict[str, object]]) -> Any:
    return outcome(lambda: connect().check_agreement("DistMatrix.build", **facts[rank]))


AGREED = {"n": 5, "cover": "column", "dtype": torch.float32, "missing": None, "pair": (1, "a")}
X = np.arange(6.0)
LONG = "x" * 5000


@pytest.mark.parametrize("ranks", [1, 3])
def test_agreement_is_silent(ranks):
    facts = AGREED | {"layout": X, "weights": torch.ones(3, dtype=torch.bfloat16)}
    assert run_ranks(objection, ranks, [facts] * ranks) == [None] * ranks


DISAGREED = [
    (
        [AGREED, AGREED | {"cover": "row"}, AGREED, AGREED],
        "cover of DistMatrix.build: 'column' on ranks 0, 2-3; 'row' on rank 1",
    ),
    (
        [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 3, "b": 2}],
        "a of DistMatrix.build (and on b): 1 on rank 0; 2 on rank 1; 3 on rank 2",
    ),
    ([{"a": None}, {}], "a of DistMatrix.build: None on rank 0; nothing on rank 1"),
    ([{"a": 1}, {"a": 1.0}], "a of DistMatrix.build: 1 on rank 0; 1.0 on rank 1"),
    # Arrays agree in dtype, shape and contents; long facts are compared whole.
    *(
        ([{"a": X}, {"a": other}], "a of DistMatrix.build: float64 [6] #")
        for other in (X[::-1].copy(), X.astype(np.float32), X.reshape(2, 3), torch.ones(5))
    ),
    ([{"a": LONG + "y" + LONG}, {"a": LONG + "z" + LONG}], "a of DistMatrix.build: 'xxx"),
]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_ranks_name_who_holds_what(ranks):
    cases = [case for case in DISAGREED if len(case[0]) == ranks]
    found = run_ranks(lambda rank: [objection(rank, facts) for facts, _ in cases], ranks)
    assert all(said == found[0] for said in found)
    for said, (_, words) in zip(found[0], cases, strict=True):
        assert said.startswith(f"refused: ranks do not agree on {words}")
        assert len(said) <= 310


def test_agreement_within_a_group_names_ranks_of_the_job():
    def objection(rank: int) -> str:
        comm = connect().subgroup([[0, 2], [1, 3]])
        return outcome(lambda: comm.check_agreement("plan", width=rank))

    even, odd = (f"width of plan: {r} on rank {r}; {r + 2} on rank {r + 2}" for r in (0, 1))
    said = [f"refused: ranks do not agree on {line}" for line in (even, odd)]
    assert run_ranks(objection, 4) == said * 2


def refuse(when: bool, line: str) -> None:
    if when:
        raise InputError(line)


def test_what_one_rank_decides_or_refuses_holds_on_all():
    def decide(rank: int) -> list[Any]:
        comm = connect()
        return [
            outcome(lambda: comm.on_rank_zero(lambda: f"made by {rank}")),
            outcome(lambda: comm.on_rank_zero(lambda: refuse(True, "no such file"))),
            outcome(lambda: comm.from_rank_zero(lambda: {"rank": rank, "é": [None, 1.5]})),
            outcome(lambda: comm.from_rank_zero(lambda: refuse(True, "nothing there"))),
            outcome(lambda: comm.on_every_rank(lambda: rank)),
            outcome(lambda: comm.on_every_rank(lambda: refuse(rank == 1, "part 1: é is damaged"))),
            outcome(lambda: comm.on_every_rank(lambda: refuse(True, f"no part {rank}"))),
            outcome(lambda: comm.broadcast_value(rank, root=2)),
        ]

    for rank, found in enumerate(run_ranks(decide, 3)):
        on_1 = "" if rank == 1 else "on rank 1: "
        assert found == [
            "made by 0" if rank == 0 else None,
            "refused: no such file",
            {"rank": 0, "é": [None, 1.5]},
            "refused: nothing there",
            rank,
            f"refused: {on_1}part 1: é is damaged",
            f"refused: no part {rank}",
            2,
        ]


def test_debug_communicator_names_call_and_ranks(monkeypatch):
    def body(rank: int) -> list[str]:
        world, said = connect(), []
        for usual, different, _ in QUARRELS.values():
            part = world.subgroup([[0, 1], [2]], name="row")
            if rank < 2:
                all_reduce(part)
                said.append(outcome(lambda: (different if rank == 1 else usual)(part)))  # noqa: B023
        all_reduce(world)
        said.append(outcome(lambda: all_reduce(world, 8 if rank == 1 else 4)))
        halo = Halo.build(torch.tensor([[(rank + 1) % 3], [rank]]), [0, 1, 2], world)
        x = torch.ones(1, 2, requires_grad=True)
        for there in (halo, lambda x: halo._map.forward(x.detach(), EXACT)):
            Z = halo(x).sum()
            said.append(outcome(lambda: Z.backward() if rank == 1 else there(x)))  # noqa: B023
        return said

    monkeypatch.setenv("SPGNN_DEBUG", "1")
    first, second, third = run_ranks(body, 3)
    assert first == second
    for line, (_, _, words) in zip(first, QUARRELS.values(), strict=False):
        assert line.startswith("refused: ranks do not agree on call 2 of group row: ")
        assert all(word in line for word in words)
    assert first[-3:] == third
    assert "which call comes next: the operand of a product on ranks 0, 2; alltoallv(" in third[1]
    assert re.search(r"planned in call (\d+)\) on .* call \1, backwards\) on rank 1$", third[2])
    assert "of group world: all_reduce(torch.float32 [4], sum) on ranks 0, 2; " in third[0]


def test_debug_communicator_compares_counts(monkeypatch):
    monkeypatch.setenv("SPGNN_DEBUG", "1")
    sends = lambda rank: outcome(lambda: alltoallv(connect(), rows=1 if rank == 1 else 2))  # noqa: E731
    said = run_ranks(sends, 3)
    assert len(set(said)) == 1
    assert "rank 1 sends 1 rows to rank 0, which expects 2, in alltoallv(" in said[0]


# Without it: the line that some rank ends the job with.
IN_VAIN = "rank 1 ended while others wait for it in all_reduce(torch.float32 [4], sum), call"
SILENT = {
    "exit": f"{IN_VAIN} 2 of group world",
    "fewer": f"{IN_VAIN} 4 of group world",
    "fewer in a group": f"{IN_VAIN} 1 of group pair",
    "silence": "waited 1 s in all_reduce(torch.float32 [4], sum), call 2 of group world for rank 1 "
    "(has not begun it)",
    "another group": "waited 1 s in all_reduce(torch.float32 [4], sum), call 3 of group world for "
    "rank 1 (waits in all_reduce(torch.float32 [4], sum), call 1 of group pair)",
    "sizes": "ranks do not agree on all_reduce(torch.float32 [",
    "widths": "ranks do not agree on alltoallv(torch.float32, ",
}


@pytest.mark.parametrize("how", SILENT)
def test_a_job_ends_with_one_line(tmp_path, monkeypatch, how):
    monkeypatch.setenv("SPGNN_TIMEOUT_SECONDS", "1")
    ended = Forked(lambda: launch(lambda: quarrel(how), 3), tmp_path).wait()
    assert (ended.status, ended.err.count("\n")) == (1, 1), ended.err
    assert ended.err.startswith("error: rank ")
    assert SILENT[how] in ended.err


class Mark(NamedTuple):
    """An event of a stream."""

    is_over: bool

    def query(self) -> bool:
        return self.is_over

    def synchronize(self) -> None:
        assert self.is_over


def hang(how: str) -> None:
    """A stream of rank 1 stays behind, and no host is blocked in a call, as with NCCL."""
    comm = connect("gloo")
    with guarded(comm):
        marks = cycle([how != "device" or comm.rank != 1, False])
        pair = comm.subgroup([[0, 1], [2]], name="pair")
        torchdist._mark = lambda: Mark(next(marks))
        TorchCommunicator._on_stream = lambda self, buffer: True
        comm.settled()
        done = SimpleNamespace(wait=lambda: None)
        for part in (comm, pair):
            part.process_group = SimpleNamespace(allreduce=lambda *arguments: done)
        if comm.rank == 1 and how == "in a group":
            all_reduce(pair)
        elif comm.rank != 1 or how == "device":
            all_reduce(comm)
            if comm.rank == 0:
                all_reduce(pair)
        time.sleep(60)  # for the device


HUNG = {
    "host": [r"call 2 of group world for rank 1 \(has not begun it\)"],
    "device": [r"call 2 of group world for rank 1 \(its device has not come to it\)"],
    "in a group": [
        r"call 2 of group world for rank 1 \(waits in .*, call 1 of group pair\)",
        r"call 1 of group pair for rank 0 \(its device waits in .*, call 2 of group world\)",
    ],
}


@pytest.mark.parametrize("how", HUNG)
def test_a_rank_that_hangs_under_nccl_is_named(tmp_path, monkeypatch, how):
    """By whoever waits for it on a stream; stand-ins take the places of stream and group."""
    monkeypatch.setenv("SPGNN_TIMEOUT_SECONDS", "0.4")
    monkeypatch.setattr(failure, "STREAM_SECONDS", 0.1)
    job = torchdist.TorchJob
    monkeypatch.setattr(torchdist, "TorchJob", lambda *given: job(*given[:-1], "nccl"))
    ended = Forked(lambda: launch(lambda: hang(how), 3), tmp_path).wait()
    assert (ended.status, ended.err.count("\n")) == (1, 1), ended.err
    line = r"error: rank \d: waited 0.4 s in all_reduce\(torch.float32 \[4\], sum\), "
    assert any(re.fullmatch(line + words, ended.err.strip()) for words in HUNG[how]), ended.err


def test_nccl_connects_ranks_when_a_group_is_made(monkeypatch):
    """By a message of each kind, which nobody counts; gloo's group plays its part."""

    def run(rank: int) -> tuple[dict[str, int], list[str]]:
        comm = connect()
        assert comm.subgroup([[0, 1], [2]]).apart().size == 2 - rank // 2
        return comm.job.begun, list(comm.ledger.operations)

    monkeypatch.setattr(torchdist, "_mark", lambda: Mark(True))
    monkeypatch.setattr(TorchCommunicator, "_on_stream", lambda self, buffer: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    pair = {"world": 2, "world/2:0": 2, "world/2:0/2:apart": 1}
    assert run_ranks(run, 3, backend="gloo") == [(pair, [])] * 2 + [({"world": 2}, [])]


def is_stopped(process: int) -> bool:
    """Whether all of its threads are: each stops when it is next at work."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return all((t / "stat").read_text().rpartition(") ")[2][0] == "T" for t in threads)


def test_what_all_ranks_have_begun_and_who_does_not_answer(tmp_path, monkeypatch):
    """A call that does not end though all have come to it, and a rank that is stopped."""
    monkeypatch.setattr(failure, "ANSWER_SECONDS", 0.5)

    def ask(rank: int) -> str:
        comm = connect("gloo")
        comm.barrier()
        call = Call(comm.group, 2, "barrier")
        comm.job.timeout = 9.0
        lines = [comm.job.waited_in(Call(comm.group, 1, "barrier"))]
        announce(tmp_path / str(rank), str(os.getpid()))
        if rank == 1:
            return comm.agree(0)
        wait_for((tmp_path / "1").exists)
        other = int((tmp_path / "1").read_text())
        os.kill(other, signal.SIGSTOP)
        wait_for(lambda: is_stopped(other))
        lines.append(comm.job.waited_in(call))
        os.kill(other, signal.SIGCONT)
        comm.agree(0)
        return lines

    both, _ = run_ranks(ask, 2, backend="gloo")
    assert both == [
        "waited 9 s in barrier, call 1 of group world, which all its ranks have begun: do messages "
        "get through?",
        "waited 9 s in barrier, call 2 of group world for rank 0 (has not begun it), "
        "rank 1 (no answer)",
    ]


def test_nccl_is_told_how_long_to_wait(monkeypatch):
    """It waits by itself; what it is told through is tried on gloo, which can be told as well.

    Longer than we do, who say more.
    """

    def waits(rank: int) -> bool:
        comm = connect()
        comm.moves_cuda = True
        comm.settled()
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"(?i)timed out"):
                dist.all_reduce(torch.ones(1))
        return comm.job.timeout == 0.2

    monkeypatch.setenv("SPGNN_TIMEOUT_SECONDS", "0.2")
    monkeypatch.setattr(torchdist, "WATCHDOG_SECONDS", 0.0)
    assert run_ranks(waits, 2, backend="gloo") == [True, True]


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "backend", "words"),
    [
        ("exit", "gloo", SILENT["exit"]),
        ("fewer", "mpi", SILENT["fewer"]),
        ("exit", "mpi", SILENT["exit"]),
        ("widths", "mpi", "ranks do not agree on call 2 of group world: alltoallv("),
    ],
)
def test_mpiexec_ends_with_one_line(how, backend, words):
    mpiexec = [str(MPIEXEC), "-n", "2", sys.executable, "-m"]
    ended = run_program(mpiexec, "quarrel", how, backend)
    assert ended.status != 0
    lines = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, ended.err
    assert words in lines[0]
    assert "Traceback" not in ended.err
