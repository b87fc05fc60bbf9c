"""Attention by the CUDA kernels, emulated or on a GPU, and by plain torch: as by the CPU's.

The CPU's is compared with plain torch over every nonzero elsewhere.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spgnn.addons.cuda import kernels as native
from spgnn.addons.cuda import tiling
from spgnn.kernels.attention import (
    AttentionDropout,
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
    some_dropout,
    split,
    with_gradients,
)

from .conftest import SKEWED
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
# A row that crosses tiles of 256 items, and rows without nonzeros.
WIDE = [2, 0, 280, 0, 0, 3, 1]


def skewed(width=8):
    """Long rows, short ones, and empty ones; few nonzeros where each takes long."""
    lengths = SKEWED if width < 300 else WIDE
    return random_block(len(lengths), 800 if width < 300 else 300, lengths, 3).pattern


def block_of(kind, pattern, operands, ids=None):
    *three, edges = operands
    dropout = None if ids is None else AttentionDropout(11, 0.4, *ids)
    return pattern, (Gat if kind == "gat" else GatV2)(*three), Rules(edges=edges, dropout=dropout)


def in_units_of_rows(state):
    """Sums of exponentials grow with the row."""
    scale = 1 / state.n.clamp(min=1)
    sums = [a for a in (state.n, state.O, state.P, state.pi) if a is not None]
    scaled = [a * scale.repeat_interleave(a.shape[1] // scale.shape[1], 1) for a in sums]
    return [torch.nan_to_num(state.m, neginf=-9.0), *scaled]


def everything(kind, pattern, operands, G, ids):
    """The operator and its gradients; triples, their ends, and the gradients by a block."""
    block = block_of(kind, pattern, operands, ids)
    out, grads = with_gradients(lambda o: fused(kind, pattern, o, block[2].dropout), operands, G)
    state = attend_(*block)
    sums, lse = finish(state, G.dtype)
    D = head_products(G, sums, lse.shape[1])
    pieces = [a for a in attend_backward(*block, G, lse, D) if a is not None]
    return [out, *grads, sums, lse.clamp(min=-99), D, *in_units_of_rows(state), *pieces]


def assert_alike(away, function, *operands, dtype=SINGLE):
    for mine, right in zip(away(function, *operands), function(*operands), strict=True):
        assert mine.dtype == right.dtype
        assert_near(mine, right, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "width", "dtype", "edges", "drops"), CASES)
def test_rows_and_gradients(away, kind, heads, width, dtype, edges, drops):
    """Of long rows, and of long columns."""
    for pattern in (skewed(width), skewed(width).T):
        operands = KINDS[kind][0](pattern, heads, width, dtype, edges)
        dropout = some_dropout(pattern)
        ids = [dropout.row_ids, dropout.col_ids] if drops else None
        G = numbers(9, pattern.shape[0], heads * width, dtype=dtype)
        assert_alike(away, everything, kind, pattern, list(operands), G, ids, dtype=dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [8, pytest.param(40, marks=pytest.mark.slow), 300])
def test_blocks_are_merged(away, kind, width):
    def merged(blocks, parts):
        state = attend_(*block_of(kind, blocks[0], parts[0]))
        assert attend_(*block_of(kind, blocks[1], parts[1]), state) is state
        return in_units_of_rows(state)

    pattern, cut = skewed(width), 100
    heads = 8 if width == 8 else 2  # shapes that are compiled for other tests as well
    first, second, third, _ = KINDS[kind][0](pattern, heads, width, SINGLE, False)
    parts = [
        [first, second[c], third[c] if kind == "gat" else third, None]
        for c in (slice(cut), slice(cut, None))
    ]
    assert_alike(away, merged, split(pattern, cut), parts)


@EMULATION
def test_of_many_levels_of_tiles_and_any_order_of_threads(monkeypatch, emulated):
    """With tiles of 16 items a long row is merged again and again."""
    pattern = random_block(6, 800, [7, 800, 0, 3, 800, 1], 5, index=torch.int64).pattern
    dropout = some_dropout(pattern)
    block = block_of(
        "gat",
        pattern,
        gat_operands(pattern, 2, 8, SINGLE, False),
        [dropout.row_ids, dropout.col_ids],
    )
    right, states = attend_(*block), []
    work_by(monkeypatch, native)
    monkeypatch.setattr(tiling, "TILE_ITEMS", (16,))
    for emulated.seed in (1, 2, 3):
        states.append(attend_(*block))
    assert len(emulated.launched) > 3 * 3
    launched = {name.partition("<")[0].removeprefix("spgnn::") for name in emulated.launched}
    assert launched == {"attend", "merge_carried"}
    for state in states[1:]:
        assert all(map(torch.equal, state.arrays, states[0].arrays))
    for mine, theirs in zip(*map(in_units_of_rows, (states[0], right)), strict=True):
        assert_near(mine, theirs, SINGLE)


@pytest.mark.parametrize("kind", KINDS)
def test_operands_with_gaps(away, kind):
    def attended(pattern, *operands):
        return [fused(kind, pattern, (*operands, None), None)]

    pattern = skewed()
    first, second, third, _ = KINDS[kind][0](pattern, 4, 6, SINGLE, False)
    padded = [torch.cat([a, a * torch.nan], 1)[:, : a.shape[1]] for a in (first, second)]
    wide = torch.cat([third] * 3, 1)[:, 3 : 3 + third.shape[1]]
    padded.append(wide if kind == "gat" else third.T.contiguous().T)
    assert_alike(away, attended, pattern, *padded)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "length", "width"),
    [(0, 0, 8), (3, 0, 8), pytest.param(3, 2, 0, marks=pytest.mark.slow)],
)
def test_nothing_to_attend_to(away, kind, rows, length, width):
    def attended(pattern, operands):
        return finish(attend_(*block_of(kind, pattern, operands)))

    pattern = random_block(rows, 5, [length] * rows, 0).pattern
    operands = KINDS[kind][0](pattern, 8, width, SINGLE, False)
    out, lse = away(attended, pattern, list(operands))
    assert out.shape == (rows, 8 * width)
    assert not out.any()
    assert bool((lse == -torch.inf).all()) == (length == 0)


def test_scores_of_minus_infinity(away):
    def attended(pattern, d, s, Z, t):
        return finish(attend_(pattern, Gat(d, s, Z), Rules(edges=t)))

    pattern = random_block(4, 5, [2, 0, 3, 1], 0).pattern
    d, s, Z, t = gat_operands(pattern, 8, 8, SINGLE, True)
    t[0] = -torch.inf
    t[2:5] = -torch.inf  # all of the third row
    out, lse = away(attended, pattern, d, s, Z, t)
    assert not out[1:3].any()
    assert torch.allclose(out[0], Z[pattern.indices[1].long()])
    assert bool((lse[1:3] == -torch.inf).all())


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
def test_random_blocks(monkeypatch, emulated, kind, lengths, shape, edges, drops, seed):
    pattern = random_block(len(lengths), 90, lengths, seed).pattern
    operands = KINDS[kind][0](pattern, *shape, SINGLE, edges, seed)
    dropout = some_dropout(pattern) if drops else None
    G = numbers(seed, len(lengths), shape[0] * shape[1], dtype=SINGLE)

    def attended():
        out, grads = with_gradients(lambda o: fused(kind, pattern, o, dropout), operands, G)
        return out, *grads

    right = attended()
    with monkeypatch.context() as patch:
        work_by(patch, native)
        patch.setattr(tiling, "TILE_ITEMS", (16,))
        emulated.seed = seed
        for mine, theirs in zip(attended(), right, strict=True):
            assert_near(mine, theirs, SINGLE)
