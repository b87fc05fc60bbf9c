"""Codecs under other people's models: approximate in training, exact in evaluation."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spgnn
from spgnn import InputError
from spgnn.exchange import Codec
from spgnn.graph.distgraph import DistGraph
from spgnn.testing import run_ranks
from tests.graph.coded import CLASSES, CODECS, WIDTH, graph_on, problem
from tests.graph.pyg_like import N

EPOCHS = 5
KINDS = ("summed", "halos", "sym", "max")
EXACT = ({"bits": 32, "delay": 0, "sampling": 1, "fresh": 0}, Codec())


class Summed(nn.Module):
    """What a convolution of one x does: looks rows up at the sources, adds up at destinations."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * inputs, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index[0], edge_index[1]
        degree = torch.zeros(len(x)).index_add(0, col, torch.ones(len(col))).clamp(min=1)
        weight = degree.rsqrt()[row] * degree.rsqrt()[col]  # of sources: fetched, and exact
        out = torch.zeros_like(x).index_add(0, col, x[row] * weight[:, None])
        return self.lin(torch.cat((out, x), 1))


class Halos(nn.Module):
    """The same by hand, on a halo that is given."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * inputs, outputs)

    def forward(self, x: Tensor, graph: DistGraph) -> Tensor:
        row, col = graph.local_edge_index
        out = torch.zeros_like(x).index_add(0, col, graph.halo(x)[row])
        return self.lin(torch.cat((out, x), 1))


class Layers(nn.Module):
    """Two convolutions, each called as it wants to be."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        make = {
            "summed": Summed,
            "halos": Halos,
            "sym": lambda f, g: spgnn.nn.GCNConv(f, g, normalize=True),
            "max": lambda f, g: spgnn.nn.SAGEConv(f, g, aggr="max"),
        }[kind]
        self.first, self.second = make(WIDTH, 8), make(8, CLASSES)
        self.kind = kind

    def forward(self, graph: DistGraph) -> Tensor:
        looks = graph.edge_index if self.kind == "summed" else graph
        return self.second(self.first(graph.x, looks).relu(), looks)


def loss_of(model: nn.Module, graph: DistGraph) -> Tensor:
    return graph.mean(F.cross_entropy(model(graph), graph.y, reduction="none"), graph.train_mask)


