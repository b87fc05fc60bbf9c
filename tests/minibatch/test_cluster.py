"""Batches of whole clusters: induced subgraphs with a boundary, exact if that is wide enough."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

import spgnn
from spgnn.comm import connect
from spgnn.minibatch.cluster import ClusterLoader, clusters_of
from spgnn.minibatch.rank import RankGraph
from spgnn.nn import GraphSAGE
from spgnn.testing import run_ranks
from tests.minibatch.graphs import CLASSES, F_IN, N
from tests.minibatch.test_exact_loader import graph

PARTS = 3


def check(rank: int, *, weighted: bool) -> None:
    comm = connect()
    labels = np.random.default_rng(0).integers(0, PARTS, N)
    whole = graph(weighted=weighted, sparse=False)
    given = spgnn.distribute(whole if rank == 0 else None, partition=labels, comm=comm)
    model = GraphSAGE.of([F_IN, 6, CLASSES], seed=2).eval()
    dense = whole.adjacency.to_scipy().toarray()
    with torch.no_grad():
        exact = model(given.x, given)
        for boundary in (0, 1, 2):
            loader = ClusterLoader(
                given.share,
                comm,
                2,
                clusters=2,
                each=1,
                boundary=boundary,
                prefetch=weighted,
                seed=3,
            )
            seen = []
            for batch in loader:
                if batch is None:
                    continue
                ids = batch.n_id.numpy()
                seeds = ids[: batch.batch_size]
                assert set(labels[seeds]) == {rank}
                members = set(seeds)
                for _ in range(boundary):
                    members |= set(np.flatnonzero(dense[list(members)].any(axis=0)))
                assert sorted(ids) == sorted(members)
                first, last = batch.layers
                square = first.matrix("none").block.with_scales(None, None).to_scipy().toarray()
                np.testing.assert_array_equal(square, dense[np.ix_(ids, ids)])
                np.testing.assert_array_equal(
                    last.matrix("none").block.with_scales(None, None).to_scipy().toarray(),
                    dense[np.ix_(seeds, ids)],
                )
                y = torch.where(whole.train_mask, whole.y, -1)
                assert torch.equal(batch.y, y[batch.n_id])
                seen += batch.input_id.tolist()
                if boundary == 2:
                    out = model(batch.x, batch.layers)
                    torch.testing.assert_close(out, exact[batch.input_id])
            assert sorted(seen) == list(range(given.own_rows))


def test_batches_are_clusters_with_their_boundary():
    run_ranks(check_both, PARTS)


def check_both(rank: int) -> None:
    check(rank, weighted=False)
    check(rank, weighted=True)


def check_order(rank: int) -> None:
    comm = connect()
    given = spgnn.distribute(graph(weighted=False, sparse=False), comm=comm)
    ranks = RankGraph.of(given, comm)
    labels = clusters_of(ranks.block, ranks.boundary, 4, seed=1)
    assert torch.equal(labels, clusters_of(ranks.block, ranks.boundary, 4, seed=1))
    loader = ClusterLoader(given.share, comm, 2, clusters=4, each=3, boundary=1)
    ahead = ClusterLoader(given.share, comm, 2, clusters=4, each=3, boundary=1, prefetch=True)
    next(iter(ahead))  # whoever leaves early leaves nothing behind
    ahead.epoch = 0
    for one, other in zip(loader, ahead, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.place == other.place
            assert torch.equal(one.x, other.x)
            for name in ("n_id", "edge_index", "y"):
                assert torch.equal(getattr(one, name), getattr(other, name))
    loader.epoch = 0
    epochs = [[b.input_id.tolist() for b in loader if b is not None] for _ in range(2)]
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == list(range(given.own_rows))
    assert epochs[0] != epochs[1]
    loader.epoch = 1
    assert [b.input_id.tolist() for b in loader if b is not None] == epochs[1]
    alone = replace(given.share, data=replace(given.share.data, train_mask=None))
    with pytest.raises(spgnn.InputError, match="training mask"):
        ClusterLoader(alone, comm, 2, clusters=4)


def test_each_cluster_is_in_one_batch_of_an_epoch():
    run_ranks(check_order, 2)
