"""The library on a pretended GPU: what it makes there is what it makes on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import spgnn
from spgnn import nn as ours
from spgnn.comm import Communicator, connect
from spgnn.testing import run_ranks
from tests.pretended_gpu import GPU, late_group, pretended_gpu


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
SCENARIOS: list[Scenario] = [halos, trainer]


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


@pytest.mark.parametrize("kernels", ["cpu", pytest.param("torch", marks=pytest.mark.slow)])
def test_halos_and_a_trainer(kernels):
    """Layers and modules of PyG are trained there in tests/support."""
    run_ranks(check, 2, SCENARIOS, kernels, backend="gloo")
