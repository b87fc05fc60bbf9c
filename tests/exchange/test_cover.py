"""The minimum cover is a cover, and as small as a maximum matching (König)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn import CSR, RowLayout
from spgnn._native import minimum_vertex_cover
from spgnn.exchange import needs_of
from spgnn.exchange.needs import COVERS

patterns = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda shape: arrays(np.bool_, shape, elements=st.booleans())
)


@given(patterns)
def test_cover_is_minimum(pattern):
    A = sp.csr_array(pattern)
    rows, columns = minimum_vertex_cover(
        A.indptr.astype(np.int64), A.indices.astype(np.int64), A.shape[1]
    )
    covered = rows.astype(bool)[:, None] | columns.astype(bool)[None, :]
    assert covered[pattern].all()
    matching = (maximum_bipartite_matching(A) >= 0).sum()
    assert rows.sum() + columns.sum() == matching


@given(patterns, st.integers(2, 4), st.integers(0, 2**32))
def test_blocks_are_covered_independently(pattern, parts, seed):
    """What each owner is asked for is as little as its block allows."""
    columns = pattern.shape[1]
    cuts = np.sort(np.random.default_rng(seed).integers(0, columns + 1, parts - 2))
    # The rank that asks owns nothing, so that all is remote.
    layout = RowLayout(np.concatenate(([0, 0], cuts, [columns])))
    block = CSR.from_scipy(sp.csr_array(pattern))
    for cover in COVERS:
        L, R, asked = needs_of(block, layout, range(parts), 0, cover)
        assert L.nnz == 0
        assert asked.rows.sum() == R.shape[1]
        for part in range(parts):
            owned = pattern[:, slice(*layout.range(part))]
            least = (maximum_bipartite_matching(sp.csr_array(owned)) >= 0).sum()
            expected = {"column": owned.any(axis=0).sum(), "row": owned.any(axis=1).sum()}
            assert asked.rows[part] == expected.get(cover, least)


def test_a_long_augmenting_path_does_not_exhaust_the_stack():
    # A path r0-c0-r1-c1-… whose greedy matching must be flipped end to end.
    n = 200_000
    rows = np.concatenate((np.arange(n), np.arange(1, n)))
    columns = np.concatenate((np.arange(n), np.arange(n - 1)))
    A = sp.csr_array((np.ones(2 * n - 1), (rows, columns)), shape=(n, n))
    row_cover, column_cover = minimum_vertex_cover(
        A.indptr.astype(np.int64), A.indices.astype(np.int64), n
    )
    assert int(row_cover.sum()) + int(column_cover.sum()) == n


def test_one_hub_row_pays_for_its_block():
    block = CSR.from_scipy(sp.csr_array(np.ones((1, 50), np.bool_)))
    layout = RowLayout(np.array([0, 0, 50]))
    _, R, asked = needs_of(block, layout, [0, 1], 0, "minimum")
    assert asked.rows.tolist() == [0, 1]
    assert asked.lengths.tolist() == [50]
    assert asked.columns.tolist() == list(range(50))
    assert R.to_scipy().toarray().tolist() == [[1.0]]
