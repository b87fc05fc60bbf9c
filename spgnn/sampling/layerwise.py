"""Layer-wise sampling: so many vertices a hop, for all targets together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.pattern import Pattern
from spgnn.sampling.arguments import (
    WEIGHTED,
    draw_keys,
    hop_counts,
    positive_list,
    thread_count,
    vertex_lists,
)
from spgnn.sampling.rows import sampled_rows, to_samples, vertices_in_proportion
from spgnn.sampling.sample import Draw, Sample
from spgnn.sparse import CSR

Squares = npt.NDArray[np.float64]
_PARTS = 3


class LayerWise:
    """What samplers of layers share. Parameters are those of :class:`LadiesSampler`."""

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
        squares = squares_of(pattern, values)
        kept = squares if values is not None else None
        self._rows = sampled_rows(pattern, vertex_ids, weights=kept, threads=self.threads)
        self._rows.check_square()
        self.pattern = self._rows.pattern
        self._chances = self._found(squares, vertex_ids)

    @abstractmethod
    def _found(self, squares: Squares, vertex_ids: Tensor | None) -> Any:
        """What vertices are drawn in proportion to, as the extension takes it."""

    @property
    @abstractmethod
    def _draw(self) -> Callable[..., Any]:
        """What draws in the extension."""

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of some vertices, each given once: int64 [seeds]."""
        return self.sample_many([seeds], [draw])[0]

    def sample_many(self, seeds: Sequence[Tensor], draws: Sequence[Draw]) -> list[Sample]:
        """Several samples at once, each on a thread of its own."""
        batches = vertex_lists("seeds", seeds, draws)
        keys = draw_keys(draws), self._first_hop
        how = self._chances, self._edge_ids, self.threads
        try:
            return to_samples(self._draw(batches, self.num_nodes, *keys, *how), batches)
        except ValueError as error:
            raise InputError(f"seeds: {error}") from None


class LadiesSampler(LayerWise):
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
        Which draw the first hop is, for who takes hops one by one.
    edge_ids, vertex_ids, threads
        As in `NeighborSampler`.

    Raises
    ------
    InputError
        If an argument is none of these.
    """

    def _found(self, squares: Squares, vertex_ids: Tensor | None) -> Squares:
        return squares

    @property
    def _draw(self) -> Callable[..., Any]:
        return self._rows.graph.ladies


class FastGCNSampler(LayerWise):
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
        If an argument is none of these.
    """

    def _found(self, squares: Squares, vertex_ids: Tensor | None) -> Any:
        return vertices_in_proportion(column_sums(self.pattern, squares), vertex_ids)

    @property
    def _draw(self) -> Callable[..., Any]:
        return self._rows.graph.fastgcn


def squares_of(source: Pattern | CSR, values: Tensor | None) -> npt.NDArray[np.float64]:
    """A² of each entry, A having rows of sum 1 if no values are given."""
    if values is not None:
        return positive_list("values", values, source.nnz) ** 2
    lengths = source.row_lengths.cpu().numpy()
    of_row = 1 / np.maximum(lengths, 1).astype(np.float64) ** 2
    squares: npt.NDArray[np.float64] = np.repeat(of_row, lengths)
    return squares


class VertexSampler:
    """Draws of all vertices of a graph, whoever the targets are: what FastGCN draws in a hop.

    Parameters
    ----------
    masses : float64 [n]
        What vertices are drawn in proportion to.
    vertex_ids : Tensor int64 [n], optional
        Original ids, of which draws are functions.
    """

    def __init__(self, masses: Squares, vertex_ids: Tensor | None = None) -> None:
        self._vertices = vertices_in_proportion(masses, vertex_ids)

    def sample(self, count: int, hop: int, draw: Draw) -> tuple[Tensor, Tensor]:
        """So many vertices (−1: all), int64 [k], and what each stands for, float32 [k]."""
        how = WEIGHTED, False, False, 1
        one, keys = np.zeros(1, np.int64), draw_keys([draw])
        _, found, _, factors = self._vertices.hop(one, None, None, count, hop, keys, *how)
        assert factors is not None
        return torch.from_numpy(found).long(), torch.from_numpy(factors)


def column_sums(pattern: Pattern, values: Squares) -> Squares:
    """Sums over the rows of values that are not negative: float64 [cols]."""
    entries, largest = len(values), float(values.max(initial=0))
    columns = pattern.indices.cpu().numpy()
    parts = parts_of_sums(columns, values, pattern.shape[1], largest, entries)
    return sums_of_parts(parts, largest, entries)


def parts_of_sums(
    columns: npt.NDArray[np.integer[Any]],
    values: Squares,
    cols: int,
    largest: float,
    entries: int,
) -> Squares:
    """Sums over the rows whose bits do not depend on the order of the rows, in parts.

    A value is a few whole numbers, each a part of its digits; sums of these are exact. So parts of
    several ranks may be added before `sums_of_parts` makes numbers of them.

    Parameters
    ----------
    columns : integers [nnz]
    values : float64 [nnz]
        None negative.
    cols : int
    largest : float
        At least as large as any value, here or elsewhere.
    entries : int
        At least as many as there are, here and elsewhere together.

    Returns
    -------
    float64 [3, cols]
    """
    rest = values / largest if largest > 0 else np.zeros(len(values))
    parts = np.empty((_PARTS, cols))
    for part in parts:
        rest = rest * 2.0 ** _digits(entries)
        whole = np.floor(rest)
        part[:] = np.bincount(columns, whole, cols)
        rest -= whole
    return parts


def sums_of_parts(parts: Squares, largest: float, entries: int) -> Squares:
    """The sums, float64 [cols]; arguments are those of `parts_of_sums`."""
    total = np.zeros(parts.shape[1])
    for number, part in enumerate(parts[::-1]):
        total += part * (2.0 ** (-_digits(entries) * (_PARTS - number)) * largest)
    return total


def _digits(entries: int) -> int:
    """Binary digits of a part: as many as leave sums of so many exact."""
    return 52 - entries.bit_length()
