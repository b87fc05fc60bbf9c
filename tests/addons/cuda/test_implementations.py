"""Operations by the CUDA kernels, emulated or on a GPU, and by plain torch: as by the CPU's.

The CPU's are compared with dense matrices elsewhere. Where sums may be in another order, results
are right to rounding; all else has the same bits.
"""

from itertools import product

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.kernels import (
    dequantise_rows,
    dropout_rows,
    edge_add,
    edge_softmax,
    edge_spmm,
    gather_rows,
    quantise_rows,
    scatter_add_rows,
    sddmm,
    spmm,
)
from spgnn.kernels.cross_entropy import cross_entropy_sum
from spgnn.kernels.edge_spmm import EDGE_OPS
from spgnn.kernels.extremes import extreme_
from spgnn.kernels.update import update_rows_
from spgnn.pattern import Pattern
from spgnn.sparse import CSR, SUM_DTYPE
from tests.kernels import oracle
from tests.kernels.conftest import PARTS, ROUNDING, assert_product, assert_sddmm, assert_softmax

from .conftest import SKEWED, block, matrix, some_scores

COLUMNS = [
    *((torch.float32, columns) for columns in (1, 17, 64, 300)),
    *((torch.float64, columns) for columns in (3, 64)),
    *((torch.bfloat16, columns) for columns in (3, 64, 300)),
]
OF_ANY_WIDTH = pytest.mark.parametrize(("dtype", "columns"), COLUMNS)
OF_ANY_TYPE = pytest.mark.parametrize("dtype", ROUNDING)
IDS = torch.arange(137) * 1_000_003 + 2**40
# Row 7 is listed 2000 times: its sum is carried across tiles.
ROWS = torch.from_numpy(np.random.default_rng(4).integers(0, 40, 3000)).index_fill_(
    0, torch.arange(500, 2500), 7
)


def with_odd_numbers(columns, dtype):
    X = matrix(137, columns, dtype, padding=4)
    X[3], X[4, 0], X[5] = torch.inf, torch.nan, 2.5
    X[6] *= 2.0**-125
    X[7] *= 2.0**126
    return X


def assert_same(away, function, *operands):
    """Whatever a function gives has the same bits; what is no number is in the same places."""
    for found, right in zip(away(function, *operands), function(*operands), strict=True):
        assert found.dtype == right.dtype
        assert torch.equal(found.double().nan_to_num(0.5), right.double().nan_to_num(0.5))


@OF_ANY_WIDTH
def test_gathered_and_dropped_rows(away, dtype, columns):
    def results(X, rows, ids):
        yield gather_rows(X, rows)
        yield gather_rows(X, rows.int())
        for key, p in ((0, 0.0), (-(2**63), 0.5), (12345, 0.9)):
            yield dropout_rows(X, ids, key, p)

    X = with_odd_numbers(columns, dtype)
    assert_same(away, lambda *operands: list(results(*operands)), X, ROWS, IDS)
    scale = torch.randn(len(ROWS), dtype=SUM_DTYPE[dtype])
    expected = oracle.gather_rows(X[10:], ROWS, scale)
    found = away(gather_rows, X[10:], ROWS, scale)
    assert torch.allclose(found.double(), expected, rtol=ROUNDING[dtype], atol=0)


@OF_ANY_WIDTH
def test_updated_rows(away, dtype, columns):
    def results(Z, G, bias, ids):
        for b, drops, act in product((bias, None), (ids, None), (None, "relu", "leaky_relu")):
            p = 0.0 if drops is None else 0.5
            leaf = Z.clone().requires_grad_()
            Y = update_rows_(leaf * 1, b, act=act, alpha=0.25, vertex_ids=drops, key=-7, p=p)
            yield from (Y.detach(), *torch.autograd.grad(Y, leaf, G))

    Z, G = with_odd_numbers(columns, dtype), matrix(137, columns, dtype, seed=2)
    bias = torch.linspace(-1, 1, columns).to(SUM_DTYPE[dtype])
    assert_same(away, lambda *operands: list(results(*operands)), Z, G, bias, IDS)

    def of_elu(Z, G, bias, ids):
        leaves = Z.clone().requires_grad_(), bias.clone().requires_grad_()
        Y = update_rows_(leaves[0] * 1, leaves[1], act="elu", alpha=0.25)
        return (Y.detach(), *torch.autograd.grad(Y, leaves, G))

    operands = matrix(137, columns, dtype, padding=4), G, bias, IDS
    for found, right in zip(away(of_elu, *operands), of_elu(*operands), strict=True):
        near = 4 * torch.finfo(dtype).eps
        assert torch.allclose(found, right, rtol=near, atol=max(near, 1e-4 * (right.dim() == 1)))


