"""Samples that grow hop by hop from rows that lie elsewhere: with other ranks, or on a disk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches.rank_graph import RankGraph
from spgnn.addons.batches.remote_rows import Requests
from spgnn.addons.batches.samplers import GraphSampler, NeighborSampler
from spgnn.addons.batches.sampling import Draw, Hop, Sample, hop_counts, offsets_of, relabel
from spgnn.addons.batches.threads import last, running
from spgnn.errors import InputError
from spgnn.exchange import swap_counts, swap_rows
from spgnn.pattern import Pattern, index_dtype
from spgnn.registry import SAMPLERS

Sampled = list[tuple[Sample, Tensor | None]]
Sampling = Generator[None, None, Sampled]
"""On its way to samples; between its steps, whatever needs no other rank may run in a thread."""


class RowEntries(NamedTuple):
    """Rows of the whole matrix, as they were drawn or whole."""

    indptr: Tensor
    columns: Tensor
    edges: Tensor | None = None  # a number of each entry, or all that is known of it as bytes
    weights: Tensor | None = None  # factors of the sampler; of whole rows the matrix's values
    ids: Tensor | None = None  # of whole rows the columns' original ids


class Growth:
    """A sample that grows hop by hop; here, each vertex draws for itself."""

    def __init__(self, seeds: Tensor, draw: Draw) -> None:
        self.nodes = self.targets = seeds
        self.draw, self._seeds = draw, len(seeds)
        self._hops: list[Hop] = []
        self._rows: list[RowEntries] = []

    def take(self, rows: RowEntries, hop: int) -> None:
        """The next hop, of the rows of the targets."""
        numbers, first = None, sum(len(part.columns) for part in self._rows)
        if rows.edges is not None:
            numbers = torch.arange(first, first + len(rows.edges))
        self._rows.append(rows)
        self.nodes, indices = relabel(self.nodes, rows.indptr, rows.columns)
        self.targets = self.nodes
        self._hops.append(Hop(rows.indptr, indices, numbers, rows.weights, len(self.nodes)))

    def result(self) -> tuple[Sample, Tensor | None]:
        """The sample, and the table of `edges` that its hops' edge ids are places in."""
        return Sample(self.nodes, self._seeds, self._hops), self._of_all("edges")

    def _of_all(self, name: str) -> Tensor | None:
        """Numbers of all entries so far."""
        parts = [getattr(rows, name) for rows in self._rows]
        return None if not parts or parts[0] is None else torch.cat(parts)


class WholeRowGrowth(Growth):
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
        super().__init__(seeds, draw)
        self._kind, self._counts, self._threads = kind, counts, threads

    def take(self, rows: RowEntries, hop: int) -> None:
        """The next hop: whole rows of the targets."""
        self._rows.append(rows)
        targets, lengths = len(self.nodes), torch.cat([one.indptr.diff() for one in self._rows])
        columns, ids, values = (self._of_all(name) for name in ("columns", "ids", "weights"))
        assert columns is not None
        assert ids is not None
        nodes, indices = relabel(self.nodes, offsets_of(lengths), columns.long())
        size = len(nodes)
        vertex_ids = torch.zeros(size, dtype=torch.int64)
        vertex_ids[indices.long()] = ids
        indptr = offsets_of(torch.cat((lengths, lengths.new_zeros(size - targets))))
        options: dict[str, Any] = {"edge_ids": True, "vertex_ids": vertex_ids, "first_hop": hop}
        pattern, count = Pattern.trusted(indptr, indices, (size, size)), [self._counts[hop]]
        sampler = self._kind.of_matrix(pattern, values, count, threads=self._threads, **options)
        sample = sampler.sample(torch.arange(targets), self.draw)
        self.nodes = nodes[sample.nodes]
        self.targets = self.nodes[targets:]
        self._hops.append(sample.hops[0])

    def result(self) -> tuple[Sample, Tensor | None]:
        """The sample, whose edge ids are places among all entries of these rows."""
        edges, hops = self._of_all("edges"), self._hops
        if edges is None:
            hops = [replace(hop, edge_ids=None) for hop in hops]
        return Sample(self.nodes, self._seeds, hops), edges


