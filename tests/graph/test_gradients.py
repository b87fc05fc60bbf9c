"""Gradients that somebody asks for, rather than has added up: first and higher ones, by any way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import spgnn
import spgnn.nn as snn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.testing import run_ranks

N, RANKS = 11, 3


class Convolution(nn.Module):
    """Sums over neighbours, twice, as any model for one process has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        for linear in (self.first, self.second):
            x = torch.tanh(linear(x))
            x = x + torch.zeros_like(x).index_add(0, target, x[source])
        return x


def drawn() -> tuple[Any, nn.Module]:
    """A graph and a model, in double precision, the same on every rank."""
    torch.manual_seed(0)
    edges, x = torch.randint(N, (2, 30)), torch.randn(N, 3, dtype=torch.float64)
    data = SimpleNamespace(x=x, edge_index=edges, num_nodes=N, y=torch.randint(2, (N,)))
    return data, Convolution().double()


def losses(graph: Any, out: Tensor) -> Tensor:
    """The mean loss of all vertices, of one process or of all ranks."""
    each = F.cross_entropy(out, graph.y, reduction="none")
    return graph.mean(each) if hasattr(graph, "mean") else each.mean()


def penalty(graph: Any, model: nn.Module) -> Tensor:
    loss = losses(graph, model(graph.x, graph.edge_index))
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(g.square().sum() for g in gradients)


def of_inputs(graph: Any, model: nn.Module) -> Tensor:
    """A loss made of the gradient of x, which all ranks' losses have added to."""
    x = graph.x.detach().requires_grad_()
    loss = losses(graph, model(x, graph.edge_index))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    each = gradient.square().sum(1) / getattr(getattr(graph, "comm", None), "size", 1) ** 2
    return loss + (graph.sum(each) if hasattr(graph, "sum") else each.sum())


def meta(graph: Any, model: nn.Module) -> Tensor:
    """The loss after two steps of gradient descent."""
    weights = dict(model.named_parameters())
    tied = getattr(graph, "replicated", lambda w: w)
    for _ in range(2):
        used = {name: tied(w) for name, w in weights.items()}
        loss = losses(graph, functional_call(model, used, (graph.x, graph.edge_index)))
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {k: w - 0.5 * g for (k, w), g in zip(weights.items(), found, strict=True)}
    used = {name: tied(w) for name, w in weights.items()}
    return losses(graph, functional_call(model, used, (graph.x, graph.edge_index)))


def checkpointed(graph: Any, model: nn.Module) -> Tensor:
    return losses(graph, checkpoint(model, graph.x, graph.edge_index, use_reentrant=False))


WAYS = [penalty, of_inputs, meta, checkpointed]


def asked(graph: Any, model: nn.Module) -> list[list[Tensor]]:
    """Gradients of every loss by grad, by grad that goes on, by backward, and by both of them."""
    found = []
    for way in WAYS:
        parameters = list(model.parameters())
        for further in (False, True):
            gradients = torch.autograd.grad(way(graph, model), parameters, create_graph=further)
            found.append([g.detach().clone() for g in gradients])
            model.zero_grad()
            way(graph, model).backward(create_graph=further)
            found.append([p.grad.detach().clone() for p in parameters])
            way(graph, model).backward(inputs=parameters[:1])
            found.append([p.grad.detach().clone() for p in parameters])
    model.zero_grad(set_to_none=True)
    loss = losses(graph, model(graph.x, graph.edge_index))
    found.append(list(torch.autograd.grad(loss, parameters[0])))
    assert parameters[0].grad is None
    return found


def check_asked(rank: int, averages: bool) -> None:
    data, model = drawn()
    expected = asked(data, model)
    graph = spgnn.distribute(data if rank == 0 else None)
    graph.to(torch.float64)
    (graph.synchronise if averages else graph.replicate)(model)
    graph.replicate(model)  # once more: hooks are there once
    if averages:
        torch.testing.assert_close(asked(graph, model), expected, rtol=1e-9, atol=1e-12)
        return
    for way in (penalty, meta):  # what backward adds up is averaged by hand
        gradients = torch.autograd.grad(way(graph, model), list(model.parameters()))
        way(graph, model).backward()
        graph.average_gradients(model)
        actual = tuple(p.grad for p in model.parameters())
        torch.testing.assert_close(actual, gradients, rtol=1e-9, atol=1e-12)
        model.zero_grad()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("averages", [True, False])
