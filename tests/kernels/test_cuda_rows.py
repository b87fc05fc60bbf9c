"""The CUDA kernels of rows, extremes and quantisation, run on the CPU against the reference."""

import shutil
import sys
from itertools import product

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.kernels import torch_kernels as cusparse
from spgnn.kernels.cuda import kernels as native
from spgnn.kernels.quantise import packed_bytes
from spgnn.sparse import SUM_DTYPE

from . import oracle as reference
from .cuda_cases import (
    ROUNDING,
    block,
    matrix,
)

pytestmark = [
    pytest.mark.usefixtures("emulated"),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++ on Linux"
    ),
]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 17, 64, 300])
def test_gather_rows(dtype, columns):
    X = matrix(50, columns, dtype, padding=8)
    rows = torch.from_numpy(np.random.default_rng(3).integers(0, 50, 301))
    copied, scaled = X.new_empty(301, columns), X.new_empty(301, columns)
    for listed in (rows, rows.int()):
        native.gather_rows(X, listed, None, copied.zero_())
        assert torch.equal(copied, X[rows])
    scale = torch.randn(301, dtype=SUM_DTYPE[dtype])
    expected = reference.gather_rows(X, rows, scale)
    native.gather_rows(X, rows, scale, scaled)
    assert torch.allclose(scaled.double(), expected, rtol=ROUNDING[dtype], atol=0)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("scaled", [False, True])
def test_scatter_add_rows(dtype, scaled):
    # Row 7 is listed 2000 times: its sum is carried across tiles.
    rows = torch.from_numpy(np.random.default_rng(4).integers(0, 40, 3000))
    rows[500:2500] = 7
    X, Y = matrix(3000, 16, dtype), matrix(45, 16, dtype, padding=8, seed=5)
    scale = torch.randn(3000, dtype=SUM_DTYPE[dtype]) if scaled else None
    expected = reference.scatter_add_rows(Y, rows, X, scale)
    magnitude = reference.scatter_add_rows(
        Y.abs(), rows, X.abs(), None if scale is None else scale.abs()
    )
    again = Y.clone()
    native.scatter_add_rows(Y, rows, X, scale)
    assert bool(((Y.double() - expected).abs() <= ROUNDING[dtype] * magnitude).all())
    native.scatter_add_rows(again, rows.int(), X, scale)
    assert torch.equal(Y, again)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 3, 64, 300])
def test_dropout_has_the_bits_of_the_reference(dtype, columns):
    X = matrix(37, columns, dtype, padding=4)
    X[3] = float("inf")  # dropped all the same
    ids = torch.arange(37) * 1_000_003 + 2**40
    for key, p in ((0, 0.0), (-(2**63), 0.5), (12345, 0.9)):
        expected = reference.dropout_rows(X, ids, key, p)
        dropped = torch.empty_like(X)
        native.dropout_rows(X, ids, key, p, dropped)
        assert torch.equal(dropped, expected)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [3, 64, 300])
def test_updates_have_the_bits_of_three_operations(dtype, columns):
    Z, G = matrix(137, columns, dtype, padding=4), matrix(137, columns, dtype, seed=2)
    Z[3], Z[4, 0] = float("inf"), float("nan")
    bias = torch.linspace(-1, 1, columns).to(SUM_DTYPE[dtype])
    ids = torch.arange(137) * 1_000_003 + 2**40
    for b, drops, act in product((bias, None), (ids, None), range(4)):
        rule = drops, -7, 0.5 if drops is not None else 0.0, act, 0.25
        expected, found = torch.empty_like(G), Z.clone()
        cusparse.update_rows(Z, b, *rule, expected)
        native.update_rows(found, b, *rule, found)
        near = {"rtol": 4 * torch.finfo(dtype).eps * (act == 3), "atol": 0.0, "equal_nan": True}
        assert torch.allclose(found, expected, **near)
        results = []
        for module in (native, cusparse):
            dZ, sums = torch.empty_like(G), torch.empty(columns, dtype=SUM_DTYPE[dtype])
            kept = expected if act else None, None if act == 1 else drops
            module.update_rows_backward(G, *kept, *rule[1:], dZ, sums)
            results.append((dZ.nan_to_num(7.0), sums.nan_to_num(7.0)))
        assert torch.allclose(results[0][0], results[1][0], **near)
        assert torch.allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("columns", "index"), [(3, torch.int32), (64, torch.int64)])
