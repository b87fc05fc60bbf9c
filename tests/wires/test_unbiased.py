"""Products over wires that draw are exact on average; so are their adjoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import norm

from spgnn.exchange import Codec, CodecSetting, Step
from spgnn.exchange.approximation import Errors
from spgnn.exchange.compression import CodecLayer
from tests.wires.single import N, diagonal, sending_to_itself, with_codec

F, SEEDS = 6, 2000
CASES = {
    "sampled": Codec(sampling=((0, 0.3),), exact_means=False),
    "8 bits": Codec(((0, 8),)),
    "2 bits": Codec(((0, 2),)),
    "16 bits": Codec(((0, 16),)),
    "sampled, 4 bits": Codec(((0, 4),), sampling=((0, 0.5),), exact_means=False),
    "centred": Codec(sampling=((0, 0.3),), exact_means=True),
    "centred, 4 bits": Codec(((0, 4),), exact_means=True),
}
SLOW = ("16 bits", "sampled, 4 bits", "centred, 4 bits")


def reseed(wire: object, seed: int) -> None:
    if isinstance(wire, CodecLayer):
        wire.setting = replace(wire.setting, seed=seed)
        reseed(wire.inner, seed)


class Mean:
    """Of errors, over seeds."""

    def __init__(self) -> None:
        self.errors: list[np.ndarray] = []

    def scores(self) -> np.ndarray:
        """By entry: the mean error in standard errors, where enough happens."""
        errors = np.stack(self.errors)
        mean, deviation = errors.mean(axis=0), errors.std(axis=0, ddof=1)
        spread = np.ptp(errors, axis=0)
        spread = np.median(spread[spread > 1e-9])
        # An element next to a code is rounded to another one in a few of the draws, or in none.
        often = deviation > 0.07 * spread
        assert (np.abs(mean[~often]) <= 0.01 * spread).all()
        return mean[often] / (deviation[often] / np.sqrt(len(errors)))


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES],
)
def test_products_and_adjoints_are_unbiased(case):
    """Draws are hashes, so that scores are the same in every run."""
    dense = sp.random_array((N, N), density=0.2, rng=np.random.default_rng(0), format="csr")
    exact = sending_to_itself(dense)
    A = with_codec(exact, CodecSetting(CASES[case], Errors()), torch.arange(N))
    H, G = torch.from_numpy(np.random.default_rng(1).standard_normal((2, N, F)))
    Z, dH = dense @ H.numpy(), dense.T @ G.numpy()
    np.testing.assert_allclose(exact.forward(H).numpy(), Z, atol=1e-12)
    forward, adjoint = Mean(), Mean()
    for seed in range(SEEDS):
        for wire in A.codecs.hops:
            reseed(wire, seed)
        forward.errors.append(A.forward(H, Step()).numpy() - Z)
        adjoint.errors.append(A.adjoint(G, Step().reversed()).numpy() - dH)
    for z in (forward.scores(), adjoint.scores()):
        assert len(z) > N * F / 3
        # All together are in the interval that 99.9 % of such sets of scores are in.
        assert np.abs(z).max() < norm.isf(0.0005 / len(z))
        # And they are spread as they should be; entries of a row have draws in common.
        assert 0.5 < np.square(z).mean() < 1.6
        assert np.mean(np.abs(z) > norm.isf(0.025)) < 0.12


@pytest.mark.parametrize("case", [case for case in CASES if "centred" not in case])
def test_errors_are_what_is_reported(case):
    """What wires say that they lost is how far the rows that arrive are from exact."""
    setting = CodecSetting(CASES[case], Errors())
    exact = sending_to_itself(diagonal())
    A = with_codec(exact, setting, torch.arange(N))
    H = torch.from_numpy(np.random.default_rng(1).standard_normal((N, F)))
    lost = (A.forward(H, Step(3)) - H).square().sum()
    rows = H[N // 2 :]
    accounts = setting.errors.sums
    if len(accounts) == 1:
        (account,) = accounts.values()
        torch.testing.assert_close(account, torch.stack((lost, rows.square().sum())))
    assert len(accounts) == (1 + (case == "sampled, 4 bits"))
