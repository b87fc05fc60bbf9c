"""Partitions of two levels, and rows counted by level."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from spgnn.partition import partition, report
from tests.partition.oracle import community_graph, matrices, uneven_communities


@given(
    matrices(), st.sampled_from([(1, 1), (4, 2), (6, 3), (6, 1), (5, 5), (130, 2)]),
    st.integers(0, 2**32 - 1), st.integers(1, 3),
)  # fmt: skip
def test_levels_are_counted_by_definition(A, shape, seed, threads):
    parts, nodes = shape
    size = parts // nodes
    labels = np.random.default_rng(seed).integers(0, parts, A.shape[0])
    levels = report(A, labels, parts, nodes=nodes, minimum=False, threads=threads)["levels"]
    rows, columns = A.nonzero()
    pairs = {(v, labels[i]) for i, v in zip(rows, columns, strict=True) if labels[i] != labels[v]}
    inside, flat = np.zeros((2, parts), int), np.zeros((2, parts), int)
    for v, p in pairs:
        counts = inside if p // size == labels[v] // size else flat
        counts[0, labels[v]] += 1
        counts[1, p] += 1
    between, arriving = np.zeros(parts, int), np.zeros(nodes, int)
    for v, node in {(v, p // size) for v, p in pairs if p // size != labels[v] // size}:
        between[labels[v]] += 1
        arriving[node] += 1
    assert levels["nodes"] == nodes
    for name, (sent, received) in {
        "inside": inside, "between_flat": flat, "between": (between, arriving),
    }.items():  # fmt: skip
        assert levels[name]["send"] == sent.tolist()
        assert levels[name]["recv"] == received.tolist()
        assert levels[name]["total"] == sent.sum()
        assert levels[name]["max_send"] == sent.max()


@pytest.mark.parametrize(
    ("preset", "objective"), [("fast", "column"), ("default", "column"), ("fast", "cover")]
)
def test_both_levels_keep_the_bound_and_less_crosses_nodes(preset, objective):
    A = uneven_communities(1200, seed=3)
    A = sp.csr_array(A + sp.eye_array(1200, dtype=bool))
    options = {"preset": preset, "objective": objective, "imbalance": 0.1}
    labels, found = partition(A, 12, nodes=3, threads=1, **options)
    again, _ = partition(A, 12, nodes=3, threads=3, **options)
    np.testing.assert_array_equal(labels, again)
    assert found["imbalance_met"]
    assert found["empty_parts"] == 0
    if objective == "column":
        flat, _ = partition(A, 12, **options)
        apart = report(A, flat, 12, nodes=3)["levels"]["between"]["total"]
        assert found["levels"]["between"]["total"] < apart


def test_neighbouring_parts_share_a_node():
    """Eight communities with some more edges between pairs: each pair is one node."""
    blocks = [community_graph(200, 2, seed) for seed in range(4)]
    A = sp.csr_array(sp.block_diag(blocks, format="csr").astype(bool))
    A = sp.csr_array(A + sp.eye_array(800, dtype=bool))
    labels, found = partition(A, 8, nodes=4)
    assert found["levels"]["between"]["total"] == 0
    for block in range(4):
        assert len(set(labels[200 * block : 200 * (block + 1)] // 2)) == 1


@pytest.mark.parametrize("nodes", [1, 4])
def test_one_node_or_one_part_each_is_an_ordinary_partition(nodes):
    A = community_graph(200, 4, seed=0)
    labels, found = partition(A, 4, nodes=nodes)
    np.testing.assert_array_equal(labels, partition(A, 4)[0])
    level = "inside" if nodes == 1 else "between"
    assert found["levels"][level]["total"] == found["total_volume"]


def test_a_node_may_have_few_vertices():
    """A row as heavy as all others, and ranks without any vertex."""
    n = 9
    dense = np.eye(n, dtype=bool)
    dense[0] = True
    labels, found = partition(sp.csr_array(dense), 6, nodes=2)
    assert found["levels"]["nodes"] == 2
    assert set(labels) <= set(range(6))
