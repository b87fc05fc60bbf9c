"""Add-ons on a pretended GPU: what they make there is what they make on the CPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import spgnn
from spgnn import nn as ours
from spgnn.comm import Communicator
from spgnn.testing import run_ranks
from tests.addons.dynamic.test_updates import Changing, models, trained_like
from tests.addons.hetero.test_hetero import BY_RELATION, MODELS, data_for, pair, trained
from tests.graph.test_pretended_gpu import check

# PyG warns of types that no relation ends at.
pytestmark = [
    pytest.mark.filterwarnings("ignore:There exist node types:UserWarning"),
    pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning"),
]


def types(comm: Communicator) -> list[Tensor]:
    """Graphs of several vertex types, with PyG's layers and ours."""
    found: list[Tensor] = []
    for name in MODELS:
        data = data_for("papers", name)
        theirs, mine = pair(data, name)
        graph = spgnn.distribute(data, comm=comm, cover="column")
        aim = graph[graph.node_types[0]]
        mean = partial(aim.mean, mask=aim.train_mask)
        for model, edges in ((mine, graph), (theirs, graph.edge_index_dict)):
            if model is None or (edges is not graph and name not in (*BY_RELATION, "to_hetero")):
                continue
            graph.synchronise(model.to(graph.device))
            call = partial(model, graph.x_dict, edges)
            found.append(torch.tensor(trained(model, call, aim, mean, 2)))
    return found


def updates(comm: Communicator) -> list[Tensor]:
    """Inference, and what an update of the graph reaches."""
    found = []
    changing = Changing(1)
    graph = changing.graph(partition="random", comm=comm)
    kinds = {name: trained_like(name).to(graph.device) for name in models()}
    served = {name: spgnn.Embeddings(model, graph) for name, model in kinds.items()}
    for step, size in enumerate((1, 4)):
        graph.update(**changing.share(changing.batch(size, step), comm.rank, comm.size))
        for name, model in kinds.items():
            found.append(spgnn.infer(model, graph, since=served[name]).clone())
            found.append(spgnn.infer(model, graph).clone())
    return found


def batches(comm: Communicator) -> list[Tensor]:
    """A loader's batches on the device."""
    graph = Changing(1).graph(partition="random", comm=comm)
    torch.manual_seed(0)
    model = ours.GraphSAGE(7, 8, 2, 4).to(comm.device)
    loader = spgnn.NeighborLoader(graph, [4, 3], batch_size=8)
    found = []
    for batch in loader:
        if batch is None:  # of a rank that has no seeds left
            continue
        on = batch.to(comm.device)
        out = model(on.x, on.layers, on.keys)
        out.square().sum().backward()
        found.append(out.detach())
    return found + [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["cpu", "torch"])
def test_types_updates_and_batches(kernels):
    run_ranks(check, 3, [types, updates, batches], kernels, backend="gloo")
