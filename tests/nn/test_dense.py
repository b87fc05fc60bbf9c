"""Models against formulas of dense matrices: logits, gradients, dropped elements, bytes.

On all rows and on rows of their own, with a recomputed halo, of sparse features, in either order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn import CSR, DistMatrix, InputError, Mesh, RowLayout
from spgnn.comm import Communicator, connect
from spgnn.exchange import Algorithm, Plan, Stage, build
from spgnn.graph import LayerGraph, Propagated
from spgnn.graph.dry import recorded_products
from spgnn.kernels.torch_kernels import dropout_mask
from spgnn.nn import GCN, GIN, BatchNorm, DropoutKeys, GCNConv, GraphSAGE, SAGEConv, Stack
from spgnn.testing import run_ranks
from tests.matrices import random_matrix, uneven_layout
from tests.products import moved

N = 29
WIDTHS = [6, 8, 5, 3]
P_DROP = 0.4
NODE = {"norm": "layer", "norm_kwargs": {"mode": "node"}}
MODELS: dict[str, Callable[..., Stack]] = {
    "gcn": GCN.of,
    "sage": GraphSAGE.of,
    "gin": partial(GIN.of, train_eps=True),
    # Statistics over all vertices need all of them, but for the last layer, which has no norm.
    "normed": partial(GCN.of, norm="batch", residual=True),
    "jumping": partial(GraphSAGE.of, jk="cat", residual=True, **NODE),
    "deep": partial(GIN.of, jk="last", train_eps=True, **NODE),
    "paper": partial(GCN.of, order="paper"),
}
PLAIN = ("gcn", "sage", "gin")


def adjacency() -> sp.csr_array:
    """A directed, weighted matrix."""
    return random_matrix(N, 0.15, 5, weighted=True)


def features() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_normal((N, WIDTHS[0])))


def original_ids() -> Tensor:
    """Vertices are not numbered as they were given."""
    return torch.from_numpy(np.random.default_rng(2).permutation(N))


def labelled() -> np.ndarray:
    return np.random.default_rng(3).random(N) < 0.4


def made(kind: str, dropout: float) -> Stack:
    """A model whose vectors are not zero."""
    model = MODELS[kind](WIDTHS, dropout=dropout, input_dropout=True, seed=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.linspace(-1, 1, len(parameter) + 1)[1:])
    return model


def dense_layer(layer: torch.nn.Module, A: Tensor, H: Tensor) -> Tensor:
    """One layer as a formula of dense matrices."""
    if isinstance(layer, GCNConv):
        return A @ H @ layer.lin.weight.T + layer.bias
    if isinstance(layer, SAGEConv):
        return A @ H @ layer.lin_l.weight.T + layer.lin_l.bias + H @ layer.lin_r.weight.T
    first, last = layer.nn.lins
    hidden = (A @ H + (1 + layer.eps) * H) @ first.weight.T + first.bias
    return torch.relu(dense_norm(layer.nn.norms[0], hidden)) @ last.weight.T + last.bias


def dense_norm(norm: torch.nn.Module, Z: Tensor) -> Tensor:
    """Of all rows at once."""
    if isinstance(norm, torch.nn.Identity):
        return Z
    dims = (0,) if isinstance(norm, BatchNorm) else (1,)
    given = norm.module if isinstance(norm, BatchNorm) else norm
    variance, mean = torch.var_mean(Z, dims, correction=0, keepdim=True)
    return (Z - mean) / (variance + norm.eps).sqrt() * given.weight + given.bias


def dense_reference(kind: str, dropped: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    """Logits and the gradients of their sum over labelled vertices; some layers are dropped."""
    A, H, model = torch.from_numpy(adjacency().toarray()), features(), made(kind, P_DROP)
    keys = DropoutKeys(original_ids(), 4, 5)
    jumps = []
    for number, layer in enumerate(model.convolutions):
        if number:
            H = torch.relu(dense_norm(model.norms[number - 1], H))
        H = dense_dropout(H, keys, number, number in dropped)
        jumps.append(H)
        skip = model.residuals[number](H) if len(model.residuals) else 0
        H = dense_layer(layer, A, H) + skip
    if model.jk_mode:
        H = torch.relu(dense_norm(model.norms[-1], H))
        H = dense_dropout(H, keys, len(jumps), bool(dropped))
        made_of = [*jumps[1:], H] if model.jk_mode == "cat" else [H]
        H = model.lin(torch.cat(made_of, dim=1))
    H[torch.from_numpy(labelled())].square().sum().backward()
    return H.detach(), [p.grad for p in model.parameters()]


def dense_dropout(H: Tensor, keys: DropoutKeys, number: int, drops: bool) -> Tensor:
    if not drops:
        return H
    kept = dropout_mask(keys.vertex_ids, H.shape[1], keys.key(number), P_DROP)
    return H * kept / (1 - P_DROP)


class Setting:
    """The matrix, cut by layer, on one rank of some."""

    def __init__(self, comm: Communicator, algorithm: Algorithm) -> None:
        self.comm = comm
        self.mesh = Mesh.build(comm, algorithm.axes(comm.size))
        self.layout: RowLayout = uneven_layout(N, comm.size, seed=1)
        self.algorithm = algorithm
        self.own = np.arange(*self.layout.range(comm.rank))
        self.labelled = self.own[labelled()[self.own]]

    def rows(self, wanted: np.ndarray) -> DistMatrix:
        """Some of this rank's rows of A, on all own rows of everyone."""
        block = CSR.from_scipy(adjacency()[wanted])
        scheme = self.algorithm.scheme(block, self.layout, self.comm.rank)
        return DistMatrix(build(scheme, self.mesh).ready(), self.layout, self.mesh)

    def pruned(self) -> LayerGraph:
        """The last layer: only labelled vertices."""
        targets = torch.from_numpy(self.labelled - self.own[:1].sum())
        return LayerGraph(self.rows(self.labelled), original_ids()[self.own], targets)

    def whole(self) -> LayerGraph:
        return LayerGraph(self.rows(self.own), original_ids()[self.own])

    def recomputed(self) -> tuple[Propagated, LayerGraph, LayerGraph]:
        """A·X of own vertices, reversed, and of the halo; a second layer that needs no more."""
        A = adjacency()
        needed = np.unique(A[self.own].indices)
        rows = np.concatenate([self.own[::-1], np.setdiff1d(needed, self.own)]).astype(np.int64)
        AX = Propagated(torch.from_numpy(A @ features().numpy())[rows], features()[rows])
        local = CSR.from_scipy(A[self.own][:, rows])
        second = DistMatrix(Plan((Stage(local),)).ready(), self.layout, self.mesh)
        targets = torch.arange(len(self.own)).flip(0)
        ids = original_ids()[rows]
        first = LayerGraph(None, ids, own_rows=len(self.own), comm=self.comm)
        return AX, first, LayerGraph(second, ids, targets)


