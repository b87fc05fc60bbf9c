"""Packed rows are those of the definition, bit for bit, and unbiased."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import dequantise_rows, quantise_rows, torch_kernels
from spgnn.kernels.quantise import packed_bytes

from .conftest import DTYPES, random_dense

BITS = (16, 8, 4, 2, 1)
WIDTHS = (0, 1, 3, 16, 17, 64, 129, 300)
DOUBLE = torch.float64


def some_ids(count):
    return torch.arange(count) * 1_000_003 + 2**40


def same(a, b):
    """Equal numbers, and NaN where NaN is."""
    return a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def check(X, bits, key=-5, **options):
    """All that packing and unpacking do to X against the definition."""
    ids, before = some_ids(len(X)), options.pop("residual", None)
    residual = None if before is None else before.clone()
    lost = torch.ones(2, dtype=DOUBLE)
    packed = quantise_rows(X, bits, ids, key, residual=residual, **options)
    expected, left = torch.empty_like(packed), None if before is None else before.clone()
    rule = bits, ids, key, options.get("stochastic", True), None
    torch_kernels.quantise_rows(X, *rule, left, None, expected)
    arrived = torch.empty_like(X)
    torch_kernels.dequantise_rows(packed, bits, None, arrived)
    assert torch.equal(packed, expected)
    assert same(dequantise_rows(packed, bits, X.shape[1], X.dtype), arrived)
    if before is not None:
        assert same(residual, left)
        residual.copy_(before)
    again = quantise_rows(X, bits, ids, key, residual=residual, lost=lost, **options)
    assert torch.equal(again, packed)
    exact = X.double()
    error, size = (arrived.double() - exact).square().sum(), exact.square().sum()
    if bool(arrived.isfinite().all()):
        assert torch.allclose(lost - 1, torch.stack((error, size)), rtol=1e-9, atol=1e-12)
    else:
        assert not lost.isfinite()[0]
    return packed, arrived


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", WIDTHS)
def test_packed_rows_are_those_of_the_definition(instruction_set, dtype, columns):
    X = random_dense(37, columns, 1, dtype, padding=3)
    residual = random_dense(37, columns, 2, dtype, padding=1) / 4
    for bits in BITS:
        packed, _ = check(X, bits)
        assert packed.shape == (37, packed_bytes(columns, bits))
        check(X, bits, stochastic=False, residual=residual)
    check(X[5:6], 4, residual=residual[5:6])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 100),
    bits=st.sampled_from(BITS),
    key=st.integers(-(2**63), 2**64 - 1),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-140, 130),
    stochastic=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_size(rows, columns, bits, key, dtype, exponent, stochastic, seed):
    """From denormal numbers to those that overflow."""
    X = (random_dense(rows, columns, seed, DOUBLE) * 2.0**exponent).to(dtype)
    check(X, bits, key, stochastic=stochastic)


SPECIAL = torch.tensor(
    [
        [1.0, 2.0, 3.0, math.nan, 4.0],
        [1.0, math.inf, 3.0, -1.0, 4.0],
        [-math.inf, 2.0, 3.0, -1.0, 4.0],
        [math.nan, math.inf, -math.inf, math.nan, math.nan],
        [3.4e38, -3.4e38, 0.0, 0.0, 0.0],
        [3.4e38, 3.3e38, 3.35e38, 3.4e38, 3.4e38],
        [-3.4e38, -3.4e38, -3.4e38, -3.4e38, -3.4e38],
        [2e38, -1.39e38, 0.0, 1e38, 1e-45],
        [1e-45, 3e-45, -1e-40, 0.0, 1e-38],
        [0.0, -0.0, -0.0, 0.0, -0.0],
        [-0.0, -0.0, -0.0, -0.0, -0.0],
        [0.1, 0.1, 0.1, 0.1, 0.1],
        [-7.0, -7.0, -7.0, -7.0, -7.0],
        [1e30, 1.0, 2.0, 3.0, -1e-30],
        [2.0**-110, 0.0, 2.0**-111, 0.0, 0.0],
    ],
    dtype=DOUBLE,
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_rows(instruction_set, dtype):
    for X in (SPECIAL, SPECIAL.repeat(3, 5)):
        for bits in BITS:
            for stochastic in (True, False):
                _, arrived = check(X.to(dtype), bits, stochastic=stochastic)
                check(X.to(dtype), bits, residual=torch.ones_like(X).to(dtype))
                odd = ~X.isfinite()
                if bits < 16:
                    odd = odd.any(1)
                assert not bool(arrived[odd].isfinite().any())
                assert bool((arrived[9::15] == 0).all())
                assert bool((arrived[12::15] == -7).all())


def test_numbers_that_only_float64_holds():
    X = torch.tensor([[1e300, 0.0], [-1e300, 1.0], [1e-300, 1.0], [1e300, 1e300]], dtype=DOUBLE)
    for bits in BITS:
        _, arrived = check(X, bits)
        assert not bool(arrived[[0, 1, 3], [0, 0, 0]].isfinite().any())
        assert bool(arrived[2].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_range_of_codes_holds_the_row(dtype):
    """Minimum and scale are rounded outward, so nothing is cut off."""
    X = (random_dense(400, 9, 3, DOUBLE) * torch.logspace(-6, 6, 400)[:, None] + 10).to(dtype)
    for bits in BITS[1:]:
        packed = quantise_rows(X, bits, some_ids(400), 1)
        header = packed[:, :4].contiguous().view(torch.bfloat16).double()
        low, high = header[:, 0], header[:, 0] + header[:, 1] * (2**bits - 1)
        assert bool((low <= X.double().amin(1)).all())
        assert bool((high >= X.double().amax(1)).all())
        spread = X.double().amax(1) - low
        assert bool((header[:, 1] * (2**bits - 1) <= spread * (1 + 2**-6) + 1e-30).all())


@pytest.mark.parametrize("bits", BITS)
def test_unbiased(bits):
    """The mean over many keys, within its confidence interval; scores of all entries normal."""
    keys, rows, columns = 2000, 24, 40
    X = random_dense(rows, columns, 4, torch.float32)
    ids, total = torch.arange(rows), torch.zeros(rows, columns, dtype=DOUBLE)
    square = total.clone()
    for key in range(keys):
        packed = quantise_rows(X, bits, ids, key)
        error = dequantise_rows(packed, bits, columns, DOUBLE) - X.double()
        total += error
        square += error.square()
    # Between two neighbours a distance d apart the variance of one draw is (x − a)(b − x).
    packed = quantise_rows(X, bits, ids, 0)
    if bits == 16:
        step = 2.0 ** (X.double().abs().log2().floor() - 7)
        inside = (X.double() / step) % 1
    else:
        header = packed[:, :4].contiguous().view(torch.bfloat16).double()
        step = header[:, 1:2]
        inside = ((X.double() - header[:, :1]) / step) % 1
    variance = inside * (1 - inside) * step.square()
    assert torch.allclose(square.mean(), keys * variance.mean(), rtol=0.01)
    certain = variance < 1e-3 * step.square()
    z = (total / (keys * variance).sqrt())[~certain]
    assert len(z) > 800
    assert float(z.abs().max()) < 4.5
    assert abs(float(z.mean())) < 3.3 / len(z) ** 0.5
    assert abs(float(z.square().mean()) - 1) < 3.3 * (2 / len(z)) ** 0.5
    assert bool((total[certain].abs() / keys < 0.03 * step.expand_as(X)[certain]).all())


def test_random_numbers_are_independent():
    """Pairs of columns, rows and keys, and triples of columns; within five deviations."""
    ids = torch.arange(20_000)
    u = [(torch_kernels.random_halves(ids, 96, key) + 0.5) / 65536 - 0.5 for key in (0, 1)]
    first, second = (v.double() * 12**0.5 for v in u)
    assert abs(float(first.mean())) < 5 / first.numel() ** 0.5
    counts = torch.bincount(((u[0] + 0.5) * 64).long().flatten(), minlength=64).double()
    expected = first.numel() / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 63 + 5 * (2 * 63) ** 0.5
    correlation = first.T @ first / len(ids) - torch.eye(96)
    assert float((correlation * len(ids) ** 0.5).triu(1).abs().max()) < 5
    across = (first.T @ second / len(ids) ** 0.5).abs().max()
    assert float(across) < 5
    assert abs(float((first[1:] * first[:-1]).mean())) < 5 / first.numel() ** 0.5
    for step in (1, 2, 7, 16, 31):
        triples = first[:, : -2 * step] * first[:, step:-step] * first[:, 2 * step :]
        assert abs(float(triples.mean())) < 5 / triples.numel() ** 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", BITS)
def test_nothing_is_lost_with_a_residual(dtype, bits):
    X = random_dense(50, 33, 5, dtype)
    residual = random_dense(50, 33, 6, dtype)
    sent, arrived = torch.zeros(50, 33, dtype=DOUBLE), torch.zeros(50, 33, dtype=DOUBLE)
    sent += residual
    for key in range(5):
        packed = quantise_rows(X, bits, some_ids(50), key, residual=residual)
        sent += X.double()
        arrived += dequantise_rows(packed, bits, 33, dtype)
    error = (sent - arrived - residual.double()).abs()
    size = arrived.abs().max() + residual.double().abs().max()
    assert bool((error <= 8 * torch.finfo(dtype).eps * size).all())


def test_sums_of_what_was_lost_do_not_depend_on_the_instruction_set(instruction_set):
    for dtype in DTYPES:
        X, lost = random_dense(700, 37, 12, dtype), torch.zeros(2, dtype=DOUBLE)
        for bits in BITS:
            quantise_rows(X, bits, some_ids(700), 3, lost=lost)
        assert torch.equal(lost, LOST.setdefault(dtype, lost.clone()))


LOST = {}  # of the first instruction set that came


def test_bits_do_not_depend_on_threads_or_neighbours(threads):
    X, ids = random_dense(5000, 19, 7), some_ids(5000)
    found = []
    for count in (1, 2, 3):
        threads(count)
        lost, residual = torch.zeros(2, dtype=DOUBLE), X / 8
        packed = [quantise_rows(X, b, ids, 3, residual=residual, lost=lost) for b in BITS]
        back = [dequantise_rows(p, b, 19, X.dtype) for p, b in zip(packed, BITS, strict=True)]
        found.append((*packed, residual, lost, *back))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    packed = quantise_rows(X, 2, ids, 3)
    assert torch.equal(quantise_rows(X[order], 2, ids[order], 3), packed[order])


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("bits", [16, 4])
def test_listed_rows(index, bits):
    X, listed = random_dense(60, 21, 8), torch.tensor([3, 3, 59, 0, 17] * 30).to(index)
    ids, residual = some_ids(150), random_dense(150, 21, 9)
    wanted = residual.clone()
    packed = quantise_rows(X, bits, ids, 2, rows=listed, residual=residual)
    assert torch.equal(packed, quantise_rows(X[listed.long()], bits, ids, 2, residual=wanted))
    assert torch.equal(residual, wanted)
    places = torch.randperm(200, generator=torch.Generator().manual_seed(1))[:150].to(index)
    out = torch.full((200, 21), 9.0)
    assert dequantise_rows(packed, bits, 21, torch.float32, out=out, rows=places) is out
    expected = torch.full((200, 21), 9.0)
    expected[places.long()] = dequantise_rows(packed, bits, 21, torch.float32)
    assert torch.equal(out, expected)


def test_other_strides_and_places_for_results():
    X, ids = random_dense(30, 13, 10), some_ids(60)[::2]
    packed = quantise_rows(X.T.contiguous().T, 4, ids, 1)
    assert torch.equal(packed, quantise_rows(X, 4, ids.contiguous(), 1))
    out = torch.empty_like(packed)
    assert quantise_rows(X, 4, ids, 1, out=out) is out
    assert torch.equal(out, packed)
    around = torch.full((30, 20), 5.0)
    back = dequantise_rows(packed, 4, 13, torch.float32, out=around[:, 3:16])
    assert torch.equal(back, dequantise_rows(packed, 4, 13, torch.float32))
    assert bool((around[:, :3] == 5).all())
    assert bool((around[:, 16:] == 5).all())


def test_other_types_than_those_of_the_rows():
    X = random_dense(20, 40, 11)
    packed = quantise_rows(X, 4, some_ids(20), 1)
    exact = dequantise_rows(packed, 4, 40, DOUBLE)
    assert torch.equal(dequantise_rows(packed, 4, 40, torch.float32), exact.float())
    assert torch.equal(dequantise_rows(packed, 4, 40, torch.bfloat16), exact.bfloat16())


def test_the_operators_are_known_to_torch():
    X, ids = random_dense(6, 5, 1), torch.arange(6)
    lost, residual = torch.zeros(2, dtype=DOUBLE), torch.zeros(6, 5)
    out = torch.empty(6, 7, dtype=torch.uint8)
    ops = torch.ops.spgnn
    arguments = (X, 4, ids, 3, True, None, residual, lost, out)
    torch.library.opcheck(ops.quantise_rows.default, arguments)
    torch.library.opcheck(ops.dequantise_rows.default, (out, 4, None, X))
    compiled = torch.compile(
        lambda X: dequantise_rows(quantise_rows(X, 4, ids, 3), 4, 5, X.dtype),
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(
        compiled(X), dequantise_rows(quantise_rows(X, 4, ids, 3), 4, 5, torch.float32)
    )


def test_bad_input_is_named():
    X, ids = torch.ones(5, 3), torch.arange(5)
    packed = quantise_rows(X, 4, ids, 0)
    cases = [
        (lambda: quantise_rows(X.int(), 4, ids, 0), "rows of torch.int32 cannot be quantised"),
        (lambda: quantise_rows(X.long(), 4, ids, 0), "rows of torch.int64 cannot be quantised"),
        (lambda: quantise_rows(X.numpy(), 4, ids, 0), "X must be a torch.Tensor"),
        (lambda: quantise_rows(X[0], 4, ids, 0), r"X must be \[rows, f\]"),
        (lambda: quantise_rows(X, 3, ids, 0), "bits must be 16, 8, 4, 2 or 1, got 3"),
        (lambda: quantise_rows(X, 32, ids, 0), "bits must be an integer in"),
        (lambda: quantise_rows(X, 4.0, ids, 0), "bits must be an integer in .* got float 4.0"),
        (lambda: quantise_rows(X, 4, ids.int(), 0), "ids must be int64"),
        (lambda: quantise_rows(X, 4, ids[:4], 0), "ids has 4 entries for 5 rows"),
        (lambda: quantise_rows(X, 4, ids, 2**64), "key must be an integer"),
        (lambda: quantise_rows(X, 4, ids, 0, residual=X.double()), "residual must be"),
        (lambda: quantise_rows(X, 4, ids, 0, residual=X), "residual must not overlap X"),
        (lambda: quantise_rows(X, 4, ids, 0, lost=torch.zeros(2)), "lost must be torch.float64"),
        (lambda: quantise_rows(X, 4, ids, 0, out=packed[:4]), "out must be torch.uint8"),
        (lambda: quantise_rows(X, 4, ids, 0, out=packed.T), "out must be"),
        (lambda: quantise_rows(X, 4, ids, 0, out=torch.empty(5, 9).byte()[:, :6]), "contiguous"),
        (lambda: quantise_rows(X, 4, ids, 0, rows=ids + 1), r"row 5 outside \[0, 5\)"),
        (lambda: quantise_rows(X, 4, ids, 0, rows=ids.short()), "rows must be int32 or int64"),
        (lambda: quantise_rows(X.requires_grad_(), 4, ids, 0), "not differentiable"),
        (lambda: dequantise_rows(packed, 4, 9, X.dtype), r"packed must be torch.uint8 \[5, 9\]"),
        (lambda: dequantise_rows(packed, 4, 3, torch.int32), "rows are unpacked to"),
        (lambda: dequantise_rows(packed, 5, 3, X.dtype), "bits must be 16, 8, 4, 2 or 1"),
        (lambda: dequantise_rows(packed, 4, 3, X.dtype, out=X.double()), "out must be"),
        (lambda: dequantise_rows(packed, 4, 3, X.dtype, rows=ids), "give both"),
        (
            lambda: dequantise_rows(packed, 4, 3, X.dtype, rows=ids - 1, out=torch.ones(5, 3)),
            "row -1 outside",
        ),
        (
            lambda: dequantise_rows(packed, 4, 3, X.dtype, rows=ids[1:], out=torch.ones(5, 3)),
            "rows has 4 entries for 5 packed rows",
        ),
        (lambda: packed_bytes(-1, 4), "width must be an integer of at least 0"),
        (lambda: packed_bytes(4, 5), "bits must be"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
