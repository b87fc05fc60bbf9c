"""Loaders of one rank that samples its own part of a graph, with the past of others or without."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.distribute import RankShare
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.graph import DistGraph
from spgnn.minibatch.ahead import in_order
from spgnn.minibatch.batch import Place
from spgnn.minibatch.counts import Sampled
from spgnn.minibatch.distributed import seed_order
from spgnn.minibatch.embeddings import EmbeddingCache, Hits
from spgnn.minibatch.facts import Facts
from spgnn.minibatch.historical import (
    MISSES,
    HaloFeatures,
    Historical,
    History,
    Misses,
    PartialHop,
)
from spgnn.minibatch.push import Push
from spgnn.minibatch.questions import Questions, Table, answered, stacked, taken
from spgnn.minibatch.rank import RankGraph, mask_of
from spgnn.nn import DropoutKeys, Stack
from spgnn.nn.block import Block, block_pattern
from spgnn.sampling import Draw, Sample
from spgnn.sparse import CSR

_Begun = tuple[list[PartialHop], Tensor, Place]
"""Of a batch: its layers, which inputs its seeds are, and where it stands."""


class PartialBlock(Block):
    """A block some of whose columns are at hand: the layer before makes the others."""

    def __init__(self, arrive: Callable[[Tensor], Tensor], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._arrive = arrive

    def arrived(self, made: Tensor) -> Tensor:
        """All columns [columns, f], of the rows that the layer before made."""
        return self._arrive(made)


class PartialBatch:
    """A mini-batch of one rank's part of the graph, for models of `spgnn.nn`.

    ``out = model(batch.x, batch.layers, batch.keys)`` are rows of the seeds.

    Attributes
    ----------
    x : Tensor or CSR [m, f]
        What the first layer takes.
    y : Tensor [batch_size, …], or None
        Labels of the seeds.
    n_id : Tensor int64 [m]
        Original ids of the vertices that the first layer takes.
    input_id : Tensor int64 [batch_size]
        The seeds, by their places among this rank's rows.
    batch_size : int
    layers : list of Block
    place : Place
    """

    def __init__(
        self,
        x: Tensor | CSR,
        y: Tensor | None,
        layers: list[PartialBlock],
        input_id: Tensor,
        place: Place,
    ) -> None:
        self.x, self.y, self.layers = x, y, layers
        self.input_id, self.place = input_id, place
        self.batch_size = len(input_id)
        self.n_id = layers[0].vertex_ids

    def __repr__(self) -> str:
        return f"PartialBatch({self.batch_size} of {len(self.n_id)} vertices)"

    @property
    def sampled_edges(self) -> int:
        """Edges of all layers together."""
        return sum(block.pattern.nnz for block in self.layers)

    @cached_property
    def keys(self) -> DropoutKeys:
        """Of the batch's dropout: a function of the loader's seed, the batch and the vertex."""
        return DropoutKeys(self.n_id, self.place.seed, self.place.step)


class HistoricalLoader:
    """Batches of each rank's own vertices, for which halo vertices are as they were (DistGNN-MB).

    Neighbours are drawn on this rank alone. What other ranks' vertices were some iterations ago is
    in a cache for each layer; see :class:`Historical`. Every step of an iteration is collective: a
    rank without a batch gets an empty one, and all models have to be called with theirs. Features
    of the halo are fetched once.

    Parameters
    ----------
    graph : DistGraph or RankShare
    comm : Communicator
        All ranks.
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    widths : sequence of int
        What layers hand to the next ones, so one fewer than there are hops: `hidden_widths`.
    history : History, optional
        ``None``: nothing is known of other ranks' vertices, not even their features.
    input_nodes : Tensor bool [own rows], or the name of a mask
    batch_size : int
        Seeds of a batch.
    shuffle, replace
        As of `NeighborLoader`.
    misses : {"drop", "fetch"}
    of_graph : bool
        Whether layers are scaled by the degrees of the whole graph.
    dtype : torch.dtype
        Of the historical rows.
    x : Tensor, CSR or Rows [own rows, f], optional
        Features of own vertices, in the place of the graph's.
    prefetch : int
        Batches that a thread makes ahead where neither history nor other ranks have a say in them;
        otherwise none are.
    seed : int

    Attributes
    ----------
    epoch : int
        The one that the next iteration is.
    iteration : int
        Iterations so far.
    sampled : Sampled
        What this rank's batches were so far.

    Raises
    ------
    InputError
        On all ranks, if an argument is wrong or they differ.
    """

    def __init__(
        self,
        graph: DistGraph | RankShare,
        comm: Communicator,
        num_neighbors: Sequence[int],
        widths: Sequence[int],
        *,
        history: History | None = None,
        input_nodes: Tensor | str = "train_mask",
        batch_size: int = 1,
        shuffle: bool = False,
        replace: bool = False,
        misses: Misses = "drop",
        of_graph: bool = True,
        dtype: torch.dtype = torch.float32,
        x: Table | None = None,
        prefetch: int = 0,
        seed: int = 0,
    ) -> None:
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.seed = check_integer("seed", seed, 0)
        check_choice("misses", misses, MISSES)
        if len(widths) != len(num_neighbors) - 1:
            raise InputError(
                f"{len(num_neighbors)} hops need {len(num_neighbors) - 1} widths, got {len(widths)}"
            )
        comm.check_agreement(
            "HistoricalLoader",
            num_neighbors=tuple(num_neighbors),
            widths=tuple(widths),
            history=history,
            options=(batch_size, shuffle, replace, misses, seed, str(dtype)),
        )
        self.shuffle, self.of_graph, self._comm = shuffle, of_graph, comm
        self.history = history
        alone = history is None and misses == "drop"
        self._ahead = check_integer("prefetch", prefetch, 0) if alone else 0
        mask = mask_of(graph, input_nodes, comm)
        self.ranks = RankGraph.of(graph, comm, x)
        self._inputs = mask.nonzero()[:, 0]
        self._length = comm.agree(-(-len(self._inputs) // batch_size))
        self.past = self._past(num_neighbors, widths, mask, misses, dtype, replace=replace)
        self._around = self.ranks.around.packed()
        self.epoch = self.iteration = 0
        self.sampled = Sampled()

    def __len__(self) -> int:
        """Iterations of an epoch, on all ranks alike."""
        return self._length

    def __iter__(self) -> Iterator[PartialBatch]:
        """The batches of the next epoch. Collective."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = torch.arange(len(self._inputs))
        if self.shuffle:
            order = seed_order(self.ranks.facts.ids[self._inputs], self.seed, epoch)
        first = self.iteration
        turns = [
            (order[turn * self.batch_size : (turn + 1) * self.batch_size], self._place(epoch, turn))
            for turn in range(self._length)
        ]
        batches = in_order(
            lambda turn: self._sampled(*turns[turn], first + turn),
            self._batches,
            len(turns),
            threads=1 if self._ahead else 0,
            ahead=self._ahead,
        )
        with closing(batches):
            for _ in turns:
                now, self.iteration = self.iteration, self.iteration + 1
                self.past.begin(now)
                yield next(batches)
                self.past.end(now)

    def _place(self, epoch: int, turn: int) -> Place:
        number = turn * self._comm.size + self._comm.rank
        return Place(self.seed, epoch, number, epoch * self._length + turn)

    def _sampled(self, inputs: Tensor, place: Place, iteration: int) -> _Begun:
        seeds = self._inputs[inputs] + self.ranks.boundary.first
        started = perf_counter()
        draw = Draw(self.seed, place.epoch, place.number)
        hops = self.past.sample(seeds, draw, iteration)
        sample = Sample(hops[0].nodes, len(seeds), [hop.hop for hop in hops])
        self.sampled.add([sample], perf_counter() - started)
        return hops, self._inputs[inputs], place

    def _batches(self, begun: Sequence[_Begun]) -> Generator[PartialBatch, None, None]:
        yield from (self._batch(*one) for one in begun)

    def drain(self) -> None:
        """Wait for rows that are still on their way, when training is over. Collective."""
        if self.past.push is not None:
            self.past.push.drain()

    def report(self) -> dict[str, Any]:
        """What the caches were good for, over all ranks. Collective.

        Returns
        -------
        dict
            ``hit_rate``: of features, then of what layers 1, 2, … take; ``mean_age`` of the latter,
            in iterations; ``rows_asked`` for. ``None`` where nothing was asked for.
        """
        hits = [self.past.features.hits, *(cache.hits for cache in self.past.caches)]
        counted = torch.tensor([[h.asked, h.found, h.ages] for h in hits])
        self._comm.all_reduce(counted).wait()
        total = [Hits(*row) for row in counted.tolist()]
        push = self.past.push
        pushed = torch.tensor([0 if push is None else push.sent_bytes])
        self._comm.all_reduce(pushed).wait()
        return {
            "hit_rate": [h.rate for h in total],
            "mean_age": [h.mean_age for h in total[1:]],
            "rows_asked": [h.asked for h in total],
            "pushed_bytes": int(pushed),
        }

    def _past(
        self,
        num_neighbors: Sequence[int],
        widths: Sequence[int],
        mask: Tensor,
        misses: Misses,
        dtype: torch.dtype,
        *,
        replace: bool,
    ) -> Historical:
        ranks = self.ranks
        halo, history = len(ranks.boundary.halo), self.history or History(0, 0, 1, 0)
        uses = reached_uses(ranks, mask, len(num_neighbors))
        features = HaloFeatures(
            ranks.x,
            uses,
            history.size,
            boundary=ranks.boundary,
            layout=ranks.layout,
            comm=self._comm,
        )
        fetched = features.table
        ranks.counts.add(rows_read=fetched.shape[0], bytes_read=fetched.nbytes)
        push = None
        if self.history is not None:
            push = Push(
                ranks.boundary,
                widths,
                dtype,
                delay=history.delay,
                most=history.push,
                degrees=ranks.block.row_lengths,
                comm=self._comm,
                # What is there lives on for a while.
                pause=max(history.life // 2, 1),
            )
        caches = [EmbeddingCache(halo, w, history.size, history.life, dtype) for w in widths]
        sampler = ranks.sampler(num_neighbors, replace=replace)
        return Historical(sampler, ranks.boundary, features, caches, push, misses)

    def _batch(self, hops: list[PartialHop], inputs: Tensor, place: Place) -> PartialBatch:
        facts = self._facts([hop.nodes for hop in hops])
        layers = []
        for number, (hop, known) in enumerate(zip(hops, facts, strict=True)):
            block = PartialBlock(
                partial(self.past.completed, number, hop),
                block_pattern(hop.hop.indptr, hop.hop.indices, hop.hop.sources),
                known.ids,
                edge_weight=hop.edges,
                factors=hop.hop.weights,
                degrees=partial(getattr, known, "degrees") if self.of_graph else None,
            )
            layers.append(block)
        y = facts[-1].of(slice(len(inputs))).y
        return PartialBatch(self._features(hops[0]), y, layers, inputs, place)

    def _features(self, hop: PartialHop) -> Tensor | CSR:
        """Features of own vertices, of those at hand, and of what is fetched."""
        ranks, makes = self.ranks, hop.makes
        if self.past.misses == "fetch":
            questions = Questions(makes, ranks.layout, self._comm)
            made = answered(questions, taken(ranks.x, questions.asked))
        else:
            made = taken(ranks.x, makes - ranks.boundary.first)
        ranks.count(makes, made)
        at_hand = self.past.features.rows(hop.slots)
        ranks.counts.add(rows_needed=len(hop.slots), bytes_needed=at_hand.nbytes)
        rows = stacked(made, at_hand)
        return rows if hop.order is None else taken(rows, hop.order)

    def _facts(self, nodes: Sequence[Tensor]) -> list[Facts]:
        """Of the vertices of each layer."""
        ranks, listed = self.ranks, torch.cat(list(nodes))
        own, number = ranks.boundary.is_own(listed), ranks.boundary.number(listed)
        place = torch.where(own, listed - ranks.boundary.first, number + ranks.boundary.own)
        known = own | (number >= 0)
        if self.past.misses == "fetch":
            rows = self._around.new_empty(len(listed), self._around.shape[1])
            rows[known] = self._around[place[known]]
            questions = Questions(listed[~known], ranks.layout, self._comm)
            rows[~known] = questions.answered(ranks.facts.packed()[questions.asked])
        else:
            rows = self._around[place]
        sizes = [len(part) for part in nodes]
        return [ranks.facts.unpacked(part) for part in rows.split(sizes)]


def reached_uses(ranks: RankGraph, seeds: Tensor, hops: int) -> Tensor:
    """How many edges begin at each vertex of the halo that batches of these seeds can ask for.

    Parameters
    ----------
    ranks : RankGraph
    seeds : Tensor bool [own rows]
    hops : int

    Returns
    -------
    Tensor int64 [h]
    """
    own = ranks.boundary.own
    pattern = ranks.boundary.compact(ranks.block)
    rows = torch.arange(own).repeat_interleave(pattern.row_lengths)
    reached = seeds.clone()
    for _ in range(hops - 1):
        found = torch.zeros(pattern.shape[1], dtype=torch.bool)
        found[pattern.indices[reached[rows]].long()] = True
        reached = reached | found[:own]
    columns = pattern.indices[reached[rows]].long()
    return torch.bincount(columns[columns >= own] - own, minlength=pattern.shape[1] - own)


def hidden_widths(model: Stack) -> list[int]:
    """What each layer of a model hands to the next one.

    Raises
    ------
    InputError
        If the model looks at more than what a layer was handed.
    """
    if model.jk_mode is not None:
        raise InputError("historical rows: jumping knowledge (--jk) looks at all layers at once")
    hidden = model.hidden_channels
    return [hidden] * (model.num_layers - 1) if isinstance(hidden, int) else list(hidden)
