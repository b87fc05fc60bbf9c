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
from spgnn.progress import Progress

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
    """

    path: Path
    directed: bool

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

    Weights that are all 1 are dropped, those of an edge that occurs twice are summed.

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
    if weights is not None and bool((weights == 1).all()):
        weights = None
    vertices, ids = file.vertices(), None
    if vertices is None:
        names = file.named(np.union1d(source, target).astype(np.int64))
        source, target = np.searchsorted(names, source), np.searchsorted(names, target)
        vertices, ids = len(names), torch.from_numpy(names)
    once = not file.directed and not isinstance(file, BothEndsFile)
    adjacency = csr_from_edges(source, target, vertices, weights, symmetric=once)
    if isinstance(file, BothEndsFile):
        file.check_entries(adjacency.nnz)
        A = adjacency.to_scipy()
        file.check_ends(A, A.T.tocsr(), 0)
    return graph_of(file.path, adjacency, file.directed, vertex_ids=ids)
