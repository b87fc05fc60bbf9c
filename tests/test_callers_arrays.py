"""Arrays of the caller, changed in place afterwards: what was built from them stays as it was."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import spgnn
from spgnn import CSR, DistMatrix, Mesh, RowLayout, connect
from spgnn.data import Graph, from_dgl, from_ogb, from_pyg, from_scipy
from spgnn.partition import partition, report
from spgnn.partition.problem import Adjacency
from spgnn.testing import run_ranks

N = 8


def matrix():
    """Symmetric, weighted, with a zero that is stored."""
    rng = np.random.default_rng(3)
    dense = np.triu(rng.integers(0, 3, (N, N)) / 8).astype(np.float32)
    A = sp.csr_array(dense + dense.T)
    A.data[0] = 0
    return A


def arrays():
    """x, y, mask, source, target, weight and edge_attr, of tensors."""
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randperm(N * N, generator=draw)[:20]  # no edge twice
    ends = torch.stack((pairs // N, pairs % N))
    return {
        "x": torch.rand(N, 3, generator=draw),
        "y": torch.randint(0, 3, (N,), generator=draw),
        "train_mask": torch.rand(N, generator=draw) < 0.5,
        "edge_index": ends,
        "edge_weight": torch.rand(20, generator=draw),
        "edge_attr": torch.rand(20, 2, generator=draw),
    }


def spoil(*given):
    """Write other numbers to arrays, in place; to a matrix of SciPy's as its own methods do."""
    for array in given:
        if sp.issparse(array):
            if hasattr(array, "eliminate_zeros"):
                array.eliminate_zeros()
            spoil(*(v for v in vars(array).values() if isinstance(v, np.ndarray)))
            continue
        tensor = torch.as_tensor(array)
        with torch.no_grad():
            tensor.copy_(~tensor if tensor.dtype == torch.bool else tensor.flip(0) + 1)


def numbers(built):
    """What a result holds, as arrays that nothing else has."""
    if isinstance(built, CSR):
        held = [built.indptr, built.indices, built.values, built.row_scale, built.col_scale]
    elif isinstance(built, Graph):
        held = [built.x, built.y, built.train_mask, *numbers(built.adjacency)]
        held = [
            array for part in held for array in (numbers(part) if isinstance(part, CSR) else [part])
        ]
    elif isinstance(built, Adjacency):
        held = [built.indptr, built.indices]
    else:
        held = list(built)
    return [None if array is None else np.asarray(array).copy() for array in held]


def assert_stays(build, *given):
    built = build()
    before = numbers(built)
    spoil(*given)
    for old, new in zip(before, numbers(built), strict=True):
        np.testing.assert_array_equal(old, new)


FORMATS = ["csr", "csc", "coo", "bsr", "dia"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "take", [CSR.from_scipy, from_scipy, Adjacency.of], ids=lambda take: take.__qualname__
)
def test_matrices_of_scipy(take, form):
    for index in (np.int32, np.int64):
        A = matrix()
        A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
        A = A.asformat(form)
        assert_stays(lambda A=A: take(A), A)


def test_what_is_handed_out_is_a_copy():
    block = CSR.from_scipy(matrix())
    before = numbers(block)
    spoil(block.to_scipy())
    for old, new in zip(before, numbers(block), strict=True):
        np.testing.assert_array_equal(old, new)
    order, graph = torch.arange(N).flip(0).contiguous(), from_scipy(matrix())
    assert_stays(lambda: [graph.relabel(order).vertex_ids], order)


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_arrays_beside_a_matrix(kind):
    given = {name: kind(array.numpy()) for name, array in list(arrays().items())[:3]}
    X = matrix()
    assert_stays(
        lambda: from_scipy(matrix(), **given),
        *filter(lambda v: not isinstance(v, list), given.values()),
    )
    assert_stays(lambda: from_scipy(matrix(), x=X), X)


def test_graphs_of_other_libraries():
    given = arrays()
    assert_stays(lambda: from_pyg(SimpleNamespace(num_nodes=N, **given)), *given.values())
    given = arrays()
    dgl = SimpleNamespace(
        edges=lambda: tuple(given["edge_index"]),
        num_nodes=lambda: N,
        ndata={"feat": given["x"], "label": given["y"], "train_mask": given["train_mask"]},
        edata={"w": given["edge_weight"]},
    )
    assert_stays(lambda: from_dgl(dgl, weight="w"), *given.values())
    named = {"edge_index": arrays()["edge_index"].numpy(), "node_feat": arrays()["x"].numpy()}
    labels, split = arrays()["y"].numpy()[:, None], np.array([0, 2])
    ogb = type("Set", (), {"name": "g"})()
    type(ogb).__getitem__ = lambda *_: ({"num_nodes": N, **named}, labels)
    type(ogb).get_idx_split = lambda _: dict.fromkeys(("train", "valid", "test"), split)
    assert_stays(lambda: from_ogb(ogb), *named.values(), labels, split)


