"""The CSR block against SciPy."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from spgnn import CSR, InputError
from spgnn.kernels import spmm
from spgnn.sparse import SUM_DTYPE


def pickle_round(A: CSR) -> CSR:
    return pickle.loads(pickle.dumps(A))


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
    return CSR(A.pattern, values, rows, cols)


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


@given(blocks())
def test_scalings_can_be_replaced_and_converted(A):
    bare = A.with_scales(None, None)
    assert bare.values is A.values
    assert bare.pattern is A.pattern
    for dtype, kept in SUM_DTYPE.items():
        narrow = A.to(dtype)
        assert narrow.pattern is A.pattern
        numbers = [narrow.values, narrow.row_scale, narrow.col_scale]
        assert all(a.dtype == kept for a in numbers if a is not None)
        np.testing.assert_allclose(dense(narrow), dense(A), rtol=1e-5)
    arrays = [A.indptr, A.indices, A.values, A.row_scale, A.col_scale]
    assert A.nbytes == sum(a.numpy().nbytes for a in arrays if a is not None)
    with pytest.raises(InputError, match=r"no products with torch.int64; choose torch.float32"):
        A.to(torch.int64)


@given(blocks())
def test_bytes_of_the_transpose_are_foretold(A):
    before = A.transpose_nbytes
    pattern, other = A.pattern, A.T.pattern
    arrays = [] if other is pattern else [other.indptr, other.indices]
    if A.values is not None:
        arrays += [pattern.order, A.T.values]
    assert before == sum(a.numpy().nbytes for a in arrays)


def test_a_kept_transpose_is_never_stale():
    """Values may be written to, on either side, after the other side was made."""
    A = CSR.from_scipy(sp.csr_array(np.array([[0.0, 2.0, 5.0], [3.0, 0.0, 0.0]])))
    kept = A.T
    assert A.T is kept
    assert kept.T is A
    A.values.mul_(10)
    assert A.T is not kept
    np.testing.assert_array_equal(dense(A.T), dense(A).T)
    kept = A.T
    kept.values[0] = 77.0
    np.testing.assert_array_equal(dense(kept.T), dense(kept).T)
    np.testing.assert_array_equal(dense(A.T), dense(A).T)


def test_a_transpose_of_learnt_values_is_a_function_of_them():
    values = torch.tensor([2.0, 5.0, 3.0], dtype=torch.float64, requires_grad=True)
    A = CSR.of(torch.tensor([0, 2, 3]), torch.tensor([1, 2, 0]), (2, 3), values)
    weights = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    (A.T.values * weights).sum().backward()
    # By columns the entries are 3, 2, 5.
    assert values.grad.tolist() == [10.0, 100.0, 1.0]
    with torch.no_grad():
        values.add_(1)
    assert A.T.values.tolist() == [4.0, 3.0, 6.0]


def test_values_that_nobody_watches_are_read_again():
    with torch.inference_mode():
        values = torch.tensor([2.0, 5.0])
    A = CSR.of(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), (2, 2), values)
    assert A.T.values.tolist() == [5.0, 2.0]
    with torch.inference_mode():
        values.mul_(2)
    assert A.T.values.tolist() == [10.0, 4.0]


def test_values_of_heads():
    A = CSR.of(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), (2, 2), torch.rand(2, 3))
    assert torch.equal(A.T.values, A.values[[1, 0]])
    with pytest.raises(InputError, match="values of several heads"):
        A.to_scipy()


@pytest.mark.parametrize("copied", [pickle_round, copy.deepcopy], ids=["pickle", "deepcopy"])
def test_copies_leave_the_other_side_behind(copied):
    A = CSR.from_scipy(sp.csr_array(np.array([[0.0, 2.0, 5.0], [3.0, 0.0, 0.0]])))
    _ = A.T, A.T.T
    for original in (A, A.T):
        other = copied(original)
        np.testing.assert_array_equal(dense(other), dense(original))
        np.testing.assert_array_equal(dense(other.T), dense(original).T)


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
    ({"values": torch.ones(3)}, r"values must be floating \[2\] or \[2, heads\], got float32"),
    ({"values": torch.ones(2, dtype=torch.int64)}, r"values must be .*, got int64 \[2\]"),
    ({"row_scale": torch.ones(3)}, r"row_scale must be floating \[2\], got float32 \[3\]"),
    ({"col_scale": torch.ones(3).long()}, r"col_scale must be floating \[3\], got int64 \[3\]"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_arrays_that_contradict_each_other_are_refused_by_name(change, message):
    arrays = {"indptr": INDPTR, "indices": INDICES, "shape": (2, 3), "values": None} | change
    scales = [arrays.pop(name, None) for name in ("row_scale", "col_scale")]
    with pytest.raises(InputError, match=message):
        CSR.of(**arrays).with_scales(*scales)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_transpose_can_be_made_inside_a_transform(weighted):
    matrix = sp.random(30, 20, 0.2, format="csr", random_state=0, dtype=np.float64)
    dense = torch.from_numpy(matrix.toarray() if weighted else (matrix.toarray() != 0) * 1.0)
    X = torch.from_numpy(np.random.default_rng(0).standard_normal((30, 3)))

    def fresh() -> CSR:
        block = CSR.from_scipy(matrix)
        return block if weighted else CSR(block.pattern)

    A, B = fresh(), fresh()
    gradient = torch.func.grad(lambda X: spmm(A.T, X).pow(2).sum())(X)
    assert torch.allclose(gradient, 2 * dense @ (dense.T @ X))
    columns = torch.vmap(lambda x: spmm(B.T, x[:, None])[:, 0], 1, 1)(X)
    assert torch.allclose(columns, dense.T @ X)
    assert torch.allclose(spmm(A.T, X), dense.T @ X)  # what was kept is no transform's
