"""What a sample is, and what its draws depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Draw:
    """Which draw this is: every number that a sampler draws is a hash of it.

    The rest of what is hashed are the hop, the original id of a vertex, and a column. So a batch
    does not depend on threads, ranks, the partition, or on what is sampled before it.

    Parameters
    ----------
    seed, epoch, batch : int
    """

    seed: int
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True, eq=False)
class Hop:
    """One sampled matrix [targets, sources]; it has CSR form.

    Parameters
    ----------
    indptr : Tensor, int64 [targets + 1]
    indices : Tensor, int32 or int64 [edges]
        Places in `Sample.nodes`, below ``sources``.
    edge_ids : Tensor, int64 [edges], or None
        Places among the nonzeros of the graph.
    weights : Tensor, float32 [edges], or None
        Factors that make a *sum* over the sampled edges an unbiased estimate of the sum over all
        edges of the row. ``None``: all edges of a row stand for equally many.
    sources : int
        ``Sample.nodes[:sources]`` are its columns and ``Sample.nodes[:targets]`` its rows.
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    weights: Tensor | None
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

    Parameters
    ----------
    nodes : Tensor, int64 [m]
        Vertices of the graph: the seeds first, then the others in the order found, each once (once
        for each seed where samples are disjoint).
    seeds : int
    hops : list of Hop
        ``hops[0]`` belongs to the seeds, ``hops[-1]`` is the outermost. The sources of a hop are
        the targets of the next one.
    batch : Tensor, int64 [m], or None
        Which seed each node belongs to, where samples are disjoint.
    """

    nodes: Tensor
    seeds: int
    hops: list[Hop]
    batch: Tensor | None = None


class Sampler(Protocol):
    """Makes a sample from seeds, without communication; threads may call it at the same time."""

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of the seeds, int64 [seeds], each different."""
