"""Lines of delayed rows on one rank: running means, landing, both directions, other delays."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from spgnn import DistMatrix
from spgnn.exchange import Codec, CodecSetting, Step
from spgnn.exchange.approximation import Errors
from tests.wires.single import N, begin, diagonal, sending_to_itself, with_codec

F, EPOCHS, HALF = 3, 12, N // 2
ASKED = [
    Codec(delay=1, smoothing=0.9, exact_means=False),
    Codec(delay=3, smoothing=0.5, exact_means=False),
    Codec(delay=3, bins=3, smoothing=0.8, exact_means=False),
    Codec(delay=2, bins=4, smoothing=0.3, exact_last=2, exact_means=False),
    Codec(delay=2, bins=2, exact_means=False),
]


def rows_of(epoch: int, adjoint: bool = False) -> np.ndarray:
    return np.random.default_rng(2 * epoch + adjoint).standard_normal((N, F))


def on_wires(asked: Codec) -> tuple[DistMatrix, CodecSetting]:
    setting = CodecSetting(replace(asked, epochs=EPOCHS), Errors(), seed=3)
    return with_codec(sending_to_itself(diagonal()), setting, torch.arange(N)), setting


def expected(asked: Codec, epoch: int, adjoint: bool) -> np.ndarray:
    """Own rows of now; of the others the weighted mean of all that arrived, weights adding to 1."""
    found = rows_of(epoch, adjoint)
    if asked.exact_last and epoch >= EPOCHS - asked.exact_last:
        return found
    for row in range(HALF):
        sent = [e for e in range(1, epoch - asked.delay + 1) if e % asked.bins == row % asked.bins]
        arrived = np.stack([rows_of(e, adjoint)[HALF + row] for e in (0, *sent)])
        weights = asked.smoothing ** np.arange(len(arrived))[::-1]
        found[HALF + row] = weights @ arrived / weights.sum()
    return found


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_means_have_weights_that_add_up_to_one(asked):
    """In both directions, through autograd; landing in between changes nothing."""
    A, _ = on_wires(asked)
    for epoch in range(EPOCHS):
        begin(A, epoch)
        H = torch.from_numpy(rows_of(epoch)).requires_grad_()
        Z = A @ H
        if epoch % 3 == 1:
            A.codecs.hops[0].land()
        (dH,) = torch.autograd.grad(Z, H, torch.from_numpy(rows_of(epoch, True)))
        np.testing.assert_allclose(Z.detach().numpy(), expected(asked, epoch, False), atol=1e-12)
        np.testing.assert_allclose(dH.numpy(), expected(asked, epoch, True), atol=1e-12)


def test_products_of_an_epoch_have_lines_of_their_own():
    A, _ = on_wires(Codec(delay=1, exact_means=False))
    for epoch, which in product(range(4), range(2)):
        if not which:
            begin(A, epoch)
        Z = A @ torch.from_numpy(rows_of(10 * epoch + which))
        known = rows_of(10 * max(0, epoch - 1) + which)[HALF:]
        np.testing.assert_array_equal(Z[HALF:].numpy(), known)


def test_errors_compare_what_arrives_with_what_was_held():
    asked = Codec(delay=2, exact_means=False)
    A, setting = on_wires(asked)
    for epoch in range(6):
        A.forward(torch.from_numpy(rows_of(epoch)), Step(epoch))
    rows = [rows_of(epoch)[HALF:] for epoch in range(6)]
    made = sum(np.square(new - old).sum() for old, new in pairwise(rows[:4]))
    norm = sum(np.square(new).sum() for new in rows[1:4])
    account = setting.errors.sums[0, False, "delay"]
    np.testing.assert_allclose(account.numpy(), [made, norm])


def test_nothing_is_ever_sent():
    A, _ = on_wires(Codec(delay=None, exact_last=1))
    for epoch in range(EPOCHS):
        begin(A, epoch)
        H = torch.from_numpy(rows_of(epoch)).requires_grad_()
        Z = A @ H
        (dH,) = torch.autograd.grad(Z, H, torch.ones_like(Z))
        if epoch < EPOCHS - 1:
            assert not Z[HALF:].any()
            assert not dH[HALF:].any()
        else:
            assert torch.equal(Z, H)
        moved = list(A.executor.carried(F, torch.float64, Step(epoch)))
        assert sum(int(c.sent.sum()) for c in moved) == (epoch == EPOCHS - 1) * HALF * F * 8


def test_a_copy_begins_anew():
    """Of what was kept of rows nothing is shared, for a copy may be on another device."""
    A, _ = on_wires(Codec(delay=2, bins=2, exact_means=False))
    for epoch in range(3):
        A.forward(torch.from_numpy(rows_of(epoch)), Step(epoch))
    (wire,), (other,) = A.codecs.hops, copy.deepcopy(A).codecs.hops
    assert wire.state()
    assert wire._bins
    assert not other.state()
    assert not other._bins
