"""Sampled neighbourhoods of a few vertices, the keys of their draws, and how they are numbered."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError, check_integer
from spgnn.layout import Int64Array
from spgnn.pattern import Pattern, described, numpy_index_dtype
from spgnn.sparse import CSR

Float64Array = npt.NDArray[np.float64]
EdgeType = tuple[str, str, str]
UNIFORM, WEIGHTED, LAST = range(3)  # as in hop.hpp
MOST_EDGES = 2**31 - 1  # of a sample
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
    step: int = 0  # within its epoch
    # Of a batch, and not hashed: its number in the epoch, among those of all ranks; and the steps
    # since the first epoch, the key of its dropout.
    number: int = 0
    iteration: int = 0


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
    # Of a loader's batch: its seeds' places among the input nodes, its draw, and further fields.
    inputs: Any = None
    draw: Draw = Draw(0)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def vertices(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def edges(self) -> int:
        """Edges of all hops together."""
        return sum(hop.edges for hop in self.hops)


@dataclass(frozen=True, eq=False)
class TypedSample(Sample):
    """The neighbourhood of some seeds in a graph of several vertex types, by type and relation."""

    nodes: dict[str, Tensor]  # type: ignore[assignment]
    hops: list[dict[EdgeType, Hop]]  # type: ignore[assignment]
    batch: dict[str, Tensor] | None = None  # type: ignore[assignment]

    @property
    def vertices(self) -> int:
        """Number of nodes of all types."""
        return sum(map(len, self.nodes.values()))

    @property
    def edges(self) -> int:
        """Edges of all hops and relations together."""
        return sum(hop.edges for hops in self.hops for hop in hops.values())


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
            self.vertices += sum(sample.vertices for sample in samples)
            self.edges += sum(sample.edges for sample in samples)
            self.seconds += seconds

    @property
    def edges_per_second(self) -> float:
        """Edges that one thread samples in a second."""
        return self.edges / self.seconds if self.seconds else 0.0


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
        return as_weights("values", values, source.nnz) ** 2
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

    A value is a few whole numbers, each a part of its digits; sums of these are exact, also over
    ranks, until `sums_of_parts` makes numbers of them. `largest` is at least as large as any value,
    `entries` as their number, on all ranks together.
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


def relabel(targets: Tensor, indptr: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The targets, then other columns in the order found, int64 [m], and the columns' places in it.

    Targets, int64, are each different, and numbered as the columns [edges] are; places are int32.
    """
    rows, entries = len(targets), len(columns)
    if indptr.shape != (rows + 1,) or int(indptr[-1]) != entries:
        raise InputError(f"indptr must be int64 [{rows + 1}] and end at {entries}")
    return numbered(targets, columns)


def numbered(nodes: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """As `relabel`, of columns of any rows."""
    try:
        longer, indices = _native.relabel(as_int64("targets", nodes), columns.contiguous().numpy())
    except ValueError as error:
        raise InputError(f"targets: {error}") from None
    return torch.from_numpy(longer), torch.from_numpy(indices)


def distinct(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Each of some numbers once, int64 in the order found, and the place of each in there."""
    return numbered(torch.zeros(0, dtype=torch.int64), numbers)


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
    size = "n" if length is None else length
    if not isinstance(values, Tensor):
        raise InputError(f"{name} must be a tensor, int64 [{size}], got {type(values).__name__}")
    fits = values.dim() == 1 and values.dtype == torch.int64
    if not fits or len(values) != (len(values) if length is None else length):
        raise InputError(f"{name} must be a tensor, int64 [{size}], got {described(values)}")
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


def as_weights(name: str, values: Tensor, length: int) -> Float64Array:
    """Floating numbers, none negative, checked: float64 [length]."""
    is_floating = isinstance(values, Tensor) and values.is_floating_point()
    if not is_floating or values.shape != (length,):
        got = described(values) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{name} must be a floating tensor [{length}], got {got}")
    numbers = values.detach().cpu().to(torch.float64).contiguous().numpy()
    wrong = np.flatnonzero(~((numbers >= 0) & np.isfinite(numbers)))
    for at in wrong[:1]:
        raise InputError(f"{name} must be finite, not negative; entry {at} is {numbers[at]:g}")
    return numbers


def thread_count(threads: int | None) -> int:
    """Threads inside one call: those of torch if not given."""
    return torch.get_num_threads() if threads is None else check_integer("threads", threads, 1)
