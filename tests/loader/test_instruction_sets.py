"""Weighted draws, several at once, are those of one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn import _native
from spgnn.loader import Draw, NeighborSampler
from spgnn.pattern import Pattern

OTHERS = [name for name in _native.instruction_sets() if name != "baseline"]
# Rows that are taken whole, nearly whole, fetched whole, by place, and too long for one number.
DEGREES = [3, 6, 7, 9, 12, 14, 20, 40, 64, 65, 100, 300, 1000, 1100, 5000, 13000]


@pytest.fixture
def use_instruction_set():
    """A setter of the instruction set that is undone after the test."""
    yield _native.use_instruction_set
    _native.use_instruction_set(_native.instruction_sets()[0])


def pattern_and_weights(skewed: bool) -> tuple[Pattern, torch.Tensor]:
    degrees = np.tile(DEGREES, 12)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    indices = np.concatenate([np.arange(degree) for degree in degrees]).astype(np.int32)
    shape = (len(degrees), int(max(degrees)))
    pattern = Pattern(torch.from_numpy(indptr), torch.from_numpy(indices), shape)
    rng = np.random.default_rng(0)
    weights = rng.random(len(indices)) + 0.01
    return pattern, torch.from_numpy(weights ** (30 if skewed else 1))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("skewed", [False, True], ids=["even", "skewed"])
def test_samples_are_the_same(use_instruction_set, name, skewed):
    pattern, weights = pattern_and_weights(skewed)
    targets = torch.arange(pattern.shape[0])
    for k in (1, 2, 5, 7, 8, 10, 15, 16, 24, 25):
        sampler = NeighborSampler(pattern, [k], weights=weights)
        drawn = {}
        for instructions in ("baseline", name):
            use_instruction_set(instructions)
            drawn[instructions] = sampler.sample_hop(targets, 0, Draw(k))
        for expected, found in zip(drawn["baseline"], drawn[name], strict=True):
            assert (expected is None and found is None) or torch.equal(expected, found)


def test_unknown_instruction_sets_are_named(use_instruction_set):
    with pytest.raises(ValueError, match="no instruction set sse9 here"):
        use_instruction_set("sse9")