def repeating(pattern):
    """The pattern with few columns, in no order and more than once in a row."""
    return Pattern.trusted(pattern.indptr, pattern.indices * 7 % 97, pattern.shape)


@OF_ANY_WIDTH
def test_extremes(away, dtype, columns):
    def results(A, B, X, G):
        for largest in (True, False):
            state = extreme_(A, X, largest=largest)
            yield from extreme_(B, -X, state, largest=largest, first_column=800)
            leaf = X.clone().requires_grad_()
            Z = spmm(CSR(A), leaf, reduce="max" if largest else "min")
            Z.backward(G)
            yield from (Z.detach(), leaf.grad)

    index = torch.int64 if columns == 64 else torch.int32
    # Rows that cross tiles, in the first block, in the second, and in both.
    lengths = [5, 0, 1, 40, 0, 700, 700, 0, 3] * 2
    A, B = block(lengths, index=index), block(lengths[::-1], index=index, seed=3)
    X = matrix(800, columns, dtype).mul(2).round()  # with ties
    X[A.indices[2].long(), 0] = torch.nan
    G = matrix(len(lengths), columns, dtype, padding=4, seed=5).mul(3).round()  # exact sums
    for first in (A.pattern, repeating(A.pattern)):
        assert_same(away, lambda *operands: list(results(*operands)), first, B.pattern, X, G)


@OF_ANY_WIDTH
def test_numbers_of_edges(away, dtype, columns):
    """Sums, extremes and their derivatives; also where one number serves several columns."""

    def extremes(pattern, X, V):
        for op, reduce in product(EDGE_OPS[:-1], ("max", "min")):
            yield edge_spmm(pattern, None if op == "copy" else X, V, op, reduce)

    def results(pattern, X, V, S):
        for op in EDGE_OPS[:-1]:
            for reduce in ("sum", "max", "min"):
                leaves = [t.clone().requires_grad_() for t in (X, V)]
                Z = edge_spmm(pattern, None if op == "copy" else leaves[0], leaves[1], op, reduce)
                yield Z.detach()
                Z.sum().backward()
                yield from (leaf.grad for leaf in leaves if leaf.grad is not None)
        leaves = [X.unflatten(1, (columns, 1)).expand(-1, -1, 3).contiguous(), S]
        leaves = [t.requires_grad_() for t in leaves]
        Z = edge_spmm(pattern, leaves[0], leaves[1].expand(-1, columns), "sub", "max")
        yield from (Z.detach(), *torch.autograd.grad(Z.sum(), leaves))
        yield edge_add(pattern, X[: pattern.shape[0]], X, V)

    index = torch.int64 if columns == 64 else torch.int32
    pattern = repeating(block([5, 0, 1, 40, 700, 0, 9], index=index).pattern)
    X = matrix(800, columns, dtype).mul(2).round()
    V = matrix(pattern.nnz, columns, dtype, seed=4).sign().mul(2)
    S = V[:, :1].contiguous()
    assert_same(away, lambda *operands: list(extremes(*operands)), pattern, X, V)
    found = away(lambda *operands: list(results(*operands)), pattern, X, V, S)
    for mine, right in zip(found, results(pattern, X, V, S), strict=True):
        assert torch.allclose(mine, right)


