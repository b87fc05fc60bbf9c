"""Products with sparse matrices, numbers for nonzeros, softmax: against dense ones in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import _native
from spgnn.errors import InputError
from spgnn.kernels import edge_softmax, sddmm, spmm
from spgnn.sparse import CSR

from . import oracle
from .conftest import (
    DTYPES,
    EPSILON,
    LAST,
    PARTS,
    SUM_DTYPE,
    assert_product,
    assert_sddmm,
    assert_softmax,
    random_block,
    random_dense,
    random_heads,
)

WIDTHS = [1, 3, 16, 17, 31, 32, 64, 127, 129, 300]
# Rows longer than a task are worked on in pieces; lengths sit around the cut.
LONG = [3, 2048, 2049, 0, 5000, 1, 4096, 5, 2050, 0, *[7] * 700, 4500]
SMALL = [3, 0, 5, 1, 2, 4, 0, 7, 2]


def of_head(A, head):
    return A.with_values(A.values[:, head])


@settings(max_examples=200)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    cols=st.integers(1, 50),
    heads=st.one_of(st.none(), st.integers(0, 5), st.just(17)),
    columns=st.sampled_from([0, *WIDTHS[:7], 70]),
    padding=st.integers(0, 5),
    parts=st.sets(st.sampled_from(["values", "row_scale", "col_scale"])),
    dtype=st.sampled_from(DTYPES),
    index=st.sampled_from([torch.int32, torch.int64]),
    accumulate=st.booleans(),
    transposed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(
    lengths, cols, heads, columns, padding, parts, dtype, index, accumulate, transposed, seed
):
    A = random_block(len(lengths), cols, lengths, seed, dtype=dtype, parts=parts, index=index)
    if heads is not None:
        A = A.with_values(random_dense(A.nnz, heads, seed, SUM_DTYPE[dtype]))
    A = A.T if transposed else A

    def dense(rows, seed):
        if heads is None:
            return random_dense(rows, columns, seed, dtype, padding)
        return random_heads(rows, heads, columns, seed, dtype, padding)

    X, G, start = dense(A.shape[1], seed), dense(A.shape[0], seed + 1), dense(A.shape[0], seed + 2)
    out = torch.empty_strided(start.shape, start.stride(), dtype=dtype).copy_(start)
    assert spmm(A, X, out=out, accumulate=accumulate) is out
    assert_product(out, A, X, start.double() if accumulate else 0.0)
    if not accumulate:
        assert torch.equal(spmm(A, X), out)
    products = sddmm(A, G, X)
    assert products.shape == (A.nnz, *(() if heads is None else (heads,)))
    assert_sddmm(products, A, G, X)
    scores = 30 * dense(A.nnz, seed + 3).flatten(1)[:, : (heads or 1)]
    scores = scores[:, 0] if heads is None and columns else scores
    assert_softmax(edge_softmax(A.pattern, scores), A.pattern, scores)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("columns", [1, 16, 19, 64, 129, 300])
def test_blocks_of_sources_give_the_same_bits(
    instruction_set, use_last_cache_bytes, threads, dtype, parts, columns
):
    lengths = np.random.default_rng(1).integers(0, 90, 140)
    lengths[[5, 77, 139]] = 4500  # more than two tasks
    A = random_block(140, 5000, lengths, 2, dtype=dtype, parts=parts)
    X = random_dense(5000, columns, 3, dtype, 1)
    X[7], X[8, 0] = -0.0, torch.inf
    use_last_cache_bytes(0)
    expected = spmm(A, X)
    for share in (5, 9, 20):
        use_last_cache_bytes(2 * X[:, :columns].numel() * X.element_size() // share)
        for count in (1, 2, 3):
            threads(count)
            assert torch.equal(spmm(A, X).view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("columns", WIDTHS)
def test_every_width_however_X_is_read(instruction_set, use_near_bytes, dtype, parts, columns):
    lengths = np.random.default_rng(1).integers(0, 40, 57)
    lengths[5] = 4500  # more than two tasks
    A = random_block(57, 5000, lengths, 2, dtype=dtype, parts=parts)
    X, Y = random_dense(5000, columns, 3, dtype, 1), random_dense(57, columns, 4, dtype)
    results = []
    for near_bytes in (0, 2**40):
        use_near_bytes(near_bytes)
        results.append(spmm(A, X, out=Y.clone(), accumulate=True))
        assert_product(results[-1], A, X, Y.double())
        assert_product(spmm(A, X), A, X)
    assert torch.equal(*results)
    assert_sddmm(sddmm(A, Y, X), A, Y, X)
    X[7], X[8, 0] = -0.0, torch.inf
    results = []
    for near_bytes in (0, 2**40):
        use_near_bytes(near_bytes)
        results.append(spmm(A, X, out=Y.clone(), accumulate=True).view(torch.uint8))
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("parts", "columns"), list(zip(PARTS, [16, 150, 150, 16], strict=True)))
def test_bits_depend_neither_on_threads_nor_on_heads(
    instruction_set, threads, dtype, parts, columns
):
    A = random_block(len(LONG), 5000, LONG, 5, dtype=dtype, parts=parts)
    heads = A.with_values(random_dense(A.nnz, 3, 1, SUM_DTYPE[dtype]))
    X, X_heads = random_dense(5000, columns, 6, dtype), random_heads(5000, 3, columns, 6, dtype)
    start = random_dense(len(LONG), columns, 7, dtype)
    scores = 10 * random_dense(A.nnz, 4, 1, dtype)
    results = []
    for count in (1, 2, 5):
        threads(count)
        Y, added = spmm(A, X), spmm(A, X, out=start.clone(), accumulate=True)
        products, weights = sddmm(A, start, X), edge_softmax(A.pattern, scores)
        results.append((Y, added, products, weights, spmm(heads, X_heads)))
    for found in results[1:]:
        assert all(map(torch.equal, found, results[0]))
    Y, added, products, weights, Y_heads = results[0]
    assert_product(Y, A, X)
    assert_product(added, A, X, start.double())
    assert_sddmm(products, A, start, X)
    assert_softmax(weights, A.pattern, scores, terms=1000)
    for h in range(3):
        assert torch.equal(Y_heads[:, h], spmm(of_head(heads, h), X_heads[:, h]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others(dtype):
    A, X = random_block(len(LONG), 5000, LONG, 2, dtype=dtype), random_dense(5000, 20, 3, dtype)
    scores = random_dense(A.nnz, 3, 1, dtype)
    Y, weights = spmm(A, X), edge_softmax(A.pattern, scores)
    for row in [*range(12), len(LONG) - 1]:
        mine = slice(int(A.indptr[row]), int(A.indptr[row + 1]))
        alone = CSR.of(torch.tensor([0, LONG[row]]), A.indices[mine], (1, 5000))
        assert torch.equal(spmm(alone, X)[0], Y[row])
        assert torch.equal(edge_softmax(alone.pattern, scores[mine]), weights[mine])


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (3000, 4)])
def test_empty_blocks(shape):
    rows, cols = shape
    A = random_block(rows, cols, [0] * rows, 0)
    assert torch.equal(spmm(A, torch.ones(cols, 6)), torch.zeros(rows, 6))
    assert torch.equal(spmm(A.T, torch.ones(rows, 6)), torch.zeros(cols, 6))
    out = torch.ones(rows, 6)
    assert torch.equal(spmm(A, torch.ones(cols, 6), out=out, accumulate=True), torch.ones(rows, 6))
    assert sddmm(A, torch.ones(rows, 6), torch.ones(cols, 6)).shape == (0,)


def test_other_strides(instruction_set):
    A = random_block(20, 30, [4] * 20, 1, parts=("row_scale", "col_scale"))
    X, G = random_dense(30, 8, 2), random_dense(20, 8, 1)
    values, two = random_dense(A.nnz, 3, 2), torch.full((1,), 2.0)
    scaled = A.with_scales(*(s.repeat_interleave(2)[::2] for s in (A.row_scale, A.col_scale)))
    assert torch.equal(spmm(A, X.T.contiguous().T), spmm(A, X))
    assert torch.equal(spmm(scaled, X[:1].expand(30, 8)), spmm(A, X[:1].repeat(30, 1)))
    assert torch.equal(sddmm(scaled, G.T.contiguous().T, X.T.contiguous().T), sddmm(A, G, X))
    assert torch.equal(sddmm(A.pattern, G, X), sddmm(CSR(A.pattern), G, X))
    for array in (values[:, 1], values[:, :2], values.T.contiguous().T):
        dense = X if array.dim() == 1 else X[:, None].repeat(1, array.shape[1], 1)
        strided = A.with_values(array).with_scales(two.expand(20), two.expand(30))
        plain = A.with_values(array.contiguous()).with_scales(two.repeat(20), two.repeat(30))
        assert torch.equal(spmm(strided, dense), spmm(plain, dense))
        weights = edge_softmax(A.pattern, array)
        assert torch.equal(weights, edge_softmax(A.pattern, array.contiguous()))


def test_where_results_are_written(instruction_set):
    A = random_block(20, 20, [4] * 20, 1)
    for dtype in DTYPES:
        wide = torch.full((20, 40), 7.0, dtype=dtype)
        spmm(A, random_dense(20, 21, 2, dtype), out=wide[:, 5:26])
        assert bool((wide[:, :5] == 7).all())
        assert bool((wide[:, 26:] == 7).all())
    wide = random_dense(20, 30, 2)
    expected = spmm(A, wide[:, :12])
    assert torch.equal(spmm(A, wide[:, :12], out=wide[:, 12:24]), expected)
    with pytest.raises(InputError, match="overlap"):
        spmm(A, wide[:, :12], out=wide[:, 11:23])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", PARTS)
def test_what_does_not_fit_is_left_to_the_checks(dtype, parts):
    A, X = (
        random_block(20, 30, [4] * 20, 1, dtype=dtype, parts=parts),
        random_dense(30, 8, 2, dtype),
    )
    block = A.indptr, A.indices, A.values, A.row_scale, A.col_scale
    other = torch.float64 if dtype == torch.float32 else torch.float32
    both = random_dense(50, 8, 4, dtype)
    Y = torch.zeros(20, 8, dtype=dtype)
    multiply, kept = _native.spmm_if_plain, both.clone()
    for bad_X, bad_Y in (
        (X[1:], Y),
        (X, Y[1:]),
        (X[:, 1:], Y),
        (X.to(other), Y),
        (X.to(other), Y.to(other)) if parts and dtype != torch.bfloat16 else (X, None),
        (X.half(), Y.half()),
        (X.long(), Y.long()),
        (X.T.contiguous().T, Y),
        (X, Y.T.contiguous().T),
        (X[:, None], Y[:, None]),
        (X.numpy() if dtype != torch.bfloat16 else 3, Y),
        (X.to_sparse(), Y),
        (both[:30], both[29:49]),
    ):
        assert not multiply(*block, 30, bad_X, bad_Y, False)
    assert not multiply(*block, 31, X, Y, False)
    for place, array in enumerate(block[2:], 2):
        for bad in () if array is None else (array[1:], array.half(), array[:, None]):
            assert not multiply(*block[:place], bad, *block[place + 1 :], 30, X, Y, False)
    assert not Y.any()
    assert both.equal(kept)
    assert multiply(*block, 30, both[:30], both[30:], False)
    assert_product(both[30:], A, both[:30])


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


def test_sums_are_float32_for_bfloat16():
    # 1 + 2⁻¹⁰ many times: bfloat16 sums would stay at 1.
    A, X = random_block(1, 1024, [1024], 0), torch.full((1024, 3), 2.0**-10, dtype=torch.bfloat16)
    assert torch.equal(spmm(A, X), torch.ones(1, 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[6, 2, 1], [6000, 5000, 1]])
def test_softmax_of_infinite_and_huge_scores(instruction_set, dtype, lengths):
    pattern = random_block(3, max(lengths), lengths, 0).pattern
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
    alone = random_block(1, first, [first], 0).pattern
    assert_softmax(weights[:first], alone, scores[:first], terms=1000)
    shifted = 1e4 + 4 * torch.arange(pattern.nnz)[:, None].to(dtype) * torch.ones(2, dtype=dtype)
    assert_softmax(edge_softmax(pattern, shifted), pattern, shifted)


def test_what_is_no_number_spoils_its_row_alone():
    pattern = random_block(3, 3000, [4, 3000, 3], 0).pattern
    scores = torch.zeros(pattern.nnz)
    for spoiled, bad in ((2, torch.nan), (2999, torch.nan), (1500, torch.inf)):
        scores.zero_()[spoiled] = bad
        weights = edge_softmax(pattern, scores)
        lost = slice(0, 4) if spoiled < 4 else slice(4, 3004)
        if bad != torch.inf:
            assert bool(weights[lost].isnan().all())
        assert bool(weights[spoiled].isnan())
        assert not weights[3004:].isnan().any()


@pytest.mark.parametrize("heads", [None, 2])
@pytest.mark.parametrize("parts", PARTS)
def test_derivatives(heads, parts):
    """In every dense operand and in values, of both sides: first and second."""
    A = random_block(5, 4, [3, 0, 1, 4, 2], 4, dtype=torch.float64, parts=parts)

    def leaf(rows, *shape):
        width = int(np.prod(shape))
        return random_dense(rows, width, rows, torch.float64).view(rows, *shape).requires_grad_()

    more = () if heads is None else (heads,)
    values, X, G = leaf(A.nnz, *more), leaf(4, *more, 2), leaf(5, *more, 2)
    for function, operands in (
        (lambda v, X: spmm(A.with_values(v), X), (values, X)),
        (lambda v, G: spmm(A.with_values(v).T, G), (values, G)),
        (lambda X: spmm(A, X).square(), (X,)),
        (lambda G: spmm(A.T, G).square(), (G,)),
        (lambda G, X: sddmm(A, G, X).square(), (G, X)),
        (lambda G: sddmm(A, G, X.detach()), (G,)),
        (lambda v: edge_softmax(A.pattern, v), (values,)),
    ):
        assert torch.autograd.gradcheck(function, operands)
        assert torch.autograd.gradgradcheck(function, operands)
    # A third time, through the sums of rows.
    direction = torch.randn(values.shape, generator=torch.manual_seed(0), dtype=torch.float64)

    def curvature(s):
        s = s if s.requires_grad else s.detach().requires_grad_()
        (g,) = torch.autograd.grad(edge_softmax(A.pattern, s).pow(3).sum(), s, create_graph=True)
        return torch.autograd.grad((g * direction).sum(), s, create_graph=True)[0]

    assert torch.autograd.gradcheck(curvature, values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_softmax_over_long_rows(dtype):
    pattern = random_block(len(LONG), 5000, LONG, 0).pattern
    scores = random_dense(pattern.nnz, 2, 1, dtype).requires_grad_()
    G = random_dense(pattern.nnz, 2, 2, dtype)
    edge_softmax(pattern, scores).backward(G)
    weights, wide = oracle.edge_softmax(pattern, scores.detach()), G.double()
    expected = weights * (wide - oracle.row_sums(pattern, weights * wide))
    size = weights * (wide.abs() + oracle.row_sums(pattern, weights * wide.abs()))
    error = (scores.grad.double() - expected).abs()
    assert bool((error <= (200 * EPSILON[dtype] + 2 * LAST[dtype]) * size + 1e-37).all())


def test_a_masked_row_has_no_gradient():
    pattern = random_block(2, 4, [3, 2], 0).pattern
    scores = torch.tensor([0.0, 1.0, -torch.inf, -torch.inf, -torch.inf], requires_grad=True)
    (edge_softmax(pattern, scores) * torch.arange(5)).sum().backward()
    assert scores.grad[2:].tolist() == [0.0, 0.0, 0.0]
    assert bool(scores.grad.isfinite().all())


def test_bad_input_is_named():
    A, X, G = random_block(4, 5, [1] * 4, 0, parts=("values",)), torch.ones(5, 3), torch.ones(4, 3)
    P, heads, X_heads = A.pattern, A.with_values(torch.ones(4, 3)), torch.ones(5, 3, 6)
    learned = random_block(4, 5, [1] * 4, 0, parts=("row_scale",))
    learned.row_scale.requires_grad_()
    for call, words in (
        (lambda: spmm(learned, X), "cannot require a gradient"),
        (lambda: spmm(A, G), r"X must be \[5, f\]"),
        (lambda: spmm(A, torch.ones(5)), r"\[rows, f\]"),
        (lambda: spmm(A, X.half()), "float32, float64 or bfloat16"),
        (lambda: spmm(A, X.double()), "values of the block must be torch.float64"),
        (lambda: spmm(A, X, accumulate=True), "needs out"),
        (lambda: spmm(A, X, out=torch.ones(5, 3)), r"out must be torch.float32 \[4, 3\]"),
        (lambda: spmm(A, X, out=torch.ones(3, 4).T), "unit column stride"),
        (lambda: spmm(A, X.clone().requires_grad_(), out=torch.ones(4, 3)), "not differentiable"),
        (lambda: spmm(A, X, out=X[:4]), "overlap"),
        (lambda: spmm(A.T, X), r"X must be \[4, f\]"),
        (lambda: spmm(A, X.numpy()), "X must be a torch.Tensor, got ndarray"),
        (lambda: spmm(A, X, out=3), "out must be a torch.Tensor, got int"),
        (lambda: spmm(P, X), "A must be a spgnn.CSR, got Pattern"),
        (lambda: spmm(A.to_scipy(), X), "A must be a spgnn.CSR, got csr_array"),
        (lambda: spmm(heads, torch.ones(5, 6)), r"X must be \[5, 3, f\] for values \[4, 3\]"),
        (lambda: spmm(heads, torch.ones(5, 2, 6)), r"X must be \[5, 3, f\] for values \[4, 3\]"),
        (lambda: spmm(heads, X_heads, out=torch.ones(4, 18)), r"out must be .*\[4, 3, 6\]"),
        (lambda: spmm(heads, X_heads, out=X_heads[:4]), "overlap"),
        (lambda: sddmm(A, X, X), r"G must be torch.float32 \[4, 3\] on cpu, got float32"),
        (lambda: sddmm(A, G.double(), X), "G must be torch.float32"),
        (lambda: sddmm(A, G, G), r"X must be \[5, f\]"),
        (lambda: sddmm(A, G.numpy(), X), "G must be a torch.Tensor, got ndarray"),
        (lambda: sddmm(A.to_scipy(), G, X), "A must be a spgnn.CSR or spgnn.Pattern, got csr_arr"),
        (lambda: edge_softmax(A, torch.ones(4)), "pattern must be a spgnn.Pattern, got CSR"),
        (lambda: edge_softmax(P, np.ones(4)), "scores must be a torch.Tensor, got ndarray"),
        (lambda: edge_softmax(P, torch.ones(5)), r"scores must be .* \[4\] or \[4, heads\]"),
        (lambda: edge_softmax(P, torch.ones(4, 1, 1)), "scores must be"),
        (lambda: edge_softmax(P, torch.ones(4).half()), "got float16"),
        (lambda: edge_softmax(P, torch.ones(4).int()), "got int32"),
    ):
        with pytest.raises(InputError, match=words):
            call()
