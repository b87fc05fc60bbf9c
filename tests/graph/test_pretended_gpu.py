"""The library on a pretended GPU: what it makes there is what it makes on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spgnn
from experiments.mesh import MeshGraphNet, mesh
from spgnn import nn as ours
from spgnn.comm import Communicator, connect
from spgnn.testing import run_ranks
from tests.nn.test_layers import CASES, distributed, doubled, graph_data, made, weights
from tests.pretended_gpu import GPU, late_group, pretended_gpu

pytestmark = pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning")


def labelled(comm: Communicator) -> spgnn.DistGraph:
    """A graph of 60 vertices with labels."""
    draw = torch.Generator().manual_seed(2)
    data = SimpleNamespace(
        num_nodes=60,
        x=torch.randn(60, 7, generator=draw),
        edge_index=torch.randint(0, 60, (2, 400), generator=draw).unique(dim=1),
        y=torch.randint(0, 4, (60,), generator=draw),
        train_mask=torch.arange(60) % 2 == 0,
        val_mask=torch.arange(60) % 4 == 1,
        test_mask=torch.arange(60) % 4 == 3,
    )
    return spgnn.distribute(data, partition="random", comm=comm)


def losses_of(model: torch.nn.Module, loss: Callable[[], Tensor], epochs: int = 2) -> list[Tensor]:
    """Losses, and the parameters at the end."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for _ in range(epochs):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        found.append(value.detach())
    return found + [p.detach() for p in model.parameters()]


def layers(comm: Communicator) -> list[Tensor]:
    """All layers: results, and the gradients of their features and parameters."""
    found = []
    graphs: dict[tuple[str, int], spgnn.DistGraph] = {}
    for case in CASES:
        key = case.edges, 8 if case.given[:1] == (8,) else 6
        if key not in graphs:
            graphs[key] = distributed(graph_data(*key), comm).to(torch.float64)
        graph = graphs[key]
        layer = made(getattr(ours, case.name), case)
        layer.load_state_dict(weights(layer))
        layer = layer.double().to(graph.device)
        x = graph.x.clone().requires_grad_()
        given = [x, x * 2] if case.name == "GCN2Conv" else [x]
        more = [doubled(graph.edge_attr)] if case.edges in ("types", "attr") else []
        z = layer(*given, graph, *more)
        z.square().sum().backward()
        found += [z.detach(), x.grad, *(p.grad for p in layer.parameters())]
    return [t for t in found if t is not None]


def edges(comm: Communicator) -> list[Tensor]:
    """Edges that learn."""
    torch.manual_seed(0)
    model = MeshGraphNet(8, 2)
    graph = spgnn.distribute(mesh(120), comm=comm, model=model.to(comm.device))
    return losses_of(model, lambda: graph.mean((model(graph.x, graph) - graph.y).square()[:, 0]))


def pyg(comm: Communicator) -> list[Tensor]:
    """A model of PyG's, by edge_index."""
    from torch_geometric.nn import GAT, GCN, GraphSAGE

    found = []
    graph = labelled(comm)
    for kind, options in ((GCN, {}), (GraphSAGE, {"aggr": "max"}), (GAT, {"heads": 2})):
        torch.manual_seed(0)
        model = kind(7, 8, 2, 4, **options).to(graph.device)
        graph.synchronise(model)

        def loss(model: Any = model) -> Tensor:
            out = model(graph.x, graph.edge_index)
            return graph.mean(torch.nn.functional.cross_entropy(out, graph.y, reduction="none"))

        found += losses_of(model, loss)
    return found


def halos(comm: Communicator) -> list[Tensor]:
    """A halo of anyone's edges, with derivatives."""
    owner = np.arange(40) % comm.size
    index = np.random.default_rng(3).integers(0, 40, (2, 200))
    mine = torch.from_numpy(index[:, owner[index[1]] == comm.rank]).to(comm.device)
    halo = spgnn.Halo.build(mine, owner, comm)
    x = torch.randn(halo.own, 3, generator=torch.Generator().manual_seed(comm.rank))
    x = x.to(comm.device).requires_grad_()
    rows = halo(x)
    (grad,) = torch.autograd.grad(rows.square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert x.grad is not None
    return [rows.detach(), grad.detach(), x.grad, halo.adjoint(rows.detach())]


def trainer(comm: Communicator) -> list[Tensor]:
    """A trainer, of a model whose width is found; one that is elsewhere is refused."""
    graph = labelled(comm)
    torch.manual_seed(0)
    model = ours.GCN(7, 8, num_layers=2, out_channels=4, norm="batch")
    if comm.device.type == "cuda":
        with pytest.raises(spgnn.InputError, match=r"is on cpu, the graph on cuda:0: use model.to"):
            spgnn.Trainer(model, graph)
    trainer = spgnn.Trainer(model.to(graph.device), graph)
    trainer.fit(epochs=3)
    return [torch.tensor([r["loss"] for r in trainer.history]), *model.state_dict().values()]


Scenario = Callable[[Communicator], list[Tensor]]
FAST: list[Scenario] = [halos, trainer]
SLOW: list[Scenario] = [layers, edges, pyg]


def check(rank: int, scenarios: list[Scenario], kernels: str) -> None:
    comm = connect()
    host = comm.job.device
    for scenario in scenarios:
        expected = scenario(comm)
        with pretended_gpu(kernels), late_group():
            comm.job.device = GPU
            found = [t.cpu() for t in scenario(comm)]
        comm.job.device = host
        assert len(found) == len(expected) > 0
        how = {"rtol": 1e-6, "atol": 1e-6} if kernels == "cpu" else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(found, expected, **how)


def test_halos_and_a_trainer():
    run_ranks(check, 2, FAST, "cpu", backend="gloo")


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["cpu", "torch"])
def test_all_of_the_library(kernels):
    run_ranks(check, 3, [*FAST, *SLOW], kernels, backend="gloo")
