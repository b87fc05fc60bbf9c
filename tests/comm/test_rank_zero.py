"""What rank 0 decides reaches all ranks, and what goes wrong on any rank is refused on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spgnn import InputError
from spgnn.comm import broadcast_value, connect, from_rank_zero, on_every_rank, on_rank_zero
from spgnn.testing import run_ranks


def outcome(work: Callable[[], Any]) -> Any:
    """What it returns, or the line with which it is refused."""
    try:
        return work()
    except InputError as error:
        return f"refused: {error}"


def refuse(when: bool, line: str, value: Any = None) -> Any:
    if when:
        raise InputError(line)
    return value


def decide(rank: int) -> list[Any]:
    comm = connect()
    return [
        outcome(lambda: on_rank_zero(comm, lambda: f"made by {rank}")),
        outcome(lambda: on_rank_zero(comm, lambda: refuse(True, "no such file"))),
        outcome(lambda: from_rank_zero(comm, lambda: {"rank": rank, "é": [None, 1.5]})),
        outcome(lambda: from_rank_zero(comm, lambda: refuse(True, "nothing there"))),
        outcome(lambda: on_every_rank(comm, lambda: rank)),
        outcome(lambda: on_every_rank(comm, lambda: refuse(rank == 1, "part 1: é is damaged"))),
        outcome(lambda: on_every_rank(comm, lambda: refuse(True, f"no part {rank}"))),
        outcome(lambda: broadcast_value(comm, rank, root=2)),
    ]


def test_all_ranks_have_one_answer():
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
