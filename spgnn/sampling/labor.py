"""Layer-neighbour sampling."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.pattern import Pattern
from spgnn.sampling.arguments import draw_keys, hop_counts, thread_count, vertex_lists
from spgnn.sampling.rows import sampled_rows, to_samples
from spgnn.sampling.sample import Draw, Sample
from spgnn.sparse import CSR


class LaborSampler:
    """LABOR: targets take the same neighbours where they can (Balin & Çatalyürek, NeurIPS 2023).

    Every vertex has one random number a hop, and is taken by each target for which that is small
    enough. A target takes ``num_neighbors`` on average, with the variance of neighbour sampling,
    and all targets together far fewer vertices. `Hop.weights` make sums unbiased.

    Parameters
    ----------
    pattern : Pattern or CSR [n, n]
        Row i lists whom vertex i aggregates from.
    num_neighbors : sequence of int
        How many neighbours of each vertex on average, the seeds' hop first; −1: all.
    iterations : int
        How often vertices that many targets would take are made more important: the i of LABOR-i.
    layer_dependency : bool
        Whether a vertex has the same random number in all hops, so that hops overlap more.
    first_hop : int
        Which draw the first hop is, for who takes hops one by one.
    edge_ids, vertex_ids, threads
        As in `NeighborSampler`.

    Raises
    ------
    InputError
        If an argument is none of these.
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
        self.threads = thread_count(threads)
        self._iterations = check_integer("iterations", iterations, 0, 100)
        self._first_hop = check_integer("first_hop", first_hop, 0)
        self._layer_dependency, self._edge_ids = layer_dependency, edge_ids
        self._rows = sampled_rows(pattern, vertex_ids, threads=self.threads)
        self._rows.check_square()
        self.pattern = self._rows.pattern

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of some vertices, each given once: int64 [seeds]."""
        return self.sample_many([seeds], [draw])[0]

    def sample_many(self, seeds: Sequence[Tensor], draws: Sequence[Draw]) -> list[Sample]:
        """Several samples at once, each on a thread of its own."""
        batches = vertex_lists("seeds", seeds, draws)
        try:
            raw = self._rows.graph.labor(
                batches,
                self.num_neighbors,
                draw_keys(draws),
                self._first_hop,
                self._iterations,
                self._layer_dependency,
                self._edge_ids,
                self.threads,
            )
        except ValueError as error:
            raise InputError(f"seeds: {error}") from None
        return to_samples(raw, batches)
