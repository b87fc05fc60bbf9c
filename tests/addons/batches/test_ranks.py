"""Batches of many ranks are bit for bit those of one process, and cost what the ledger says."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import spgnn
from spgnn import CSR
from spgnn.addons.batches import Metadata, NeighborLoader, RankGraph
from spgnn.addons.batches.rank_batches import Clusters, cluster_labels
from spgnn.addons.batches.remote_rows import rows_of_ranks
from spgnn.addons.batches.threads import in_turns, last
from spgnn.comm import connect
from spgnn.data import Graph
from spgnn.nn import GraphSAGE
from spgnn.testing import run_ranks
from tests.addons.batches.graphs import CLASSES, F_IN, N, directed
from tests.matrices import random_matrix, uneven_layout

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


def distributed(rank: int, parts: int, *, weighted: bool = False, sparse: bool = False) -> Any:
    """On so many ranks, the fourth of which has no vertex."""
    labels = np.random.default_rng(0).integers(0, min(parts, 3), N)
    whole = graph(weighted=weighted, sparse=sparse)
    return spgnn.distribute(whole if rank == 0 else None, partition=labels, comm=connect())


def loader_of(given: Any, *args: Any, **options: Any) -> NeighborLoader:
    """One in the mode of several ranks, also on one."""
    return NeighborLoader(given.share, *args, comm=given.comm, **options)


def assert_same(batch: Any, one: Any) -> None:
    def dense(x: Any) -> Any:
        return torch.from_numpy(x.to_scipy().toarray()) if isinstance(x, CSR) else x

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


EXACT = [("neighbor", False, False), ("neighbor", True, True), ("labor", False, False)]


def check_exact(rank: int, parts: int, cases: list[tuple[str, bool, bool]]) -> None:
    # Dense features travel ahead, sparse ones do not.
    for sampler, weighted, resample in cases:
        given = distributed(rank, parts, weighted=weighted, sparse=weighted)
        options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 11}
        options |= {"sampler": sampler, "resample": resample}
        whole = graph(weighted=weighted, sparse=weighted)
        one = NeighborLoader(whole, FANOUTS, "train_mask", rank=rank, ranks=parts, **options)
        ahead = 2 * (sampler != "fastgcn")
        loader = loader_of(given, FANOUTS, "train_mask", superbatch=2, prefetch=ahead, **options)
        assert len(loader) == loader.steps == one.steps
        next(iter(loader))  # what is under way is of no consequence
        loader.epoch = 0
        for epoch in range(2):
            mine, found = list(one), list(loader)
            assert [batch is None for batch in found] == [
                step >= len(mine) for step in range(len(found))
            ]
            for batch, other in zip(found, mine, strict=False):
                assert batch.place == other.place
                assert batch.place.epoch == epoch
                assert_same(batch, other)
                assert_same(pickle.loads(pickle.dumps(batch)), other)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_exact_batches_are_those_of_one_process(parts):
    run_ranks(check_exact, parts, parts, EXACT)


def edges_that_say_more() -> Any:
    """Edges in no order, some of them repeated, and what is known of each."""
    draw = torch.Generator().manual_seed(4)
    source, target = (torch.from_numpy(ends).long() for ends in directed().nonzero())
    index = torch.stack((source, target))[:, source != target]
    loops = torch.arange(0, N, 3).repeat(2, 1)  # weights of several would be refused
    index = torch.cat((index, index[:, ::3], index[:, ::9], loops), 1)
    index = index[:, torch.randperm(index.shape[1], generator=draw)]
    edges = index.shape[1]
    data = pytest.importorskip("torch_geometric.data").Data(edge_index=index, num_nodes=N)
    data.x, data.y = torch.randn(N, F_IN, generator=draw), torch.arange(N) % CLASSES
    data.edge_weight = torch.rand(edges, 1, generator=draw).double() + 0.5
    data.edge_attr = torch.randn(edges, 2, 3, generator=draw)
    data.edge_type = torch.randint(0, 3, (edges,), generator=draw)
    data.edge_number = torch.arange(edges)
    data.edge_seen = torch.rand(edges, generator=draw) < 0.5
    return data


def check_edges(rank: int, parts: int) -> None:
    """Of the edges that were drawn, all that one process says of them, but for their numbers."""
    data, comm = edges_that_say_more(), connect()
    names = ["edge_weight", "edge_attr", "edge_type", "edge_number", "edge_seen"]
    labels = np.random.default_rng(0).integers(0, parts, N)
    given = spgnn.distribute(data if rank == 0 else None, partition=labels, comm=comm)
    for sampler, replaced in (("neighbor", False), ("neighbor", True), ("labor", False)):
        options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 7}
        options |= {"sampler": sampler, "replace": replaced}
        alone = NeighborLoader(data, FANOUTS, rank=rank, ranks=parts, **options)
        loader = NeighborLoader(given, FANOUTS, superbatch=2, **options)
        for batch, other in zip([one for one in loader if one], alone, strict=True):
            assert 0 < batch.num_edges < data.num_edges
            for one in (batch, pickle.loads(pickle.dumps(batch))):
                assert_same(one, other)
                assert torch.equal(one.edge_number, other.e_id)
                for name in names:
                    mine, theirs = getattr(one, name), getattr(other, name)
                    assert mine.dtype == theirs.dtype
                    assert torch.equal(mine, theirs), name
                for block, its in zip(one.layers, other.layers, strict=True):
                    assert torch.equal(block.edge_weight, its.edge_weight)
                    assert torch.equal(block.local_edges.attr, its.local_edges.attr)
                    assert torch.equal(block.local_edges.type, its.local_edges.type)
                with pytest.raises(AttributeError, match="which edge of the source"):
                    _ = one.e_id
            assert set(names) <= set(batch.pyg().keys())
            assert "e_id" not in batch.pyg()


@pytest.mark.parametrize("parts", [1, 3])
def test_all_that_is_known_of_edges_comes_with_them(parts):
    run_ranks(check_edges, parts, parts)


def check_own(rank: int) -> None:
    """What a loader of the whole graph makes of this rank's seeds."""
    given, whole = distributed(rank, 4), graph(weighted=False, sparse=False)
    mask = torch.zeros(N, dtype=torch.bool)
    mask[given.share.vertex_ids[given.share.data.train_mask]] = True
    for drop_last in (False, True):
        options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "drop_last": drop_last}
        loader = loader_of(given, FANOUTS, "train_mask", mode="own", superbatch=2, **options)
        one = NeighborLoader(whole, FANOUTS, mask, **options)
        assert loader.steps == given.comm.agree(len(one))
        for _ in range(2):
            wanted, found = list(one), list(loader)
            assert [batch is not None for batch in found] == [
                step < len(wanted) for step in range(loader.steps)
            ]
            for batch, other in zip(found, wanted, strict=False):
                assert_same(batch, other)