@OF_ANY_WIDTH
def test_quantised_rows(away, dtype, columns):
    def results(X, residual, rows, ids):
        for bits, stochastic in product((16, 8, 4, 2, 1), (True, False)):
            left, rule = residual.clone(), {"stochastic": stochastic, "rows": rows}
            packed = quantise_rows(X, bits, ids, -7, residual=left, **rule)
            bare = quantise_rows(X, bits, ids, -7, **rule)
            back = dequantise_rows(bare, bits, columns, X.dtype)
            out, places = X.new_zeros(50, columns + 8), torch.arange(len(rows), device=X.device)
            out = out[:, 8:]
            dequantise_rows(packed, bits, columns, X.dtype, out=out, rows=places + 3)
            yield from (packed, left, bare, back, out)

    X, residual = with_odd_numbers(columns, dtype), matrix(40, columns, dtype, seed=2)
    rows = torch.cat((torch.arange(10), torch.arange(49, 19, -1)))
    for listed in (rows, rows.int()):
        operands = X, residual, listed, IDS[:40]
        assert_same(away, lambda *operands: list(results(*operands)), *operands)

    def lost(X, ids):
        sums = torch.zeros(2, dtype=torch.float64, device=X.device)
        quantise_rows(X, 4, ids, 1, lost=sums)
        return sums

    for odd in (X, X[10:]):
        found, right = away(lost, odd, IDS[: len(odd)]), lost(odd, IDS[: len(odd)])
        assert torch.allclose(found, right, rtol=1e-12, equal_nan=True)


@OF_ANY_WIDTH
def test_products(away, dtype, columns):
    A = block(SKEWED, parts=("values", "row_scale", "col_scale"), dtype=dtype)
    G, X = matrix(len(SKEWED), columns, dtype, padding=4), matrix(800, columns, dtype, seed=2)
    assert_product(away(spmm, A, X), A, X)
    assert_product(away(spmm, A.T, G), A.T, G)
    assert_sddmm(away(sddmm, A, G, X), A, G, X)
    before = G.clone()
    added = away(lambda A, X, out: spmm(A, X, out=out, accumulate=True), A, X, before.clone())
    assert_product(added, A, X, added=before.double())
    assert torch.equal(added, away(lambda A, X, out: spmm(A, X, out, True), A, X, before))


@OF_ANY_TYPE
@pytest.mark.parametrize("parts", PARTS)
def test_products_of_any_parts(away, dtype, parts):
    index = torch.int64 if len(parts) == 2 else torch.int32
    A, X = block(SKEWED, parts=parts, dtype=dtype, index=index), matrix(800, 64, dtype)
    assert_product(away(spmm, A, X), A, X)


@OF_ANY_TYPE
@pytest.mark.parametrize("columns", [16, 17])
def test_products_of_heads(away, dtype, columns):
    A = block([*SKEWED, 0, 0, 0], parts=("row_scale", "col_scale"), dtype=dtype)
    G, X = (matrix(n, 3 * columns, dtype, seed=n).unflatten(1, (3, columns)) for n in A.shape)
    for some in (slice(None), slice(1, None)):
        assert_sddmm(away(sddmm, A, G[:, some], X[:, some]), A, G[:, some], X[:, some])
    A = A.with_values(matrix(A.nnz, 3, SUM_DTYPE[dtype], seed=5).clone())
    X = matrix(800, 4 * columns, dtype).unflatten(1, (4, columns))[:, :3]
    Y = away(spmm, A, X)
    for head in range(3):
        assert_product(Y[:, head], A.with_values(A.values[:, head]), X[:, head])


@OF_ANY_TYPE
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("lengths", [SKEWED, [*[2] * 40, 3000, 0, 0, 1, *[2] * 4000]])
def test_softmax_and_sums_over_rows(away, dtype, heads, lengths):
    def sums(pattern, scores, G):
        leaf = scores.clone().requires_grad_()
        return torch.autograd.grad(edge_softmax(pattern, leaf), leaf, G)[0]

    pattern = block(lengths, 3000).pattern
    scores, G = some_scores(pattern, heads, dtype), matrix(pattern.nnz, heads, dtype, seed=3)
    weights = away(edge_softmax, pattern, scores)
    assert_softmax(weights, pattern, scores, terms=300)
    exact = oracle.edge_softmax(pattern, scores)
    right = exact * (G.double() - oracle.row_sums(pattern, exact * G.double()))
    size = exact * (G.double().abs() + oracle.row_sums(pattern, exact * G.double().abs()))
    error = (away(sums, pattern, scores, G).double() - right).abs()
    assert bool((error <= 6 * ROUNDING[dtype] * size + 1e-30).all())


