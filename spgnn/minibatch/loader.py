"""Loaders: batches of sampled neighbourhoods, made ahead in threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice, check_integer
from spgnn.hashing import uniform
from spgnn.minibatch.ahead import in_order
from spgnn.minibatch.batch import Batch, Place
from spgnn.minibatch.counts import Sampled
from spgnn.minibatch.expansion import Once
from spgnn.minibatch.features import Features
from spgnn.minibatch.names import SAMPLERS
from spgnn.minibatch.source import Source, chosen, source_of
from spgnn.sampling import Draw, NeighborSampler, Sample, Sampler
from spgnn.store import Rows

Scaling = Literal["graph", "batch"]
# Options of PyG's loader that stand for what is done anyway.
_PYG = {
    "subgraph_type": "directional",
    "directed": True,
    "is_sorted": False,
    "filter_per_worker": None,
    "pin_memory": False,
    "persistent_workers": False,
    "transform_sampler_output": None,
}


class NeighborLoader:
    """Batches of vertices with a sampled neighbourhood (Hamilton et al. 2017), as PyG's.

    Batch b of epoch e is a function of the seed, e and b alone, however many threads prepare it.
    Iterating begins the next epoch.

    Parameters
    ----------
    data
        A PyG ``Data``, a `spgnn.data.Graph`, a `DistGraph` of one rank, a SciPy matrix or a pair of
        one and features, or the name or path of a data set.
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    input_nodes : Tensor of integers or bool [n], the name of a mask, or None
        Vertices that seeds are taken of; by default all.
    batch_size : int
        Seeds of a batch.
    shuffle : bool
        Take seeds in another order in each epoch.
    drop_last : bool
        Leave out a last batch that is not full.
    replace : bool
        Whether a neighbour may be drawn more than once.
    disjoint : bool
        Every seed has a neighbourhood of its own.
    weight_attr : str, optional
        What is known of the edges under this name says how likely they are drawn.
    sampler : str or Sampler
        ``neighbor``; or whatever makes samples.
    resample : bool
        Draw neighbours of a vertex anew in each layer, as DGL does; otherwise once, as PyG does.
    normalise : {"graph", "batch"}
        What `Batch.layers` are scaled by: degrees in the whole graph, so that each layer estimates
        that of full-graph training; or degrees in the batch, as layers of PyG see it.
    store : Rows [n, f], optional
        Where features are, in the place of the data's own.
    superbatch : int
        So many batches are sampled before any of their features are fetched; rows that several of
        them need are fetched once.
    prefetch : int
        Batches that are made ahead.
    num_workers : int
        Threads that sample; 0: whoever iterates does everything himself.
    edge_ids : bool, optional
        Whether batches know `e_id`; by default where edges have weights or features.
    transform : callable, optional
        Of a batch, before it is handed out.
    seed : int
    data_dir : str, optional
        Where named sets are looked for.
    rank, ranks : int
        Of several loaders alike, this one hands out batches rank, rank + ranks, … of each epoch.
    options
        Other ones of PyG's loader; none but their defaults.

    Attributes
    ----------
    epoch : int
        The one that the next iteration is.
    source : Source
    features : Features
        With the counts of rows asked for and read.
    sampled : Sampled
        With the counts of edges that were drawn.

    Raises
    ------
    InputError
        If an argument is wrong.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        disjoint: bool = False,
        weight_attr: str | None = None,
        sampler: str | Sampler = "neighbor",
        resample: bool = False,
        normalise: Scaling = "graph",
        store: Rows | None = None,
        superbatch: int = 1,
        prefetch: int = 2,
        num_workers: int = 1,
        edge_ids: bool | None = None,
        transform: Callable[[Batch], Any] | None = None,
        seed: int = 0,
        data_dir: str | None = None,
        rank: int = 0,
        ranks: int = 1,
        **options: Any,
    ) -> None:
        _check_options(options)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.superbatch = check_integer("superbatch", superbatch, 1)
        self.prefetch = check_integer("prefetch", prefetch, 0)
        self.num_workers = check_integer("num_workers", num_workers, 0, 1024)
        self.seed = check_integer("seed", seed, 0)
        check_choice("normalise", normalise, get_args(Scaling))
        self.shuffle, self.drop_last, self.transform = shuffle, drop_last, transform
        self.normalise = normalise
        self.source: Source = source_of(data, store, data_dir)
        self.input_nodes = chosen(self.source, input_nodes)
        self.features, self.sampled = Features(self.source.x), Sampled()
        self.ranks = check_integer("ranks", ranks, 1)
        self.rank = check_integer("rank", rank, 0, ranks - 1)
        self.epoch = 0
        if edge_ids is None:
            edge_ids = bool(self.source.edges)
        self.sampler = (
            sampler
            if not isinstance(sampler, str)
            else _sampler(
                sampler,
                self.source,
                num_neighbors,
                replace=replace,
                edge_ids=edge_ids,
                resample=resample,
                threads=None if num_workers < 2 else 1,
            )
        )

    @property
    def batches(self) -> int:
        """Batches of an epoch, those of all ranks."""
        full, rest = divmod(len(self.input_nodes), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(range(self.rank, self.batches, self.ranks))

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = self.order(epoch)
        return in_order(
            lambda turn: self._sampled(epoch, self.rank + turn * self.ranks, order),
            self._finished,
            len(self),
            threads=self.num_workers if self.prefetch else 0,
            ahead=self.prefetch,
            together=self.superbatch,
        )

    def order(self, epoch: int) -> Tensor:
        """Places of the seeds among the input nodes, in the order of an epoch."""
        if not self.shuffle:
            return torch.arange(len(self.input_nodes))
        ids = self.source.ids_of(self.input_nodes).numpy()
        draws = uniform(ids, self.seed, f"order of epoch {epoch}")
        return torch.from_numpy(np.lexsort((ids, draws)))

    def trace(self, epoch: int) -> Iterator[Tensor]:
        """The vertices of each batch of an epoch, int64 [m] each; drawn again, and not counted."""
        order = self.order(epoch)
        for number in range(self.rank, self.batches, self.ranks):
            yield self._drawn(epoch, number, order)[0].nodes

    def sample(self, epoch: int, number: int) -> Any:
        """One batch of any epoch, made here and now, transformed like the others."""
        made = self._sampled(epoch, number, self.order(epoch))
        (batch,) = self._finished([made])
        return batch

    def _sampled(self, epoch: int, number: int, order: Tensor) -> tuple[Sample, Tensor, Place]:
        place = Place(self.seed, epoch, number, epoch * self.batches + number)
        begun = perf_counter()
        sample, places = self._drawn(epoch, number, order)
        self.sampled.add(sample, perf_counter() - begun)
        return sample, places, place

    def _drawn(self, epoch: int, number: int, order: Tensor) -> tuple[Sample, Tensor]:
        places = order[number * self.batch_size : (number + 1) * self.batch_size]
        return self.sampler.sample(self.input_nodes[places], Draw(self.seed, epoch, number)), places

    def _finished(self, made: Sequence[tuple[Sample, Tensor, Place]]) -> Generator[Any, None, None]:
        of_graph = self.normalise == "graph"
        with closing(self.features.of([sample.nodes for sample, _, _ in made])) as rows:
            for (sample, places, place), x in zip(made, rows, strict=True):
                batch = Batch(self.source, sample, x, places, place, of_graph=of_graph).prepare()
                yield batch if self.transform is None else self.transform(batch)


def _sampler(
    name: str,
    source: Source,
    num_neighbors: Sequence[int],
    *,
    replace: bool,
    edge_ids: bool,
    resample: bool,
    threads: int | None,
) -> Sampler:
    check_choice("sampler", name, SAMPLERS)
    made = NeighborSampler(
        source.pattern,
        list(num_neighbors),
        replace=replace,
        edge_ids=edge_ids,
        vertex_ids=source.vertex_ids,
        threads=threads,
    )
    if not made.num_neighbors:
        raise InputError("num_neighbors must name one number a hop, got none")
    return made if resample else Once(made)


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name not in _PYG:
            raise InputError(f"NeighborLoader has no option {name}")
        if value != _PYG[name]:
            raise InputError(f"NeighborLoader: {name}={value!r} is not supported")
