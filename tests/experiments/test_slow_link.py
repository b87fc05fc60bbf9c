"""Throttled links do what the transport does, and take what their formulas say."""

from __future__ import annotations

import pytest
import torch
from paper.slow_link import throttled

from spgnn.comm import connect
from spgnn.comm.traffic import RowCounts
from spgnn.testing import run_ranks
from tests.comm import protocol

# 8 Gb/s are a byte a nanosecond.
FAST, SLOW = (80.0, 1e-4), (8.0, 1e-3)


@pytest.mark.parametrize("clock", ["wall", "processor"])
@pytest.mark.parametrize("overlap", [True, False])
def test_everything_arrives(clock, overlap):
    def check(rank: int) -> None:
        comm = throttled(connect(), 100, ranks_a_node=2, clock=clock, overlap=overlap)
        protocol.check_all(comm)

    run_ranks(check, 3, backend="shm")


def test_seconds_are_those_of_the_formulas():
    """Four ranks on two nodes, whose own work takes no time but where the test says so."""
    worked = [0.0]

    def measure(rank: int) -> dict[str, float]:
        comm = throttled(connect(), *SLOW, inside=FAST, ranks_a_node=2, clock=lambda: worked[0])
        node = comm.subgroup([[0, 1], [2, 3]])
        took = {}

        def clocked(name, operation) -> None:
            start = comm.seconds
            operation()
            took[name] = comm.seconds - start
            comm.barrier()

        rows, ones = torch.zeros(4, 250), [1, 1, 1, 1]
        counts = RowCounts(ones, ones, 1)
        send, received = torch.zeros(10, 250), torch.zeros(10, 250)
        clocked("alltoall", lambda: comm.alltoallv(rows, rows.clone(), counts).wait())
        assert comm.ledger.of("alltoall").seconds == pytest.approx(took["alltoall"])
        # Rank 0 alone has something for rank 1, in its node; the others go on at once.
        one = [10 * (rank == 0) * (peer == 1) for peer in range(4)]
        other = [10 * (rank == 1) * (peer == 0) for peer in range(4)]
        uneven = RowCounts(one, other, 10)
        args = send[: uneven.sent], received[: uneven.received], uneven
        clocked("neighbours", lambda: comm.alltoallv(*args).wait())
        clocked("broadcast", lambda: comm.broadcast(rows, 1).wait())
        clocked("reduce", lambda: comm.reduce(rows, 1).wait())
        clocked("all_reduce", lambda: comm.all_reduce(rows).wait())
        clocked("all_gather", lambda: comm.all_gather(rows[:1], rows, ones))
        clocked("in a node", lambda: node.all_reduce(rows).wait())

        def late() -> None:
            worked[0] += rank * 1.0
            comm.broadcast(rows, 0).wait()

        clocked("late", late)

        def hidden() -> None:
            wait = comm.broadcast(rows, 0)
            worked[0] += 1.0
            wait.wait()

        clocked("hidden", hidden)
        return took

    for rank, took in enumerate(run_ranks(measure, 4, backend="shm")):
        assert took == pytest.approx(
            {
                "alltoall": 2e-3 + 2e-6,
                "neighbours": 1e-4 + 1e-6 if rank < 2 else 0,
                "broadcast": 2e-3 + 4e-6,
                "reduce": 2e-3 + 4e-6,
                "all_reduce": 4e-3 + 6e-6,
                "all_gather": 2e-3 + 3e-6,
                "in a node": 2e-4 + 0.4e-6,
                "late": 3 + 2e-3 + 4e-6,
                "hidden": 1.0,
            },
            abs=1e-8,
        )
