import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import dropout_rows, gather_rows, scatter_add_rows

from . import oracle as reference
from .conftest import DTYPES, SUM_DTYPE, assert_close, random_dense


def random_list(count, limit, seed):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, limit, count))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 16, 33, 300])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_gather_matches_reference(instruction_set, threads, dtype, columns, scaled, index):
    X = random_dense(50, columns, 1, dtype, padding=3)
    rows = random_list(2000, 50, 2).to(index)
    scale = torch.rand(2000, dtype=SUM_DTYPE[dtype]) if scaled else None
    threads(1)
    Y = gather_rows(X, rows, scale)
    expected = reference.gather_rows(X, rows, scale)
    if scaled:
        assert_close(Y, expected, expected.abs(), dtype)
    else:
        assert torch.equal(Y, X[rows])
    threads(3)
    out = torch.empty(2000, columns + 2, dtype=dtype)[:, 1:-1]
    assert gather_rows(X, rows, scale, out=out) is out
    assert torch.equal(out, Y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 16, 33, 300])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_scatter_add_matches_reference(instruction_set, threads, dtype, columns, scaled, index):
    rows = random_list(3000, 60, 2).to(index)
    X = random_dense(3000, columns, 1, dtype, padding=1)
    start = random_dense(60, columns, 3, dtype, padding=2)
    generator = torch.Generator().manual_seed(4)
    scale = torch.rand(3000, generator=generator, dtype=SUM_DTYPE[dtype]) if scaled else None
    results = []
    for count in (1, 2, 5):
        threads(count)
        Y = torch.empty(60, columns + 3, dtype=dtype)[:, :columns].copy_(start)
        assert scatter_add_rows(Y, rows, X, scale) is Y
        results.append(Y)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    size = reference.scatter_add_rows(start.abs(), rows, X.abs(), scale)
    if dtype == torch.bfloat16:
        # Each addition is rounded, so a float64 sum says little; and a fused multiply-add can tip
        # one of some fifty roundings, after which the sums differ by an ulp of what they were then.
        expected = start.clone()
        for i, row in enumerate(rows):
            weight = 1.0 if scale is None else scale[i]
            expected[row] = (expected[row].float() + (weight * X[i].float())).bfloat16()
        assert_close(results[0], expected.double(), size / 4, dtype)
    else:
        assert_close(results[0], reference.scatter_add_rows(start, rows, X, scale), size, dtype)


@settings(max_examples=60)
@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 600),
    key=st.integers(-(2**63), 2**64 - 1),
    p=st.floats(0, 1, exclude_max=True),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_dropout_is_the_documented_function(rows, columns, key, p, dtype, seed):
    X = random_dense(rows, columns, seed, dtype)
    ids = random_list(rows, 2**62, seed)
    assert torch.equal(dropout_rows(X, ids, key, p), reference.dropout_rows(X, ids, key, p))


def test_dropout_on_every_instruction_set(instruction_set, threads):
    ids = random_list(3000, 2**40, 1)
    for dtype in DTYPES:
        X = random_dense(3000, 37, 2, dtype, padding=1)
        expected = reference.dropout_rows(X, ids, 99, 0.4)
        for count in (1, 2):
            threads(count)
            assert torch.equal(dropout_rows(X, ids, 99, 0.4), expected)


def test_dropout_mask_moves_with_the_vertex():
    X = torch.ones(500, 20)
    ids = torch.arange(500)
    Y = dropout_rows(X, ids, 7, 0.5)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dropout_rows(X, ids[order], 7, 0.5), Y[order])
    assert torch.equal(dropout_rows(X[:, :9], ids, 7, 0.5), Y[:, :9])


def test_dropout_statistics():
    # Kept share, and no correlation between neighbours in row, column and key: 6 sigma.
    n, columns, p = 4000, 50, 0.3
    X = torch.ones(n, columns)
    kept = [(dropout_rows(X, torch.arange(n), key, p) != 0).double() for key in range(2)]
    sigma = (p * (1 - p) / kept[0].numel()) ** 0.5
    assert abs(float(kept[0].mean()) - (1 - p)) < 6 * sigma
    centred = [k - (1 - p) for k in kept]
    pairs = [
        (centred[0][1:], centred[0][:-1]),
        (centred[0][:, 1:], centred[0][:, :-1]),
        (centred[0], centred[1]),
    ]
    for a, b in pairs:
        assert abs(float((a * b).mean())) < 6 * p * (1 - p) / a.numel() ** 0.5


