from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data.graph import MASKS, Graph, GraphBlock, VertexData
from spgnn.data.source import GraphMeta, describe
from tests.data.graphs import (
    adjacencies,
    assert_canonical,
    assert_same_vertices,
    graphs,
    pattern,
    permutations_of,
)


@given(st.data())
def test_relabelling_permutes_rows_and_columns(data):
    graph = data.draw(graphs())
    order = data.draw(permutations_of(graph.vertices))
    moved = graph.relabel(order)
    p = order.numpy()
    assert_canonical(moved.adjacency)
    expected = graph.adjacency.to_scipy().toarray()[np.ix_(p, p)]
    np.testing.assert_array_equal(moved.adjacency.to_scipy().toarray(), expected)
    np.testing.assert_array_equal(pattern(moved.adjacency), pattern(graph.adjacency)[np.ix_(p, p)])
    assert torch.equal(moved.vertex_ids, order)
    assert moved.weighted == graph.weighted
    assert_same_vertices(moved, VertexData(**graph.take(order)))


@given(st.data())
def test_a_block_is_its_rows(data):
    graph = data.draw(graphs())
    order = data.draw(permutations_of(graph.vertices))
    graph = data.draw(st.sampled_from([graph, graph.relabel(order)]))
    first = data.draw(st.integers(0, graph.vertices))
    last = data.draw(st.integers(first, graph.vertices))
    block = graph.block(first, last)
    assert block.first_row == first
    assert block.rows == last - first
    expected = graph.adjacency.to_scipy().toarray()[first:last]
    np.testing.assert_array_equal(block.adjacency.to_scipy().toarray(), expected)
    ids = torch.arange(graph.vertices) if graph.vertex_ids is None else graph.vertex_ids
    assert torch.equal(block.vertex_ids, ids[first:last])
    assert_same_vertices(block, VertexData(**graph.take(torch.arange(first, last))))


def test_blocks_share_memory_with_their_graph():
    A = CSR.from_scipy(sp.eye_array(6, format="csr"))
    graph = Graph("g", A, False, x=torch.zeros(6, 2))
    block = graph.block(2, 5)
    assert block.x.data_ptr() == graph.x[2:].data_ptr()
    assert block.adjacency.indices.data_ptr() == A.indices[2:].data_ptr()


@given(adjacencies())
def test_symmetrising_joins_both_directions(A):
    graph = Graph("g", A, True).symmetrised()
    assert not graph.directed
    assert_canonical(graph.adjacency)
    joined = pattern(A) | pattern(A).T
    if A.values is None:
        np.testing.assert_array_equal(pattern(graph.adjacency), joined)
    dense = A.to_scipy().toarray()
    expected = np.where(pattern(A) & pattern(A).T, np.maximum(dense, dense.T), dense + dense.T)
    np.testing.assert_array_equal(graph.adjacency.to_scipy().toarray(), expected)


def test_selecting_a_split():
    A = CSR.from_scipy(sp.csr_array((3, 3), dtype=np.bool_))
    masks = {name: torch.eye(3, dtype=torch.bool)[:, :2] for name in MASKS}
    graph = Graph("g", A, False, **masks)
    assert graph.splits == 2
    chosen = graph.select_split(1)
    assert chosen.splits == 1
    assert chosen.train_mask.tolist() == [False, True, False]
    assert chosen.select_split(0).train_mask.tolist() == [False, True, False]
    with pytest.raises(InputError, match=r"split 2 does not exist: the masks have 2 column"):
        graph.select_split(2)
    with pytest.raises(InputError, match="split 1 does not exist"):
        chosen.select_split(1)


A3 = CSR.from_scipy(sp.eye_array(3, format="csr"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": torch.zeros(2, 4)}, r"x must be \[3, features\]"),
        ({"x": torch.zeros(3)}, r"x must be \[3, features\]"),
        ({"x": replace(A3, values=None)}, "sparse features need values"),
        ({"y": torch.zeros(3)}, r"y must be int64 \[3\], int8 \[3, labels\] or float32"),
        ({"y": torch.zeros(4, 2)}, r"y must be .*, got torch.float32 \[4, 2\]"),
        ({"y": torch.zeros(3, 2, dtype=torch.int64)}, r"y must be .*, got torch.int64 \[3, 2\]"),
        ({"y": torch.zeros(3, 2, dtype=torch.bool)}, "y must be .*, got torch.bool"),
        ({"y": torch.zeros(4, dtype=torch.int64)}, "y must be int64"),
        ({"train_mask": torch.zeros(3)}, "train_mask must be bool"),
        ({"val_mask": torch.zeros(2, dtype=torch.bool)}, "val_mask must be bool"),
        (
            {
                "train_mask": torch.zeros(3, 2, dtype=torch.bool),
                "test_mask": torch.zeros(3, 3, dtype=torch.bool),
            },
            "test_mask is",
        ),
    ],
)
def test_contradicting_arrays_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        Graph("g", A3, False, **fields)


