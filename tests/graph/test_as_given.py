"""Dtype, shape and numbers of whatever a graph is given with arrive on ranks as they are."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import spgnn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.graph.distgraph import DistGraph
from spgnn.testing import run_ranks

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class Data(SimpleNamespace):
    """What a PyG ``Data`` is to spgnn, where that is not installed."""


def cycled(numbers: list[Any], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers again and again, no two rows alike where there is room for it."""
    found = torch.tensor(numbers, dtype=dtype).repeat(int(np.prod(shape)) // len(numbers) + 1)
    found = found[: int(np.prod(shape))].reshape(shape)
    return found.roll(1, 0) if len(shape) > 1 else found


def example(n: int, e: int, seed: int, **more: Any) -> Data:
    """Random edges, with loops and repetitions, and a number for each of them."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(n, (2, e), generator=draw)
    if e > 2:
        ends[:, 1], ends[1, 2] = ends[:, 0], ends[0, 2]  # repeated, and a loop
    return Data(edge_index=ends, num_nodes=n, edge_number=torch.arange(e), **more)


def check(graph: DistGraph, data: Data) -> None:
    """Every row is that of its vertex or its edge, and no edge is missing."""
    ids = graph.vertex_ids
    for name, whole in vars(data).items():
        if name in ("edge_index", "num_nodes") or not isinstance(whole, Tensor):
            continue
        rows = graph.edge_number if name.startswith("edge") else ids
        found = getattr(graph, name)
        assert found.dtype == whole.dtype, name
        assert found.shape == (len(rows), *whole.shape[1:]), name
        torch.testing.assert_close(found, whole.detach()[rows], rtol=0, atol=0, equal_nan=True)
    source, target = graph.local_edge_index
    ends = torch.stack((graph.halo(ids)[source], ids[target]))
    assert torch.equal(ends, data.edge_index[:, graph.edge_number])
    everyone = [torch.zeros(len(data.edge_number)) for _ in range(2)]
    everyone[0][graph.edge_number] = 1
    assert torch.equal(graph.sum(everyone[0].sum()), torch.tensor(float(len(data.edge_number))))


NAN = float("nan")
OF_VERTICES = [
    {"y": lambda n: torch.cat((torch.tensor([30.0, NAN]), torch.arange(n - 2.0)))},
    {"y": lambda n: torch.arange(n)[:, None]},
    {"y": lambda n: cycled([0, 1, -1], (n, 3), torch.int64)},
    {"y": lambda n: cycled([0, 7, 5], (n, 3), torch.int32)},
    {"y": lambda n: torch.full((n,), torch.inf)},
    {"y": lambda n: torch.rand(n, 2, 3)},
    {"x": lambda n: torch.tensor([2**24 + 1, 2**53 + 1, -7] * n)[:n, None]},
    {"x": lambda n: torch.rand(n, 4, dtype=torch.float64)},
    {"x": torch.rand},
    {"x": lambda n: torch.rand(n, 2, 3)},
    {"x": lambda n: torch.rand(n, 0)},
    {"x": lambda n: torch.rand(3, n).T},
    {"pos": lambda n: torch.rand(n, 3, 2, dtype=torch.float64)},
    {"mask": lambda n: torch.arange(n) % 2 == 0},
]
OF_EDGES = [
    {"edge_type": lambda e: torch.arange(e) % 3},
    {"edge_attr": lambda e: torch.arange(e, dtype=torch.int32)[:, None]},
    {"edge_attr": torch.rand},
    {"edge_attr": lambda e: torch.rand(4, e).T},
    {"edge_weight": lambda e: torch.rand(e, 1)},
    {"edge_weight": lambda e: torch.rand(e, dtype=torch.float64)},
    {"edge_weight": torch.arange},
    {"edge_time": lambda e: torch.arange(e) + 2**53 + 1},
    {"edge_text": lambda e: torch.rand(e, 2, 5).half()},
    {"edge_kept": lambda e: torch.arange(e) % 2 == 0},
]


def check_everything(rank: int, n: int, e: int, partition: str) -> None:
    torch.manual_seed(0)
    comm = connect()
    for number in range(max(len(OF_VERTICES), len(OF_EDGES))):
        vertices = OF_VERTICES[number % len(OF_VERTICES)].items()
        edges = OF_EDGES[number % len(OF_EDGES)].items()
        more = {name: made(n) for name, made in vertices} | {k: made(e) for k, made in edges}
        data = example(n, e, number, **more)
        check(spgnn.distribute(data if rank == 0 else None, partition=partition), data)
    for dtype, tail in product(DTYPES, ((2,), (3, 0), (1, 2))):
        x, several = cycled([0, 1, 3], (n, *tail), dtype), cycled([1, 0, 2], (e, *tail), dtype)
        data = example(n, e, 7, x=x, y=x[:, 0], edge_attr=several, edge_other=several[:, 0])
        check(spgnn.distribute(data if rank == 0 else None, partition=partition), data)
    comm.barrier()


@pytest.mark.parametrize(
    ("ranks", "n", "e"), [(1, 9, 30), (3, 17, 60), (4, 6, 7), (2, 8, 8), (2, 3, 0)]
)
def test_everything_arrives_as_it_was_given(ranks, n, e):
    run_ranks(check_everything, ranks, n, e, "gvb" if n > 10 else "random")


def test_gradients_do_not_reach_what_was_copied_to_ranks():
    for name, rows in (("x", 6), ("y", 6), ("edge_weight", 9), ("edge_attr", 9)):
        data = example(6, 9, 0, **{name: torch.rand(rows, requires_grad=True)})
        with pytest.raises(InputError, match=f"{name} requires a gradient"):
            spgnn.distribute(data)


def check_others(rank: int) -> None:
    """SciPy and DGL, with what they call x and y; and what is said of the whole graph."""
    n, first = 11, rank == 0
    ends = np.random.default_rng(0).integers(0, n, (2, 25))
    A = sp.coo_array((np.ones(25), (ends[1], ends[0])), shape=(n, n)).tocsr()
    ages, numbers = np.arange(n, dtype=np.float64), np.arange(n)[:, None] + 2**24
    ages[3] = np.nan
    graph = spgnn.distribute(A, x=numbers, y=ages)
    ids = graph.vertex_ids.numpy()
    np.testing.assert_array_equal(graph.x.numpy(), numbers[ids])
    np.testing.assert_array_equal(graph.y.numpy(), ages[ids])
    assert (graph.x.dtype, graph.y.dtype) == (torch.int64, torch.float64)
    assert (graph.num_features, graph.num_classes) == (1, n)
    weights, year = np.arange(25.0), np.arange(n)[:, None]

    class Dgl:
        def __init__(self) -> None:
            given = torch.from_numpy(numbers), torch.from_numpy(ages)
            self.ndata = {"feat": given[0], "label": given[1], "year": torch.from_numpy(year)}
            self.edata = {"w": torch.from_numpy(weights), "number": torch.arange(25)}

        def edges(self) -> Any:
            return torch.from_numpy(ends).unbind()

        def num_nodes(self) -> int:
            return n

    graph = spgnn.distribute(Dgl() if first else None)
    ids = graph.vertex_ids.numpy()
    np.testing.assert_array_equal(graph.x.numpy(), numbers[ids])
    np.testing.assert_array_equal(graph.y.numpy(), ages[ids])
    np.testing.assert_array_equal(graph.year.numpy(), year[ids])
    np.testing.assert_array_equal(graph.w.numpy(), weights[graph.number.numpy()])
    source, target = graph.local_edge_index
    found = np.stack((graph.halo(graph.vertex_ids)[source].numpy(), ids[target.numpy()]))
    np.testing.assert_array_equal(found, ends[:, graph.number.numpy()])

    data = example(n, 25, 0, scale=torch.tensor([[2.0, 3.0]]), count=torch.tensor(7), title="a")
    data.numbers, data.words, data.pairs_index = torch.arange(4), ["b"], torch.zeros(2, n).long()
    data.names = ["a"] * n
    graph = spgnn.distribute(data if first else None)
    assert torch.equal(graph.scale, data.scale)
    assert (graph.count.item(), graph.title, graph.words) == (7, "a", ["b"])
    for name, what in (("numbers", r"int64 \[4\]"), ("names", "list"), ("pairs_index", "int64")):
        with pytest.raises(AttributeError, match=f"{name} of the source, {what}.* is not on ranks"):
            getattr(graph, name)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = graph.colour


def test_other_sources_and_what_is_said_of_the_whole_graph():
    run_ranks(check_others, 3)


def check_schemes(rank: int) -> None:
    """Vertices and edges have their own under every scheme."""
    data = example(12, 40, 1, y=torch.arange(12.0), x=torch.arange(12)[:, None])
    data.edge_type = torch.arange(40) % 3
    schemes = [{"cover": "minimum"}, {"cover": "row"}, {"exchange": "oblivious"}]
    schemes += [{"algo": "1.5d", "c": 2}, {"algo": "2d"}, {"algo": "3d", "c": 1}, {"node_size": 2}]
    for scheme in schemes:
        graph = spgnn.distribute(data if rank == 0 else None, **scheme)
        check(graph, data)


def test_attributes_under_every_scheme():
    run_ranks(check_schemes, 4)


def test_integers_that_float32_rounds_are_refused_where_it_is_needed():
    big = torch.tensor([1, 2**24 + 1])
    ends = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(InputError, match="edge_weight holds 16777217; float32 holds every integer"):
        spgnn.distribute(Data(edge_index=ends, num_nodes=2, edge_weight=big))
    A = sp.csr_array(np.array([[0, 2**24 + 1], [1, 0]]))
    with pytest.raises(InputError, match="values hold 16777217; float32 holds every integer"):
        spgnn.distribute(A)
    with pytest.raises(InputError, match="x: values hold 16777217; float32 holds every"):
        spgnn.distribute(A.astype(bool), x=A)
    with pytest.raises(InputError, match="x holds 16777217; float32 holds every integer up to"):
        spgnn.data.from_scipy(A.astype(bool), x=big[:, None])
