"""Memory of large results: kept, taken over, let go of; never while a tensor still uses it."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
import torch

from spgnn.kernels import recycling, spmm
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


def test_heads_too(keeper):
    X = torch.empty(0, 4, WIDTH // 4)
    Y = keeper.new_rows(ROWS, X)
    assert (Y.shape, Y.stride()) == ((ROWS, 4, WIDTH // 4), (WIDTH, WIDTH // 4, 1))
    del Y
    assert keeper.nbytes == SMALLEST


class AtLine:
    """Does something before one line of recycling.py, as the collector or a thread may."""

    def __init__(self, number, act):
        self.left, self.act = number, act

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, *error):
        sys.settrace(self.before)

    def trace(self, frame, event, argument):
        if frame.f_code.co_filename != recycling.__file__ or self.left < 0:
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                self.act()
        return self.trace


def by_the_collector(mine, keeper):
    """The result is part of a cycle."""
    cycle = [mine.pop()]
    cycle.append(cycle)
    del cycle
    gc.collect(0)
    return []


def by_another_thread(mine, keeper):
    """All of the other thread's turn passes before this one goes on."""
    made = []

    def turn():
        mine.clear()
        made.append(keeper.new_rows(1030, like(width=1)))

    thread = threading.Thread(target=turn)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "a thread waits for the one it interrupts"
    return made


@pytest.mark.parametrize("forgotten", [by_the_collector, by_another_thread])
def test_results_may_be_forgotten_at_any_line(monkeypatch, forgotten):
    """What comes back while a piece is looked for drives out the oldest, and moves the others."""
    monkeypatch.setattr(recycling, "SMALLEST", 2**12)
    for line in range(80):
        keeper, made = Keeper(), []
        largest, small, fitting, later = (
            keeper.new_rows(rows, like(width=1)) for rows in (4000, 1100, 2000, 1050)
        )
        del small, fitting
        mine, other = [later], []
        del later
        point = AtLine(
            line, lambda mine=mine, other=other, k=keeper: other.extend(forgotten(mine, k))
        )
        with point:
            made = [keeper.new_rows(rows, like(width=1)) for rows in (2000, 1100)]
        results = [largest, *made, *other]
        for number, Y in enumerate(results):
            assert Y.untyped_storage().nbytes() >= Y.nbytes
            Y.fill_(number)
        for number, Y in enumerate(results):
            assert bool(torch.eq(Y, number).all()), line
        results.clear()
        del largest, made, other, Y
        assert keeper.nbytes <= 4 * 4000
        if point.left >= 0:
            return  # there are no more lines
    raise AssertionError("the lines never end")


def test_products_may_be_changed_in_place_and_differentiated():
    n = ROWS
    A = CSR.of(torch.arange(n + 1), torch.arange(n, dtype=torch.int32), (n, n))
    X = torch.randn(n, WIDTH, requires_grad=True)
    for _ in range(2):
        X.grad = None
        spmm(A, X).relu_().sum().backward()
        assert X.grad is not None
        assert torch.equal(X.grad, (X > 0).float())


def test_so_many_bytes_in_use_and_free(keeper):
    """What is in use counts; what is free goes, the oldest first."""
    keeper.bound(3 * SMALLEST)
    results = [keeper.new_rows(ROWS, like()) for _ in range(3)]
    assert (keeper.bytes_in_use, keeper.nbytes) == (3 * SMALLEST, 0)
    addresses = [Y.data_ptr() for Y in results]
    results.clear()
    assert (keeper.bytes_in_use, keeper.nbytes) == (0, 3 * SMALLEST)
    results = [keeper.new_rows(ROWS, like()) for _ in range(3)]
    assert sorted(Y.data_ptr() for Y in results) == sorted(addresses)
    del results[1:]
    large = keeper.new_rows(3 * ROWS // 2, like())
    # One in use and the large one leave no room for two free ones.
    assert (keeper.bytes_in_use, keeper.nbytes) == (5 * SMALLEST // 2, 0)
    assert len({Y.data_ptr() for Y in (*results, large)}) == 2
    del large
    assert keeper.nbytes == 3 * SMALLEST // 2
    # More may be in use than may be kept.
    keeper.bound(SMALLEST)
    results += [keeper.new_rows(ROWS, like()) for _ in range(2)]
    results.pop()
    assert keeper.nbytes == 0
    small = keeper.new_rows(ROWS - 1, like())  # left to torch
    del small
    assert keeper.nbytes == 0
