"""Delay rows against an oracle that remembers every epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, Mesh, RowLayout
from spgnn.comm import connect
from spgnn.exchange import Algorithm, Codec, CodecSetting
from spgnn.exchange.approximation import Errors
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix
from tests.wires.single import begin, with_codec

N, F, EPOCHS = 30, 3, 9


def operand(epoch: int, rows: int) -> np.ndarray:
    return np.random.default_rng(epoch).standard_normal((rows, F))


def matrix_on(comm, approximation: Codec, algorithm: Algorithm) -> tuple:
    layout = RowLayout.even(N, comm.size)
    own = slice(*layout.range(comm.rank))
    block = block_row(random_matrix(N, 0.25, 0, weighted=True), own.start, own.stop)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    exact = DistMatrix.build(block, layout, mesh, algorithm=algorithm)
    setting = CodecSetting(replace(approximation, epochs=EPOCHS), Errors(), seed=5)
    ids = torch.arange(own.start, own.stop)
    return exact, with_codec(exact, setting, ids), own, setting


def used_epoch(epoch: int, bin_: int, asked: Codec) -> int:
    """The epoch whose rows of a bin are used in an epoch."""
    last = EPOCHS - asked.exact_last if asked.exact_last else EPOCHS
    if epoch >= last or epoch == 0:
        return epoch
    sent = [e for e in range(1, epoch - asked.delay + 1) if e % asked.bins == bin_]
    return max(sent, default=0)


def oracle(A: np.ndarray, layout: RowLayout, asked: Codec, epoch: int) -> np.ndarray:
    """A·H in 1D with columns: each rank's remote rows of the epoch that it uses."""
    Z = np.empty((N, F))
    for rank in range(layout.parts):
        rows = slice(*layout.range(rank))
        H = operand(epoch, N)
        needed = np.flatnonzero(A[rows].any(axis=0))
        for owner in range(layout.parts):
            if owner == rank:
                continue
            theirs = slice(*layout.range(owner))
            columns = [c for c in needed if theirs.start <= c < theirs.stop]
            now = H[columns]
            for place, column in enumerate(columns):
                used = operand(used_epoch(epoch, place % asked.bins, asked), N)
                H[column] = used[column]
                if asked.exact_means:
                    H[column] -= used[columns].mean(axis=0)
            if asked.exact_means and columns:
                H[columns] += now.mean(axis=0) - H[columns].mean(axis=0)
        Z[rows] = A[rows] @ H
    return Z


def against_oracle(rank: int, asked: Codec) -> None:
    comm = connect()
    exact, delayed, own, _ = matrix_on(comm, asked, Algorithm("1d"))
    A = random_matrix(N, 0.25, 0, weighted=True).toarray()
    for epoch in range(EPOCHS):
        begin(delayed, epoch)
        before = comm.ledger.copy()
        Z_local = delayed @ torch.from_numpy(operand(epoch, N)[own].copy())
        moved = comm.ledger.since(before).of("alltoall")
        from spgnn.exchange import Step

        carried = list(delayed.executor.carried(F, torch.float64, Step(epoch)))
        assert sum(int(c.sent.sum()) for c in carried) == moved.sent_bytes
        assert sum(int(c.received.sum()) for c in carried) == moved.received_bytes
        expected = oracle(A, exact.layout, asked, epoch)[own]
        np.testing.assert_allclose(Z_local.numpy(), expected, atol=1e-12, err_msg=str(epoch))
    for wire in delayed.codecs.hops:
        wire.land()


@pytest.mark.parametrize(
    "asked",
    [
        Codec(delay=1, exact_means=False),
        Codec(delay=3, exact_means=False),
        Codec(delay=2, bins=2, exact_means=False),
        Codec(delay=1, bins=3, exact_last=2, exact_means=False),
        Codec(delay=4, bins=3, exact_last=1, exact_means=False),
        Codec(delay=2, bins=2, exact_means=True, exact_last=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_rows_are_those_of_the_epoch_they_should_be(asked, ranks):
    run_ranks(against_oracle, ranks, asked)
