"""Samples of a graph whose rows lie on several ranks, which draw for each other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches.growth import Growth, NeighborGrowth, RowEntries, WholeRowGrowth
from spgnn.addons.batches.rank_graph import RankGraph
from spgnn.addons.batches.remote_rows import Requests
from spgnn.addons.batches.samplers import NeighborSampler
from spgnn.addons.batches.sampling import Draw, Sample, hop_counts
from spgnn.addons.batches.threads import last, running
from spgnn.errors import InputError
from spgnn.exchange import swap_counts, swap_rows
from spgnn.pattern import index_dtype
from spgnn.registry import SAMPLERS

Sampled = list[tuple[Sample, Tensor | None]]
Sampling = Generator[None, None, Sampled]
"""On its way to samples; between its steps, whatever needs no other rank may run in a thread."""


class RankSampler:
    """Samples of a graph whose rows lie on several ranks: those of one process, bit for bit.

    The owner of a vertex draws its neighbours for all ranks; a draw is a function of original ids.
    Where a sampler needs whole rows, owners send these, and the rank of the batch draws. Seeds and
    nodes are rows of the whole matrix. A sample comes with the weights of its edges, if there are
    any; the edge ids of its hops are places in there.
    """

    def __init__(
        self,
        ranks: RankGraph,
        name: str,
        counts: Sequence[int],
        *,
        replace: bool = False,
        resample: bool = True,
        growth: Callable[[Tensor, Draw], Growth] | None = None,
    ) -> None:
        self._kind = kind = SAMPLERS[name]
        self.ranks, self.hops = ranks, len(counts)
        self._columns = ranks.boundary.columns.to(index_dtype(ranks.layout.rows))
        self._counts, self._own_growth = list(counts), growth
        block, ids = ranks.block, ranks.around.ids
        self._edges, self._values = block.values, None
        self._is_whole, self._weighted = kind.needs == "whole rows", kind.needs == "graph"
        if replace and not issubclass(kind, NeighborSampler):
            raise InputError(f"sampler {name} knows no replace")
        if kind.needs == "graph":
            if kind.on_ranks is None:
                raise InputError(f"sampler {name} does not sample the graph of all ranks")
            self._sampler = kind.on_ranks(counts, ranks)
            return
        pattern = ranks.boundary.compact(block)
        if self._is_whole:
            hop_counts("num_neighbors", self._counts)
            self._edges = ids[pattern.indices.long()]
            self._values = None if block.values is None else block.values.float()
            counts, resample, kind = [-1] * len(counts), True, NeighborSampler
        self._sampler = kind(
            pattern,
            list(counts),
            replace=replace,
            resample=resample,
            edge_ids=self._edges is not None,
            vertex_ids=ids,
        )

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
        return [self._result(one) for one in growing]

    def own(self, targets: Tensor, hop: int, draw: Draw) -> RowEntries:
        """Neighbours of own rows, counted from the first; without communication."""
        indptr, columns, numbers, weights = self._sampler.sample_hop(targets, hop, draw)
        edges = None if self._edges is None else self._edges[numbers]
        if not self._weighted:
            weights = None if self._values is None else self._values[numbers]
        return RowEntries(indptr, self._columns[columns.long()], edges, weights)

    def as_rows(self, indptr: Tensor, entries: Sequence[Tensor]) -> RowEntries:
        """Rows whose entries have travelled as arrays."""
        columns, *others = entries
        edges = others.pop(0) if self._edges is not None else None
        return RowEntries(indptr, columns, edges, others[0] if others else None)

    def _growth(self, seeds: Tensor, draw: Draw) -> Growth:
        if self._own_growth is not None:
            return self._own_growth(seeds, draw)
        if self._is_whole:
            return WholeRowGrowth(seeds, draw, self._kind, self._counts)
        return NeighborGrowth(seeds, draw)

    def _result(self, growth: Growth) -> tuple[Sample, Tensor | None]:
        sample, edges = growth.result()
        if isinstance(growth, WholeRowGrowth):
            if self._values is not None:
                return sample, growth.values
            sample = replace(sample, hops=[replace(hop, edge_ids=None) for hop in sample.hops])
        return sample, edges


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
