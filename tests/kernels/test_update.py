"""Bias, activation and dropout in one pass, against the three operations one after another."""

from itertools import cycle, product

import pytest
import torch
import torch.nn.functional as F

from spgnn import _native
from spgnn.errors import InputError
from spgnn.kernels import dropout_rows
from spgnn.kernels.update import update_rows_

from . import oracle as reference
from .conftest import DTYPES, SUM_DTYPE, random_dense

WIDTHS = (1, 3, 16, 47, 256, 300)
KEY = 77


ALPHAS = {None: 0.0, "relu": 0.0, "leaky_relu": 0.125, "elu": 1.5}


def composed(Z, bias, act, ids, p):
    """The same by torch and the kernel of dropout alone."""
    Y = Z if bias is None else Z + bias.to(Z.dtype)
    if act == "relu":
        Y = torch.relu(Y)
    elif act == "leaky_relu":
        Y = F.leaky_relu(Y, ALPHAS[act])
    elif act == "elu":
        Y = F.elu(Y, ALPHAS[act])
    return Y if ids is None else dropout_rows(Y, ids, KEY, p)


def operands(n, columns, dtype, padding=0):
    Z, G = (random_dense(n, columns, seed, dtype, padding) for seed in (1, 2))
    Z[n // 2, 0], Z[n // 3, -1] = torch.nan, torch.inf
    bias = random_dense(1, columns, 3, SUM_DTYPE[dtype])[0].clone()
    return Z, G, bias, torch.arange(n) * 1_000_003 + 2**40


def run(function, Z, G, bias):
    """Result, and gradients of the matrix and the bias."""
    leaf = Z.clone().requires_grad_()
    learnt = None if bias is None else bias.clone().requires_grad_()
    Y = function(leaf * 1, learnt)
    Y.backward(G)
    return Y.detach(), leaf.grad, None if learnt is None else learnt.grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 5, 300])
def test_the_same_bits_as_one_after_another(instruction_set, dtype, n):
    cases = product(WIDTHS, (True, False), ALPHAS, (None, 0.0, 0.4))
    for (columns, with_bias, act, p), padding in zip(cases, cycle((0, 5, 5, 0, 5)), strict=False):
        Z, G, bias, ids = operands(n, columns, dtype, padding) if n else (*bare(columns, dtype),)
        bias, drops = bias if with_bias else None, None if p is None else ids
        if act == "elu":  # of a NaN, torch's gradient depends on where it lies
            Z = Z.nan_to_num(0.5)
        options = {"act": act, "alpha": ALPHAS[act], "vertex_ids": drops, "key": KEY}
        options["p"] = p or 0.0
        found = run(lambda Z, b, o=options: update_rows_(Z, b, **o), Z, G, bias)
        right = run(lambda Z, b, a=act, i=drops, p=p: composed(Z, b, a, i, p), Z, G, bias)
        # Exponentials to some ulps; what is subtracted from one loses as much as that, and a
        # gradient is G times what is left.
        slack = 8 * torch.finfo(dtype).eps if act == "elu" else 0.0
        sizes = torch.ones_like(G), G.abs() * ALPHAS[act] / (1 - options["p"])
        for ours, theirs, size in zip(found[:2], right[:2], sizes, strict=True):
            assert near(ours, theirs, slack * (size + theirs.abs()).double())
        if with_bias:
            sums = found[1].double().sum(0)
            size = found[1].double().abs().sum(0)
            assert found[2].dtype == SUM_DTYPE[dtype]
            assert near(found[2], sums, 1e-5 * size + 1e-30)


def near(ours, theirs, allowed):
    """To that; infinities and what is no number are the same."""
    same = (ours == theirs) | ours.isnan() & theirs.isnan()
    return bool((same | ((ours.double() - theirs.double()).abs() <= allowed)).all())


def bare(columns, dtype):
    empty = torch.empty(0, columns, dtype=dtype)
    return empty, empty.clone(), torch.ones(columns, dtype=SUM_DTYPE[dtype]), torch.arange(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [16, 47, 300])
