"""Batches of whole clusters with their boundary: exact within."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import check_integer
from spgnn.hashing import uniform
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.exact import DistributedSampler
from spgnn.partition import partition
from spgnn.sampling import Draw, Hop, Sample, relabel
from spgnn.sparse import CSR


def clusters_of(block: CSR, boundary: Boundary, count: int, seed: int = 0) -> Tensor:
    """Partition a rank's own vertices into clusters; without communication.

    Parameters
    ----------
    block : CSR [own rows, n]
    boundary : Boundary
    count : int
    seed : int

    Returns
    -------
    Tensor int64 [own rows]
        Clusters are [0, count); some may be empty.
    """
    check_integer("clusters", count, 1)
    if not boundary.own:
        return torch.zeros(0, dtype=torch.int64)
    compact = CSR(boundary.compact(block)).to_scipy()[:, : boundary.own]
    labels, _ = partition(compact, count, seed=seed, balance=("vertices",), minimum=False)
    return torch.from_numpy(labels).long()


class ClusterSampler:
    """Some clusters at a time with whatever is so many hops around them, as one matrix.

    Cluster-GCN (Chiang et al., KDD 2019) has no boundary; with one (GraphTheta, Liu et al. 2021) of
    as many hops as the model has layers, what is made of the clusters is exact.

    Parameters
    ----------
    clusters : Tensor int64 [own rows]
        Cluster of each.
    sampler : DistributedSampler
        Of whole neighbourhoods, of as many hops as the boundary and one more.
    boundary : Boundary
    layers : int
        Of the model.
    each : int
        Clusters of a batch.
    """

    def __init__(
        self,
        clusters: Tensor,
        sampler: DistributedSampler,
        boundary: Boundary,
        layers: int,
        each: int = 1,
    ) -> None:
        self.layers = check_integer("layers", layers, 1)
        self.each = check_integer("clusters a batch", each, 1)
        self._sampler = sampler
        order = clusters.argsort(stable=True)
        sizes = torch.bincount(clusters).tolist()
        self.clusters = [part for part in (order + boundary.first).split(sizes) if len(part)]

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        """The vertices of this rank's batches in an epoch, each cluster in one of them."""
        numbers = np.arange(len(self.clusters), dtype=np.int64)
        order = uniform(numbers, seed, f"clusters {epoch}").argsort(kind="stable").tolist()
        return [
            torch.cat([self.clusters[number] for number in order[first : first + self.each]])
            for first in range(0, len(order), self.each)
        ]

    def sample(self, batches: Sequence[Tensor]) -> list[Sample]:
        """Several batches at once; ranks may have different numbers of them. Collective.

        Parameters
        ----------
        batches : sequence of Tensor int64
            Rows of the whole matrix.

        Returns
        -------
        list of Sample
            Seeds are all vertices of the clusters. All hops but the first are the same.
        """
        asking = self._sampler.asking([Draw(0)] * len(batches))
        nodes, new = list(batches), list(batches)
        parts: list[list[tuple[Tensor, Tensor, Tensor | None]]] = [[] for _ in batches]
        for hop in range(self._sampler.hops):
            for batch, found in enumerate(asking.rows_of(new, hop)):
                indptr, columns, edge_ids, _ = found
                parts[batch].append((indptr, columns, edge_ids))
                if hop + 1 < self._sampler.hops:
                    known = nodes[batch]
                    before = indptr.new_zeros(len(known) - len(new[batch]))
                    nodes[batch], _ = relabel(known, torch.cat((before, indptr)), columns)
                    new[batch] = nodes[batch][len(known) :]
        return [
            self._joined(len(seeds), found, rows)
            for seeds, found, rows in zip(batches, nodes, parts, strict=True)
        ]

    def _joined(
        self, seeds: int, nodes: Tensor, parts: Sequence[tuple[Tensor, Tensor, Tensor | None]]
    ) -> Sample:
        """The matrix of a batch: rows of the vertices hop by hop, columns that are among them."""
        lengths = torch.cat([indptr.diff() for indptr, _, _ in parts])
        columns = torch.cat([part for _, part, _ in parts])
        by_number = nodes.argsort()
        place = torch.searchsorted(nodes[by_number], columns).clamp_(max=max(len(nodes) - 1, 0))
        inside = nodes[by_number[place]] == columns
        before = torch.zeros(len(columns) + 1, dtype=torch.int64)
        torch.cumsum(inside, 0, out=before[1:])
        indptr = before[torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))]
        indices = by_number[place[inside]].int()
        numbered = [edges for _, _, edges in parts if edges is not None]
        edge_ids = torch.cat(numbered)[inside] if numbered else None
        square = Hop(indptr, indices, edge_ids, None, len(nodes))
        end = int(indptr[seeds])
        first = Hop(
            indptr[: seeds + 1],
            indices[:end],
            None if edge_ids is None else edge_ids[:end],
            None,
            len(nodes),
        )
        return Sample(nodes, seeds, [first, *[square] * (self.layers - 1)])
