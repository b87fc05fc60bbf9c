"""Loaders: batches of sampled neighbourhoods, made ahead in threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice, check_integer
from spgnn.hashing import uniform
from spgnn.minibatch.ahead import in_order
from spgnn.minibatch.batch import Batch, Place
from spgnn.minibatch.counts import Sampled
from spgnn.minibatch.features import Features
from spgnn.minibatch.samplers import Drawing
from spgnn.minibatch.source import Source, chosen, is_integer, source_of
from spgnn.pattern import described
from spgnn.sampling import Draw, Sample, Sampler
from spgnn.store import DiskPattern, PackedRows, Rows

Scaling = Literal["graph", "batch"]
# Options of PyG's loader: those that change no batch, and the one value of others.
_WITHOUT_EFFECT = (
    "filter_per_worker",
    "is_sorted",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
)
_PYG = {"directed": True, "transform_sampler_output": None}


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
        Vertices that seeds are taken of; by default all. Disjoint ones may repeat.
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
    subgraph_type : {"directional", "induced"}
        The edges that were drawn, or all between the vertices of neighbouring hops.
    time_attr : str, optional
        Times of vertices or of edges: nothing later than the seed is drawn; disjoint.
    input_time : Tensor of integers [inputs], optional
        Times of the seeds; by default those of these vertices.
    temporal_strategy : {"uniform", "last"}
        Any of the neighbours that are early enough, or the latest, each once.
    weight_attr : str, optional
        What is known of the edges under this name says how likely they are drawn; layers of ours
        are told what each stands for.
    sampler : str or Sampler
        ``neighbor``; ``labor``, in which neighbours of several vertices are drawn together (Balin &
        Çatalyürek 2023); ``ladies`` or ``fastgcn``, of which `num_neighbors` are vertices of a
        whole layer (Zou et al. 2019; Chen, Ma & Xiao 2018); or whatever makes samples.
    resample : bool
        Draw neighbours of a vertex anew in each layer, as DGL does; otherwise once, as PyG does.
        Other samplers than ``neighbor``, and disjoint samples, always do.
    normalise : {"graph", "batch"}
        What `Batch.layers` are scaled by: degrees in the whole graph, so that each layer estimates
        that of full-graph training; or degrees in the batch, as layers of PyG see it.
    store : Rows [n, f], optional
        Where features are, in the place of the data's own. `PackedRows` are packed before the
        epochs whose batches they then have; these are drawn twice.
    structure : DiskPattern [n, n], optional
        Where the graph is, in the place of the data's own. The same batches, of rows that are
        read when they are needed; not for ``fastgcn``, disjoint or induced samples.
    superbatch : int
        So many batches are sampled before any of their features are fetched; rows that several of
        them need are fetched once.
    pack_epochs : int
        Epochs whose batches are packed together.
    prefetch : int
        Batches that are made ahead.
    num_workers : int
        Threads that sample; 0: whoever iterates does everything himself.
    edge_ids : bool, optional
        Whether batches know `e_id`; by default those of a ``Data``, and where edges have weights.
    transform : callable, optional
        Of a batch, before it is handed out.
    seed : int
    data_dir : str, optional
        Where named sets are looked for.
    rank, ranks : int
        Of several loaders alike, this one hands out batches rank, rank + ranks, … of each epoch.
    options
        ``persistent_workers``, ``pin_memory``, ``prefetch_factor``, ``is_sorted`` and
        ``filter_per_worker`` of PyG's loader are accepted and change nothing.

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
        subgraph_type: Literal["directional", "induced"] = "directional",
        time_attr: str | None = None,
        input_time: Tensor | None = None,
        temporal_strategy: str = "uniform",
        weight_attr: str | None = None,
        sampler: str | Sampler = "neighbor",
        resample: bool = False,
        normalise: Scaling = "graph",
        store: Rows | None = None,
        structure: DiskPattern | None = None,
        superbatch: int = 1,
        pack_epochs: int = 1,
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
        self.pack_epochs = check_integer("pack_epochs", pack_epochs, 1)
        self.prefetch = check_integer("prefetch", prefetch, 0)
        self.num_workers = check_integer("num_workers", num_workers, 0, 1024)
        self.seed = check_integer("seed", seed, 0)
        self.ranks = check_integer("ranks", ranks, 1)
        self.rank = check_integer("rank", rank, 0, ranks - 1)
        _checked("transform", transform, transform is None or callable(transform))
        check_choice("normalise", normalise, get_args(Scaling))
        check_choice("subgraph_type", subgraph_type, ("directional", "induced"))
        self.shuffle, self.drop_last, self.transform = shuffle, drop_last, transform
        self.normalise, self.epoch, self._packed = normalise, 0, range(0)
        self.source: Source = source_of(data, store, data_dir, structure)
        repeated = disjoint or time_attr is not None  # a vertex may have several trees
        self.input_nodes, self._input_id = chosen(self.source, input_nodes, repeated=repeated)
        self.features, self.sampled = Features(self.source.x), Sampled()
        self._times = _checked_times(input_time, time_attr, len(self.input_nodes))
        if not isinstance(sampler, str):
            self.sampler = _checked("sampler", sampler, hasattr(sampler, "sample"))
            told = {"replace": replace, "weight_attr": weight_attr}
            for name, value in (told | {"subgraph_type": subgraph_type == "induced"}).items():
                if value:
                    kind = type(sampler).__name__
                    raise InputError(f"{name} is not for a sampler that is made already ({kind})")
            return
        how = replace, disjoint, subgraph_type == "induced", resample
        timed = weight_attr, time_attr, temporal_strategy, input_time is not None
        drawing = Drawing(sampler, *how, *timed)
        self.sampler = self._made(drawing, num_neighbors, edge_ids)

    def _made(
        self, drawing: Drawing, num_neighbors: Sequence[int], edge_ids: bool | None
    ) -> Sampler:
        """The sampler; several that run at once have a thread each."""
        if edge_ids is None:
            edge_ids = bool(self.source.edges) or self.source.numbered
        threads = None if self.num_workers < 2 else 1
        return drawing.of(self.source, num_neighbors, edge_ids=edge_ids, threads=threads)

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
        self._pack(epoch)
        return in_order(
            lambda turn: self._sampled(epoch, self.rank + turn * self.ranks, order),
            self._finished,
            len(self),
            threads=self.num_workers if self.prefetch else 0,
            ahead=self.prefetch,
            together=self.superbatch,
        )

    def _pack(self, epoch: int) -> None:
        """Have the batches of this epoch, and of some that follow, packed if that is asked for."""
        x = self.source.x
        if isinstance(x, PackedRows) and epoch not in self._packed:
            self._packed = range(0)
            epochs = range(epoch, epoch + self.pack_epochs)
            x.pack([ids for number in epochs for ids in self.trace(number)])
            self._packed = epochs

    def order(self, epoch: int) -> Tensor:
        """Places of the seeds among the input nodes, in the order of an epoch."""
        if not self.shuffle:
            return torch.arange(len(self.input_nodes))
        ids = self._input_ids().numpy()
        draws = uniform(ids, self.seed, f"order of epoch {epoch}")
        return torch.from_numpy(np.lexsort((ids, draws)))

    def trace(self, epoch: int) -> Iterator[Tensor]:
        """The vertices of each batch of an epoch, int64 [m] each; drawn again, and not counted."""
        order = self.order(epoch)
        for number in range(self.rank, self.batches, self.ranks):
            yield self._drawn(epoch, number, order).sample.nodes

    def sample(self, epoch: int, number: int) -> Any:
        """One batch of any epoch, made here and now, transformed like the others."""
        made = self._sampled(epoch, number, self.order(epoch))
        (batch,) = self._finished([made])
        return batch

    def _input_ids(self) -> Tensor:
        """Original ids of the input nodes: the order of an epoch is a function of them."""
        return self.source.ids_of(self.input_nodes)

    def _inputs(self, places: Tensor, draw: Draw) -> tuple[Tensor, dict[str, Tensor]]:
        """The seeds of some inputs, and what else their batch is told."""
        return self.input_nodes[places], {}

    def _sampled(self, epoch: int, number: int, order: Tensor) -> _Drawn:
        begun = perf_counter()
        drawn = self._drawn(epoch, number, order)
        self.sampled.add([drawn.sample], perf_counter() - begun)
        return drawn

    def _drawn(self, epoch: int, number: int, order: Tensor) -> _Drawn:
        places = order[number * self.batch_size : (number + 1) * self.batch_size]
        draw = Draw(self.seed, epoch, number)
        seeds, told = self._inputs(places, draw)
        sampler: Any = self.sampler
        if self._times is None:
            sample = sampler.sample(seeds, draw)
        else:
            told["seed_time"] = self._times[places]
            sample = sampler.sample(seeds, draw, told["seed_time"])
        step = epoch * self.batches + number
        return _Drawn(sample, places, Place(self.seed, epoch, number, step), told)

    def _finished(self, made: Sequence[_Drawn]) -> Generator[Any, None, None]:
        of_graph = self.normalise == "graph"
        with closing(self.features.of([drawn.sample.nodes for drawn in made])) as rows:
            for (sample, places, place, told), x in zip(made, rows, strict=True):
                known: dict[str, Any] = {"of_graph": of_graph, "told": told}
                input_id = places if self._input_id is None else self._input_id[places]
                batch = Batch(self.source, sample, x, input_id, place, **known).prepare()
                yield batch if self.transform is None else self.transform(batch)


class _Drawn(NamedTuple):
    """A sample on its way to become a batch."""

    sample: Sample
    places: Tensor
    place: Place
    told: dict[str, Tensor]


def _checked(name: str, value: Any, right: bool) -> Any:
    if not right:
        wanted = {"sampler": "a name or have a method sample", "transform": "callable"}[name]
        raise InputError(f"{name} must be {wanted}, got {type(value).__name__}")
    return value


def _checked_times(times: Any, attr: str | None, inputs: int) -> Tensor | None:
    """Times of the input nodes."""
    if times is None:
        return None
    if attr is None:
        raise InputError("input_time needs time_attr: times of vertices or edges to compare with")
    try:
        found = torch.as_tensor(times)
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(())
    if found.shape != (inputs,) or not is_integer(found):
        got = described(times)
        raise InputError(f"input_time must be integers [{inputs}], one an input node, got {got}")
    return found.detach().cpu().to(torch.int64, copy=True)


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _WITHOUT_EFFECT:
            logging.getLogger(__name__).debug(f"NeighborLoader: {name} changes nothing here")
        elif name not in _PYG:
            raise InputError(f"NeighborLoader has no option {name}")
        elif value != _PYG[name]:
            raise InputError(f"NeighborLoader: {name}={value!r} is not supported")
