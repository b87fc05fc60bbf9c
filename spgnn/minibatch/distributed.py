"""Loaders of one rank of many: the batches of a single process, dealt to the ranks in turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.distribute import RankShare
from spgnn.errors import check_integer
from spgnn.graph import DistGraph
from spgnn.hashing import uniform
from spgnn.minibatch.ahead import in_turns, last
from spgnn.minibatch.batch import Batch, Place
from spgnn.minibatch.counts import Sampled
from spgnn.minibatch.exact import timed
from spgnn.minibatch.facts import Facts
from spgnn.minibatch.questions import Table, taken
from spgnn.minibatch.rank import RankGraph, mask_of
from spgnn.nn.block import Degrees
from spgnn.sampling import Draw, Sample, relabel

Finish = Callable[[], list[Batch]]
Beginning = Generator[None, None, Finish]


def seed_order(ids: Tensor, seed: int, epoch: int) -> Tensor:
    """Places of some vertices in the order of an epoch, which original ids alone decide."""
    draws = uniform(ids.numpy(), seed, f"order of epoch {epoch}")
    return torch.from_numpy(np.lexsort((ids.numpy(), draws)))


class DistributedLoader:
    """Batches of a graph that is distributed over ranks; all its calls are collective.

    Batch b of epoch e is the one that `NeighborLoader` makes of the whole graph on one process;
    rank r gets the batches t·P + r. Several rounds are sampled at once, hop by hop: a vertex is
    expanded by the rank that owns it, and features, labels and ids of all their vertices come in
    one exchange, each row once. Only edges have no numbers of the graph: `Batch.e_id` numbers those
    of the batch.

    Parameters
    ----------
    graph : DistGraph or RankShare
    comm : Communicator
        All ranks.
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    input_nodes : Tensor bool [own rows], or the name of a mask
    batch_size : int
        Seeds of a batch.
    sampler : {"neighbor", "labor", "ladies", "fastgcn"}
    shuffle, drop_last, replace, resample
        As of `NeighborLoader`.
    of_graph : bool
        Whether layers are scaled by the degrees of the whole graph, as by default there.
    superbatch : int
        Rounds that are sampled at once.
    prefetch : bool
        Sample the next rounds before these are handed over: their dense features travel in the
        meantime, and this rank's own part of sampling runs in a thread. As many superbatches are
        under way as sampling has steps, two a hop.
    x : Tensor, CSR or Rows [own rows, f], optional
        Features of own vertices, in the place of the graph's.
    seed : int

    Attributes
    ----------
    epoch : int
        The one that the next iteration is.
    batches : int
        Of an epoch, on all ranks together.
    sampled : Sampled
        What this rank's batches were so far.
    """

    def __init__(
        self,
        graph: DistGraph | RankShare,
        comm: Communicator,
        num_neighbors: Sequence[int],
        input_nodes: Tensor | str = "train_mask",
        *,
        batch_size: int = 1,
        sampler: str = "neighbor",
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        resample: bool = False,
        of_graph: bool = True,
        superbatch: int = 1,
        prefetch: bool = False,
        x: Table | None = None,
        seed: int = 0,
    ) -> None:
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.superbatch = check_integer("superbatch", superbatch, 1)
        self.seed = check_integer("seed", seed, 0)
        comm.check_agreement(
            "DistributedLoader",
            num_neighbors=tuple(num_neighbors),
            batch_size=batch_size,
            seed=seed,
            superbatch=superbatch,
            options=(sampler, shuffle, drop_last, replace, resample, prefetch),
        )
        self.shuffle, self.of_graph = shuffle, of_graph
        self.resample = resample or sampler != "neighbor"
        self.prefetch = prefetch
        own = mask_of(graph, input_nodes, comm)
        self.ranks = RankGraph.of(graph, comm, x)
        self._sampler = self.ranks.named_sampler(sampler, num_neighbors, replace=replace)
        self._rows, self._ids = self.ranks.inputs(own)
        full, rest = divmod(len(self._rows), batch_size)
        self.batches = full + (rest > 0 and not drop_last)
        self.epoch = 0
        self.sampled = Sampled()

    def __len__(self) -> int:
        """Rounds of an epoch: each is one batch a rank, but the last one perhaps not for all."""
        full, rest = divmod(self.batches, self.ranks.comm.size)
        return full + (rest > 0)

    def __iter__(self) -> Iterator[Batch | None]:
        """The rank's batches of the next epoch; ``None`` in a round that has none for it."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = seed_order(self._ids, self.seed, epoch) if self.shuffle else None
        superbatches = [
            [self._number(turn) for turn in range(len(self))[first : first + self.superbatch]]
            for first in range(0, len(self), self.superbatch)
        ]
        if not self.prefetch:
            for numbers in superbatches:
                yield from _rounds(len(numbers), self.made(epoch, numbers, order))
            return
        with ThreadPoolExecutor(1, "spgnn-sample") as thread:
            works = (
                self._beginning(epoch, numbers, order, thread, later=True)
                for numbers in superbatches
            )
            # What is under way writes into memory of ours.
            with closing(in_turns(works, lambda finish: finish())) as begun_ones:
                for numbers, finish in zip(superbatches, begun_ones, strict=True):
                    yield from _rounds(len(numbers), finish())

    def round(self, epoch: int, turn: int) -> Batch | None:
        """The batch of any round; ``None`` if that has none for this rank. Collective."""
        order = seed_order(self._ids, self.seed, epoch) if self.shuffle else None
        return next(iter(self.made(epoch, [self._number(turn)], order)), None)

    def made(self, epoch: int, numbers: Sequence[int], order: Tensor | None = None) -> list[Batch]:
        """Batches of an epoch, by their numbers; those that there are not are left out.

        Parameters
        ----------
        epoch : int
        numbers : sequence of int
            This rank's.
        order : Tensor int64 [inputs], optional
            Of the seeds in this epoch; by default as they are.
        """
        return last(self._beginning(epoch, numbers, order, None, later=False))()

    def _beginning(
        self,
        epoch: int,
        numbers: Sequence[int],
        order: Tensor | None,
        thread: Executor | None,
        *,
        later: bool,
    ) -> Beginning:
        """These batches, step by step; in the end what waits for their features."""
        seeds, places, draws = [], [], []
        for number in numbers:
            if number < self.batches:
                stretch = slice(number * self.batch_size, (number + 1) * self.batch_size)
                own = torch.arange(len(self._rows)) if order is None else order
                place = Place(self.seed, epoch, number, self._step(epoch, number))
                seeds.append(self._rows[own[stretch]])
                places.append((self._ids[own[stretch]], place))
                draws.append(Draw(self.seed, epoch, number))
        sampling = self._sampler.sampling(seeds, draws, resample=self.resample, thread=thread)
        samples = yield from timed(sampling, self.sampled)
        return begun(self.ranks, samples, places, of_graph=self.of_graph, later=later)

    def _number(self, turn: int) -> int:
        return turn * self.ranks.comm.size + self.ranks.comm.rank

    def _step(self, epoch: int, number: int) -> int:
        return epoch * self.batches + number


