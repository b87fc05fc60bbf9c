"""Table 2: what one product moves under partitions of METIS and of our own partitioner."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paper.graphs import PaperGraph
from spgnn.partition.volume import count_volumes
from spgnn.plan.graphs import Partitions
from spgnn.progress import Progress

# random is what the paper's sparsity-aware algorithm has without a partitioner.
METHODS = ("random", "metis", "gvb")
_FLOAT = 4


@dataclass(frozen=True)
class Row:
    """Rows of H that one product sends, in a graph of the original's size.

    Attributes
    ----------
    ranks : int
    method : str
    total : float
    average, maximum : float
        Of a rank.
    receive : float
        The most that a rank receives.
    seconds : float
        That the partition took, or what it took to read it from the cache.
    """

    ranks: int
    method: str
    total: float
    average: float
    maximum: float
    receive: float
    seconds: float

    @property
    def imbalance(self) -> float:
        """Maximum over average, less 1."""
        return self.maximum / self.average - 1 if self.average else 0.0

    def megabytes(self, rows: float, width: int) -> float:
        """Of so many float32 rows."""
        return rows * width * _FLOAT / 1e6


def volumes(
    graph: PaperGraph,
    partitions: Partitions,
    ranks: Sequence[int],
    methods: Sequence[str] = METHODS,
    progress: Progress | None = None,
) -> Iterator[Row]:
    """One row for each number of ranks and method, as soon as it is counted.

    Raises
    ------
    InputError
        If a method cannot do what is asked, or its package is missing.
    """
    for parts in ranks:
        for method in methods:
            begin = time.perf_counter()
            labels = partitions.labels(method, "column", parts)
            seconds = time.perf_counter() - begin
            column = count_volumes(
                graph.data.looped, labels, parts, minimum=False, progress=progress
            ).column
            yield Row(
                parts,
                method,
                graph.factor * column.total,
                graph.factor * column.total / parts,
                graph.factor * int(column.send.max()),
                graph.factor * int(column.receive.max()),
                seconds,
            )
