"""Neighbour sampling: what a sample is, and that nothing but the draw changes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR
from spgnn.errors import InputError
from spgnn.loader import Draw, NeighborSampler
from spgnn.loader.sampling import relabel
from tests.loader.graphs import assert_equal, check_shape, random_graph, row_of


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 40),
    st.floats(0, 0.6),
    st.lists(st.sampled_from([-1, 0, 1, 2, 5, 40, 100]), max_size=3),
    st.booleans(),
    st.data(),
)
def test_samples_are_rows_of_the_graph(n, density, fanouts, replace, data):
    pattern = random_graph(n, density, 3).pattern
    seeds = torch.tensor(
        data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n)), dtype=torch.int64
    )
    sampler = NeighborSampler(pattern, fanouts, replace=replace, edge_ids=True, threads=2)
    sample = sampler.sample(seeds, Draw(1, 2, 3))
    check_shape(pattern, sample, seeds)
    for hop, fanout in zip(sample.hops, fanouts, strict=True):
        degrees = pattern.row_lengths[sample.nodes[: hop.targets]]
        if fanout < 0:
            expected = degrees
        elif replace:
            expected = torch.where(degrees > 0, fanout, 0)
        else:
            expected = degrees.clamp(max=fanout)
        assert torch.equal(hop.indptr.diff(), expected)
        if not replace or fanout < 0:
            assert len(hop.edge_ids.unique()) == hop.edges


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("n", [400, 6000])
def test_threads_do_not_change_a_sample(n, replace):
    # Hops of more than 8192 edges are numbered by all threads where these are many.
    pattern = random_graph(n, 12 / n, 5).pattern
    seeds = torch.arange(0, n, 7)
    samples = [
        NeighborSampler(
            pattern, [10, -1, 40], replace=replace, edge_ids=True, threads=threads
        ).sample(seeds, Draw(7))
        for threads in (1, 2, 12)
    ]
    check_shape(pattern, samples[0], seeds)
    assert_equal(samples[0], samples[1])
    assert_equal(samples[0], samples[2])


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


def test_original_ids_alone_decide():
    A = random_graph(300, 0.1, 2)
    order = torch.from_numpy(np.random.default_rng(0).permutation(300))  # new vertex -> original
    matrix = A.to_scipy()[order.numpy()][:, order.numpy()]
    permuted = CSR.from_scipy(matrix)
    plain = NeighborSampler(A, [7, 20, -1], edge_ids=True)
    moved = NeighborSampler(permuted, [7, 20, -1], edge_ids=True, vertex_ids=order)
    place = torch.argsort(order)
    seeds = torch.arange(0, 300, 11)
    expected, found = plain.sample(seeds, Draw(4)), moved.sample(place[seeds], Draw(4))
    assert torch.equal(order[found.nodes], expected.nodes)
    for a, b in zip(expected.hops, found.hops, strict=True):
        assert torch.equal(a.indptr, b.indptr)
        assert torch.equal(a.indices, b.indices)
    check_shape(permuted.pattern, found, place[seeds])


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
