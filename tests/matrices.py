"""Matrices and layouts that the distributed tests share."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from spgnn import CSR, RowLayout


def random_matrix(n: int, density: float, seed: int, *, weighted: bool) -> sp.csr_array:
    """A directed n × n matrix with an isolated vertex, a full row and a full column."""
    rng = np.random.default_rng(seed)
    dense = (rng.random((n, n)) < density).astype(np.float64)
    if n > 3:
        dense[n // 2, :] = 1
        dense[:, n // 3] = 1
        dense[n - 2, :] = 0
        dense[:, n - 2] = 0
    if weighted:
        dense *= rng.standard_normal((n, n))
    A = sp.csr_array(dense)
    return A if weighted else A.astype(np.bool_)


def uneven_layout(n: int, parts: int, seed: int) -> RowLayout:
    """Random cuts, so that sizes differ and some parts are empty."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, n + 1, parts - 1))
    return RowLayout(np.concatenate(([0], cuts, [n])))


def block_row(A: sp.csr_array, first: int, last: int) -> CSR:
    """Rows [first, last) as a CSR block, float64 if weighted."""
    return CSR.from_scipy(A[first:last])
