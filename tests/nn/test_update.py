"""What comes after a layer's product, in one pass, against the same by torch step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from spgnn import CSR
from spgnn.autograd import product, product_beside_itself
from spgnn.graph.block import Block, LocalMatrix, block_pattern
from spgnn.kernels import gemm
from spgnn.nn import GAT, GCN, GIN, DropoutKeys, GCNConv, GraphSAGE, Stack
from spgnn.nn.convolution import MLP, Linear
from tests.matrices import random_matrix

N, F_IN, HIDDEN, CLASSES = 40, 5, 6, 4


def graph() -> Block:
    """All of a graph, on one process."""
    A = random_matrix(N, 0.12, 4, weighted=False)
    pattern = block_pattern(torch.from_numpy(A.indptr).long(), torch.from_numpy(A.indices), N)
    return Block(pattern, torch.arange(N) + 2**35)


def stepwise(Z: Tensor) -> Tensor:
    """An activation that nothing is fused with."""
    return torch.relu(Z)


STEPWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": stepwise,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
}


def trained(kind: type[Stack], act: str | Callable[[Tensor], Tensor], **options: Any) -> Any:
    model = kind(F_IN, HIDDEN, 3, CLASSES, dropout=0.5, act=act, **options)
    X = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = model(X, graph(), DropoutKeys(torch.arange(N) + 2**35, 3, 4))
    out.square().sum().backward()
    return out.detach(), [X.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("act", STEPWISE)
@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN, GAT])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"jk": "cat"},
        {"norm": "layer"},
        {"norm": "layer", "act_first": True},
        {"residual": True, "input_dropout": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("kernels", ["blas", "ours"])
def test_the_same_numbers_as_step_by_step(kind, options, act, kernels, monkeypatch):
    """Also where the product that makes a ReLU's gradient does the ReLU's part."""
    if kernels == "ours":
        monkeypatch.setattr(gemm, "FEWEST_ROWS", 1)
        monkeypatch.setattr(gemm, "_MOST_COLUMNS", 1024)
    found, gradients = trained(kind, act, **options)
    right, expected = trained(kind, STEPWISE[act], **options)
    if act == "elu":  # exponentials to some ulps
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found, right)
    for ours, theirs in zip(gradients, expected, strict=True):
        slack = 1e-4 * float(theirs.abs().max()) if act == "elu" else 1e-5
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=slack)


def test_what_looks_at_a_layer_sees_what_that_made():
    class Doubled(GCNConv):
        def forward(self, H_local, graph):  # type: ignore[no-untyped-def, override]
            return super().forward(H_local, graph) * 2

    model = GCN(F_IN, HIDDEN, 2, CLASSES)
    model.convs[0] = Doubled(F_IN, HIDDEN)
    X = torch.randn(N, F_IN)
    seen: list[Tensor] = []
    model.convs[0].register_forward_hook(lambda layer, given, Z: seen.append(Z.clone()))
    out = model(X, graph())
    assert bool((seen[0] < 0).any())
    assert torch.equal(out, model.convs[1](torch.relu(seen[0]), graph()))


class Bent(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


LOOKS: dict[str, Callable[[nn.Module], object]] = {
    "nobody": lambda layer: None,
    "hook": lambda layer: layer.register_forward_hook(lambda *seen: None),
    "before": lambda layer: layer.register_forward_pre_hook(lambda *seen: None),
    "backward": lambda layer: layer.register_full_backward_hook(lambda *seen: None),
    "before backward": lambda layer: layer.register_full_backward_pre_hook(lambda *seen: None),
    "global": lambda layer: register_module_forward_hook(lambda *seen: None),
}


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("kind", [GCN, GraphSAGE, GIN])
def test_a_product_does_a_relus_part_unless_somebody_looks(kind, looks, monkeypatch):
    monkeypatch.setattr(gemm, "FEWEST_ROWS", 1)
    monkeypatch.setattr(gemm, "_MOST_COLUMNS", 1024)
    made, product = [], gemm._product_through_relu
    monkeypatch.setattr(gemm, "_product_through_relu", lambda *of: made.append(of) or product(*of))
    model = kind(F_IN, HIDDEN, 2, CLASSES)
    layer = model.convs[1]
    handle = LOOKS[looks](layer.nn.lins[1] if kind is GIN else layer)
    try:
        model(torch.randn(N, F_IN), graph()).sum().backward()
    finally:
        if handle is not None:
            handle.remove()  # type: ignore[attr-defined]
    # One between the layers, and one in each layer of GIN, of which a product is looked at.
    rest = 2 * int(kind is GIN)
    assert len(made) == {"nobody": 1 + rest, "global": 0}.get(looks, rest)


@pytest.mark.parametrize("options", [{}, {"norm": "layer", "act_first": True}], ids=str)
def test_what_looks_at_an_activation_sees_it(options):
    model, seen = GCN(F_IN, HIDDEN, 3, CLASSES, act=nn.ReLU(), **options), list[Tensor]()
    X = torch.randn(N, F_IN)
    right = model(X, graph())
    assert isinstance(model.act, nn.Module)
    model.act.register_forward_hook(lambda act, given, Z: seen.append(Z))
    torch.testing.assert_close(model(X, graph()), right)
    assert len(seen) == 2
    assert bool((seen[0] >= 0).all())


def test_a_linear_layer_with_a_forward_of_its_own_is_called():
    mlp = MLP([F_IN, HIDDEN, CLASSES], act=torch.relu)
    mlp.lins[1] = Bent(HIDDEN, CLASSES)
    X = torch.randn(N, F_IN)
    right = 2 * nn.functional.linear(
        torch.relu(mlp.lins[0](X)), mlp.lins[1].weight, mlp.lins[1].bias
    )
    torch.testing.assert_close(mlp(X, graph()), right)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("rows", "f_out"), [(9, 3), (5, 3), (9, 4), (5, 4)])
def test_a_product_beside_its_operand(first, rows, f_out):
    block = random_matrix(9, 0.4, 2, weighted=True)[:rows]
    double = torch.float64
    A = LocalMatrix(CSR.from_scipy(block).to(double))
    H, W, R = (
        torch.randn(*shape, dtype=double, generator=torch.Generator().manual_seed(seed))
        for seed, shape in enumerate([(9, 4), (f_out, 4), (f_out, 4)])
    )

    def function(*operands: Tensor) -> Tensor:
        return product_beside_itself(A, *operands, first=first).square()

    leaves = [t.clone().requires_grad_() for t in (H, W, R)]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, check_undefined_grad=False)
    expected = product(A, H) @ W.T + H[:rows] @ R.T
    torch.testing.assert_close(product_beside_itself(A, H, W, R, first=first), expected)
    # Without a gradient of the operand, those of the weights are the same.
    function(*leaves).sum().backward()
    weights = [t.clone().requires_grad_() for t in (W, R)]
    function(H, *weights).sum().backward()
    for one, leaf in zip(weights, leaves[1:], strict=True):
        torch.testing.assert_close(one.grad, leaf.grad)


def test_double_precision_and_bfloat16():
    X = torch.randn(N, F_IN)
    for dtype in (torch.float64, torch.bfloat16):
        found, right = (
            GCN(F_IN, HIDDEN, 2, CLASSES, dropout=0.5, act=act).to(dtype)(
                X.to(dtype), graph(), DropoutKeys(torch.arange(N), 1, 2)
            )
            for act in (nn.ReLU(), stepwise)
        )
        assert found.dtype == dtype
        assert torch.equal(found, right)
