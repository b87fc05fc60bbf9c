"""A PyG ``Data`` as people have it: masks of several shapes, adj_t, lists; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import spgnn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.testing import run_ranks

geometric_data = pytest.importorskip("torch_geometric.data")

N, EDGES = 13, 40


def data(**instead: Any) -> Any:
    draw = torch.Generator().manual_seed(0)
    given = {
        "x": torch.randn(N, 4, generator=draw),
        "edge_index": torch.randint(0, N, (2, EDGES), generator=draw),
        "num_nodes": N,
        **instead,
    }
    return geometric_data.Data(
        **{name: value for name, value in given.items() if value is not None}
    )


def adjacency(whole: Any, weights: Tensor) -> Tensor:
    A = torch.zeros(N, N)
    return A.index_put((whole.edge_index[1], whole.edge_index[0]), weights, accumulate=True)


def check_taken(rank: int) -> None:
    comm, first = connect(), rank == 0
    several = torch.rand(N, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    whole = data(train_mask=several, val_mask=several, test_mask=several[:, 0])
    for split in (1, None):
        graph = spgnn.distribute(whole if first else None, split=split)
        ids, test = graph.vertex_ids, graph.test_mask
        assert torch.equal(test if split else test[:, 2], several[ids, 0])
        assert torch.equal(graph.train_mask, several[ids] if split is None else several[ids, 1])
    dense, weights = whole.x, torch.rand(EDGES, generator=torch.Generator().manual_seed(2))
    for x in (dense.to_sparse(), dense.to_sparse_csr(), dense.tolist()):
        assert torch.equal(spgnn.distribute(data(x=x) if first else None).x, dense[ids])
    for edges in (whole.edge_index.int(), whole.edge_index.numpy(), whole.edge_index.tolist()):
        graph = spgnn.distribute(data(edge_index=edges) if first else None)
        assert graph.num_edges == EDGES
    for values in (torch.ones(EDGES), weights):
        A = adjacency(whole, values)
        for stored in (A.to_sparse_csr(), A.to_sparse()):
            given = data(edge_index=None, adj_t=stored)
            graph = spgnn.distribute(given if first else None)
            torch.testing.assert_close(graph.A @ graph.x, (A @ dense)[graph.vertex_ids])
    unweighted = (adjacency(whole, torch.ones(EDGES)) > 0).float().to_sparse_csr()
    graph = spgnn.distribute(data(edge_index=None, adj_t=unweighted) if first else None)
    assert graph.edge_weight is None
    comm.barrier()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_data_as_people_have_them():
    run_ranks(check_taken, 3)


REFUSED = [
    ({"edge_weight": torch.ones(EDGES - 1)}, r"edge_weight must be real numbers \[40 edges\]"),
    ({"edge_weight": torch.ones(EDGES, 2)}, r"edge_weight must be .*, got float32 \[40, 2\]"),
    ({"edge_weight": torch.ones(EDGES, dtype=torch.complex64)}, "edge_weight must be real"),
    ({"edge_weight": torch.tensor(1.0)}, "edge_weight must be real"),
    ({"edge_attr": torch.ones(EDGES - 1, 2)}, "edge_attr has 39 rows for 40 edges"),
    ({"y": torch.ones(2)}, "y has 2 rows for 13 vertices"),
    ({"x": torch.ones(2, 1), "num_nodes": None}, "x has 2 rows, and edge_index has vertex"),
    ({"x": torch.ones(N, dtype=torch.complex64)}, "x: rows of torch.complex64 cannot"),
    ({"edge_attr": torch.tensor(1.0)}, r"edge_attr must be \[40 edges, …\]"),
    ({"edge_attr": ["a"] * EDGES}, "edge_attr must be a tensor, got a list"),
    (
        {"edge_attr": torch.ones(EDGES, dtype=torch.complex64)},
        "edge_attr: rows of torch.complex64 cannot",
    ),
    ({"edge_index": torch.ones(2, EDGES, dtype=torch.bool)}, "edge_index must be integers"),
    ({"edge_index": [["a"], ["b"]]}, "edge_index must be a tensor, got a list"),
    ({"train_mask": ["a"] * N}, "train_mask must be a tensor, got a list"),
    ({"train_mask": torch.ones(N, dtype=torch.uint8)}, "train_mask must be bool"),
    ({"x": torch.full((N, 1), torch.inf).double()}, "every feature must be a finite number"),
    ({"x": [[1.0], [1.0, 2.0]]}, "x must be a tensor, got a list with .*rows of different lengths"),
    ({"lap": torch.eye(N).to_sparse()}, "lap: sparse rows of torch.float32 cannot"),
    ({"edge_index": None, "adj_t": torch.eye(N)}, "adj_t must be a sparse matrix"),
]


def check_refused(rank: int) -> None:
    comm = connect()
    for instead, words in REFUSED:
        with pytest.raises(InputError, match=words) as caught:
            spgnn.distribute(data(**instead) if rank == 0 else None)
        assert "\n" not in str(caught.value)
        comm.barrier()


def test_what_is_wrong_with_data_is_one_line_on_all_ranks():
    run_ranks(check_refused, 2)


def check_names(rank: int) -> None:
    """Lists of vertices, pairs, and names as a ``Data`` presents them."""
    draw = torch.Generator().manual_seed(4)
    pairs = torch.randint(0, N, (2, 17), generator=draw)
    listed = torch.tensor([5, 3, 9, 0])
    whole = data(
        edge_label_index=pairs,
        edge_label=torch.arange(17),
        train_idx=listed,
        train_y=listed * 10,
        split_idx={"valid": torch.tensor([1, 2]), "test": listed},
        classes=["a", "b"],
        mean=torch.arange(N),
        face=torch.zeros(3, 8, dtype=torch.long),
    )
    graph = spgnn.distribute(whole if rank == 0 else None)
    ids = graph.vertex_ids
    assert torch.equal(ids[graph.train_idx] * 10, graph.train_y)
    for name, vertices in (("train", listed), ("val", torch.tensor([1, 2])), ("test", listed)):
        assert torch.equal(graph[f"{name}_mask"], torch.isin(ids, vertices))
    assert float(graph.mean(ids < 5, graph.train_mask)) == 0.5
    assert graph.classes == ["a", "b"]
    assert torch.equal(graph["mean"], ids)  # where graph.mean is a method
    assert "x" in graph
    assert "y" not in graph
    assert graph.get("y", 3) == 3
    assert [key for key, _ in graph("train_mask", "y", "x")] == ["train_mask", "x"]
    assert dict(graph).keys() == set(graph.keys())
    assert len(graph) == len(graph.keys())
    assert graph.num_node_features == 4
    assert graph.is_directed()
    with pytest.raises(KeyError, match="no 'colour' here"):
        graph["colour"]
    with pytest.raises(AttributeError, match="face of the source"):
        _ = graph.face

    scores = whole.x[pairs[0]] * whole.x[pairs[1]]
    for given in (None, pairs):
        if given is None:
            index, label = graph.edge_label_index, graph.edge_label
        else:
            index, label = graph.pairs(*((given, whole.edge_label) if rank == 0 else ()))
        source, target = index
        x = graph.x.clone().requires_grad_()
        assert torch.equal(x[source] * x[target], scores[label])
        (x[source] * x[target]).sum().backward()
        assert torch.equal(graph.all_gather(label).sort().values, torch.arange(17))
        alone = whole.x.clone().requires_grad_()
        (alone[pairs[0]] * alone[pairs[1]]).sum().backward()
        torch.testing.assert_close(x.grad, alone.grad[ids])
    index = graph.pairs(pairs)[0]
    with pytest.raises(InputError, match="cat of the sources"):
        torch.cat((index, graph.edge_index[0]))
    for wrong, labels, message in (
        (pairs + N, None, r"edge_label_index must be integers \[2, pairs\] from 0 to 12"),
        (pairs.float(), None, "edge_label_index must be integers"),
        (None, None, "edge_label_index must be integers"),
        (pairs, torch.ones(3), r"edge_label must be a tensor \[17, …\], one a pair"),
    ):
        with pytest.raises(InputError, match=message):
            graph.pairs(wrong if rank == 0 else None, labels)


def test_names_lists_and_pairs_of_a_data():
    run_ranks(check_names, 3)
