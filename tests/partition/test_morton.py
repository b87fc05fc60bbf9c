"""Points along a curve: equal shares, compact parts, and what is no place in space."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from spgnn import InputError
from spgnn.partition import morton, partition
from spgnn.partition.__main__ import main


@given(st.integers(0, 60), st.integers(1, 9), st.integers(2, 3), st.integers(0, 2**32 - 1))
def test_parts_have_equal_weight_up_to_a_point(n, k, dimensions, seed):
    rng = np.random.default_rng(seed)
    points = np.round(rng.standard_normal((n, dimensions)), int(rng.integers(4)))
    weights = rng.integers(0, 5, n) if seed % 2 else None
    labels = morton(points, k, weights)
    assert labels.dtype == np.int32
    assert labels.shape == (n,)
    weight = np.ones(n) if weights is None else weights
    loads = np.bincount(labels, weights=weight, minlength=k)
    assert loads.max(initial=0) <= weight.sum() / k + weight.max(initial=0) + 0.01 * n
    # Whatever the unit, and wherever the box is.
    np.testing.assert_array_equal(morton(points * 4 - 1024, k, weights), labels)


def test_a_square_is_cut_into_squares():
    x, y = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    labels = morton(np.column_stack((x.ravel(), y.ravel())), 4).reshape(8, 8)
    quarter = np.ones((4, 4), int)
    np.testing.assert_array_equal(labels, np.kron([[0, 2], [1, 3]], quarter))


def cloud() -> tuple[np.ndarray, sp.csr_array]:
    """Points in no order, and their nearest neighbours."""
    points = np.random.default_rng(0).random((3000, 3))
    near = cKDTree(points).query(points, 9)[1]
    A = sp.csr_array((np.ones(near.size, bool), near.ravel(), np.arange(0, near.size + 1, 9)))
    A.sort_indices()
    return points, A


def test_it_is_a_method_of_partition_and_of_the_command(tmp_path, capsys):
    points, A = cloud()
    labels, found = partition(A, 8, "morton", positions=points)
    np.testing.assert_array_equal(labels, morton(points, 8, np.diff(A.indptr)))
    assert found["total_volume"] < 0.5 * partition(A, 8, "block")[1]["total_volume"]
    assert found["imbalance_met"]
    np.save(tmp_path / "places.npy", points)
    sp.save_npz(tmp_path / "A.npz", A)
    graph, places, output = (str(tmp_path / name) for name in ("A.npz", "places.npy", "labels"))
    words = [graph, "--parts", "8", "--method", "morton", "--output", output]
    assert main([*words, "--positions", places, "--compare", "block"]) == 0
    np.testing.assert_array_equal(np.loadtxt(output, dtype=int), labels)
    capsys.readouterr()
    for more, wanted in (
        ([], "method morton needs positions"),
        (["--positions", str(tmp_path / "none.npy")], "none.npy: no such file"),
        (["--positions", graph], "A.npz: truncated or damaged"),
    ):
        assert main([*words, *more]) == 2
        assert wanted in capsys.readouterr().err


@pytest.mark.parametrize(
    ("positions", "weights", "message"),
    [
        (np.zeros(3), None, r"real numbers \[n, 2\] or \[n, 3\], got float64 \[3\]"),
        (np.zeros((3, 4)), None, r"got float64 \[3, 4\]"),
        (np.zeros((3, 2), complex), None, "got complex128"),
        ([[0, 1], [np.nan, 0]], None, "positions must be finite; row 1 is not"),
        (np.zeros((2, 2)), [1, np.inf], r"weights\[1\] is inf; weights are finite"),
    ],
)
def test_what_is_no_place_is_refused(positions, weights, message):
    with pytest.raises(InputError, match=message):
        morton(positions, 2, weights)
    A = sp.eye_array(3).tocsr()
    with pytest.raises(InputError, match="positions of 2 vertices for a graph of 3"):
        partition(A, 2, "morton", positions=np.zeros((2, 2)))
    with pytest.raises(InputError, match="method morton needs positions"):
        partition(A, 2, "gvb", positions=np.zeros((3, 2)))
