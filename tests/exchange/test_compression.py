"""Rows in fewer bits, samples, and rows that are sent once they have moved."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import norm
from systems.sancus import SkipUnchanged

from spgnn import kernels
from spgnn.comm import connect
from spgnn.exchange import Algorithm, Codec, Step
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.compression import CodecLayer, Quantise
from spgnn.exchange.delay import Delay
from spgnn.testing import run_ranks
from tests.exchange.coded import (
    ALONE,
    alone,
    begin,
    diagonal,
    distributed,
    land,
    scores,
    sending_to_itself,
    with_codec,
)
from tests.matrices import random_matrix, uneven_layout
from tests.pretended_gpu import pretended_gpu

F, SEEDS, HALF = 6, 2000, ALONE // 2
CASES = {
    "sampled": Codec(sampling=((0, 0.3),), exact_means=False),
    "8 bits": Codec(((0, 8),)),
    "2 bits": Codec(((0, 2),)),
    "16 bits": Codec(((0, 16),)),
    "sampled, 4 bits": Codec(((0, 4),), sampling=((0, 0.5),), exact_means=False),
    "means": Codec(sampling=((0, 0.3),), exact_means=True),
    "means, 4 bits": Codec(((0, 4),), exact_means=True),
}
SLOW = ("16 bits", "sampled, 4 bits", "means, 4 bits")


def reseed(codec: object, seed: int) -> None:
    if isinstance(codec, CodecLayer):
        codec.setting = replace(codec.setting, seed=seed)
        reseed(codec.inner, seed)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES]
)
def test_products_and_adjoints_are_unbiased(case):
    """Draws are hashes, so that scores are the same in every run."""
    n, rng = ALONE, np.random.default_rng(0)
    dense = sp.random_array((n, n), density=0.2, rng=rng, format="csr")
    exact = sending_to_itself(dense)
    A = with_codec(exact, CodecSetting(CASES[case]), torch.arange(n))
    H, G = torch.from_numpy(np.random.default_rng(1).standard_normal((2, n, F)))
    Z, dH = dense @ H.numpy(), dense.T @ G.numpy()
    np.testing.assert_allclose(exact.forward(H).numpy(), Z, atol=1e-12)
    forward, adjoint = [], []
    for seed in range(SEEDS):
        for codec in A.codecs.hops:
            reseed(codec, seed)
        forward.append(A.forward(H, Step()).numpy() - Z)
        adjoint.append(A.adjoint(G, Step().reversed()).numpy() - dH)
    for z in (scores(forward), scores(adjoint)):
        assert len(z) > n * F / 3
        # All together are in the interval that 99.9 % of such sets of scores are in.
        assert np.abs(z).max() < norm.isf(0.0005 / len(z))
        # And they are spread as they should be; entries of a row have draws in common.
        assert 0.5 < np.square(z).mean() < 1.6
        assert np.mean(np.abs(z) > norm.isf(0.025)) < 0.12


@pytest.mark.parametrize("case", [case for case in CASES if "means" not in case])
def test_errors_are_what_is_reported(case):
    """The errors that codecs report are how far the rows that arrive are from exact."""
    setting = CodecSetting(CASES[case])
    A, H = alone(setting), torch.from_numpy(np.random.default_rng(1).standard_normal((ALONE, F)))
    lost = (A.forward(H, Step(3)) - H).square().sum()
    accounts = setting.errors.sums
    if len(accounts) == 1:
        (account,) = accounts.values()
        torch.testing.assert_close(account, torch.stack((lost, H[HALF:].square().sum())))
    assert len(accounts) == (1 + (case == "sampled, 4 bits"))


def rows_of(epoch: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(epoch).standard_normal((ALONE, 16)))


@pytest.mark.parametrize("bins", [1, 2, 3])
def test_residuals_are_those_of_the_rows_that_are_sent(bins):
    """Bins of rows have as many rows as one another, and residuals of their own."""
    setting = CodecSetting(Codec(((0, 2),), feedback=True, delay=1, bins=bins, exact_means=False))
    A = alone(setting)
    residual = torch.zeros(HALF, 16, dtype=torch.float64)
    for epoch in range(9):
        begin(A, epoch)
        H = rows_of(epoch)
        A @ H
        sent = torch.arange(HALF)
        if epoch and bins > 1:
            sent = sent[sent % bins == epoch % bins]
        part = residual[sent]
        key = setting.key(Step(epoch), "round 0")
        kernels.quantise_rows(H[HALF:][sent], 2, HALF + sent, key, stochastic=False, residual=part)
        residual[sent] = part
        (codec,) = A.codecs.hops
        assert isinstance(codec, Delay)
        assert isinstance(codec.inner, Quantise)
        (kept,) = codec.inner.state().values()
        torch.testing.assert_close(kept, residual, rtol=0, atol=0)


@pytest.mark.parametrize("bits", [2, 4])
def test_what_is_lost_arrives_later_and_does_not_grow(bits):
    """All that arrived is all that was sent, but for what is kept; with one bit it would grow."""
    A = alone(Codec(((0, bits),), feedback=True))
    sent, arrived = torch.zeros(2, ALONE, 16, dtype=torch.float64)
    for epoch in range(200):
        sent += rows_of(epoch)
        arrived += A.forward(rows_of(epoch), Step(epoch))
    kept = A.codecs.hops[0].state()["lost.0"]
    torch.testing.assert_close((sent - arrived)[HALF:], kept)
    assert kept.norm() < 0.6 * rows_of(199)[HALF:].norm()


N, EPOCHS, BOUND = 30, 8, 0.5


def walk(epoch: int, seed: int) -> np.ndarray:
    """Rows that move from epoch to epoch, each at a pace of its own; one never does."""
    rng = np.random.default_rng(seed)
    rows, pace = rng.standard_normal((N, 3)), rng.random((N, 1))
    pace[N // 2] = 0
    return rows + sum(pace * rng.standard_normal((N, 3)) for _ in range(epoch))


def moved_far(now: np.ndarray, last: np.ndarray) -> np.ndarray:
    return np.linalg.norm(now - last, axis=1) > BOUND * np.linalg.norm(now, axis=1)


def fresh_rows(rank: int, delay: int) -> None:
    """Others' rows are those last sent, late or not; gradients too, pair of ranks by pair."""
    comm = connect()
    layout, sparse = uneven_layout(N, comm.size, 3), random_matrix(N, 0.25, 0, weighted=True)
    exact, own = distributed(sparse, layout, comm, Algorithm())
    setting = CodecSetting(
        Codec(extra=(("fresh", BOUND),), delay=delay, exact_means=False, epochs=EPOCHS)
    )
    fresh, A = with_codec(exact, setting, torch.arange(own.start, own.stop)), sparse.toarray()
    rows = own.start + fresh.plan.hops[0].selected_rows.numpy()
    known, past, error, norms, ever = walk(0, 1), [], 0.0, 0.0, np.zeros(N, bool)
    of_peer: dict[int, np.ndarray] = {}
    for epoch in range(EPOCHS):
        begin(fresh, epoch)
        now = walk(epoch, 1)
        Z = fresh @ torch.from_numpy(now[own].copy())
        moves = moved_far(now, known)
        if epoch:
            stale = rows[~moves[rows]]
            error += np.square(now[stale] - known[stale]).sum()
            norms += np.square(now[rows]).sum()
        ever |= moves
        known = np.where(moves[:, None], now, known)
        past.append(known)
        used = past[max(0, epoch - delay)].copy()
        used[own] = now[own]
        np.testing.assert_allclose(Z.numpy(), A[own] @ used, atol=1e-12)
        if delay:
            continue
        G, total = walk(epoch, 2), A[own][:, own].T @ walk(epoch, 2)[own]
        for peer in set(range(comm.size)) - {rank}:
            theirs = slice(*layout.range(peer))
            gradient = A[theirs][:, own].T @ G[theirs]
            last = of_peer.setdefault(peer, gradient)
            moves = moved_far(gradient, last)
            of_peer[peer] = np.where(moves[:, None], gradient, last)
            total = total + of_peer[peer]
        dH = fresh.adjoint(torch.from_numpy(G[own].copy()), Step(epoch).reversed())
        np.testing.assert_allclose(dH.numpy(), total, atol=1e-12)
    assert not ever[N // 2]
    assert ever.sum() > N // 4
    account = setting.errors.sums[0, False, "fresh"]
    np.testing.assert_allclose(account.numpy(), [error, norms])
    land(fresh)


@pytest.mark.parametrize("delay", [0, 2])
def test_rows_are_those_that_were_last_sent(delay):
    run_ranks(fresh_rows, 3, delay)


WAITS = {
    Codec(((0, 16),)): 0,
    Codec(((0, 4),), feedback=True): 0,
    Codec(delay=1): 0,
    Codec(((0, 4),), delay=2, bins=2, smoothing=0.5, feedback=True): 0,
    Codec(sampling=((0, 0.5),), exact_means=False): 1,
    Codec(((0, 4),), sampling=((0, 0.5),), exact_means=True): 1,
    Codec(extra=(("fresh", 0.2),)): 2,
}


def waits_on_a_gpu(rank: int) -> list[tuple[int, int]]:
    """Of the host in a product, its adjoint and their bytes; and norms of rows that are taken."""
    found = []
    for codec in WAITS:
        with pretended_gpu() as waits:
            given, norms = sending_to_itself(diagonal()).to(torch.float32).to("cuda"), 0
            A = with_codec(given, codec, torch.arange(ALONE, device="cuda"))
            X, vector_norm = torch.randn(ALONE, F, device="cuda"), torch.linalg.vector_norm

            def counted(*arguments, **how):
                nonlocal norms
                norms += 1
                return vector_norm(*arguments, **how)  # noqa: B023

            for epoch in (8, 9, 10, 11, 12, 13):
                begin(A, epoch)
                waits.clear()
                norms = 0
                with patch.object(torch.linalg, "vector_norm", counted):
                    (A @ (epoch * X.clone()).requires_grad_()).sum().backward()
                    A.codecs.setting.policy.traffic()
                found.append((sum(waits.values()), norms))
            land(A)
    return found


def test_a_gpu_is_waited_for_once_an_exchange_at_most():
    """For the rows that are drawn, which an adjoint knows, or that have moved; rows go at once."""
    with patch.object(SkipUnchanged, "BLOCK", 4):
        (found,) = run_ranks(waits_on_a_gpu, 1)
    for number, (codec, allowed) in enumerate(WAITS.items()):
        # Lists of bins are made in the first epochs, and errors looked at in every tenth.
        waits, norms = zip(*found[6 * number + 3 : 6 * number + 6], strict=True)
        assert set(waits) == {allowed}, codec
        assert set(norms) == {4 if codec.extra else 0}, codec