def test_gradients_are_those_of_one_process_at_every_order(averages):
    run_ranks(check_asked, RANKS, averages)


def check_refused(rank: int) -> None:
    data, model = drawn()
    graph = spgnn.distribute(data, model=model.float())
    graph.x = graph.x.float()
    out = model(graph.x, graph.edge_index)
    wanted = model.first.weight if rank == 0 else model.first.bias
    with pytest.raises(InputError, match=r"ranks do not agree on parameters of torch\.autograd"):
        torch.autograd.grad(losses(graph, out), wanted, retain_graph=True)
    hook = graph.x.requires_grad_().register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        losses(graph, model(graph.x, graph.edge_index)).backward()
    hook.remove()
    model.zero_grad()
    losses(graph, model(graph.x, graph.edge_index)).backward()
    total = graph.sum(model.first.weight.grad.sum().reshape(()))
    torch.testing.assert_close(total, RANKS * model.first.weight.grad.sum())


def test_a_backward_that_failed_leaves_the_next_one_right():
    run_ranks(check_refused, RANKS)


def check_masked(rank: int) -> None:
    """Labels that are unknown outside the mask are of no account, and in no gradient."""
    data, model = drawn()
    mask = torch.arange(N) % 3 > 0
    nan, unknown = float("nan"), torch.where(mask, data.y, -1)
    for y, loss in (
        (torch.where(mask, torch.arange(N).double(), nan)[:, None].repeat(1, 2), F.mse_loss),
        (unknown, F.cross_entropy),
    ):
        data.y, data.train_mask = y, mask
        model.zero_grad()
        loss(model(data.x, data.edge_index)[mask], y[mask]).backward()
        expected = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        graph = spgnn.distribute(data if rank == 0 else None, partition="block")
        graph.to(torch.float64)
        graph.replicate(model)
        out, own = model(graph.x, graph.edge_index), graph.train_mask
        each = loss(out[own], graph.y[own], reduction="none")
        graph.mean(each, own).mean().backward()
        graph.average_gradients(model)
        actual = [p.grad for p in model.parameters()]
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match=r"the tensor has 0 rows; the mask has \d"):
        graph.sum(each[:0], own)


def test_masked_losses_with_unknown_labels_outside():
    run_ranks(check_masked, RANKS)


CLASSES = torch.tensor([1.0, 2, 0.5, 3])


def mean_losses(out: Tensor, data: Any) -> dict[str, Callable[[], Tensor]]:
    """Losses of torch that average by themselves, each in a form that it may have."""
    mask = data.train_mask
    o, y, p = out[mask], data.y[mask], data.p[mask]
    some, signs = torch.where(p[:, 0] < 0.3, -100, y), (p * 4).round() % 2 * 2 - 1
    return {
        "plain": lambda: F.cross_entropy(o, y),
        "module": lambda: nn.CrossEntropyLoss(CLASSES, ignore_index=2)(o, y),
        "smooth": lambda: F.cross_entropy(o, some, weight=CLASSES, label_smoothing=0.1),
        "shares": lambda: F.cross_entropy(o, p, weight=CLASSES),
        "nll": lambda: F.nll_loss(o.log_softmax(-1), some, weight=CLASSES),
        "mse": lambda: F.mse_loss(out, data.p) + 0.1 * F.l1_loss(o, p),
        "mse weight": lambda: F.mse_loss(o, p, weight=p),
        "l1 weight": lambda: F.l1_loss(o, p, weight=p),
        "huber": lambda: F.huber_loss(o, p),
        "bce": lambda: F.binary_cross_entropy_with_logits(o, p, pos_weight=CLASSES),
        "poisson": lambda: F.poisson_nll_loss(o, p),
        "margin": lambda: F.multi_margin_loss(o, y, weight=CLASSES),
        "cosine": lambda: F.cosine_embedding_loss(o, p, signs[:, 0]),
        "labels": lambda: F.multilabel_soft_margin_loss(o, (signs > 0).float(), weight=CLASSES),
        "distilled": lambda: F.kl_div(o.log_softmax(-1), p, reduction="batchmean"),
        "largest": lambda: F.mse_loss(o.max(dim=1).values, p[:, 0]),
        "by rows": lambda: F.cross_entropy(F.normalize(1 - o.view(len(o), 2, 2).flatten(1)), y),
        "joined": lambda: F.cross_entropy(torch.cat((o, o)), torch.cat((y, y))),
    }