def test_extremes(dtype, columns, index):
    A, B = block([5, 0, 1, 40] * 9, index=index), block([0, 0, 7, 3] * 9, index=index, seed=3)
    X = matrix(800, columns, dtype).mul(2).round()
    X[A.indices[2].long(), 0] = torch.nan
    for largest in (True, False):
        states = []
        for module in (native, cusparse):
            out, arg = X.new_empty(36, columns), torch.empty(36, columns, dtype=torch.int32)
            module.extreme(A.indptr, A.indices, X, largest, False, 0, out, arg)
            module.extreme(B.indptr, B.indices, -X, largest, True, 800, out, arg)
            states.append((out.nan_to_num(9.0), arg))
        assert torch.equal(states[0][0], states[1][0])
        assert torch.equal(states[0][1], states[1][1])


def packed_and_back(module, X, bits, rows, residual, stochastic, dtype):
    """Everything that packing and unpacking write, by one of the implementations."""
    ids = torch.arange(len(rows)) * 1_000_003 + 2**40
    out = torch.empty(len(rows), packed_bytes(X.shape[1], bits), dtype=torch.uint8)
    residual, lost = residual.clone(), torch.ones(2, dtype=torch.float64)
    rule = bits, ids, -7, stochastic, rows
    module.quantise_rows(X, *rule, residual, lost, out)
    back = matrix(50, X.shape[1], dtype, padding=8)
    module.dequantise_rows(out, bits, torch.arange(len(rows)) + 3, back)
    bare = torch.empty_like(out)
    module.quantise_rows(X, *rule, None, None, bare)
    plain = X.new_empty((len(rows), X.shape[1]))
    module.dequantise_rows(bare, bits, None, plain)
    return out, residual, back, bare, plain, lost


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [(torch.float32, 17), (torch.float32, 300), (torch.float64, 3), (torch.bfloat16, 64)],
)
def test_quantised_rows_have_the_bits_of_the_reference(dtype, columns):
    X, residual = matrix(50, columns, dtype, padding=8), matrix(40, columns, dtype, seed=2)
    X[3, 0], X[4, columns // 2], X[5] = torch.nan, -torch.inf, 2.5
    X[6] *= 2.0**-125
    X[7] *= 2.0**126
    rows = torch.cat((torch.arange(10), torch.arange(49, 19, -1))).int()
    for bits in (16, 8, 4, 2, 1):
        for stochastic, listed in ((True, rows), (False, rows.long())):
            case = X, bits, listed, residual, stochastic, dtype
            *found, lost = packed_and_back(native, *case)
            *expected, sums = packed_and_back(cusparse, *case)
            for ours, theirs in zip(found, expected, strict=True):
                assert torch.equal(
                    torch.nan_to_num(ours.double(), 0.5), theirs.double().nan_to_num(0.5)
                )
            assert torch.allclose(lost, sums, rtol=1e-12, equal_nan=True)


def test_nothing_to_quantise():
    X, lost = matrix(3, 0), torch.zeros(2, dtype=torch.float64)
    out = torch.full((3, 4), 9, dtype=torch.uint8)
    native.quantise_rows(X, 4, torch.arange(3), 1, True, None, None, lost, out)
    assert not out.any()
    assert not lost.any()
    native.dequantise_rows(out, 4, None, X)
    none = torch.empty(0, 9, dtype=torch.uint8)
    native.quantise_rows(matrix(0, 5), 8, torch.arange(0), 1, True, None, None, None, none)
    native.dequantise_rows(none, 8, None, matrix(0, 5))


def test_rows_out_of_range():
    X = matrix(5, 4)
    with pytest.raises(InputError, match=r"row 5 outside \[0, 5\)"):
        native.gather_rows(X, torch.tensor([0, 5]), None, X[:2].clone())
    with pytest.raises(InputError, match=r"row -1 outside \[0, 5\)"):
        native.scatter_add_rows(X, torch.tensor([-1, 2]), X[:2], None)
