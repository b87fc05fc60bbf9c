"""NeighborLoader: batches of sampled neighbourhoods, on one process or of a distributed graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

from spgnn.addons.batches.batch import Batch
from spgnn.addons.batches.feature_rows import Counts, Rows, features_of
from spgnn.addons.batches.modes import BatchOptions, Mode, Strategy, Superbatch
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
from spgnn.addons.batches.sampling import Draw, Sample, SampleCounts, TypedSample
from spgnn.data import RankShare
from spgnn.errors import InputError, check_choice
from spgnn.graph import DistGraph
from spgnn.pattern import described
from spgnn.registry import MODES, OPENERS, SAMPLERS
from spgnn.torch_internals import on_cpu

# Options of PyG's loader: those that change no batch, and the one value of others.
_WITHOUT_EFFECT = (
    "filter_per_worker",
    "is_sorted",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
)
_PYG = {"directed": True, "transform_sampler_output": None}
_OURS = frozenset(field.name for field in fields(BatchOptions))


class NeighborLoader:
    """Batches of vertices with a sampled neighbourhood (Hamilton et al. 2017), as PyG's.

    A batch is a function of the seed, the epoch, the step and its seeds, however many threads
    prepare it. Iterating begins the next epoch. On P ranks a step is a batch of every rank, whose
    draws are those of one batch of all their seeds: P ranks of B / P seeds train as one of B. An
    InputError says which argument is wrong.

    Parameters
    ----------
    data
        A PyG ``Data``, a `spgnn.data.Graph`, a `DistGraph`, a SciPy matrix or a pair of one and
        features, or the name or path of a data set; a ``HeteroData`` or `HeteroDistGraph`, whose
        batches are ``HeteroData``. Of a graph on several ranks all calls are collective.
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all. Of several vertex types
        by each relation, or a dictionary of such lists.
    input_nodes : Tensor of integers or bool [n], the name of a mask, or None
        Vertices that seeds are taken of; by default all. Disjoint ones may repeat. On several
        ranks a mask of own rows. Of several vertex types ``(type, these)``, or the type alone.
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
    num_workers : int
        Threads that sample; 0: the caller's alone.
    transform : callable, optional
        Of a batch, before it is handed out.
    options
        What PyG's loader has not: ``sampler``, ``seed``, ``normalise``, ``store``, ``superbatch``,
        ``mode``, … of `BatchOptions`. ``persistent_workers``, ``pin_memory``, ``prefetch_factor``,
        ``is_sorted`` and ``filter_per_worker`` are accepted and change nothing.

    Attributes
    ----------
    epoch : int
        The one that the next iteration is.
    counts : Counts
        Rows of features that batches needed; of a distributed graph also those from other ranks.
    samples : sequence of Sample, or None
        Those that all epochs have, once they are stored.
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
        drop_last: bool = False,
        replace: bool = False,
        disjoint: bool = False,
        subgraph_type: Literal["directional", "induced"] = "directional",
        time_attr: str | None = None,
        input_time: Tensor | None = None,
        temporal_strategy: str = "uniform",
        weight_attr: str | None = None,
        num_workers: int = 1,
        transform: Callable[[Batch], Any] | None = None,
        **options: Any,
    ) -> None:
        ours = {name: options.pop(name) for name in _OURS & options.keys()}
        for name, value in options.items():
            if name in _WITHOUT_EFFECT:
                logging.getLogger(__name__).debug(f"NeighborLoader: {name} changes nothing here")
            elif name not in _PYG:
                raise InputError(f"NeighborLoader has no option {name}")
            elif value != _PYG[name]:
                raise InputError(f"NeighborLoader: {name}={value!r} is not supported")
        several: Any = None
        if hasattr(data, "node_types"):
            several = OPENERS.need("typed batches", "NeighborLoader", "hetero")
            num_neighbors, input_nodes = several.arguments(data, num_neighbors, input_nodes)
        self.options = how = BatchOptions(
            num_neighbors=num_neighbors,
            input_nodes=input_nodes,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            replace=replace,
            num_workers=num_workers,
            **ours,
        )
        if transform is not None and not callable(transform):
            raise InputError(f"transform must be callable, got {type(transform).__name__}")
        check_choice("subgraph_type", subgraph_type, ("directional", "induced"))
        check_choice("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES)
        self.batch_size, self.rank, self.ranks, self.seed = (
            batch_size,
            how.rank,
            how.ranks,
            how.seed,
        )
        self.superbatch, self.transform, self.epoch = how.together, transform, 0
        self.samples: Sequence[Sample] | None = None
        self.strategy: Strategy | None = None
        self._dist_graph = (data, data.version) if isinstance(data, DistGraph) else None
        rare: dict[str, Any] = {
            "disjoint": disjoint,
            "subgraph_type": subgraph_type == "induced",
            "weight_attr": weight_attr,
            "time_attr": time_attr,
        }
        comm = how.comm if isinstance(data, RankShare) else getattr(data, "comm", None)
        if isinstance(data, RankShare) or (comm is not None and comm.size > 1):
            self.strategy = _strategy(data, comm, how, rare, several)
            self.counts, self.sampled = self.strategy.counts, self.strategy.sampled
            return
        self.counts, self.sampled = Counts(), SampleCounts()
        opened: Any
        if several:
            opened = several(data, how, self.counts)
        else:
            opened = sampled_graph_of(data, how.store, how.data_dir, how.structure)
        self.graph: SampledGraph = opened  # or its like, of several types
        repeated = disjoint or time_attr is not None  # a vertex may have several trees
        self.input_nodes, self._input_id = input_nodes_of(
            self.graph, input_nodes[1] if several else input_nodes, repeated=repeated
        )
        inputs, self.seed_clusters, self._times = len(self.input_nodes), how.seed_clusters, None
        if how.seed_clusters is not None:
            self.seed_clusters = _of_inputs("seed_clusters", how.seed_clusters, inputs)
        if input_time is not None:
            if time_attr is None:
                raise InputError("input_time needs time_attr: times of vertices or edges")
            times = _of_inputs("input_time", input_time, inputs)
            self._times = times.to(torch.int64, copy=True)
        self.sampler: Any = how.sampler
        if several:
            rare["last"] = temporal_strategy == "last"
            self.sampler = opened.sampler(how, seeds_have_times=input_time is not None, **rare)
            return
        if isinstance(how.sampler, str):
            rare |= {"seeds_have_times": input_time is not None}
            self.sampler = _sampler(self.graph, how, temporal_strategy, **rare)
            return
        kind = type(how.sampler).__name__
        if not hasattr(how.sampler, "sample"):
            raise InputError(f"sampler must be a name or have a method sample, got {kind}")
        for name in ("replace", "weight_attr", "subgraph_type"):
            if {**rare, "replace": replace}[name]:
                raise InputError(f"{name} is not for a sampler that is made already ({kind})")

    @property
    def batches(self) -> int:
        """Batches of an epoch, those of all ranks."""
        inputs, size = len(self.input_nodes), self.batch_size
        if self.options.drop_last:
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
        """The batches of the next epoch; an InputError if the graph was updated since."""
        return _in_turn(self._begun())

    @on_cpu
    def _begun(self) -> Iterator[Any]:
        if self._dist_graph is not None and self._dist_graph[0].version != self._dist_graph[1]:
            raise InputError("the graph was updated: make a new loader, for its new edges")
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self.strategy is not None:
            return self._transformed(self.strategy.epoch(epoch))
        order, how, x = self.order(epoch), self.options, self.graph.x

        def sampled(turn: int) -> Sample:
            return self._sampled(epoch, self.rank + turn * self.ranks, order)

        if how.fixed and self.samples is None:
            self.samples = self.superbatch.store(sampled, len(self))
        sample, superbatch = sampled, self.superbatch
        if isinstance(x, Rows):
            x.foresee(epoch, self.trace, fixed=how.fixed)
        if self.samples is not None:
            samples, superbatch = self.samples, Superbatch(superbatch.size)

            def sample(turn: int) -> Sample:
                draw = self._draw(epoch, self.rank + turn * self.ranks)
                return replace(samples[turn], draw=draw)

        threads = how.num_workers if how.prefetch else 0
        options: dict[str, Any] = {"threads": threads, "ahead": how.prefetch}
        return superbatch.run(sample, self._finished, len(self), stage=self._stage, **options)

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
        if not self.options.shuffle:
            return torch.arange(len(self.input_nodes))
        epoch = 0 if self.options.fixed else epoch
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
        draw = replace(place, epoch=0) if self.options.fixed else place
        if getattr(self.sampler, "draws_seeds", False):
            draw = replace(draw, step=number)
        places, seeds, extra = self._inputs(order, number, draw)
        times = []
        if self._times is not None:
            times = [self._times[places]]
            extra["seed_time"] = times[0]
        sample: Sample = self.sampler.sample(seeds, draw, *times)
        return replace(sample, inputs=places, draw=place, extra=extra)

    def _draw(self, epoch: int, number: int) -> Draw:
        step = number // self.ranks
        return Draw(self.seed, epoch, step, number, epoch * self.steps + step)

    def _finished(self, samples: Sequence[Sample]) -> Generator[Any, None, None]:
        ids, of_graph = self._input_id, self.options.of_graph
        with closing(features_of(self.graph.x, _nodes_of(samples), self.counts)) as rows:
            for sample, x in zip(samples, rows, strict=True):
                input_id = sample.inputs if ids is None else ids[sample.inputs]
                batch: Any
                if isinstance(sample, TypedSample):
                    typed: Any = self.graph
                    batch = typed.batch(sample, input_id)
                else:
                    batch = Batch(self.graph, sample, x, input_id, of_graph=of_graph).prepare()
                yield batch if self.transform is None else self.transform(batch)


def _nodes_of(samples: Sequence[Sample]) -> Sequence[Tensor]:
    """The vertices of each sample; of those on a disk, read one after the other."""
    nodes: Sequence[Tensor] | None = getattr(samples, "nodes", None)
    return [sample.nodes for sample in samples] if nodes is None else nodes


@on_cpu
def _in_turn(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _strategy(
    data: Any, comm: Any, how: BatchOptions, rare: dict[str, Any], several: Any
) -> Strategy:
    """The batches of a rank of several. Collective."""
    others = {
        **rare,
        "store": how.store,
        "structure": how.structure,
        "fixed": how.fixed,
        "seed_clusters": how.seed_clusters is not None,
        "superbatch": isinstance(how.superbatch, Superbatch),
        "sampler": not isinstance(how.sampler, str),
    }
    for name, value in others.items():
        if value:
            raise InputError(f"{name} is not for a graph on several ranks")
    share, mode = data.share_of_edges if isinstance(data, DistGraph) else data, how.mode
    if several:
        result: Strategy = several.strategy(data, how)
        return result
    if isinstance(mode, str):
        kind = MODES[mode]
        try:
            mode = kind()
        except TypeError:
            raise InputError(f"mode {mode}: give a {kind.__name__} of it") from None
    if not isinstance(mode, Mode):
        raise InputError(f"mode must be one of {', '.join(MODES)} or a Mode, got {mode!r}")
    return mode.strategy(share, comm, how)


def _sampler(
    graph: SampledGraph,
    how: BatchOptions,
    temporal_strategy: str,
    *,
    seeds_have_times: bool,
    **rare: Any,
) -> Any:
    """The sampler that a loader's arguments describe."""
    name, counts = str(how.sampler), how.num_neighbors
    kind = SAMPLERS[name]
    if isinstance(counts, Sequence) and not len(counts):
        raise InputError("num_neighbors must name one number a hop, got none")
    pattern, is_neighbor = graph.pattern, issubclass(kind, NeighborSampler)
    if isinstance(pattern, StoredPattern) and kind.needs == "graph":
        raise InputError(f"sampler {name} needs the structure in memory")
    for option, value in rare.items():
        if value and isinstance(pattern, StoredPattern):
            raise InputError(f"{option} needs the structure in memory")
    for option, value in {**rare, "replace": how.replace}.items():
        if value and not is_neighbor:
            raise InputError(f"sampler {name} knows no {option}")
    numbered = bool(graph.edges) or graph.numbered
    common: dict[str, Any] = {
        "edge_ids": numbered if how.edge_ids is None else how.edge_ids,
        "vertex_ids": graph.vertex_ids,
        # Several that run at once have a thread each.
        "threads": None if how.num_workers < 2 else 1,
    }
    if is_neighbor:
        common |= {"replace": how.replace, "resample": how.resample}
    if isinstance(pattern, StoredPattern):
        return pattern.sampler(kind, counts, **common)
    if not is_neighbor:
        return kind.of_matrix(pattern, graph.edge_weight, counts, **common)
    weights, times = None, rare["time_attr"]
    if rare["weight_attr"] is not None:
        weights = _edge_weights(graph, rare["weight_attr"])
    if times is not None and times in graph.vertices:
        common["node_times"] = _times(f"time_attr {times}", graph.vertices[times])
    elif times is not None and times in graph.edges:
        if not seeds_have_times:
            raise InputError(f"time_attr {times}: times of edges need input_time, the seeds'")
        common["edge_times"] = _times(f"time_attr {times}", graph.of_nonzeros(times))
    elif times is not None:
        raise InputError(f"time_attr {times}: {graph.name} knows no such thing")
    common |= {"weights": weights, "disjoint": rare["disjoint"]}
    common |= {"directed": not rare["subgraph_type"], "temporal_strategy": temporal_strategy}
    return kind(pattern, counts, **common)


def _edge_weights(graph: SampledGraph, name: str) -> Tensor:
    if name not in graph.edges:
        names = ", ".join(graph.edges) or "nothing"
        raise InputError(f"weight_attr {name}: of edges, {graph.name} knows {names}")
    weights = graph.of_nonzeros(name)
    if weights.numel() != len(weights) or weights.is_complex():
        raise InputError(
            f"weight_attr {name} must be a real number an edge, got {described(weights)}"
        )
    return weights.reshape(-1).double()


def _times(name: str, times: Tensor) -> Tensor:
    if not is_integer(times) or times.numel() != len(times):
        raise InputError(f"{name} must be integers [{len(times)}], got {described(times)}")
    return times.reshape(-1).long()


def _of_inputs(name: str, values: Any, inputs: int) -> Tensor:
    """An integer of each input node, checked."""
    right = f"{name} must be integers [{inputs}], one an input node"
    checked = tensor_of(values, right)
    if checked.shape != (inputs,) or not is_integer(checked):
        raise InputError(f"{right}, got {described(checked)}")
    return checked
