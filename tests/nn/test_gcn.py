"""The GCN against dense float64 autograd: logits, gradients, and the rows it moves."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

import spgnn
from spgnn import CSR, DistMatrix, InputError, Mesh, _native
from spgnn.comm import Communicator, connect
from spgnn.graph.dry import recorded_products
from spgnn.nn import GCN, GIN, DropoutKeys, GCNConv, GraphSAGE, densified, propagate_
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import moved

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


def dense_reference(widths: list[int], order: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits, and the gradients of their weighted sum."""
    A, H = torch.from_numpy(adjacency()), torch.from_numpy(features(widths[0]))
    model = GCN.of(widths, order=order, seed=2).double()
    with torch.no_grad():
        for layer in model.convolutions:
            layer.bias.copy_(torch.linspace(-1, 1, len(layer.bias)))
    parameters = [(layer.lin.weight.T, layer.bias) for layer in model.convolutions]
    for number, (W, b) in enumerate(parameters):
        H = A @ (torch.relu(H) if number else H) @ W + b
    (H * weights_of_logits(widths[-1])).sum().backward()
    return H.detach(), [p.grad for p in model.parameters()]


def weights_of_logits(classes: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).standard_normal((N, classes)))


def check_models(rank: int, c: int) -> int:
    """Every depth, order and storage of X on this rank; logits, gradients, bytes. Collective."""
    comm = connect()
    A, own = distributed(comm, c)
    checked = 0
    for widths in WIDTHS:
        for order in ("auto", "paper"):
            logits, gradients = dense_reference(widths, order)
            X = torch.from_numpy(features(widths[0])[own].copy())
            inputs = {"dense": X}
            if order == "auto":
                inputs["sparse"] = CSR.from_scipy(sp.csr_array(X.numpy()))
                inputs["propagated"] = propagate_(A, X.clone(), columns=3)
            for kind, given in inputs.items():
                model = GCN.of(widths, order=order, seed=2).double()
                for layer in model.convolutions:
                    torch.nn.init.zeros_(layer.bias)
                    with torch.no_grad():
                        layer.bias.copy_(torch.linspace(-1, 1, len(layer.bias)))
                before = comm.ledger.copy()
                Z = model(given, A)
                forward = comm.ledger.since(before)
                before = comm.ledger.copy()
                (Z * weights_of_logits(widths[-1])[own]).sum().backward()
                backward = comm.ledger.since(before)
                case = f"{widths} {order} {kind}"
                torch.testing.assert_close(Z.detach(), logits[own], rtol=1e-9, atol=1e-9, msg=case)
                for parameter, expected in zip(model.parameters(), gradients, strict=True):
                    total = parameter.grad.clone()
                    comm.all_reduce(total).wait()
                    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-9, msg=case)
                recorded = recorded_products(model, given, A)
                for ledger, adjoint in ((forward, False), (backward, True)):
                    planned = [
                        (int(carried.sent.sum()), int(carried.received.sum()))
                        for product in recorded
                        for carried in product.carried()
                        if product.adjoint == adjoint
                    ]
                    assert moved(ledger) == tuple(map(sum, zip((0, 0), *planned, strict=True))), (
                        case
                    )
                checked += 1
    return checked


@pytest.mark.parametrize(("ranks", "c"), [(1, 1), (3, 1), (4, 2), (4, 4), (6, 2)])
def test_logits_gradients_and_bytes(ranks, c):
    assert run_ranks(check_models, ranks, c) == [12] * ranks