def _rounds(count: int, made: Sequence[Batch]) -> Iterator[Batch | None]:
    yield from made
    yield from [None] * (count - len(made))


class _Batched:
    """What a batch asks of its graph, for its own vertices alone, in their order."""

    edge_ids = None

    def __init__(self, facts: Facts, edges: Tensor | None) -> None:
        self._facts = facts
        y = facts.y
        self.vertices: dict[str, Any] = {} if y is None else {"y": _InOrder(y)}
        self.edges = {} if edges is None else {"edge_weight": edges}
        self.others: dict[str, Any] = {}

    def ids_of(self, nodes: Tensor) -> Tensor:
        """They are original ids already."""
        return nodes

    def degrees(self, nodes: Tensor) -> Degrees:
        """Of the first vertices."""
        return self._facts.of(slice(len(nodes))).degrees


class _InOrder:
    """One row for each vertex of a batch, for a batch that looks all of them up."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __getitem__(self, nodes: Tensor) -> Tensor:
        return self._rows[: len(nodes)]


def begun(
    ranks: RankGraph,
    samples: Sequence[tuple[Sample, Tensor | None]],
    places: Sequence[tuple[Tensor, Place]],
    *,
    of_graph: bool,
    later: bool = False,
) -> Finish:
    """Batches of samples, with features of all of them from one exchange. Collective.

    Parameters
    ----------
    ranks : RankGraph
    samples : sequence of (Sample, Tensor or None)
        As `DistributedSampler.sample` returns them.
    places : sequence of (Tensor, Place)
        What its batch calls the seeds (``input_id``), and where each batch stands.
    of_graph : bool
    later : bool
        Whether features may still be under way.

    Returns
    -------
    callable
        Waits for the features, and makes the batches.
    """
    nodes = [sample.nodes for sample, _ in samples]
    listed = torch.cat([*nodes, torch.zeros(0, dtype=torch.int64)])
    union, where = relabel(listed[:0], torch.tensor([len(listed)]), listed)
    fetched, facts = ranks.fetched(union, later=later)

    def finish() -> list[Batch]:
        x, found = fetched(), []
        for (sample, edges), (inputs, place), mine in zip(
            samples, places, where.long().split([len(n) for n in nodes]), strict=True
        ):
            known = facts.of(mine)
            of_batch = replace(sample, nodes=known.ids)
            batched = _Batched(known, edges)
            found.append(Batch(batched, of_batch, taken(x, mine), inputs, place, of_graph=of_graph))
        return found

    return finish
