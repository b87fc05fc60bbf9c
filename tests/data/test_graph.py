"""Records of graphs: cut, moved, joined, split; and what no record can be."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data import Graph, load_dataset, open_source
from spgnn.data.generators import block_model
from spgnn.data.graph import MASKS, GraphBlock, VertexData
from spgnn.data.load import disjoint_union
from spgnn.data.npz import write_npz
from spgnn.data.source import GraphMeta, describe
from spgnn.data.splits import seeded_split, with_split
from spgnn.hashing import uniform
from tests.data.graphs import (
    adjacencies,
    assert_canonical,
    assert_same_vertices,
    graphs,
    pattern,
    permutations_of,
)

A3 = CSR.from_scipy(sp.eye_array(3, format="csr"))


@settings(max_examples=50)
@given(st.data())
def test_relabelled_graphs_and_blocks_of_rows(data):
    graph = data.draw(graphs())
    n = graph.vertices
    order = data.draw(permutations_of(n))
    moved, p = graph.relabel(order), order.numpy()
    assert_canonical(moved.adjacency)
    dense = graph.adjacency.to_scipy().toarray()
    np.testing.assert_array_equal(moved.adjacency.to_scipy().toarray(), dense[np.ix_(p, p)])
    np.testing.assert_array_equal(pattern(moved.adjacency), pattern(graph.adjacency)[np.ix_(p, p)])
    assert torch.equal(moved.vertex_ids, order)
    assert moved.weighted == graph.weighted
    assert_same_vertices(moved, VertexData(**graph.take(order)))
    first = data.draw(st.integers(0, n))
    last = data.draw(st.integers(first, n))
    for whole, ids in ((graph, torch.arange(n)), (moved, order)):
        block = whole.block(first, last)
        assert (block.first_row, block.rows) == (first, last - first)
        expected = whole.adjacency.to_scipy().toarray()[first:last]
        np.testing.assert_array_equal(block.adjacency.to_scipy().toarray(), expected)
        assert torch.equal(block.vertex_ids, ids[first:last])
        assert_same_vertices(block, VertexData(**whole.take(torch.arange(first, last))))
    # Descriptions survive JSON.
    meta = replace(describe(graph), offsets=(0, first, last, n))
    assert GraphMeta.from_record(json.loads(json.dumps(asdict(meta)))) == meta
    assert (meta.parts, meta.classes, meta.splits) == (3, graph.classes, graph.splits)
    assert meta.sparse_features == isinstance(graph.x, CSR)


def test_blocks_share_memory_with_their_graph():
    graph = graph_of(x=torch.zeros(3, 2))
    block = graph.block(1, 3)
    assert block.x.data_ptr() == graph.x[1:].data_ptr()
    assert block.adjacency.indices.data_ptr() == A3.indices[1:].data_ptr()


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
    masks = {name: torch.eye(3, dtype=torch.bool)[:, :2] for name in MASKS}
    graph = Graph("g", A3, False, **masks)
    assert graph.splits == 2
    chosen = graph.select_split(1)
    assert chosen.splits == 1
    assert chosen.train_mask.tolist() == [False, True, False]
    assert chosen.select_split(0).train_mask.tolist() == [False, True, False]
    none = Graph("g", A3, False, train_mask=torch.zeros(3, 0, dtype=torch.bool))
    assert none.splits == 0
    for record, split, words in (
        (graph, 2, "split 2 does not exist: the masks have 2 column"),
        (chosen, 1, "split 1 does not exist"),
        (none, 0, "split 0 does not exist: the masks have no columns"),
    ):
        with pytest.raises(InputError, match=words):
            record.select_split(split)


def graph_of(**fields):
    return Graph("g", fields.pop("adjacency", A3), False, **fields)


def bools(*shape):
    return torch.zeros(*shape, dtype=torch.bool)


BAD = [
    ({"x": torch.zeros(2, 4)}, r"x must be \[3, features\]"),
    ({"x": torch.zeros(3)}, r"x must be \[3, features\]"),
    ({"x": replace(A3, values=None)}, "sparse features need values"),
    ({"x": torch.tensor([[1], [1e300], [0]], dtype=torch.float64)}, "x holds a number too large"),
    ({"x": torch.zeros(3, 1, dtype=torch.complex64)}, "x must be real numbers, got .*complex64"),
    ({"y": torch.zeros(3)}, r"y must be int64 \[3\], int8 \[3, labels\] or float32"),
    ({"y": torch.zeros(4, 2)}, r"y must be .*, got float32 \[4, 2\]"),
    ({"y": torch.zeros(3, 2, dtype=torch.int64)}, r"y must be .*, got int64 \[3, 2\]"),
    ({"y": bools(3, 2)}, "y must be .*, got bool"),
    ({"y": torch.zeros(4, dtype=torch.int64)}, "y must be int64"),
    ({"train_mask": torch.zeros(3)}, "train_mask must be bool"),
    ({"val_mask": bools(2)}, "val_mask must be bool"),
    ({"train_mask": bools(3, 2), "test_mask": bools(3, 3)}, "test_mask is"),
    ({"vertex_ids": torch.zeros(2, dtype=torch.int64)}, r"vertex_ids must be int64 \[3\]"),
    ({"edge_attr": torch.ones(2, 2)}, r"edge_attr must be floating numbers \[3, k\]"),
    ({"adjacency": CSR.from_scipy(sp.csr_array((2, 3)))}, "2 × 3; a graph needs as many rows"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_contradicting_arrays_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        graph_of(**fields)


def test_other_records_that_cannot_be():
    with pytest.raises(InputError, match="outside"):
        GraphBlock(A3, 1, torch.arange(3))
    with pytest.raises(InputError, match="features, and those of reverse edges are not known"):
        graph_of(edge_attr=torch.ones(3)).symmetrised()
    for order in ([0, 0, 1], [0, 1, 3], [-1, 0, 1]):
        with pytest.raises(InputError, match=r"permutation of \[0, 3\)"):
            graph_of().relabel(torch.tensor(order))


def test_descriptions_and_classes():
    words = CSR.from_scipy(sp.csr_array(np.eye(3, 9, dtype=np.float32)))
    meta = describe(Graph("a\n\x1b\udcff" + "x" * 2000, A3, True, x=words))
    assert (meta.sparse_features, meta.bag_of_words, meta.features) == (True, True, 9)
    assert (meta.weighted, meta.directed, meta.labelled, meta.splits) == (True, True, False, 0)
    # No terminal should see that name.
    assert meta.name.startswith(r"a\n\x1b\udcffxx")
    assert GraphMeta.from_record(json.loads(json.dumps(asdict(meta)))) == meta
    for y, classes in (([-1, 4, 0], 5), ([-1, -1, -1], 0)):
        assert graph_of(y=torch.tensor(y)).classes == classes
    assert graph_of().classes == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_wide_numbers_become_narrow(dtype):
    """SciPy's weights are float64: a crash on several ranks, and a silent cast on one."""
    wide = A3.with_values(A3.values.to(dtype) / 4)
    x = torch.arange(6, dtype=dtype).reshape(3, 2)
    for record in (graph_of(adjacency=wide, x=x), GraphBlock(wide, 0, torch.arange(3), x=x)):
        assert record.adjacency.values.dtype == torch.float32
        assert record.adjacency.values.tolist() == [0.25, 0.25, 0.25]
        assert record.x.dtype == torch.float32
        assert record.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    sparse = graph_of(x=wide).x
    assert (sparse.values.dtype, sparse.indices.dtype) == (torch.float32, torch.int32)
    kept = graph_of(adjacency=sparse, x=sparse)
    assert kept.adjacency is sparse
    assert kept.x is sparse
    tiny = torch.tensor([[1.0], [2], [1e-300]], dtype=torch.float64)
    assert graph_of(x=tiny).x.tolist() == [[1], [2], [0]]


