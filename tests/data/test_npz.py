from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from spgnn import InputError
from spgnn.data.formats.npz import read_npz, write_npz
from spgnn.data.sets.generators import block_model
from tests.data.strategies import assert_same_csr, assert_same_vertices, graphs


@given(graphs())
def test_round_trip(tmp_path_factory, graph):
    path = tmp_path_factory.mktemp("npz") / "drawn.npz"
    for compressed in (True, False):
        write_npz(graph, path, compressed=compressed)
        again = read_npz(path)
        assert_same_vertices(again, graph)
        assert again.name == graph.name
        assert again.directed == graph.directed
        values = graph.adjacency.values
        if values is not None and not bool((values == 1).all()):
            assert_same_csr(again.adjacency, graph.adjacency)
        else:
            assert again.adjacency.values is None
            assert torch.equal(again.adjacency.indices, graph.adjacency.indices)


GOOD = {
    "indptr": np.array([0, 2, 3, 4], np.int64),
    "indices": np.array([1, 2, 0, 0], np.int32),
    "shape": np.array([3, 3], np.int64),
    "directed": np.array(False),
    "x": np.ones((3, 2), np.float32),
    "y": np.array([0, 1, -1], np.int64),
    "train_mask": np.array([True, False, False]),
}
SPARSE = {
    "x_indptr": np.array([0, 1, 1, 2], np.int64),
    "x_indices": np.array([0, 3], np.int32),
    "x_data": np.ones(2, np.float32),
    "x_shape": np.array([3, 4], np.int64),
}


def written(tmp_path, **changes):
    arrays = {**GOOD, **changes}
    np.savez(tmp_path / "g.npz", **{k: v for k, v in arrays.items() if v is not None})
    return tmp_path / "g.npz"


def with_nan(shape, at):
    x = np.ones(shape, np.float32)
    x[at] = np.nan
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indptr": None}, "not a graph: no array 'indptr'"),
        ({"shape": None}, "no array 'shape'"),
        ({"indices": None}, "no array 'indices'"),
        ({"shape": np.array([3, 4])}, "shape is 3 × 4; a graph needs as many rows as columns"),
        ({"shape": np.array([4, 4])}, "array 'indptr' must have length 5, got 4"),
        ({"shape": np.array([3.0, 3.0])}, "'shape' must be a vector of integers"),
        ({"shape": np.array([-3, -3])}, "must not be negative"),
        ({"indptr": np.array([1, 2, 3, 4])}, "'indptr' must start with 0"),
        ({"indptr": np.array([0, 3, 2, 4])}, r"indptr\[2\] is 2; it must not be less"),
        ({"indptr": np.array([0, 2, 3, 5])}, "ends with 5, but 'indices' has 4"),
        ({"indices": np.array([1, 2, 7, 0])}, r"indices\[2\] is 7; it must be in \[0, 3\)"),
        ({"indices": np.array([1, -2, 0, 0])}, r"indices\[1\] is -2; it must be in \[0, 3\)"),
        ({"indices": np.array([1.0, 2, 0, 0])}, "'indices' must be a vector of integers"),
        ({"data": np.array([1, np.inf, 2, 3])}, r"data\[1\] is inf; it must be a finite number"),
        ({"data": np.ones(3)}, r"'data' must be float32 \[4\]"),
        ({"x": with_nan((3, 2), (1, 0))}, r"x\[1, 0\] is nan; it must be a finite number"),
        ({"x": np.ones((2, 2))}, r"'x' must be float32 \[3, any\], got float64 \[2, 2\]"),
        ({"x": np.array(["a", "b", "c"])}, "'x' holds '<U1', not numbers"),
        ({"x": np.ones((3, 2), complex)}, "'x' holds '<c16', not numbers"),
        ({"y": np.zeros(3, [("a", "i4")])}, "'y' holds records, not numbers"),
        ({"y": np.array([0, 99, 0])}, r"y\[1\] is 99; .* with 2 labels in use .* below 12"),
        ({"y": np.array([0, 2, 0]), "classes": np.array(2)}, r"y\[1\] is 2.*\[0, 2\)"),
        ({"y": np.array([0, -2, 0])}, r"y\[1\] is -2"),
        ({"y": np.array([0, 1])}, "'y' must have length 3, got 2"),
        ({"y": np.array([0.0, 1, 0])}, "'y' must be a vector of integers"),
        ({"train_mask": np.array([1, 0, 0])}, "'train_mask' must be bool"),
        ({"train_mask": np.array([True, False])}, r"train_mask must be bool \[3\]"),
        ({"val_masks": np.ones((2, 3), bool)}, "val_mask is"),
        ({"x": None, **SPARSE, "x_shape": np.array([2, 4])}, "2 rows, but the graph has 3"),
        ({"x": None, **SPARSE, "x_data": None}, "no array 'x_data'"),
        ({"x": None, **SPARSE, "x_data": with_nan(2, 1)}, r"x_data\[1\] is nan"),
        ({"x": None, **SPARSE, "x_indices": np.array([0, 4])}, r"x_indices\[1\] is 4"),
    ],
)
def test_bad_arrays_are_named(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_npz(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "g.npz"
    write_npz(block_model(50, 200, features=3, seed=1), path)
    whole = path.read_bytes()
    for length in [0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="truncated"):
            read_npz(path)


def test_flipped_bytes_inside_an_array_are_refused(tmp_path):
    path = tmp_path / "g.npz"
    write_npz(block_model(50, 200, features=3, seed=1), path)
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"x.npy") + 200
    damaged[at : at + 8] = bytes(b ^ 0xFF for b in damaged[at : at + 8])
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"array 'x' is damaged"):
        read_npz(path)