def test_layouts_and_partitions():
    offsets = np.array([0, 3, N])
    assert_stays(lambda: [RowLayout(offsets).offsets], offsets)
    labels = np.arange(N, dtype=np.int32) % 2
    initial, A = labels.copy(), matrix()
    found, _ = partition(A, 2, initial=initial)
    assert not np.shares_memory(found, initial)
    np.testing.assert_array_equal(initial, labels)
    np.testing.assert_array_equal(A.toarray(), matrix().toarray())
    kept = found.copy()
    said = report(A, initial, 2)
    copied = {name: np.array(value, dtype=object) for name, value in said.items()}
    spoil(initial, A)
    np.testing.assert_array_equal(found, kept)
    for name, value in copied.items():
        np.testing.assert_array_equal(np.array(said[name], dtype=object), value)


def check_matrices(rank):
    """Products before and after, with every number that goes into a DistMatrix."""
    comm = connect()
    layout = RowLayout.even(N, comm.size)
    first, last = layout.range(comm.rank)
    scales = torch.arange(1.0, N + 1)
    H = torch.eye(N)[first:last].contiguous()
    offsets, A = layout.offsets.copy(), matrix()[first:last]
    block = CSR.from_scipy(A).with_scales(scales[first:last].clone(), None)
    column_scale = scales[first:last].clone()
    mesh = Mesh.grid(comm, c=1)
    dist = DistMatrix.build(block, RowLayout(offsets), mesh, column_scale=column_scale)
    before = (dist @ H).clone()
    want = scales[:, None] * torch.from_numpy(matrix().toarray()) * scales
    torch.testing.assert_close(before, want[first:last], rtol=0, atol=0)
    spoil(A, block.values, block.row_scale, column_scale, offsets)
    torch.testing.assert_close(dist @ H, before, rtol=0, atol=0)


def check_distributed(rank):
    """x, y, masks and attributes of edges, of a Data and of a matrix, before and after."""
    comm = connect()
    pyg = pytest.importorskip("torch_geometric.data")
    names = ("x", "y", "train_mask", "edge_weight", "edge_attr", "local_edge_index")
    for kind in ("pyg", "scipy", "graph"):
        given, A = arrays(), matrix()
        beside = {name: given[name] for name in names[:3]}
        if kind == "pyg":
            graph = spgnn.distribute(pyg.Data(**given), comm=comm)
        elif kind == "scipy":
            graph = spgnn.distribute(A, **beside, comm=comm)
        else:
            block = CSR.from_scipy(A)
            graph = spgnn.distribute(Graph("g", block, False, **beside), comm=comm)
            beside |= {"values": block.values}
        held = {name: getattr(graph, name) for name in names}
        held = {name: (t, t.clone()) for name, t in held.items() if t is not None}
        assert len(held) > 3
        spoil(A, *(given.values() if kind == "pyg" else beside.values()))
        for name, (now, before) in held.items():
            assert torch.equal(now, before), name


def check_blocks(rank):
    """All that a block brings, but for its features, which are shared as the docs say."""
    comm = connect()
    first, last = RowLayout.even(N, comm.size).range(rank)
    given = arrays()
    whole = from_scipy(matrix(), **{name: given[name] for name in ("x", "y", "train_mask")})
    block = whole.block(first, last)
    graph = spgnn.distribute(block, comm=comm)
    assert graph.x.data_ptr() == block.x.data_ptr()
    names = ("y", "train_mask", "vertex_ids", "edge_weight", "local_edge_index")
    held = {name: (getattr(graph, name), getattr(graph, name).clone()) for name in names}
    spoil(block.y, block.train_mask, block.vertex_ids, block.adjacency.values)
    for name, (now, before) in held.items():
        assert torch.equal(now, before), name


@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_distributed(ranks):
    run_ranks(check_blocks, ranks)
    run_ranks(check_matrices, ranks)
    run_ranks(check_distributed, ranks)