def trained(model: nn.Module, graph: DistGraph, epochs: int = EPOCHS, *, rate: float = 0.1):
    """Losses of training, and of evaluation in each epoch; the optimiser begins anew."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses, judged = [], []
    for _ in range(epochs):
        graph.next_epoch()
        model.train()
        optimizer.zero_grad()
        loss = loss_of(model, graph)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            judged.append(loss_of(model, graph).item())
    return losses, judged


def check_bytes(rank: int) -> None:
    """The ledger counts what codecs say, epoch by epoch."""
    for kind, (name, codec) in product(("summed", "sym"), CODECS.items()):
        model = Layers(kind)
        graph = graph_on(codec, model)
        loss_of(model.eval(), graph)  # exact; what is built once is built now
        ledger = graph.comm.ledger
        # Of one number a vertex, hence exact, but of rows nonetheless: degrees.
        beside = 2 * 4 * graph.A.volume.send if kind == "summed" else 0
        for _ in range(EPOCHS):
            graph.next_epoch()
            before = ledger.copy()
            loss_of(model.train(), graph).backward()
            moved, said = ledger.since(before).of("alltoall"), graph.codec_traffic()
            assert moved.sent_bytes == said.sent_bytes + beside, name
            assert moved.received_bytes - said.received_bytes >= 0, name
        graph.codec_state()  # nothing is under way any more


@pytest.mark.parametrize("ranks", [1, 3])
def test_bytes_are_those_that_wires_say(ranks):
    run_ranks(check_bytes, ranks)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def check_all_modes(rank: int) -> None:
    for kind in KINDS:
        check_modes(kind)


def check_modes(kind: str) -> None:
    """Approximate where a model is trained; bit-equal to exact everywhere else."""
    model, plain = Layers(kind), graph_on(None)
    right, expected = loss_of(model, plain), gradients(model, loss_of(model, plain))
    for codec in EXACT:
        same = graph_on(codec)
        same.next_epoch()
        loss = loss_of(model, same)
        assert torch.equal(loss, right), kind
        assert all(map(torch.equal, gradients(model, loss), expected)), kind
    graph = graph_on({"bits": 4})
    if kind != "summed" or graph.comm.size > 1:  # alone, it looks rows up, and needs no halo
        with pytest.raises(InputError, match=r"which epoch it is: call graph\.next_epoch\(\)"):
            loss_of(model, graph)
    assert graph.next_epoch() == 0
    loss = loss_of(model, graph)
    assert graph.comm.size == 1 or 0 < abs(loss - right).item() < 0.2
    made = gradients(model, loss)
    same = [torch.equal(a, b) for a, b in zip(made, expected, strict=True)]
    assert all(same) == (graph.comm.size == 1)
    with graph.exact():
        loss = loss_of(model, graph)
    assert torch.equal(loss, right)
    # What was recorded as exact is so in backward, too, although that is outside.
    assert all(map(torch.equal, gradients(model, loss), expected))
    with torch.no_grad():
        assert torch.equal(loss_of(model, graph), right)
    # Rows of a single number, and integers, are ids and degrees.
    for rows in (graph.vertex_ids, graph.vertex_ids[:, None].expand(-1, 3), graph.x[:, :1]):
        assert torch.equal(graph.halo(rows), plain.halo(rows))
    graph.replicate(model.eval())
    assert torch.equal(loss_of(model, graph), right)
    assert graph.comm.size == 1 or not torch.equal(loss_of(model.train(), graph), right)


@pytest.mark.parametrize("ranks", [1, 3])
def test_only_training_is_approximate(ranks):
    run_ranks(check_all_modes, ranks)


def check_moved_and_compiled(rank: int) -> None:
    """On a device codecs begin anew; compiled products do not know of epochs, and are exact."""
    graph, plain, model = graph_on({"bits": 4, "delay": 1}), graph_on(None), Layers("sym")
    trained(model, graph, 2)
    graph.to("cpu")
    right = loss_of(model, plain)
    with torch.no_grad():
        assert torch.equal(loss_of(model, graph), right)
    graph.next_epoch()
    assert not torch.equal(loss_of(model.train(), graph), right)
    H = torch.randn(graph.own_rows, 4).requires_grad_()
    A = graph.matrix("sym")
    compiled = torch.compile(lambda X: spgnn.product(A, X), backend="eager", fullgraph=True)
    with graph.exact():
        exact = A @ H
    assert torch.equal(compiled(H), exact)
    assert not torch.equal(A @ H, exact)
    graph.codec_state()


def test_moved_and_compiled():
    run_ranks(check_moved_and_compiled, 2)


def check_errors(rank: int) -> None:
    """What codecs lost of the halos of two layers, forward and backward: a row's steps are 255."""
    graph = graph_on({"bits": 8})
    trained(Layers("halos"), graph, 2)
    told = graph.codec_errors()
    graph.comm.check_agreement("errors", errors=repr(told))
    assert list(told) == ["none"]
    named = [(each["product"], each["direction"]) for each in told["none"]]
    # Features need no gradient.
    assert named == [(0, "forward"), (1, "forward"), (1, "adjoint")]
    assert all(set(each["by"]) == {"rounding"} for each in told["none"])
    assert all(0 < each["error"] < 0.02 for each in told["none"])
    assert graph_on(None).codec_errors() == {}


def test_errors_of_each_product():
    run_ranks(check_errors, 2)


def check_adjoint(rank: int) -> None:
    """A halo and its gradient have one sample, ⟨halo(H), G⟩ = ⟨H, haloᵀ(G)⟩; both are unbiased."""
    graph = graph_on({"sampling": 0.5, "exact_means": False})
    draw = torch.Generator().manual_seed(rank)
    H = torch.randn(graph.own_rows, 4, dtype=torch.float64, generator=draw).requires_grad_()
    G = torch.randn(graph.halo_rows, 4, dtype=torch.float64, generator=draw)
    for _ in range(3):
        graph.next_epoch()
        products = (graph.halo(H), graph.halo_sum(G.requires_grad_()))
        for found, operand, other in zip(products, (H, G), (G, H), strict=True):
            (back,) = torch.autograd.grad(found, operand, other.detach())
            pair = torch.stack(((found * other).sum(), (back * operand).sum())).detach()
            graph.comm.all_reduce(pair).wait()
            torch.testing.assert_close(pair[0], pair[1], rtol=1e-12, atol=1e-12)
    total = torch.zeros_like(graph.halo(H)).detach()
    for _ in range(400):
        graph.next_epoch()
        total += graph.halo(H).detach()
    with graph.exact():
        exact = graph.halo(H).detach()
    # A row is 0 or twice itself: the mean of 400 is off by less than five standard deviations.
    assert bool(((total / 400 - exact).abs() <= 5 / 20 * exact.abs() + 1e-12).all())


