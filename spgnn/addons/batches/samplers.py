"""Samplers of a graph whose rows are in memory: of neighbours, LABOR, and whole clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.addons.batches.sampling import (
    LAST,
    UNIFORM,
    WEIGHTED,
    Draw,
    EdgeType,
    Float64Array,
    Hop,
    Sample,
    TypedSample,
    as_int64,
    as_weights,
    draw_keys,
    hop_counts,
    thread_count,
)
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.layout import Int64Array
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

Needs = Literal["graph", "rows", "whole rows"]
TEMPORAL_STRATEGIES = ("uniform", "last")
_NONE: Int64Array = np.empty(0, np.int64)


class GraphSampler:
    """Base of samplers: a graph as the compiled module samples from it, and how `_draw` does.

    Rows are read in the order of their times, then of their columns' original ids. Arrays are
    shared unless a row lists its columns in another order. Entries of weight 0 are left out.

    Attributes
    ----------
    needs : {"graph", "rows", "whole rows"}
        What a hop of it needs, and so which graphs it can sample: the graph itself; or its
        targets' rows, drawn by those who hold them, or whole.
    on_ranks : callable, optional
        ``(counts, ranks)`` to a sampler of own rows hop by hop, for a kind that needs the graph.
    """

    needs: ClassVar[Needs] = "graph"
    on_ranks: ClassVar[Any] = None

    @classmethod
    def of_matrix(
        cls, A: Pattern | CSR, values: Tensor | None, counts: Sequence[int], **options: Any
    ) -> Any:
        """The sampler that a loader means by a name, of a matrix that may have values [nnz]."""
        kind: Any = cls
        return kind(A, counts, **options)

    def __init__(
        self,
        source: Pattern | CSR,
        *,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        row_ids: Tensor | None = None,
        weights: Float64Array | None = None,
        times: Int64Array | None = None,
        threads: int | None = None,
    ) -> None:
        self.threads = thread_count(threads)
        self._edge_ids = edge_ids
        pattern = source.pattern if isinstance(source, CSR) else source
        if not isinstance(pattern, Pattern):
            raise InputError(f"a Pattern or a CSR is sampled from, got {type(source).__name__}")
        rows, cols = pattern.shape
        columns = None if vertex_ids is None else as_int64("vertex_ids", vertex_ids, cols)
        if row_ids is None and columns is not None and rows > cols:
            raise InputError(f"row_ids must be given for a pattern of {rows} rows, {cols} columns")
        ids = None if columns is None else columns[:rows]
        if row_ids is not None:
            ids = as_int64("row_ids", row_ids, rows)
        indptr, indices = pattern.indptr.cpu().numpy(), pattern.indices.cpu().numpy()
        places: Int64Array | None = None
        if weights is not None and not weights.all():
            places = np.flatnonzero(weights)
            indptr = np.searchsorted(places, indptr).astype(np.int64, copy=False)
            indices, weights = indices[places], weights[places]
            times = None if times is None else times[places]
        order = _native.row_order(indptr, indices, columns, times, self.threads)
        if order is not None:
            indices = indices[order]
            weights = None if weights is None else weights[order]
            times = None if times is None else times[order]
            places = order if places is None else places[order]
        kind = _native.Graph32 if indices.dtype == np.int32 else _native.Graph64
        by_time = times is not None
        self.pattern = pattern
        self._graph = kind(
            indptr, indices, cols, ids, columns, places, times, weights, by_time, self.threads
        )

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of some vertices, each given once: int64 [seeds]."""
        return self.sample_many([seeds], [draw])[0]

    def sample_many(self, seeds: Sequence[Tensor], draws: Sequence[Draw]) -> list[Sample]:
        """Several samples at once, each on a thread of its own."""
        batches = _seed_lists(seeds, draws)
        return self._samples(batches, self._draw, batches, draw_keys(draws))

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        # Of negatives, for one; other samplers have this, or a `sample_many` of their own.
        raise InputError(f"{type(self).__name__} draws no neighbourhoods of seeds")

    def _samples(self, seeds: list[Int64Array], draw: Any, *arguments: Any) -> list[Sample]:
        try:
            return _to_samples(draw(*arguments), seeds)
        except ValueError as error:
            raise InputError(f"seeds: {error}") from None

    def _check_square(self) -> None:
        rows, cols = self.pattern.shape
        if rows != cols:
            raise InputError(f"several hops need a square pattern, got [{rows}, {cols}]")

    def _induced(self, vertices: Tensor, *, layers: int, edge_ids: bool) -> Sample:
        """All edges between some vertices, each different, as so many hops of equal matrices."""
        listed = as_int64("vertices", vertices)
        try:
            (sample,) = _to_samples(self._graph.induced([listed], edge_ids, self.threads))
        except ValueError as error:
            raise InputError(f"vertices: {error}") from None
        return Sample(sample.nodes, sample.seeds, sample.hops * layers)


