"""Train every convolution: by PyG alone, and on ranks; what comes out is compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import spgnn
from spgnn.graph.distgraph import DistGraph
from tests.graph.convolutions import Convolution, Given, N, convolutions, data

TOLERANCE = 1e-4  # relative, in float32


@dataclass(frozen=True)
class Course:
    """Losses of some epochs, and the gradients of the last by parameter; or what went wrong."""

    losses: list[float]
    gradients: dict[str, np.ndarray]
    error: str = ""


def train(
    conv: nn.Module,
    call: Callable[[nn.Module], Tensor],
    mean: Callable[[Tensor], Tensor],
    ids: Tensor,
    average: Callable[[nn.Module], None],
    epochs: int,
) -> Course:
    """Fit random numbers on the training vertices."""
    target = torch.randn(N, 64, generator=torch.Generator().manual_seed(1))[ids]
    parameters = list(conv.parameters())
    # Convolutions without parameters are judged by the gradient of what they are given.
    optimizer = torch.optim.Adam(parameters, lr=0.01) if parameters else None
    losses = []
    for _ in range(epochs):
        out = call(conv).flatten(1)
        loss = mean((out - target[:, : out.shape[1]]).square().mean(1))
        if optimizer is None:
            return Course([float(loss)], {})
        optimizer.zero_grad()
        loss.backward()
        average(conv)
        gradients = {
            name: p.grad.numpy().copy() for name, p in conv.named_parameters() if p.grad is not None
        }
        optimizer.step()
        losses.append(float(loss))
    return Course(losses, gradients)


def made(one: Convolution) -> nn.Module:
    torch.manual_seed(0)
    assert one.make is not None
    return one.make()


def by_pyg(one: Convolution, epochs: int) -> Course:
    """One process, nothing of spgnn."""
    on, mask = data(), data().train_mask
    given = Given(on.x, on.edge_index, on.edge_attr, on.pos, on.normal, on.kind)
    call, mean = lambda conv: one.call(conv, given), lambda t: t[mask].mean()
    return train(made(one), call, mean, torch.arange(N), lambda conv: None, epochs)


def on_ranks(one: Convolution, graph: DistGraph, epochs: int, *, pairs: bool) -> Course:
    """(Sources, destinations), whose halo is fetched in every epoch; or one x and edges."""
    rows = graph.attributes

    def call(conv: nn.Module) -> Tensor:
        x, pos, normal = (
            (graph.halo(t), t) if pairs else t for t in (graph.x, rows["pos"], rows["normal"])
        )
        edges = graph.edge_index, graph.edge_attr
        return one.call(conv, Given(x, *edges, pos, normal, rows["kind"]))

    try:
        conv, mean = graph.replicate(made(one)), lambda t: graph.mean(t, graph.train_mask)
        return train(conv, call, mean, graph.vertex_ids, graph.average_gradients, epochs)
    except Exception as error:  # the same on all ranks, or the job hangs up
        return Course([], {}, f"{type(error).__name__}: {error}")


def all_on_ranks(rank: int, epochs: int) -> dict[str, tuple[Course | None, Course | None]]:
    """Each convolution in both ways, on every rank."""
    warnings.simplefilter("ignore")
    graph = spgnn.distribute(data() if rank == 0 else None, imbalance=0.3)
    return {
        one.name: (
            None if one.pair else on_ranks(one, graph, epochs, pairs=True),
            None if one.alone else on_ranks(one, graph, epochs, pairs=False),
        )
        for one in convolutions()
    }


def difference(found: Course, expected: Course) -> float:
    """The largest relative error of losses, and of gradients as vectors.

    A gradient that is rounding alone is compared with the others: nothing of the loss depends on
    its parameter. What rounding makes of it is some ten millionths of theirs.
    """
    if found.error or len(found.losses) != len(expected.losses):
        return float("inf")
    error = np.abs(np.subtract(found.losses, expected.losses)) / np.abs(expected.losses)
    worst = float(error.max())
    if set(found.gradients) != set(expected.gradients):
        return float("inf")
    norms = {name: float(np.linalg.norm(g)) for name, g in expected.gradients.items()}
    largest = max(norms.values(), default=0.0)
    for name, g in found.gradients.items():
        off = float(np.linalg.norm(g - expected.gradients[name]))
        worst = max(worst, off / max(norms[name], 1e-2 * largest))
    return worst