def test_a_file_that_is_no_archive(tmp_path):
    path = tmp_path / "g.npz"
    path.write_text("hello")
    with pytest.raises(InputError, match=r"not an \.npz file"):
        read_npz(path)
    with pytest.raises(InputError, match="no such file"):
        read_npz(tmp_path / "none.npz")


def test_pickled_arrays_are_never_loaded(tmp_path):
    class Mark:
        def __reduce__(self):
            return (open, (str(tmp_path / "opened"), "w"))

    array = np.empty(3, dtype=object)
    array[0] = Mark()
    path = written(tmp_path, x=array)
    with pytest.raises(InputError, match=r"array 'x' holds '.O', not numbers"):
        read_npz(path)
    assert not (tmp_path / "opened").exists()


def test_rows_are_made_canonical(tmp_path):
    path = written(
        tmp_path, indices=np.array([2, 1, 0, 0], np.uint8), data=np.array([1, 2, 3, 4.0])
    )
    A = read_npz(path).adjacency
    assert A.indices.tolist() == [1, 2, 0, 0]
    assert A.values.tolist() == [2, 1, 3, 4]
    assert A.indices.dtype == torch.int32
    path = written(tmp_path, indices=np.array([1, 1, 0, 0]), data=np.array([1, 2, 3, 4.0]))
    assert read_npz(path).adjacency.values.tolist() == [3, 3, 4]


def test_masks_of_several_splits(tmp_path):
    rows = np.array([[True, False, False], [False, True, True]])
    for changes in ({"train_masks": rows}, {"train_mask": rows.T}):
        graph = read_npz(written(tmp_path, **changes))
        assert graph.splits == 2
        assert graph.train_mask.tolist() == rows.T.tolist()


def test_without_a_word_on_direction_a_graph_is_directed(tmp_path):
    assert read_npz(written(tmp_path, directed=None)).directed


def test_a_failed_write_leaves_nothing(tmp_path):
    graph = block_model(50, 200, features=3, seed=1)
    with pytest.raises(InputError, match="cannot be written"):
        write_npz(graph, tmp_path / "missing" / "g.npz")
    assert list(tmp_path.iterdir()) == []