def check_mean_losses(rank: int) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    draw = torch.Generator().manual_seed(0)
    data = pytest.importorskip("torch_geometric.data").Data(
        x=torch.randn(40, 6, generator=draw),
        edge_index=torch.randint(0, 40, (2, 150), generator=draw),
        y=torch.randint(0, 4, (40,), generator=draw),
        p=torch.rand(40, 4, generator=draw).softmax(-1),
        train_mask=torch.rand(40, generator=draw) < 0.4,
    )
    torch.manual_seed(1)
    alone = geometric.GraphSAGE(6, 8, 2, 4)
    model = copy.deepcopy(alone)
    graph = spgnn.distribute(data if rank == 0 else None, model=model)
    for name in mean_losses(data.p, data):
        values = []
        for module, given in ((alone, data), (model, graph)):
            module.zero_grad()
            loss = mean_losses(module(given.x, given.edge_index), given)[name]()
            loss.backward()
            values.append([loss.detach(), *(p.grad for p in module.parameters())])
        torch.testing.assert_close(*reversed(values), msg=name, atol=1e-5, rtol=1e-4)
    assert type(copy.deepcopy(model)(graph.x, graph.edge_index)) is Tensor

    def refused(loss: Callable[[Tensor], Tensor]) -> None:
        fresh = graph.synchronise(geometric.GraphSAGE(6, 8, 2, 4))
        out = fresh(graph.x, graph.edge_index)
        assert f"{out.detach().mean():.1f}".count(".") == 1
        with pytest.raises(InputError, match=r"a loss that is .* take graph\.mean.*pairs"):
            loss(out).backward()
        fresh.eval()  # gradients of own rows are shares, each its own
        fresh(graph.x, graph.edge_index).square().sum().backward()

    refused(lambda out: (out - graph.p).square().mean())
    refused(lambda out: F.cross_entropy(out, graph.y, reduction="none").mean())
    # What combines the rows of a rank is no row of the whole graph, whoever takes its mean.
    refused(lambda out: F.cross_entropy(out @ out.T, torch.arange(len(out))))
    refused(lambda out: F.cross_entropy(out - out.mean(0), graph.y))
    refused(lambda out: F.cross_entropy(out, graph.y) + F.mse_loss(out.T @ out, torch.eye(4)))
    refused(lambda out: F.mse_loss(out.mean(0), torch.zeros(4)))
    refused(lambda out: F.mse_loss(geometric.global_mean_pool(out, None), torch.zeros(1, 4)))
    refused(lambda out: F.cross_entropy(F.batch_norm(out, None, None, training=True), graph.y))
    fresh = graph.synchronise(geometric.GraphSAGE(6, 8, 2, 4))
    loss = F.cross_entropy(nn.Linear(4, 4)(fresh(graph.x, graph.edge_index)), graph.y)
    with pytest.warns(UserWarning, match=r"a parameter \[4.* no graph was given"):
        loss.backward()
    whole, x = (one.x.detach().clone().requires_grad_() for one in (data, graph))
    of_one, out = alone(whole, data.edge_index), model.train()(x, graph.edge_index)
    for mean in (out.mean(), 3 - out.mean(0).sum()):
        with pytest.raises(InputError, match=r"^torch\.autograd\.grad of a mean that each rank"):
            torch.autograd.grad(mean, x)
    (expected,) = torch.autograd.grad(of_one.square().mean(), whole)
    (gradient,) = torch.autograd.grad(out.square().mean() * (len(out) / 40), x, retain_graph=True)
    torch.testing.assert_close(gradient, expected[graph.vertex_ids])
    loss = graph.mean(F.cross_entropy(out, graph.y, reduction="none"))
    loss = loss + graph.sum(F.cross_entropy(out, graph.y, reduction="sum")) / 40
    assert type(loss) is Tensor
    loss.backward()