@OF_ANY_TYPE
@pytest.mark.parametrize("columns", [1, 16, 300])
@pytest.mark.parametrize("scaled", [False, True])
def test_added_rows(away, dtype, columns, scaled):
    X, Y = matrix(3000, columns, dtype), matrix(45, columns, dtype, padding=8, seed=5)
    scale = torch.randn(3000, dtype=SUM_DTYPE[dtype]) if scaled else None
    expected = oracle.scatter_add_rows(Y, ROWS, X, scale)
    sizes = Y.abs(), ROWS, X.abs(), None if scale is None else scale.abs()
    added = away(scatter_add_rows, Y.clone(), ROWS, X, scale)
    slack = 10 if away.way == "torch" else 1  # which rounds every sum
    allowed = slack * ROUNDING[dtype] * oracle.scatter_add_rows(*sizes)
    assert bool(((added.double() - expected).abs() <= allowed).all())
    again = away(scatter_add_rows, Y.clone(), ROWS.int(), X, scale)
    assert away.way == "torch" or torch.equal(again, added)


@pytest.mark.parametrize("rows", [1, 300])
def test_cross_entropy(away, rows):
    def results(X, target):
        leaf = X.detach().requires_grad_()
        loss = cross_entropy_sum(leaf, target)
        return (loss.detach(), *torch.autograd.grad(loss.square(), leaf))

    X, target = matrix(rows, 7, torch.float64), torch.arange(rows) % 8 - 1
    for operands in ((X, target), (X, target.flip(0))):
        torch.testing.assert_close(tuple(away(results, *operands)), results(*operands))


def test_without_rows_columns_or_nonzeros(away):
    for rows, columns in ((0, 4), (3, 0), (0, 0), (3, 4)):
        A, X = block([0] * rows, 5), matrix(5, columns)
        assert torch.equal(away(spmm, A, X), torch.zeros(rows, columns))
        assert away(sddmm, A, torch.ones(rows, columns), X).shape == (0,)
        packed = away(lambda X: quantise_rows(X, 8, torch.arange(len(X), device=X.device), 1), X)
        assert packed.shape == (5, columns + 4)
        assert away(gather_rows, X, torch.arange(0)).shape == (0, columns)
    for lengths in ([], [0, 0], [3, 0, 2]):
        pattern = block(lengths).pattern
        scores = matrix(pattern.nnz, 1)[:, 0]
        assert_softmax(away(edge_softmax, pattern, scores), pattern, scores)


def test_rows_out_of_range(away):
    if away.way == "torch":
        pytest.skip("torch has words of its own")
    X = matrix(5, 4)
    for rows in (torch.tensor([0, 5]), torch.tensor([-1, 2])):
        with pytest.raises(InputError, match=r"row (5|-1) outside \[0, 5\)"):
            away(gather_rows, X, rows)
        with pytest.raises(InputError, match=r"row (5|-1) outside \[0, 5\)"):
            away(scatter_add_rows, X, rows, X[:2].clone())


def test_subnormal_numbers_are_not_flushed(away):
    """Their sums are exact in any order."""
    X = torch.arange(1.0, 1601).view(800, 2) * 2.0**-149
    ids = torch.arange(800)

    def results(A, X, ids):
        return [
            spmm(A, X),
            gather_rows(X, ids),
            dropout_rows(X, ids, 3, 0.5),
            spmm(A, X, reduce="max"),
        ]

    operands = block(SKEWED), X, ids
    assert_same(away, results, *operands)
    assert all(float(found.max()) > 0 for found in results(*operands))
