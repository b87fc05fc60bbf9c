"""Memory of large results: kept, taken over, let go of; never while a tensor still uses it."""

from __future__ import annotations

import pytest
import torch

from spgnn.kernels import spmm
from spgnn.kernels.recycling import SMALLEST, Keeper
from spgnn.sparse import CSR

WIDTH = 64
ROWS = SMALLEST // (4 * WIDTH)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def like(dtype: torch.dtype = torch.float32, width: int = WIDTH) -> torch.Tensor:
    return torch.empty(0, width, dtype=dtype)


def test_takes_over_the_memory_of_a_forgotten_result(keeper):
    Y = keeper.new_rows(ROWS, like())
    address = Y.data_ptr()
    del Y
    assert keeper.nbytes == SMALLEST
    assert keeper.new_rows(ROWS, like(torch.bfloat16, 2 * WIDTH)).data_ptr() == address


@pytest.mark.parametrize("share", [lambda Y: Y[5:], lambda Y: Y.detach(), lambda Y: Y.numpy()])
def test_keeps_nothing_that_is_still_shared(keeper, share):
    Y = keeper.new_rows(ROWS, like())
    shared = share(Y)
    del Y
    assert keeper.nbytes == 0
    del shared
    assert keeper.nbytes == SMALLEST


def test_two_results_never_share(keeper):
    first = keeper.new_rows(ROWS, like()).fill_(1)
    second = keeper.new_rows(ROWS, like()).fill_(2)
    assert bool((first == 1).all())
    assert bool((second == 2).all())


def test_free_memory_is_at_most_the_largest_result(keeper):
    results = [keeper.new_rows(ROWS + i, like()) for i in range(4)]
    largest = results[-1].nbytes
    results.clear()
    assert 0 < keeper.nbytes <= largest


def test_does_not_take_far_too_large_a_piece(keeper):
    large = keeper.new_rows(4 * ROWS, like())
    address = large.data_ptr()
    del large
    assert keeper.new_rows(ROWS, like()).data_ptr() != address


def test_small_results_are_left_to_torch(keeper):
    Y = keeper.new_rows(ROWS - 1, like())
    assert Y.shape == (ROWS - 1, WIDTH)
    del Y
    assert keeper.nbytes == 0


def test_products_may_be_changed_in_place_and_differentiated():
    n = ROWS
    A = CSR.of(torch.arange(n + 1), torch.arange(n, dtype=torch.int32), (n, n))
    X = torch.randn(n, WIDTH, requires_grad=True)
    for _ in range(2):
        X.grad = None
        spmm(A, X).relu_().sum().backward()
        assert X.grad is not None
        assert torch.equal(X.grad, (X > 0).float())
