"""Aggregations with numbers of edges on ranks, and edges that learn, as on one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spgnn
import spgnn.nn as ours
from experiments.mesh import MeshGraphNet, mesh
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data.npz import write_npz
from spgnn.errors import InputError
from spgnn.graph.block import Block
from spgnn.graph.protocol import Aggregation, EdgeOperand
from spgnn.kernels import edge_spmm
from spgnn.kernels.edge_spmm import EDGE_OPS, EDGE_REDUCTIONS
from spgnn.testing import run_ranks
from tests.training import run

F = 4


def numbers_of(ids: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers of edges, a function of the old numbers of both ends [edges, 2]."""
    ends = (ids[:, 0] * 31 + ids[:, 1] * 17).double().view(-1, *[1] * len(shape))
    places = torch.arange(torch.Size(shape).numel()).double().view(shape)
    return 1.5 + torch.sin(ends + places)


def cases():
    for op in EDGE_OPS:
        for reduce in EDGE_REDUCTIONS if op != "outer" else ("sum", "mean"):
            for shape in ((), (2,), (F,)):
                if shape == (F,) or op not in ("add_relu", "outer"):
                    yield op, reduce, shape


def check_aggregations(rank: int) -> list[Tensor]:
    """All results and gradients in the order of the data. Collective."""
    comm = connect()
    graph = mesh(60)
    labels = np.random.default_rng(0).integers(0, max(1, comm.size - 1), 60)  # a rank has none
    on = spgnn.distribute(graph, partition=labels, comm=comm).to(torch.float64)
    source, target = on.local_edge_index
    ids = on.halo(on.vertex_ids)
    ends = torch.stack((on.vertex_ids[target], ids[source]), 1)
    made = []
    for op, reduce, shape in cases():
        H = torch.sin(on.vertex_ids[:, None] + torch.arange(F).double()).requires_grad_()
        values = numbers_of(ends, shape).requires_grad_()
        Z = on.aggregate(Aggregation(H, reduce=reduce, edge=EdgeOperand(op, values)))
        (Z * torch.cos(on.vertex_ids.double())[:, None]).sum().backward()
        by_row = torch.zeros(len(H), dtype=torch.float64).index_add(
            0, target, values.grad.flatten(1).sum(1) if values.dim() > 1 else values.grad
        )
        dH = torch.zeros_like(H) if H.grad is None else H.grad
        both = torch.cat((Z.detach(), dH, by_row[:, None]), 1)
        whole = both.new_zeros(60, both.shape[1])
        whole[on.vertex_ids] = both
        comm.all_reduce(whole).wait()
        made.append(whole)
    return made


def test_aggregations_on_ranks():
    (one,) = run_ranks(check_aggregations, 1)
    graph = mesh(60)
    target = torch.arange(60).repeat_interleave(graph.adjacency.row_lengths)
    ends = torch.stack((target, graph.adjacency.indices.long()), 1)
    for (op, reduce, shape), found in zip(cases(), one, strict=True):
        H = torch.sin(torch.arange(60)[:, None] + torch.arange(F).double())
        values = numbers_of(ends, shape)
        rows = H.unflatten(1, (2, -1)) if shape == (2,) and op != "copy" else H
        rows = None if op == "copy" else rows
        Z = edge_spmm(graph.adjacency.pattern, rows, values, op, reduce).reshape(60, -1)
        torch.testing.assert_close(found[:, : Z.shape[1]], Z)
    for other in run_ranks(check_aggregations, 3):
        for mine, right in zip(other, one, strict=True):
            torch.testing.assert_close(mine, right)


def train(rank: int) -> list[float]:
    """The losses of five epochs. Collective."""
    torch.manual_seed(0)
    model = MeshGraphNet(8, 2)
    graph = spgnn.distribute(mesh(120), model=model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = graph.mean((model(graph.x, graph) - graph.y).square()[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_mesh_trains_alike_on_any_number_of_ranks():
    (one,) = run_ranks(train, 1)
    assert one[-1] < one[0]
    for losses in run_ranks(train, 4):
        assert losses == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "needs the width of the edges' features"),
        (
            {"edge_dim": 2, "algo": "1.5d", "c": 2},
            "needs --algo 1d, --cover column, .*: whole rows",
        ),
        ({"edge_dim": 2, "recompute_halo": True, "dropout": 0.0}, "no --recompute-halo"),
        ({"edge_dim": 2, "model": "gcn"}, "needs --model gine, gat"),
    ],
)
def test_what_the_command_refuses(more, words):
    with pytest.raises(InputError, match=words):
        TrainConfig.of(**{"model": "gine", **more}).check(4)


