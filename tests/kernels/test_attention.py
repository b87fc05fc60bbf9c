"""Fused attention against plain torch over every nonzero."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import attention, torch_kernels
from spgnn.kernels.attention import (
    AttentionDropout,
    Gat,
    GatV2,
    Rules,
    attend_,
    attend_backward,
    attention_v2,
    finish,
    head_products,
)
from spgnn.pattern import Pattern

from . import oracle
from .conftest import DTYPES, SUM_DTYPE, random_block

ERROR = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2}
HEADS, WIDTHS = [1, 2, 3, 4, 8, 17], [1, 5, 8, 16, 64]
# Rows longer than a task are worked on in pieces, by chunks of 128.
LONG = [3, 2048, 2049, 0, 5000, 1, 4096, 5, 128, 129, 0, *[7] * 300, 4500]


def numbers(seed, *shape, dtype=torch.float64, grad=False):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_(grad)


def some_dropout(pattern, p=0.4):
    rows, cols = pattern.shape
    return AttentionDropout(11, p, 3 * torch.arange(rows) + 1, 5 * torch.arange(cols) + 2)


def factors_of(pattern, dropout, like):
    return torch_kernels.dropout_factors(pattern, Rules(0.2, None, dropout), like)


def expected_gat(pattern, d, s, Z, t, dropout):
    _, scores = torch_kernels.logits_and_scores(pattern, Gat(d, s, Z), Rules(edges=t))
    return oracle.attention(pattern, scores, Z, factors_of(pattern, dropout, scores))


def expected_v2(pattern, x, y, a, t, dropout):
    _, scores = torch_kernels.logits_and_scores(pattern, GatV2(x, y, a), Rules(edges=t))
    return oracle.attention(pattern, scores, y, factors_of(pattern, dropout, scores))


def gat_operands(pattern, heads, width, dtype, edges, seed=0):
    rows, cols = pattern.shape
    wide = SUM_DTYPE[dtype]
    d = numbers(seed, rows, heads, dtype=wide)
    s = numbers(seed + 1, cols, heads, dtype=wide)
    Z = numbers(seed + 2, cols, heads * width, dtype=dtype)
    return d, s, Z, numbers(seed + 3, pattern.nnz, heads, dtype=wide) if edges else None


def v2_operands(pattern, heads, width, dtype, edges, seed=0):
    rows, cols = pattern.shape
    x = numbers(seed, rows, heads * width, dtype=dtype)
    y = numbers(seed + 1, cols, heads * width, dtype=dtype)
    a = numbers(seed + 2, heads, width, dtype=SUM_DTYPE[dtype]) / max(1, width) ** 0.5
    return x, y, a, numbers(seed + 3, pattern.nnz, heads * width, dtype=dtype) if edges else None


def fused(kind, pattern, operands, dropout):
    *three, edges = operands
    if kind == "gat":
        return attention(pattern, *three, edge_scores=edges, dropout=dropout)
    return attention_v2(pattern, *three, edge_features=edges, dropout=dropout)


KINDS = {"gat": (gat_operands, expected_gat), "v2": (v2_operands, expected_v2)}


def assert_near(actual, expected, dtype):
    assert actual.shape == expected.shape
    size = float(expected.abs().max()) + 1 if expected.numel() else 1.0
    assert bool(((actual.double() - expected.double()).abs() <= ERROR[dtype] * size).all())


def with_gradients(call, operands, G):
    leaves = [None if a is None else a.detach().clone().requires_grad_() for a in operands]
    out = call(leaves)
    wanted = [leaf for leaf in leaves if leaf is not None]
    return out.detach(), torch.autograd.grad(out, wanted, G)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(list(KINDS)),
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 40)), max_size=20),
    heads=st.sampled_from(HEADS),
    width=st.sampled_from(WIDTHS),
    dtype=st.sampled_from(DTYPES),
    index=st.sampled_from([torch.int32, torch.int64]),
    edges=st.booleans(),
    drops=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_any_shape(kind, lengths, heads, width, dtype, index, edges, drops, seed):
    pattern = random_block(len(lengths), 40, lengths, seed, index=index).pattern
    make, expected = KINDS[kind]
    operands = make(pattern, heads, width, dtype, edges, seed)
    dropout = some_dropout(pattern) if drops else None
    G = numbers(seed + 9, len(lengths), heads * width, dtype=dtype)
    out, grads = with_gradients(lambda a: fused(kind, pattern, a, dropout), operands, G)
    wide = [None if a is None else a.double() for a in operands]
    right, of_right = with_gradients(lambda a: expected(pattern, *a, dropout), wide, G.double())
    assert_near(out, right, dtype)
    for grad, of_dense, leaf in zip(
        grads, of_right, [a for a in operands if a is not None], strict=True
    ):
        assert grad.dtype == leaf.dtype
        assert_near(grad, of_dense, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "width"), [(8, 8), (3, 5), (1, 40)])
def test_long_rows_on_any_threads(instruction_set, threads, kind, dtype, heads, width):
    pattern = random_block(len(LONG), 5000, LONG, 3).pattern
    make, expected = KINDS[kind]
    operands = make(pattern, heads, width, dtype, False)
    G = numbers(9, len(LONG), heads * width, dtype=dtype)
    results = []
    for count in (1, 2, 5):
        threads(count)
        out, grads = with_gradients(lambda a: fused(kind, pattern, a, None), operands, G)
        results.append((out, *grads))
    wide = [None if a is None else a.double() for a in operands]
    right = with_gradients(lambda a: expected(pattern, *a, None), wide, G.double())
    for one, other, third, of_dense in zip(*results, (right[0], *right[1]), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)
        assert_near(one, of_dense, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drops", [False, True])
def test_second_derivatives(kind, drops):
    pattern = random_block(4, 4, [3, 0, 1, 4], 4).pattern
    make, _ = KINDS[kind]
    operands = [a.requires_grad_() for a in make(pattern, 2, 2, torch.float64, True)]
    dropout = some_dropout(pattern) if drops else None
    assert torch.autograd.gradgradcheck(lambda *a: fused(kind, pattern, a, dropout), operands)
    operands[3] = None
    assert torch.autograd.gradgradcheck(lambda *a: fused(kind, pattern, a, dropout), operands)


def split(pattern, column):
    """The columns before and from one on, as blocks of their own."""
    rows, cols = oracle._row_of_each(pattern), pattern.indices.long()
    blocks = []
    for mine, first, last in (
        (cols < column, 0, column),
        (cols >= column, column, pattern.shape[1]),
    ):
        counts = torch.bincount(rows[mine], minlength=pattern.shape[0])
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        blocks.append(Pattern(indptr, cols[mine] - first, (pattern.shape[0], last - first)))
    return blocks


def row_gradient(state, G, lse, D):
    """The gradient in d by what a state has seen: slope 0.2, and 0.8 more where it is positive."""
    scale = torch.where(state.n == 0, 0.0, torch.exp(state.m - lse))
    heads = lse.shape[1]
    below = head_products(G, state.O, heads) - D * state.n
    above = head_products(G, state.P, heads) - D * state.pi
    return scale * (0.2 * below + 0.8 * above)


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_add_up_to_the_whole(instruction_set, dtype):
    pattern = random_block(len(LONG), 5000, LONG, 3).pattern
    heads, width, cut, n = 4, 6, 700, len(LONG)
    d, s, Z, _ = gat_operands(pattern, heads, width, dtype, False)
    whole = some_dropout(pattern)
    rules = [
        Rules(dropout=AttentionDropout(11, 0.4, whole.row_ids, ids))
        for ids in (whole.col_ids[:cut], whole.col_ids[cut:])
    ]
    blocks = split(pattern, cut)
    columns = [Gat(d, s[:cut], Z[:cut]), Gat(d, s[cut:], Z[cut:])]
    G = numbers(9, n, heads * width, dtype=dtype)
    right, (dd, ds, dZ) = with_gradients(
        lambda a: attention(pattern, *a, dropout=whole), (d, s, Z), G
    )
    cases = list(zip(blocks, columns, rules, strict=True))
    state = attend_(*cases[0])
    attend_(*cases[1], state)
    alone = [attend_(*case) for case in cases]
    out, lse = finish(state, dtype)
    assert_near(out, right, dtype)
    D = head_products(G, out, heads)
    assert_near(row_gradient(state, G, lse, D), dd, dtype)
    assert_near(sum(row_gradient(one, G, lse, D) for one in alone), dd, dtype)
    parts = [attend_backward(*case, G, lse, D) for case in cases]
    assert_near(torch.cat([part[0] for part in parts]), dZ, dtype)
    assert_near(torch.cat([part[1] for part in parts]), ds, dtype)


def test_blocks_of_v2_add_up_to_the_whole():
    pattern = random_block(30, 50, [*[9] * 20, *[0] * 5, *[17] * 5], 3).pattern
    x, y, a, _ = v2_operands(pattern, 3, 5, torch.float64, False)
    G = numbers(9, 30, 15)
    right, (dx, dy, da) = with_gradients(lambda o: attention_v2(pattern, *o), (x, y, a), G)
    left, other = split(pattern, 20)
    cases = [(left, GatV2(x, y[:20], a), Rules()), (other, GatV2(x, y[20:], a), Rules())]
    state = attend_(*cases[0])
    attend_(*cases[1], state)
    out, lse = finish(state)
    assert torch.allclose(out, right)
    D = head_products(G, out, 3)
    one, two = (attend_backward(*case, G, lse, D) for case in cases)
    assert torch.allclose(one[0] + two[0], dx)
    assert torch.allclose(torch.cat([one[1], two[1]]), dy)
    assert torch.allclose(one[2] + two[2], da)


def test_rows_without_nonzeros_and_scores_of_minus_infinity():
    pattern = random_block(4, 5, [2, 0, 3, 1], 0).pattern
    d, s, Z, t = gat_operands(pattern, 2, 3, torch.float32, True)
    t[0] = -torch.inf
    t[2:5] = -torch.inf  # all of the third row
    out, grads = with_gradients(
        lambda a: fused("gat", pattern, a, None), (d, s, Z, t), torch.ones(4, 6)
    )
    assert not out[1:3].any()
    assert torch.allclose(out[0], Z[pattern.indices[1].long()])
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert not grads[3][2:5].any()
    _, lse = finish(attend_(pattern, Gat(d, s, Z), Rules(edges=t)))
    assert bool((lse[1:3] == -torch.inf).all())


def test_huge_scores():
    pattern = random_block(3, 4, [4, 2, 3], 0).pattern
    d, s, Z, _ = gat_operands(pattern, 2, 3, torch.float32, False)
    wide = [1e4 * a.double() for a in (d, s)]
    out = attention(pattern, 1e4 * d, 1e4 * s, Z)
    assert_near(out, expected_gat(pattern, *wide, Z.double(), None, None), torch.float32)


def test_compiles():
    pattern = random_block(9, 9, [3] * 9, 1).pattern
    d, s, Z, _ = gat_operands(pattern, 2, 4, torch.float32, False)
    _ = pattern.T
    compiled = torch.compile(
        lambda *a: attention(pattern, *a, dropout=None).relu(), fullgraph=True, backend="aot_eager"
    )
    G = torch.ones(9, 8)
    one = with_gradients(lambda a: compiled(*a), (d, s, Z), G)
    two = with_gradients(lambda a: attention(pattern, *a).relu(), (d, s, Z), G)
    assert torch.equal(one[0], two[0])
    for a, b in zip(one[1], two[1], strict=True):
        assert torch.equal(a, b)


def test_other_strides():
    pattern = random_block(20, 30, [4] * 20, 1).pattern
    d, s, Z, _ = gat_operands(pattern, 4, 5, torch.float32, False)
    right = attention(pattern, d, s, Z)
    padded = torch.cat([Z, Z], 1)[:, :20]
    assert torch.equal(attention(pattern, d.T.contiguous().T, s.T.contiguous().T, padded), right)
    assert torch.equal(attention(pattern, d, s, Z.T.contiguous().T), right)


def test_bad_input_is_named():
    pattern = random_block(4, 5, [1] * 4, 0).pattern
    d, s, Z, t = gat_operands(pattern, 2, 3, torch.float32, True)
    ids = torch.arange(4), torch.arange(5)
    cases = [
        (lambda: attention(pattern, d[:3], s, Z), r"d must be torch.float32 \[4, 2\]"),
        (lambda: attention(pattern, d, s[:, :1], Z), r"s must be torch.float32 \[5, 2\]"),
        (lambda: attention(pattern, d, s, Z[:, :5]), r"Z must be \[5, 2 · width\], got \[5, 5\]"),
        (lambda: attention(pattern, d, s, Z, edge_scores=t[1:]), r"edge_scores must be .*\[4, 2\]"),
        (lambda: attention(pattern, d, s, Z, slope=-1.0), "slope must be at least 0"),
        (
            lambda: attention(pattern, d, s, Z, dropout=AttentionDropout(1, 1.0, *ids)),
            r"p must be in \[0, 1\)",
        ),
        (
            lambda: attention(pattern, d, s, Z, dropout=AttentionDropout(1, 0.5, *ids[::-1])),
            r"row_ids must be torch.int64 \[4\]",
        ),
        (
            lambda: attention_v2(pattern, Z, Z, torch.ones(2, 3)),
            r"x must be torch.float32 \[4, 6\]",
        ),
        (lambda: attention_v2(pattern, Z[:4], Z, torch.ones(6)), "a must be"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()
