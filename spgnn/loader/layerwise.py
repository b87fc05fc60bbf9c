"""Layer-wise sampling: so many vertices a hop, for all targets together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import check_integer
from spgnn.loader.sampling import (
    WEIGHTED,
    BatchSampler,
    Draw,
    Float64Array,
    Int64Array,
    as_weights,
    draw_keys,
    hop_counts,
    sampled_rows,
    thread_count,
    vertices_in_proportion,
)
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

_PARTS = 3


class LadiesSampler(BatchSampler):
    """LADIES: vertices in proportion to what they mean to the targets (Zou et al., NeurIPS 2019).

    A hop draws ``num_nodes`` of the targets' neighbours without replacement, vertex t in proportion
    to Σ_s A_st² over the targets s, and takes all edges between these and the targets. For many
    batches these are the rows of one product of sparse matrices (Tripathy, Yelick & Buluç, MLSys
    2024): `sample_many`. `Hop.weights` make sums unbiased.

    Parameters
    ----------
    pattern : Pattern or CSR [n, n]
        Row i lists whom vertex i aggregates from.
    num_nodes : sequence of int
        How many vertices, the seeds' hop first; −1: all neighbours.
    values : Tensor, floating [nnz], optional
        Absolute values of A; one over the row's length if not given. Entries of 0 are no edges.
    first_hop : int
        Number of the first hop, for callers that take hops one by one.
    edge_ids, vertex_ids, threads
        As in `NeighborSampler`.

    Raises
    ------
    InputError
        If an argument is wrong.
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
        self.num_nodes = hop_counts("num_nodes", num_nodes)
        self.threads = thread_count(threads)
        self._first_hop = check_integer("first_hop", first_hop, 0)
        self._edge_ids = edge_ids
        self._squares = squares_of(pattern, values)
        kept = self._squares if values is not None else None
        self._rows = sampled_rows(pattern, vertex_ids, weights=kept, threads=self.threads)
        self._rows.check_square()
        self.pattern = self._rows.pattern

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        options = self._squares, self._edge_ids, self.threads
        return self._rows.graph.ladies(seeds, self.num_nodes, draws, self._first_hop, *options)


class FastGCNSampler(LadiesSampler):
    """FastGCN: vertices of the whole graph, whoever the targets are (Chen, Ma & Xiao, ICLR 2018).

    A hop draws ``num_nodes`` of all vertices without replacement, vertex t in proportion to
    Σ_s A_st² over all rows s, and takes all edges between these and the targets; some targets may
    get none. `Hop.weights` make sums unbiased.

    Parameters
    ----------
    pattern, num_nodes, values, first_hop, edge_ids, vertex_ids, threads
        As in `LadiesSampler`; ``num_nodes`` of −1: all vertices.

    Raises
    ------
    InputError
        If an argument is wrong.
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
        masses = column_sums(self.pattern, self._squares)
        self._vertices = vertices_in_proportion(masses, vertex_ids)

    def _draw(self, seeds: list[Int64Array], draws: npt.NDArray[np.uint64]) -> Any:
        options = self._vertices, self._edge_ids, self.threads
        return self._rows.graph.fastgcn(seeds, self.num_nodes, draws, self._first_hop, *options)


class VertexSampler:
    """Draws of all vertices of a graph in proportion to their masses: a hop of FastGCN."""

    def __init__(self, masses: Float64Array, vertex_ids: Tensor | None = None) -> None:
        self._vertices = vertices_in_proportion(masses, vertex_ids)

    def sample(self, count: int, hop: int, draw: Draw) -> tuple[Tensor, Tensor]:
        """So many vertices (−1: all), int64 [k], and what each stands for, float32 [k]."""
        row, options = np.zeros(1, np.int64), (WEIGHTED, False, False, 1)
        _, drawn, _, factors = self._vertices.hop(
            row, None, None, count, hop, draw_keys([draw]), *options
        )
        assert factors is not None
        return torch.from_numpy(drawn).long(), torch.from_numpy(factors)


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

    A value is a few whole numbers, each a part of its digits; sums of these are exact. So parts of
    several ranks may be added before `sums_of_parts` makes numbers of them. `largest` is at least
    as large as any value, `entries` as their number, on all ranks together.
    """
    rest = values / largest if largest > 0 else np.zeros(len(values))
    parts = np.empty((_PARTS, cols))
    for part in parts:
        rest = rest * 2.0 ** _digits(entries)
        whole = np.floor(rest)
        part[:] = np.bincount(columns, whole, cols)
        rest -= whole
    return parts


def sums_of_parts(parts: Float64Array, largest: float, entries: int) -> Float64Array:
    """The sums, float64 [cols]; arguments are those of `parts_of_sums`."""
    total = np.zeros(parts.shape[1])
    for number, part in enumerate(parts[::-1]):
        total += part * (2.0 ** (-_digits(entries) * (_PARTS - number)) * largest)
    return total


def _digits(entries: int) -> int:
    """Binary digits of a part: as many as leave sums of so many exact."""
    return 52 - entries.bit_length()
