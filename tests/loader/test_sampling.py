"""Samplers: threads, permutations and other seeds change nothing; options, and bad input."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, _native
from spgnn.errors import InputError
from spgnn.loader import (
    ClusterSampler,
    Draw,
    FastGCNSampler,
    LaborSampler,
    LadiesSampler,
    NegativeSampler,
    NeighborSampler,
    SaintSampler,
)
from spgnn.loader.layerwise import parts_of_sums, sums_of_parts
from spgnn.loader.sampling import relabel, sampled_rows
from spgnn.loader.subgraphs import induced
from spgnn.pattern import Pattern
from tests.loader.graphs import arrays, assert_equal, check_shape, random_graph, row_of

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


def test_every_part_of_a_draw_counts_and_nothing_else_does():
    pattern = random_graph(200, 0.2, 1).pattern
    sampler = NeighborSampler(pattern, [5, 5])
    seeds = torch.arange(50)
    first = sampler.sample(seeds, Draw(1, 2, 3))
    for other in (Draw(0, 2, 3), Draw(1, 0, 3), Draw(1, 2, 0), Draw(1, 3, 2)):
        assert not torch.equal(sampler.sample(seeds, other).hops[0].indices, first.hops[0].indices)
    assert_equal(sampler.sample(seeds, Draw(1, 2, 3)), first)
    # Hops draw anew.
    both = [row_of_sample(first, k, 0) for k in (0, 1)]
    assert both[0] != both[1]


def row_of_sample(sample, hop, target):
    first, last = sample.hops[hop].indptr[target : target + 2].tolist()
    return sorted(sample.nodes[sample.hops[hop].indices[first:last].long()].tolist())


def test_one_hop_of_a_rectangular_pattern_and_the_union():
    whole = random_graph(120, 0.2, 8)
    block = CSR.from_scipy(whole.to_scipy()[40:80])
    ids = torch.arange(120)
    sampler = NeighborSampler(block, [6], edge_ids=True, vertex_ids=ids, row_ids=ids[40:80])
    reference = NeighborSampler(whole, [6], edge_ids=True).sample(ids[45:70], Draw(9))
    indptr, columns, edge_ids, weights = sampler.sample_hop(ids[5:30], 0, Draw(9))
    assert weights is None
    assert torch.equal(indptr, reference.hops[0].indptr)
    assert torch.equal(columns, block.indices[edge_ids])
    nodes, indices = relabel(ids[45:70], indptr, columns)
    assert torch.equal(nodes, reference.nodes)
    assert torch.equal(indices, reference.hops[0].indices)
    with pytest.raises(InputError, match="square"):
        sampler.sample(ids[:3], Draw(0))


def test_all_neighbours():
    pattern = random_graph(60, 0.1, 4).pattern
    sample = NeighborSampler(pattern, [-1]).sample(torch.arange(60), Draw(0))
    assert torch.equal(sample.hops[0].indptr, pattern.indptr)
    assert torch.equal(sample.hops[0].indices, pattern.indices)
    assert torch.equal(sample.nodes, torch.arange(60))
    assert row_of(pattern, 58) == []


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (torch.tensor([1, 2, 1]), "seed 1 is given twice"),
        (torch.tensor([1, 60]), r"seed 60 outside \[0, 60\)"),
        (torch.tensor([-1]), "seed -1 outside"),
        (torch.tensor([1], dtype=torch.int32), "seeds must be a tensor, int64"),
        ([1], "seeds must be a tensor, int64"),
    ],
)
def test_bad_seeds(seeds, said):
    sampler = NeighborSampler(random_graph(60, 0.1, 4), [3])
    with pytest.raises(InputError, match=said):
        sampler.sample(seeds, Draw(0))
    # Nothing of it is left behind.
    good = torch.arange(60)
    fresh = NeighborSampler(random_graph(60, 0.1, 4), [3])
    assert_equal(sampler.sample(good, Draw(0)), fresh.sample(good, Draw(0)))


def test_bad_arguments():
    graph = random_graph(20, 0.1, 4)
    with pytest.raises(InputError, match="num_neighbors must be an integer of at least -1"):
        NeighborSampler(graph, [3, -2])
    with pytest.raises(InputError, match="num_neighbors must be a list"):
        NeighborSampler(graph, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"vertex_ids must be a tensor, int64 \[20\]"):
        NeighborSampler(graph, [3], vertex_ids=torch.arange(19))
    with pytest.raises(InputError, match="threads"):
        NeighborSampler(graph, [3], threads=0)
    with pytest.raises(InputError, match="a Pattern or a CSR"):
        NeighborSampler(graph.to_scipy(), [3])
    with pytest.raises(InputError, match="hop must be"):
        NeighborSampler(graph, [3]).sample_hop(torch.arange(3), 1, Draw(0))
    with pytest.raises(InputError, match="given twice"):
        relabel(torch.tensor([1, 1]), torch.tensor([0, 1, 2]), torch.tensor([1, 2]))
    with pytest.raises(InputError, match="end at 3"):
        relabel(torch.tensor([1, 2]), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]))


MANY = 4000
# Fewer than the tasks of a hop and more, and so many that all of them number the columns.
THREADS = (2, 3, 12)


@pytest.fixture(scope="module")
def large_graph():
    return random_graph(MANY, 0.004, 6, weighted=True)


def sampler_of(large_graph, kind: str, fanouts: list[int], threads: int) -> NeighborSampler:
    options = {
        "plain": {},
        "weighted": {"weights": large_graph.values},
        "replace": {"replace": True},
        "disjoint": {"disjoint": True},
        "once": {"resample": False},
        "undirected": {"directed": False},
    }[kind]
    return NeighborSampler(large_graph, fanouts, edge_ids=True, threads=threads, **options)


@pytest.mark.parametrize("kind", ["plain", "weighted", "replace", "disjoint", "once", "undirected"])
@pytest.mark.parametrize("fanouts", [[6, 4], [-1, -1], [0, 5], [3, 0, 2], [70], []], ids=str)
def test_batches_of_any_number_of_threads(large_graph, kind, fanouts):
    # 512 targets are one task.
    shapes = [torch.arange(0, MANY, MANY // count)[:count] for count in (1, 512, 513, 1600)]
    shapes += [torch.tensor([], dtype=torch.int64), torch.tensor([MANY - 1, MANY - 2])]
    one = sampler_of(large_graph, kind, fanouts, 1)
    others = [sampler_of(large_graph, kind, fanouts, threads) for threads in THREADS]
    for seeds in shapes:
        expected = one.sample(seeds, Draw(3))
        if kind != "undirected":
            check_shape(large_graph.pattern, expected, seeds)
        for other in others:
            assert_equal(other.sample(seeds, Draw(3)), expected)


def test_hops_that_are_numbered_afterwards(large_graph):
    one, *others = (LadiesSampler(large_graph, [900, 900], threads=t) for t in (1, *THREADS))
    for other in others:
        seeds = torch.arange(0, MANY, 3)
        assert_equal(other.sample(seeds, Draw(3)), one.sample(seeds, Draw(3)))


def test_arrays_stay_while_others_come_and_go(large_graph):
    # Batches of very different sizes, some of which are kept and some of which leave memory behind.
    weighted = {
        threads: sampler_of(large_graph, "weighted", [9, 9], threads) for threads in (1, 2, 12)
    }
    counts = [3, 2000, 700, 40, 1500, 1, 1999, 800]
    kept = []

    def work(job: int) -> None:
        seeds = torch.randperm(MANY, generator=torch.Generator().manual_seed(job))
        sampler = weighted[(1, 2, 12)[job % 3]]
        sample = sampler.sample(seeds[: counts[job % len(counts)]], Draw(job))
        found = arrays(sample)
        if job % 5:
            kept.append((sample, [array.clone() for array in found]))
        if job % 7 == 0 and kept:
            kept.pop(0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(120)))
    assert len(kept) > 50
    for sample, copies in kept:
        for array, copy in zip(arrays(sample), copies, strict=True):
            assert torch.equal(array, copy)


def check_induced(graph, sample):
    """All entries between the nodes, and which they are."""
    (hop, *rest) = sample.hops
    assert all(other is hop for other in rest)
    assert hop.targets == hop.sources == sample.seeds == len(sample.nodes)
    nodes = sample.nodes.numpy()
    expected = graph.to_scipy()[nodes][:, nodes].toarray()
    found = np.zeros_like(expected)
    rows = np.repeat(np.arange(len(nodes)), hop.indptr.diff().numpy())
    found[rows, hop.indices.numpy()] = graph.values[hop.edge_ids].numpy()
    assert np.array_equal(found, expected)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.floats(0, 0.7), st.integers(1, 3), st.data())
def test_induced(n, density, layers, data):
    graph = random_graph(n, density, 1, weighted=True)
    chosen = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    vertices = torch.tensor(chosen, dtype=torch.int64)
    sample = induced(
        sampled_rows(graph, threads=2), vertices, layers=layers, edge_ids=True, threads=2
    )
    assert torch.equal(sample.nodes, vertices)
    assert len(sample.hops) == layers
    check_induced(graph, sample)


def test_clusters():
    graph = random_graph(90, 0.1, 1, weighted=True)
    labels = torch.arange(90) % 7
    sampler = ClusterSampler(graph, labels, layers=2, edge_ids=True)
    assert sampler.clusters == 7
    for chosen in ([3], [5, 0, 2], []):
        sample = sampler.sample(torch.tensor(chosen, dtype=torch.int64), Draw(0))
        expected = [v for c in chosen for v in range(90) if v % 7 == c]
        assert sample.nodes.tolist() == expected
        check_induced(graph, sample)
    with pytest.raises(InputError, match=r"cluster 7 outside \[0, 7\)"):
        sampler.sample(torch.tensor([7]), Draw(0))
    with pytest.raises(InputError, match="vertices: seed 1 is given twice"):
        sampler.sample(torch.tensor([1, 1]), Draw(0))
    with pytest.raises(InputError, match="labels must be a tensor, int64"):
        ClusterSampler(graph, labels[:5])
    with pytest.raises(InputError, match="labels must not be negative"):
        ClusterSampler(graph, labels - 1)


OTHERS = [name for name in _native.instruction_sets() if name != "baseline"]
# Rows that are taken whole, nearly whole, fetched whole, by place, and too long for one number.
DEGREES = [3, 6, 7, 9, 12, 14, 20, 40, 64, 65, 100, 300, 1000, 1100, 5000, 13000]


@pytest.fixture
def use_instruction_set():
    """A setter of the instruction set that is undone after the test."""
    yield _native.use_instruction_set
    _native.use_instruction_set(_native.instruction_sets()[0])


def pattern_and_weights(skewed: bool) -> tuple[Pattern, torch.Tensor]:
    degrees = np.tile(DEGREES, 12)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    indices = np.concatenate([np.arange(degree) for degree in degrees]).astype(np.int32)
    shape = (len(degrees), int(max(degrees)))
    pattern = Pattern(torch.from_numpy(indptr), torch.from_numpy(indices), shape)
    rng = np.random.default_rng(0)
    weights = rng.random(len(indices)) + 0.01
    return pattern, torch.from_numpy(weights ** (30 if skewed else 1))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("skewed", [False, True], ids=["even", "skewed"])
def test_samples_are_the_same(use_instruction_set, name, skewed):
    pattern, weights = pattern_and_weights(skewed)
    targets = torch.arange(pattern.shape[0])
    for k in (1, 2, 5, 7, 8, 10, 15, 16, 24, 25):
        sampler = NeighborSampler(pattern, [k], weights=weights)
        drawn = {}
        for instructions in ("baseline", name):
            use_instruction_set(instructions)
            drawn[instructions] = sampler.sample_hop(targets, 0, Draw(k))
        for expected, found in zip(drawn["baseline"], drawn[name], strict=True):
            assert (expected is None and found is None) or torch.equal(expected, found)


def test_unknown_instruction_sets_are_named(use_instruction_set):
    with pytest.raises(ValueError, match="no instruction set sse9 here"):
        use_instruction_set("sse9")