def test_sums_depend_on_neither_threads_nor_instruction_set(threads, dtype, columns):
    Z, G, bias, ids = operands(9000, columns, dtype)
    before, found = _native.instruction_set(), []
    for name, count in product(_native.instruction_sets(), (1, 2, 3)):
        _native.use_instruction_set(name)
        threads(count)
        found.append(
            run(
                lambda Z, b: update_rows_(Z, b, act="relu", vertex_ids=ids, key=KEY, p=0.3),
                Z,
                G,
                bias,
            )[2]
        )
    _native.use_instruction_set(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_it_is_written_over_what_was_given():
    Z, _, bias, ids = operands(40, 8, torch.float32)
    right = composed(Z, bias, "relu", ids, 0.5)
    made = Z.clone().requires_grad_() * 1
    version = made._version
    options = {"act": "relu", "vertex_ids": ids, "key": KEY, "p": 0.5}
    Y = update_rows_(made, bias, **options)
    assert Y.data_ptr() == made.data_ptr()
    assert made._version > version
    assert torch.equal(Y.nan_to_num(7.0), right.nan_to_num(7.0))
    with torch.no_grad():
        assert update_rows_(Z, bias, **options) is Z
    assert torch.equal(Z.nan_to_num(7.0), right.nan_to_num(7.0))
    transposed = random_dense(8, 40, 5).T
    assert torch.equal(update_rows_(transposed, act="relu"), transposed.relu())


def test_dropped_numbers_are_those_of_the_reference():
    X, ids = random_dense(30, 33, 1), torch.arange(30) + 2**33
    found = update_rows_(X.clone(), act="relu", vertex_ids=ids, key=-5, p=0.25)
    assert torch.equal(found, reference.dropout_rows(X.relu(), ids, -5, 0.25))


@pytest.mark.parametrize("act", ALPHAS)
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_derivatives_of_any_order(act, p):
    Z = random_dense(6, 5, 1, torch.float64).requires_grad_()
    bias = random_dense(1, 5, 2, torch.float64)[0].clone().requires_grad_()
    ids = torch.arange(6) if p else None

    def function(Z, bias):
        rule = {"act": act, "alpha": ALPHAS[act], "vertex_ids": ids, "key": 3, "p": p}
        return update_rows_(Z * 1, bias, **rule).square()

    assert torch.autograd.gradcheck(function, (Z, bias))
    assert torch.autograd.gradgradcheck(function, (Z, bias))


def test_elu_is_exact_near_zero_and_far_below():
    x = torch.tensor([[-1e-6, -1e-3, -0.3, -0.4, -5.0, -30.0, -100.0, -torch.inf, 0.0]])
    right = torch.expm1(x.double())
    found = update_rows_(x.clone(), act="elu", alpha=1.0)
    assert torch.allclose(found.double(), right, rtol=4e-7, atol=0.0)
    again = update_rows_(x.double(), act="elu", alpha=1.0)
    assert torch.allclose(again, right, rtol=1e-15, atol=0.0)


def test_bad_input_is_named():
    Z, ids = torch.ones(4, 3), torch.arange(4)
    for call, message in (
        (lambda: update_rows_(torch.ones(3)), "Z must be float32"),
        (lambda: update_rows_(Z, torch.ones(2)), r"bias must be torch.float32 \[3\]"),
        (lambda: update_rows_(Z, torch.ones(3).double()), "got float64"),
        (lambda: update_rows_(Z, vertex_ids=ids[:2], p=0.5), "vertex_ids has 2 entries"),
        (lambda: update_rows_(Z, vertex_ids=ids, p=1.0), "p must be in"),
        (lambda: update_rows_(Z, act="gelu"), "act"),
        (lambda: update_rows_(Z, act="elu"), "alpha must be positive"),
    ):
        with pytest.raises(InputError, match=message):
            call()
