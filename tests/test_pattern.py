"""Patterns against their definition, from both sides."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spgnn import InputError
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.testing import run_ranks
from tests.pretended_gpu import pretended_gpu

shapes = st.tuples(st.integers(0, 12), st.integers(0, 12))
entries = shapes.flatmap(lambda shape: hnp.arrays(np.bool_, shape))


def pattern_of(dense: np.ndarray) -> Pattern:
    A = sp.csr_array(dense)
    indptr = torch.from_numpy(A.indptr.astype(np.int64))
    return Pattern(indptr, torch.from_numpy(A.indices), dense.shape)


def dense_of(pattern: Pattern) -> np.ndarray:
    """Entry by entry, from the definition of CSR."""
    out = np.zeros(pattern.shape, np.bool_)
    for row in range(pattern.shape[0]):
        for e in range(int(pattern.indptr[row]), int(pattern.indptr[row + 1])):
            out[row, int(pattern.indices[e])] = True
    return out


@given(entries)
def test_both_sides(dense):
    P = pattern_of(dense)
    np.testing.assert_array_equal(dense_of(P.T), dense.T)
    assert P.T is P.T
    assert P.T.T is P
    symmetric = dense.shape[0] == dense.shape[1] and bool((dense == dense.T).all())
    assert P.is_symmetric == symmetric == (P.T is P)
    for column in range(dense.shape[1]):
        rows = P.T.indices[P.T.indptr[column] : P.T.indptr[column + 1]]
        assert (rows.diff() > 0).all()


@given(entries)
def test_order_carries_values_to_the_other_side(dense):
    P = pattern_of(dense)
    numbered = np.zeros(dense.shape)
    numbered[dense] = np.arange(1, P.nnz + 1)
    values = torch.arange(1, P.nnz + 1)[P.order.long()]
    assert values.tolist() == numbered.T[dense.T].tolist()
    assert P.order.dtype == torch.int32


def other_sides(rank: int) -> int:
    """On a pretended GPU, of patterns with columns in no order, some of them twice."""
    rng, symmetric = np.random.default_rng(1), 0
    for rows, cols in [(0, 3), (3, 0), (1, 1), *rng.integers(1, 9, (40, 2)), *[(4, 4)] * 9]:
        lengths = rng.integers(0, 3, rows) if cols else np.zeros(rows, np.int64)
        indptr = torch.from_numpy(np.append(0, np.cumsum(lengths)))
        indices = torch.from_numpy(rng.integers(0, max(cols, 1), int(indptr[-1])))
        if rows == 1:
            indptr, indices = torch.tensor([0, 1]), torch.tensor([0])
        P = Pattern(indptr, indices, (int(rows), int(cols)))
        with pretended_gpu() as waits:
            there = Pattern.trusted(P.indptr.to("cuda"), P.indices.to("cuda"), P.shape)
            waits.clear()
            other, order = there.T, there.order
            assert sum(waits.values()) == 0 or rows == cols, waits
            found = [each.cpu() for each in (other.indptr, other.indices, order)]
        symmetric += other is there
        assert (other is there) == P.is_symmetric
        for mine, right in zip(found, (P.T.indptr, P.T.indices, P.order), strict=True):
            assert mine.dtype == right.dtype
            assert torch.equal(mine, right)
    return symmetric


def test_a_gpu_makes_the_other_side_by_itself():
    assert run_ranks(other_sides, 1)[0] > 0


def test_rows_whose_columns_are_in_no_order():
    P = Pattern(torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1]), (2, 2))
    np.testing.assert_array_equal(dense_of(P.T), dense_of(P).T)
    assert P.order.tolist() == [1, 0, 2]


def test_the_first_side_does_not_outlive_its_users():
    P = pattern_of(np.triu(np.ones((3, 3), np.bool_)))
    other, gone = P.T, weakref.ref(P)
    gc.disable()
    try:
        del P
        assert gone() is None
    finally:
        gc.enable()
    np.testing.assert_array_equal(dense_of(other.T), np.triu(np.ones((3, 3))))


def test_narrow_indices_where_they_fit():
    assert index_dtype(2**31 - 1) is torch.int32
    assert index_dtype(2**31) is torch.int64
    wide = Pattern(torch.tensor([0, 1]), torch.tensor([2**31]), (1, 2**31 + 1))
    assert wide.indices.dtype == torch.int64
    assert Pattern(torch.tensor([0, 1]), torch.tensor([2]), (1, 3)).indices.dtype == torch.int32
    assert Selection(torch.tensor([2]), 3).indices.dtype == torch.int32


@given(st.lists(st.integers(0, 6)), st.integers(7, 9))
def test_selections(rows, columns):
    S = Selection(torch.tensor(rows, dtype=torch.int64), columns)
    dense = np.zeros((len(rows), columns), np.bool_)
    dense[np.arange(len(rows)), rows] = True
    np.testing.assert_array_equal(dense_of(S), dense)
    np.testing.assert_array_equal(dense_of(S.T), dense.T)
    run = all(b == a + 1 for a, b in pairwise(rows))
    assert (S.first_of_run is not None) == run
    if run:
        assert S.first_of_run == (rows[0] if rows else 0)


@pytest.mark.parametrize("copied", [lambda P: pickle.loads(pickle.dumps(P)), copy.deepcopy])
def test_copies(copied):
    for P in (pattern_of(np.tri(4, 3, dtype=np.bool_)), Selection(torch.tensor([2, 0]), 3)):
        _ = P.T.T, P.order
        np.testing.assert_array_equal(dense_of(copied(P)), dense_of(P))
        np.testing.assert_array_equal(dense_of(copied(P).T), dense_of(P).T)
        assert type(copied(P)) is type(P)


def test_wrong_selections_are_refused():
    with pytest.raises(InputError, match=r"column index 3 outside \[0, 3\)"):
        Selection(torch.tensor([3]), 3)
    with pytest.raises(InputError, match="int32 or int64"):
        Selection(torch.tensor([1.0]), 3)