def test_samples_of_halos_are_unbiased_and_so_are_their_gradients():
    run_ranks(check_adjoint, 3)


REFUSED: list[tuple[Any, str]] = [
    ("8", r"codec must be a spgnn\.exchange\.Codec, or a mapping as .* got str"),
    ({"bit": 8}, r"codec bit: choose one of bits, .*did you mean 'bits'"),
    ({"bits": 3}, "bits must be one of 32, 16, 8, 4, 2, 1, got 3"),
    ({"bits": "8"}, r"bits must be a number, or pairs of \(epoch, number\), got '8'"),
    ({"bits": ((0, 8), (5, 4), (5, 2))}, r"the epochs of bits must rise from 0, got \[0, 5, 5\]"),
    ({"bits": ((3, 8),)}, r"the epochs of bits must rise from 0, got \[3\]"),
    ({"bits": (8, 4)}, r"bits must be a number, or pairs of \(epoch, number\), got 8"),
    ({"delay": -1}, "delay must be an integer of at least 0"),
    ({"bins": 2}, "bins needs a delay of one epoch or more"),
    ({"smoothing": 1.0, "delay": 1}, r"smoothing must be in \[0, 1\), got 1.0"),
    ({"bins": None, "delay": 2}, "bins must be an integer of at least 1, got NoneType None"),
    ({"feedback": "no", "bits": 4}, "feedback must be True or False, got 'no'"),
    ({"exact_means": True}, "exact_means needs rows that are late, fewer or shorter"),
    ({1: 8}, "codec 1: choose one of bits, "),
    (Codec(delay=-1), "delay must be an integer of at least 0, got int -1"),
    ({"feedback": True}, "feedback needs 16 bits or fewer"),
    ({"sampling": 0}, r"sampling must be in \(0, 1\], got 0.0; to send nothing, delay it for ever"),
    ({"bits": 8, "exact_last": 3}, r"exact_last needs a last epoch: use `with graph\.exact\(\):`"),
]


def check_refused(rank: int) -> None:
    data = problem()
    for codec, why in REFUSED:
        with pytest.raises(InputError, match=why):
            spgnn.distribute(data, codec=codec)
    with pytest.raises(InputError, match=r"pairs of \(epoch, number\): Codec\.of "):
        Codec(bits=8)  # type: ignore[arg-type]
    bits = {"bits": 8}
    with pytest.raises(InputError, match="a plan prices rows as they are"):
        spgnn.distribute(data, codec=bits, plan="auto")
    with pytest.raises(InputError, match="exchange='sparsity-aware': rows, not whole block rows"):
        spgnn.distribute(data, codec=bits, exchange="oblivious")
    with pytest.raises(InputError, match="do not agree on codec of distribute"):
        spgnn.distribute(data, codec=bits if rank else None)
    graph = graph_on(bits)
    if rank:
        graph._codecs.policy.epoch = 4
    with pytest.raises(InputError, match=r"do not agree on epoch of graph\.next_epoch"):
        graph.next_epoch()


def test_refusals_are_one_line_on_all_ranks():
    run_ranks(check_refused, 2)


def check_states(rank: int) -> None:
    graph = graph_on({"delay": 1})
    trained(Layers("sym"), graph, 2)
    state = graph.codec_state()
    with pytest.raises(InputError, match=r"load_codec_state takes what graph\.codec_state"):
        graph.load_codec_state({} if rank else state)
    other = graph_on({"delay": 1}, partition=np.arange(N) % graph.comm.size)
    for wrong in (other, graph_on({"delay": 2}), graph_on(None)):
        with pytest.raises(InputError, match=r'this state of matrix\("sym"\) is of another rank'):
            wrong.load_codec_state(state)
    assert int(graph_on(None).codec_state()["epoch"]) == -1


def test_a_state_belongs_to_its_partition_and_wires():
    run_ranks(check_states, 2)


def check_modes_agree(rank: int) -> None:
    graph = graph_on({"bits": 8})
    graph.next_epoch()
    with torch.set_grad_enabled(rank == 0), pytest.raises(InputError, match="do not agree on"):
        graph.halo(graph.x)


def test_ranks_have_to_agree_on_what_is_exact():
    run_ranks(check_modes_agree, 2)
