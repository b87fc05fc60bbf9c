"""Text files that list edges: read once, from their beginning, a piece at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from spgnn.data.edges import csr_from_edges
from spgnn.data.formats.reading import graph_of
from spgnn.data.graph import Graph
from spgnn.data.structure import with_entries, without_ones
from spgnn.errors import InputError
from spgnn.progress import Progress
from spgnn.sparse import EXACT, exact_in_float32

Ends = npt.NDArray[Any]


@dataclass(frozen=True)
class Edges:
    """Some edges of a file, in its order.

    Attributes
    ----------
    source, target : integer [edges]
        As the file numbers vertices, but from 0.
    weights : float64 [edges], optional
        Finite, and what float32 can hold.
    """

    source: Ends
    target: Ends
    weights: npt.NDArray[np.float64] | None

    def __len__(self) -> int:
        return len(self.source)


class EdgeFile(ABC):
    """What a file of edges says of itself, and its edges.

    Attributes
    ----------
    path : Path
    directed : bool
        Otherwise each edge is meant in both directions, and listed once, but for a `BothEndsFile`.
    integers : bool
        Whether weights are whole numbers, which stay exact or are refused.
    mixed : bool
        Once all pieces have been read: whether `check_mirrored` has anything to look for.
    """

    path: Path
    directed: bool
    integers: bool = False
    mixed: bool = False

    @abstractmethod
    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """All edges.

        Raises
        ------
        InputError
            Naming file and line.
        """

    @abstractmethod
    def vertices(self) -> int | None:
        """How many there are, once all pieces have been read; ``None`` if ends are names."""

    def decided(self) -> dict[str, str]:
        """What in the file decides direction, vertices and weights; all pieces have been read."""
        return {}

    def check_mirrored(self, rows: sp.csr_array, mirrored: sp.csr_array, first: int) -> None:
        """Refuse edges of an undirected graph that are listed from both their ends.

        Parameters
        ----------
        rows, mirrored : patterns
            As listed, and of the transpose; rows from `first` on.
        first : int

        Raises
        ------
        InputError
        """
        row, column = rows.multiply(mirrored).tocoo().coords
        off = np.flatnonzero(row + first != column)
        if len(off):
            i, j = int(row[off[0]]) + first + 1, int(column[off[0]]) + 1
            raise InputError(
                f"{self.path}: lists both entry ({i}, {j}) and ({j}, {i}); a symmetric file holds "
                "one of the two"
            )

    def named(self, names: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The names of all vertices, of those that occur, each once and rising."""
        return names


class BothEndsFile(EdgeFile):
    """A file that lists each undirected edge at both of its ends."""

    directed = False

    @abstractmethod
    def check_entries(self, entries: int) -> None:
        """Refuse another number of entries than the file says, after all of them were merged.

        Raises
        ------
        InputError
        """

    @abstractmethod
    def check_ends(self, rows: sp.csr_array, mirrored: sp.csr_array, first: int) -> None:
        """Refuse rows from `first` on that differ from what the other ends of their edges say.

        Raises
        ------
        InputError
        """


def read_edges(file: EdgeFile, progress: Progress | None = None) -> Graph:
    """The graph of a file of edges, in memory.

    Weights of an edge that occurs twice are summed; those that are then all 1 are dropped.

    Raises
    ------
    InputError
        Naming file and line.
    """
    none = np.empty(0, np.int32)
    read = [Edges(none, none, None), *file.pieces(progress)]
    source = np.concatenate([piece.source for piece in read])
    target = np.concatenate([piece.target for piece in read])
    listed = [piece.weights for piece in read if piece.weights is not None]
    weights = np.concatenate(listed) if listed else None
    del read, listed
    vertices, ids = file.vertices(), None
    if vertices is None:
        names = file.named(np.union1d(source, target).astype(np.int64))
        source, target = np.searchsorted(names, source), np.searchsorted(names, target)
        vertices, ids = len(names), torch.from_numpy(names)
    once = not file.directed and not isinstance(file, BothEndsFile)
    adjacency = csr_from_edges(source, target, vertices, weights, symmetric=once)
    if file.mixed:
        pattern = with_entries(csr_from_edges(source, target, vertices))
        file.check_mirrored(pattern, pattern.T.tocsr(), 0)
    if weights is not None:
        check_sums(file, with_entries(adjacency))
    if isinstance(file, BothEndsFile):
        file.check_entries(adjacency.nnz)
        A = adjacency.to_scipy()
        file.check_ends(A, A.T.tocsr(), 0)
    return graph_of(file.path, without_ones(adjacency), file.directed, vertex_ids=ids)


def check_sums(file: EdgeFile, rows: sp.csr_array, first: int = 0) -> None:
    """Refuse sums of whole numbers that float32 rounds, in rows from `first` on.

    Raises
    ------
    InputError
    """
    if not file.integers or rows.dtype == np.bool_:
        return
    exact = exact_in_float32(rows.data)
    if not exact.all():
        at = int(np.argmin(exact))
        row = first + int(np.searchsorted(rows.indptr, at, side="right")) - 1
        place = f"({row}, {int(rows.indices[at])})"
        raise InputError(f"{file.path}: entry {place} is {rows.data[at]:.0f}; it must be {EXACT}")
