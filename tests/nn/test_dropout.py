"""Dropout of features: keys, and sparse rows as dense ones (masks: tests/kernels/test_rows.py)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import CSR, InputError
from spgnn.kernels.torch_kernels import dropout_mask
from spgnn.nn import DropoutKeys, dropout

ROWS, COLUMNS, P = 400, 50, 0.3
IDS = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)) + 2**35


def test_a_mask_is_that_of_its_key_and_vertices():
    for seed, epoch, layer in product((0, 1), (0, 2), (0, 3)):
        keys, X = DropoutKeys(IDS, seed, epoch), torch.randn(ROWS, COLUMNS, requires_grad=True)
        Y = dropout(X, P, keys, layer)
        mask = dropout_mask(IDS, COLUMNS, keys.key(layer), P)
        torch.testing.assert_close(Y, torch.where(mask, X / (1 - P), 0.0))
        Y.sum().backward()
        torch.testing.assert_close(X.grad, mask / (1 - P))


def test_sparse_features_are_dropped_as_dense_ones():
    X = sp.random_array((ROWS, COLUMNS), density=0.2, rng=np.random.default_rng(0)).tocsr()
    X, keys = X.astype(np.float32), DropoutKeys(IDS, 4, 5)
    sparse = dropout(CSR.from_scipy(X), P, keys, 1)
    assert isinstance(sparse, CSR)
    dense = dropout(torch.from_numpy(X.toarray()), P, keys, 1)
    np.testing.assert_array_equal(sparse.to_scipy().toarray(), dense.numpy())
    with pytest.raises(InputError, match="need values"):
        dropout(CSR.from_scipy(sp.csr_array(np.eye(ROWS, dtype=np.bool_))), P, keys, 0)


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
