"""Products with values [nnz, heads]: a matrix for each head, all with one pattern."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import spmm
from spgnn.sparse import CSR

from . import oracle as reference
from .conftest import DTYPES, SUM_DTYPE, assert_close, random_block, random_dense, random_heads

WIDTHS = [1, 3, 16, 17, 64, 129]


def with_heads(A: CSR, heads: int, seed: int, dtype=torch.float32) -> CSR:
    return A.with_values(random_dense(A.nnz, heads, seed, SUM_DTYPE[dtype]))


def of_head(A: CSR, head: int) -> CSR:
    return A if A.values is None or A.values.dim() == 1 else A.with_values(A.values[:, head])


@settings(max_examples=120)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    cols=st.integers(1, 50),
    heads=st.integers(0, 5),
    columns=st.sampled_from(WIDTHS),
    padding=st.integers(0, 3),
    parts=st.sets(st.sampled_from(["row_scale", "col_scale"])),
    dtype=st.sampled_from(DTYPES),
    index=st.sampled_from([torch.int32, torch.int64]),
    transposed=st.booleans(),
    accumulate=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_head_is_a_product(
    lengths, cols, heads, columns, padding, parts, dtype, index, transposed, accumulate, seed
):
    A = random_block(len(lengths), cols, lengths, seed, dtype=dtype, parts=parts, index=index)
    A = with_heads(A, heads, seed, dtype)
    A = A.T if transposed else A
    X = random_heads(A.shape[1], heads, columns, seed, dtype, padding)
    start = random_heads(A.shape[0], heads, columns, seed + 1, dtype, padding)
    out = torch.empty_strided(start.shape, start.stride(), dtype=dtype).copy_(start)
    assert spmm(A, X, out=out, accumulate=accumulate) is out
    for head in range(heads):
        one, X_head, added = of_head(A, head), X[:, head], start[:, head].double() * accumulate
        size = reference.dense(one).abs() @ X_head.double().abs() + added.abs()
        assert_close(out[:, head], reference.spmm(one, X_head) + added, size, dtype)
    if not accumulate:
        assert torch.equal(spmm(A, X), out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [(), ("row_scale", "col_scale")])
@pytest.mark.parametrize("columns", [16, 150])
def test_bits_are_those_of_single_products(instruction_set, threads, dtype, parts, columns):
    lengths = [3, 2048, 2049, 0, 5000, 1, 4096, 5, *[7] * 300, 4500]
    A = with_heads(
        random_block(len(lengths), 5000, lengths, 5, dtype=dtype, parts=parts), 3, 1, dtype
    )
    X = random_heads(5000, 3, columns, 6, dtype)
    for count in (1, 2, 5):
        threads(count)
        Y = spmm(A, X)
        for head in range(3):
            assert torch.equal(Y[:, head], spmm(of_head(A, head), X[:, head]))


@pytest.mark.parametrize("parts", [(), ("values",), ("values", "row_scale", "col_scale")])
def test_one_matrix_for_all_heads(parts):
    A = random_block(20, 30, [4] * 20, 1, parts=parts)
    X = random_heads(30, 4, 5, 2)
    Y = spmm(A, X)
    assert torch.equal(Y, spmm(A, X.reshape(30, 20)).view(20, 4, 5))
    out = torch.ones(20, 4, 5)
    assert spmm(A, X, out=out, accumulate=True) is out
    assert torch.allclose(out, Y + 1)
    with pytest.raises(InputError, match="neighbouring heads"):
        spmm(A, X, out=torch.ones(20, 4, 6)[:, :, :5])


def test_strided_values_and_scalings():
    """Columns of a matrix, and one number for all, are arrays like any other."""
    A = random_block(20, 20, [4] * 20, 1)
    values, ones = random_dense(A.nnz, 3, 2), torch.full((1,), 2.0).expand(20)
    X = random_dense(20, 5, 3)
    for array in (values[:, 1], values[:, :2], values.T.contiguous().T):
        dense = X if array.dim() == 1 else X[:, None].repeat(1, array.shape[1], 1)
        expected = spmm(
            A.with_values(array.contiguous()).with_scales(ones.clone(), ones.clone()), dense
        )
        assert torch.equal(spmm(A.with_values(array).with_scales(ones, ones), dense), expected)


@pytest.mark.parametrize("parts", [(), ("row_scale", "col_scale")])
def test_derivatives(parts):
    A = random_block(9, 7, [3, 0, 5, 1, 2, 4, 0, 7, 2], 4, dtype=torch.float64, parts=parts)
    values = random_dense(A.nnz, 2, 1, torch.float64).requires_grad_()
    X = random_heads(7, 2, 3, 2, torch.float64).requires_grad_()
    G = random_heads(9, 2, 3, 2, torch.float64).requires_grad_()

    def product(values, X):
        return spmm(A.with_values(values), X)

    def adjoint(values, G):
        return spmm(A.with_values(values).T, G)

    assert torch.autograd.gradcheck(product, (values, X))
    assert torch.autograd.gradgradcheck(product, (values, X))
    assert torch.autograd.gradcheck(adjoint, (values, G))
    assert torch.autograd.gradgradcheck(adjoint, (values, G))


def test_bad_input_is_named():
    A = with_heads(random_block(4, 5, [1] * 4, 0), 3, 1)
    for X in (torch.ones(5, 6), torch.ones(5, 2, 6)):
        with pytest.raises(InputError, match=r"X must be \[5, 3, f\] for values \[4, 3\], got \[5"):
            spmm(A, X)
    with pytest.raises(InputError, match=r"out must be torch.float32 \[4, 3, 6\]"):
        spmm(A, torch.ones(5, 3, 6), out=torch.ones(4, 18))
    X = torch.ones(5, 3, 6)
    with pytest.raises(InputError, match="overlap"):
        spmm(A, X, out=X[:4])
    assert np.prod(spmm(A, X).shape) == 72
