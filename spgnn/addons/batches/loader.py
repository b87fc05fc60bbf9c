"""NeighborLoader: batches of sampled neighbourhoods, on one process or of a distributed graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spgnn.addons.batches.batch import Batch
from spgnn.addons.batches.feature_rows import Counts, Rows, features_of
from spgnn.addons.batches.modes import BatchOptions, Mode, Strategy
from spgnn.addons.batches.rank_batches import seed_order, steps_of
from spgnn.addons.batches.sampled_graph import (
    SampledGraph,
    StoredPattern,
    input_nodes_of,
    is_integer,
    sampled_graph_of,
    tensor_of,
)
from spgnn.addons.batches.samplers import TEMPORAL_STRATEGIES, NeighborSampler
from spgnn.addons.batches.sampling import Draw, Sample, SampleCounts, Sampler
from spgnn.addons.batches.threads import in_order
from spgnn.comm import Communicator
from spgnn.data import RankShare
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.graph import DistGraph
from spgnn.pattern import described
from spgnn.registry import MODES, SAMPLERS
from spgnn.torch_internals import on_cpu

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
Finish = Callable[[Sequence[Sample]], Generator[Any, None, None]]


@dataclass(frozen=True)
class Superbatch:
    """So many batches are sampled, in memory, before any of their features are fetched."""

    size: int = 1

    def __post_init__(self) -> None:
        check_integer("superbatch", self.size, 1)

    def run(
        self,
        sample: Callable[[int], Sample],
        finish: Finish,
        count: int,
        *,
        threads: int,
        ahead: int,
        stage: Callable[[str], None],
    ) -> Generator[Any, None, None]:
        """The results of the samples 0 … count − 1, in order.

        Threads sample; one more finishes them, `ahead` of the caller. `stage` is called with the
        name of each stage that begins alone, ``"sample"`` or ``"gather"``.
        """
        return in_order(sample, finish, count, threads=threads, ahead=ahead, together=self.size)

    def store(self, sample: Callable[[int], Sample], count: int) -> Sequence[Sample] | None:
        """Samples of all epochs, which are the same, unless they are to be made again."""
        return None


class NeighborLoader:
    """Batches of vertices with a sampled neighbourhood (Hamilton et al. 2017), as PyG's.

    A batch is a function of the seed, the epoch, the step and its seeds, however many threads
    prepare it. Iterating begins the next epoch. On P ranks a step is a batch of every rank, whose
    draws are those of one batch of all their seeds: P ranks of B / P seeds train as one of B.

    Parameters
    ----------
    data
        A PyG ``Data``, a `spgnn.data.Graph`, a `DistGraph`, a SciPy matrix or a pair of one and
        features, or the name or path of a data set. Of a `DistGraph` on several ranks all calls
        are collective, and `mode` says what a batch sees.
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    input_nodes : Tensor of integers or bool [n], the name of a mask, or None
        Vertices that seeds are taken of; by default all. Disjoint ones may repeat. On several
        ranks a mask of own rows.
    batch_size : int
        Seeds of a batch.
    shuffle : bool
        Take seeds in another order in each epoch.
    seed_clusters : Tensor of integers [inputs], optional
        Clusters of the input nodes. Those of one follow each other, and it is clusters that come in
        another order in each epoch, as seeds do within one: neighbours of a batch are fewer and
        known to caches (2PGraph; Zhang et al. 2021).
    drop_last : bool
        Leave out a last step that is not full.
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
        The attribute of edges in proportion to which they are drawn; layers of ours take each edge
        for as much as it stands for.
    sampler : str or Sampler
        ``neighbor``; ``labor``, in which neighbours of several vertices are drawn together (Balin &
        Çatalyürek 2023); a name that is registered; or an object that makes samples.
    resample : bool
        Draw neighbours of a vertex anew in each layer, as DGL does. Otherwise a vertex has one
        random order of its neighbours in a step, and each layer takes the first ones.
    normalise : {"graph", "batch"}
        Degrees that `Batch.layers` are scaled by: in the whole graph, so that each layer estimates
        that of full-graph training; or in the batch, as layers of PyG see it.
    store : Rows [n, f], optional
        Features, instead of the data's own.
    structure : StoredPattern [n, n], optional
        The graph, instead of the data's own, such as a `DiskPattern`. The same batches, of rows
        that are read when they are needed; not for disjoint or induced samples.
    superbatch : int or Superbatch
        So many batches are sampled before any of their features are fetched; rows that several of
        them need are fetched once. A `DiskSuperbatch` writes the samples to a disk.
    fixed : bool
        The batches of the first epoch in every epoch, in that order. A `DiskSuperbatch` samples
        them once.
    prefetch : int
        Batches that are made ahead.
    num_workers : int
        Threads that sample; 0: the caller's alone.
    edge_ids : bool, optional
        Whether batches know `e_id`; by default those of a ``Data``, and where edges have weights.
    transform : callable, optional
        Of a batch, before it is handed out.
    seed : int
    data_dir : str, optional
        Where named sets are looked for.
    rank, ranks : int
        Of several loaders alike on whole graphs, this one hands out the batches of one rank.
    mode : str or Mode
        Of a graph on several ranks: ``"exact"``, the batches of one process; ``"own"``, exact ones
        of each rank's own seeds; ``"local"``, neighbours of a rank's own part; a `History`, these
        and stale embeddings of others' vertices; `Clusters` of a rank's part; or a name that is
        registered.
    comm : Communicator, optional
        All ranks, where `data` is a rank's share rather than a `DistGraph`.
    options
        ``persistent_workers``, ``pin_memory``, ``prefetch_factor``, ``is_sorted`` and
        ``filter_per_worker`` of PyG's loader are accepted and change nothing.

    Attributes
    ----------
    epoch : int
        The one that the next iteration is.
    counts : Counts
        Rows of features that batches needed; of a distributed graph also those from other ranks.
    sampled : SampleCounts
    samples : sequence of Sample, or None
        Those that all epochs have, once they are stored.

    Raises
    ------
    InputError
        If an argument is wrong.
    """

    @on_cpu
    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        seed_clusters: Tensor | None = None,
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
        structure: StoredPattern | None = None,
        superbatch: int | Superbatch = 1,
        fixed: bool = False,
        prefetch: int = 2,
        num_workers: int = 1,
        edge_ids: bool | None = None,
        transform: Callable[[Batch], Any] | None = None,
        seed: int = 0,
        data_dir: str | None = None,
        rank: int = 0,
        ranks: int = 1,
        mode: str | Mode = "exact",
        comm: Communicator | None = None,
        **options: Any,
    ) -> None:
        for name, value in options.items():
            if name in _WITHOUT_EFFECT:
                logging.getLogger(__name__).debug(f"NeighborLoader: {name} changes nothing here")
            elif name not in _PYG:
                raise InputError(f"NeighborLoader has no option {name}")
            elif value != _PYG[name]:
                raise InputError(f"NeighborLoader: {name}={value!r} is not supported")
        self.batch_size = check_integer("batch_size", batch_size, 1)
        is_plain = not isinstance(superbatch, Superbatch)
        self.superbatch = (
            superbatch if isinstance(superbatch, Superbatch) else Superbatch(superbatch)
        )
        self.prefetch = check_integer("prefetch", prefetch, 0)
        self.num_workers = check_integer("num_workers", num_workers, 0, 1024)
        self.seed = check_integer("seed", seed, 0)
        self.ranks = check_integer("ranks", ranks, 1)
        self.rank = check_integer("rank", rank, 0, ranks - 1)
        if transform is not None and not callable(transform):
            raise InputError(f"transform must be callable, got {type(transform).__name__}")
        check_choice("normalise", normalise, get_args(Scaling))
        check_choice("subgraph_type", subgraph_type, ("directional", "induced"))
        self.shuffle, self.drop_last, self.transform = shuffle, drop_last, transform
        self.fixed = fixed
        self.samples: Sequence[Sample] | None = None
        self.normalise, self.epoch = normalise, 0
        self.strategy: Strategy | None = None
        self._dist_graph = (data, data.version) if isinstance(data, DistGraph) else None
        if isinstance(data, DistGraph) and data.has_repeated_edges:
            raise InputError(
                "NeighborLoader: this graph has several edges between the same vertices, which a "
                "DistGraph holds as one: coalesce them, or give the loader the Data, on one process"
            )
        rare = {
            "replace": replace,
            "disjoint": disjoint,
            "subgraph_type": subgraph_type == "induced",
            "weight_attr": weight_attr,
            "time_attr": time_attr,
        }
        if isinstance(data, RankShare) or (isinstance(data, DistGraph) and data.comm.size > 1):
            others = {**rare, "store": store, "structure": structure, "fixed": fixed}
            others |= {"seed_clusters": seed_clusters is not None}
            others |= {"superbatch": not is_plain, "sampler": not isinstance(sampler, str)}
            for name, value in others.items():
                if value and name != "replace":
                    raise InputError(f"{name} is not for a graph on several ranks")
            if isinstance(data, DistGraph):
                comm, data = data.comm, data.share
            assert comm is not None
            if isinstance(mode, str):
                kind = MODES[mode]
                try:
                    mode = kind()
                except TypeError:
                    raise InputError(f"mode {mode}: give a {kind.__name__} of it") from None
            if not isinstance(mode, Mode):
                raise InputError(f"mode must be one of {', '.join(MODES)} or a Mode, got {mode!r}")
            how = BatchOptions(
                num_neighbors=num_neighbors,
                input_nodes=input_nodes,
                batch_size=batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                sampler=str(sampler),
                replace=replace,
                resample=resample,
                of_graph=normalise == "graph",
                superbatch=self.superbatch.size,
                prefetch=prefetch,
                num_workers=num_workers,
                seed=seed,
            )
            self.strategy = mode.strategy(data, comm, how)
            self.counts, self.sampled = self.strategy.counts, self.strategy.sampled
            return
        self.graph: SampledGraph = sampled_graph_of(data, store, data_dir, structure)
        repeated = disjoint or time_attr is not None  # a vertex may have several trees
        self.input_nodes, self._input_id = input_nodes_of(
            self.graph, input_nodes, repeated=repeated
        )
        self.seed_clusters = None
        if seed_clusters is not None:
            if not shuffle:
                raise InputError("seed_clusters needs shuffle=True: it is an order of its own")
            self.seed_clusters = _inputs("seed_clusters", seed_clusters, len(self.input_nodes))
        self.counts, self.sampled = Counts(), SampleCounts()
        self._times: Tensor | None = None
        if input_time is not None:
            if time_attr is None:
                raise InputError("input_time needs time_attr: times of vertices or edges")
            times = _inputs("input_time", input_time, len(self.input_nodes))
            self._times = times.to(torch.int64, copy=True)
        if edge_ids is None:
            edge_ids = bool(self.graph.edges) or self.graph.numbered
        if isinstance(sampler, str):
            self.sampler: Sampler = _sampler(
                self.graph,
                sampler,
                num_neighbors,
                edge_ids=edge_ids,
                # Several that run at once have a thread each.
                threads=None if num_workers < 2 else 1,
                resample=resample,
                temporal_strategy=temporal_strategy,
                seeds_have_times=input_time is not None,
                **rare,
            )
        else:
            kind = type(sampler).__name__
            if not hasattr(sampler, "sample"):
                raise InputError(f"sampler must be a name or have a method sample, got {kind}")
            for name in ("replace", "weight_attr", "subgraph_type"):
                if rare[name]:
                    raise InputError(f"{name} is not for a sampler that is made already ({kind})")
            self.sampler = sampler

    @property
    def batches(self) -> int:
        """Batches of an epoch, those of all ranks."""
        inputs, size = len(self.input_nodes), self.batch_size
        if self.drop_last:
            return steps_of(inputs, size, self.ranks, drop_last=True) * self.ranks
        return -(-inputs // size)

    @property
    def steps(self) -> int:
        """Steps of an epoch, each a batch of every rank (the last perhaps not)."""
        return -(-self.batches // self.ranks) if self.strategy is None else self.strategy.steps

    def __len__(self) -> int:
        """Batches of an epoch; of a distributed graph its steps, each a batch or ``None``."""
        if self.strategy is not None:
            return self.steps
        return len(range(self.rank, self.batches, self.ranks))

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch.

        Raises
        ------
        InputError
            If the graph was updated since the loader was made.
        """
        return _in_turn(self._begun())

    @on_cpu
    def _begun(self) -> Iterator[Any]:
        if self._dist_graph is not None and self._dist_graph[0].version != self._dist_graph[1]:
            raise InputError(
                "the graph was updated: make a new loader, which samples the new edges"
            )
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self.strategy is not None:
            return self._transformed(self.strategy.epoch(epoch))
        order = self.order(epoch)

        def sampled(turn: int) -> Sample:
            return self._sampled(epoch, self.rank + turn * self.ranks, order)

        if self.fixed and self.samples is None:
            self.samples = self.superbatch.store(sampled, len(self))
        x, sample, superbatch = self.graph.x, sampled, self.superbatch
        if isinstance(x, Rows):
            x.foresee(epoch, self.trace, fixed=self.fixed)
        if self.samples is not None:
            samples, superbatch = self.samples, Superbatch(superbatch.size)

            def sample(turn: int) -> Sample:
                draw = self._draw(epoch, self.rank + turn * self.ranks)
                return replace(samples[turn], draw=draw)

        return superbatch.run(
            sample,
            self._finished,
            len(self),
            threads=self.num_workers if self.prefetch else 0,
            ahead=self.prefetch,
            stage=self._stage,
        )

    def _stage(self, name: str) -> None:
        """The memory of the cache of the other stage is free for the one that begins."""
        x, pattern = self.graph.x, self.graph.pattern
        if name == "sample" and isinstance(x, Rows):
            x.release()
        elif name == "gather" and isinstance(pattern, StoredPattern):
            pattern.release()

    def _transformed(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            keep = batch is None or self.transform is None
            yield batch if keep else self.transform(batch)  # type: ignore[misc]

    def order(self, epoch: int) -> Tensor:
        """Places of the seeds among the input nodes, in the order of an epoch."""
        if not self.shuffle:
            return torch.arange(len(self.input_nodes))
        epoch = 0 if self.fixed else epoch
        return seed_order(self._input_ids(), self.seed, epoch, self.seed_clusters)

    def trace(self, epoch: int) -> Iterator[Tensor]:
        """The vertices of each batch of an epoch, int64 [m] each; drawn again, and not counted."""
        if self.samples is not None:
            yield from _nodes_of(self.samples)
            return
        order = self.order(epoch)
        for number in range(self.rank, self.batches, self.ranks):
            yield self.draw(epoch, number, order).nodes

    def sample(self, epoch: int, number: int) -> Any:
        """One batch of any epoch, by its number among those of all ranks, made here and now."""
        (batch,) = self._finished([self._sampled(epoch, number, self.order(epoch))])
        return batch

    def _input_ids(self) -> Tensor:
        """Original ids of the input nodes: the order of an epoch is a function of them."""
        return self.graph.ids_of(self.input_nodes)

    def _inputs(
        self, order: Tensor, number: int, draw: Draw
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Places of a batch's inputs, its seeds, and further fields of it."""
        places = order[number * self.batch_size : (number + 1) * self.batch_size]
        return places, self.input_nodes[places], {}

    def _sampled(self, epoch: int, number: int, order: Tensor) -> Sample:
        started = perf_counter()
        sample = self.draw(epoch, number, order)
        self.sampled.add([sample], perf_counter() - started)
        return sample

    def draw(self, epoch: int, number: int, order: Tensor) -> Sample:
        """The sample of a batch, with the seeds in that order; not counted."""
        place = self._draw(epoch, number)
        draw = replace(place, epoch=0) if self.fixed else place
        if getattr(self.sampler, "draws_seeds", False):
            draw = replace(draw, step=number)
        places, seeds, extra = self._inputs(order, number, draw)
        sampler: Any = self.sampler
        times = []
        if self._times is not None:
            times = [self._times[places]]
            extra["seed_time"] = times[0]
        sample: Sample = sampler.sample(seeds, draw, *times)
        return replace(sample, inputs=places, draw=place, extra=extra)

    def _draw(self, epoch: int, number: int) -> Draw:
        step = number // self.ranks
        return Draw(self.seed, epoch, step, number, epoch * self.steps + step)

    def _finished(self, samples: Sequence[Sample]) -> Generator[Any, None, None]:
        with closing(features_of(self.graph.x, _nodes_of(samples), self.counts)) as rows:
            for sample, x in zip(samples, rows, strict=True):
                input_id = sample.inputs
                if self._input_id is not None:
                    input_id = self._input_id[sample.inputs]
                batch = Batch(
                    self.graph, sample, x, input_id, of_graph=self.normalise == "graph"
                ).prepare()
                yield batch if self.transform is None else self.transform(batch)


def _nodes_of(samples: Sequence[Sample]) -> Sequence[Tensor]:
    """The vertices of each sample; of those on a disk, read one after the other."""
    nodes: Sequence[Tensor] | None = getattr(samples, "nodes", None)
    return [sample.nodes for sample in samples] if nodes is None else nodes


@on_cpu
def _in_turn(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _sampler(
    graph: SampledGraph,
    name: str,
    num_neighbors: Sequence[int],
    *,
    edge_ids: bool,
    threads: int | None,
    resample: bool,
    temporal_strategy: str,
    seeds_have_times: bool,
    **rare: Any,
) -> Any:
    """The sampler that a loader's arguments describe."""
    kind = SAMPLERS[name]
    check_choice("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES)
    if isinstance(num_neighbors, Sequence) and not len(num_neighbors):
        raise InputError("num_neighbors must name one number a hop, got none")
    pattern, is_neighbor = graph.pattern, issubclass(kind, NeighborSampler)
    if isinstance(pattern, StoredPattern) and kind.needs == "graph":
        raise InputError(f"sampler {name} needs the structure in memory")
    for option, value in rare.items():
        if value and isinstance(pattern, StoredPattern) and option != "replace":
            raise InputError(f"{option} needs the structure in memory")
        if value and not is_neighbor:
            raise InputError(f"sampler {name} knows no {option}")
    common: dict[str, Any] = {"edge_ids": edge_ids, "threads": threads}
    common["vertex_ids"] = graph.vertex_ids
    if is_neighbor:
        common |= {"replace": rare["replace"], "resample": resample}
    if isinstance(pattern, StoredPattern):
        return pattern.sampler(kind, num_neighbors, **common)
    if not is_neighbor:
        return kind.of_matrix(pattern, graph.edge_weight, num_neighbors, **common)
    weights, times = None, rare["time_attr"]
    if rare["weight_attr"] is not None:
        weights = _edge_weights(graph, rare["weight_attr"])
    if times is not None and times in graph.vertices:
        common["node_times"] = _integers(times, graph.vertices[times])
    elif times is not None and times in graph.edges:
        if not seeds_have_times:
            raise InputError(
                f"time_attr {times}: times of edges need input_time, those of the seeds"
            )
        common["edge_times"] = _integers(times, graph.of_nonzeros(times))
    elif times is not None:
        raise InputError(f"time_attr {times}: {graph.name} knows no such thing")
    common |= {"weights": weights, "disjoint": rare["disjoint"]}
    common |= {"directed": not rare["subgraph_type"], "temporal_strategy": temporal_strategy}
    return kind(pattern, num_neighbors, **common)


def _edge_weights(graph: SampledGraph, name: str) -> Tensor:
    if name not in graph.edges:
        names = ", ".join(graph.edges) or "nothing"
        raise InputError(f"weight_attr {name}: of edges, {graph.name} knows {names}")
    weights = graph.of_nonzeros(name)
    if weights.numel() != len(weights) or weights.is_complex():
        raise InputError(
            f"weight_attr {name} must be real [{len(weights)}], a number an edge, "
            f"got {described(weights)}"
        )
    return weights.reshape(-1).double()


def _integers(name: str, times: Tensor) -> Tensor:
    if not is_integer(times) or times.numel() != len(times):
        raise InputError(
            f"time_attr {name} must be integers [{len(times)}], got {described(times)}"
        )
    return times.reshape(-1).long()


def _inputs(name: str, values: Any, inputs: int) -> Tensor:
    """An integer of each input node, checked."""
    right = f"{name} must be integers [{inputs}], one an input node"
    checked = tensor_of(values, right)
    if checked.shape != (inputs,) or not is_integer(checked):
        raise InputError(f"{right}, got {described(checked)}")
    return checked
