"""Neighbourhoods of a few vertices as functions of hashes: samples, and samplers hop by hop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.layout import Int64Array
from spgnn.pattern import Pattern, described, numpy_index_dtype
from spgnn.sparse import CSR

Float64Array = npt.NDArray[np.float64]
UNIFORM, WEIGHTED, LAST = range(3)  # as in hop.hpp
MOST_EDGES = 2**31 - 1  # of a sample
TEMPORAL_STRATEGIES = ("uniform", "last")
SamplerName = Literal["neighbor", "labor", "ladies", "fastgcn"]
_DIGITS = 3  # parts of a number in sums that do not depend on the order


@dataclass(frozen=True)
class Draw:
    """The key of a draw: every number that a sampler draws is a hash of it.

    The rest of what is hashed are the original id of a vertex, a column and, where each hop draws
    for itself, the hop. So a batch does not depend on threads, ranks, the partition, or on what is
    sampled before it. Batches of several ranks that make one step have the same `step`.
    """

    seed: int
    epoch: int = 0
    step: int = 0


@dataclass(frozen=True)
class Place:
    """The place of a batch in a run."""

    seed: int = 0
    epoch: int = 0
    number: int = 0  # within its epoch
    step: int = 0  # since the first epoch, the same on all ranks; the key of its dropout


@dataclass(frozen=True, eq=False)
class Hop:
    """One sampled matrix [targets, sources]; it has CSR form.

    ``Sample.nodes[:sources]`` are its columns and ``Sample.nodes[:targets]`` its rows. `weights`
    are factors that make a *sum* over the sampled edges an unbiased estimate of the sum over all
    edges of the row; ``None``: all edges of a row stand for equally many.
    """

    indptr: Tensor  # int64 [targets + 1]
    indices: Tensor  # int32 or int64 [edges]: places in `Sample.nodes`, below `sources`
    edge_ids: Tensor | None  # int64 [edges]: places among the nonzeros of the graph
    weights: Tensor | None  # float32 [edges]
    sources: int

    @property
    def targets(self) -> int:
        """Number of rows."""
        return int(self.indptr.shape[0]) - 1

    @property
    def edges(self) -> int:
        """Number of sampled edges."""
        return int(self.indices.shape[0])


@dataclass(frozen=True, eq=False)
class Sample:
    """The neighbourhood of some seeds.

    Nodes are the seeds first, then the others in the order found, each once (once for each seed
    where samples are disjoint). The sources of a hop are the targets of the next one.
    """

    nodes: Tensor  # int64 [m]: vertices of the graph
    seeds: int
    hops: list[Hop]  # the seeds' hop first
    batch: Tensor | None = None  # int64 [m]: the seed of each node, where samples are disjoint


class Sampler(Protocol):
    """Makes a sample from seeds, without communication; threads may call it at the same time."""

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of the seeds, int64 [seeds], each different."""


class SampleCounts:
    """Batches, vertices and edges (of all layers) of a loader, and the seconds of its threads."""

    def __init__(self) -> None:
        self.batches = self.vertices = self.edges = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    def add(self, samples: Sequence[Sample], seconds: float) -> None:
        """Count some more; from any thread."""
        with self._lock:
            self.batches += len(samples)
            self.vertices += sum(len(sample.nodes) for sample in samples)
            self.edges += sum(hop.edges for sample in samples for hop in sample.hops)
            self.seconds += seconds

    @property
    def edges_per_second(self) -> float:
        """Of one thread."""
        return self.edges / self.seconds if self.seconds else 0.0