def test_a_graph_is_square():
    with pytest.raises(InputError, match="2 × 3; a graph needs as many rows as columns"):
        Graph("g", CSR.from_scipy(sp.csr_array((2, 3), dtype=np.float32)), True)


def test_a_block_lies_inside_its_graph():
    with pytest.raises(InputError, match="outside"):
        GraphBlock(A3, 1, torch.arange(3))


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 1, 3], [-1, 0, 1]])
def test_an_order_is_a_permutation(order):
    with pytest.raises(InputError, match=r"permutation of \[0, 3\)"):
        Graph("g", A3, False).relabel(torch.tensor(order))


@given(graphs())
def test_meta_survives_json(graph):
    meta = replace(describe(graph), offsets=(0, 0, graph.vertices, graph.vertices))
    assert GraphMeta.from_record(json.loads(json.dumps(asdict(meta)))) == meta
    assert meta.parts == 3
    assert meta.classes == graph.classes
    assert meta.sparse_features == isinstance(graph.x, CSR)


def test_classes_count_labels_and_ignore_unknown_ones():
    assert Graph("g", A3, False, y=torch.tensor([-1, 4, 0])).classes == 5
    assert Graph("g", A3, False, y=torch.tensor([-1, -1, -1])).classes == 0
    assert Graph("g", A3, False).classes == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_wide_numbers_become_narrow(dtype):
    """SciPy's weights are float64: a crash on several ranks, and a silent cast on one."""
    wide = A3.with_values(A3.values.to(dtype) / 4)
    x = torch.arange(6, dtype=dtype).reshape(3, 2)
    for record in (Graph("g", wide, False, x=x), GraphBlock(wide, 0, torch.arange(3), x=x)):
        assert record.adjacency.values.dtype == torch.float32
        assert record.adjacency.values.tolist() == [0.25, 0.25, 0.25]
        assert record.adjacency.indices.dtype == torch.int32
        assert record.x.dtype == torch.float32
        assert record.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    sparse = Graph("g", A3, False, x=wide).x
    assert (sparse.values.dtype, sparse.indices.dtype) == (torch.float32, torch.int32)
    kept = Graph("g", sparse, False, x=sparse)
    assert kept.adjacency is sparse
    assert kept.x is sparse


@pytest.mark.parametrize("weight", [1e300, -1e300, 1e-300, 4e38, 1e-46])
def test_weights_that_float32_cannot_hold_are_refused(weight):
    wide = replace(A3, values=torch.tensor([1.0, weight, 2.0], dtype=torch.float64))
    with pytest.raises(InputError, match=r"g: entry \(1, 1\) is .*; it must be a weight that"):
        Graph("g", wide, False)
    with pytest.raises(InputError, match=r"rows from 0: entry \(1, 1\)"):
        GraphBlock(wide, 0, torch.arange(3))
    with pytest.raises(InputError, match=r"g: x: entry \(1, 1\)"):
        Graph("g", A3, False, x=wide)


def test_features_that_float32_cannot_hold_are_refused():
    x = torch.tensor([[1.0], [1e300], [1e-300]], dtype=torch.float64)
    with pytest.raises(InputError, match="g: x holds a number too large for float32"):
        Graph("g", A3, False, x=x)
    assert Graph("g", A3, False, x=x.clamp(max=2)).x.tolist() == [[1], [2], [0]]
    with pytest.raises(InputError, match=r"g: x must be real numbers, got torch\.complex64"):
        Graph("g", A3, False, x=torch.zeros(3, 1, dtype=torch.complex64))


def test_masks_without_columns_have_no_split():
    graph = Graph("g", A3, False, train_mask=torch.zeros(3, 0, dtype=torch.bool))
    assert graph.splits == 0
    with pytest.raises(InputError, match="split 0 does not exist: the masks have no columns"):
        graph.select_split(0)


def test_names_that_no_terminal_should_see_survive_json():
    meta = describe(Graph("a\n\x1b\udcff" + "x" * 2000, A3, False))
    assert meta.name.startswith(r"a\n\x1b\udcffxx")
    assert GraphMeta.from_record(json.loads(json.dumps(asdict(meta)))) == meta
