"""Samples that grow hop by hop from rows that lie elsewhere: on a disk, or with other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn.addons.batches.sampling import (
    Draw,
    Hop,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    Sample,
    hop_counts,
    offsets_of,
    relabel,
)
from spgnn.addons.diskbatches import DiskPattern
from spgnn.errors import InputError
from spgnn.pattern import Pattern

ENTRIES = 1 << 22  # of rows on a disk that are in memory at once, unless one row has more
_NONE = torch.zeros(0, dtype=torch.int64)


class RowEntries(NamedTuple):
    """Rows of the whole matrix, as they were drawn or whole."""

    indptr: Tensor
    columns: Tensor
    edges: Tensor | None = (
        None  # a number or value of each; of whole rows the columns' original ids
    )
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
    """A sample of LABOR or LADIES: what a target takes depends on the other targets of a hop.

    So the whole rows of all targets are brought here, each once, in the order in which one process
    reads them; a hop is that of the same sampler on a graph of these rows alone.
    """

    def __init__(
        self, seeds: Tensor, draw: Draw, name: str, counts: Sequence[int], threads: int | None
    ) -> None:
        self.nodes, self.draw, self._seeds = seeds, draw, len(seeds)
        self._name, self._counts, self._threads = name, counts, threads
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
        values = self.values.abs() if rows.weights is not None else None
        options: dict[str, Any] = {"edge_ids": True, "vertex_ids": ids, "first_hop": hop}
        options["threads"], count = self._threads, [self._counts[hop]]
        sampler: LaborSampler | LadiesSampler
        if self._name == "labor":
            sampler = LaborSampler(pattern, count, **options)
        else:
            sampler = LadiesSampler(pattern, count, values=values, **options)
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
            known = len(self.nodes)
            before = rows.indptr.new_zeros(known - len(self.targets))
            indptr = torch.cat((before, rows.indptr))
            self.nodes, _ = relabel(self.nodes, indptr, rows.columns)
            self.targets = self.nodes[known:]

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
        known = [part.edges for part in self._rows if part.edges is not None]
        edges = torch.cat(known)[inside] if known else None
        numbers = None if edges is None else torch.arange(len(edges))
        square = Hop(indptr, indices, numbers, None, len(nodes))
        end = int(indptr[seeds])
        of_seeds = None if numbers is None else numbers[:end]
        first = Hop(indptr[: seeds + 1], indices[:end], of_seeds, None, len(nodes))
        return Sample(nodes, seeds, [first, *[square] * (self._layers - 1)]), edges


Growth = NeighborGrowth | WholeRowGrowth | ClusterGrowth


class DiskSampler:
    """Samples of a graph whose structure lies on a disk: those of memory, bit for bit.

    The rows of a hop's targets come whole. Of neighbour sampling a bounded number of entries is in
    memory at a time; LABOR and LADIES need the rows of all targets of a batch at once, each of
    which is read once. Threads may call it at the same time.
    """

    def __init__(
        self,
        pattern: DiskPattern,
        name: str,
        counts: Sequence[int],
        *,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        self._pattern, self._name, self._edge_ids = pattern, name, edge_ids
        self._ids, self._threads, self._options = vertex_ids, threads, options
        self._counts: Sequence[int] = list(counts)
        if name == "neighbor":
            self._of_rows(torch.zeros(1, dtype=torch.int64), _NONE.to(pattern.dtype), _NONE)
        else:
            hop_counts("num_nodes" if name == "ladies" else "num_neighbors", self._counts)

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of the seeds, int64 [seeds], each different."""
        n = self._pattern.shape[0]
        if len(seeds) and not 0 <= int(seeds.min()) <= int(seeds.max()) < n:
            raise InputError(f"seeds must be rows of the pattern, in [0, {n})")
        if self._name == "neighbor":
            growth = NeighborGrowth(seeds, draw)
            for hop in range(len(self._counts)):
                growth.take(self._drawn(growth.targets, hop, draw), hop)
            sample, numbers = growth.result()
        else:
            whole = WholeRowGrowth(seeds, draw, self._name, self._counts, self._threads)
            parts = [_NONE]
            for hop in range(len(self._counts)):
                rows, entries = self._whole(whole.targets)
                whole.take(rows, hop)
                parts.append(entries)
            (sample, _), numbers = whole.result(), torch.cat(parts)
        named = self._edge_ids and numbers is not None
        hops = [
            replace(hop, edge_ids=numbers[hop.edge_ids] if named else None)  # type: ignore[index]
            for hop in sample.hops
        ]
        return replace(sample, hops=hops)

    def _whole(self, targets: Tensor) -> tuple[RowEntries, Tensor]:
        """Whole rows, and the numbers of their entries."""
        indptr, columns = self._pattern.rows(targets)
        ids = columns.long() if self._ids is None else self._ids[columns.long()]
        begins = self._pattern.indptr[targets] - indptr[:-1]
        numbers = torch.arange(len(columns)) + begins.repeat_interleave(indptr.diff())
        return RowEntries(indptr, columns, ids), numbers

    def _drawn(self, targets: Tensor, hop: int, draw: Draw) -> RowEntries:
        """One hop of neighbour sampling."""
        ends, parts = [torch.zeros(1, dtype=torch.int64)], []
        for piece in self._pieces(targets):
            indptr, columns = self._pattern.rows(piece)
            rows = torch.arange(len(piece))
            sampler = self._of_rows(indptr, columns, piece)
            drawn, chosen, edge_ids, _ = sampler.sample_hop(rows, hop, draw)
            if edge_ids is not None:
                row = rows.repeat_interleave(drawn.diff())
                edge_ids = edge_ids + (self._pattern.indptr[piece] - indptr[:-1])[row]
            ends.append(drawn[1:] + ends[-1][-1])
            parts.append((chosen, edge_ids))
        columns = torch.cat([chosen for chosen, _ in parts])
        numbers = [edge_ids for _, edge_ids in parts if edge_ids is not None]
        return RowEntries(torch.cat(ends), columns, torch.cat(numbers) if numbers else None)

    def _pieces(self, targets: Tensor) -> Iterator[Tensor]:
        """The targets in order, so many at a time as have ENTRIES together; at least one piece."""
        indptr = self._pattern.indptr
        before = (indptr[targets + 1] - indptr[targets]).cumsum(0)
        first = 0
        while True:
            limit = (int(before[first - 1]) if first else 0) + ENTRIES
            last = int(torch.searchsorted(before, limit, right=True))
            last = min(max(last, first + 1), len(targets))
            yield targets[first:last]
            first = last
            if first >= len(targets):
                return

    def _of_rows(self, indptr: Tensor, columns: Tensor, rows: Tensor) -> NeighborSampler:
        pattern = Pattern.trusted(indptr, columns, (len(indptr) - 1, self._pattern.shape[1]))
        return NeighborSampler(
            pattern,
            self._counts,
            edge_ids=self._edge_ids,
            vertex_ids=self._ids,
            row_ids=rows if self._ids is None else self._ids[rows],
            threads=self._threads,
            **self._options,
        )
