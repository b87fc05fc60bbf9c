"""The CSR block against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spgnn import CSR, InputError
from spgnn.sparse import index_dtype

shapes = st.tuples(st.integers(0, 12), st.integers(0, 12))
patterns = shapes.flatmap(lambda shape: hnp.arrays(np.bool_, shape))


@st.composite
def blocks(draw, dtype=np.float64):
    """A block in any of the eight combinations of values and scalings."""
    pattern = draw(patterns)
    A = CSR.from_scipy(sp.csr_array(pattern))
    numbers = st.floats(-4, 4, width=16)
    values, rows, cols = (
        torch.from_numpy(draw(hnp.arrays(dtype, length, elements=numbers)))
        if draw(st.booleans())
        else None
        for length in (A.nnz, *A.shape)
    )
    return CSR(A.indptr, A.indices, A.shape, values, rows, cols)


def dense(A: CSR) -> np.ndarray:
    """The block by its definition, entry by entry."""
    out = np.zeros(A.shape)
    for i in range(A.shape[0]):
        for k in range(int(A.indptr[i]), int(A.indptr[i + 1])):
            j = int(A.indices[k])
            entry = 1.0 if A.values is None else float(A.values[k])
            entry *= 1.0 if A.row_scale is None else float(A.row_scale[i])
            entry *= 1.0 if A.col_scale is None else float(A.col_scale[j])
            out[i, j] += entry
    return out


@given(blocks())
def test_to_scipy_multiplies_the_scalings_in(A):
    B = A.to_scipy()
    assert B.shape == A.shape
    np.testing.assert_allclose(B.toarray(), dense(A), rtol=1e-6)


@given(blocks())
def test_transpose(A):
    np.testing.assert_allclose(dense(A.T), dense(A).T, rtol=1e-12)
    assert A.T is A.T
    assert A.T.to_scipy().has_sorted_indices
    np.testing.assert_array_equal(dense(A.T.T), dense(A))


@given(hnp.arrays(np.bool_, st.integers(0, 12).map(lambda n: (n, n))), st.booleans())
def test_symmetric_matrix_shares_arrays_with_its_transpose(pattern, weighted):
    both = pattern | pattern.T
    A = CSR.from_scipy(sp.csr_array(both.astype(np.float32) if weighted else both))
    scale = torch.rand(len(both))
    A = A.with_scales(scale, None)
    assert A.T.indices is A.indices
    assert A.T.indptr is A.indptr
    assert A.T.values is A.values
    assert A.T.col_scale is scale
    assert A.T.row_scale is None


def test_transpose_of_unequal_weights_keeps_them_apart():
    A = CSR.from_scipy(sp.csr_array(np.array([[0.0, 2.0], [3.0, 0.0]])))
    np.testing.assert_array_equal(A.T.to_scipy().toarray(), [[0, 3], [2, 0]])


@given(hnp.arrays(np.float64, shapes, elements=st.sampled_from([0.0, 1.0, -2.5])))
def test_round_trip(matrix):
    given_ = sp.csr_array(matrix)
    A = CSR.from_scipy(given_)
    assert A.indptr.dtype == torch.int64
    assert A.indices.dtype == torch.int32
    np.testing.assert_array_equal(A.to_scipy().toarray(), matrix)
    np.testing.assert_array_equal(A.row_lengths.numpy(), np.count_nonzero(matrix, axis=1))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("kind", [sp.coo_array, sp.csc_matrix, sp.lil_array, sp.csr_matrix])
def test_from_any_scipy_matrix(kind, dtype):
    matrix = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
    A = CSR.from_scipy(kind(sp.csr_array(matrix)))
    kept = {np.bool_: None, np.float64: torch.float64}.get(dtype, torch.float32)
    assert (A.values is None) if kept is None else (A.values.dtype == kept)
    np.testing.assert_array_equal(A.to_scipy().toarray(), matrix)


def test_from_scipy_sums_duplicates_and_sorts_without_touching_its_input():
    indptr, indices = np.array([0, 3, 4]), np.array([2, 0, 2, 1])
    given_ = sp.csr_array((np.array([1.0, 2.0, 4.0, 8.0]), indices, indptr), shape=(2, 3))
    A = CSR.from_scipy(given_)
    np.testing.assert_array_equal(A.indices.numpy(), [0, 2, 1])
    np.testing.assert_array_equal(A.values.numpy(), [2, 5, 8])
    np.testing.assert_array_equal(given_.indices, [2, 0, 2, 1])


@given(blocks(), st.data())
def test_where_keeps_what_the_mask_says(A, data):
    mask = data.draw(hnp.arrays(np.bool_, A.nnz))
    kept = A.where(mask, A.indices.numpy()[mask] + 3, A.shape[1] + 3)
    expected = A.with_scales(A.row_scale, None).to_scipy().tocoo()
    out = np.zeros((A.shape[0], A.shape[1] + 3))
    np.add.at(out, (expected.row[mask], expected.col[mask] + 3), expected.data[mask])
    np.testing.assert_allclose(dense(kept), out, rtol=1e-6)
    assert kept.row_scale is A.row_scale


@given(blocks())
def test_scalings_can_be_replaced_and_converted(A):
    bare = A.with_scales(None, None)
    assert bare.values is A.values
    assert bare.indices is A.indices
    narrow = A.to(torch.float32)
    assert all(a.dtype != torch.float64 for a in narrow.arrays())
    np.testing.assert_allclose(dense(narrow), dense(A), rtol=1e-5)
    assert A.nbytes == sum(a.numpy().nbytes for a in A.arrays())


def test_wide_matrices_have_wide_indices():
    assert index_dtype(2**31 - 1) is np.int32
    assert index_dtype(2**31) is np.int64
    A = CSR(torch.tensor([0, 1]), torch.tensor([2**31]), (1, 2**31 + 1))
    assert A.nnz == 1


INDPTR, INDICES = torch.tensor([0, 1, 2]), torch.tensor([0, 2], dtype=torch.int32)
WRONG = [
    ({"indptr": INDPTR.int()}, r"indptr must be int64 \[3\], got int32 \[3\]"),
    ({"indptr": INDPTR[:2]}, r"indptr must be int64 \[3\], got int64 \[2\]"),
    ({"indptr": torch.tensor([0, 2, 1])}, "indptr must rise from 0 to nnz = 2"),
    ({"indptr": torch.tensor([0, 3, 2])}, "indptr must rise from 0 to nnz = 2"),
    ({"indptr": torch.tensor([1, 1, 2])}, "indptr must rise from 0 to nnz = 2"),
    ({"indptr": torch.tensor([0, 1, 3])}, "indptr must rise from 0 to nnz = 2; it runs 0 to 3"),
    ({"indices": INDICES.float()}, "indices must be int32 or int64"),
    ({"indices": torch.tensor([0, 3])}, r"column index 3 outside \[0, 3\)"),
    ({"indices": torch.tensor([-1, 2])}, r"column index -1 outside \[0, 3\)"),
    ({"values": torch.ones(3)}, r"values must be floating \[2\], got float32 \[3\]"),
    ({"values": torch.ones(2, dtype=torch.int64)}, r"values must be floating \[2\], got int64"),
    ({"row_scale": torch.ones(3)}, r"row_scale must be floating \[2\]"),
    ({"col_scale": torch.ones(2)}, r"col_scale must be floating \[3\]"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_arrays_that_contradict_each_other_are_refused_by_name(change, message):
    arrays = {"indptr": INDPTR, "indices": INDICES, "shape": (2, 3)} | change
    with pytest.raises(InputError, match=message):
        CSR(**arrays)


def test_repr_says_what_is_stored():
    A = CSR(INDPTR, INDICES, (2, 3))
    assert repr(A) == "CSR(2×3, nnz=2, 0/1)"
    assert "values+row_scale" in repr(CSR(INDPTR, INDICES, (2, 3), torch.ones(2), torch.ones(2)))
