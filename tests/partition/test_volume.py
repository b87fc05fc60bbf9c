"""The report against a dense oracle, for any labels."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn import CSR
from spgnn.partition import report, volume
from spgnn.partition.volume import count_volumes
from tests.partition.oracle import dense_blocks, matrices

COVERS = ("column", "row", "minimum")


@given(matrices(), st.integers(1, 9), st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_volumes_are_those_of_every_block(A, parts, seed, threads):
    labels = np.random.default_rng(seed).integers(0, parts, A.shape[0])
    volumes = count_volumes(A, labels, parts, threads=threads)
    for cover in COVERS:
        counted = getattr(volumes, cover)
        expected = dense_blocks(A, labels, parts, cover)
        np.testing.assert_array_equal(counted.blocks, expected)
        np.testing.assert_array_equal(counted.send, expected.sum(axis=1))
        np.testing.assert_array_equal(counted.receive, expected.sum(axis=0))
    rows, columns = A.nonzero()
    assert volumes.edge_cut == (labels[rows] != labels[columns]).sum()


@pytest.mark.parametrize("parts", [63, 64, 65, 200])
def test_sets_of_parts_that_do_not_fit_take_several_passes(parts, monkeypatch):
    A = sp.random_array((300, 300), density=0.1, rng=1, dtype=np.float64).tocsr()
    labels = np.random.default_rng(2).integers(0, parts, 300)
    whole = count_volumes(A, labels, parts)
    monkeypatch.setattr(volume, "_TABLE_BYTES", 1)
    in_passes = count_volumes(A, labels, parts)
    for cover in COVERS:
        np.testing.assert_array_equal(
            getattr(whole, cover).blocks, getattr(in_passes, cover).blocks
        )
    assert whole.edge_cut == in_passes.edge_cut
    np.testing.assert_array_equal(whole.column.blocks, dense_blocks(A, labels, parts, "column"))


def test_beyond_1024_parts_there_are_no_blocks_but_the_same_sums():
    A = sp.random_array((2000, 2000), density=0.005, rng=1).tocsr()
    labels = np.random.default_rng(0).integers(0, 1500, 2000)
    volumes = count_volumes(A, labels, 1500)
    rows, columns = A.nonzero()
    needs = np.unique(np.stack((labels[rows], columns)), axis=1)
    needs = needs[:, needs[0] != labels[needs[1]]]
    assert volumes.column.blocks is None
    np.testing.assert_array_equal(
        volumes.column.send, np.bincount(labels[needs[1]], minlength=1500)
    )
    np.testing.assert_array_equal(volumes.column.receive, np.bincount(needs[0], minlength=1500))


def test_report_holds_the_contract():
    A = sp.csr_array(np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]]))
    result = report(A, [0, 0, 1, 1], 3)
    assert result["total"] == result["total_volume"] == 2  # rows 0 and 1 go to part 1
    assert result["max_send"] == 2
    assert result["avg_send"] == pytest.approx(2 / 3)
    assert result["max_receive"] == result["max_recv"] == 2
    assert result["send_imbalance"] == pytest.approx(2)
    assert result["edge_cut"] == 2
    assert result["edges"] == 5
    assert result["vertices"] == 4
    assert result["empty_parts"] == 1
    assert result["nnz_imbalance"] == pytest.approx(3 * 3 / 5 - 1)
    assert result["vertex_imbalance"] == pytest.approx(2 * 3 / 4 - 1)
    busiest = [result["covers"][cover]["busiest"] for cover in COVERS]
    assert (result["busiest"], *busiest) == (2, *(result["covers"][c]["max_send"] for c in COVERS))
    assert result["busiest_part"] == 0
    assert result["cover_volume"] == {"column": 2, "row": 1, "minimum": 1}
    assert result["peak_rss_bytes"] > 0
    for cover in COVERS:
        assert result["covers"][cover]["total"] == result["cover_volume"][cover]
        assert sum(result["covers"][cover]["send"]) == result["cover_volume"][cover]


def test_a_csr_block_with_duplicates_counts_rows_once():
    indptr = torch.tensor([0, 3, 3], dtype=torch.int64)
    A = CSR.of(indptr, torch.tensor([1, 1, 0], dtype=torch.int32), (2, 2))
    result = report(A, [0, 1])
    assert result["cover_volume"] == {"column": 1, "row": 1, "minimum": 1}
    assert result["edge_cut"] == 2
