"""Graphs and checks that the tests of samplers share."""

from __future__ import annotations

import numpy as np
import torch

from spgnn import CSR
from spgnn.pattern import Pattern
from tests.matrices import random_matrix


def random_graph(n: int, density: float, seed: int, *, weighted: bool = False) -> CSR:
    """With an isolated vertex, a full row and a full column."""
    A = random_matrix(n, density, seed, weighted=weighted)
    if weighted:
        A.data = np.abs(A.data).astype(np.float32) + 0.01
    return CSR.from_scipy(A)


def row_of(pattern: Pattern, vertex: int) -> list[int]:
    first, last = pattern.indptr[vertex : vertex + 2].tolist()
    return pattern.indices[first:last].tolist()


def arrays(sample) -> list[torch.Tensor]:
    """Everything that a sample says."""
    found = [sample.nodes]
    for hop in sample.hops:
        found += [hop.indptr, hop.indices, torch.tensor(hop.sources)]
        found += [a for a in (hop.edge_ids, hop.weights) if a is not None]
    return found + ([] if sample.batch is None else [sample.batch])


def assert_equal(a, b) -> None:
    """Two samples are the same, bit by bit."""
    left, right = arrays(a), arrays(b)
    assert len(left) == len(right)
    assert all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


def check_shape(pattern: Pattern, sample, seeds: torch.Tensor) -> None:
    """What every sample promises; hops must have edge ids."""
    assert sample.nodes.dtype == torch.int64
    assert sample.seeds == len(seeds)
    assert torch.equal(sample.nodes[: sample.seeds], seeds)
    if sample.batch is None:
        assert len(sample.nodes.unique()) == len(sample.nodes)
    targets = len(seeds)
    for hop in sample.hops:
        assert hop.targets == targets
        assert int(hop.indptr[-1]) == hop.edges == len(hop.edge_ids)
        assert bool((hop.indptr.diff() >= 0).all())
        if hop.edges:
            assert int(hop.indices.min()) >= 0
            assert int(hop.indices.max()) < hop.sources
        rows = sample.nodes[:targets].repeat_interleave(hop.indptr.diff())
        assert torch.equal(pattern.indices[hop.edge_ids].long(), sample.nodes[hop.indices.long()])
        true_rows = torch.searchsorted(pattern.indptr, hop.edge_ids, right=True) - 1
        assert torch.equal(true_rows, rows)
        # New sources come in the order found.
        first_seen = list(dict.fromkeys(hop.indices.tolist()))
        new = [i for i in first_seen if i >= targets]
        assert new == list(range(targets, hop.sources))
        targets = hop.sources
    assert targets == len(sample.nodes)
