from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings

from spgnn import CSR, InputError
from spgnn.data.adapters import from_dgl, from_ogb, from_pyg, from_scipy, read_pyg
from tests.data.graphs import assert_same_csr, assert_same_vertices, graphs

# Edges 0 → 1, 0 → 2, 2 → 1: row = destination.
EDGES = torch.tensor([[0, 0, 2], [1, 2, 1]])
DENSE = [[0, 0, 0], [1, 0, 1], [1, 0, 0]]
X = torch.arange(6.0).reshape(3, 2)
Y = torch.tensor([0, 2, 1])
MASK = torch.tensor([True, False, True])


def test_scipy_with_everything():
    features = sp.csr_array(np.array([[0, 2.5], [0, 0], [1, 0]]))
    graph = from_scipy(
        sp.coo_matrix(np.array(DENSE)),
        x=features,
        y=np.array([[0], [1], [-1]], np.int32),
        train_mask=np.array([True, False, False]),
        name="mine",
    )
    assert graph.name == "mine"
    assert not graph.weighted
    assert isinstance(graph.x, CSR)
    assert graph.x.values.dtype == torch.float32
    np.testing.assert_array_equal(graph.x.to_scipy().toarray(), features.toarray())
    assert graph.y.tolist() == [0, 1, -1]
    assert graph.train_mask.tolist() == [True, False, False]
    assert graph.val_mask is None


def data_of(ends, n=4, **more):
    return SimpleNamespace(edge_index=torch.tensor(ends), num_nodes=n, **more)


EYE, TWO = sp.eye_array(3), [[0, 0], [1, 1]]
BAD = [
    (lambda: from_scipy(sp.csr_array((2, 3))), "as many rows as columns"),
    (lambda: from_scipy(np.eye(3)), "a graph is a sparse matrix of two dimensions, got ndarray"),
    (lambda: from_scipy(EYE * np.nan), r"A\[0, 0\] is nan; every weight"),
    (lambda: from_scipy(EYE * 1j), "edge weights must be real numbers, got complex128"),
    (lambda: from_scipy(EYE * 1e300), r"graph: entry \(0, 0\) is .*; it must be a weight"),
    (lambda: from_scipy(EYE * 1e-300), r"graph: entry \(0, 0\) is .*; it must be a weight"),
    (lambda: from_scipy(EYE, x=np.full((3, 1), np.nan)), r"x\[0, 0\] is nan; every feature"),
    (lambda: from_scipy(EYE, x=np.array([["a"]] * 3)), "x must be real numbers, got <U1"),
    (lambda: from_scipy(EYE, x=EYE * 1j), "x must be real numbers, got complex128"),
    (lambda: from_scipy(EYE, y=np.zeros((3, 4, 1), int)), r"y must be labels .* int64 \[3, 4,"),
    (lambda: from_scipy(EYE, y=np.array([[0, 1], [2, 0], [0, 0]])), r"y\[1, 0\] is 2; it must be"),
    (lambda: from_scipy(EYE, y=np.array([0.5, np.nan, np.inf])), r"y\[2\] is inf; it must be"),
    (lambda: from_pyg(data_of([[0, 2], [1, 1]], 2)), r"edge 1: vertex 2 is outside \[0, 2\)"),
    (lambda: from_pyg(SimpleNamespace(num_nodes=3)), "no edge_index"),
    (lambda: from_pyg(data_of([[0.0], [1.0]])), r"edge_index must be integers \[2, edges\], got"),
    (lambda: from_pyg(data_of(TWO, edge_attr=torch.zeros(3, 1))), "edge_attr has 3 rows for 2 edg"),
    (
        lambda: from_pyg(data_of(TWO, edge_weight=torch.tensor([3e38, 3e38]).double())),
        r"entry \(1, 0\) is 6e\+38; it must be a weight",
    ),
]


@pytest.mark.parametrize(("make", "words"), BAD)
def test_what_is_no_graph_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (np.array([1.0, np.nan, 0]), torch.tensor([1, -1, 0])),
        (np.array([[0.5], [np.nan], [3]]), torch.tensor([[0.5], [np.nan], [3]])),
        (np.array([0.5, 1, 2]), torch.tensor([[0.5], [1], [2]])),
        (np.array([[1, 0], [np.nan, 1], [0, 0]]), torch.tensor([[1, 0], [-1, 1], [0, 0]])),
        (np.array([[1, 2], [0, 1], [0, 0.0]]), torch.tensor([[1.0, 2], [0, 1], [0, 0]])),
        (np.array([[True, False]] * 3), torch.tensor([[1, 0]] * 3)),
        (np.array([[1, -1]] * 3, np.int64), torch.tensor([[1, -1]] * 3)),
    ],
)
def test_labels_of_every_kind(given, held):
    y = from_scipy(sp.eye_array(3, format="csr"), y=given).y
    if y.dtype == torch.int8:
        y = y.long()
    torch.testing.assert_close(y, held, equal_nan=True, rtol=0, atol=0)


