"""graph-vb: volumes are those of brute force, and cuts balance them as well as the work."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from systems.graph_vb import in_two, sent_rows

from spgnn.partition import partition

SHORT, LONG = (sp.diags_array((1.0, 1.0), offsets=(-1, 1), shape=(n, n)) for n in (20, 80))
GRID = sp.csr_array(sp.kronsum(SHORT, LONG))


def test_sent_rows_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    nets = sp.random_array((30, 30), density=0.2, format="csr", rng=rng)
    labels = rng.integers(0, 5, 30).astype(np.int32)
    own = np.flatnonzero(labels == 2)
    expected = [len({*labels[nets[[v]].indices].tolist()} - {2}) for v in own]
    np.testing.assert_array_equal(sent_rows(nets[own], labels, 2), expected)


def test_a_cut_balances_both_weights():
    """All volume is at one end of a long grid, whose least cut puts it on one side."""
    pytest.importorskip("pymetis")
    volume = np.repeat([9, 0], 800)
    for balanced, most in ((np.zeros_like(volume), 1), (volume, 0.56)):
        weights = np.stack((np.ones_like(volume), balanced), 1)
        right = in_two(GRID, weights, 0.5, (0.02, 0.1), 1)
        assert abs(right.mean() - 0.5) <= 0.01 + 1e-9
        share = volume[right].sum() / volume.sum()
        assert max(share, 1 - share) <= most
        assert balanced.any() or max(share, 1 - share) > 0.95


def test_parts_have_their_shares():
    """Any number of parts, of directed graphs, with vertices that have no neighbours."""
    pytest.importorskip("pymetis")
    odd = sp.csr_array(sp.block_diag([sp.triu(GRID, 1), sp.csr_array((50, 50))]))
    for k, shares in ((7, [1] * 7), (3, [2, 1, 1])):
        labels, report = partition(odd, k, "graph-vb", shares=shares, balance=("vertices",), seed=3)
        sizes = np.bincount(labels, minlength=k)
        np.testing.assert_allclose(sizes, len(labels) * np.array(shares) / sum(shares), rtol=0.06)
        assert report["max_send"] < 150
