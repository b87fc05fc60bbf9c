"""Products of layers: widths that travel, what is made once, compilation."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from spgnn import CSR, DistMatrix, InputError, Mesh
from spgnn.comm import Communicator, connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.graph import densified, propagate_
from spgnn.graph.dry import recorded_products
from spgnn.nn import GCN, GIN, GraphSAGE, Stack
from spgnn.nn.convolution import Linear
from spgnn.train import Trainer
from spgnn.train.run import task_of
from tests.matrices import block_row, random_matrix, uneven_layout

N = 29
WIDTHS = [[7, 4], [5, 12, 3], [9, 4, 11, 6]]


def adjacency() -> np.ndarray:
    """A directed, weighted matrix."""
    return random_matrix(N, 0.15, 5, weighted=True).toarray()


def distributed(comm: Communicator, c: int) -> tuple[DistMatrix, slice]:
    """The matrix on this rank's mesh, and the rows this rank owns."""
    layout = uneven_layout(N, comm.size, seed=1)
    first, last = layout.range(comm.rank)
    block = block_row(sp.csr_array(adjacency()), first, last)
    return DistMatrix.build(block, layout, Mesh.grid(comm, c)), slice(first, last)


def features(width: int) -> np.ndarray:
    """Some of them zero, so that they may be stored sparse."""
    rng = np.random.default_rng(width)
    return rng.standard_normal((N, width)) * (rng.random((N, width)) < 0.5)


def step(A: DistMatrix, model: nn.Module, *given: object) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the gradients of their sum."""
    logits = model(given[0], A, *given[1:])
    return logits, list(torch.autograd.grad(logits.sum(), list(model.parameters())))


def products(model: Stack, sparse: bool = False) -> list[tuple[int, bool]]:
    """Width of each product, and whether it is an adjoint; recorded on a matrix of one rank."""
    A, _ = distributed(connect(), 1)
    X = torch.from_numpy(features(model.in_channels))
    given = CSR.from_scipy(sp.csr_array(X.numpy())) if sparse else X
    found = recorded_products(model.double(), given, A)
    assert {product.dtype for product in found} == {torch.float64}
    assert all(product.A is A for product in found)
    return [(product.width, product.adjoint) for product in found]


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN])
def test_the_narrower_operand_travels(kind):
    """In a first layer, (A X) W moves f_in once, A (X W) moves f_out twice; X has no gradient."""
    for widths, moved in {
        (16, 4): [(4, False), (4, True)],
        (16, 7): [(7, False), (7, True)],
        (16, 9): [(16, False)],
        (4, 16): [(4, False)],
    }.items():
        assert products(kind.of(widths)) == moved
    for widths in ((3, 16, 4), (3, 4, 16), (3, 8, 8)):
        narrow = min(widths[1:])
        assert products(kind.of(widths))[1:] == [(narrow, False), (narrow, True)]


@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_pruned_attention_multiplies_no_row_twice(model, monkeypatch):
    """Dense products of an epoch, and their rows: of what is wanted no more than of everything."""
    shapes: list[tuple[int, int]] = []
    forward = Linear.forward

    def counted(layer: Linear, H: Tensor) -> Tensor:
        shapes.append((len(H), layer.out_features))
        return forward(layer, H)

    monkeypatch.setattr(Linear, "forward", counted)
    made = []
    for prune in (True, False):
        config = TrainConfig.of(
            dataset="rmat-8-4",
            random_features=6,
            random_classes=4,
            random_labels=0.1,
            model=model,
            hidden=8,
            layers=3,
            prune=prune,
        )
        data = training_graph(config, connect())
        assert isinstance(data.layers, DistMatrix) != prune
        trainer = Trainer(task_of(config, data), options=config.training)
        shapes.clear()
        trainer.train_epoch(0)
        made.append(list(shapes))
    pruned, whole = made
    assert len(pruned) == len(whole) == (3 if model == "gat" else 6)
    assert all(few[1] == all_[1] and few[0] <= all_[0] for few, all_ in zip(*made, strict=True))
    assert sum(rows for rows, _ in pruned) < sum(rows for rows, _ in whole)


def test_what_travels_of_sparse_features_and_in_the_order_of_the_paper():
    assert products(GCN.of([6, 16]), sparse=True) == [(16, False), (16, True)]
    forward, adjoint = [30, 16, 16], [5, 16, 16]
    expected = [(width, False) for width in forward] + [(width, True) for width in adjoint]
    assert products(GCN.of([30, 16, 16, 5], order="paper")) == expected


def test_paper_order_refuses_what_would_be_made_dense_every_epoch():
    A, _ = distributed(connect(), 1)
    X = CSR.from_scipy(sp.csr_array(features(7)))
    model = GCN.of([7, 4], order="paper").double()
    with pytest.raises(InputError, match=r"needs dense features.*densified"):
        model(X, A)
    dense = densified(X)
    assert torch.equal(dense, torch.from_numpy(features(7)))
    assert model(dense, A).shape == (N, 4)
    with pytest.raises(InputError, match="need values"):
        densified(X.with_values(None))


@pytest.mark.parametrize(
    "kind",
    [
        partial(GCN, norm="batch", residual=True),
        partial(GraphSAGE, aggr="max", norm="graph", jk="cat", act="elu"),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in (GCN, GraphSAGE, GIN, partial(GIN, norm="layer", jk="max"))
        ),
    ],
)
def test_a_layer_can_be_compiled_whole(kind):
    A, _ = distributed(connect(), 1)
    X = torch.from_numpy(features(9))
    model = kind(9, 12, 2, 4).double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    # The halo of the largest neighbours is made when it is first asked for.
    wanted = step(A, model, X)
    for found, expected in zip(step(A, compiled, X), wanted, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("columns", [1, 4, 64])
@pytest.mark.parametrize("keep", [False, True])
def test_propagate_overwrites_its_features_or_keeps_them(columns, keep):
    A, _ = distributed(connect(), 1)
    X = torch.from_numpy(features(9))
    made = propagate_(A, X, columns, keep=keep)
    assert (made.X_local if keep else made.AX_local) is X
    assert not keep or np.array_equal(X.numpy(), features(9))
    np.testing.assert_allclose(made.AX_local, adjacency() @ features(9), rtol=1e-12, atol=1e-12)