def test_batches_of_own_seeds_are_exact():
    run_ranks(check_own, 4)


def check_bytes(rank: int, prefetch: int) -> None:
    """Features of a superbatch: each remote row once, with its metadata; one exchange."""
    given = distributed(rank, 3)
    comm, options = given.comm, {"batch_size": 4, "superbatch": 99, "shuffle": True}
    loader = loader_of(given, FANOUTS, "train_mask", prefetch=prefetch, **options)
    ranks = loader.strategy.ranks
    moved = []
    fetch = ranks.fetch

    def fetched(rows):
        before = comm.ledger.copy()
        result = fetch(rows)
        moved.append((rows, comm.ledger.since(before).of("alltoall")))
        return result

    object.__setattr__(ranks, "fetch", fetched)
    list(loader)
    ((rows, traffic),) = moved
    assert len(rows.unique()) == len(rows)
    remote = int((~ranks.boundary.is_own(rows)).sum())
    width = ranks.metadata.packed().shape[1]
    received = traffic.received_bytes - remote * (4 * F_IN + width) - 8 * (comm.size - 1)
    assert received % 4 == 0
    theirs = received // 4
    assert traffic.sent_bytes == 4 * remote + theirs * (4 * F_IN + width) + 8 * (comm.size - 1)
    everyone = torch.tensor([remote, theirs])
    comm.all_reduce(everyone).wait()
    assert everyone[0] == everyone[1]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_each_remote_row_is_fetched_once_a_superbatch(prefetch):
    run_ranks(check_bytes, 3, prefetch)


def check_failure(rank: int, prefetch: int) -> None:
    loader = NeighborLoader(
        distributed(rank, 3), FANOUTS, "train_mask", batch_size=2, prefetch=prefetch
    )
    for step, _ in enumerate(loader):
        if rank == 1 and step == 2:
            raise OSError("the disk is gone")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_on_one_rank_ends_all(prefetch, capfd):
    with pytest.raises(RuntimeError, match="a rank failed"):
        run_ranks(check_failure, 3, prefetch)
    assert "the disk is gone" in capfd.readouterr().err


def check_refused(rank: int) -> None:
    given = distributed(rank, 2)
    for options, words in (
        ({"sampler": "labour"}, "labour"),
        ({"sampler": "labor", "replace": True}, "knows no replace"),
        ({"disjoint": True}, "disjoint is not for a graph on several ranks"),
        ({"input_nodes": "trian_mask"}, "no such mask"),
        ({"mode": "all"}, "mode all: choose one of"),
        ({"mode": 3}, "mode must be one of .* or a Mode, got 3"),
        ({"mode": "historical"}, "mode historical: give a History of it"),
        ({"seed": rank}, "do not agree on seed"),
    ):
        with pytest.raises(spgnn.InputError, match=words):
            NeighborLoader(given, FANOUTS, **options)


def test_what_is_refused():
    run_ranks(check_refused, 2)