class ClusterGrowth(Growth):
    """A sample of clusters and all vertices within some hops of them, as one square matrix."""

    def __init__(self, seeds: Tensor, draw: Draw, *, hops: int, layers: int) -> None:
        super().__init__(seeds, draw)
        self._depth, self._layers = hops, layers

    def take(self, rows: RowEntries, hop: int) -> None:
        """The whole rows of the targets."""
        self._rows.append(rows)
        if hop + 1 < self._depth:
            size = len(self.nodes)
            before = rows.indptr.new_zeros(size - len(self.targets))
            indptr = torch.cat((before, rows.indptr))
            self.nodes, _ = relabel(self.nodes, indptr, rows.columns)
            self.targets = self.nodes[size:]

    def result(self) -> tuple[Sample, Tensor | None]:
        """Rows of the vertices hop by hop, with those columns that are among them."""
        nodes, seeds, columns = self.nodes, self._seeds, self._of_all("columns")
        assert columns is not None
        lengths = torch.cat([part.indptr.diff() for part in self._rows])
        by_number = nodes.argsort()
        place = torch.searchsorted(nodes[by_number], columns).clamp_(max=max(len(nodes) - 1, 0))
        inside = nodes[by_number[place]] == columns
        indptr = offsets_of(inside)[offsets_of(lengths)]
        indices, edges = by_number[place[inside]].int(), self._of_all("edges")
        numbers = of_seeds = None
        end = int(indptr[seeds])
        if edges is not None:
            edges = edges[inside]
            numbers = torch.arange(len(edges))
            of_seeds = numbers[:end]
        square = Hop(indptr, indices, numbers, None, len(nodes))
        first = Hop(indptr[: seeds + 1], indices[:end], of_seeds, None, len(nodes))
        return Sample(nodes, seeds, [first, *[square] * (self._layers - 1)]), edges


class RankSampler:
    """Samples of a graph whose rows lie on several ranks: those of one process, bit for bit.

    The owner of a vertex draws its neighbours for all ranks; a draw is a function of original ids.
    Where a sampler needs whole rows, owners send these, and the rank of the batch draws. Seeds and
    nodes are rows of the whole matrix. A sample comes with what is known of its edges, as bytes,
    if anything is; the edge ids of its hops are places in there.
    """

    def __init__(
        self,
        ranks: RankGraph,
        name: str,
        counts: Sequence[int],
        *,
        replace: bool = False,
        resample: bool = True,
        growth: Callable[[Tensor, Draw], Growth] = Growth,
    ) -> None:
        kind = SAMPLERS[name]
        self.ranks, self.hops, self._growth = ranks, len(counts), growth
        self._columns = ranks.boundary.columns.to(index_dtype(ranks.layout.rows))
        self._edges, self._ids = ranks.edges if ranks.edges.columns else None, None
        self._weighted = kind.needs == "graph"
        if replace and not issubclass(kind, NeighborSampler):
            raise InputError(f"sampler {name} knows no replace")
        if kind.needs == "graph":
            if kind.on_ranks is None:
                raise InputError(f"sampler {name} does not sample the graph of all ranks")
            self._sampler = kind.on_ranks(counts, ranks)
            return
        pattern, ids = ranks.boundary.compact(ranks.block), ranks.around.ids
        if kind.needs == "whole rows":
            hop_counts("num_neighbors", list(counts))
            self._growth = partial(WholeRowGrowth, kind=kind, counts=list(counts))
            self._ids = ids[pattern.indices.long()]
            counts, resample, kind = [-1] * len(counts), True, NeighborSampler
        numbered = self._edges is not None or self._ids is not None
        draws = {"replace": replace, "resample": resample, "edge_ids": numbered}
        self._sampler = kind(pattern, list(counts), vertex_ids=ids, **draws)

    def sample(self, seeds: Sequence[Tensor], draws: Sequence[Draw]) -> Sampled:
        """Several batches at once. Collective; ranks may have different numbers of them."""
        return last(self.sampling(seeds, draws))

    def sampling(
        self, seeds: Sequence[Tensor], draws: Sequence[Draw], thread: Executor | None = None
    ) -> Sampling:
        """As `sample`, in two steps a hop and one more; each step is collective.

        Other exchanges may come between steps, in the same order on all ranks. What this rank draws
        and puts in order by itself runs in a thread meanwhile, if there is one.
        """
        asking = RowRequests(self, draws)
        growing = [self._growth(*one) for one in zip(seeds, draws, strict=True)]

        def grow(arrived: Sequence[RowEntries], hop: int) -> None:
            for one, rows in zip(growing, arrived, strict=True):
                one.take(rows, hop)

        for hop in range(self.hops):
            arrive = asking.begin([one.targets for one in growing], hop, thread)
            yield
            grown = running(thread, grow, arrive(), hop)
            yield
            grown()
        return [one.result() for one in growing]

    def own(self, targets: Tensor, hop: int, draw: Draw) -> RowEntries:
        """Neighbours of own rows, counted from the first; without communication."""
        indptr, columns, numbers, weights = self._sampler.sample_hop(targets, hop, draw)
        edges = None if self._edges is None else self._edges.of(numbers).packed()
        weights = weights if self._weighted else None
        ids = None if self._ids is None else self._ids[numbers]
        return RowEntries(indptr, self._columns[columns.long()], edges, weights, ids)

    def as_rows(self, indptr: Tensor, entries: Sequence[Tensor]) -> RowEntries:
        """Rows whose entries have travelled as arrays."""
        columns, *others = entries
        ids = None if self._ids is None else others.pop()
        edges = weights = None
        if self._edges is not None:
            edges = others.pop(0)
            weights = None if ids is None else self._edges.unpacked(edges).edge_weight
        return RowEntries(indptr, columns, edges, others[0] if others else weights, ids)