def step(A: DistMatrix, model: nn.Module, *given: object) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the gradients of their sum."""
    logits = model(given[0], A, *given[1:])
    return logits, list(torch.autograd.grad(logits.sum(), list(model.parameters())))


def products(
    widths: list[int], order: str = "auto", sparse: bool = False
) -> list[tuple[int, bool]]:
    """Width of each product, and whether it is an adjoint; recorded on a matrix of one rank."""
    A, _ = distributed(connect(), 1)
    X = torch.from_numpy(features(widths[0]))
    given = CSR.from_scipy(sp.csr_array(X.numpy())) if sparse else X
    found = recorded_products(GCN.of(widths, order=order).double(), given, A)
    assert {product.dtype for product in found} == {torch.float64}
    assert all(product.A is A for product in found)
    return [(product.width, product.adjoint) for product in found]


@pytest.mark.parametrize(
    ("f_in", "f_out", "expected"),
    [
        # (A X) W moves f_in once; A (X W) moves f_out twice.
        (16, 4, [(4, False), (4, True)]),
        (16, 7, [(7, False), (7, True)]),
        (16, 9, [(16, False)]),
        (4, 16, [(4, False)]),
    ],
)
def test_input_layer_needs_no_adjoint_of_its_own(f_in, f_out, expected):
    found = products([f_in, f_out])
    assert found == expected
    assert sum(width for width, _ in found) == min(2 * f_out, f_in)


@pytest.mark.parametrize(("f_in", "f_out"), [(16, 4), (4, 16), (8, 8)])
def test_hidden_layer_moves_the_narrower_side(f_in, f_out):
    narrow = min(f_in, f_out)
    assert products([3, f_in, f_out])[1:] == [(narrow, False), (narrow, True)]


def test_paper_order_moves_f_in_forward_and_f_out_backward():
    forward, adjoint = [30, 16, 16], [5, 16, 16]
    expected = [(width, False) for width in forward] + [(width, True) for width in adjoint]
    assert products([30, 16, 16, 5], "paper") == expected


def test_sparse_features_travel_after_their_weights():
    assert products([6, 16], sparse=True) == [(16, False), (16, True)]


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


def test_dropout_of_sparse_features_rebuilds_no_structure(monkeypatch):
    """Epoch after epoch, one transposition and one order of the nonzeros."""
    A, _ = distributed(connect(), 1)
    made = []
    for name in ("transpose", "transposed_order"):
        real = getattr(_native, name)

        def counted(*given, name=name, real=real):
            made.append(name)
            return real(*given)

        monkeypatch.setattr(_native, name, counted)
    X = CSR.from_scipy(sp.csr_array(features(9)))
    model = GCN.of([9, 4, 2], dropout=0.5, input_dropout=True).double()
    losses = {
        float(step(A, model, X, DropoutKeys(torch.arange(N), 0, epoch))[0].detach().sum())
        for epoch in range(5)
    }
    assert len(losses) == 5
    assert sorted(made) == ["transpose", "transposed_order"]


@pytest.mark.parametrize(
    "kind",
    [
        GCN,
        pytest.param(GraphSAGE, marks=pytest.mark.slow),
        pytest.param(GIN, marks=pytest.mark.slow),
        partial(GCN, norm="batch", residual=True),
        partial(GraphSAGE, aggr="max", norm="graph", jk="cat", act="elu"),
        partial(GIN, norm="layer", jk="max"),
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


MOST_FRAMES = 6


def test_few_frames_from_a_layer_to_the_kernel():
    """Python from `GCNConv.forward` to the operator of the kernel, that of torch not counted."""
    ours = Path(spgnn.__file__).parent
    found: list[list[str]] = []

    def watch(frame, event, argument):
        if event != "call" or frame.f_code.co_name != "spmm":
            return
        names = []
        while frame is not None and frame.f_code is not GCNConv.forward.__code__:
            if Path(frame.f_code.co_filename).is_relative_to(ours):
                names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        found.append(names)

    A, _ = distributed(connect(), 1)
    layer = GCNConv(9, 4).double()
    X = torch.from_numpy(features(9))
    layer(X, A)
    sys.setprofile(watch)
    try:
        layer(X, A)
    finally:
        sys.setprofile(None)
    assert found
    assert max(map(len, found)) <= MOST_FRAMES, found


def test_same_seed_same_weights_within_the_bound_of_glorot():
    one, two, other = (
        GCN.of([40, 30, 20], seed=1),
        GCN.of([40, 30, 20], seed=1),
        GCN.of([40, 30, 20]),
    )
    torch.rand(3)
    for a, b, c, (f_in, f_out) in zip(
        one.convolutions, two.convolutions, other.convolutions, pairwise([40, 30, 20]), strict=True
    ):
        assert torch.equal(a.lin.weight, b.lin.weight)
        assert not torch.equal(a.lin.weight, c.lin.weight)
        bound = (6 / (f_in + f_out)) ** 0.5
        assert 0.9 * bound < float(a.lin.weight.detach().abs().max()) <= bound
        assert not a.bias.any()


@pytest.mark.parametrize("columns", [1, 4, 64])
def test_propagate_overwrites_its_features(columns):
    A, _ = distributed(connect(), 1)
    X = torch.from_numpy(features(9))
    made = propagate_(A, X, columns)
    assert made.AX_local is X
    np.testing.assert_allclose(X.numpy(), adjacency() @ features(9), rtol=1e-12, atol=1e-12)
