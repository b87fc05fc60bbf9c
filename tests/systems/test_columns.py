"""Features split by columns: gradients of one process, and bytes of a formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import spgnn
from spgnn import CSR
from spgnn.addons.batches import Draw, NeighborLoader
from spgnn.comm import connect
from spgnn.data import Graph
from spgnn.nn import GCN, GIN, GraphSAGE
from spgnn.testing import run_ranks
from tests.addons.batches.test_ranks import loader_of
from tests.matrices import random_matrix

VERTICES, HIDDEN, CLASSES = 300, 32, 4
FANOUTS = [4, 3]


def graph(features: int, *, weighted: bool) -> Graph:
    A = random_matrix(VERTICES, 0.03, 5, weighted=weighted)
    A.data = np.abs(A.data)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(VERTICES, features, generator=generator)
    y = torch.randint(0, CLASSES, (VERTICES,), generator=generator)
    train = torch.rand(VERTICES, generator=generator) < 0.4
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": ~train}
    return Graph(name="made-up", adjacency=CSR.from_scipy(A), directed=True, x=x, y=y, **masks)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    """The sum over the seeds, so that sums over ranks are what one process has."""
    out = model(batch.x, batch.layers, batch.keys)
    return torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size], reduction="sum")


def check(rank: int, parts: int, kind: Any, features: int, weighted: bool) -> None:
    whole, comm = graph(features, weighted=weighted), connect()
    labels = np.random.default_rng(0).integers(0, parts, VERTICES)
    given = spgnn.distribute(whole if rank == 0 else None, partition=labels, comm=comm)
    # The last step has no seeds for some ranks.
    options: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 11}
    columns = loader_of(given, FANOUTS, "train_mask", mode="columns", **options).strategy
    exact = loader_of(given, FANOUTS, "train_mask", **options).strategy
    one = [
        list(NeighborLoader(whole, FANOUTS, "train_mask", rank=r, ranks=parts, **options))
        for r in range(parts)
    ]
    model, same = (
        kind(features, HIDDEN, 2, CLASSES, seed=1, **({"dropout": 0.4} if kind is GCN else {}))
        for _ in range(2)
    )
    received = fetched = 0
    for step in range(columns.steps):
        batches = [mine[step] for mine in one if step < len(mine)]
        inputs = columns.inputs(0)[step]
        before = comm.ledger.copy()
        columns.sampler.sample([inputs[0]], [Draw(11, 0, step)])
        sampling = comm.ledger.since(before).of("alltoall")
        before, counted = comm.ledger.copy(), columns.ranks.counts.bytes_read
        batch = columns.batch(0, step)
        loss = loss_of(model, batch)
        loss.backward()
        moved = comm.ledger.since(before).of("alltoall")
        exact_before = exact.ranks.counts.bytes_read
        exact.batch(0, step)
        fetched += exact.ranks.counts.bytes_read - exact_before

        # Losses and gradients are those of one process, summed over the step's batches.
        total = sum(loss_of(same, other) for other in batches)
        total.backward()
        comm.all_reduce(own := loss.detach().clone()).wait()
        torch.testing.assert_close(own, total.detach())

        # t targets of the first layer, m vertices, e edges: the structure, then what is t wide.
        hops = [other.layers[0] for other in batches]
        structure = [4 * (h.rows + h.columns + h.pattern.nnz * (1 + weighted)) for h in hops]
        partial = [4 * HIDDEN * h.rows for h in hops]
        own_structure, own_partial = (
            (sizes[rank] if rank < len(hops) else 0) for sizes in (structure, partial)
        )
        peers = parts - 1
        others = sum(partial) - own_partial
        wanted = 32 * peers + sum(structure) - own_structure + peers * own_partial + others
        assert moved.received_bytes - sampling.received_bytes == wanted
        assert columns.ranks.counts.bytes_read - counted == wanted
        sent = peers * (32 + own_structure + own_partial) + others
        assert moved.sent_bytes - sampling.sent_bytes == sent
        received += wanted
    for parameter, other in zip(model.parameters(), same.parameters(), strict=True):
        comm.all_reduce(parameter.grad).wait()
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-5)
    if features == 600:
        assert comm.agree(received, "sum") < comm.agree(fetched, "sum") / 3
    assert columns.ranks.counts.rows_read == 0


@pytest.mark.parametrize(
    ("parts", "kind", "features", "weighted"),
    [(4, GraphSAGE, 600, False), (3, GCN, 7, True), (2, GIN, 30, False), (1, GraphSAGE, 5, False)],
)
def test_gradients_are_those_of_one_process_and_bytes_those_of_the_formula(
    parts, kind, features, weighted
):
    run_ranks(check, parts, parts, kind, features, weighted)


def check_refused(rank: int) -> None:
    whole = graph(3, weighted=False)
    given = spgnn.distribute(whole if rank == 0 else None, partition="block", comm=connect())
    with pytest.raises(spgnn.InputError, match="3 columns of features cannot be split over 4 rank"):
        loader_of(given, FANOUTS, "train_mask", mode="columns")


def check_first_layer(rank: int) -> None:
    whole = graph(5, weighted=False)
    given = spgnn.distribute(whole if rank == 0 else None, partition="block", comm=connect())
    batch = next(iter(loader_of(given, FANOUTS, "train_mask", mode="columns", batch_size=9)))
    with pytest.raises(spgnn.InputError, match=r"first layer \(max\) needs whole rows of features"):
        GraphSAGE(5, 4, 2, 3, aggr="max")(batch.x, batch.layers, batch.keys)


def test_what_is_refused():
    run_ranks(check_refused, 4)
    run_ranks(check_first_layer, 2)
