"""Norms over the vertices of all ranks against PyG's on one process."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spgnn import InputError
from spgnn.autograd import all_reduced
from spgnn.comm import connect
from spgnn.graph import LayerGraph
from spgnn.graph.moments import moments
from spgnn.nn import BatchNorm, GraphNorm, LayerNorm, PairNorm
from spgnn.nn.norm import Norm
from spgnn.testing import run_ranks
from tests.matrices import uneven_layout

geometric = pytest.importorskip("torch_geometric.nn")

N, WIDTH = 37, 5
CASES: list[tuple[str, dict[str, Any]]] = [
    ("BatchNorm", {}),
    ("BatchNorm", {"momentum": None, "eps": 0.1}),
    ("BatchNorm", {"affine": False, "momentum": 0.5}),
    ("BatchNorm", {"track_running_stats": False}),
    ("LayerNorm", {}),
    ("LayerNorm", {"affine": False}),
    ("LayerNorm", {"mode": "node"}),
    ("GraphNorm", {}),
    ("PairNorm", {"scale": 2.0}),
    ("PairNorm", {"scale_individually": True}),
]
OURS: dict[str, type[Norm]] = {
    "BatchNorm": BatchNorm,
    "LayerNorm": LayerNorm,
    "GraphNorm": GraphNorm,
    "PairNorm": PairNorm,
}


def made(kind: Any, name: str, options: dict[str, Any]) -> nn.Module:
    """A norm whose parameters are not what they begin as."""
    norm: nn.Module = kind(**options) if name == "PairNorm" else kind(WIDTH, **options)
    norm = norm.double()
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for _, parameter in sorted(norm.named_parameters()):
            parameter.copy_(torch.from_numpy(rng.uniform(0.3, 1.7, WIDTH)))
    return norm


def rows(seed: int, width: int = WIDTH) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((N, width)) * 2 + 3)


def derivatives(z: Tensor, x: Tensor, parameters: list[Tensor], own: slice) -> list[Tensor]:
    """Of a weighted sum of z in everything; and of a weighted sum of the gradient in x."""
    loss = (z * rows(5)[own]).sum() + (z.square() * rows(6)[own]).sum()
    first = torch.autograd.grad(loss, [x, *parameters], create_graph=True)
    second = torch.autograd.grad((first[0] * rows(7)[own]).sum(), [x, *parameters])
    return [*first, *second]


def check(rank: int) -> int:
    """Results, two orders of derivatives and statistics of every norm. Collective."""
    comm = connect()
    own = slice(*uneven_layout(N, comm.size, seed=4).range(comm.rank))
    for name, options in CASES:
        theirs = made(getattr(geometric, name), name, options)
        ours = made(OURS[name], name, options)
        # Twice in training, then in evaluation; many ranks share two processors.
        for step in range(3 if comm.size < 8 else 2):
            case = f"{name} {options} step {step}"
            training = step < (2 if comm.size < 8 else 1)
            theirs.train(training)
            ours.train(training)
            X = rows(step).requires_grad_()
            x = rows(step)[own].requires_grad_()
            expected = theirs(X)
            z = ours(x, comm)
            torch.testing.assert_close(z, expected[own], rtol=1e-9, atol=1e-9, msg=case)
            learned = [list(norm.parameters()) for norm in (theirs, ours)]
            wanted = derivatives(expected, X, learned[0], slice(None))
            found = derivatives(z, x, learned[1], own)
            for number, (f, w) in enumerate(zip(found, wanted, strict=True)):
                local = number % (1 + len(learned[0])) == 0
                total = f.detach().clone()
                if not local:
                    comm.all_reduce(total).wait()
                torch.testing.assert_close(
                    total, w[own] if local else w, rtol=1e-7, atol=1e-7, msg=f"{case} {number}"
                )
        assert list(ours.state_dict()) == list(theirs.state_dict()), name
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, msg=f"{name} {key}")
        theirs.load_state_dict(ours.state_dict())
        ours.load_state_dict(theirs.state_dict())
    return len(CASES)


@pytest.mark.parametrize("ranks", [1, 5])
def test_norms_are_those_of_pyg(ranks):
    assert run_ranks(check, ranks) == [len(CASES)] * ranks


def check_far(rank: int) -> None:
    """Means of 10,000 beside deviations of one, in float32."""
    comm = connect()
    own = slice(*uneven_layout(4000, comm.size, seed=2).range(comm.rank))
    rng = np.random.default_rng(1)
    X = torch.from_numpy(rng.standard_normal((4000, WIDTH)) + 1e4 * np.arange(1, WIDTH + 1)).float()
    exact = X.double()
    for name, kind in OURS.items():
        theirs = made(getattr(geometric, name), name, {})
        ours = made(kind, name, {}).float()
        z = ours(X[own], comm)
        # Half a unit in the last place of x is 0.004 at 50,000; there is no such error in z.
        torch.testing.assert_close(z.double(), theirs(exact)[own], rtol=1e-5, atol=2e-5, msg=name)
    ours = BatchNorm(WIDTH, momentum=1.0)
    ours(X[own], comm)
    assert ours.module.running_var is not None
    torch.testing.assert_close(ours.module.running_var.double(), exact.var(0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("ranks", [1, 3])
def test_means_far_from_zero(ranks):
    run_ranks(check_far, ranks)


def check_conventions(rank: int) -> None:
    """Shares of a loss with sums of gradients, and one loss on all ranks with averages."""
    comm = connect()
    own = slice(*uneven_layout(N, comm.size, seed=4).range(comm.rank))
    expected = made(geometric.GraphNorm, "GraphNorm", {})
    (expected(rows(1)) * rows(2)).sum().square().backward()
    for shared in (True, False):
        norm = made(GraphNorm, "GraphNorm", {})
        x = rows(1)[own].requires_grad_()
        share = (norm(x, comm) * rows(2)[own]).sum()
        if shared:
            total = share.detach().clone()
            comm.all_reduce(total).wait()
            # d(total²) is 2·total·d(total): this rank's share of it.
            (2 * total * share).backward()
        else:
            all_reduced(share.reshape(1), comm).square().sum().backward()
        for p, q in zip(norm.parameters(), expected.parameters(), strict=True):
            assert p.grad is not None
            gradient = p.grad.clone()
            comm.all_reduce(gradient).wait()
            torch.testing.assert_close(gradient / (1 if shared else comm.size), q.grad)


def test_gradients_of_either_convention():
    run_ranks(check_conventions, 3)


def check_ghosts(rank: int) -> None:
    """Ghosts do not count, and are normalised as at their owner."""
    comm = connect()
    layout = uneven_layout(N, comm.size, seed=4)
    own = slice(*layout.range(comm.rank))
    ghosts = torch.arange(N)[: own.start : 2]
    x = torch.cat((rows(1)[own], rows(1)[ghosts]))
    count = own.stop - own.start
    on = LayerGraph(None, torch.arange(len(x)), own_rows=count, comm=comm)
    for name, options in CASES:
        z = made(OURS[name], name, options)(x, on)
        whole = made(getattr(geometric, name), name, options)(rows(1))
        torch.testing.assert_close(z, torch.cat((whole[own], whole[ghosts])), rtol=1e-9, atol=1e-9)


def test_ghosts_are_normalised_alike():
    run_ranks(check_ghosts, 3)


def check_alone(rank: int) -> str:
    """A rank that does not normalise with the others, and a width that differs."""
    comm = connect()
    said = []
    for number in range(2):
        norm = BatchNorm(4 + (number == 1) * rank)
        try:
            if number or rank:
                norm(torch.ones(5, norm.in_channels) * torch.arange(5.0)[:, None], comm)
            else:
                comm.check_agreement("the operand of a product", width=4)
        except InputError as error:
            said.append(str(error))
    return " | ".join(said)


def test_what_ranks_do_not_agree_on_is_said():
    for said in run_ranks(check_alone, 3):
        assert "which check comes next" in said
        assert "width of BatchNorm" in said


def test_one_vertex_has_no_variance():
    comm, x = connect(), torch.ones(1, 3)
    with pytest.raises(InputError, match="two vertices"):
        BatchNorm(3)(x, comm)
    norm = BatchNorm(3, allow_single_element=True)
    torch.testing.assert_close(norm(x, comm), x / (1 + 1e-5) ** 0.5)


def test_norms_are_compiled_whole_on_ranks(compiler):
    def body(rank: int) -> None:
        x, norm = torch.randn(6 + rank, 3, requires_grad=True), BatchNorm(3)
        compiled = torch.compile(copy.deepcopy(norm), backend="aot_eager", fullgraph=True)
        both = [layer(x, connect()) for layer in (norm, compiled)]
        torch.testing.assert_close(*both)
        torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in both))
        torch.testing.assert_close([*compiled.buffers()], [*norm.buffers()])

    run_ranks(body, 2)


def test_rows_are_counted_exactly_whatever_the_dtype():
    """bfloat16 knows no odd number above 256."""

    def body(rank: int) -> list[float]:
        x = torch.ones(1 if rank == 2 else 257, 2, dtype=torch.bfloat16)
        return [float(moments(x, None, connect()).count)]

    assert run_ranks(body, 3) == [[515.0]] * 3


@given(
    n=st.integers(2, 30),
    width=st.integers(1, 20),
    name=st.sampled_from(["BatchNorm", "LayerNorm", "GraphNorm", "PairNorm"]),
    far=st.sampled_from([0.0, 1e3]),
)
@settings(max_examples=60)
def test_norms_of_any_shape(n, width, name, far):
    rng = np.random.default_rng(n + width)
    x = torch.from_numpy(rng.standard_normal((n, width)) + far)
    sizes = () if name == "PairNorm" else (width,)
    z = OURS[name](*sizes).double()(x, connect())
    torch.testing.assert_close(
        z, getattr(geometric, name)(*sizes).double()(x), rtol=1e-6, atol=1e-6
    )
