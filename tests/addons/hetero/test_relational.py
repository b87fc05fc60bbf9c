"""RGCN against PyG's, by the checks of the engine's layers; its one exchange; what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.nn.test_layers import (
    F_IN,
    RELATIONS,
    Case,
    check,
    check_case,
    check_checkpointed,
    distributed,
    geometric_data,
    graph_data,
)
from tests.nn.test_reset import check_anew
from tests.products import moved

CASES = [
    *(
        Case("RGCNConv", (F_IN, width, RELATIONS), options, "types")
        for options in (
            {},
            {"aggr": "sum", "root_weight": False, "bias": False},
            {"aggr": "max"},
            {"num_bases": 2},
            {"num_bases": 3, "aggr": "sum"},
            {"num_blocks": 3},
        )
        for width in (3, 9)
    ),
    Case("RGCNConv", (8, 1, RELATIONS), {"num_bases": 2}, "types"),
]


@pytest.mark.parametrize("ranks", [1, 3])
def test_rgcn_is_that_of_pyg(ranks):
    assert run_ranks(lambda rank: check(rank, CASES), ranks) == [len(CASES)] * ranks


@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: f"{dict(case.options)}")
def test_rgcn_can_be_checkpointed(case):
    check_checkpointed(case)


def test_parameters_begin_anew():
    check_anew(ours.RGCNConv(4, 3, 2, num_bases=2))


@pytest.mark.parametrize("options", [{}, {"num_bases": 2, "aggr": "sum"}], ids=["plain", "bases"])
def test_rgcn_of_any_shape(options):
    for n, edges, f_in, f_out in ((1, 0, 1, 1), (12, 40, 9, 2), (7, 3, 4, 9)):
        rng, types = np.random.default_rng(n), torch.arange(edges) % 3
        index = torch.from_numpy(rng.integers(0, n, (2, edges)))
        x = torch.from_numpy(rng.standard_normal((n, f_in)))
        whole = geometric_data.Data(x=x, edge_index=index, edge_attr=types, num_nodes=n)
        graph = spgnn.distribute(whole, partition="block", comm=connect()).to(torch.float64)
        case = Case("RGCNConv", (f_in, f_out, 3), options, "types")
        check_case(graph.comm, case, graph, whole)


def check_bytes(rank: int) -> int:
    """All relations share one halo of all edges; with bases the narrower travels. Collective."""
    comm = connect()
    data = graph_data("types", F_IN)
    graph = distributed(data, comm)
    _ = graph.edge_index
    halo = graph.halo_matrix("none").volume
    for options, width in (
        ({}, F_IN),
        ({"num_bases": 3}, 3),
        ({"num_bases": 7}, F_IN),
        ({"num_bases": 2}, 2),
        ({"num_blocks": 1}, F_IN),
    ):
        layer = ours.RGCNConv(F_IN, 1, RELATIONS, **options)
        x = graph.x.clone().requires_grad_()
        before = comm.ledger.copy()
        z = layer(x, graph, graph.edge_attr)
        forward = comm.ledger.since(before)
        before = comm.ledger.copy()
        z.sum().backward()
        backward = comm.ledger.since(before)
        assert list(forward.operations) == list(backward.operations) == ["alltoall"]
        sent, received = 4 * width * halo.send, 4 * width * halo.receive
        assert moved(forward) == (sent, received), options
        assert moved(backward) == (received, sent), options
    return int(halo.send)


def test_one_exchange_for_all_relations():
    assert sum(run_ranks(check_bytes, 3)) > 0


def test_what_rgcn_refuses():
    with pytest.raises(InputError, match="num_bases or num_blocks"):
        ours.RGCNConv(3, 3, 2, num_bases=1, num_blocks=1)
    with pytest.raises(InputError, match="num_blocks=2 must divide 4 and 3"):
        ours.RGCNConv(4, 3, 2, num_blocks=2)
    graph = distributed(graph_data("types", F_IN), connect())
    layer = ours.RGCNConv(F_IN, 3, 2)
    with pytest.raises(InputError, match="edge_type runs from 0 to 3, num_relations is 2"):
        layer(graph.x, graph, graph.edge_attr)
    with pytest.raises(InputError, match=r"edge_type must be a tensor with one row.*got \[3\]"):
        layer(graph.x, graph, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match=r"edge_type must be a tensor.*got NoneType"):
        layer(graph.x, graph)
