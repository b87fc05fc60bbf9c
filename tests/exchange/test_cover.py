"""The minimum cover is a cover, and as small as a maximum matching (König)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse.csgraph import maximum_bipartite_matching
from spgnn.exchange._cover import minimum_vertex_cover

from spgnn.exchange.cover import covered_by_row

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


@given(patterns, st.integers(1, 4), st.integers(0, 2**32))
def test_blocks_are_covered_independently(pattern, parts, seed):
    owner_of = np.sort(np.random.default_rng(seed).integers(0, parts, pattern.shape[1]))
    rows, columns = (index.astype(np.int64) for index in np.nonzero(pattern))
    owners = owner_of[columns]
    by_row = covered_by_row(rows, columns, owners, "minimum")
    for part in range(parts):
        here = owners == part
        items = len(np.unique(rows[here & by_row])) + len(np.unique(columns[here & ~by_row]))
        block = sp.csr_array(pattern[:, owner_of == part])
        least = (maximum_bipartite_matching(block) >= 0).sum() if block.shape[1] else 0
        assert items == least


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
    rows = np.zeros(50, dtype=np.int64)
    by_row = covered_by_row(rows, np.arange(50), np.zeros(50, dtype=np.int64), "minimum")
    assert by_row.all()
