"""Dropout masks depend on vertex, column, layer, epoch and seed, and on nothing else."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.nn import DropoutKeys
from spgnn.nn.rowwise import dropout

ROWS, COLUMNS, P = 400, 50, 0.3
IDS = torch.arange(ROWS)


def kept(ids=IDS, *, seed=1, epoch=2, layer=3, columns=COLUMNS, p=P) -> torch.Tensor:
    """Which ones survive."""
    return dropout(torch.ones(len(ids), columns), p, DropoutKeys(ids, seed, epoch), layer) != 0


@given(st.permutations(range(60)), st.integers(0, 60))
def test_mask_does_not_depend_on_where_a_vertex_lives(order, cut):
    ids = torch.tensor(order)
    whole = kept(torch.arange(60))
    for part in (ids[:cut], ids[cut:]):
        assert torch.equal(kept(part), whole[part])


def test_mask_of_a_column_does_not_depend_on_how_many_there_are():
    assert torch.equal(kept(columns=7), kept()[:, :7])


def test_mask_is_that_of_its_seed_epoch_and_layer():
    assert torch.equal(kept(), kept())
    masks = [kept(seed=s, epoch=e, layer=n) for s, e, n in product((0, 1), (0, 1), (0, 1))]
    expected = P * P + (1 - P) * (1 - P)
    for a, b in ((a, b) for i, a in enumerate(masks) for b in masks[:i]):
        # Independent masks agree as often as independent coins: here within six deviations.
        assert float((a == b).double().mean()) == pytest.approx(expected, abs=6 * 0.5 / 141)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_that_is_kept(p):
    share = float(kept(p=p).double().mean())
    assert share == pytest.approx(1 - p, abs=6 * (p * (1 - p) / (ROWS * COLUMNS)) ** 0.5)


def test_what_is_kept_is_scaled():
    X = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
    Y = dropout(X, P, DropoutKeys(IDS, 0, 0), 0)
    mask = kept(seed=0, epoch=0, layer=0)
    torch.testing.assert_close(Y, torch.where(mask, X / (1 - P), 0.0))


def test_sparse_features_are_dropped_as_dense_ones():
    X = sp.random_array((ROWS, COLUMNS), density=0.2, rng=np.random.default_rng(0)).tocsr()
    X = X.astype(np.float32)
    keys = DropoutKeys(torch.randperm(ROWS), 4, 5)
    sparse = dropout(CSR.from_scipy(X), P, keys, 1)
    assert isinstance(sparse, CSR)
    dense = dropout(torch.from_numpy(X.toarray()), P, keys, 1)
    np.testing.assert_array_equal(sparse.to_scipy().toarray(), dense.numpy())


def test_gradient_passes_where_values_did():
    X = torch.randn(ROWS, COLUMNS, requires_grad=True)
    Y = dropout(X, P, DropoutKeys(IDS, 1, 2), 3)
    Y.sum().backward()
    torch.testing.assert_close(X.grad, kept().float() / (1 - P))


@pytest.mark.parametrize(("p", "keys"), [(0.0, DropoutKeys(IDS, 0, 0)), (0.5, None)])
def test_nothing_is_dropped_without_probability_or_keys(p, keys):
    X = torch.randn(ROWS, 3)
    assert dropout(X, p, keys, 0) is X


def test_keys_are_distinct():
    values = (0, 1, 2, 255, 2**15, 2**16 - 1)
    keys = {
        DropoutKeys(IDS, seed, epoch).key(layer)
        for seed, epoch, layer in product((*values, 2**24 - 1), (*values, 2**24 - 1), values)
    }
    assert len(keys) == 7 * 7 * 6
    assert max(keys) < 2**64


def test_sparse_features_need_values():
    X = CSR.from_scipy(sp.csr_array(np.eye(ROWS, dtype=np.bool_)))
    with pytest.raises(InputError, match="need values"):
        dropout(X, P, DropoutKeys(IDS, 0, 0), 0)
