"""Batches of many ranks are bit for bit those of one process, and cost what the ledger says."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import spgnn
from spgnn import CSR
from spgnn.comm import connect
from spgnn.data import Graph
from spgnn.minibatch import NeighborLoader
from spgnn.minibatch.distributed import DistributedLoader
from spgnn.testing import run_ranks
from tests.minibatch.graphs import CLASSES, F_IN, N, directed

FANOUTS = [3, 2]


def graph(*, weighted: bool, sparse: bool) -> Graph:
    A = CSR.from_scipy(directed(1, weighted=weighted))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, F_IN, generator=generator)
    x[torch.rand(N, F_IN, generator=generator) < 0.5] = 0
    features = CSR.from_scipy(sp.csr_array(x.numpy())) if sparse else x
    y = torch.randint(0, CLASSES, (N,), generator=generator)
    train = torch.rand(N, generator=generator) < 0.6
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": ~train}
    return Graph(name="made-up", adjacency=A, directed=True, x=features, y=y, **masks)


def dense(x):
    return torch.from_numpy(x.to_scipy().toarray()) if isinstance(x, CSR) else x


def same(batch, one) -> None:
    assert_same(batch, one)
    assert_same(pickle.loads(pickle.dumps(batch)), one)


def assert_same(batch, one) -> None:
    for name in ("n_id", "input_id", "y", "vertex_ids", "edge_index"):
        assert torch.equal(getattr(batch, name), getattr(one, name)), name
    assert torch.equal(dense(batch.x), dense(one.x))
    assert (batch.batch_size, batch.num_sampled_nodes) == (one.batch_size, one.num_sampled_nodes)
    for block, other in zip(batch.layers, one.layers, strict=True):
        assert (block.factors is None) == (other.factors is None)
        assert block.factors is None or torch.equal(block.factors, other.factors)
        assert torch.equal(block.pattern.indptr, other.pattern.indptr)
        assert torch.equal(block.pattern.indices, other.pattern.indices)
        for kind in ("sym", "row", "none"):
            H = torch.sin(torch.arange(2.0 * block.columns)).view(-1, 2)
            torch.testing.assert_close(
                block.matrix(kind).forward(H, None), other.matrix(kind).forward(H, None)
            )


def check(rank: int, parts: int) -> None:
    comm = connect()
    ways = ("neighbor", False, False), ("neighbor", True, True), ("labor", False, False)
    # Dense features travel ahead, sparse ones do not.
    for sampler, weighted, resample in (
        *ways,
        *((name, w, False) for name in ("ladies", "fastgcn") for w in (False, True)),
    ):
        whole = graph(weighted=weighted, sparse=weighted)
        options = {"batch_size": 5, "shuffle": True, "resample": resample, "seed": 11}
        options["sampler"] = sampler
        one = NeighborLoader(whole, FANOUTS, "train_mask", **options)
        # Of four ranks, the last has no vertex.
        labels = np.random.default_rng(0).integers(0, min(parts, 3), N)
        given = spgnn.distribute(whole if rank == 0 else None, partition=labels, comm=comm)
        loader = DistributedLoader(
            given, comm, FANOUTS, superbatch=2, prefetch=sampler != "fastgcn", **options
        )
        assert loader.batches == len(one)
        next(iter(loader))  # what is under way is of no consequence
        loader.epoch = 0
        for epoch in range(2):
            expected = list(one)
            rounds = list(loader)
            assert len(rounds) == len(loader) == -(-len(expected) // parts)
            mine = expected[rank::parts]
            assert [batch is None for batch in rounds] == [
                turn >= len(mine) for turn in range(len(rounds))
            ]
            for batch, other in zip(rounds, mine, strict=False):
                assert batch.place == other.place
                assert batch.place.epoch == epoch
                same(batch, other)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_batches_are_those_of_one_process(parts):
    run_ranks(check, parts, parts)


def check_bytes(rank: int, prefetch: bool) -> None:
    """Features of a superbatch: each remote row once, with its facts; one exchange."""
    comm = connect()
    whole = graph(weighted=False, sparse=False)
    labels = np.arange(N) % 3
    given = spgnn.distribute(whole if rank == 0 else None, partition=labels, comm=comm)
    options = {"batch_size": 4, "superbatch": 99, "shuffle": True, "prefetch": prefetch}
    loader = DistributedLoader(given, comm, FANOUTS, **options)
    ranks = loader.ranks
    moved = []
    fetch = ranks.fetched

    def fetched(rows, *, later):
        before = comm.ledger.copy()
        found = fetch(rows, later=later)
        moved.append((rows, comm.ledger.since(before).of("alltoall")))
        return found

    object.__setattr__(ranks, "fetched", fetched)
    list(loader)
    ((rows, traffic),) = moved
    assert len(rows.unique()) == len(rows)
    remote = int((~ranks.boundary.is_own(rows)).sum())
    facts = ranks.facts.packed().shape[1]
    received = traffic.received_bytes - remote * (4 * F_IN + facts) - 8 * (comm.size - 1)
    assert received % 4 == 0
    theirs = received // 4
    assert traffic.sent_bytes == 4 * remote + theirs * (4 * F_IN + facts) + 8 * (comm.size - 1)
    everyone = torch.tensor([remote, theirs])
    comm.all_reduce(everyone).wait()
    assert everyone[0] == everyone[1]


def check_failure(rank: int, prefetch: bool) -> None:
    comm = connect()
    whole = graph(weighted=False, sparse=False)
    given = spgnn.distribute(whole if rank == 0 else None, partition=np.arange(N) % 3, comm=comm)
    options = {"batch_size": 2, "shuffle": True, "prefetch": prefetch}
    loader = DistributedLoader(given, comm, FANOUTS, **options)
    for turn, _ in enumerate(loader):
        if rank == 1 and turn == 2:
            raise OSError("the disk is gone")


@pytest.mark.parametrize("prefetch", [False, True])
def test_an_error_on_one_rank_ends_all(prefetch, capfd):
    with pytest.raises(RuntimeError, match="a rank failed"):
        run_ranks(check_failure, 3, prefetch)
    assert "the disk is gone" in capfd.readouterr().err


@pytest.mark.parametrize("prefetch", [False, True])
def test_each_remote_row_is_fetched_once_a_superbatch(prefetch):
    run_ranks(check_bytes, 3, prefetch)
