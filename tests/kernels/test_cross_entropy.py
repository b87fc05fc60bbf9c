"""Softmax cross-entropy of some rows against torch's in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import InputError
from spgnn.kernels.cross_entropy import cross_entropy_sum

from .conftest import random_dense


def targets(rows: int, classes: int, share: float = 0.6) -> torch.Tensor:
    """Some rows have none."""
    generator = torch.Generator().manual_seed(rows)
    chosen = torch.rand(rows, generator=generator) < share
    return torch.where(chosen, torch.randint(classes, (rows,), generator=generator), -1)


def right(X: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Torch's loss and gradient, in double precision."""
    X = X.detach().double().requires_grad_()
    loss = F.cross_entropy(X, target, reduction="sum", ignore_index=-1)
    (G,) = torch.autograd.grad(3 * loss, X)
    return loss.detach(), G


def check(X: torch.Tensor, target: torch.Tensor) -> None:
    wanted, G = right(X, target)
    X = X.requires_grad_()
    loss = cross_entropy_sum(X, target)
    (found,) = torch.autograd.grad(3 * loss, X)
    eps = torch.finfo(X.dtype).eps
    assert loss.dtype == X.dtype
    assert loss.shape == ()
    assert abs(loss.double() - wanted) <= 8 * eps * (wanted + target.numel())
    assert (found.double() - G).abs().max().item() <= 40 * eps if G.numel() else True
    assert not found[target < 0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "classes"), [(0, 3), (1, 1), (37, 2), (5000, 16), (61, 41), (300, 256), (9, 1001)]
)
def test_losses_and_gradients(instruction_set, rows, classes, dtype):
    X = random_dense(rows, classes, 1, dtype=dtype)
    check(X, targets(rows, classes))
    check(random_dense(rows, classes, 2, dtype=dtype, padding=3), targets(rows, classes, 0.1))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.floats(0, 300), st.floats(-1e4, 1e4))
def test_any_size_of_numbers(rows, classes, scale, offset):
    """The largest of a row is taken off before: neither overflow nor a lost digit of the result."""
    X = (random_dense(rows, classes, 3, dtype=torch.float64) * scale + offset).float()
    check(X, targets(rows, classes))


def test_of_some_rows_divided():
    X, target = random_dense(900, 7, 1).requires_grad_(), targets(900, 7)
    mask = torch.arange(900) % 3 > 0
    loss, G = cross_entropy_sum(X, target, mask, 11), torch.tensor(1.0)
    for factor in (1, 3):  # of what reaches it
        wanted, right_G = right(X, torch.where(mask, target, -1))
        (found,) = torch.autograd.grad(loss, X, factor * G, retain_graph=True)
        torch.testing.assert_close(found.double(), right_G * (factor / 33), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(loss.double(), wanted / 11)
    with torch.no_grad():
        assert torch.equal(cross_entropy_sum(X, target, mask, 11), loss)
    target[0] = 7  # not in the mask
    assert cross_entropy_sum(X, target, mask, 11).isfinite()


def test_what_is_no_number_is_seen_where_it_counts():
    X, target = random_dense(40, 9, 4), targets(40, 9)
    chosen, others = (target >= 0).nonzero()[:, 0], (target < 0).nonzero()[:, 0]
    X[others[0]] = torch.nan
    assert cross_entropy_sum(X, target).isfinite()
    X[chosen[0], :3] = -torch.inf
    target[chosen[0]] = 5
    assert torch.allclose(cross_entropy_sum(X, target).double(), right(X, target)[0])
    for place in (0, 8):
        broken = X.clone()
        broken[chosen[1], place] = torch.nan
        assert cross_entropy_sum(broken, target).isnan()


def test_bits_do_not_depend_on_threads(threads):
    X, target = random_dense(9001, 40, 1).requires_grad_(), targets(9001, 40)
    found = []
    for count in (1, 2, 3):
        threads(count)
        loss = cross_entropy_sum(X, target)
        found.append((loss.detach(), *torch.autograd.grad(loss, X)))
    for one in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(one, found[0], strict=True))


def test_second_and_third_derivatives():
    X = random_dense(7, 4, 1, dtype=torch.float64).requires_grad_()
    target = targets(7, 4)
    assert torch.autograd.gradcheck(lambda X: cross_entropy_sum(X, target), X)
    assert torch.autograd.gradgradcheck(lambda X: cross_entropy_sum(X, target).square(), X)
    some = torch.arange(7) % 2 > 0
    assert torch.autograd.gradgradcheck(lambda X: cross_entropy_sum(X, target, some, 3).square(), X)


def test_compilers_and_transforms_see_torchs_own():
    X, target = random_dense(30, 4, 1), targets(30, 4)
    wanted = cross_entropy_sum(X, target)
    compiled = torch.compile(cross_entropy_sum, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(X, target), wanted)
    batch = torch.func.vmap(cross_entropy_sum, (0, None))(torch.stack((X, X)), target)
    assert torch.allclose(batch, wanted.expand(2))


@pytest.mark.parametrize(
    ("X", "target", "message"),
    [
        (torch.ones(3, 2).bfloat16(), torch.zeros(3).long(), "X must be float32 or float64"),
        (torch.ones(3), torch.zeros(3).long(), r"X must be .* \[n, classes\]"),
        (torch.ones(3, 2), torch.zeros(3), r"target must be torch.int64 \[3\]"),
        (torch.ones(3, 2), torch.zeros(4).long(), r"target must be torch.int64 \[3\]"),
        (torch.ones(3, 2), torch.tensor([0, -1, 2]), "row 2 is class 2; X has 2 classes"),
    ],
)
def test_bad_input(X, target, message):
    with pytest.raises(InputError, match=message):
        cross_entropy_sum(X, target)