def check_rows(rank: int, parts: int) -> None:
    """Rows of sparse tables, with and without values; any rank may want any of them."""
    comm, layout = connect(), uneven_layout(80, parts, 4)
    wanted = torch.from_numpy(np.random.default_rng(rank).integers(0, 80, 11 * rank))
    for weighted in (False, True):
        sparse = random_matrix(80, 0.1, 1, weighted=weighted)
        own = CSR.from_scipy(sparse[slice(*layout.range(rank))])
        rows = rows_of_ranks(own, wanted, layout, comm)
        assert (rows.to_scipy() != sparse[wanted.numpy()]).nnz == 0
        assert (rows.values is None) is (own.values is None)


@pytest.mark.parametrize("parts", [1, 4])
def test_rows_of_ranks(parts):
    run_ranks(check_rows, parts, parts)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_metadata_survives_packing(rows):
    columns = {
        "ids": torch.arange(rows, dtype=torch.int32),
        "y": torch.arange(rows, dtype=torch.int16) - 1,
        "edges": torch.arange(rows, dtype=torch.int32) + 7,
        "weight": torch.arange(rows) / 3,
    }
    metadata = Metadata(columns)
    packed = metadata.packed()
    assert packed.shape == (rows, 14)
    found = metadata.unpacked(packed)
    assert torch.equal(found.ids, torch.arange(rows))
    assert torch.equal(found.y, torch.arange(rows) - 1)
    assert torch.equal(found.degrees.weight, columns["weight"])
    assert torch.equal(found.degrees.edges, torch.arange(rows) + 7)
    several = Metadata({"ids": torch.arange(3), "y": torch.rand(3, 2), "edges": torch.ones(3)})
    assert torch.equal(several.unpacked(several.packed()[1:]).y, several.y[1:])


def work(number, made):
    for step in range(3):
        made.append((number, step))
        yield
    return number


def test_works_are_under_way_together_and_come_in_order():
    made, dropped = [], []
    turns = in_turns((work(number, made) for number in range(6)), dropped.append)
    assert next(turns) == 0
    # The next one is ready, and of each that follows one step less was made.
    assert [sum(number == n for number, _ in made) for n in range(6)] == [3, 3, 3, 2, 1, 0]
    assert [step for _, step in made[:6]] == [0, 1, 0, 2, 1, 0]
    assert list(turns) == [1, 2, 3, 4, 5]
    assert dropped == []
    turns = in_turns((work(number, []) for number in range(6)), dropped.append)
    next(turns)
    turns.close()
    assert dropped == [1]
    assert list(in_turns(iter(()), dropped.append)) == []
    assert last(work(7, made)) == 7


def check_clusters(rank: int, weighted: bool) -> None:
    """Induced subgraphs with a boundary, exact if that is wide enough."""
    given, whole = distributed(rank, 3, weighted=weighted), graph(weighted=weighted, sparse=False)
    labels = np.random.default_rng(0).integers(0, 3, N)
    model = GraphSAGE.of([F_IN, 6, CLASSES], seed=2).eval()
    dense = whole.adjacency.to_scipy().toarray()
    with torch.no_grad():
        exact = model(given.x, given)
        for boundary in (0, 1, 2):
            mode = Clusters(2, 1, boundary)
            loader = NeighborLoader(given, [-1, -1], mode=mode, prefetch=int(weighted), seed=3)
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
                for block, rows in zip(batch.layers, (ids, seeds), strict=True):
                    found = block.matrix("none").block.with_scales(None, None).to_scipy()
                    np.testing.assert_array_equal(found.toarray(), dense[np.ix_(rows, ids)])
                y = torch.where(whole.train_mask, whole.y, -1)
                assert torch.equal(batch.y, y[batch.n_id])
                seen += batch.input_id.tolist()
                if boundary == 2:
                    out = model(batch.x, batch.layers)
                    torch.testing.assert_close(out, exact[batch.input_id])
            assert sorted(seen) == list(range(given.own_rows))


@pytest.mark.parametrize("weighted", [False, True])
def test_batches_are_clusters_with_their_boundary(weighted):
    run_ranks(check_clusters, 3, weighted)


def check_order(rank: int) -> None:
    given = spgnn.distribute(graph(weighted=False, sparse=False), comm=connect())
    ranks = RankGraph.build(given.share, given.comm)
    labels = cluster_labels(ranks.block, ranks.boundary, 4, seed=1)
    assert torch.equal(labels, cluster_labels(ranks.block, ranks.boundary, 4, seed=1))
    mode = Clusters(4, 3, boundary=1)
    loader, ahead = (NeighborLoader(given, [-1, -1], mode=mode, prefetch=p) for p in (0, 2))
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
        NeighborLoader(alone, [-1, -1], mode=mode, comm=given.comm)


def test_each_cluster_is_in_one_batch_of_an_epoch():
    run_ranks(check_order, 2)