def test_the_command_refuses_other_widths(tmp_path):
    path = str(tmp_path / "mesh.npz")
    write_npz(mesh(30), path)
    for dataset, words in ((path, "edges have 3 features.*edge-dim=3"), ("sbm", "has no features")):
        config = TrainConfig.of(dataset=dataset, model="gine", edge_dim=2, epochs=1)
        with pytest.raises(InputError, match=words):
            run(config, connect())


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
def test_an_interaction_is_two_perceptrons_of_what_lies_side_by_side(aggr):
    graph = spgnn.distribute(mesh(40), comm=connect()).to(torch.float64)
    layer = ours.InteractionNetwork(6, hidden=5, aggr=aggr).double()
    H = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    E = torch.randn(graph.edge_attr.shape[0], 6, dtype=torch.float64, requires_grad=True)
    source, target = graph.local_edge_index
    made = layer(H, graph, E)
    edges = E + layer.edge_mlp(torch.cat((E, H[source], H[target]), 1))
    place, how = target[:, None].expand_as(edges), {"max": "amax"}.get(aggr, aggr)
    summed = torch.zeros_like(H).scatter_reduce(0, place, edges, how, include_self=False)
    right = H + layer.node_mlp(torch.cat((H, summed), 1)), edges
    factors = [torch.randn_like(t) for t in right]
    for mine, theirs in zip(made, right, strict=True):
        torch.testing.assert_close(mine, theirs)
    leaves = [H, E, *layer.parameters()]
    grads = (
        torch.autograd.grad([*outputs], leaves, factors, create_graph=True)
        for outputs in (made, right)
    )
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_batches():
    graph = mesh(30)
    block = Block(
        graph.adjacency.pattern, torch.arange(30), attributes={"edge_attr": graph.edge_attr}
    )
    whole = spgnn.distribute(graph, comm=connect())
    for layer in (
        ours.CGConv(1, 3),
        ours.NNConv(1, 2, nn.Linear(3, 2)),
        ours.TransformerConv(1, 4, heads=2, edge_dim=3),
        ours.GINEConv(nn.Linear(1, 2), edge_dim=3),
    ):
        right = torch.empty_like(layer(graph.x, block))
        right[whole.vertex_ids] = layer(whole.x, whole)
        torch.testing.assert_close(layer(graph.x, block), right)


def test_what_is_refused():
    graph = spgnn.distribute(mesh(30), comm=connect())
    rows = graph.edge_attr.shape[0]

    def aggregate(op, values, **more):
        return lambda: graph.aggregate(Aggregation(graph.x, edge=EdgeOperand(op, values), **more))

    layer = ours.InteractionNetwork(1)
    for call, words in (
        (aggregate("mul", torch.ones(3)), f"this rank has {rows}, there are rows of"),
        (aggregate("mul", torch.ones(rows, 2)), "2 heads do not divide 1 columns"),
        (aggregate("pow", torch.ones(rows)), "op pow: choose one of"),
        (aggregate("mul", torch.ones(rows), reduce="std"), "reduce std: choose one of"),
        (lambda: layer(graph.x, graph, torch.ones(3, 1)), f"this rank has {rows} edges"),
        (lambda: layer(graph.x, graph), "edges have 3 features, not 1"),
        (lambda: ours.CGConv(1, 3)(graph.x, graph, torch.ones(rows, 3).long()), "needs edge_attr"),
        (lambda: ours.CGConv(1, 3)(graph.x, graph, 3), "needs edge_attr"),
    ):
        with pytest.raises(InputError, match=words):
            call()
    rows_of_others = spgnn.distribute(mesh(30), comm=connect(), cover="minimum")
    assert rows_of_others.comm.size == 1  # where nothing travels every cover has whole rows