@settings(max_examples=30)
@given(graphs())
def test_real_pyg_data(graph):
    pyg = pytest.importorskip("torch_geometric.data")
    if isinstance(graph.x, CSR):
        return
    rows = torch.arange(graph.vertices).repeat_interleave(graph.adjacency.row_lengths)
    if graph.y is not None and graph.y.dim() == 2:
        graph = replace(graph, y=None)  # what a column of them is, these libraries do not say
    data = pyg.Data(
        x=graph.x,
        y=graph.y,
        edge_index=torch.stack((graph.adjacency.indices.long(), rows)),
        edge_weight=graph.adjacency.values,
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
        num_nodes=graph.vertices,
    )
    again = from_pyg(data)
    assert_same_csr(again.adjacency, graph.adjacency)
    assert_same_vertices(again, graph)


class DglGraph:
    """The few methods of a DGLGraph that the adapter calls."""

    def __init__(self, ndata, edata):
        self.ndata, self.edata = ndata, edata

    def edges(self):
        return EDGES[0], EDGES[1]

    def num_nodes(self):
        return 3


def test_dgl():
    graph = from_dgl(
        DglGraph({"feat": X, "label": Y, "train_mask": MASK}, {"w": torch.ones(3, 1) * 2}),
        weight="w",
    )
    assert graph.adjacency.to_scipy().toarray().tolist() == (2 * np.array(DENSE)).tolist()
    assert torch.equal(graph.x, X)
    assert torch.equal(graph.y, Y)
    assert torch.equal(graph.train_mask, MASK)
    assert from_dgl(DglGraph({}, {})).x is None


class OgbDataset:
    """The few methods of a NodePropPredDataset that the adapter calls."""

    def __init__(self, name="ogbn-fake"):
        self.name = name

    def __getitem__(self, index):
        graph = {"edge_index": EDGES.numpy(), "node_feat": X.numpy(), "num_nodes": 3}
        return graph, np.array([[2.0], [np.nan], [0.0]])

    def get_idx_split(self):
        return {"train": np.array([0]), "valid": np.array([2]), "test": np.array([], int)}


def assert_is_fake_ogb(graph, name):
    assert graph.name == name
    assert graph.adjacency.to_scipy().toarray().tolist() == DENSE
    assert torch.equal(graph.x, X)
    assert graph.y.tolist() == [2, -1, 0]
    assert graph.train_mask.tolist() == [True, False, False]
    assert graph.val_mask.tolist() == [False, False, True]
    assert graph.test_mask.tolist() == [False, False, False]


def test_ogb_by_object_and_by_name(monkeypatch):
    assert_is_fake_ogb(from_ogb(OgbDataset()), "ogbn-fake")
    module = SimpleNamespace(NodePropPredDataset=OgbDataset)
    monkeypatch.setitem(sys.modules, "ogb", SimpleNamespace(nodeproppred=module))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    assert_is_fake_ogb(from_ogb("ogbn-other"), "ogbn-other")


def test_an_edge_list_says_more_than_an_adjacency():
    def says_more(ends, **more):
        return read_pyg(data_of(ends, **more)).edges.says_more

    assert not says_more([[0, 1, 0], [1, 2, 3]])
    assert not says_more([[3, 0, 1], [3, 2, 2]])  # in no order
    assert says_more([[1, 0, 1], [2, 2, 3]])  # in one that an LSTM would look at
    assert says_more([[0, 3, 0], [1, 0, 1]])  # repeated
    assert says_more([[0, 1], [1, 2]], edge_attr=torch.zeros(2, 1))
    assert not says_more([[0, 1], [1, 2]], edge_weight=torch.tensor([1.0, 2]))
    assert says_more([[0, 1], [1, 2]], edge_weight=torch.tensor([1, 2]))  # integers
    assert says_more([[0, 1], [1, 2]], edge_type=torch.tensor([1, 2]))


def test_features_of_edges_come_in_the_order_of_the_entries():
    ends, attr = [[0, 2, 1, 1], [1, 0, 2, 0]], torch.arange(8.0).view(4, 2)
    graph = from_pyg(data_of(ends, 3, edge_attr=attr))
    assert torch.equal(graph.edge_attr, attr[[3, 1, 0, 2]])
    with pytest.raises(InputError, match="edge_attr: an edge is named several times"):
        from_pyg(data_of([[0, 0], [1, 1]], 3, edge_attr=attr[:2]))
