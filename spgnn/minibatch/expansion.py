"""Neighbourhoods in which every vertex is expanded once, as PyG draws them."""

from __future__ import annotations

from collections.abc import Generator, Sequence, Sized
from typing import Protocol

import torch
from torch import Tensor

from spgnn.sampling import Draw, Hop, Sample, relabel


class HopSampler(Protocol):
    """Draws neighbours of some vertices, hop by hop."""

    @property
    def num_neighbors(self) -> Sized:
        """One number a hop."""

    def sample_hop(
        self, targets: Tensor, hop: int, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """As :meth:`spgnn.sampling.NeighborSampler.sample_hop`."""


class Once:
    """Draws neighbours of a vertex when it is found, and uses them in every layer.

    :class:`~spgnn.sampling.NeighborSampler` draws anew in each hop, for all that was found before
    as well. Here all hops are one matrix, the rows of which stand in the order found, and the hop
    of a layer is its first rows: nothing is drawn twice, stored twice or copied.

    Parameters
    ----------
    sampler : HopSampler
    """

    def __init__(self, sampler: HopSampler) -> None:
        self._sampler = sampler

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of the seeds, int64 [seeds], each different."""
        return _grown(self._sampler, once(seeds, len(self._sampler.num_neighbors)), draw)


class Anew:
    """Draws neighbours anew in each hop, for all that was found before as well.

    What :meth:`spgnn.sampling.NeighborSampler.sample` does, for a sampler that knows hops alone.

    Parameters
    ----------
    sampler : HopSampler
    """

    def __init__(self, sampler: HopSampler) -> None:
        self._sampler = sampler

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of the seeds, int64 [seeds], each different."""
        return _grown(self._sampler, anew(seeds, len(self._sampler.num_neighbors)), draw)


Found = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Of some targets: indptr, columns, numbers of edges, weights."""
Growth = Generator[Tensor, Found, Sample]
"""Yields the targets of one hop after the other, is sent what was drawn, and returns the sample."""


def _grown(sampler: HopSampler, growth: Growth, draw: Draw) -> Sample:
    """A sample for which one sampler draws everything."""
    try:
        hop, targets = 0, next(growth)
        while True:
            targets = growth.send(sampler.sample_hop(targets, hop, draw))
            hop += 1
    except StopIteration as grown:
        sample: Sample = grown.value
        return sample


def once(seeds: Tensor, hops: int) -> Growth:
    """A sample in which every vertex is expanded once; whoever drives it draws."""
    nodes, expanded, edges = seeds, 0, 0
    drawn, ends, sizes = [], [seeds.new_zeros(1)], []
    for _ in range(hops):
        found = yield nodes[expanded:]
        indptr = found[0]
        padded = torch.cat((indptr.new_zeros(expanded), indptr))
        expanded = len(nodes)
        nodes, indices = relabel(nodes, padded, found[1])
        ends.append(indptr[1:] + edges)
        edges += len(indices)
        drawn.append((indices, *found[2:]))
        sizes.append((expanded, edges, len(nodes)))
    whole = torch.cat(ends)
    columns, edge_ids, weights = (_joined(part) for part in zip(*drawn, strict=True))
    assert columns is not None
    made = [
        Hop(whole[: rows + 1], columns[:end], _first(edge_ids, end), _first(weights, end), cols)
        for rows, end, cols in sizes
    ]
    return Sample(nodes, len(seeds), made)


def anew(seeds: Tensor, hops: int) -> Growth:
    """A sample in which each hop draws for all that was found before it."""
    nodes, made = seeds, []
    for _ in range(hops):
        indptr, columns, edge_ids, weights = yield nodes
        nodes, indices = relabel(nodes, indptr, columns)
        made.append(Hop(indptr, indices, edge_ids, weights, len(nodes)))
    return Sample(nodes, len(seeds), made)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    return None if parts[0] is None else torch.cat([part for part in parts if part is not None])


def _first(array: Tensor | None, count: int) -> Tensor | None:
    return None if array is None else array[:count]
