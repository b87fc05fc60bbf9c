"""AliGraph's cache of neighbours across ranks (Zhu et al., VLDB'19).

A vertex is as important as it has vertices that ask for its neighbours over how many neighbours it
has: Imp(v) = D_in / D_out, of one hop. Ranks keep the neighbours of those important vertices that
their own vertices are next to, and draw among them without asking the owner. Draws are functions of
ids, so batches are those without a cache. Ours is the share of important vertices, a fifth (where
AliGraph's own threshold leaves as many); where all are as important, as in undirected graphs,
those with most neighbours come first. Its own parameter servers and operators are not here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches import (
    BatchOptions,
    Draw,
    Exact,
    Growth,
    NeighborSampler,
    RankBatches,
    RankGraph,
    RankSampler,
    Requests,
    RowEntries,
    offsets_of,
    rows_of_ranks,
)
from spgnn.comm import Communicator
from spgnn.data import RankShare
from spgnn.errors import InputError
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, take_rows

SHARE = 0.2


class NeighbourCache:
    """Neighbours of important vertices of other ranks, and draws among them."""

    def __init__(self, ranks: RankGraph, options: BatchOptions) -> None:
        n, comm = ranks.layout.rows, ranks.comm
        self.rows = self._important(ranks)  # rows of the whole graph, rising
        requests = Requests(self.rows, ranks.layout, comm)
        lists = requests.respond(take_rows(ranks.block, requests.requested))
        assert isinstance(lists, CSR)
        columns = lists.indices.long()
        others = columns[~torch.isin(columns, self.rows)].unique()
        self._columns = torch.cat((self.rows, others))
        place = self._columns.argsort()
        indices = place[torch.searchsorted(self._columns[place], columns)]
        size = len(self._columns)
        shape = (len(self.rows), size)
        pattern = Pattern.trusted(lists.indptr, indices.to(index_dtype(size)), shape)
        ids = rows_of_ranks(ranks.metadata.ids, self._columns, ranks.layout, comm)
        assert isinstance(ids, Tensor)
        self._sampler = NeighborSampler(
            pattern,
            list(options.num_neighbors),
            vertex_ids=ids,
            replace=options.replace,
            resample=options.resample,
        )
        self._dtype = index_dtype(n)

    @staticmethod
    def _important(ranks: RankGraph) -> Tensor:
        """Rows of the halo that are among the most important of the whole graph. Collective."""
        n, halo = ranks.layout.rows, ranks.boundary.halo
        degrees = torch.zeros(2, n, dtype=torch.int64)
        degrees[0] = torch.bincount(ranks.block.indices.long(), minlength=n)
        degrees[1, ranks.boundary.first : ranks.boundary.last] = ranks.block.row_lengths
        ranks.comm.all_reduce(degrees).wait()
        asking, neighbours = degrees.numpy()
        order = np.lexsort((-asking, -asking / np.maximum(neighbours, 1)))
        important = torch.zeros(n, dtype=torch.bool)
        important[order[: round(SHARE * n)].copy()] = True
        return halo[important[halo]]

    def holds(self, rows: Tensor) -> Tensor:
        """True for rows that are here."""
        return torch.isin(rows, self.rows)

    def draw(self, rows: Tensor, hop: int, draw: Draw) -> RowEntries:
        """Drawn neighbours of rows that are here; without communication."""
        targets = torch.searchsorted(self.rows, rows)
        indptr, columns, *_ = self._sampler.sample_hop(targets, hop, draw)
        return RowEntries(indptr, self._columns[columns.long()].to(self._dtype))


class CachedGrowth(Growth):
    """A sample that grows by rows of the cache, and by those that owners send."""

    def __init__(self, seeds: Tensor, draw: Draw, *, cache: NeighbourCache) -> None:
        super().__init__(seeds, draw)
        self._cache, self._all = cache, seeds
        self._split()

    def _split(self) -> None:
        self._here = self._cache.holds(self._all)
        self.targets = self._all[~self._here]

    def take(self, rows: RowEntries, hop: int) -> None:
        """The next hop, of the rows that had to be asked for and of those that are here."""
        own = self._cache.draw(self._all[self._here], hop, self.draw)
        lengths = torch.empty(len(self._all), dtype=torch.int64)
        lengths[~self._here], lengths[self._here] = rows.indptr.diff(), own.indptr.diff()
        here = self._here.repeat_interleave(lengths)
        columns = rows.columns.new_empty(len(here))
        columns[~here], columns[here] = rows.columns, own.columns
        super().take(RowEntries(offsets_of(lengths), columns), hop)
        self._all = self.targets
        self._split()


class CachedNeighbours(Exact):
    """Exact batches of each rank's own seeds, which ask for fewer neighbours."""

    own_seeds = True

    @classmethod
    def check(cls, config: Any) -> None:
        """Whole rows are not kept."""
        if config.sampling.sampler != "neighbor":
            raise InputError("--distributed aligraph needs --sampler neighbor")

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """In words."""
        return f"{batches} of their own (neighbours cached)"

    def strategy(self, share: RankShare, comm: Communicator, options: BatchOptions) -> RankBatches:
        """The batches of this rank. Collective."""
        batches = super().strategy(share, comm, options)
        ranks = batches.ranks
        if ranks.edges.columns:
            raise InputError(
                f"{share.meta.name}: --distributed aligraph caches neighbours, without what the "
                "graph says of edges; use --distributed exact"
            )
        growth = partial(CachedGrowth, cache=NeighbourCache(ranks, options))
        draws = {"replace": options.replace, "resample": options.resample}
        fanouts = options.num_neighbors
        batches.sampler = RankSampler(ranks, "neighbor", fanouts, growth=growth, **draws)
        return batches
