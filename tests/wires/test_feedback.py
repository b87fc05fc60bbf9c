"""What was lost of a row is added to the one that is sent next in its place, whoever else is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, kernels
from spgnn.exchange import Codec, CodecSetting, Step
from spgnn.exchange.approximation import Errors
from spgnn.exchange.compression import Quantise
from spgnn.exchange.delay import Delay
from tests.wires.single import N, begin, diagonal, sending_to_itself, with_codec

F, EPOCHS = 16, 9
HALF = N // 2


def rows_of(epoch: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(epoch).standard_normal((N, F)))


def on_wires(asked: Codec) -> tuple[DistMatrix, CodecSetting]:
    setting = CodecSetting(asked, Errors(), seed=3)
    return with_codec(sending_to_itself(diagonal()), setting, torch.arange(N)), setting


@pytest.mark.parametrize("bins", [1, 2, 3])
def test_residuals_are_those_of_the_rows_that_are_sent(bins):
    """Bins of rows have as many rows as one another, and residuals of their own."""
    A, setting = on_wires(Codec(((0, 2),), feedback=True, delay=1, bins=bins, exact_means=False))
    residual = torch.zeros(HALF, F, dtype=torch.float64)
    for epoch in range(EPOCHS):
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
        (wire,) = A.codecs.hops
        assert isinstance(wire, Delay)
        assert isinstance(wire.inner, Quantise)
        (kept,) = wire.inner.state().values()
        torch.testing.assert_close(kept, residual, rtol=0, atol=0)


def test_what_is_lost_arrives_later():
    """The sum of all that arrived is the sum of all that was sent, but for what is kept."""
    A, _ = on_wires(Codec(((0, 2),), feedback=True))
    sent, arrived = torch.zeros(2, N, F, dtype=torch.float64)
    for epoch in range(EPOCHS):
        begin(A, epoch)
        sent += rows_of(epoch)
        arrived += A @ rows_of(epoch)
    (kept,) = A.codecs.hops[0].state().values()
    torch.testing.assert_close((sent - arrived)[HALF:], kept)


@pytest.mark.parametrize("bits", [2, 4])
def test_what_is_lost_does_not_grow(bits):
    """With one bit, or with codes at random, it would: without end."""
    A, _ = on_wires(Codec(((0, bits),), feedback=True))
    for epoch in range(200):
        A.forward(rows_of(epoch), Step(epoch))
    kept = A.codecs.hops[0].state()["lost.0"]
    assert kept.norm() < 0.6 * rows_of(199)[HALF:].norm()
    assert kept.isfinite().all()