class RowRequests:
    """Requests for rows of the matrix by the batches of all ranks; all calls are collective."""

    def __init__(self, sampler: RankSampler, draws: Sequence[Draw]) -> None:
        self._sampler, comm = sampler, sampler.ranks.comm
        mine = torch.tensor([[d.seed, d.epoch, d.step] for d in draws], dtype=torch.int64)
        (self._batches,) = swap_counts(comm, np.full(comm.size, len(draws), np.int64))
        theirs = swap_rows(comm, mine.view(-1, 3).repeat(comm.size, 1), self._batches)
        self._draws = [Draw(*row) for row in theirs.tolist()]  # of all ranks, one after the other

    def rows_of(self, targets: Sequence[Tensor], hop: int) -> list[RowEntries]:
        """The drawn neighbours of each batch's targets, rows of the whole matrix."""
        return self.begin(targets, hop)()

    def begin(
        self, targets: Sequence[Tensor], hop: int, thread: Executor | None = None
    ) -> Callable[[], list[RowEntries]]:
        """Send the requests of `rows_of`; the returned function completes them.

        Both are collective. This rank's draws may be made in a thread between the two.
        """
        sampler, comm, batches = self._sampler, self._sampler.ranks.comm, len(targets)
        rows = torch.cat([*targets, torch.zeros(0, dtype=torch.int64)])
        sizes = torch.tensor([len(t) for t in targets], dtype=torch.int64)
        requests = Requests(rows, sampler.ranks.layout, comm)
        # By owner, and of each owner by batch.
        sent = torch.tensor(requests.counts.send_list)
        owner = torch.arange(comm.size).repeat_interleave(sent)
        batch = torch.arange(batches).repeat_interleave(sizes)[requests.order]
        of_batches = torch.bincount(owner * batches + batch, minlength=comm.size * batches)
        theirs = swap_rows(comm, of_batches, self._batches)
        drawn = running(thread, self._draw, requests.requested, theirs, hop)

        def arrive() -> list[RowEntries]:
            indptr, entries = requests.respond_lists(*drawn())
            rows, first = [], 0
            for size in sizes.tolist():
                begin, end = int(indptr[first]), int(indptr[first + size])
                part = [array[begin:end] for array in entries]
                rows.append(sampler.as_rows(indptr[first : first + size + 1] - begin, part))
                first += size
            return rows

        return arrive

    def _draw(self, targets: Tensor, sizes: Tensor, hop: int) -> tuple[Tensor, list[Tensor]]:
        """Draws of this rank for all batches of all ranks, one after the other."""
        parts = [
            self._sampler.own(rows, hop, draw)
            for rows, draw in zip(targets.split(sizes.tolist()), self._draws, strict=True)
        ]
        parts.append(self._sampler.own(targets[:0], hop, Draw(0)))
        lengths = torch.cat([rows.indptr.diff().int() for rows in parts])
        arrays = zip(*([a for a in rows[1:] if a is not None] for rows in parts), strict=True)
        return lengths, [torch.cat(part) for part in arrays]