@pytest.mark.parametrize("weight", [1e300, -1e300, 1e-300, 4e38, 1e-46])
def test_weights_that_float32_cannot_hold_are_refused(weight):
    wide = replace(A3, values=torch.tensor([1.0, weight, 2.0], dtype=torch.float64))
    for make, owner in (
        (lambda: graph_of(adjacency=wide), "g"),
        (lambda: GraphBlock(wide, 0, torch.arange(3)), "rows from 0"),
        (lambda: graph_of(x=wide), "g: x"),
    ):
        with pytest.raises(InputError, match=rf"{owner}: entry \(1, 1\) is .*; it must be a weig"):
            make()


# Several graphs as one: the oracle is SciPy's block diagonal.


@settings(max_examples=30)
@given(st.lists(graphs(), min_size=1, max_size=4))
def test_a_union_is_block_diagonal(drawn):
    drawn = [replace(graph, x=None, y=None, **dict.fromkeys(MASKS)) for graph in drawn]
    union = disjoint_union(drawn)
    expected = sp.block_diag([graph.adjacency.to_scipy() for graph in drawn]).toarray()
    np.testing.assert_array_equal(union.adjacency.to_scipy().toarray(), expected)
    assert_canonical(union.adjacency)
    assert union.directed == any(graph.directed for graph in drawn)


def pieces() -> list[Graph]:
    return [block_model(n, 4 * n, features=3, classes=2, seed=n) for n in (7, 12, 5, 1)]


