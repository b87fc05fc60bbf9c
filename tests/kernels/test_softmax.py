"""Softmax over the nonzeros of each row, against torch's own, row by row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import edge_softmax

from . import oracle as reference
from .conftest import DTYPES, random_block, random_dense

# Of sums; of results, which are rounded once more in bfloat16.
EPSILON = {torch.float32: 6e-8, torch.float64: 1.1e-16, torch.bfloat16: 6e-8}
LAST = {torch.float32: 0, torch.float64: 0, torch.bfloat16: 4e-3}
# Rows longer than a task are worked on in pieces; lengths sit around the cut.
LONG = [3, 2048, 2049, 0, 5000, 1, 4096, 5, 2050, 0, *[7] * 300, 4500]


def pattern_of(lengths, cols, seed=0):
    return random_block(len(lengths), cols, lengths, seed).pattern


def assert_softmax(actual, pattern, scores, terms=60):
    assert (actual.dtype, actual.shape) == (scores.dtype, scores.shape)
    expected = reference.edge_softmax(pattern, scores)
    # The distance to the largest score is rounded before the exponential is taken.
    distance = -expected.clamp_min(1e-300).log()
    allowed = EPSILON[scores.dtype] * (terms + 4 * distance) + LAST[scores.dtype]
    assert bool(((actual.double() - expected).abs() <= allowed * expected + 1e-37).all())


@settings(max_examples=100)
@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 60)), max_size=40),
    heads=st.one_of(st.none(), st.integers(0, 9), st.sampled_from([16, 17, 40])),
    spread=st.sampled_from([1.0, 30.0]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(lengths, heads, spread, dtype, seed):
    pattern = pattern_of(lengths, 64, seed)
    scores = spread * random_dense(pattern.nnz, 1 if heads is None else heads, seed, dtype)
    scores = scores[:, 0] if heads is None else scores
    assert_softmax(edge_softmax(pattern, scores), pattern, scores)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 4, 20])
def test_long_rows_on_any_threads(instruction_set, threads, dtype, heads):
    pattern = pattern_of(LONG, 5000)
    scores = 10 * random_dense(pattern.nnz, heads, 1, dtype)
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(edge_softmax(pattern, scores))
    assert_softmax(results[0], pattern, scores, terms=1000)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype):
    pattern = pattern_of(LONG, 5000)
    scores = random_dense(pattern.nnz, 3, 1, dtype)
    whole = edge_softmax(pattern, scores)
    for row, length in enumerate(LONG[:11]):
        mine = slice(int(pattern.indptr[row]), int(pattern.indptr[row + 1]))
        alone = pattern_of([length], 5000)
        assert torch.equal(edge_softmax(alone, scores[mine]), whole[mine])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[6, 2, 1], [6000, 5000, 1]])
def test_infinite_and_huge_scores(instruction_set, dtype, lengths):
    pattern = pattern_of(lengths, max(lengths))
    first, second, _ = lengths
    scores = random_dense(pattern.nnz, 2, 1, dtype)
    scores[0, 0] = -torch.inf
    scores[1:first, 1] = -torch.inf
    scores[first : first + second] = -torch.inf  # a row with nothing else
    scores[-1] = 1e30
    weights = edge_softmax(pattern, scores)
    assert float(weights[0, 0]) == 0
    assert weights[:first, 1].tolist() == [1.0] + [0.0] * (first - 1)
    assert not weights[first : first + second].any()
    assert weights[-1].tolist() == [1.0, 1.0]
    assert_softmax(weights[:first], pattern_of([first], first), scores[:first], terms=1000)

    shifted = 1e4 + 4 * torch.arange(pattern.nnz)[:, None].to(dtype) * torch.ones(2, dtype=dtype)
    assert_softmax(edge_softmax(pattern, shifted), pattern, shifted)


def test_what_is_no_number_spoils_its_row_alone():
    pattern = pattern_of([4, 3000, 3], 3000)
    scores = torch.zeros(pattern.nnz)
    for spoiled, bad in ((2, torch.nan), (2999, torch.nan), (1500, torch.inf)):
        scores.zero_()[spoiled] = bad
        weights = edge_softmax(pattern, scores)
        lost = slice(0, 4) if spoiled < 4 else slice(4, 3004)
        if bad != torch.inf:
            assert bool(weights[lost].isnan().all())
        assert bool(weights[spoiled].isnan())
        assert not weights[3004:].isnan().any()


@pytest.mark.parametrize("heads", [None, 3])
def test_derivatives(heads):
    pattern = pattern_of([2, 0, 3, 5, 1, 2], 6)
    scores = random_dense(pattern.nnz, heads or 1, 1, torch.float64)
    scores = (scores[:, 0] if heads is None else scores).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: edge_softmax(pattern, s), scores)
    assert torch.autograd.gradgradcheck(lambda s: edge_softmax(pattern, s), scores)
    # A third time, through the sums of rows.
    direction = torch.randn(scores.shape, generator=torch.manual_seed(0), dtype=torch.float64)

    def curvature(s):
        s = s if s.requires_grad else s.detach().requires_grad_()
        (g,) = torch.autograd.grad(edge_softmax(pattern, s).pow(3).sum(), s, create_graph=True)
        return torch.autograd.grad((g * direction).sum(), s, create_graph=True)[0]

    assert torch.autograd.gradcheck(curvature, scores)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_over_long_rows(dtype):
    pattern = pattern_of(LONG, 5000)
    scores = random_dense(pattern.nnz, 2, 1, dtype).requires_grad_()
    G = random_dense(pattern.nnz, 2, 2, dtype)
    edge_softmax(pattern, scores).backward(G)
    weights, wide = reference.edge_softmax(pattern, scores.detach()), G.double()
    expected = weights * (wide - reference.row_sums(pattern, weights * wide))
    size = weights * (wide.abs() + reference.row_sums(pattern, weights * wide.abs()))
    error = (scores.grad.double() - expected).abs()
    assert bool((error <= (200 * EPSILON[dtype] + 2 * LAST[dtype]) * size + 1e-37).all())


def test_a_masked_row_has_no_gradient():
    pattern = pattern_of([3, 2], 4)
    scores = torch.tensor([0.0, 1.0, -torch.inf, -torch.inf, -torch.inf], requires_grad=True)
    (edge_softmax(pattern, scores) * torch.arange(5)).sum().backward()
    assert scores.grad[2:].tolist() == [0.0, 0.0, 0.0]
    assert bool(scores.grad.isfinite().all())


def test_other_strides():
    pattern = pattern_of([4, 0, 9], 9)
    scores = random_dense(pattern.nnz, 4, 1)
    expected = edge_softmax(pattern, scores)
    assert torch.equal(edge_softmax(pattern, scores.T.contiguous().T), expected)
    assert torch.equal(
        edge_softmax(pattern, scores[:, 1]), edge_softmax(pattern, scores[:, 1:2])[:, 0]
    )


def test_bad_input_is_named():
    A = random_block(4, 5, [1] * 4, 0)
    cases = [
        (lambda: edge_softmax(A, torch.ones(4)), "pattern must be a spgnn.Pattern, got CSR"),
        (lambda: edge_softmax(A.pattern, np.ones(4)), "scores must be a torch.Tensor, got ndarray"),
        (
            lambda: edge_softmax(A.pattern, torch.ones(5)),
            r"scores must be .* \[4\] or \[4, heads\]",
        ),
        (lambda: edge_softmax(A.pattern, torch.ones(4, 1, 1)), "scores must be"),
        (lambda: edge_softmax(A.pattern, torch.ones(4).half()), "got float16"),
        (lambda: edge_softmax(A.pattern, torch.ones(4).int()), "got int32"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
