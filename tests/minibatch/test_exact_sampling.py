"""What ranks sample together is what one process samples of the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn import CSR
from spgnn.comm import connect
from spgnn.layout import RowLayout
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.exact import DistributedSampler
from spgnn.minibatch.expansion import Once
from spgnn.minibatch.questions import rows_of_ranks
from spgnn.sampling import Draw, NeighborSampler, Sample
from spgnn.testing import run_ranks
from tests.matrices import random_matrix, uneven_layout

N, FANOUTS = 80, (3, -1, 2)
BATCHES = 6


def matrix() -> sp.csr_array:
    return random_matrix(N, 0.06, 5, weighted=False)


def permutation() -> np.ndarray:
    """Original id of each row after partitioning."""
    return np.random.default_rng(9).permutation(N)


def seeds(batch: int) -> np.ndarray:
    rng = np.random.default_rng(batch)
    return rng.permutation(N)[: rng.integers(0, 9)]


def of_one_process(batch: int, *, resample: bool) -> Sample:
    sampler = NeighborSampler(CSR.from_scipy(matrix()), FANOUTS, edge_ids=True)
    made = sampler if resample else Once(sampler)
    return made.sample(torch.from_numpy(seeds(batch)), Draw(7, 2, batch))


class Share:
    """One rank's rows of the permuted matrix."""

    def __init__(self, rank: int, layout: RowLayout) -> None:
        self.comm, self.layout = connect(), layout
        ids = permutation()
        first, last = layout.range(rank)
        self.A = sp.csr_array(matrix()[ids][:, ids])
        self.A.sort_indices()
        self.block = CSR.from_scipy(self.A[first:last])
        self.own_ids = torch.from_numpy(ids[first:last])
        self.boundary = Boundary.found(self.block, layout, self.comm)
        columns = self.boundary.of_columns(self.own_ids, self.comm)
        sampler = NeighborSampler(
            self.boundary.compact(self.block), FANOUTS, edge_ids=True, vertex_ids=columns
        )
        rows = torch.arange(first, last).repeat_interleave(self.block.row_lengths)
        ends = torch.stack((rows, self.block.indices.long()), 1)
        self.sampler = DistributedSampler(
            sampler, self.boundary, layout, self.comm, edges=torch.from_numpy(ids)[ends]
        )


def check(rank: int, parts: int) -> None:
    share = Share(rank, uneven_layout(N, parts, 4))
    ids = torch.from_numpy(permutation())
    row = torch.empty(N, dtype=torch.int64)
    row[ids] = torch.arange(N)
    # Rank r has batches r, r + P, …: not as many on all ranks.
    mine = list(range(rank, BATCHES, parts))
    entries = sp.csr_array(matrix()).tocoo()
    ends = torch.from_numpy(np.stack((entries.row, entries.col), 1))
    for resample in (False, True):
        samples = share.sampler.sample(
            [row[torch.from_numpy(seeds(b))] for b in mine],
            [Draw(7, 2, b) for b in mine],
            resample=resample,
        )
        assert len(samples) == len(mine)
        for batch, (sample, edges) in zip(mine, samples, strict=True):
            one = of_one_process(batch, resample=resample)
            assert torch.equal(ids[sample.nodes], one.nodes)
            assert sample.seeds == one.seeds
            for hop, other in zip(sample.hops, one.hops, strict=True):
                assert torch.equal(hop.indptr, other.indptr)
                assert torch.equal(hop.indices, other.indices)
                assert hop.sources == other.sources
                assert torch.equal(edges[hop.edge_ids], ends[other.edge_ids])
    check_rows(share, rank)


def check_rows(share: Share, rank: int) -> None:
    """Rows of features, dense and sparse, with and without values; each byte in the ledger."""
    first, last = share.layout.range(rank)
    X = torch.arange(N * 3, dtype=torch.float32).view(N, 3)
    wanted = torch.from_numpy(np.random.default_rng(rank).integers(0, N, 11 * rank))
    before = share.comm.ledger.copy()
    found = rows_of_ranks(X[first:last], wanted, share.layout, share.comm)
    assert torch.equal(found, X[wanted])
    remote = int((~share.boundary.is_own(wanted)).sum())
    moved = share.comm.ledger.since(before).of("alltoall").received_bytes
    counts = 8 * (share.comm.size - 1)
    assert moved - remote * 12 - counts == asked_of(rank, share) * 4
    for pattern in (False, True):
        sparse = random_matrix(N, 0.1, 1, weighted=True)
        sparse = sparse.astype(np.bool_) if pattern else sparse
        block = CSR.from_scipy(sparse[first:last])
        rows = rows_of_ranks(block, wanted, share.layout, share.comm)
        assert (rows.to_scipy() != sparse[wanted.numpy()]).nnz == 0
        assert (rows.values is None) is pattern


def asked_of(rank: int, share: Share) -> int:
    """How many rows the others ask of this rank."""
    first, last = share.layout.range(rank)
    drawn: list[Tensor] = [
        torch.from_numpy(np.random.default_rng(r).integers(0, N, 11 * r))
        for r in range(share.comm.size)
        if r != rank
    ]
    return sum(int(((rows >= first) & (rows < last)).sum()) for rows in drawn)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_batches_are_those_of_one_process(parts):
    run_ranks(check, parts, parts)
