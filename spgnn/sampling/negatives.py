"""Pairs that are no edges, for learning to tell links."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice, check_integer
from spgnn.pattern import Pattern
from spgnn.sampling.arguments import draw_keys, int64_list, thread_count
from spgnn.sampling.layerwise import column_sums
from spgnn.sampling.rows import sampled_rows, vertices_in_proportion
from spgnn.sampling.sample import Draw
from spgnn.sparse import CSR

METHODS = ("uniform", "degree")


class NegativeSampler:
    """Draws vertices that are not in a vertex's row, with replacement.

    Parameters
    ----------
    pattern : Pattern or CSR [n, n]
    method : {"uniform", "degree"}
        Any vertex, or in proportion to how many rows it is in.
    exclude_edges : bool
        Whether to draw anew where the pair is an edge, or a vertex and itself.
    vertex_ids, threads
        As in `NeighborSampler`.

    Raises
    ------
    InputError
        If an argument is none of these.
    """

    def __init__(
        self,
        pattern: Pattern | CSR,
        *,
        method: str = "uniform",
        exclude_edges: bool = True,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        check_choice("method", method, METHODS)
        self.threads = thread_count(threads)
        self._rows = sampled_rows(pattern, vertex_ids, threads=self.threads)
        self._rows.check_square()
        self.pattern = self._rows.pattern
        self._by_degree, self._exclude_edges = method == "degree", exclude_edges
        ones = np.ones(self.pattern.nnz if self._by_degree else self.pattern.shape[0])
        masses = column_sums(self.pattern, ones) if self._by_degree else ones
        if not masses.any():
            raise InputError("pattern: there is no vertex to draw")
        self._vertices = vertices_in_proportion(masses, vertex_ids)

    def sample(self, vertices: Tensor, count: int, draw: Draw) -> Tensor:
        """Other ends for some vertices.

        Parameters
        ----------
        vertices : Tensor, int64 [m]
            May repeat: each draws by itself.
        count : int
            How many for each.
        draw : Draw

        Returns
        -------
        Tensor, int64 [m, count]

        Raises
        ------
        InputError
            If a vertex does not exist, or has an edge with everything that can be drawn.
        """
        count = check_integer("count", count, 0)
        listed = int64_list("vertices", vertices)
        wrong = listed[(listed < 0) | (listed >= self.pattern.shape[0])]
        if len(wrong):
            raise InputError(f"vertices: {wrong[0]} outside [0, {self.pattern.shape[0]})")
        how = self._by_degree, self._exclude_edges, draw_keys([draw]), self.threads
        try:
            drawn = self._rows.graph.negatives(listed, count, self._vertices, *how)
        except ValueError as error:
            raise InputError(f"vertices: {error}") from None
        return torch.from_numpy(drawn).reshape(len(listed), count)


def negatives(
    pattern: Pattern | CSR,
    vertices: Tensor,
    count: int,
    draw: Draw,
    *,
    method: str = "uniform",
    exclude_edges: bool = True,
    vertex_ids: Tensor | None = None,
    threads: int | None = None,
) -> Tensor:
    """What a `NegativeSampler` of these arguments draws; for many draws, make one.

    Returns
    -------
    Tensor, int64 [m, count]
    """
    sampler = NegativeSampler(
        pattern,
        method=method,
        exclude_edges=exclude_edges,
        vertex_ids=vertex_ids,
        threads=threads,
    )
    return sampler.sample(vertices, count, draw)