@pytest.mark.filterwarnings("ignore")
def test_mean_losses_of_a_synchronised_model_are_over_all_ranks():
    run_ranks(check_mean_losses, 3)


def curvature(layer: nn.Module, x: Tensor, *graph: Any, rows: Any = slice(None)) -> list[Tensor]:
    """First to third derivatives, along fixed directions, of a function far from linear."""
    draw = torch.Generator().manual_seed(3)
    leaves = [x, *(p for _, p in sorted(layer.named_parameters()))]
    shapes = [(N, x.shape[1]), *(p.shape for p in leaves[1:])]
    along = [torch.randn(shape, generator=draw, dtype=x.dtype) for shape in shapes]
    along[0], result = along[0][rows], [torch.sin(layer(x, *graph)).pow(3).sum()]
    for _ in range(3):
        pairs = zip(result[-len(leaves) :], along, strict=False)
        total = result[0] if len(result) == 1 else sum((one * way).sum() for one, way in pairs)
        result += torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
    return [each.detach() for each in result[1:]]


def check_attention(rank: int) -> None:
    """In every scheme, those of PyG's layers on one process."""
    geometric, comm, (data, _) = pytest.importorskip("torch_geometric.nn"), connect(), drawn()
    data.edge_index = torch.unique(data.edge_index, dim=1)
    data.edge_attr = torch.randn(data.edge_index.shape[1], 2, dtype=torch.float64)
    ways = [{}, {}, {}, {"relays": True}, {"cover": "minimum"}, {"algo": "vertex-cut"}]
    ways += [{"algo": "feature", "c": comm.size}, {"algo": "1.5d", "c": 2}] if comm.size > 1 else []
    layers = [
        ("GATv2Conv", {"edge_dim": 2}),
        ("GATConv", {"heads": 2, "residual": True}),
        ("GATv2Conv", {"heads": 3, "share_weights": True, "concat": False}),
    ]
    for number, way in enumerate(ways):
        name, options = layers[1 + number % 2 if way else number]
        attr = (data.edge_attr,) if "edge_dim" in options else ()
        torch.manual_seed(0)
        whole = getattr(geometric, name)(3, 4, **options).double()
        layer = getattr(snn, name)(3, 4, **options).double()
        layer.load_state_dict(whole.state_dict())
        graph = spgnn.distribute(data if rank == 0 else None, **way).to(torch.float64)
        expected = curvature(whole, data.x.clone().requires_grad_(), data.edge_index, *attr)
        ids = graph.vertex_ids
        results = curvature(layer, graph.x.detach().requires_grad_(), graph, rows=ids)
        for place, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
            of_rows = place % (len(results) // 3) == 0
            if not of_rows:
                comm.all_reduce(ours).wait()
            reference = theirs[ids] if of_rows else theirs
            torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    minimum, codec = {"cover": "minimum"}, {"codec": {"bits": 8}}
    for why, way in (("", {}), ("after graph.release", minimum), ("without a codec", codec)):
        graph = spgnn.distribute(data if rank == 0 else None, **way).to(torch.float64)
        graph.next_epoch()
        x = graph.x.detach().requires_grad_()
        loss = layer(x, graph).sum()
        graph.release()
        with pytest.raises(InputError, match=why) if why else nullcontext():
            torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_attention_has_derivatives_of_every_order(ranks):
    run_ranks(check_attention, ranks)
