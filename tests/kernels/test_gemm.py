"""Dense products of many rows with a matrix of few, against double precision."""

import pytest
import torch

from spgnn.kernels import bfloat16, cpu, gemm
from spgnn.kernels.gemm import (
    FEWEST_ROWS,
    add_times_transposed_,
    gradient_of,
    most_columns,
    sum_of_products,
    times_transposed,
    transposed_times,
    two_gradients,
    two_products,
)
from spgnn.kernels.update import hide_gradient, relu_of, update_rows_

from .conftest import random_dense

ROWS = FEWEST_ROWS + 2051  # more than one task, and a rest
SHAPES = ((1, 1), (7, 3), (16, 16), (47, 5), (129, 31), (33, 32), (64, 128), (1100, 41), (5, 270))


@pytest.fixture
def of_any_width(monkeypatch):
    """Our kernels for every W, whatever BLAS does here."""
    monkeypatch.setattr(gemm, "_MOST_COLUMNS", 1024)
    monkeypatch.setattr(gemm, "_MOST_OF_GRADIENT", 1024)


def near(found, right, size):
    """To rounding of sums of this size."""
    return bool(((found.double() - right).abs() <= 4e-6 * size + 1e-30).all())


@pytest.mark.parametrize(("f_in", "f_out"), SHAPES)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.usefixtures("of_any_width")
def test_products_and_gradients(instruction_set, f_in, f_out, padding):
    X, G = random_dense(ROWS, f_in, 1, padding=padding), random_dense(ROWS, f_out, 2)
    W = random_dense(f_out, f_in, 3)
    size = X.double().abs() @ W.double().abs().T
    assert near(times_transposed(X, W), X.double() @ W.double().T, size)
    added = add_times_transposed_(G.clone(), X, W)
    assert near(added, G.double() + X.double() @ W.double().T, size + G.abs())
    size = G.double().abs().T @ X.double().abs()
    assert near(transposed_times(G, X), G.double().T @ X.double(), size)


@pytest.mark.parametrize(("f_in", "f_out", "others"), [(16, 16, 16), (7, 3, 30), (70, 41, 9)])
@pytest.mark.usefixtures("of_any_width")
def test_two_at_a_time(instruction_set, f_in, f_out, others):
    X, Y = random_dense(ROWS, f_in, 1, padding=1), random_dense(ROWS, others, 2)
    W, V = random_dense(f_out, f_in, 3), random_dense(f_out, others, 4)
    R, G, H = random_dense(others, f_in, 5), random_dense(ROWS, f_out, 6), Y
    right = times_transposed(X.double(), W.double()), times_transposed(Y.double(), V.double())
    sizes = X.double().abs() @ W.double().abs().T, Y.double().abs() @ V.double().abs().T
    assert near(sum_of_products(X, W, Y, V), sum(right), sum(sizes))
    for one, other in zip(two_products(X, W, R), (W, R), strict=True):
        assert torch.equal(one, times_transposed(X, other))
    for first, second in (((G, X), (G, Y)), ((G, X), (H, X)), ((G, X), (H, Y))):
        found = two_gradients(*first, *second)
        for one, pair in zip(found, (first, second), strict=True):
            assert torch.equal(one, transposed_times(*pair))


@pytest.mark.parametrize("f_out", [3, 16, 41])
@pytest.mark.usefixtures("of_any_width")
def test_a_gradient_that_a_relu_lets_pass(instruction_set, threads, f_out):
    G, H, U = random_dense(ROWS, 9, 1), random_dense(ROWS, 20, 2), random_dense(ROWS, f_out, 3)
    V, W, b = random_dense(f_out, 9, 4), random_dense(f_out, 20, 5), torch.randn(f_out)
    made = []
    for count in (1, 2, 3):
        threads(count)
        bias, Z = b.clone().requires_grad_(), U.clone().requires_grad_()
        Y = hide_gradient(update_rows_(Z * 1, bias, act="relu"))
        relu = relu_of(Y)
        assert relu is not None
        for other in ((None, None), (H, W)):
            dY = gradient_of(Y, relu, G, V, *other)
            full = times_transposed(G, V) if other[0] is None else sum_of_products(G, V, H, W)
            assert torch.equal(dY, torch.where(Y > 0, full, 0.0))
            found = torch.autograd.grad(Y, (Z, bias), dY, retain_graph=True)
            assert torch.equal(found[0], dY)
            assert near(found[1], dY.double().sum(0), dY.double().abs().sum(0))
            # Beside another gradient it is one of two.
            dY = gradient_of(Y, relu, G, V, *other)
            found = torch.autograd.grad(Y, (Z, bias), dY + U, retain_graph=True)
            assert torch.equal(found[0], torch.where(Y > 0, dY + U, 0.0))
        made.append((dY, *found))
    for one in made[1:]:
        assert all(map(torch.equal, one, made[0]))


def test_where_they_are_faster():
    assert most_columns("avx512", intel=False, mkl=True) == (1024, 1024)
    assert most_columns("avx2", intel=False, mkl=True) == (1024, 64)
    for instruction_set, intel, mkl in (("avx512", True, True), ("avx512", False, False)):
        assert most_columns(instruction_set, intel=intel, mkl=mkl) == (32, 16)


