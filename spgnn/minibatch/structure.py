"""Samples of a graph whose structure lies on a disk: rows of a hop are read, then drawn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.minibatch.exact import Drawn
from spgnn.minibatch.gathered import Growing, Together
from spgnn.pattern import Pattern
from spgnn.sampling import Draw, NeighborSampler, Sample
from spgnn.store import DiskPattern

ENTRIES = 1 << 22  # of rows that are in memory at once, unless one row has more


class DiskSampler:
    """Draws neighbours, hop by hop, in a pattern that lies on a disk.

    The rows of a hop's targets come whole, a bounded number of entries at a time, and are drawn
    from as from any pattern: so the draws are those of `NeighborSampler` in memory, bit for bit.
    Threads may call it at the same time.

    Parameters
    ----------
    pattern : DiskPattern [n, n]
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    replace : bool
    edge_ids : bool
        Whether edges are numbered.
    vertex_ids : Tensor int64 [n], optional
        Original ids, of which draws are functions.
    threads : int, optional

    Raises
    ------
    InputError
        If an argument is wrong.
    """

    def __init__(
        self,
        pattern: DiskPattern,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        self._pattern, self._ids, self._threads = pattern, vertex_ids, threads
        self._replace, self._edge_ids = replace, edge_ids
        self.num_neighbors: Sequence[int] = list(num_neighbors)
        self._sampler(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=pattern.dtype), None)

    def sample_hop(
        self, targets: Tensor, hop: int, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """As :meth:`spgnn.sampling.NeighborSampler.sample_hop`.

        Raises
        ------
        InputError
            If a target is no row, or rows cannot be read.
        """
        n = self._pattern.shape[0]
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < n:
            raise InputError(f"targets must be rows of the pattern, in [0, {n})")
        ends, parts = [torch.zeros(1, dtype=torch.int64)], []
        for piece in self._pieces(targets):
            indptr, columns = self._pattern.rows(piece)
            sampler = self._sampler(indptr, columns, piece)
            everything = torch.arange(len(piece))
            drawn, found, edge_ids, _ = sampler.sample_hop(everything, hop, draw)
            if edge_ids is not None:
                row = everything.repeat_interleave(drawn.diff())
                edge_ids = edge_ids + (self._pattern.indptr[piece] - indptr[:-1])[row]
            ends.append(drawn[1:] + ends[-1][-1])
            parts.append((found, edge_ids))
        columns = torch.cat([found for found, _ in parts])
        numbers = [edge_ids for _, edge_ids in parts if edge_ids is not None]
        return torch.cat(ends), columns, torch.cat(numbers) if numbers else None, None

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

    def _sampler(self, indptr: Tensor, columns: Tensor, rows: Tensor | None) -> NeighborSampler:
        row_ids = rows if rows is not None else indptr[:0]
        pattern = Pattern.trusted(indptr, columns, (len(indptr) - 1, self._pattern.shape[1]))
        return NeighborSampler(
            pattern,
            self.num_neighbors,
            replace=self._replace,
            edge_ids=self._edge_ids,
            vertex_ids=self._ids,
            row_ids=row_ids if self._ids is None else self._ids[row_ids],
            threads=self._threads,
        )


class DiskTogether:
    """LABOR and LADIES in a pattern that lies on a disk: the batches of memory, bit for bit.

    What a target takes depends on the others, so the whole rows of all targets of a batch are in
    memory at once; each is read once a batch.

    Parameters
    ----------
    sampler : {"labor", "ladies"}
    pattern : DiskPattern [n, n]
    numbers : sequence of int
        What the sampler takes, one a hop.
    edge_ids, vertex_ids, threads
        As of `DiskSampler`.

    Raises
    ------
    InputError
        If an argument is wrong.
    """

    def __init__(
        self,
        sampler: str,
        pattern: DiskPattern,
        numbers: Sequence[int],
        *,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        self._pattern, self._ids, self._edge_ids = pattern, vertex_ids, edge_ids
        self._together = Together(sampler, threads=threads)
        self._together.check(numbers)
        self._numbers = [int(number) for number in numbers]

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of the seeds, int64 [seeds], each different."""
        one, numbers = Growing(seeds), []
        for hop, number in enumerate(self._numbers):
            new = one.nodes[one.known :]
            indptr, columns = self._pattern.rows(new)
            ids = columns.long() if self._ids is None else self._ids[columns.long()]
            begins = self._pattern.indptr[new] - indptr[:-1]
            numbers.append(torch.arange(len(columns)) + begins.repeat_interleave(indptr.diff()))
            one.know(Drawn(indptr, columns, ids.view(torch.int32).view(-1, 2), None))
            self._together.grow(one, number, hop, draw)
        sample, _ = one.done(weighted=False)
        if not self._edge_ids:
            return sample
        known = torch.cat([*numbers, seeds[:0]])
        hops = [
            replace(hop, edge_ids=known[entries])
            for hop, entries in zip(sample.hops, one.entries(), strict=True)
        ]
        return replace(sample, hops=hops)