def test_dropped_infinities_become_zero():
    X = torch.full((100, 10), torch.inf)
    assert set(dropout_rows(X, torch.arange(100), 1, 0.5).flatten().tolist()) == {0.0, torch.inf}


def test_gradients():
    X = random_dense(7, 5, 1, torch.float64).requires_grad_()
    rows = torch.tensor([0, 3, 3, 6, 1])
    scale = torch.rand(5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda X: gather_rows(X, rows, scale), X)
    assert torch.autograd.gradcheck(lambda X: gather_rows(X, rows), X)
    assert torch.autograd.gradcheck(lambda X: dropout_rows(X, torch.arange(7), 5, 0.4), X)
    assert torch.autograd.gradgradcheck(lambda X: gather_rows(X, rows, scale).square(), X)
    assert torch.autograd.gradgradcheck(
        lambda X: dropout_rows(X, torch.arange(7), 5, 0.4).square(), X
    )


def test_other_strides():
    X, rows = random_dense(7, 5, 1), torch.tensor([0, 3, 3, 6, 1])
    wide, scale = rows.repeat_interleave(2)[::2], torch.rand(5).repeat_interleave(2)[::2]
    expected = gather_rows(X, rows, scale.contiguous())
    assert torch.equal(gather_rows(X.T.contiguous().T, wide, scale), expected)
    for Y in (X.clone(), X.clone()):
        scatter_add_rows(Y, wide, expected.T.contiguous().T, scale)
        again = scatter_add_rows(X.clone(), rows, expected, scale.contiguous())
        assert torch.equal(Y, again)
    ids = torch.arange(14)[::2]
    dropped = dropout_rows(X.T.contiguous().T, ids, 3, 0.5)
    assert torch.equal(dropped, dropout_rows(X, ids.contiguous(), 3, 0.5))


def test_bad_input_is_named():
    X = torch.ones(5, 3)
    rows = torch.tensor([0, 1, 2, 3, 4])
    cases = [
        (lambda: gather_rows(X, torch.tensor([0, 5])), r"row 5 outside \[0, 5\)"),
        (lambda: gather_rows(X, torch.tensor([-1])), r"row -1 outside"),
        (lambda: gather_rows(X, rows.short()), "rows must be int32 or int64"),
        (lambda: gather_rows(X, rows, torch.ones(4)), "scale must be"),
        (lambda: gather_rows(X, rows, out=torch.ones(4, 3)), "out must be"),
        (lambda: scatter_add_rows(X.clone(), rows + 1, X), r"row 5 outside"),
        (lambda: scatter_add_rows(X.clone(), rows[:3], X), "rows has 3 entries"),
        (lambda: scatter_add_rows(torch.ones(5, 4), rows, X), "Y must be"),
        (lambda: scatter_add_rows(X, rows, X), "overlap"),
        (lambda: gather_rows(X.numpy(), rows), "X must be a torch.Tensor, got ndarray"),
        (lambda: gather_rows(X, [0, 1]), "rows must be a torch.Tensor, got list"),
        (lambda: gather_rows(X, rows, 2.0), "scale must be a torch.Tensor, got float"),
        (lambda: gather_rows(X, rows, out=3), "out must be a torch.Tensor, got int"),
        (lambda: gather_rows(X, rows, torch.ones(5, requires_grad=True)), "scale is a constant"),
        (lambda: scatter_add_rows(X.numpy(), rows, X), "Y must be a torch.Tensor, got ndarray"),
        (lambda: scatter_add_rows(X.clone(), rows, 3), "X must be a torch.Tensor, got int"),
        (lambda: scatter_add_rows(torch.ones(5), rows, X), "Y must be .* got float32"),
        (lambda: dropout_rows(3, rows, 0, 0.5), "X must be a torch.Tensor, got int"),
        (lambda: dropout_rows(X, rows.int(), 0, 0.5), "vertex_ids must be int64"),
        (lambda: dropout_rows(X, rows, 1.5, 0.5), "key must be an integer .* got float 1.5"),
        (lambda: dropout_rows(X, rows, 2**64, 0.5), "key must be an integer in"),
        (lambda: dropout_rows(X, rows, 0, "0.5"), r"p must be in \[0, 1\), got 0.5"),
        (lambda: dropout_rows(X, rows, 0, 1.0), "p must be in"),
        (lambda: dropout_rows(X, rows[:2], 0, 0.5), "vertex_ids has 2"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
