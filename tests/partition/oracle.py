"""Slow and obvious: what a partition moves, block by block on dense matrices."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from scipy.sparse.csgraph import maximum_bipartite_matching


def dense_blocks(A: sp.csr_array, labels: np.ndarray, parts: int, cover: str) -> np.ndarray:
    """Rows that part q sends to part p, at [q, p]."""
    pattern = A.astype(bool).toarray()
    blocks = np.zeros((parts, parts), np.int64)
    for p in range(parts):
        for q in range(parts):
            if p == q:
                continue
            block = pattern[np.ix_(labels == p, labels == q)]
            if cover == "column":
                blocks[q, p] = block.any(axis=0).sum()
            elif cover == "row":
                blocks[q, p] = block.any(axis=1).sum()
            elif block.size:
                matching = maximum_bipartite_matching(sp.csr_array(block))
                blocks[q, p] = (matching >= 0).sum()
    return blocks


@st.composite
def matrices(draw: st.DrawFn, most: int = 24) -> sp.csr_array:
    """A directed square 0/1 pattern, empty, dense, or with a hub."""
    n = draw(st.integers(1, most))
    density = draw(st.sampled_from([0.0, 0.05, 0.2, 0.6, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dense = rng.random((n, n)) < density
    if draw(st.booleans()):
        dense[:, n // 2] = True
    if draw(st.booleans()):
        dense[n // 3, :] = True
    return sp.csr_array(dense)


def community_graph(n: int, parts: int, seed: int) -> sp.csr_array:
    """Undirected, with self-loops: 13 neighbours in one of `parts` groups, 1 anywhere."""
    rng = np.random.default_rng(seed)
    size = n // parts
    rows = np.repeat(np.arange(n), 14)
    near = rows // size * size + rng.integers(0, size, len(rows))
    columns = np.where(np.arange(len(rows)) % 14 < 13, near, rng.integers(0, n, len(rows)))
    shuffled = rng.permutation(n)
    A = sp.coo_array(
        (np.ones(len(rows), bool), (shuffled[rows], shuffled[columns % n])), shape=(n, n)
    ).tocsr()
    return sp.csr_array((A + A.T + sp.eye_array(n, dtype=bool)).astype(bool))
