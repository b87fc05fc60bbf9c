"""Slow and obvious: what a partition moves, by its definition; and graphs to be partitioned."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn.partition.ours import gvb
from spgnn.partition.problem import Adjacency, Problem


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


def cover_of_blocks_without(A, labels, parts, v, side):
    """Minimum covers of the blocks of v's row (or column) if v had none, int [parts]."""
    A = A.tolil(copy=True)
    A[[v] if side == "row" else slice(None), slice(None) if side == "row" else [v]] = False
    blocks = dense_blocks(sp.csr_array(A.tocsr()), labels, parts, "minimum")
    return blocks[:, labels[v]] if side == "row" else blocks[labels[v]]


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


def random_pattern(n, degree, seed, skew=0.0):
    """A directed pattern; with skew > 0 low vertex numbers are needed by many."""
    rng = np.random.default_rng(seed)
    count = int(n * degree)
    columns = np.minimum(n - 1, (n * rng.random(count) ** (1 + skew)).astype(int))
    A = sp.coo_array((np.ones(count, bool), (rng.integers(0, n, count), columns)), shape=(n, n))
    return sp.csr_array(A.tocsr().astype(bool))


def uneven_communities(n, seed):
    """Symmetric; communities whose sizes follow a power law, four of five edges inside them."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(5 * rng.zipf(1.6, 200), 400)
    community = np.repeat(np.arange(200), sizes)[:n]
    first = np.searchsorted(community, np.arange(201))
    rows = np.repeat(np.arange(n), 8)
    own = community[rows]
    near = first[own] + (rng.random(len(rows)) * (first[own + 1] - first[own])).astype(int)
    columns = np.where(rng.random(len(rows)) < 0.8, near, rng.integers(0, n, len(rows)))
    A = sp.csr_array((np.ones(len(rows), bool), (rows, columns)), shape=(n, n))
    return sp.csr_array(A + A.T).astype(bool)


def column_volumes(A, labels, k):
    """Send and receive per part by the definition: pairs (column, part that needs it)."""
    send, receive = np.zeros(k, np.int64), np.zeros(k, np.int64)
    A = A.tocsc()
    for v in range(A.shape[0]):
        rows = A.indices[A.indptr[v] : A.indptr[v + 1]]
        for p in set(labels[rows].tolist()) - {int(labels[v])}:
            send[labels[v]] += 1
            receive[p] += 1
    return send, receive


def partition(A, k, imbalance=0.03, weights=None, **options):
    """gvb's labels, one thread by default; `imbalance` may be one number a constraint."""
    weights = np.diff(A.indptr) + 1 if weights is None else np.asarray(weights)
    weights = weights.astype(np.int64).reshape(len(weights), -1)
    adjacency = Adjacency(A.indptr.astype(np.int64), A.indices.astype(np.int32))
    base = dict(seed=0, preset="default", objective="both", initial=None)
    base |= dict(shares=None, fixed=None, nodes=None, outside=1)
    base |= dict(threads=1, progress=None, targets=np.arange(len(weights)), hops=1)
    problem = Problem(adjacency, k, weights, imbalance, **base | options)
    return gvb(problem)


def score(A, labels, k):
    send, _ = column_volumes(A, labels, k)
    return send.sum() + k * send.max()
