from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data.normalise import (
    add_self_loops,
    degree_scales,
    is_bag_of_words,
    row_normalise_features,
    row_sums,
)
from spgnn.data.structure import slice_rows
from tests.data.graphs import adjacencies, assert_canonical, pattern


@st.composite
def blocks(draw):
    """A square block, and some of its rows."""
    A = draw(adjacencies())
    first = draw(st.integers(0, A.shape[0]))
    last = draw(st.integers(first, A.shape[0]))
    return A, first, last


@given(blocks())
def test_loops_are_added_once(drawn):
    A, first, last = drawn
    looped = add_self_loops(slice_rows(A, slice(first, last)), first)
    assert_canonical(looped)
    dense = A.to_scipy().toarray()
    missing = np.diag(~np.diag(pattern(A)))
    np.testing.assert_array_equal(pattern(looped), (pattern(A) | missing)[first:last])
    np.testing.assert_array_equal(looped.to_scipy().toarray(), (dense + missing)[first:last])
    assert (looped.values is None) == (A.values is None)


@given(adjacencies(), st.sampled_from(["sym", "row", "none"]))
def test_scales_normalise_like_the_dense_formula(A, kind):
    A = add_self_loops(A)
    dense = A.to_scipy().toarray().astype(np.float64)
    degree = row_sums(A)
    if kind != "none" and (degree < 0).any():
        first = int(np.flatnonzero(degree < 0)[0])
        with pytest.raises(InputError, match=f"vertex {first + 5} has degree -"):
            degree_scales(A, kind, 5)
        return
    row_scale, own_scale = degree_scales(A, kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(degree > 0, degree ** (-0.5 if kind == "sym" else -1.0), 0.0)
    expected = {
        "sym": inverse[:, None] * dense * inverse[None, :],
        "row": inverse[:, None] * dense,
        "none": dense,
    }[kind]
    got = A.with_scales(row_scale, own_scale).to_scipy().toarray()
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0)
    if kind == "none":
        assert row_scale is None
        assert own_scale is None
    else:
        assert row_scale.dtype == torch.float32
        assert (own_scale is not None) == (kind == "sym")


def test_rows_without_degree_blocks_and_unknown_kinds():
    A = CSR.from_scipy(sp.csr_array(np.array([[0, 0], [1.0, -1.0]])))
    for kind in ("sym", "row"):
        assert degree_scales(A, kind)[0].tolist() == [0, 0]
    with pytest.raises(InputError, match="unknown normalisation 'left': choose sym, row or none"):
        degree_scales(A, "left")
    A = CSR.from_scipy(sp.random_array((40, 40), density=0.1, rng=0, format="csr"))
    parts = [degree_scales(slice_rows(A, slice(i, i + 10)), "sym")[0] for i in range(0, 40, 10)]
    assert torch.equal(torch.cat(parts), degree_scales(A, "sym")[0])


@given(adjacencies(weighted=True))
def test_row_sums_add_in_double(A):
    expected = A.to_scipy().toarray().astype(np.float64).sum(axis=1)
    np.testing.assert_allclose(row_sums(A), expected, rtol=1e-12, atol=1e-12)


@given(
    st.integers(0, 6), st.integers(1, 6), st.integers(0, 2**32 - 1), st.booleans(), st.booleans()
)
def test_features_are_normalised_to_unit_sum(rows, f, seed, sparse, in_place):
    rng = np.random.default_rng(seed)
    dense = (rng.standard_normal((rows, f)) * (rng.random((rows, f)) < 0.5)).astype(np.float32)
    sums = np.abs(dense).sum(axis=1, keepdims=True)
    expected = dense / np.where(sums > 0, sums, 1)
    x = CSR.from_scipy(sp.csr_array(dense)) if sparse else torch.from_numpy(dense.copy())
    got = row_normalise_features(x, in_place=in_place)
    assert (got is x) == in_place
    after = got.to_scipy().toarray() if sparse else got.numpy()
    np.testing.assert_allclose(after, expected, rtol=1e-6)
    before = x.to_scipy().toarray() if sparse else x.numpy()
    np.testing.assert_array_equal(before, after if in_place else dense)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([[1, 0, 0], [0, 0, 3]], True),
        ([[0.25, 0, 0], [0, 0, 0.5]], True),
        ([[1, 0, 0], [0, 0, -3]], False),
        ([[1, 2, 0], [0, 1, 3]], False),
    ],
)
def test_bag_of_words(table, words):
    x = torch.tensor(table, dtype=torch.float32)
    assert is_bag_of_words([x]) == words
    assert is_bag_of_words([None, CSR.from_scipy(sp.csr_array(x.numpy()))]) == words


def test_columns_beyond_32_bits():
    n, first = 2**33, 2**32
    A = CSR.of(torch.tensor([0, 2, 2, 3]), torch.tensor([5, 2**33 - 1, 2**32 + 2]), (3, n), None)
    looped = add_self_loops(A, first)
    assert looped.indptr.tolist() == [0, 3, 4, 5]
    assert looped.indices.tolist() == [5, 2**32, 2**33 - 1, 2**32 + 1, 2**32 + 2]
    assert looped.indices.dtype == torch.int64
    assert degree_scales(looped, "row")[0].tolist() == pytest.approx([1 / 3, 1, 1])
