"""GraphSAGE and GIN against PyG's layers of the same name and weights, and the rows they move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from spgnn import CSR, DistMatrix, InputError, Mesh
from spgnn.comm import Communicator, connect
from spgnn.graph.dry import recorded_products
from spgnn.nn import GIN, Convolution, GINConv, GraphSAGE, Propagated, SAGEConv, propagate_
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

N = 31
WIDTHS = [(7, 3), (7, 6), (3, 8)]
ADJACENCY = random_matrix(N, 0.12, 4, weighted=False)
KINDS = ("sage", "gin")


def distributed(comm: Communicator, kind: str) -> tuple[DistMatrix, slice]:
    """The mean of the neighbours, or their sum; and the rows this rank owns."""
    layout = uneven_layout(N, comm.size, seed=2)
    first, last = layout.range(comm.rank)
    block = block_row(ADJACENCY, first, last)
    if kind == "sage":
        block = block.with_scales(1 / block.row_lengths.double().clamp(min=1), None)
    return DistMatrix.build(block, layout, Mesh.grid(comm, 1)), slice(first, last)


def features(width: int) -> Tensor:
    """Some of them zero, so that they may be stored sparse."""
    rng = np.random.default_rng(width)
    return torch.from_numpy(rng.standard_normal((N, width)) * (rng.random((N, width)) < 0.5))


def weights(layer: nn.Module) -> dict[str, Tensor]:
    """Any, by name."""
    rng = np.random.default_rng(6)
    return {
        name: torch.from_numpy(rng.standard_normal(tuple(tensor.shape)))
        for name, tensor in sorted(layer.state_dict().items())
    }


def perceptron(f_in: int, f_out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(f_in, f_out), nn.ReLU(), nn.Linear(f_out, f_out))


def theirs(kind: str, f_in: int, f_out: int) -> nn.Module:
    geometric = pytest.importorskip("torch_geometric.nn")
    if kind == "sage":
        layer = geometric.SAGEConv(f_in, f_out)
    else:
        layer = geometric.GINConv(perceptron(f_in, f_out), train_eps=True)
    layer = layer.double()
    layer.load_state_dict(weights(layer))
    return layer


def ours(kind: str, f_in: int, f_out: int) -> Convolution:
    layer: Convolution = SAGEConv(f_in, f_out)
    if kind == "gin":
        layer = GINConv(perceptron(f_in, f_out), train_eps=True)
    layer = layer.double()
    layer.load_state_dict(weights(layer))
    return layer


def graded(layer: nn.Module, Z: Tensor, rows: slice) -> dict[str, Tensor]:
    """Gradients of a weighted sum of Z."""
    factors = torch.from_numpy(np.random.default_rng(8).standard_normal((N, Z.shape[1])))
    (Z * factors[rows]).sum().backward()
    return {name: p.grad for name, p in layer.named_parameters()}


def check(rank: int, kind: str) -> int:
    """Output and all gradients, in either order of the operands and of every storage of H."""
    comm = connect()
    A, own = distributed(comm, kind)
    edges = torch.from_numpy(np.stack(ADJACENCY.nonzero()[::-1]).astype(np.int64))
    checked = 0
    for f_in, f_out in WIDTHS:
        H = features(f_in).requires_grad_()
        reference = theirs(kind, f_in, f_out)
        Z = reference(H, edges)
        expected = graded(reference, Z, slice(None)) | {"H": H.grad[own]}
        local = features(f_in)[own]
        given: dict[str, Any] = {
            "first": local,
            "hidden": local.clone().requires_grad_(),
            "sparse": CSR.from_scipy(sp.csr_array(local.numpy())),
            "propagated": propagate_(A, local.clone(), columns=2, keep=True),
        }
        for how, H_local in given.items():
            case = f"{f_in} {f_out} {how}"
            layer = ours(kind, f_in, f_out)
            Z_local = layer(H_local, A)
            torch.testing.assert_close(
                Z_local.detach(), Z.detach()[own], rtol=1e-9, atol=1e-9, msg=case
            )
            found = graded(layer, Z_local, own)
            for name, gradient in found.items():
                total = gradient.clone()
                comm.all_reduce(total).wait()
                torch.testing.assert_close(
                    total, expected[name], rtol=1e-9, atol=1e-9, msg=f"{case} {name}"
                )
            assert {*found, "H"} == {*expected}
            if how == "hidden":
                torch.testing.assert_close(
                    H_local.grad, expected["H"], rtol=1e-9, atol=1e-9, msg=case
                )
            checked += 1
    return checked


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_layer_is_that_of_pyg(kind, ranks):
    theirs(kind, 1, 1)
    assert run_ranks(check, ranks, kind) == [12] * ranks


@pytest.mark.parametrize("model", [GraphSAGE, GIN])
def test_rule_of_the_narrower_operand(model):
    A, _ = distributed(connect(), "gin")

    def moved(widths: list[int]) -> list[tuple[int, bool]]:
        found = recorded_products(model.of(widths).double(), features(widths[0]), A)
        return [(product.width, product.adjoint) for product in found]

    assert moved([16, 7]) == [(7, False), (7, True)]
    assert moved([16, 9]) == [(16, False)]
    assert moved([3, 16, 4])[1:] == [(4, False), (4, True)]
    assert moved([3, 4, 16])[1:] == [(4, False), (4, True)]


@pytest.mark.parametrize("model", [GraphSAGE, GIN])
def test_weights_are_those_of_the_seed(model):
    one, other = model(9, 7, 2, 5, seed=1), model(9, 7, 2, 5, seed=2)
    torch.rand(3)
    again = model(9, 7, 2, 5, seed=1)
    for a, b, c in zip(one.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        if a.dim() == 2:
            assert not torch.equal(a, c)
            bound = (6 / sum(a.shape)) ** 0.5
            assert 0.8 * bound < float(a.detach().abs().max()) <= bound
        else:
            assert not a.any()
    assert model.size([9, 7, 5]) == sum(p.numel() for p in one.parameters())


def test_epsilon_is_a_constant_or_learned():
    assert [name for name, _ in GINConv(perceptron(2, 3)).named_parameters()] == [
        f"nn.{number}.{what}" for number in (0, 2) for what in ("weight", "bias")
    ]
    assert float(GINConv(perceptron(2, 3), eps=0.5, train_eps=True).eps.detach()) == 0.5
    assert "eps" in GINConv(perceptron(2, 3)).state_dict()
    assert all(layer.eps.requires_grad for layer in GIN(2, 3, 2, 4, train_eps=True).convolutions)


@pytest.mark.parametrize("model", [GraphSAGE, GIN])
def test_propagated_features_need_their_own_rows(model):
    A, _ = distributed(connect(), "gin")
    with pytest.raises(InputError, match="need X as well as A·X"):
        model(3, 2, 1).double()(Propagated(features(3)), A)


def test_propagate_keeps_what_it_is_told_to():
    A, _ = distributed(connect(), "gin")
    X = features(5)
    made = propagate_(A, X, 2, keep=True)
    assert made.X_local is X
    assert torch.equal(X, features(5))
    np.testing.assert_allclose(made.AX_local, ADJACENCY @ features(5).numpy(), rtol=1e-12)
