"""Options of samplers, and what holds for all of them: threads, permutations, bad input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch

from spgnn import CSR
from spgnn.errors import InputError
from spgnn.loader import (
    Draw,
    FastGCNSampler,
    LaborSampler,
    LadiesSampler,
    NegativeSampler,
    NeighborSampler,
    SaintSampler,
)
from spgnn.loader.layerwise import parts_of_sums, sums_of_parts
from tests.loader.graphs import assert_equal, check_shape, random_graph

N = 500
SEEDS = torch.arange(0, N, 3)


def samplers(graph, **more):
    """One of each kind, by name; what depends on entries comes with them."""
    weights = graph.values
    times = torch.arange(N) % 50
    times = times if "vertex_ids" not in more else times[more["vertex_ids"]]
    return {
        "uniform": NeighborSampler(graph, [9, -1], edge_ids=True, **more),
        "replace": NeighborSampler(graph, [9, 70], replace=True, edge_ids=True, **more),
        "weighted": NeighborSampler(graph, [9, 40], weights=weights, edge_ids=True, **more),
        "both": NeighborSampler(graph, [5, 5], weights=weights, replace=True, **more),
        "disjoint": NeighborSampler(graph, [9, 9], disjoint=True, edge_ids=True, **more),
        "undirected": NeighborSampler(graph, [2, 2], directed=False, edge_ids=True, **more),
        "temporal": NeighborSampler(graph, [5, 9], node_times=times, edge_ids=True, **more),
        "past": NeighborSampler(graph, [5, 9], node_times=times, weights=weights, **more),
        "last": NeighborSampler(
            graph, [5, 9], node_times=times, temporal_strategy="last", edge_ids=True, **more
        ),
        "labor": LaborSampler(graph, [9, 9], edge_ids=True, **more),
        "labor-2": LaborSampler(graph, [9, 9], iterations=2, **more),
        "ladies": LadiesSampler(graph, [90, 200], edge_ids=True, **more),
        "values": LadiesSampler(graph, [90, 200], values=weights, **more),
        "fastgcn": FastGCNSampler(graph, [90, 200], edge_ids=True, **more),
        "node": SaintSampler(graph, "node", 60, edge_ids=True, **more),
        "edge": SaintSampler(graph, "edge", 60, estimates=3, **more),
        "walk": SaintSampler(graph, "walk", 60, length=4, edge_ids=True, **more),
    }


@pytest.fixture(scope="module")
def graph():
    return random_graph(N, 0.1, 1, weighted=True)


@pytest.fixture(scope="module")
def reference(graph):
    return {
        name: sampler.sample(SEEDS, Draw(5, 1, 2))
        for name, sampler in samplers(graph, threads=1).items()
    }


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_change_nothing(graph, reference, threads):
    for name, sampler in samplers(graph, threads=threads).items():
        found = sampler.sample(SEEDS, Draw(5, 1, 2))
        assert_equal(found, reference[name])
        if all(hop.edge_ids is not None for hop in found.hops) and name not in {"node", "walk"}:
            check_options(graph.pattern, found, name)


def negatives(graph, vertices, count, draw, **options):
    return NegativeSampler(graph, **options).sample(vertices, count, draw)


def check_options(pattern, sample, name):
    if name != "undirected":
        check_shape(pattern, sample, SEEDS)
    assert (sample.batch is None) == (name not in {"disjoint", "temporal", "last"})


def test_vertices_may_be_permuted(graph, reference):
    order = torch.from_numpy(np.random.default_rng(0).permutation(N))  # new vertex -> original
    permuted = CSR.from_scipy(graph.to_scipy()[order.numpy()][:, order.numpy()])
    place = torch.argsort(order)
    for name, sampler in samplers(permuted, vertex_ids=order).items():
        found, expected = sampler.sample(place[SEEDS], Draw(5, 1, 2)), reference[name]
        assert torch.equal(order[found.nodes], expected.nodes), name
        for a, b in zip(found.hops, expected.hops, strict=True):
            # Rows of subgraphs list their columns by original id as well.
            assert torch.equal(a.indptr, b.indptr), name
            assert torch.equal(a.indices, b.indices), name
            if b.weights is not None:
                torch.testing.assert_close(a.weights, b.weights, rtol=1e-6, atol=0)


def test_many_at_once_and_one_by_one(graph):
    batches = list(SEEDS.split(40))
    draws = [Draw(5, 0, b) for b in range(len(batches))]
    for name, sampler in samplers(graph, threads=3).items():
        if name in {"node", "edge", "walk"}:
            continue
        one_by_one = [sampler.sample(b, d) for b, d in zip(batches, draws, strict=True)]
        for a, b in zip(sampler.sample_many(batches, draws), one_by_one, strict=True):
            assert_equal(a, b)
        with ThreadPoolExecutor(4) as pool:
            for a, b in zip(pool.map(sampler.sample, batches, draws), one_by_one, strict=True):
                assert_equal(a, b)


def test_disjoint_trees_are_samples_of_single_seeds(graph):
    sampler = NeighborSampler(graph, [-1, -1], disjoint=True, edge_ids=True)
    alone = NeighborSampler(graph, [-1, -1])
    seeds = torch.tensor([3, 9, 3, 498])  # seeds may repeat
    sample = sampler.sample(seeds, Draw(0))
    check_shape(graph.pattern, sample, seeds)
    for root, seed in enumerate(seeds):
        nodes = sample.nodes[sample.batch == root]
        assert len(nodes.unique()) == len(nodes)
        assert set(nodes.tolist()) == set(alone.sample(seed[None], Draw(0)).nodes.tolist())
    for hop in sample.hops:
        targets = sample.batch[: hop.targets].repeat_interleave(hop.indptr.diff())
        assert torch.equal(targets, sample.batch[hop.indices.long()])
    # Each tree draws by itself.
    few = NeighborSampler(graph, [6], disjoint=True, edge_ids=True)
    hop = few.sample(torch.tensor([7, 7]), Draw(0)).hops[0]
    assert hop.edge_ids[:6].tolist() != hop.edge_ids[6:].tolist()


def test_disjoint_trees_of_many_edges():
    graph = random_graph(3000, 0.01, 2)
    seeds = torch.arange(0, 3000, 4)
    samples = [
        NeighborSampler(graph, [9, 9], disjoint=True, edge_ids=True, threads=t).sample(
            seeds, Draw(0)
        )
        for t in (1, 12)
    ]
    check_shape(graph.pattern, samples[0], seeds)
    assert_equal(*samples)


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_nothing_comes_from_the_future(graph, strategy):
    rng = np.random.default_rng(0)
    edge_times = torch.from_numpy(rng.integers(0, 100, graph.nnz))
    node_times = torch.from_numpy(rng.integers(0, 100, N))
    sampler = NeighborSampler(
        graph,
        [4, 3],
        edge_times=edge_times,
        node_times=node_times,
        temporal_strategy=strategy,
        edge_ids=True,
    )
    now = torch.from_numpy(rng.integers(0, 100, len(SEEDS)))
    sample = sampler.sample(SEEDS, Draw(1), now)
    check_shape(graph.pattern, sample, SEEDS)
    entry_times = torch.maximum(edge_times, node_times[graph.indices.long()])
    for hop, most in zip(sample.hops, (4, 3), strict=True):
        for i in range(hop.targets):
            first, last = graph.indptr[sample.nodes[i] : sample.nodes[i] + 2].tolist()
            limit = now[sample.batch[i]]
            past = sorted(t for t in entry_times[first:last].tolist() if t <= limit)
            drawn = hop.edge_ids[hop.indptr[i] : hop.indptr[i + 1]]
            assert len(drawn) == min(most, len(past)) == len(drawn.unique())
            found = sorted(entry_times[drawn].tolist())
            if strategy == "last":
                assert found == past[len(past) - len(found) :]
            else:
                assert all(t <= limit for t in found)
    # Without times, those of the seeds.
    own = NeighborSampler(graph, [4], node_times=node_times)
    assert_equal(own.sample(SEEDS, Draw(1)), own.sample(SEEDS, Draw(1), node_times[SEEDS]))


def test_undirected_hops_hold_all_edges_between_their_nodes(graph):
    sample = NeighborSampler(graph, [2, 2], directed=False, edge_ids=True).sample(SEEDS, Draw(3))
    plain = NeighborSampler(graph, [2, 2]).sample(SEEDS, Draw(3))
    assert torch.equal(sample.nodes, plain.nodes)
    A, nodes = graph.to_scipy(), sample.nodes.numpy()
    for hop, drawn in zip(sample.hops, plain.hops, strict=True):
        assert hop.sources == drawn.sources
        assert hop.targets == drawn.targets
        found = np.zeros((hop.targets, hop.sources))
        rows = np.repeat(np.arange(hop.targets), hop.indptr.diff().numpy())
        found[rows, hop.indices.numpy()] = graph.values[hop.edge_ids].numpy()
        whole = A[nodes[: hop.targets]][:, nodes[: hop.sources]].toarray()
        assert np.array_equal(found, whole.astype(np.float64))


def test_edges_of_weight_zero_are_no_edges(graph):
    weights = graph.values.clone()
    weights[::2] = 0
    sample = NeighborSampler(graph, [-1, 5], weights=weights, edge_ids=True).sample(SEEDS, Draw(0))
    check_shape(graph.pattern, sample, SEEDS)
    for hop in sample.hops:
        assert bool((weights[hop.edge_ids] > 0).all())
    lengths = [int((weights[a:b] > 0).sum()) for a, b in graph.indptr.unfold(0, 2, 1)[SEEDS]]
    assert sample.hops[0].indptr.diff().tolist() == lengths
    assert bool((sample.hops[0].weights == 1).all())


def test_a_hop_alone_is_that_of_the_sample(graph):
    draw = Draw(3, 1, 4)
    for name, sampler in samplers(graph).items():
        if not isinstance(sampler, NeighborSampler) or name == "undirected":
            continue
        sample = sampler.sample(SEEDS, draw)
        for k, hop in enumerate(sample.hops):
            options = {}
            if sampler.disjoint:
                options["roots"] = sample.batch[: hop.targets]
            if name in {"temporal", "past", "last"}:
                options["times"] = (SEEDS % 50)[sample.batch[: hop.targets]]
            indptr, columns, edge_ids, weights = sampler.sample_hop(
                sample.nodes[: hop.targets], k, draw, **options
            )
            assert torch.equal(indptr, hop.indptr)
            assert torch.equal(columns.long(), sample.nodes[hop.indices.long()])
            for a, b in ((edge_ids, hop.edge_ids), (weights, hop.weights)):
                assert (a is None) == (b is None)
                assert a is None or torch.equal(a, b)


def test_negatives_depend_on_the_draw_alone(graph):
    vertices = torch.tensor([4, 4, 7, 249])
    for method in ("uniform", "degree"):
        first = negatives(graph, vertices, 6, Draw(1), method=method, threads=1)
        assert torch.equal(first, negatives(graph, vertices, 6, Draw(1), method=method, threads=4))
        assert not torch.equal(first[0], first[1])
        assert first.shape == (4, 6)
        order = torch.from_numpy(np.random.default_rng(0).permutation(N))
        permuted = CSR.from_scipy(graph.to_scipy()[order.numpy()][:, order.numpy()])
        place = torch.argsort(order)
        moved = negatives(permuted, place[vertices], 6, Draw(1), method=method, vertex_ids=order)
        assert torch.equal(order[moved], first)


def test_empty_batches(graph):
    nothing = torch.empty(0, dtype=torch.int64)
    for name, sampler in samplers(graph).items():
        if name in {"node", "edge", "walk"}:
            continue
        sample = sampler.sample(nothing, Draw(0))
        assert len(sample.nodes) == 0
        assert all(hop.edges == 0 and hop.targets == 0 for hop in sample.hops)
    assert negatives(graph, nothing, 3, Draw(0)).shape == (0, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"weights": torch.ones(3)},
            r"weights must be a floating tensor \[\d+\], got float32 \[3\]",
        ),
        ({"weights": [1.0]}, "weights must be a floating tensor"),
        ({"edge_times": torch.ones(3, dtype=torch.int64)}, "edge_times must be a tensor, int64"),
        ({"node_times": torch.ones(N)}, "node_times must be a tensor, int64"),
        ({"temporal_strategy": "latest"}, "temporal_strategy latest: choose one of uniform, last"),
    ],
)
def test_bad_options(graph, options, said):
    with pytest.raises(InputError, match=said):
        NeighborSampler(graph, [3], **options)


def test_bad_calls(graph):
    weights = graph.values.clone()
    weights[7] = -1
    with pytest.raises(InputError, match="weights must be finite and not negative; entry 7 is -1"):
        NeighborSampler(graph, [3], weights=weights)
    timed = NeighborSampler(graph, [3], edge_times=torch.arange(graph.nnz))
    with pytest.raises(InputError, match="times of the seeds must be given"):
        timed.sample(SEEDS, Draw(0))
    with pytest.raises(InputError, match="roots must be given"):
        timed.sample_hop(SEEDS, 0, Draw(0))
    with pytest.raises(InputError, match="times must not be given"):
        NeighborSampler(graph, [3]).sample(SEEDS, Draw(0), SEEDS)
    with pytest.raises(InputError, match="2 batches, but 1 draws"):
        LaborSampler(graph, [3]).sample_many([SEEDS, SEEDS], [Draw(0)])
    for sampler in (
        LaborSampler(graph, [3]),
        LadiesSampler(graph, [3]),
        FastGCNSampler(graph, [3]),
    ):
        with pytest.raises(InputError, match="seeds: seed 4 is given twice"):
            sampler.sample(torch.tensor([4, 4]), Draw(0))
        with pytest.raises(InputError, match="seeds: seed 500 outside"):
            sampler.sample(torch.tensor([500]), Draw(0))
    with pytest.raises(InputError, match=r"method nodes: choose one of .*did you mean 'node'"):
        SaintSampler(graph, "nodes", 3)
    with pytest.raises(InputError, match="vertices: 500 outside"):
        NegativeSampler(graph).sample(torch.tensor([500]), 2, Draw(0))
    full = CSR.from_scipy(np.ones((4, 4), dtype=bool))
    with pytest.raises(InputError, match="vertex 2 has an edge with every vertex"):
        NegativeSampler(full).sample(torch.tensor([2]), 1, Draw(0))


OPTIONS = ({}, {"weights": True}, {"disjoint": True}, {"replace": True}, {"directed": False})


@pytest.mark.parametrize("more", OPTIONS, ids=str)
def test_a_vertex_has_one_order_of_its_neighbours(graph, more):
    """Without resampling a hop takes the first ones of it, so a later hop finds no others."""
    more = more | ({"weights": graph.values} if "weights" in more else {})
    sampler = NeighborSampler(graph, [9, 5, 3], resample=False, edge_ids=True, **more)
    sample = sampler.sample(SEEDS, Draw(2))
    if "directed" not in more:
        check_shape(graph.pattern, sample, SEEDS)
        for hop, other in pairwise(sample.hops):
            for i in range(hop.targets):
                row, fewer = (h.edge_ids[h.indptr[i] : h.indptr[i + 1]] for h in (hop, other))
                nested = "weights" not in more
                assert not nested or set(fewer.tolist()) <= set(row.tolist())
    same = NeighborSampler(graph, [5, 5], resample=False, edge_ids=True, **more)
    first, second = same.sample(SEEDS, Draw(2)).hops
    if "directed" not in more:
        assert torch.equal(second.edge_ids[: first.edges], first.edge_ids)


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("kind", ["uniform", "replace", "weighted", "labor", "fastgcn"])
def test_a_part_of_the_seeds_has_its_part_of_the_sample(graph, kind, resample):
    """Who else is in a batch changes nothing: so ranks train as one process does."""
    options = {"resample": resample, "edge_ids": True}
    sampler = {
        "uniform": lambda: NeighborSampler(graph, [9, 5, 3], **options),
        "replace": lambda: NeighborSampler(graph, [3, 5, 2], replace=True, **options),
        "weighted": lambda: NeighborSampler(graph, [5, 3], weights=graph.values, **options),
        "labor": lambda: LaborSampler(graph, [5, 3], edge_ids=True),
        "fastgcn": lambda: FastGCNSampler(graph, [90, 100], edge_ids=True),
    }[kind]()
    whole = sampler.sample(SEEDS, Draw(4, 1, 2))
    for part in SEEDS.split(50):
        sample = sampler.sample(part, Draw(4, 1, 2))
        for hop, other in zip(sample.hops, whole.hops, strict=True):
            place = {v: i for i, v in enumerate(whole.nodes[: other.targets].tolist())}
            for i, vertex in enumerate(sample.nodes[: hop.targets].tolist()):
                j = place[vertex]
                mine = slice(*hop.indptr[i : i + 2].tolist())
                theirs = slice(*other.indptr[j : j + 2].tolist())
                assert torch.equal(hop.edge_ids[mine], other.edge_ids[theirs])
                if hop.weights is not None:
                    assert torch.equal(hop.weights[mine], other.weights[theirs])


def test_sums_of_columns_do_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(0)
    columns, values = rng.integers(0, 50, 4000), rng.random(4000) ** 8
    most = float(values.max())
    whole = parts_of_sums(columns, values, 60, most, 4000)
    sums = sums_of_parts(whole, most, 4000)
    assert np.allclose(sums, np.bincount(columns, values, 60), rtol=1e-12, atol=0)
    order = rng.permutation(4000)
    ranks = [
        parts_of_sums(columns[o], values[o], 60, most, 4000) for o in np.split(order, [7, 900])
    ]
    assert np.array_equal(ranks[1] + ranks[2] + ranks[0], whole)
    assert not sums_of_parts(parts_of_sums(columns, 0 * values, 60, 0.0, 4000), 0.0, 4000).any()
