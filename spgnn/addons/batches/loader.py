"""NeighborLoader: batches of sampled neighbourhoods, on one process or of a distributed graph."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spgnn.addons.batches.batch import Batch
from spgnn.addons.batches.column_batches import column_batches
from spgnn.addons.batches.feature_rows import Counts, Rows
from spgnn.addons.batches.growth import DiskSampler
from spgnn.addons.batches.rank_batches import (
    Clusters,
    Options,
    RankBatches,
    cluster_batches,
    exact_batches,
    seed_order,
    steps_of,
)
from spgnn.addons.batches.sampled_graph import (
    SampledGraph,
    input_nodes_of,
    is_integer,
    sampled_graph_of,
    tensor_of,
)
from spgnn.addons.batches.sampling import (
    TEMPORAL_STRATEGIES,
    Draw,
    FastGCNSampler,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    Place,
    SampleCounts,
    Sampler,
    SamplerName,
)
from spgnn.addons.batches.threads import in_order
from spgnn.addons.diskbatches import (
    CachedRows,
    DiskPattern,
    Drawn,
    NodesOnDisk,
    PackedRows,
    SampleFile,
    through_a_disk,
)
from spgnn.addons.historical import History, PartBatches
from spgnn.comm import (
    Communicator,
)
from spgnn.data import RankShare
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.files import AnyPath
from spgnn.graph import DistGraph
from spgnn.pattern import described
from spgnn.sparse import CSR, take_rows
from spgnn.torch_internals import on_cpu

Scaling = Literal["graph", "batch"]
Mode = Literal["exact", "own", "columns", "local"] | History | Clusters
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
        Çatalyürek 2023); ``ladies`` or ``fastgcn``, where `num_neighbors` are vertices of a
        whole layer (Zou et al. 2019; Chen, Ma & Xiao 2018); or whatever makes samples.
    resample : bool
        Draw neighbours of a vertex anew in each layer, as DGL does. Otherwise a vertex has one
        random order of its neighbours in a step, and each layer takes the first ones.
    normalise : {"graph", "batch"}
        Degrees that `Batch.layers` are scaled by: in the whole graph, so that each layer estimates
        that of full-graph training; or in the batch, as layers of PyG see it.
    store : Rows [n, f], optional
        Features, instead of the data's own. `PackedRows` are packed before the epochs whose
        batches they then have; these are drawn twice.
    structure : DiskPattern [n, n], optional
        The graph, instead of the data's own. The same batches, of rows that are read when they
        are needed; not for ``fastgcn``, disjoint or induced samples.
    superbatch : int
        So many batches are sampled before any of their features are fetched; rows that several of
        them need are fetched once.
    samples_dir : path, optional
        The samples of a superbatch are written to a file there, without a name, and read again one
        by one (Ginex, VLDB'22), so that memory does not depend on their number. Rows that several
        batches need are then fetched once only if `store` is a cache.
    overlap : bool
        With `samples_dir`: sample the next superbatch while rows of this one are fetched. If not,
        cached rows of the store and cached neighbours of the structure take turns in memory.
    fixed : bool
        The batches of the first epoch in every epoch, in that order. With `samples_dir` they are
        sampled once, before the first epoch, and read from there, from first to last (AGL; Zhang et
        al., VLDB 2020, stores a neighbourhood a vertex, which batches merge; here vertices that
        several seeds of a batch share are there once).
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
        Of several loaders alike on whole graphs, this one hands out the batches of one rank.
    mode : {"exact", "own", "columns", "local"} or History or Clusters
        Of a graph on several ranks: the batches of one process; exact ones of each rank's own
        seeds; those of one process, with features split by columns over ranks, which compute first
        layers together; neighbours of a rank's own part; these and stale embeddings of others'
        vertices; whole clusters of a rank's part.
    comm : Communicator, optional
        All ranks, where `data` is a rank's share rather than a `DistGraph`.
    widths : sequence of int
        Of a `History`: the width of each layer's outputs but the last's.
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
    samples : SampleFile or None
        Those that all epochs have, once they are written.

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
        structure: DiskPattern | None = None,
        superbatch: int = 1,
        samples_dir: AnyPath | None = None,
        overlap: bool = False,
        fixed: bool = False,
        pack_epochs: int = 1,
        prefetch: int = 2,
        num_workers: int = 1,
        edge_ids: bool | None = None,
        transform: Callable[[Batch], Any] | None = None,
        seed: int = 0,
        data_dir: str | None = None,
        rank: int = 0,
        ranks: int = 1,
        mode: Mode = "exact",
        comm: Communicator | None = None,
        widths: Sequence[int] = (),
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
        self.superbatch = check_integer("superbatch", superbatch, 1)
        self.samples_dir = None if samples_dir is None else Path(samples_dir)
        if self.samples_dir is not None and not self.samples_dir.is_dir():
            raise InputError(f"samples_dir {samples_dir}: no such directory")
        self.overlap = overlap
        self.pack_epochs = check_integer("pack_epochs", pack_epochs, 1)
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
        self.samples: SampleFile | None = None
        self.normalise, self.epoch, self._packed = normalise, 0, range(0)
        self.strategy: RankBatches | PartBatches | None = None
        self._given = (data, data.version) if isinstance(data, DistGraph) else None
        rare = {
            "replace": replace,
            "disjoint": disjoint,
            "subgraph_type": subgraph_type == "induced",
            "weight_attr": weight_attr,
            "time_attr": time_attr,
        }
        if isinstance(data, DistGraph) and data.has_repeated_edges:
            raise InputError(
                "NeighborLoader: this graph has several edges between the same vertices, which a "
                "DistGraph holds as one: coalesce them, or give the loader the Data, on one process"
            )
        if isinstance(data, RankShare) or (isinstance(data, DistGraph) and data.comm.size > 1):
            others: dict[str, Any] = {"store": store, "structure": structure}
            others |= {"seed_clusters": seed_clusters is not None, "fixed": fixed}
            others["samples_dir"] = samples_dir
            others["sampler"] = not isinstance(sampler, str)
            for name, given in (rare | others).items():
                if given and name != "replace":
                    raise InputError(f"{name} is not for a graph on several ranks")
            how = Options(
                batch_size=batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                sampler=str(sampler),
                replace=replace,
                resample=resample,
                of_graph=normalise == "graph",
                superbatch=superbatch,
                prefetch=prefetch,
                seed=seed,
            )
            if isinstance(data, DistGraph):
                comm, data = data.comm, data.share
            assert comm is not None
            if mode in ("exact", "own"):
                self.strategy = exact_batches(
                    data, comm, num_neighbors, input_nodes, how, own_seeds=mode == "own"
                )
            elif mode == "columns":
                self.strategy = column_batches(data, comm, num_neighbors, input_nodes, how)
            elif isinstance(mode, Clusters):
                self.strategy = cluster_batches(data, comm, len(num_neighbors), mode, how)
            elif mode == "local" or isinstance(mode, History):
                history = None if mode == "local" else mode
                self.strategy = PartBatches(
                    data, comm, num_neighbors, input_nodes, how, history=history, widths=widths
                )
            else:
                raise InputError(
                    f"mode must be exact, own, columns, local, a History or Clusters, got {mode!r}"
                )
            self.counts, self.sampled = self.strategy.ranks.counts, self.strategy.sampled
            return
        self.graph: SampledGraph = sampled_graph_of(data, store, data_dir, structure)
        repeated = disjoint or time_attr is not None  # a vertex may have several trees
        self.input_nodes, self._input_id = input_nodes_of(
            self.graph, input_nodes, repeated=repeated
        )
        self.seed_clusters = seed_clusters
        if seed_clusters is not None:
            wanted = f"seed_clusters must be integers [{len(self.input_nodes)}], one an input node"
            self.seed_clusters = clusters = tensor_of(seed_clusters, wanted)
            if clusters.shape != self.input_nodes.shape or not is_integer(clusters):
                raise InputError(f"{wanted}, got {described(clusters)}")
            if not shuffle:
                raise InputError("seed_clusters needs shuffle=True: it is an order of its own")
        self.counts, self.sampled = Counts(), SampleCounts()
        self._times = _checked_times(input_time, time_attr, len(self.input_nodes))
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
        if self._given is not None and self._given[0].version != self._given[1]:
            raise InputError(
                "the graph was updated: make a new loader, which samples the new edges"
            )
        epoch, self.epoch = self.epoch, self.epoch + 1
        if self.strategy is not None:
            return self._transformed(self.strategy.epoch(epoch))
        order = self.order(epoch)
        self._store_samples(order)
        self._pack(epoch)

        def make(turn: int) -> Drawn:
            number = self.rank + turn * self.ranks
            if self.samples is None:
                return self._sampled(epoch, number, order)
            return self.samples[turn]._replace(place=self._place(epoch, number))

        threads = self.num_workers if self.prefetch else 0
        if self.samples_dir is not None and self.superbatch > 1 and self.samples is None:
            return through_a_disk(
                make,
                self._finished,
                len(self),
                directory=self.samples_dir,
                size=self.superbatch,
                threads=threads,
                ahead=self.prefetch,
                overlap=self.overlap,
                stage=self._stage,
            )
        return in_order(
            make,
            self._finished,
            len(self),
            threads=threads,
            ahead=self.prefetch,
            together=self.superbatch,
        )

    def _stage(self, name: str) -> None:
        """The memory of the cache of the other stage is free for the one that begins."""
        x, pattern = self.graph.x, self.graph.pattern
        if name == "sample" and isinstance(x, CachedRows):
            x.release()
        elif name == "gather" and isinstance(pattern, DiskPattern):
            pattern.release()

    def _transformed(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            keep = batch is None or self.transform is None
            yield batch if keep else self.transform(batch)  # type: ignore[misc]

    def _store_samples(self, order: Tensor) -> None:
        """Write the samples of all epochs, if they are the same, before the first."""
        if not self.fixed or self.samples_dir is None or self.samples is not None:
            return
        samples = SampleFile(self.samples_dir, len(self))
        for turn in range(len(self)):
            samples.put(turn, self._sampled(0, self.rank + turn * self.ranks, order))
        self.samples = samples

    def _pack(self, epoch: int) -> None:
        """Have the batches of this epoch, and of some that follow, packed if that is asked for."""
        x = self.graph.x
        if isinstance(x, PackedRows) and epoch not in self._packed:
            self._packed = range(0)
            epochs = range(epoch, epoch + self.pack_epochs)
            x.pack([ids for number in epochs for ids in self.trace(number)])
            self._packed = range(epoch, sys.maxsize) if self.fixed else epochs

    def order(self, epoch: int) -> Tensor:
        """Places of the seeds among the input nodes, in the order of an epoch."""
        if not self.shuffle:
            return torch.arange(len(self.input_nodes))
        return seed_order(self._input_ids(), self.seed, self._drawn_as(epoch), self.seed_clusters)

    def trace(self, epoch: int) -> Iterator[Tensor]:
        """The vertices of each batch of an epoch, int64 [m] each; drawn again, and not counted."""
        if self.samples is not None:
            yield from self.samples.nodes
            return
        order = self.order(epoch)
        for number in range(self.rank, self.batches, self.ranks):
            yield self.draw(epoch, number, order).sample.nodes

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

    def _sampled(self, epoch: int, number: int, order: Tensor) -> Drawn:
        started = perf_counter()
        drawn = self.draw(epoch, number, order)
        self.sampled.add([drawn.sample], perf_counter() - started)
        return drawn

    def draw(self, epoch: int, number: int, order: Tensor) -> Drawn:
        """The sample of a batch, with the seeds in that order; not counted."""
        step = number // self.ranks
        own_draws = getattr(self.sampler, "draws_seeds", False)
        draw = Draw(self.seed, self._drawn_as(epoch), number if own_draws else step)
        places, seeds, extra = self._inputs(order, number, draw)
        sampler: Any = self.sampler
        if self._times is None:
            sample = sampler.sample(seeds, draw)
        else:
            extra["seed_time"] = self._times[places]
            sample = sampler.sample(seeds, draw, extra["seed_time"])
        return Drawn(sample, places, self._place(epoch, number), extra)

    def _drawn_as(self, epoch: int) -> int:
        """The epoch whose batches an epoch has."""
        return 0 if self.fixed else epoch

    def _place(self, epoch: int, number: int) -> Place:
        return Place(self.seed, epoch, number, epoch * self.steps + number // self.ranks)

    def _finished(self, made: Sequence[Drawn]) -> Generator[Any, None, None]:
        of_graph = self.normalise == "graph"
        wanted: Sequence[Tensor] = (
            made.nodes if isinstance(made, SampleFile) else [drawn.sample.nodes for drawn in made]
        )
        with closing(features_of(self.graph.x, wanted, self.counts)) as rows:
            for (sample, places, place, extra), x in zip(made, rows, strict=True):
                input_id = places if self._input_id is None else self._input_id[places]
                batch = Batch(
                    self.graph, sample, x, input_id, place, of_graph=of_graph, extra=extra
                ).prepare()
                yield batch if self.transform is None else self.transform(batch)


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
) -> Sampler:
    """The sampler that a loader's arguments describe."""
    check_choice("sampler", name, get_args(SamplerName))
    check_choice("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES)
    if isinstance(num_neighbors, Sequence) and not len(num_neighbors):
        raise InputError("num_neighbors must name one number a hop, got none")
    on_disk = isinstance(graph.pattern, DiskPattern)
    if on_disk and name == "fastgcn":
        raise InputError("sampler fastgcn needs the structure in memory")
    for option, given in rare.items():
        if given and on_disk and option != "replace":
            raise InputError(f"{option} needs the structure in memory")
        if given and name != "neighbor":
            raise InputError(f"sampler {name} knows no {option}")
    common: dict[str, Any] = {"edge_ids": edge_ids, "threads": threads}
    common["vertex_ids"] = graph.vertex_ids
    if isinstance(graph.pattern, DiskPattern):
        if name == "neighbor":
            common |= {"replace": rare["replace"], "resample": resample}
        return DiskSampler(graph.pattern, name, num_neighbors, **common)
    if name == "labor":
        return LaborSampler(graph.structure, num_neighbors, **common)
    if name in ("ladies", "fastgcn"):
        kind = LadiesSampler if name == "ladies" else FastGCNSampler
        weight = graph.edge_weight
        values = None if weight is None else weight.abs()
        return kind(graph.structure, num_neighbors, values=values, **common)
    if name != "neighbor":
        raise InputError(f"sampler {name} is not among those that a loader makes")
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
    return NeighborSampler(
        graph.structure,
        num_neighbors,
        replace=rare["replace"],
        weights=weights,
        disjoint=rare["disjoint"],
        directed=not rare["subgraph_type"],
        resample=resample,
        temporal_strategy=temporal_strategy,
        **common,
    )


def features_of(
    x: Rows | CSR | None, wanted: Sequence[Tensor], counts: Counts
) -> Generator[Tensor | CSR | None, None, None]:
    """Features of the vertices of some batches, int64 [m] each, one after the other."""
    if isinstance(x, Rows):
        if isinstance(wanted, NodesOnDisk) and not isinstance(x, CachedRows):
            # All of them at once may be more than memory holds.
            for ids in wanted:
                yield from features_of(x, [ids], counts)
            return
        needed = wanted.total if isinstance(wanted, NodesOnDisk) else sum(map(len, wanted))
        counts.add(rows_needed=needed, bytes_needed=needed * x.row_bytes)
        yield from x.gather_many(wanted)
        return
    for ids in wanted:
        sparse = None if x is None else take_rows(x, ids)
        if sparse is not None:
            counts.add(rows_needed=len(ids), bytes_needed=sparse.nbytes)
        yield sparse


def _edge_weights(graph: SampledGraph, name: str) -> Tensor:
    if name not in graph.edges:
        known = ", ".join(graph.edges) or "nothing"
        raise InputError(f"weight_attr {name}: of edges, {graph.name} knows {known}")
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


def _checked_times(times: Any, attr: str | None, inputs: int) -> Tensor | None:
    """Times of the input nodes."""
    if times is None:
        return None
    if attr is None:
        raise InputError("input_time needs time_attr: times of vertices or edges to compare with")
    wanted = f"input_time must be integers [{inputs}], one an input node"
    checked = tensor_of(times, wanted)
    if checked.shape != (inputs,) or not is_integer(checked):
        raise InputError(f"{wanted}, got {described(checked)}")
    return checked.to(torch.int64, copy=True)
