"""Rows that a sample leaves out are as they last arrived: against an oracle that remembers all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn import DistMatrix
from spgnn.exchange import Step
from spgnn.wires import Approximation, Dials, Errors, Held, Setting
from tests.wires.single import N, diagonal, sending_to_itself

F, EPOCHS, HALF = 3, 12, N // 2


def rows_of(epoch: int, adjoint: bool = False) -> np.ndarray:
    return np.random.default_rng(2 * epoch + adjoint).standard_normal((N, F))


def on_wires(asked: Approximation, errors: Errors | None = None) -> DistMatrix:
    setting = Setting(Dials(asked, EPOCHS), errors or Errors(), seed=3)
    return sending_to_itself(diagonal()).approximated(setting, torch.arange(N))


def arrived(A: DistMatrix, epoch: int) -> dict[bool, np.ndarray]:
    """What came of rows and of gradients, through autograd."""
    A.begin_epoch(epoch)
    H = torch.from_numpy(rows_of(epoch)).requires_grad_()
    Z = A @ H
    (dH,) = torch.autograd.grad(Z, H, torch.from_numpy(rows_of(epoch, True)))
    return {False: Z.detach().numpy()[HALF:], True: dH.numpy()[HALF:]}


@pytest.mark.parametrize(
    "asked",
    [
        Approximation(sampling=((0, 0.3),), held=True),
        Approximation(sampling=((0, 1.0), (2, 0.3)), held=True, exact_last=2),
        Approximation(sampling=((0, 0.5), (4, 1.0), (6, 0.2)), held=True),
    ],
    ids=str,
)
def test_each_row_is_the_last_one_that_was_drawn(asked):
    """Rows of now where they are drawn, which about p of them are; else those of that epoch."""
    A, dials = on_wires(asked), Dials(asked, EPOCHS)
    held = {adjoint: np.zeros((HALF, F)) for adjoint in (False, True)}
    drawn, expected = 0, 0.0
    for epoch in range(EPOCHS):
        for adjoint, found in arrived(A, epoch).items():
            now, share = rows_of(epoch, adjoint)[HALF:], dials.sampling_at(epoch)
            fresh = (found == now).all(axis=1)
            assert share < 1 or fresh.all()
            np.testing.assert_array_equal(found[~fresh], held[adjoint][~fresh])
            held[adjoint] = found
            drawn, expected = drawn + int(fresh.sum()), expected + share * HALF
    assert drawn == pytest.approx(expected, abs=4 * expected**0.5)


def test_products_and_directions_do_not_mix():
    A = on_wires(Approximation(sampling=((0, 0.5),), held=True))
    first, second = (torch.from_numpy(rows_of(number)) for number in range(2))
    for epoch in range(3):
        for number, rows in enumerate((first, second)):
            found = A.forward(rows, Step(epoch, number))[HALF:]
            came = (found != 0).any(dim=1)
            assert torch.equal(found[came], rows[HALF:][came])
    (wire,) = A.wires
    assert isinstance(wire, Held)
    assert wire.remembers
    assert len(wire.state()) == 2


def test_the_mean_is_of_now():
    A = on_wires(Approximation(sampling=((0, 0.2),), held=True, centred=True))
    for epoch in range(EPOCHS):
        for adjoint, found in arrived(A, epoch).items():
            now = rows_of(epoch, adjoint)[HALF:].mean(axis=0)
            np.testing.assert_allclose(found.mean(axis=0), now, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 0, 17])
def test_other_operands(dtype, width):
    """Of a width that changes, nothing of the one before is used."""
    A = on_wires(Approximation(sampling=((0, 0.5),), held=True)).to(dtype)
    _ = A.forward(torch.ones(N, 5, dtype=dtype), Step(0))
    found = A.forward(torch.ones(N, width, dtype=dtype), Step(1))[HALF:]
    assert found.shape == (HALF, width)
    assert not width or {0.0, 1.0} == set(found.flatten().tolist())


def test_the_error_is_right_on_average():
    """What is reported is made of the rows that came; the others have moved as much."""
    errors = Errors()
    A = on_wires(Approximation(sampling=((0, 0.4),), held=True), errors)
    real = norm = 0.0
    for epoch in range(10):
        found, now = arrived(A, epoch)[False], rows_of(epoch)[HALF:]
        real, norm = real + np.square(found - now).sum(), norm + np.square(now).sum()
    said, whole = errors.sums()[0, False, "sampling"].tolist()
    assert said / whole == pytest.approx(real / norm, rel=0.2)
    assert whole == pytest.approx(norm, rel=0.2)
