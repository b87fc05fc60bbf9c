"""Products that take a mean, a largest or a smallest element in place of a sum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import _native
from spgnn.errors import InputError
from spgnn.kernels import spmm
from spgnn.kernels.extremes import extreme_
from spgnn.sparse import CSR

from . import oracle as reference
from .conftest import DTYPES, random_block, random_dense, random_heads


def expected(A, X, largest):
    """Row by row: the element, and the column of the first nonzero that has it."""
    out = torch.zeros(A.shape[0], X.shape[1], dtype=X.dtype)
    arg = torch.full(out.shape, -1)
    bounds = A.indptr.tolist()
    for row in range(A.shape[0]):
        cols = A.indices[bounds[row] : bounds[row + 1]].long()
        for c in range(X.shape[1] if len(cols) else 0):
            listed = X[cols, c].tolist()
            best = max(listed) if largest else min(listed)
            out[row, c], arg[row, c] = best, cols[listed.index(best)]
    return out, arg


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=20),
    columns=st.sampled_from([1, 3, 16, 70]),
    dtype=st.sampled_from(DTYPES),
    index=st.sampled_from([torch.int32, torch.int64]),
    largest=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_extremes(lengths, columns, dtype, index, largest, seed):
    A = random_block(len(lengths), 12, lengths, seed, index=index)
    X = random_dense(12, columns, seed, dtype).mul(2).round()  # with ties
    right, listed = expected(A, X, largest)
    before = _native.instruction_set()
    for name in _native.instruction_sets():
        _native.use_instruction_set(name)
        out, arg = extreme_(A.pattern, X, largest=largest)
        assert torch.equal(spmm(A, X, reduce="max" if largest else "min"), out)
        assert torch.equal(out, right)
        assert arg.dtype == torch.int32
        assert torch.equal(arg.long(), listed)
    _native.use_instruction_set(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_views_make_no_difference(instruction_set, threads, dtype):
    lengths = [3, 0, 300, 1, 7] * 20
    A = random_block(len(lengths), 1000, lengths, 1)
    X = random_dense(1000, 37, 2, dtype, padding=3).mul(2).round()
    right, listed = expected(A, X, True)
    G = random_dense(len(lengths), 37, 5, dtype)
    sums, columns = torch.zeros(1000, 37, dtype=dtype), torch.arange(37)
    for cols, g in zip(listed, G, strict=True):
        sums[cols.clamp_min(0), columns] += torch.where(cols < 0, 0.0, g)
    for count in (1, 2, 3):
        threads(count)
        out, arg = extreme_(A.pattern, X)
        assert torch.equal(out, right)
        assert torch.equal(arg.long(), listed)
        leaf = X.clone().requires_grad_()
        spmm(A, leaf, reduce="max").backward(G)
        assert torch.equal(leaf.grad, sums)


@pytest.mark.parametrize("largest", [True, False])
def test_blocks_one_after_the_other(largest):
    A, B = (random_block(20, 8, [3, 0, 5, 1] * 5, seed) for seed in (1, 2))
    X = random_dense(16, 5, 3).mul(2).round()
    state = extreme_(A.pattern, X[:8], largest=largest)
    assert extreme_(B.pattern, X[8:], state, largest=largest, first_column=8) is state
    rows = [
        torch.cat(
            [
                one.indices[a:b] + shift
                for one, shift, a, b in zip((A, B), (0, 8), bounds[::2], bounds[1::2], strict=True)
            ]
        )
        for bounds in zip(A.indptr[:-1], A.indptr[1:], B.indptr[:-1], B.indptr[1:], strict=True)
    ]
    indptr = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    right, listed = expected(CSR.of(indptr, torch.cat(rows), (20, 16)), X, largest)
    assert torch.equal(state[0], right)
    assert torch.equal(state[1].long(), listed)


@pytest.mark.parametrize("parts", [(), ("values",), ("values", "row_scale", "col_scale")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mean(parts, dtype):
    A = random_block(9, 12, [3, 0, 5, 1, 2, 4, 0, 7, 2], 4, dtype=dtype, parts=parts)
    X = random_dense(12, 4, 1, dtype)
    right = reference.spmm(A, X) / A.row_lengths.clamp_min(1)[:, None]
    rounding = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert torch.allclose(spmm(A, X, reduce="mean").double(), right, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
def test_derivatives(reduce):
    A = random_block(9, 7, [3, 0, 5, 1, 2, 4, 0, 7, 2], 4)
    A = CSR(A.pattern)
    X = random_dense(7, 3, 1, torch.float64).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda X: spmm(A, X, reduce=reduce), X)
    assert torch.autograd.gradgradcheck(lambda X: spmm(A, X, reduce=reduce), X)


def test_heads_and_compilers():
    A = random_block(6, 7, [3, 0, 5, 1, 2, 4], 4)
    X = random_heads(7, 2, 3, 1)
    right = spmm(A, X.reshape(7, 6), reduce="max")
    assert torch.equal(spmm(A, X, reduce="max"), right.view(6, 2, 3))
    compiled = torch.compile(
        lambda X: spmm(A, X, reduce="max") * 2, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(X.reshape(7, 6)), 2 * right)


@pytest.mark.parametrize("largest", [True, False])
def test_what_is_no_number_comes_first_in_any_block(largest):
    A = random_block(3, 4, [4, 2, 0], 0)
    X = random_dense(4, 2, 1)
    X[A.indices[3].long(), 0] = torch.nan
    for first, second in ((X, torch.zeros_like(X)), (torch.zeros_like(X), X)):
        state = extreme_(A.pattern, first, largest=largest)
        out, arg = extreme_(A.pattern, second, state, largest=largest, first_column=4)
        assert bool(out[0, 0].isnan())
        assert int(arg[0, 0]) == int(A.indices[3]) + 4 * (second is X)
        assert int(arg[2, 1]) == -1


def test_a_state_that_does_not_fit_is_named():
    A, X = random_block(3, 4, [4, 2, 0], 0), random_dense(4, 2, 1)
    out, arg = extreme_(A.pattern, X)
    for state, message in (
        ((out[:2], arg), r"state must be torch.float32 \[3, 2\]"),
        ((out, arg[:2]), r"columns must be torch.int32 or torch.int64 \[3, 2\]"),
        ((out, arg.float()), "got float32"),
    ):
        with pytest.raises(InputError, match=message):
            extreme_(A.pattern, X, state)


def test_bad_input_is_named():
    A = random_block(4, 5, [1] * 4, 0, parts=("values",))
    X = torch.ones(5, 2)
    for call, message in (
        (lambda: spmm(A, X, reduce="maximum"), "max"),
        (lambda: spmm(A, X, reduce="max"), "without values"),
        (lambda: spmm(CSR(A.pattern), X, out=torch.ones(4, 2), reduce="max"), "takes no out"),
    ):
        with pytest.raises(InputError, match=message):
            call()
