"""The CUDA kernels of attention, run on the CPU, and the way through torch, against C++."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spgnn.addons.cuda import kernels as native
from spgnn.addons.cuda import tiling
from spgnn.kernels import cpu, torch_kernels
from spgnn.kernels.attention import (
    Gat,
    GatV2,
    Rules,
    attend_,
    attend_backward,
    finish,
    head_products,
)
from tests.kernels.conftest import random_block, work_by
from tests.kernels.test_attention import (
    KINDS,
    assert_near,
    fused,
    gat_operands,
    numbers,
    row_gradient,
    some_dropout,
    split,
    with_gradients,
)

from .cases import SKEWED
from .emulation import EMULATION

SINGLE, DOUBLE, HALF = torch.float32, torch.float64, torch.bfloat16
# Heads, columns of each, dtype, edges, dropout; 300 are more than a group of threads holds.
CASES = [
    pytest.param(8, 8, SINGLE, False, False, id="8x8"),
    pytest.param(3, 5, HALF, True, True, id="3x5"),
    pytest.param(2, 300, SINGLE, True, False, id="2x300"),
    pytest.param(17, 8, HALF, False, False, id="17x8", marks=pytest.mark.slow),
    pytest.param(1, 40, DOUBLE, False, True, id="1x40", marks=pytest.mark.slow),
]
IN_CASE = ("heads", "width", "dtype", "edges", "drops")
# A row that crosses tiles of 256 items, and rows without nonzeros.
WIDE = [2, 0, 280, 0, 0, 3, 1]


@pytest.fixture
def use(monkeypatch, request):
    """A setter of who works on attention, on CPU tensors too."""

    def use(chosen):
        if chosen is native:
            request.getfixturevalue("emulated")
        work_by(monkeypatch, chosen)

    return use


@pytest.fixture(
    params=[
        pytest.param(native, id="kernels", marks=EMULATION),
        pytest.param(torch_kernels, id="torch"),
    ]
)
def way(request, use):
    """One after the other."""
    use(request.param)
    return request.param


def skewed(width=8):
    """Long rows, short ones, and empty ones; few nonzeros where each takes long."""
    lengths = SKEWED if width < 300 else WIDE
    return random_block(len(lengths), 800 if width < 300 else 300, lengths, 3).pattern


def of_kind(kind, operands, dropout):
    *three, edges = operands
    return (Gat if kind == "gat" else GatV2)(*three), Rules(edges=edges, dropout=dropout)


def state_of(kind, pattern, operands, state=None, dropout=None):
    return attend_(pattern, *of_kind(kind, operands, dropout), state)


def assert_same_state(found, expected, dtype):
    """Sums of exponentials grow with the row, so in units of the row's."""
    scale = 1 / expected.n.clamp(min=1)
    assert_near(*(torch.nan_to_num(state.m, neginf=-9.0) for state in (found, expected)), dtype)
    for name in ("n", "O", "P", "pi"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            each = scale.repeat_interleave(one.shape[1] // scale.shape[1], 1)
            assert_near(one * each, other * each, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(IN_CASE, CASES)
def test_softmaxes_of_rows(use, way, kind, heads, width, dtype, edges, drops):
    pattern, (make, expected) = skewed(width), KINDS[kind]
    operands = make(pattern, heads, width, dtype, edges)
    dropout = some_dropout(pattern) if drops else None
    wide = [None if a is None else a.double() for a in operands]
    learnt = [None if a is None else a.detach().requires_grad_() for a in operands]
    out = fused(kind, pattern, learnt, dropout).detach()
    assert_near(out, expected(pattern, *wide, dropout), dtype)
    found = state_of(kind, pattern, operands, dropout=dropout)
    out, lse = finish(found, dtype)
    use(cpu)
    right = state_of(kind, pattern, operands, dropout=dropout)
    assert_same_state(found, right, dtype)
    for one, other in zip((out, lse), finish(right, dtype), strict=True):
        assert_near(one.clamp(min=-99), other.clamp(min=-99), dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [8, pytest.param(40, marks=pytest.mark.slow), 300])
def test_blocks_are_merged(use, way, kind, width):
    pattern, cut = skewed(width), 100
    heads = 8 if width == 8 else 2  # shapes that are compiled for other tests as well
    first, second, third, _ = KINDS[kind][0](pattern, heads, width, SINGLE, False)
    blocks = split(pattern, cut)
    if kind == "gat":
        parts = [(first, second[c], third[c], None) for c in (slice(cut), slice(cut, None))]
    else:
        parts = [(first, second[c], third, None) for c in (slice(cut), slice(cut, None))]
    state = state_of(kind, blocks[0], parts[0])
    assert state_of(kind, blocks[1], parts[1], state) is state
    use(cpu)
    assert_same_state(state, state_of(kind, pattern, (first, second, third, None)), SINGLE)


@EMULATION
def test_of_many_levels_of_tiles_and_any_order_of_threads(use, monkeypatch, emulated):
    """With tiles of 16 items a long row is merged again and again."""
    use(native)
    monkeypatch.setattr(tiling, "TILE_ITEMS", (16,))
    pattern = random_block(6, 800, [7, 800, 0, 3, 800, 1], 5, index=torch.int64).pattern
    operands = gat_operands(pattern, 2, 8, SINGLE, False)
    found = []
    for emulated.seed in (1, 2, 3):
        found.append(state_of("gat", pattern, operands, dropout=some_dropout(pattern)))
    assert len(emulated.launched) > 3 * 3
    assert {"attend", "merge_carried"} == {
        name.partition("<")[0].removeprefix("spgnn::") for name in emulated.launched
    }
    for state in found[1:]:
        assert all(map(torch.equal, state.arrays, found[0].arrays))
    use(cpu)
    right = state_of("gat", pattern, operands, dropout=some_dropout(pattern))
    assert_same_state(found[0], right, SINGLE)


@pytest.mark.parametrize("kind", KINDS)
def test_operands_with_gaps(use, way, kind):
    pattern = skewed()
    first, second, third, _ = KINDS[kind][0](pattern, 4, 6, SINGLE, False)
    padded = [
        torch.cat([a, torch.full_like(a, torch.nan)], 1)[:, : a.shape[1]] for a in (first, second)
    ]
    if kind == "gat":
        padded = [padded[0], padded[1], numbers(5, len(third), 30, dtype=SINGLE)[:, 3:27]]
        third = padded[2].contiguous()
    else:
        padded = [*padded, third.T.contiguous().T]
    found = fused(kind, pattern, (*padded, None), None)
    use(cpu)
    assert_near(found, fused(kind, pattern, (first, second, third, None), None), SINGLE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "length", "width"),
    [(0, 0, 8), (3, 0, 8), pytest.param(3, 2, 0, marks=pytest.mark.slow)],
)
def test_nothing_to_attend_to(way, kind, rows, length, width):
    pattern = random_block(rows, 5, [length] * rows, 0).pattern
    state = state_of(kind, pattern, KINDS[kind][0](pattern, 8, width, SINGLE, False))
    out, lse = finish(state)
    assert out.shape == (rows, 8 * width)
    assert not out.any()
    assert bool((lse == -torch.inf).all()) == (length == 0)


def test_scores_of_minus_infinity(use, way):
    pattern = random_block(4, 5, [2, 0, 3, 1], 0).pattern
    d, s, Z, t = gat_operands(pattern, 8, 8, SINGLE, True)
    t[0] = -torch.inf
    t[2:5] = -torch.inf  # all of the third row
    out, lse = finish(attend_(pattern, Gat(d, s, Z), Rules(edges=t)))
    assert not out[1:3].any()
    assert torch.allclose(out[0], Z[pattern.indices[1].long()])
    assert bool((lse[1:3] == -torch.inf).all())


def gradients_of(kind, pattern, operands, G, lse, D, dropout=None):
    return attend_backward(pattern, *of_kind(kind, operands, dropout), G, lse, D)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(IN_CASE, CASES)
def test_gradients(use, way, kind, heads, width, dtype, edges, drops):
    """Columns are as long as rows elsewhere."""
    pattern = skewed(width).T
    operands = KINDS[kind][0](pattern, heads, width, dtype, edges)
    dropout = some_dropout(pattern) if drops else None
    G = numbers(9, pattern.shape[0], heads * width, dtype=dtype)
    use(cpu)
    out, lse = finish(state_of(kind, pattern, operands, dropout=dropout), dtype)
    D = head_products(G, out, heads)
    state = state_of(kind, pattern, operands, dropout=dropout)

    def gradients():
        of_rows = row_gradient(state, G, lse, D) if kind == "gat" else None
        return *gradients_of(kind, pattern, operands, G, lse, D, dropout), of_rows

    right = gradients()
    use(way)
    assert_near(head_products(G, out, heads), D, dtype)
    for one, other in zip(gradients(), right, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            assert_near(one, other, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_operators_differentiate_by_the_same_way(use, way, kind):
    pattern = random_block(30, 40, [*[9] * 10, *[0] * 15, *[17] * 5], 3).pattern
    operands = KINDS[kind][0](pattern, 8, 8, SINGLE, True)
    dropout, G = some_dropout(pattern), numbers(9, 30, 64, dtype=SINGLE)
    found = with_gradients(lambda o: fused(kind, pattern, o, dropout), operands, G)
    use(cpu)
    right = with_gradients(lambda o: fused(kind, pattern, o, dropout), operands, G)
    for one, other in zip((found[0], *found[1]), (right[0], *right[1]), strict=True):
        assert_near(one, other, SINGLE)


@EMULATION
@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(list(KINDS)),
    lengths=st.lists(
        st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 90)), min_size=1, max_size=40
    ),
    shape=st.sampled_from([(1, 1), (2, 4), (3, 6), (5, 16)]),
    edges=st.booleans(),
    drops=st.booleans(),
    seed=st.integers(0, 99),
)
def test_random_blocks(use, monkeypatch, emulated, kind, lengths, shape, edges, drops, seed):
    heads, width = shape
    with monkeypatch.context() as patch:
        patch.setattr(tiling, "TILE_ITEMS", (16,))
        emulated.seed = seed
        pattern = random_block(len(lengths), 90, lengths, seed).pattern
        operands = KINDS[kind][0](pattern, heads, width, SINGLE, edges, seed)
        dropout = some_dropout(pattern) if drops else None
        G = numbers(seed, len(lengths), heads * width, dtype=SINGLE)
        results = []
        for chosen in (native, cpu):
            use(chosen)
            out, grads = with_gradients(lambda o: fused(kind, pattern, o, dropout), operands, G)
            results.append((out, *grads))
    for one, other in zip(*results, strict=True):
        assert_near(one, other, SINGLE)
