"""Random graphs and the checks that the data tests share."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import strategies as st

from spgnn import CSR
from spgnn.data.graph import MASKS, Graph, GraphBlock

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def adjacencies(draw, *, weighted=None, symmetric=False, loops=True, max_vertices=12):
    """A canonical square CSR block, any shape from empty to full.

    Weights are eighths, which text and float32 both hold exactly; none is 0.
    """
    n = draw(st.integers(0, max_vertices))
    if weighted is None:
        weighted = draw(st.booleans())
    rng = np.random.default_rng(draw(SEEDS))
    weights = rng.integers(1, 40, (n, n)) * rng.choice([-1, 1], (n, n)) / 8
    present = rng.random((n, n)) < draw(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]))
    dense = np.where(present, weights if weighted else 1.0, 0.0)
    if symmetric:
        dense = np.tril(dense) + np.tril(dense, -1).T
    if not loops:
        np.fill_diagonal(dense, 0)
    A = sp.csr_array(dense.astype(np.float32))
    return CSR.from_scipy(A if weighted else A.astype(np.bool_))


@st.composite
def graphs(draw, **kwargs):
    """A graph with any subset of features (dense or sparse), labels and masks."""
    A = draw(adjacencies(**kwargs))
    n = A.shape[0]
    rng = np.random.default_rng(draw(SEEDS))
    x = y = None
    kind = draw(st.sampled_from(["none", "dense", "sparse"]))
    f = draw(st.integers(1, 5))
    if kind == "dense":
        x = torch.from_numpy(rng.standard_normal((n, f), dtype=np.float32))
    elif kind == "sparse":
        table = rng.standard_normal((n, f)) * (rng.random((n, f)) < 0.4)
        x = CSR.from_scipy(sp.csr_array(table.astype(np.float32)))
    labels = draw(st.sampled_from(["none", "classes", "several", "numbers"]))
    if labels == "classes":
        y = torch.from_numpy(rng.integers(-1, max(n, 1), n))
    elif labels == "several":
        y = torch.from_numpy(rng.integers(-1, 2, (n, f), dtype=np.int8))
    elif labels == "numbers":
        numbers = rng.standard_normal((n, f), dtype=np.float32)
        numbers[rng.random((n, f)) < 0.2] = np.nan
        y = torch.from_numpy(numbers)
    masks = {}
    if draw(st.booleans()):
        shape = (n, 3) if draw(st.booleans()) else (n,)
        masks = {name: torch.from_numpy(rng.random(shape) < 0.3) for name in MASKS}
    directed = not kwargs.get("symmetric", False)
    return Graph("drawn", A, directed, x=x, y=y, **masks)


def permutations_of(n: int) -> st.SearchStrategy[torch.Tensor]:
    return st.permutations(range(n)).map(lambda p: torch.tensor(p, dtype=torch.int64))


def assert_same_csr(a: CSR, b: CSR) -> None:
    assert a.shape == b.shape
    assert torch.equal(a.indptr, b.indptr)
    assert torch.equal(a.indices, b.indices)
    assert a.indices.dtype == b.indices.dtype
    assert (a.values is None) == (b.values is None)
    if a.values is not None:
        assert torch.equal(a.values, b.values)


def assert_same_vertices(a: Graph | GraphBlock, b: Graph | GraphBlock) -> None:
    """Features, labels and masks agree bit for bit."""
    for name in ("x", "y", *MASKS):
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, CSR):
            assert_same_csr(left, right)
        elif left is None:
            assert right is None, name
        else:
            assert left.dtype == right.dtype, name
            np.testing.assert_array_equal(left, right, name)


def assert_canonical(A: CSR) -> None:
    """Columns rise strictly inside every row."""
    for row in range(A.shape[0]):
        columns = A.indices[A.indptr[row] : A.indptr[row + 1]]
        assert bool((columns.diff() > 0).all()), f"row {row}"


def pattern(A: CSR) -> np.ndarray:
    """The nonzero pattern as a dense boolean array."""
    dense = np.zeros(A.shape, np.bool_)
    rows = np.repeat(np.arange(A.shape[0]), A.row_lengths.numpy())
    dense[rows, A.indices.numpy()] = True
    return dense
