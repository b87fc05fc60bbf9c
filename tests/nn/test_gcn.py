"""The GCN against dense float64 autograd: logits, gradients, and the rows it moves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import CSR, DistMatrix, Mesh
from spgnn.comm import Communicator, connect
from spgnn.nn import GCN, ORDERS, GCNConv, Products, propagate_
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import FLOAT64_BYTES, moved

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
    model = GCN(widths, order=order, seed=2).double()
    with torch.no_grad():
        for layer in model.convolutions:
            layer.bias.copy_(torch.linspace(-1, 1, len(layer.bias)))
    parameters = [(layer.weight, layer.bias) for layer in model.convolutions]
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
        for order in ORDERS:
            logits, gradients = dense_reference(widths, order)
            X = torch.from_numpy(features(widths[0])[own].copy())
            inputs = {"dense": X, "sparse": CSR.from_scipy(sp.csr_array(X.numpy()))}
            if order == "auto":
                inputs["propagated"] = propagate_(A, X.clone(), columns=3)
            for kind, given in inputs.items():
                model = GCN(widths, order=order, seed=2).double()
                for layer in model.convolutions:
                    torch.nn.init.zeros_(layer.bias)
                    with torch.no_grad():
                        layer.bias.copy_(torch.linspace(-1, 1, len(layer.bias)))
                before = comm.ledger.copy()
                Z = model(A, given)
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
                products, volume = model.products(given), A.volume
                bytes_out, bytes_in = (n * FLOAT64_BYTES for n in (volume.send, volume.receive))
                f, b = sum(products.forward), sum(products.adjoint)
                assert moved(forward) == (bytes_out * f, bytes_in * f), case
                assert moved(backward) == (bytes_in * b, bytes_out * b), case
                checked += 1
    return checked


@pytest.mark.parametrize(("ranks", "c"), [(1, 1), (3, 1), (4, 2), (4, 4), (6, 2)])
def test_logits_gradients_and_bytes(ranks, c):
    assert run_ranks(check_models, ranks, c) == [15] * ranks


HIDDEN = [
    (16, 4, Products((4,), (4,))),
    (4, 16, Products((4,), (4,))),
    (8, 8, Products((8,), (8,))),
]
INPUT = [
    # (A X) W moves f_in once; A (X W) moves f_out twice.
    (16, 4, Products((4,), (4,))),
    (16, 7, Products((7,), (7,))),
    (16, 9, Products((16,), ())),
    (4, 16, Products((4,), ())),
]


@pytest.mark.parametrize(("f_in", "f_out", "expected"), HIDDEN)
def test_hidden_layer_moves_the_narrower_side(f_in, f_out, expected):
    assert GCNConv(f_in, f_out).products(None) == expected


@pytest.mark.parametrize(("f_in", "f_out", "expected"), INPUT)
def test_input_layer_needs_no_adjoint_of_its_own(f_in, f_out, expected):
    X = torch.zeros(3, f_in)
    chosen = GCNConv(f_in, f_out, input_layer=True).products(X)
    assert chosen == expected
    others = (Products((f_out,), (f_out,)), Products((f_in,), ()))
    assert _width(chosen) == min(map(_width, others))


def test_paper_order_moves_f_in_forward_and_f_out_backward():
    assert GCN([30, 16, 16, 5], order="paper").products(torch.zeros(1, 30)) == Products(
        (30, 16, 16), (16, 16, 5)
    )


def test_same_seed_same_weights_within_the_bound_of_glorot():
    one, two, other = GCN([40, 30, 20], seed=1), GCN([40, 30, 20], seed=1), GCN([40, 30, 20])
    torch.rand(3)
    for a, b, c, (f_in, f_out) in zip(
        one.convolutions, two.convolutions, other.convolutions, pairwise([40, 30, 20]), strict=True
    ):
        assert torch.equal(a.weight, b.weight)
        assert not torch.equal(a.weight, c.weight)
        bound = (6 / (f_in + f_out)) ** 0.5
        assert 0.9 * bound < float(a.weight.detach().abs().max()) <= bound
        assert not a.bias.any()


@pytest.mark.parametrize("columns", [1, 4, 64])
def test_propagate_overwrites_its_features(columns):
    A, _ = distributed(connect(), 1)
    X = torch.from_numpy(features(9))
    made = propagate_(A, X, columns)
    assert made.AX_local is X
    np.testing.assert_allclose(X.numpy(), adjacency() @ features(9), rtol=1e-12, atol=1e-12)


def _width(products: Products) -> int:
    return sum(products.forward) + sum(products.adjoint)
