"""Derivatives of products: every order, and never those of other values than were multiplied."""

import pytest
import torch

from spgnn import _native
from spgnn.errors import InputError
from spgnn.kernels import spmm
from spgnn.nn.rowwise import DropoutKeys, dropout
from spgnn.sparse import CSR

from . import oracle as reference
from .conftest import random_block, random_dense

LENGTHS = [3, 0, 5, 1, 2, 4, 0, 7, 2]
PARTS = [("values",), ("values", "row_scale", "col_scale")]


def block(parts=("values",), seed=4, rows=9, cols=7):
    return random_block(rows, cols, LENGTHS[:rows], seed, dtype=torch.float64, parts=parts)


@pytest.mark.parametrize("side", ["A", "A.T"])
@pytest.mark.parametrize("changed", ["A", "A.T"])
def test_values_changed_before_a_product(side, changed):
    """Forward and backward both have the new values, whichever side they were changed on."""
    A = block(rows=7)
    T = A.T
    multiplied = A if side == "A" else T
    X = random_dense(7, 3, 1, torch.float64).requires_grad_()
    spmm(multiplied, X).sum().backward()
    (A if changed == "A" else T).values.mul_(3)
    # The block that was changed is what it says; the other one is an array of its own.
    now = multiplied if side == changed else (A if changed == "A" else T).T
    X.grad = None
    Y = spmm(now, X)
    Y.sum().backward()
    torch.testing.assert_close(Y.detach(), reference.spmm(now, X.detach()))
    torch.testing.assert_close(X.grad, reference.dense(now).T @ torch.ones_like(Y))


@pytest.mark.parametrize("side", ["A", "A.T"])
@pytest.mark.parametrize("changed", ["A", "A.T"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_values_changed_between_a_product_and_its_backward(side, changed, symmetric):
    """Never silently: torch's own error."""
    A = block(rows=7)
    if symmetric:
        S = A.to_scipy()
        A = CSR.from_scipy(S + S.T)
    T = A.T
    X = random_dense(7, 3, 1, torch.float64).requires_grad_()
    Y = spmm(A if side == "A" else T, X)
    (A if changed == "A" else T).values.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Y.sum().backward()


def test_learnt_values_are_never_stale():
    A = random_block(6, 6, [2, 0, 3, 5, 1, 2], 0, parts=("values",))
    values = A.values.requires_grad_()
    for _ in range(3):
        for transposed in (False, True):
            X = random_dense(6, 4, 1).requires_grad_()
            spmm(A.T if transposed else A, X).square().sum().backward()
            now = CSR.of(A.indptr, A.indices, A.shape, values.detach().clone())
            again = X.detach().requires_grad_()
            spmm(now.T if transposed else now, again).square().sum().backward()
            assert torch.equal(X.grad, again.grad)
        with torch.no_grad():
            values -= 0.1 * values.grad


def test_gradient_of_values_alone_needs_no_transpose():
    A = random_block(6, 4, [2, 0, 3, 1, 4, 2], 0, parts=("values",))
    A.values.requires_grad_()
    spmm(A, random_dense(4, 3, 1)).sum().backward()
    assert A.values.grad is not None
    assert set(A.pattern.__dict__) == {"indptr", "indices", "shape"}


@pytest.fixture
def structures_made(monkeypatch):
    """How often a transpose's structure or order was computed."""
    made = []
    for name in ("transpose", "transposed_order"):
        real = getattr(_native, name)
        monkeypatch.setattr(
            _native, name, lambda *a, real=real, name=name: made.append(name) or real(*a)
        )
    return made


@pytest.mark.parametrize("learnt", [False, True])
def test_values_that_change_never_rebuild_structure(structures_made, learnt):
    """Dropout on sparse features: each epoch has other values, and gathers them in backward."""
    X = random_block(40, 30, [5] * 40, 1, parts=("values",))
    X.values.requires_grad_(learnt)
    W = random_dense(30, 8, 2).requires_grad_()
    for epoch in range(3):
        dropped = dropout(X, 0.5, DropoutKeys(torch.arange(40), 0, epoch), 0)
        Y = spmm(dropped, W)
        W.grad = None
        Y.square().sum().backward()
        expected = 2 * reference.dense(dropped).T @ reference.dense(dropped) @ W.detach().double()
        torch.testing.assert_close(W.grad.double(), expected, rtol=1e-4, atol=1e-4)
    assert structures_made == ["transpose", "transposed_order"]


def test_learnt_values_are_not_written_into_a_result():
    A = random_block(6, 6, [2, 0, 3, 1, 4, 2], 0, parts=("values", "row_scale"))
    A.values.requires_grad_()
    X = random_dense(6, 3, 1)
    with pytest.raises(InputError, match="not differentiable"):
        spmm(A, X, out=torch.empty(6, 3))
    A.row_scale.requires_grad_()
    with torch.no_grad():
        spmm(A, X, out=torch.empty(6, 3))