class GraphSampler:
    """Base of samplers: a graph as the compiled module samples from it, and how `_draw` does.

    Rows are read in the order of their times, then of their columns' original ids. Arrays are
    shared unless a row lists its columns in another order. Entries of weight 0 are left out.
    """

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
        self.threads = _thread_count(threads)
        self._edge_ids = edge_ids
        pattern = source.pattern if isinstance(source, CSR) else source
        if not isinstance(pattern, Pattern):
            raise InputError(f"a Pattern or a CSR is sampled from, got {type(source).__name__}")
        rows, cols = pattern.shape
        columns = None if vertex_ids is None else as_int64("vertex_ids", vertex_ids, cols)
        if row_ids is None and columns is not None and rows > cols:
            raise InputError(
                f"row_ids must be given for a pattern of {rows} rows and {cols} columns"
            )
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
            raise InputError(
                f"several hops need a square pattern, this one is [{rows}, {cols}]; "
                "take hops one by one (sample_hop)"
            )

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
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    replace : bool
        Whether a neighbour may be drawn more than once.
    weights : Tensor, floating [nnz], optional
        Neighbours are drawn in proportion to these; those of weight 0 are no neighbours. Hops then
        say what each edge counts in a sum (`Hop.weights`).
    disjoint : bool
        Whether each seed has a tree of its own, which draws by itself. Seeds may then repeat.
    edge_ids : bool
        Whether hops say which nonzeros of the pattern they hold.
    directed : bool
        If not, a hop holds all edges from its sources to its targets, also those not drawn.
    resample : bool
        True if each hop draws by itself. If not, a vertex has one random order of its neighbours
        in a sample, and every hop takes the first ones.
    edge_times, node_times : Tensor int64 [nnz], [cols], optional
        Only edges and neighbours that are not later than the seed are drawn. Samples are disjoint.
    temporal_strategy : {"uniform", "last"}
        Any of these neighbours, or the latest, each once.
    vertex_ids : Tensor int64 [cols], optional
        Original ids: draws are functions of these, so that no partition changes them.
    row_ids : Tensor int64 [rows], optional
        Original ids of the rows where they are not ``vertex_ids[:rows]``.
    threads : int, optional
        Threads inside one call; those of torch if not given. Results do not depend on them.

    Raises
    ------
    InputError
        If an argument is wrong.
    """

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
            weights=None if weights is None else _as_weights("weights", weights, pattern.nnz),
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
        An InputError names a seed that is no vertex or there twice, or says that the pattern is not
        square.
        """
        return self.sample_many([seeds], [draw], None if times is None else [times])[0]

    def sample_many(
        self,
        seeds: Sequence[Tensor],
        draws: Sequence[Draw],
        times: Sequence[Tensor] | None = None,
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
        return self._samples(
            batches,
            self._graph.neighbors,
            batches,
            limits if self._temporal else [],
            self.num_neighbors,
            draw_keys(draws),
            self._strategy,
            self._replace,
            self.disjoint,
            self._directed,
            self._resample,
            self._edge_ids,
            self.threads,
        )

    def sample_hop(
        self,
        targets: Tensor,
        hop: int,
        draw: Draw,
        *,
        roots: Tensor | None = None,
        times: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """One hop alone (0 is the seeds'), for some rows of the pattern, which may repeat.

        Where samples are disjoint, `roots` are the places in the batch of the seeds that targets
        belong to, and `times` those of these seeds, where there are any; all int64 [targets].

        Returns
        -------
        indptr : Tensor int64 [targets + 1]
        columns : Tensor, dtype of the pattern's indices [edges]
        edge_ids : Tensor int64 [edges], or None
        weights : Tensor float32 [edges], or None
        """
        hop = check_integer("hop", hop, 0, len(self.num_neighbors) - 1)
        rows = as_int64("targets", targets)
        for name, array, needed in (
            ("roots", roots, self.disjoint),
            ("times", times, self._temporal),
        ):
            if needed != (array is not None):
                raise InputError(f"{name} must {'' if needed else 'not '}be given for this sampler")
        try:
            indptr, columns, *rest = self._graph.hop(
                rows,
                None if roots is None else as_int64("roots", roots, len(rows)),
                None if times is None else as_int64("times", times, len(rows)),
                int(self.num_neighbors[hop]),
                hop if self._resample else 0,
                draw_keys([draw]),
                self._strategy,
                self._replace,
                self._edge_ids,
                self.threads,
            )
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


class LaborSampler(GraphSampler):
    """LABOR: targets take the same neighbours where they can (Balin & Çatalyürek, NeurIPS 2023).

    Every vertex has one random number a hop, and is taken by each target for which that is small
    enough. A target takes ``num_neighbors`` on average, with the variance of neighbour sampling,
    and all targets together far fewer vertices. `Hop.weights` make sums unbiased.

    Parameters
    ----------
    pattern, edge_ids, vertex_ids, threads
        As in `NeighborSampler`; the pattern is square.
    num_neighbors : sequence of int
        How many neighbours of each vertex on average, the seeds' hop first; −1: all.
    iterations : int
        How often vertices that many targets would take are made more important: the i of LABOR-i.
    layer_dependency : bool
        Whether a vertex has the same random number in all hops, so that hops overlap more.
    first_hop : int
        Number of the first hop, for callers that take hops one by one.
    """

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
        return self._graph.labor(
            seeds,
            self.num_neighbors,
            draws,
            self._first_hop,
            self._iterations,
            self._layer_dependency,
            self._edge_ids,
            self.threads,
        )


class LadiesSampler(GraphSampler):
    """LADIES: vertices in proportion to what they mean to the targets (Zou et al., NeurIPS 2019).

    A hop draws ``num_nodes`` of the targets' neighbours without replacement, vertex t in proportion
    to Σ_s A_st² over the targets s, and takes all edges between these and the targets. For many
    batches these are the rows of one product of sparse matrices (Tripathy, Yelick & Buluç, MLSys
    2024): `sample_many`. `Hop.weights` make sums unbiased.

    Parameters
    ----------
    pattern, edge_ids, vertex_ids, threads
        As in `NeighborSampler`; the pattern is square.
    num_nodes : sequence of int
        How many vertices, the seeds' hop first; −1: all neighbours.
    values : Tensor, floating [nnz], optional
        Absolute values of A; one over the row's length if not given. Entries of 0 are no edges.
    first_hop : int
        Number of the first hop, for callers that take hops one by one.
    """

    def __init__(
        self,
        pattern: Pattern | CSR,
        num_nodes: Sequence[int],
        *,
        values: Tensor | None = None,
        first_hop: int = 0,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        self.num_nodes, self._first_hop = hop_counts("num_nodes", num_nodes), first_hop
        self._squares = squares_of(pattern, values)
        super().__init__(
            pattern,
            edge_ids=edge_ids,
            vertex_ids=vertex_ids,
            weights=None if values is None else self._squares,
            threads=threads,
        )
        self._check_square()

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        options = self._squares, self._edge_ids, self.threads
        return self._graph.ladies(seeds, self.num_nodes, draws, self._first_hop, *options)


class FastGCNSampler(LadiesSampler):
    """FastGCN: vertices of the whole graph, whoever the targets are (Chen, Ma & Xiao, ICLR 2018).

    A hop draws ``num_nodes`` of all vertices (−1: all) without replacement, vertex t in proportion
    to Σ_s A_st² over all rows s, and takes all edges between these and the targets; some targets
    may get none. `Hop.weights` make sums unbiased. Parameters are those of `LadiesSampler`.
    """

    def __init__(
        self,
        pattern: Pattern | CSR,
        num_nodes: Sequence[int],
        *,
        vertex_ids: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pattern, num_nodes, vertex_ids=vertex_ids, **options)
        self._vertices = vertices_in_proportion(
            column_sums(self.pattern, self._squares), vertex_ids
        )

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        options = self._vertices, self._edge_ids, self.threads
        return self._graph.fastgcn(seeds, self.num_nodes, draws, self._first_hop, *options)


def vertices_in_proportion(masses: Float64Array, vertex_ids: Tensor | None) -> _native._Graph:
    """All vertices as one row, in the order of their original ids; those of mass 0 are left out."""
    vertices = np.arange(len(masses)) if vertex_ids is None else np.argsort(vertex_ids.numpy())
    vertices = vertices[masses[vertices] > 0].astype(numpy_index_dtype(len(masses)))
    kind = _native.Graph32 if vertices.dtype == np.int32 else _native.Graph64
    indptr = np.array([0, len(vertices)], dtype=np.int64)
    weights = masses[vertices]
    return kind(indptr, vertices, len(masses), None, None, None, None, weights, True, 1)


def draw_vertices(
    vertices: _native._Graph, count: int, hop: int, draw: Draw, *, replace: bool = False
) -> tuple[Int64Array, Tensor]:
    """So many of `vertices_in_proportion` (−1: all), int64 [k], and what each stands for."""
    row, options = np.zeros(1, np.int64), (WEIGHTED, replace, False, 1)
    _, drawn, _, factors = vertices.hop(row, None, None, count, hop, draw_keys([draw]), *options)
    assert factors is not None
    return drawn.astype(np.int64, copy=False), torch.from_numpy(factors)


def squares_of(source: Pattern | CSR, values: Tensor | None) -> Float64Array:
    """A² of each entry, A having rows of sum 1 if no values are given."""
    if values is not None:
        return _as_weights("values", values, source.nnz) ** 2
    lengths = source.row_lengths.cpu().numpy()
    of_row = 1 / np.maximum(lengths, 1).astype(np.float64) ** 2
    squares: Float64Array = np.repeat(of_row, lengths)
    return squares


def column_sums(pattern: Pattern, values: Float64Array) -> Float64Array:
    """Sums over the rows of values that are not negative: float64 [cols]."""
    entries, largest = len(values), float(values.max(initial=0))
    columns = pattern.indices.cpu().numpy()
    parts = parts_of_sums(columns, values, pattern.shape[1], largest, entries)
    return sums_of_parts(parts, largest, entries)


def parts_of_sums(
    columns: npt.NDArray[np.integer[Any]],
    values: Float64Array,
    cols: int,
    largest: float,
    entries: int,
) -> Float64Array:
    """Sums by column whose bits do not depend on the order of the rows, in parts [3, cols].

    A value is a few whole numbers, each a part of its digits; sums of these are exact. So parts of
    several ranks may be added before `sums_of_parts` makes numbers of them. `largest` is at least
    as large as any value, `entries` as their number, on all ranks together.
    """
    rest = values / largest if largest > 0 else np.zeros(len(values))
    parts = np.empty((_DIGITS, cols))
    for part in parts:
        rest = rest * 2.0 ** (52 - entries.bit_length())  # as many digits as leave sums exact
        whole = np.floor(rest)
        part[:] = np.bincount(columns, whole, cols)
        rest -= whole
    return parts


def sums_of_parts(parts: Float64Array, largest: float, entries: int) -> Float64Array:
    """The sums, float64 [cols]; arguments are those of `parts_of_sums`."""
    total, digits = np.zeros(parts.shape[1]), 52 - entries.bit_length()
    for number, part in enumerate(parts[::-1]):
        total += part * (2.0 ** (-digits * (_DIGITS - number)) * largest)
    return total


def relabel(
    targets: Tensor, indptr: Tensor, columns: Tensor, *, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """The targets, then other columns in the order found, int64 [m], and the columns' places in it.

    Targets, int64, are each different, and numbered as the columns [edges] are; places are int32.
    """
    listed = as_int64("targets", targets)
    if indptr.shape != (len(listed) + 1,) or int(indptr[-1]) != columns.shape[0]:
        raise InputError(
            f"indptr must be int64 [{len(listed) + 1}] and end at {columns.shape[0]}, "
            f"got {described(indptr)}"
        )
    try:
        nodes, indices = _native.relabel(
            listed, columns.contiguous().numpy(), _thread_count(threads)
        )
    except ValueError as error:
        raise InputError(f"targets: {error}") from None
    return torch.from_numpy(nodes), torch.from_numpy(indices)


def distinct(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Each of some numbers once, int64 in the order found, and the place of each in there."""
    none = torch.zeros(0, dtype=torch.int64)
    return relabel(none, torch.tensor([len(numbers)]), numbers)


def union_of(parts: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The distinct numbers of some lists, int64, and the places of each list's in it."""
    union, places = distinct(torch.cat([*parts, torch.zeros(0, dtype=torch.int64)]))
    return union, list(places.long().split([len(part) for part in parts]))


def offsets_of(counts: Tensor) -> Tensor:
    """Sums of the first 0, 1, … of some counts (or truth values), int64 [n + 1]."""
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=offsets[1:])
    return offsets


def as_int64(name: str, values: Tensor, length: int | None = None) -> Int64Array:
    """A list of integers, checked: int64 [length]."""
    wanted = "n" if length is None else length
    if not isinstance(values, Tensor):
        raise InputError(f"{name} must be a tensor, int64 [{wanted}], got {type(values).__name__}")
    fits = values.dim() == 1 and values.dtype == torch.int64
    if not fits or len(values) != (len(values) if length is None else length):
        raise InputError(f"{name} must be a tensor, int64 [{wanted}], got {described(values)}")
    return values.cpu().contiguous().numpy()


def hop_counts(name: str, counts: Sequence[int]) -> Int64Array:
    """One number a hop, checked."""
    if not isinstance(counts, list | tuple):
        raise InputError(f"{name} must be a list of integers, got {type(counts).__name__}")
    numbers = [check_integer(name, count, -1) for count in counts]
    if max(numbers, default=0) > MOST_EDGES:
        raise InputError(f"{name} must be at most {MOST_EDGES}, got {max(numbers)}")
    return np.array(numbers, dtype=np.int64)


def draw_keys(draws: Sequence[Draw]) -> npt.NDArray[np.uint64]:
    """Draws as the compiled module takes them, uint64 [draws, 3]."""
    keys = [[part % 2**64 for part in (draw.seed, draw.epoch, draw.step)] for draw in draws]
    return np.array(keys, dtype=np.uint64).reshape(-1, 3)


def _as_weights(name: str, values: Tensor, length: int) -> Float64Array:
    """Floating numbers, none negative, checked: float64 [length]."""
    is_floating = isinstance(values, Tensor) and values.is_floating_point()
    if not is_floating or values.shape != (length,):
        got = described(values) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{name} must be a floating tensor [{length}], got {got}")
    numbers = values.detach().cpu().to(torch.float64).contiguous().numpy()
    wrong = np.flatnonzero(~((numbers >= 0) & np.isfinite(numbers)))
    if len(wrong):
        raise InputError(
            f"{name} must be finite and not negative; entry {wrong[0]} is {numbers[wrong[0]]:g}"
        )
    return numbers


def _thread_count(threads: int | None) -> int:
    return torch.get_num_threads() if threads is None else check_integer("threads", threads, 1)


def _seed_lists(batches: Sequence[Tensor], draws: Sequence[Draw]) -> list[Int64Array]:
    if len(batches) != len(draws):
        raise InputError(f"seeds: {len(batches)} batches, but {len(draws)} draws")
    return [as_int64("seeds", batch) for batch in batches]


def _to_samples(raw: Any, seeds: Sequence[Int64Array] | None = None) -> list[Sample]:
    """Samples of the compiled module as tensors; without seeds, all nodes of a sample are seeds."""

    def tensor(array: npt.NDArray[Any] | None) -> Any:
        return None if array is None else torch.from_numpy(array)

    return [
        Sample(
            tensor(nodes),
            len(nodes if seeds is None else seeds[i]),
            [
                Hop(tensor(indptr), tensor(indices), tensor(edge_ids), tensor(weights), sources)
                for indptr, indices, edge_ids, weights, sources in hops
            ],
            tensor(roots),
        )
        for i, (nodes, hops, roots) in enumerate(raw)
    ]
