"""Fused attention on a GPU, through the public operations, against the CPU."""

import pytest
import torch

from spgnn.kernels import AttentionDropout
from spgnn.kernels.attention import Gat, Rules, attend_, finish
from spgnn.kernels.cuda import device

from .conftest import DTYPES, random_block
from .cuda_cases import SKEWED
from .test_attention import (
    KINDS,
    assert_near,
    fused,
    gat_operands,
    numbers,
    some_dropout,
    split,
    with_gradients,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not device.available(), reason="needs CuPy"),
]
SHAPES = [(1, 1), (3, 5), (8, 8), (17, 8), (1, 64), (4, 64), (2, 300), (1, 1024)]


def rule_on_gpu(dropout):
    """A rule of dropout on the GPU."""
    if dropout is None:
        return None
    ids = dropout.row_ids.cuda(), dropout.col_ids.cuda()
    return AttentionDropout(dropout.key, dropout.p, *ids)


def on_gpu(arrays):
    return [None if a is None else a.cuda() for a in arrays]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_edges_and_dropout", [False, True])
def test_equals_the_cpu(kind, dtype, shape, with_edges_and_dropout):
    heads, width = shape
    lengths = [*SKEWED, 5000] if width < 300 else SKEWED
    pattern = random_block(len(lengths), 6000, lengths, 3).pattern
    operands = KINDS[kind][0](pattern, heads, width, dtype, with_edges_and_dropout)
    dropout = some_dropout(pattern) if with_edges_and_dropout else None
    G = numbers(9, len(lengths), heads * width, dtype=dtype)
    right, of_right = with_gradients(lambda o: fused(kind, pattern, o, dropout), operands, G)
    moved, rule = pattern.to("cuda"), rule_on_gpu(dropout)
    for _ in range(2):
        found, grads = with_gradients(
            lambda o: fused(kind, moved, o, rule), on_gpu(operands), G.cuda()
        )
        bits = [a.clone() for a in (found, *grads)]
        for one, other in zip((found, *grads), (right, *of_right), strict=True):
            assert_near(one.cpu(), other, dtype)
    assert all(map(torch.equal, bits, (found, *grads)))


@pytest.mark.parametrize("heads", [1, 8])
def test_a_row_of_a_million_nonzeros(heads):
    lengths = [*[3] * 1000, 1_000_000, *[0] * 50, *[3] * 1000]
    pattern = random_block(len(lengths), 1_200_000, lengths, 5).pattern
    operands = gat_operands(pattern, heads, 8, torch.float32, False)
    G = numbers(9, len(lengths), heads * 8, dtype=torch.float32)
    right, of_right = with_gradients(lambda o: fused("gat", pattern, o, None), operands, G)
    moved = pattern.to("cuda")
    found, grads = with_gradients(
        lambda o: fused("gat", moved, o, None), on_gpu(operands), G.cuda()
    )
    for one, other in zip((found, *grads), (right, *of_right), strict=True):
        assert_near(one.cpu(), other, torch.float32)


@pytest.mark.parametrize("width", [8, 300])
def test_blocks_are_merged(width):
    pattern, heads = random_block(len(SKEWED), 800, SKEWED, 3).pattern, 2
    d, s, Z, _ = on_gpu(gat_operands(pattern, heads, width, torch.float32, False))
    left, right = (block.to("cuda") for block in split(pattern, 300))
    whole, _ = finish(attend_(pattern.to("cuda"), Gat(d, s, Z), Rules()))
    state = attend_(left, Gat(d, s[:300], Z[:300]), Rules())
    attend_(right, Gat(d, s[300:], Z[300:]), Rules(), state)
    assert_near(finish(state)[0], whole, torch.float32)