def check(rank: int, kind: str, algorithm: Algorithm) -> int:
    """Every way to run a model; logits, gradients, bytes. Collective."""
    here = Setting(connect(), algorithm)
    AX, first, second = here.recomputed()
    X = features()[here.own]
    pruned = here.pruned()
    whole = here.whole()
    ways = {
        "recomputed halo": (AX, [first, second, pruned], (1, 2)),
        "pruned": (X, [whole, whole, pruned], (0, 1, 2)),
        "evaluation": (X, [whole, whole, pruned], ()),
        "sparse": (CSR.from_scipy(sp.csr_array(X.numpy())), [whole, whole, pruned], (0, 1, 2)),
    }
    if kind == "paper":  # it takes X itself, dense
        ways = {way: ways[way] for way in ("pruned", "evaluation")}
    for way, (given, graph, dropped) in ways.items():
        logits, gradients = dense_reference(kind, dropped)
        model = made(kind, P_DROP if dropped else 0.0)
        before = here.comm.ledger.copy()
        # Ids of the keys are not looked at.
        Z = model(given, graph, DropoutKeys(torch.arange(0), 4, 5))
        Z.square().sum().backward()
        counted = here.comm.ledger.since(before)
        # Sums of statistics are no rows.
        counted.operations.pop("all_reduce", None)
        torch.testing.assert_close(Z.detach(), logits[here.labelled], rtol=1e-9, atol=1e-9, msg=way)
        for parameter, expected in zip(model.parameters(), gradients, strict=True):
            total = parameter.grad.clone()
            here.comm.all_reduce(total).wait()
            torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9, msg=way)
        recorded = recorded_products(model, given, graph)
        matrices = {id(layer.A) for layer in graph if layer.A is not None}
        assert {id(product.A) for product in recorded} == matrices
        planned = [
            (int(carried.sent.sum()), int(carried.received.sum()))
            for product in recorded
            for carried in product.carried()
        ]
        assert moved(counted) == tuple(map(sum, zip((0, 0), *planned, strict=True))), way
    return len(ways)


@pytest.mark.parametrize(
    ("ranks", "algorithm"),
    [
        (4, Algorithm("1.5d", 2, cover="minimum")),
        pytest.param(1, Algorithm(), marks=pytest.mark.slow),
        pytest.param(4, Algorithm("1.5d", 4), marks=pytest.mark.slow),
        pytest.param(6, Algorithm("1.5d", 2), marks=pytest.mark.slow),
    ],
)
def test_layers_on_rows_of_their_own(ranks, algorithm):
    """Of all models in one start."""

    def checked(rank: int) -> list[int]:
        return [check(rank, kind, algorithm) for kind in MODELS]

    ways = [2 if kind == "paper" else 4 for kind in MODELS]
    assert run_ranks(checked, ranks) == [ways] * ranks


@pytest.mark.parametrize("kind", PLAIN)
def test_a_matrix_stands_for_every_layer(kind):
    here = Setting(connect(), Algorithm())
    model, A, keys = made(kind, P_DROP), here.rows(here.own), DropoutKeys(original_ids(), 4, 5)
    layers = [LayerGraph(A, original_ids())] * 3
    first, second = model(features(), A, keys), model(features(), layers, keys)
    assert torch.equal(first, second)
    # Layers share it, so it is recorded once.
    assert len(recorded_products(model, features(), layers)) == len(
        recorded_products(model, features(), A)
    )


@pytest.mark.parametrize("kind", PLAIN)
def test_lists_that_cannot_be(kind):
    here = Setting(connect(), Algorithm())
    model, whole = made(kind, 0.0), here.whole()
    with pytest.raises(InputError, match="3 layers needs as many graphs, got 2"):
        model(features(), [whole, whole])
    with pytest.raises(InputError, match="without a matrix needs features that are propagated"):
        model(features(), [LayerGraph(None, original_ids()), whole, whole])