def test_they_are_called_where_they_are_faster(monkeypatch):
    monkeypatch.setattr(gemm, "_MOST_COLUMNS", 32)
    monkeypatch.setattr(gemm, "_MOST_OF_GRADIENT", 16)
    called = []
    for name in ("gemm_product", "gemm_gradient"):
        kernel = getattr(cpu, name)

        def noted(*arguments, name=name, kernel=kernel):
            called.append(name)
            kernel(*arguments)

        monkeypatch.setattr(cpu, name, noted)
    X = random_dense(ROWS, 8, 1)
    for rows, f_out, dtype, wanted in (
        (ROWS, 16, torch.float32, ["gemm_product", "gemm_gradient"]),
        (ROWS, 32, torch.float32, ["gemm_product"]),
        (ROWS, 33, torch.float32, []),
        (ROWS, 16, torch.float64, []),
        (FEWEST_ROWS - 1, 16, torch.float32, []),
    ):
        called.clear()
        some, W = X[:rows].to(dtype), torch.ones(f_out, 8, dtype=dtype, requires_grad=True)
        times_transposed(some, W).sum().backward()
        assert called == wanted
    called.clear()
    with torch.autocast("cpu"):
        assert times_transposed(X, torch.ones(4, 8)).dtype == torch.bfloat16
    assert not called


@pytest.mark.parametrize("f_out", [3, 16, 96])
@pytest.mark.usefixtures("of_any_width")
def test_bits_do_not_depend_on_threads(threads, f_out):
    X, G, W = random_dense(9001, 40, 1), random_dense(9001, f_out, 2), random_dense(f_out, 40, 3)
    found = []
    for count in (1, 2, 3):
        threads(count)
        both = sum_of_products(X, W, X[:, :9], W[:, :9])
        found.append((times_transposed(X, W), transposed_times(G, X), both))
    for one in found[1:]:
        assert all(map(torch.equal, one, found[0]))


def test_derivatives_of_both_and_of_second_order():
    X = random_dense(FEWEST_ROWS, 5, 1).requires_grad_()
    W = random_dense(4, 5, 2).requires_grad_()

    def two(X, W, R):
        return torch.cat((X @ W.T, X @ R.T))

    def derivatives(product):
        Z = product(X, W)
        first = torch.autograd.grad(Z.square().sum(), (X, W), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (X, W))
        return Z, *first, *second

    for ours, theirs in (
        (times_transposed, lambda X, W: X @ W.T),
        (lambda X, W: sum_of_products(X, W, X.cos(), W), lambda X, W: (X + X.cos()) @ W.T),
        (lambda X, W: torch.cat(two_products(X, W, W.cos())), lambda X, W: two(X, W, W.cos())),
    ):
        for found, right in zip(derivatives(ours), derivatives(theirs), strict=True):
            most = float(right.detach().abs().max())
            assert torch.allclose(found, right, rtol=1e-4, atol=1e-4 * most)


def test_bfloat16_in_inference_and_of_no_rows(threads):
    """Threads of the pool write what the caller made in inference mode."""
    threads(2)
    X, W = random_dense(1500, 40, 1), random_dense(9, 40, 2)
    with torch.autocast("cpu"):
        expected = times_transposed(X, W)
        with torch.inference_mode():
            assert torch.equal(times_transposed(X, W), expected)
    assert torch.equal(bfloat16.gradient(X[:0].bfloat16(), X[:0]), torch.zeros(40, 40))


@pytest.mark.parametrize("rows", [1, 700, 2048, 4101])
@pytest.mark.parametrize(("f_in", "f_out"), [(1, 1), (47, 5), (64, 128), (300, 19)])
def test_bfloat16_under_autocast(threads, rows, f_in, f_out):
    """Operands are rounded, sums are not: weights' gradients stay float32."""
    X, W = random_dense(rows, f_in, 1), random_dense(f_out, f_in, 2).requires_grad_()
    G = random_dense(rows, f_out, 3).bfloat16()
    right = X.bfloat16().double(), W.detach().bfloat16().double(), G.double()
    found = []
    for count in (1, 2, 3):
        threads(count)
        H = X.bfloat16().requires_grad_()
        with torch.autocast("cpu"):
            Z = times_transposed(H, W)
            added = add_times_transposed_(G.clone(), X, W)
        found.append((Z, added, *torch.autograd.grad(Z, (H, W), G)))
    for one in found[1:]:
        assert all(map(torch.equal, one, found[0]))
    Z, added, dH, dW = found[0]
    assert Z.dtype == added.dtype == dH.dtype == torch.bfloat16
    assert dW.dtype == torch.float32
    x, w, g = right
    for ours, theirs, size in (
        (Z, x @ w.T, x.abs() @ w.abs().T),
        (added, g + x @ w.T, g.abs() + x.abs() @ w.abs().T),
        (dH, g @ w, g.abs() @ w.abs()),
        (dW, g.T @ x, g.abs().T @ x.abs()),
    ):
        assert bool(((ours.double() - theirs).abs() <= 8e-3 * size + 1e-30).all())
