"""Samples that grow hop by hop from rows that lie elsewhere: on a disk, or with other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn.addons.batches.samplers import GraphSampler
from spgnn.addons.batches.sampling import Draw, Hop, Sample, offsets_of, relabel
from spgnn.pattern import Pattern

_NONE = torch.zeros(0, dtype=torch.int64)


class RowEntries(NamedTuple):
    """Rows of the whole matrix, as they were drawn or whole."""

    indptr: Tensor
    columns: Tensor
    # A number or value of each entry; of whole rows the columns' original ids.
    edges: Tensor | None = None
    weights: Tensor | None = None  # factors of the sampler; of whole rows the matrix's values


class NeighborGrowth:
    """A sample whose vertices each draw for themselves."""

    def __init__(self, seeds: Tensor, draw: Draw) -> None:
        self.nodes, self.draw, self._seeds = seeds, draw, len(seeds)
        self._hops: list[Hop] = []
        self._edges: list[Tensor] = []

    @property
    def targets(self) -> Tensor:
        return self.nodes

    def take(self, rows: RowEntries, hop: int) -> None:
        """The next hop: drawn neighbours of the targets."""
        numbers = None
        if rows.edges is not None:
            before = sum(map(len, self._edges))
            numbers = torch.arange(before, before + len(rows.edges))
            self._edges.append(rows.edges)
        self.nodes, indices = relabel(self.nodes, rows.indptr, rows.columns)
        self._hops.append(Hop(rows.indptr, indices, numbers, rows.weights, len(self.nodes)))

    def result(self) -> tuple[Sample, Tensor | None]:
        """The sample, and the table of `edges` that its hops' edge ids are places in."""
        edges = torch.cat(self._edges) if self._edges else None
        return Sample(self.nodes, self._seeds, self._hops), edges


class WholeRowGrowth:
    """A sample in which what a target takes depends on the other targets of a hop, as in LABOR.

    So the whole rows of all targets are brought here, each once, in the order in which one process
    reads them; a hop is that of the same sampler on a graph of these rows alone.
    """

    def __init__(
        self,
        seeds: Tensor,
        draw: Draw,
        kind: type[GraphSampler],
        counts: Sequence[int],
        threads: int | None = None,
    ) -> None:
        self.nodes, self.draw, self._seeds = seeds, draw, len(seeds)
        self._kind, self._counts, self._threads = kind, counts, threads
        self._known = 0
        self._indptr, self._columns, self._ids = torch.zeros(1, dtype=torch.int64), _NONE, _NONE
        self.values = torch.zeros(0)
        self._hops: list[Hop] = []

    @property
    def targets(self) -> Tensor:
        return self.nodes[self._known :]

    def take(self, rows: RowEntries, hop: int) -> None:
        """The next hop: whole rows of the targets."""
        assert rows.edges is not None
        self._known = targets = len(self.nodes)
        self._indptr = torch.cat((self._indptr, rows.indptr[1:] + self._indptr[-1]))
        self._columns = torch.cat((self._columns, rows.columns.long()))
        self._ids = torch.cat((self._ids, rows.edges))
        if rows.weights is not None:
            self.values = torch.cat((self.values, rows.weights))
        nodes, indices = relabel(self.nodes, self._indptr, self._columns)
        ids = torch.zeros(len(nodes), dtype=torch.int64)
        ids[indices.long()] = self._ids
        empty = self._indptr[-1:].expand(len(nodes) - targets)
        shape = len(nodes), len(nodes)
        pattern = Pattern.trusted(torch.cat((self._indptr, empty)), indices, shape)
        values = None if rows.weights is None else self.values
        options: dict[str, Any] = {"edge_ids": True, "vertex_ids": ids, "first_hop": hop}
        count = [self._counts[hop]]
        sampler = self._kind.of_matrix(pattern, values, count, threads=self._threads, **options)
        sample = sampler.sample(torch.arange(targets), self.draw)
        self.nodes = nodes[sample.nodes]
        self._hops.append(sample.hops[0])

    def result(self) -> tuple[Sample, Tensor | None]:
        """The sample, whose edge ids are places among all entries of the known rows."""
        return Sample(self.nodes, self._seeds, self._hops), None


class ClusterGrowth:
    """A sample of clusters and all vertices within some hops of them, as one square matrix."""

    def __init__(self, seeds: Tensor, draw: Draw, *, hops: int, layers: int) -> None:
        self.nodes = self.targets = seeds
        self._seeds, self._hops, self._layers = len(seeds), hops, layers
        self._rows: list[RowEntries] = []

    def take(self, rows: RowEntries, hop: int) -> None:
        """The whole rows of the targets."""
        self._rows.append(rows)
        if hop + 1 < self._hops:
            size = len(self.nodes)
            before = rows.indptr.new_zeros(size - len(self.targets))
            indptr = torch.cat((before, rows.indptr))
            self.nodes, _ = relabel(self.nodes, indptr, rows.columns)
            self.targets = self.nodes[size:]

    def result(self) -> tuple[Sample, Tensor | None]:
        """Rows of the vertices hop by hop, with those columns that are among them."""
        nodes, seeds = self.nodes, self._seeds
        lengths = torch.cat([part.indptr.diff() for part in self._rows])
        columns = torch.cat([part.columns for part in self._rows])
        by_number = nodes.argsort()
        place = torch.searchsorted(nodes[by_number], columns).clamp_(max=max(len(nodes) - 1, 0))
        inside = nodes[by_number[place]] == columns
        before = offsets_of(inside)
        indptr = before[torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))]
        indices = by_number[place[inside]].int()
        parts = [part.edges for part in self._rows if part.edges is not None]
        edges = torch.cat(parts)[inside] if parts else None
        numbers = None if edges is None else torch.arange(len(edges))
        square = Hop(indptr, indices, numbers, None, len(nodes))
        end = int(indptr[seeds])
        of_seeds = None if numbers is None else numbers[:end]
        first = Hop(indptr[: seeds + 1], indices[:end], of_seeds, None, len(nodes))
        return Sample(nodes, seeds, [first, *[square] * (self._layers - 1)]), edges


Growth = NeighborGrowth | WholeRowGrowth | ClusterGrowth
