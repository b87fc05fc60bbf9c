"""Rows that are sent once they have moved, against an oracle that remembers what was sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, Mesh
from spgnn.comm import connect
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Codec, CodecSetting, Step
from spgnn.exchange.approximation import Errors
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.wires.single import begin, with_codec

N, F, EPOCHS, BOUND = 30, 3, 8, 0.5


def walk(epoch: int, seed: int) -> np.ndarray:
    """Rows that move from epoch to epoch, each at a pace of its own; one never does."""
    rng = np.random.default_rng(seed)
    rows, pace = rng.standard_normal((N, F)), rng.random((N, 1))
    pace[N // 2] = 0
    return rows + sum(pace * rng.standard_normal((N, F)) for _ in range(epoch))


class Known:
    """What is known of rows elsewhere."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rows, self.sent = seed, np.zeros((N, F)), np.zeros((0, N), bool)

    def at(self, epoch: int) -> np.ndarray:
        now = walk(epoch, self.seed)
        moved = np.linalg.norm(now - self.rows, axis=1) > BOUND * np.linalg.norm(now, axis=1)
        self.rows = np.where(moved[:, None] | (epoch == 0), now, self.rows)
        self.sent = np.vstack((self.sent, moved))
        return self.rows


def matrix_on(comm: Any, asked: Codec, algorithm: Algorithm) -> tuple[Any, Any, Any, slice]:
    layout = uneven_layout(N, comm.size, seed=3)
    own = slice(*layout.range(comm.rank))
    A = random_matrix(N, 0.25, 0, weighted=True)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    exact = DistMatrix.build(block_row(A, own.start, own.stop), layout, mesh, algorithm=algorithm)
    setting = CodecSetting(replace(asked, epochs=EPOCHS), Errors(), seed=5)
    return A.toarray(), setting, with_codec(exact, setting, torch.arange(own.start, own.stop)), own


def used(now: np.ndarray, known: np.ndarray, own: slice) -> np.ndarray:
    """Own rows as they are, others as they are known."""
    rows = known.copy()
    rows[own] = now[own]
    return rows


def against_oracle(rank: int, delay: int) -> None:
    comm = connect()
    asked = Codec(fresh=BOUND, delay=delay, exact_means=False)
    A, setting, fresh, own = matrix_on(comm, asked, Algorithm("1d"))
    forward, past = Known(1), []
    for epoch in range(EPOCHS):
        begin(fresh, epoch)
        before = comm.ledger.copy()
        H = walk(epoch, 1)
        Z = fresh @ torch.from_numpy(H[own].copy())
        moved = comm.ledger.since(before).of("alltoall")
        carried = list(fresh.executor.carried(F, torch.float64, Step(epoch)))
        assert sum(int(c.sent.sum()) for c in carried) == moved.sent_bytes
        assert sum(int(c.received.sum()) for c in carried) == moved.received_bytes
        past.append(forward.at(epoch).copy())
        expected = A[own] @ used(H, past[max(0, epoch - delay)], own)
        np.testing.assert_allclose(Z.numpy(), expected, atol=1e-12)
    assert not forward.sent[1:, N // 2].any()
    assert forward.sent[1:].any(axis=0).sum() > N // 4
    if not delay:
        check_errors(fresh, setting, own, A)
    for wire in fresh.codecs.hops:
        wire.land()


def check_errors(fresh: DistMatrix, setting: CodecSetting, own: slice, A: np.ndarray) -> None:
    """Reported is what the rows that are sent to others are away from what these know."""
    known, error, norm = Known(1), 0.0, 0.0
    (hop,) = fresh.plan.hops
    rows = own.start + hop.selected_rows.numpy()
    known.at(0)
    for epoch in range(1, EPOCHS):
        now, then = walk(epoch, 1)[rows], known.at(epoch)[rows]
        error, norm = error + np.square(now - then).sum(), norm + np.square(now).sum()
    account = setting.errors.sums[0, False, "fresh"]
    np.testing.assert_allclose(account.numpy(), [error, norm])


@pytest.mark.parametrize("delay", [0, 2])
def test_rows_are_those_that_were_last_sent(delay):
    run_ranks(against_oracle, 3, delay)


def adjoint_as_its_own(rank: int) -> None:
    """Gradients that return are those that were last sent, pair of ranks by pair."""
    comm = connect()
    A, _, fresh, own = matrix_on(comm, Codec(fresh=BOUND), Algorithm("1d"))
    known: dict[int, np.ndarray] = {}
    layout = fresh.layout
    for epoch in range(EPOCHS):
        G, total = walk(epoch, 2), A[own][:, own].T @ walk(epoch, 2)[own]
        for peer in set(range(comm.size)) - {rank}:
            theirs = slice(*layout.range(peer))
            block = A[theirs][:, own]
            now = block.T @ G[theirs]
            last = known.setdefault(peer, now)
            moved = np.linalg.norm(now - last, axis=1) > BOUND * np.linalg.norm(now, axis=1)
            known[peer] = np.where(moved[:, None], now, last)
            total = total + known[peer]
        dH = fresh.adjoint(torch.from_numpy(G[own].copy()), Step(epoch).reversed())
        np.testing.assert_allclose(dH.numpy(), total, atol=1e-12)


def test_gradients_are_those_that_were_last_sent():
    run_ranks(adjoint_as_its_own, 3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"fresh": -0.1}, "fresh must be a share"),
        ({"fresh": float("nan")}, "fresh must be a share"),
        ({"fresh": 0.1, "sampling": ((0, 0.5),)}, "fresh compares .* sampling"),
        ({"fresh": 0.1, "delay": 2, "bins": 2}, "fresh compares .* bins"),
        ({"feedback": True, "bits": ((0, 8), (5, 1))}, "feedback needs 2 bits or more"),
    ],
)
def test_what_cannot_be_had_together_is_refused(asked, message):
    with pytest.raises(InputError, match=message):
        Codec(**asked)