def test_rows_follow_each_other_and_a_split_goes_by_graph():
    found = pieces()
    union = disjoint_union(found)
    for name in ("x", "y", *MASKS):
        parts = [getattr(graph, name) for graph in found]
        assert torch.equal(getattr(union, name), torch.cat(parts))
    found[1] = replace(found[1], **dict.fromkeys(MASKS))
    found[2] = replace(found[2], train_mask=bools(5) | True, val_mask=None, test_mask=None)
    masked = disjoint_union(found)
    assert not masked.train_mask[7:19].any()
    assert masked.train_mask[19:24].all()
    union = disjoint_union(pieces(), (2, 1, 1))
    assert union.train_mask.tolist() == [True] * 19 + [False] * 6
    assert union.val_mask.tolist() == [False] * 19 + [True] * 5 + [False]
    assert union.test_mask.tolist() == [False] * 24 + [True]


def test_graphs_that_do_not_fit_are_named():
    first, *_, last = pieces()
    sparse = CSR.from_scipy(sp.csr_array(np.ones((1, 3), np.float32)))
    for other, said in (
        (replace(last, x=last.x[:, :2]), "x torch.float32 of width 2, but .* of width 3"),
        (replace(last, x=sparse), "has x sparse of width 3"),
        (replace(last, x=None), "has x of no kind"),
        (replace(last, y=torch.zeros(1, 2)), "has y torch.float32 of width 2"),
        (replace(last, y=None), "has y of no kind"),
    ):
        with pytest.raises(InputError, match=said):
            disjoint_union([first, other])
    for split in ((2, 1), (2, 1, 2), (5, -1, 0)):
        with pytest.raises(InputError, match=r"data.graph-split .*must be three .* add up to 4"):
            disjoint_union(pieces(), split)


def test_names_are_joined(tmp_path):
    paths = []
    for number, graph in enumerate(pieces()):
        paths.append(str(tmp_path / f"{number}.npz"))
        write_npz(graph, paths[-1])
    name, expected = "+".join(paths), disjoint_union(pieces(), (2, 1, 1))
    assert_same_vertices(open_source(name, graph_split=(2, 1, 1)).graph(), expected)
    whole = load_dataset(name)
    assert torch.equal(whole.adjacency.indices, expected.adjacency.indices)
    assert whole.name == "0+3 others"
    with pytest.raises(InputError, match="no such file"):
        load_dataset(f"{paths[0]}+")
    # A file of that name is one graph.
    write_npz(pieces()[1], tmp_path / "a+b.npz")
    assert load_dataset(tmp_path / "a+b.npz").vertices == 12


# Splits that a seed draws.


@given(st.lists(st.integers(-1, 3), max_size=30), st.integers(0, 5), st.data())
def test_a_split_covers_labelled_vertices_once_wherever_they_are(labels, seed, data):
    y = torch.tensor(labels, dtype=torch.int64)
    masks = torch.stack(seeded_split(len(labels), y, seed))
    assert torch.equal(masks.sum(dim=0), (y >= 0).long())
    order = data.draw(permutations_of(len(labels)))
    moved = torch.stack(seeded_split(order, y[order], seed))
    assert torch.equal(moved, masks[:, order])


def test_shares_are_60_20_20():
    masks = seeded_split(100_000, None, 0)
    for mask, share in zip(masks, (0.6, 0.2, 0.2), strict=True):
        assert mask.double().mean().item() == pytest.approx(share, abs=0.01)
    other, _, _ = seeded_split(100_000, None, 1)
    assert (masks[0] & other).double().mean().item() == pytest.approx(0.36, abs=0.01)
    graph = block_model(50, 100, seed=0)
    assert with_split(graph, 5) is graph
    # Splits of recorded experiments depend on these very numbers.
    got = uniform(np.array([0, 1, 2**40]), 7, "split")
    known = [0.16321740990944067, 0.3649133980319066, 0.2285886800314254]
    np.testing.assert_array_equal(got, known)


def test_hashing_is_a_function_of_id_seed_purpose_and_column():
    ids = np.arange(1000)
    draws = uniform(ids, 3, "x", 8)
    np.testing.assert_array_equal(uniform(ids[500:], 3, "x", 8), draws[500:])
    np.testing.assert_array_equal(uniform(ids, 3, "x", 5), draws[:, :5])
    assert 0 <= draws.min() <= draws.max() < 1
    for other in (uniform(ids, 4, "x", 8), uniform(ids, 3, "y", 8)):
        assert abs(np.corrcoef(draws.ravel(), other.ravel())[0, 1]) < 0.05
    assert np.abs(np.corrcoef(draws.T) - np.eye(8)).max() < 0.15
    counts, _ = np.histogram(draws, bins=16, range=(0, 1))
    assert np.abs(counts / 500 - 1).max() < 0.2
