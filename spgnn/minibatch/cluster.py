"""Batches of whole clusters with their boundary: exact within."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.distribute import RankShare
from spgnn.errors import InputError, check_integer
from spgnn.hashing import uniform
from spgnn.minibatch.ahead import in_turns, last
from spgnn.minibatch.batch import Batch, Place
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.counts import Sampled
from spgnn.minibatch.distributed import Beginning, begun
from spgnn.minibatch.exact import DistributedSampler, Drawn, Sampling, running, timed
from spgnn.minibatch.rank import RankGraph
from spgnn.nn.loss import UNKNOWN
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

    def sample(self, batches: Sequence[Tensor]) -> list[tuple[Sample, Tensor | None]]:
        """Several batches at once; ranks may have different numbers of them. Collective.

        Parameters
        ----------
        batches : sequence of Tensor int64
            Rows of the whole matrix.

        Returns
        -------
        list of (Sample, Tensor or None)
            As of :meth:`DistributedSampler.sample`. Seeds are all vertices of the clusters; all
            hops but the first are the same.
        """
        return last(self.sampling(batches))

    def sampling(self, batches: Sequence[Tensor], thread: Executor | None = None) -> Sampling:
        """As `sample`, step by step: :meth:`DistributedSampler.sampling`. Collective."""
        asking = self._sampler.asking([Draw(0)] * len(batches))
        nodes, new = list(batches), list(batches)
        parts: list[list[Drawn]] = [[] for _ in batches]

        def grow(found: Sequence[Drawn], *, more: bool) -> None:
            for batch, drawn in enumerate(found):
                parts[batch].append(drawn)
                if more:
                    known = nodes[batch]
                    before = drawn.indptr.new_zeros(len(known) - len(new[batch]))
                    indptr = torch.cat((before, drawn.indptr))
                    nodes[batch], _ = relabel(known, indptr, drawn.columns)
                    new[batch] = nodes[batch][len(known) :]

        for hop in range(self._sampler.hops):
            arrive = asking.begun(new, hop, thread)
            yield
            grown = running(thread, partial(grow, more=hop + 1 < self._sampler.hops), arrive())
            yield
            grown()
        return [
            self._joined(len(seeds), found, rows)
            for seeds, found, rows in zip(batches, nodes, parts, strict=True)
        ]

    def _joined(
        self, seeds: int, nodes: Tensor, parts: Sequence[Drawn]
    ) -> tuple[Sample, Tensor | None]:
        """The matrix of a batch: rows of the vertices hop by hop, columns that are among them."""
        lengths = torch.cat([part.indptr.diff() for part in parts])
        columns = torch.cat([part.columns for part in parts])
        by_number = nodes.argsort()
        place = torch.searchsorted(nodes[by_number], columns).clamp_(max=max(len(nodes) - 1, 0))
        inside = nodes[by_number[place]] == columns
        before = torch.zeros(len(columns) + 1, dtype=torch.int64)
        torch.cumsum(inside, 0, out=before[1:])
        indptr = before[torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))]
        indices = by_number[place[inside]].int()
        known = [part.edges for part in parts if part.edges is not None]
        edges = torch.cat(known)[inside] if known else None
        numbers = None if edges is None else torch.arange(len(edges))
        square = Hop(indptr, indices, numbers, None, len(nodes))
        end = int(indptr[seeds])
        of_seeds = None if numbers is None else numbers[:end]
        first = Hop(indptr[: seeds + 1], indices[:end], of_seeds, None, len(nodes))
        return Sample(nodes, seeds, [first, *[square] * (self.layers - 1)]), edges


class ClusterLoader:
    """Batches of whole clusters of each rank's part of the graph; all calls are collective.

    Seeds are all vertices of the clusters; only training vertices have labels.

    Parameters
    ----------
    share : RankShare
        With a training mask.
    comm : Communicator
        All ranks.
    layers : int
        Of the model.
    clusters : int
        Of each rank.
    each : int
        Clusters of a batch.
    boundary : int
        Hops around the clusters; as many as layers make their rows exact.
    of_graph : bool
        Whether layers are scaled by the degrees of the whole graph.
    prefetch : bool
        As of `DistributedLoader`.
    seed : int

    Attributes
    ----------
    epoch : int
        The one that the next iteration is.
    sampled : Sampled
        What this rank's batches were so far.
    """

    def __init__(
        self,
        share: RankShare,
        comm: Communicator,
        layers: int,
        *,
        clusters: int,
        each: int = 1,
        boundary: int = 0,
        of_graph: bool = True,
        prefetch: bool = False,
        seed: int = 0,
    ) -> None:
        check_integer("boundary", boundary, 0)
        comm.check_agreement(
            "ClusterLoader", options=(layers, clusters, each, boundary, prefetch, seed)
        )
        mask, y = share.data.train_mask, share.data.y
        if mask is None or y is None:
            raise InputError(f"{share.meta.name}: cluster batches need labels and a training mask")
        seen = y.clone()
        seen[~mask] = float("nan") if y.is_floating_point() else UNKNOWN
        self.ranks = RankGraph.of(replace(share, data=replace(share.data, y=seen)), comm)
        sampler = self.ranks.sampler([-1] * (boundary + 1))
        labels = clusters_of(self.ranks.block, self.ranks.boundary, clusters, seed)
        self._clusters = ClusterSampler(labels, sampler, self.ranks.boundary, layers, each)
        self._of_graph, self._seed, self._comm = of_graph, seed, comm
        self.prefetch = prefetch
        self._length = comm.agree(len(self._clusters.batches(seed, 0)))
        self.epoch, self.sampled = 0, Sampled()

    def __len__(self) -> int:
        """Rounds of an epoch: each is one batch a rank, but the last ones perhaps not for all."""
        return self._length

    def __iter__(self) -> Iterator[Batch | None]:
        """The rank's batches of the next epoch; ``None`` in a round that has none for it."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        batches = self._clusters.batches(self._seed, epoch)
        stretches = [batches[turn : turn + 1] for turn in range(self._length)]
        if not self.prefetch:
            for turn, found in enumerate(stretches):
                yield next(iter(last(self._beginning(epoch, turn, found, None))()), None)
            return
        with ThreadPoolExecutor(1, "spgnn-sample") as thread:
            works = (
                self._beginning(epoch, turn, found, thread) for turn, found in enumerate(stretches)
            )
            # What is under way writes into memory of ours.
            with closing(in_turns(works, lambda finish: finish())) as rounds:
                for finish in rounds:
                    yield next(iter(finish()), None)

    def _beginning(
        self, epoch: int, turn: int, batches: Sequence[Tensor], thread: Executor | None
    ) -> Beginning:
        """One round, step by step; in the end what waits for its features."""
        sampling = self._clusters.sampling(batches, thread)
        samples = yield from timed(sampling, self.sampled)
        number = turn * self._comm.size + self._comm.rank
        place = Place(self._seed, epoch, number, epoch * self._length + turn)
        places = [(batch - self.ranks.boundary.first, place) for batch in batches]
        return begun(self.ranks, samples, places, of_graph=self._of_graph, later=self.prefetch)
