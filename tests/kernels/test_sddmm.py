"""Products of rows of two dense matrices where a sparse one has nonzeros."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import sddmm, spmm
from spgnn.sparse import CSR

from . import oracle as reference
from .conftest import DTYPES, SUM_DTYPE, assert_close, random_block, random_dense, random_heads

WIDTHS = [1, 3, 16, 17, 64, 129]
SHAPES = {
    "usual": (40, 23, [3, 0, 7, 1] * 10),
    "empty": (5, 4, [0] * 5),
    "no rows": (0, 4, []),
    "long row": (6, 9000, [0, 2, 9000, 0, 1, 0]),
}


def magnitude(A: CSR, G: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
    scales = (None if s is None else s.abs() for s in (A.row_scale, A.col_scale))
    return reference.sddmm(CSR(A.pattern).with_scales(*scales), G.abs(), X.abs())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [0, *WIDTHS])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_products_match_the_reference(instruction_set, dtype, columns, index):
    for seed, (rows, cols, lengths) in enumerate(SHAPES.values()):
        for parts in ((), ("row_scale",), ("values", "row_scale", "col_scale")):
            A = random_block(rows, cols, lengths, seed, dtype=dtype, parts=parts, index=index)
            G = random_dense(rows, columns, seed + 10, dtype, padding=2)
            X = random_dense(cols, columns, seed + 20, dtype, padding=1)
            expected = reference.sddmm(A, G, X)
            assert_close(sddmm(A, G, X), expected, magnitude(A, G, X), SUM_DTYPE[dtype])


@settings(max_examples=80)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    cols=st.integers(1, 50),
    heads=st.integers(0, 5),
    columns=st.sampled_from(WIDTHS),
    padding=st.integers(0, 3),
    parts=st.sets(st.sampled_from(["row_scale", "col_scale"])),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_heads_of_any_shape(lengths, cols, heads, columns, padding, parts, dtype, seed):
    A = random_block(len(lengths), cols, lengths, seed, dtype=dtype, parts=parts)
    G = random_heads(len(lengths), heads, columns, seed, dtype, padding)
    X = random_heads(cols, heads, columns, seed + 1, dtype, padding)
    products = sddmm(A, G, X)
    assert products.shape == (A.nnz, heads)
    for head in range(heads):
        expected = reference.sddmm(A, G[:, head], X[:, head])
        size = magnitude(A, G[:, head], X[:, head])
        assert_close(products[:, head], expected, size, SUM_DTYPE[dtype])
        assert torch.equal(products[:, head], sddmm(A, G[:, head], X[:, head]))


def test_a_pattern_has_no_scalings():
    A = random_block(30, 20, [5] * 30, 0, parts=("values", "row_scale", "col_scale"))
    G, X = random_dense(30, 8, 1), random_dense(20, 8, 2)
    assert torch.equal(sddmm(A.pattern, G, X), sddmm(CSR(A.pattern), G, X))


def test_other_strides():
    A = random_block(30, 20, [5] * 30, 0, parts=("row_scale", "col_scale"))
    G, X = random_dense(30, 8, 1), random_dense(20, 8, 2)
    expected = sddmm(A, G, X)
    assert torch.equal(sddmm(A, G.T.contiguous().T, X.T.contiguous().T), expected)
    strided = (s.repeat_interleave(2)[::2] for s in (A.row_scale, A.col_scale))
    assert torch.equal(sddmm(A.with_scales(*strided), G, X), expected)


@pytest.mark.parametrize("heads", [None, 3])
def test_bits_do_not_depend_on_threads(threads, heads):
    A = random_block(500, 300, [250, 3, 0, 9] * 125, 0)
    shape = (33,) if heads is None else (heads, 33)
    G, X = (random_dense(n, np.prod(shape), n).unflatten(1, shape) for n in (500, 300))
    threads(1)
    expected = sddmm(A, G, X)
    for count in (2, 3, 5):
        threads(count)
        assert torch.equal(sddmm(A, G, X), expected)


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("parts", [(), ("row_scale", "col_scale")])
def test_derivatives(heads, parts):
    A = random_block(6, 5, [2, 0, 3, 5, 1, 2], 0, dtype=torch.float64, parts=parts)
    shape = (3,) if heads is None else (heads, 3)
    G, X = (
        random_dense(n, np.prod(shape), n, torch.float64).unflatten(1, shape).requires_grad_()
        for n in A.shape
    )
    assert torch.autograd.gradcheck(lambda G, X: sddmm(A, G, X), (G, X))
    assert torch.autograd.gradgradcheck(lambda G, X: sddmm(A, G, X).square(), (G, X))
    assert torch.autograd.gradcheck(lambda G: sddmm(A, G, X.detach()), G)


def test_is_the_gradient_in_values():
    A = random_block(6, 5, [2, 0, 3, 5, 1, 2], 0, parts=("values", "row_scale", "col_scale"))
    A.values.requires_grad_()
    X, G = random_dense(5, 4, 1), random_dense(6, 4, 2)
    spmm(A, X).backward(G)
    assert torch.equal(A.values.grad, sddmm(A, G, X))


def test_bad_input_is_named():
    A = random_block(4, 5, [1] * 4, 0)
    G, X = torch.ones(4, 3), torch.ones(5, 3)
    cases = [
        (lambda: sddmm(A, X, X), r"G must be torch.float32 \[4, 3\] on cpu as X is, got float32"),
        (lambda: sddmm(A, G.double(), X), "G must be torch.float32"),
        (lambda: sddmm(A, G, G), r"X must be \[5, f\]"),
        (lambda: sddmm(A, G.numpy(), X), "G must be a torch.Tensor, got ndarray"),
        (lambda: sddmm(A, G, X.numpy()), "X must be a torch.Tensor, got ndarray"),
        (
            lambda: sddmm(A.to_scipy(), G, X),
            "A must be a spgnn.CSR or spgnn.Pattern, got csr_array",
        ),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
