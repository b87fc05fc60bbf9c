"""A slow link: what it carries takes its time, at least, and arrives as it was sent."""

from __future__ import annotations

import time
from dataclasses import asdict

import pytest
import torch

from spgnn import InputError
from spgnn.comm import Communicator, Pending, RowCounts, connect
from spgnn.testing import run_ranks, throttled
from tests.comm import protocol

NBYTES, GIGABITS, LATENCY = 100_000, 0.02, 0.02
SECONDS = NBYTES * 8 / (GIGABITS * 1e9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_protocol(ranks):
    run_ranks(lambda rank: protocol.check_all(throttled(connect(), 1000, 1e-6)), ranks)


def begin(comm: Communicator, nbytes: int = NBYTES) -> Pending:
    """So many bytes to each peer, and to the rank itself, which costs nothing."""
    counts = RowCounts([nbytes] * comm.size, [nbytes] * comm.size, nbytes)
    send, received = torch.zeros(2, counts.sent, dtype=torch.uint8)
    return comm.alltoallv(send, received, counts)


def seconds_of_exchanges(rank: int) -> list[float]:
    comm = throttled(connect(), GIGABITS, LATENCY)
    pair = comm.subgroup([[0, 1], [2]])
    found = []
    for parts in ([comm], [comm, comm], [comm, pair], [pair, comm, pair]):
        start = time.monotonic()
        for pending in reversed([begin(part) for part in parts]):
            pending.wait()
        found.append(time.monotonic() - start)
    # Rank 0 sends much, rank 1 gets it; rank 2 has no share in it.
    table = [[0, NBYTES, 0], [0, 0, 0], [0, 0, 1]]
    counts = RowCounts(table[rank], [row[rank] for row in table], NBYTES)
    start = time.monotonic()
    rows = (torch.zeros(n, dtype=torch.uint8) for n in (counts.sent, counts.received))
    comm.alltoallv(*rows, counts).wait()
    return [*found, time.monotonic() - start]


def test_exchanges_take_their_time_one_after_the_other():
    for rank, found in enumerate(run_ranks(seconds_of_exchanges, 3)):
        paired = rank < 2
        loads = [2, 4, 2 + paired, 2 + 2 * paired]  # in NBYTES
        for load, taken in zip(loads, found[:-1], strict=True):
            assert taken >= load * SECONDS + LATENCY
        assert found[-1] >= (SECONDS + LATENCY if paired else LATENCY)


def test_beginning_does_not_wait():
    """The link is so slow that the test would never end."""

    def body(rank: int) -> bool:
        comm = throttled(connect(), 1e-9)
        begin(comm)
        begin(comm)
        assert comm.link_seconds == 2 * NBYTES * 8 / (1e-9 * 1e9)
        return comm.agree(rank) == 1

    assert run_ranks(body, 2) == [True, True]


def test_the_account_is_the_same():
    def account(rank: int) -> list[dict[str, float]]:
        comm = connect()
        accounts = []
        for link in (comm, throttled(comm, 10)):
            before = comm.ledger.copy()
            begin(link).wait()
            accounts.append(asdict(comm.ledger.since(before).of("alltoall")))
        return [account | {"seconds": 0.0} for account in accounts]

    for plain, slow in run_ranks(account, 2):
        assert plain == slow


@pytest.mark.parametrize(("gigabits", "latency"), [(0, 0), (1, -1), (float("nan"), 0)])
def test_impossible_links(gigabits, latency):
    with pytest.raises(InputError, match=r"the rate must be above 0, the latency 0 or more"):
        throttled(connect(), gigabits, latency)
