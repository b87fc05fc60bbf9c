"""Rows that are pushed arrive where they are in the halo, when they may be used, at their price."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.loader.ranks import Boundary
from spgnn.loader.stale import Push
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

N, ITERATIONS = 60, 7
WIDTHS = (3, 5)


def drawn(rank: int, iteration: int, own: int) -> np.ndarray:
    """Own rows that a rank makes in an iteration; sometimes none."""
    rng = np.random.default_rng(100 * rank + iteration)
    return rng.permutation(own)[: rng.integers(0, own + 1) if own else 0]


def contents(rows: np.ndarray, iteration: int, layer: int) -> torch.Tensor:
    return torch.from_numpy(
        (rows[:, None] + 1000.0 * iteration + 0.25 * layer + np.zeros(WIDTHS[layer])).astype(
            np.float32
        )
    )


def expected(A, layout, rank, degrees, most, pause) -> dict[tuple[int, int], list[int]]:
    """(layer, iteration) to the rows of others that a rank gets of them, by brute force."""
    first, last = layout.range(rank)
    columns = np.unique(A[first:last].indices)
    found: dict[tuple[int, int], list[int]] = {}
    for layer in range(2):
        sent: dict[int, int] = {}
        for iteration in range(ITERATIONS):
            got = found[layer, iteration] = []
            for peer in range(layout.parts):
                low, high = layout.range(peer)
                if peer == rank or low == high:
                    continue
                made = low + drawn(peer, iteration + 50 * layer, high - low)
                wanted = [v for v in made if v in columns]
                wanted = [v for v in wanted if iteration - sent.get(v, -99) >= pause]
                wanted.sort(key=lambda v: (-degrees[v], v))
                got += wanted[:most]
                sent |= dict.fromkeys(wanted[:most], iteration)
    return found


def check(rank: int, parts: int, delay: int, most: int, pause: int) -> None:
    comm = connect()
    A = random_matrix(N, 0.05, 3, weighted=False)
    layout = uneven_layout(N, parts, 2)
    first, last = layout.range(rank)
    boundary = Boundary.build(block_row(A, first, last), layout, comm)
    columns = np.unique(A[first:last].indices)
    outside = columns[(columns < first) | (columns >= last)]
    assert boundary.halo.tolist() == outside.tolist()
    asked = boundary.number(torch.arange(N))
    assert asked.tolist() == [outside.tolist().index(v) if v in outside else -1 for v in range(N)]
    degrees = np.diff(A.indptr)
    before = comm.ledger.copy()
    push = Push(
        boundary,
        WIDTHS,
        torch.float32,
        delay=delay,
        most=most,
        degrees=torch.from_numpy(degrees[first:last]),
        comm=comm,
        pause=pause,
    )
    coming = expected(A, layout, rank, degrees, most, pause)
    for now in range(ITERATIONS):
        seen = {}
        for layer, made, halo, rows in push.arrived(now):
            assert made == now - delay
            seen[layer] = made
            rows_of = boundary.halo[halo].numpy()
            assert sorted(rows_of.tolist()) == sorted(coming[layer, made])
            assert torch.equal(rows, contents(rows_of, made, layer))
        assert len(seen) == (2 if now >= delay else 0)
        made_now = [drawn(rank, now + 50 * layer, last - first) for layer in range(2)]
        push.begin(
            now,
            [
                (torch.from_numpy(rows), contents(first + rows, now, layer))
                for layer, rows in enumerate(made_now)
            ],
        )
    push.drain()
    moved = comm.ledger.since(before).of("alltoall")
    assert (push.sent_bytes, push.received_bytes) == (moved.sent_bytes, moved.received_bytes)
    with pytest.raises(InputError, match="widths"):
        push.begin(99, [(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 3))])


def check_all(rank: int, parts: int) -> None:
    for delay, most, pause in ((1, N, 1), (2, 3, 1), (3, N, 3), (1, 2, 2), (5, 0, 1)):
        check(rank, parts, delay, most, pause)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_rows_arrive_in_time_and_in_full(parts):
    run_ranks(check_all, parts, parts)


def test_a_delay_is_one_at_least():
    comm = connect()
    A = random_matrix(8, 0.2, 0, weighted=False)
    layout = uneven_layout(8, 1, 0)
    boundary = Boundary.build(block_row(A, 0, 8), layout, comm)
    with pytest.raises(InputError, match="delay"):
        Push(boundary, [1], torch.float32, delay=0, most=1, degrees=torch.ones(8), comm=comm)