class NeighborSampler(GraphSampler):
    """So many neighbours of each vertex, hop by hop (GraphSAGE; Hamilton et al., NeurIPS 2017).

    Each hop draws for all vertices found so far. What a vertex draws depends on no other vertex,
    so the sample of some of the seeds is that part of the sample of all of them.

    Parameters
    ----------
    pattern : Pattern or CSR [rows, cols]
        Row i lists whom vertex i aggregates from.
    num_neighbors, replace, disjoint, temporal_strategy, resample
        As of `NeighborLoader`.
    weights : Tensor, floating [nnz], optional
        Neighbours are drawn in proportion to these; those of weight 0 are no neighbours. Hops then
        say what each edge counts in a sum (`Hop.weights`).
    edge_ids : bool
        Whether hops say which nonzeros of the pattern they hold.
    directed : bool
        If not, a hop holds all edges from its sources to its targets, also those not drawn.
    edge_times, node_times : Tensor int64 [nnz], [cols], optional
        Only edges and neighbours that are not later than the seed are drawn. Samples are disjoint.
    vertex_ids : Tensor int64 [cols], optional
        Original ids: draws are functions of these, so that no partition changes them.
    row_ids : Tensor int64 [rows], optional
        Original ids of the rows where they are not ``vertex_ids[:rows]``.
    threads : int, optional
        Threads inside one call; those of torch if not given. Results do not depend on them.
    """

    needs: ClassVar[Needs] = "rows"

    def __init__(
        self,
        pattern: Pattern | CSR,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        weights: Tensor | None = None,
        disjoint: bool = False,
        edge_ids: bool = False,
        directed: bool = True,
        resample: bool = True,
        edge_times: Tensor | None = None,
        node_times: Tensor | None = None,
        temporal_strategy: str = "uniform",
        vertex_ids: Tensor | None = None,
        row_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        check_choice("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES)
        self.num_neighbors = hop_counts("num_neighbors", num_neighbors)
        # The earliest time at which each entry may be drawn.
        times: Int64Array | None = None
        if node_times is not None:
            times = as_int64("node_times", node_times, pattern.shape[1])[pattern.indices.numpy()]
        if edge_times is not None:
            edges = as_int64("edge_times", edge_times, pattern.nnz)
            times = edges.copy() if times is None else np.maximum(edges, times)
        if weights is not None and temporal_strategy == "last":
            raise InputError("temporal_strategy last takes no weights: nothing is drawn")
        super().__init__(
            pattern,
            edge_ids=edge_ids,
            vertex_ids=vertex_ids,
            row_ids=row_ids,
            weights=None if weights is None else as_weights("weights", weights, pattern.nnz),
            times=times,
            threads=threads,
        )
        self._temporal = times is not None
        self._node_times = None if node_times is None else node_times.clone()
        self._strategy = UNIFORM if weights is None else WEIGHTED
        if self._temporal and temporal_strategy == "last":
            self._strategy = LAST
        self._replace, self._directed, self._resample = replace, directed, resample
        self.disjoint = disjoint or self._temporal

    def sample(self, seeds: Tensor, draw: Draw, times: Tensor | None = None) -> Sample:
        """The neighbourhood of some vertices, int64 [seeds], each different unless disjoint.

        Nothing later than `times`, int64 [seeds], is drawn: the seeds' ``node_times`` by default.
        """
        return self.sample_many([seeds], [draw], None if times is None else [times])[0]

    def sample_many(
        self, seeds: Sequence[Tensor], draws: Sequence[Draw], times: Sequence[Tensor] | None = None
    ) -> list[Sample]:
        """Several samples at once, each on a thread of its own, as `sample` makes each."""
        self._check_square()
        batches = _seed_lists(seeds, draws)
        limits = [
            self._limits(batch, None if times is None else times[b])
            for b, batch in enumerate(batches)
        ]
        if self.disjoint and any(len(b) * self.pattern.shape[1] >= 2**63 for b in batches):
            raise InputError("seeds: so many disjoint trees of so large a graph cannot be numbered")
        seeds_of = batches, limits if self._temporal else []
        what = self.num_neighbors, draw_keys(draws), self._strategy, self._replace
        how = self.disjoint, self._directed, self._resample, self._edge_ids, self.threads
        return self._samples(batches, self._graph.neighbors, *seeds_of, *what, *how)

    def sample_hop(
        self, targets: Tensor, hop: int, draw: Draw, *, relation: int = 0, relations: int = 1
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """One hop alone (0 is the seeds'), for some rows of the pattern, which may repeat.

        Of several relations, each draws for itself.

        Returns indptr int64 [targets + 1]; columns, edge_ids and weights (float32) [edges].
        """
        hop = check_integer("hop", hop, 0, len(self.num_neighbors) - 1)
        rows = as_int64("targets", targets)
        if self.disjoint:
            raise InputError("disjoint trees are not sampled hop by hop")
        number = (hop if self._resample else 0) * relations + relation
        what = int(self.num_neighbors[hop]), number, draw_keys([draw])
        how: Any = self._strategy, self._replace, self._edge_ids, self.threads
        try:
            indptr, columns, *rest = self._graph.hop(rows, None, None, *what, *how)
        except ValueError as error:
            raise InputError(f"targets: {error}") from None
        edge_ids, weights = (None if array is None else torch.from_numpy(array) for array in rest)
        return torch.from_numpy(indptr), torch.from_numpy(columns), edge_ids, weights

    def _limits(self, seeds: Int64Array, times: Tensor | None) -> Int64Array:
        """The latest time that each seed's tree may hold; empty without times."""
        if not self._temporal:
            if times is not None:
                raise InputError("times must not be given: neither edges nor nodes have any")
            return np.empty(0, np.int64)
        if times is not None:
            return as_int64("times", times, len(seeds))
        if self._node_times is None:
            raise InputError("times of the seeds must be given where only edges have times")
        if len(seeds) and not 0 <= seeds.min() <= seeds.max() < len(self._node_times):
            raise InputError(f"seeds must be in [0, {len(self._node_times)})")
        limits: Int64Array = self._node_times.numpy()[seeds]
        return limits


class RelationSampler:
    """So many neighbours by each relation, in a graph of several vertex types.

    Parameters
    ----------
    relations : dict of NeighborSampler
        Rows of a target type, with columns of a source type; indices of one dtype.
    sizes : dict of int
        Vertices of each type.
    counts : list of list of int
        Neighbours of each hop and relation.
    aim : str
        The type of seeds.
    node_times : dict of Tensor int64 [vertices]
        Times of types that have any.
    replace, disjoint, directed, resample, threads
        As of `NeighborSampler`.
    """

    def __init__(
        self,
        relations: Mapping[EdgeType, NeighborSampler],
        sizes: Mapping[str, int],
        counts: Sequence[Sequence[int]],
        *,
        aim: str,
        node_times: Mapping[str, Tensor] = MappingProxyType({}),
        replace: bool = False,
        disjoint: bool = False,
        directed: bool = True,
        resample: bool = True,
        threads: int | None = None,
    ) -> None:
        self._names, self._types, self._aim = list(relations), list(sizes), aim
        self._times = node_times.get(aim)
        numbers = [count for hop in counts for count in hop]
        self._counts, self._hops = hop_counts("num_neighbors", numbers), len(counts)
        parts = list(relations.values())
        self._temporal = any(part._temporal for part in parts)
        self.disjoint = disjoint or self._temporal
        wide = any(isinstance(part._graph, _native.Graph64) for part in parts)
        self._graph = (_native.Relations64 if wide else _native.Relations32)(
            [part._graph for part in parts],
            [self._types.index(source) for source, _, _ in relations],
            [self._types.index(target) for _, _, target in relations],
            [part._strategy for part in parts],
            list(sizes.values()),
        )
        self._how = replace, self.disjoint, directed, resample, True, thread_count(threads)

    def sample(self, seeds: Tensor, draw: Draw, times: Tensor | None = None) -> TypedSample:
        """The neighbourhood of some vertices, int64 [seeds], as `NeighborSampler.sample`."""
        batches = {**dict.fromkeys(self._types, _NONE), self._aim: as_int64("seeds", seeds)}
        limits = []
        if self._temporal:
            times = self._times[seeds] if times is None and self._times is not None else times
            if times is None:
                raise InputError(f"times of the seeds must be given: {self._aim!r} has none")
            limits = [as_int64("times", times, len(seeds))]
        try:
            ((nodes, hops, roots),) = self._graph.neighbors(
                [list(batches.values())], limits, self._counts, draw_keys([draw]), *self._how
            )
        except ValueError as error:
            raise InputError(f"seeds: {error}") from None
        each, width = to_hops(hops), len(self._names)
        return TypedSample(
            dict(zip(self._types, map(torch.from_numpy, nodes), strict=True)),
            len(seeds),
            [
                dict(zip(self._names, each[hop * width :], strict=False))
                for hop in range(self._hops)
            ],
            dict(zip(self._types, map(torch.from_numpy, roots), strict=True)) if roots else None,
        )


class LaborSampler(GraphSampler):
    """LABOR: targets take the same neighbours where they can (Balin & Çatalyürek, NeurIPS 2023).

    Every vertex has one random number a hop, and is taken by each target for which that is small
    enough. A target takes ``num_neighbors`` on average, with the variance of neighbour sampling,
    and all targets together far fewer vertices. `Hop.weights` make sums unbiased.

    Parameters
    ----------
    pattern, num_neighbors, edge_ids, vertex_ids, threads
        As in `NeighborSampler`; the pattern is square.
    iterations : int
        How often vertices that many targets would take are made more important: the i of LABOR-i.
    layer_dependency : bool
        Whether a vertex has the same random number in all hops, so that hops overlap more.
    first_hop : int
        Number of the first hop, for callers that take hops one by one.
    """

    needs: ClassVar[Needs] = "whole rows"

    def __init__(
        self,
        pattern: Pattern | CSR,
        num_neighbors: Sequence[int],
        *,
        iterations: int = 0,
        layer_dependency: bool = False,
        first_hop: int = 0,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        self.num_neighbors = hop_counts("num_neighbors", num_neighbors)
        self._iterations = check_integer("iterations", iterations, 0, 100)
        self._first_hop, self._layer_dependency = first_hop, layer_dependency
        super().__init__(pattern, edge_ids=edge_ids, vertex_ids=vertex_ids, threads=threads)
        self._check_square()

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        how = self._first_hop, self._iterations, self._layer_dependency
        options = self._edge_ids, self.threads
        return self._graph.labor(seeds, self.num_neighbors, draws, *how, *options)


class ClusterSampler(GraphSampler):
    """Cluster batches: the subgraph of some clusters (Cluster-GCN; Chiang et al., KDD 2019).

    Parameters
    ----------
    pattern, edge_ids, threads
        As in `NeighborSampler`; the pattern is square.
    labels : Tensor int64 [n]
        The cluster of each vertex, 0, 1, …: a partition into many parts.
    layers : int
        So many hops, all of them the same square matrix.
    """

    def __init__(
        self,
        pattern: Pattern | CSR,
        labels: Tensor,
        *,
        layers: int = 1,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> None:
        super().__init__(pattern, edge_ids=edge_ids, threads=threads)
        self._check_square()
        self._layers = check_integer("layers", layers, 1)
        cluster = as_int64("labels", labels, self.pattern.shape[0])
        if len(cluster) and cluster.min() < 0:
            raise InputError(f"labels must not be negative, got {cluster.min()}")
        sizes = np.bincount(cluster)
        self._members = np.split(np.argsort(cluster, kind="stable"), np.cumsum(sizes)[:-1])
        self.clusters = len(sizes)

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The subgraph of some clusters, int64 [clusters]; nothing is drawn."""
        listed = as_int64("seeds", seeds)
        wrong = listed[(listed < 0) | (listed >= self.clusters)]
        if len(wrong):
            raise InputError(f"seeds: cluster {wrong[0]} outside [0, {self.clusters})")
        parts = [self._members[c] for c in listed]
        vertices = torch.from_numpy(np.concatenate([*parts, np.empty(0, np.int64)]))
        return self._induced(vertices, layers=self._layers, edge_ids=self._edge_ids)


def _seed_lists(batches: Sequence[Tensor], draws: Sequence[Draw]) -> list[Int64Array]:
    if len(batches) != len(draws):
        raise InputError(f"seeds: {len(batches)} batches, but {len(draws)} draws")
    return [as_int64("seeds", batch) for batch in batches]


def _to_samples(raw: Any, seeds: Sequence[Int64Array] | None = None) -> list[Sample]:
    """Samples of the compiled module as tensors; without seeds, all nodes of a sample are seeds."""
    return [
        Sample(
            torch.from_numpy(nodes),
            len(nodes if seeds is None else seeds[i]),
            to_hops(hops),
            torch.from_numpy(roots[0]) if roots else None,
        )
        for i, ((nodes,), hops, roots) in enumerate(raw)
    ]


def to_hops(raw: Any) -> list[Hop]:
    """Hops of the compiled module as tensors."""

    def tensor(array: npt.NDArray[Any] | None) -> Any:
        return None if array is None else torch.from_numpy(array)

    return [
        Hop(tensor(indptr), tensor(indices), tensor(edge_ids), tensor(weights), sources)
        for indptr, indices, edge_ids, weights, sources in raw
    ]
