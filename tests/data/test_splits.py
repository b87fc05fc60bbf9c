from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn.data.generators import block_model
from spgnn.data.splits import seeded_split, with_split
from spgnn.hashing import uniform


@given(st.lists(st.integers(-1, 3), max_size=30), st.integers(0, 5), st.data())
def test_a_split_covers_labelled_vertices_once_wherever_they_are(labels, seed, data):
    y = torch.tensor(labels, dtype=torch.int64)
    masks = torch.stack(seeded_split(len(labels), y, seed))
    assert torch.equal(masks.sum(dim=0), (y >= 0).long())
    order = torch.tensor(data.draw(st.permutations(range(len(labels)))), dtype=torch.int64)
    moved = torch.stack(seeded_split(order, y[order], seed))
    assert torch.equal(moved, masks[:, order])


def test_shares_are_60_20_20():
    train, val, test = seeded_split(100_000, None, 0)
    assert train.double().mean().item() == pytest.approx(0.6, abs=0.01)
    assert val.double().mean().item() == pytest.approx(0.2, abs=0.01)
    assert test.double().mean().item() == pytest.approx(0.2, abs=0.01)
    other, _, _ = seeded_split(100_000, None, 1)
    assert (train & other).double().mean().item() == pytest.approx(0.36, abs=0.01)


def test_a_given_split_is_kept():
    graph = block_model(50, 100, seed=0)
    assert with_split(graph, 5) is graph


def test_hashing_is_a_function_of_id_seed_purpose_and_column():
    ids = np.arange(1000)
    draws = uniform(ids, 3, "x", 8)
    assert draws.shape == (1000, 8)
    np.testing.assert_array_equal(uniform(ids[500:], 3, "x", 8), draws[500:])
    np.testing.assert_array_equal(uniform(ids, 3, "x", 5), draws[:, :5])
    assert draws.min() >= 0
    assert draws.max() < 1
    for other in (uniform(ids, 4, "x", 8), uniform(ids, 3, "y", 8)):
        assert abs(np.corrcoef(draws.ravel(), other.ravel())[0, 1]) < 0.05
    correlation = np.corrcoef(draws.T) - np.eye(8)
    assert np.abs(correlation).max() < 0.15
    counts, _ = np.histogram(draws, bins=16, range=(0, 1))
    assert np.abs(counts / 500 - 1).max() < 0.2


def test_hashing_stays_as_it_is():
    # Splits of recorded experiments depend on these very numbers.
    got = uniform(np.array([0, 1, 2**40]), 7, "split")
    np.testing.assert_array_equal(
        got, [0.16321740990944067, 0.3649133980319066, 0.2285886800314254]
    )
